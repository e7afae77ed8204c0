"""Answers questions in a batch. Kill it while it waits, start it again, and it carries on; it is paid for once.

    OPENAI_API_KEY=… python examples/survives_kill.py     # then Ctrl-\\, or pull the plug
    OPENAI_API_KEY=… python examples/survives_kill.py     # the same batch goes on

Against a fake OpenAI, which takes seconds: start `python -m pydantic_ai_batch.testing`, and export what it prints.
"""

import asyncio
import logging
import sys
from datetime import timedelta

from pydantic_ai import Agent

from pydantic_ai_batch import BatchModelRequests

QUESTIONS = [f'Is {number} a prime number? Yes or no.' for number in range(2, 12)]

agent = Agent(
    'openai-responses:gpt-5-mini',
    capabilities=[
        BatchModelRequests(
            max_wait=timedelta(seconds=1),
            poll_interval=timedelta(seconds=1),
            journal=sys.argv[1] if len(sys.argv) > 1 else 'primes.journal',
        )
    ],
)


async def main() -> None:
    results = await asyncio.gather(*[agent.run(question) for question in QUESTIONS])
    for question, result in zip(QUESTIONS, results, strict=True):
        print(question, '-', result.output)


if __name__ == '__main__':
    logging.basicConfig(format='%(message)s')
    logging.getLogger('pydantic_ai_batch').setLevel(logging.INFO)
    asyncio.run(main())
