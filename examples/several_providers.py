"""Two agents on two providers share one capability: Claude answers customers, Gemini files what they wrote.

    ANTHROPIC_API_KEY=… GEMINI_API_KEY=… python examples/several_providers.py

Against fakes, in seconds: start `python -m pydantic_ai_batch.testing`, and export what it prints.
"""

import asyncio
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent

from pydantic_ai_batch import BatchModelRequests

LETTERS = [
    'My kettle leaks. I have had it for three weeks.',
    'Do you ship to Iceland?',
    'The blue lamp is lovely. Is there a red one?',
]


class Filed(BaseModel):
    about: Literal['defect', 'delivery', 'product']
    urgent: bool


# Each model has a queue of its own in it, and so a batch of its own.
batching = BatchModelRequests(max_wait=timedelta(seconds=1), poll_interval=timedelta(seconds=5), progress=True)
writer = Agent(
    'anthropic:claude-haiku-4-5',
    instructions='Answer the customer of a household shop in two friendly sentences.',
    capabilities=[batching],
)
clerk = Agent('google:gemini-2.5-flash', output_type=Filed, capabilities=[batching])


async def main() -> None:
    answers, files = await asyncio.gather(
        asyncio.gather(*[writer.run(letter) for letter in LETTERS]),
        asyncio.gather(*[clerk.run(letter) for letter in LETTERS]),
    )
    for letter, answer, filed in zip(LETTERS, answers, files, strict=True):
        print(letter)
        print(f'  {filed.output.about}{", urgent" if filed.output.urgent else ""}: {answer.output}')


if __name__ == '__main__':
    asyncio.run(main())
