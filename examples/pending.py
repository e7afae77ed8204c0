"""Submits questions and ends. Each later run checks once, and prints the answers that are there.

    OPENAI_API_KEY=… python examples/pending.py histories     # submits, as the folder is new
    OPENAI_API_KEY=… python examples/pending.py histories     # collects, now or tomorrow, until nothing is pending

Against a fake OpenAI, which takes seconds: start `python -m pydantic_ai_batch.testing`, and export what it prints.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse

from pydantic_ai_batch import BatchModelRequests

QUESTIONS = {
    'bread': 'Why does bread go stale? One sentence.',
    'ice': 'Why does ice float? One sentence.',
    'sky': 'Why is the sky blue? One sentence.',
}

agent = Agent(
    'openai-responses:gpt-5-mini',
    output_type=[str, PendingModelResponse],
    capabilities=[BatchModelRequests(max_wait=timedelta(seconds=1))],
)


async def submit(folder: Path) -> None:
    results = await asyncio.gather(*[agent.run(question) for question in QUESTIONS.values()])
    folder.mkdir(parents=True)
    for name, result in zip(QUESTIONS, results, strict=True):
        (folder / f'{name}.json').write_bytes(result.all_messages_json())
    print(f'{len(results)} questions were submitted.')


async def collect(folder: Path) -> None:
    files = sorted(folder.glob('*.json'))
    histories = [ModelMessagesTypeAdapter.validate_json(file.read_bytes()) for file in files]
    results = await asyncio.gather(*[agent.run(message_history=history) for history in histories])
    for file, result in zip(files, results, strict=True):
        if isinstance(result.output, PendingModelResponse):
            # What this check came to is in the history, so it takes the place of the one before.
            file.write_bytes(result.all_messages_json())
            print(f'{file.stem}: pending')
        else:
            file.rename(file.with_suffix('.answered'))
            print(f'{file.stem}: {result.output}')
    if not files:
        print('Nothing is pending.')


if __name__ == '__main__':
    histories = Path(sys.argv[1] if len(sys.argv) > 1 else 'histories')
    asyncio.run(collect(histories) if histories.is_dir() else submit(histories))
