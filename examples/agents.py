"""Sorts product reviews with one agent, all in one batch.

Against OpenAI, for less than a cent, in minutes to hours:

    OPENAI_API_KEY=… python examples/agents.py

Against a fake OpenAI, in seconds: start `python -m pydantic_ai_batch.testing`, and export what it prints.
"""

import asyncio
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.exceptions import batch_of

REVIEWS = [
    'Arrived in two days, works as described.',
    'The left earbud died after a week.',
    'Great sound, but the case scratches if you look at it.',
    'I ordered black and got white. Twice.',
]


class Review(BaseModel):
    mood: Literal['happy', 'mixed', 'unhappy']
    about: Literal['delivery', 'quality', 'price', 'other']
    summary: str


batching = BatchModelRequests(max_wait=timedelta(seconds=1), poll_interval=timedelta(seconds=5), progress=True)
agent = Agent('openai-responses:gpt-5-mini', output_type=Review, capabilities=[batching])


async def main() -> None:
    results = await asyncio.gather(*[agent.run(review) for review in REVIEWS], return_exceptions=True)
    for review, result in zip(REVIEWS, results, strict=True):
        print(review)
        if isinstance(result, BaseException):
            batch = batch_of(result)
            print(f'  {type(result).__name__} in {batch.id if batch else "no batch"}: {result}')
        else:
            print(f'  {result.output.mood}, about {result.output.about}: {result.output.summary}')


if __name__ == '__main__':
    asyncio.run(main())
