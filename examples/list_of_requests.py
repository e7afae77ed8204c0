"""Translates words without an agent: a list of requests goes out, and a list of outcomes comes back.

    OPENAI_API_KEY=… python examples/list_of_requests.py

Against a fake OpenAI, in seconds: start `python -m pydantic_ai_batch.testing`, and export what it prints.
"""

from datetime import timedelta

from pydantic_ai import ModelRequest, ModelResponse

from pydantic_ai_batch import BatchRequest, model_request_batch_sync

WORDS = ['Feierabend', 'dépaysement', 'sobremesa', 'komorebi']


def main() -> None:
    requests = [
        BatchRequest(
            custom_id=word,
            messages=[ModelRequest.user_text_prompt(word, instructions='Explain the word in one English sentence.')],
        )
        for word in WORDS
    ]
    outcomes = model_request_batch_sync(
        'openai-responses:gpt-5-mini', requests, poll_interval=timedelta(seconds=5), progress=True
    )
    for request, outcome in zip(requests, outcomes, strict=True):
        if isinstance(outcome, ModelResponse):
            print(f'{request.custom_id}: {outcome.text}')
        else:
            print(f'{request.custom_id}: failed with {type(outcome).__name__}: {outcome}')


if __name__ == '__main__':
    main()
