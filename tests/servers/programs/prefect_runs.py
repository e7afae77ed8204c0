"""Runs of an agent as flows of Prefect: `prefect_runs.py COUNT [TASK]`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from batching import agent_with, batching, pending_agent_with
from prefect import flow
from prefect.testing.utilities import prefect_test_harness
from pydantic_ai import PendingModelResponse
from pydantic_ai.durable_exec.prefect import PrefectDurability

count = int(sys.argv[1])
task = sys.argv[2] if len(sys.argv) > 2 else 'ask'
seconds = os.environ.get('STEP_SECONDS')
durability = PrefectDurability(model_task_config={'timeout_seconds': float(seconds), 'retries': 0} if seconds else None)
agent = agent_with(durability)
leaver = pending_agent_with(PrefectDurability())


@flow
async def ask(prompt: str) -> str:
    return (await agent.run(prompt)).output


@flow
async def leave(prompt: str) -> bool:
    return isinstance((await leaver.run(prompt)).output, PendingModelResponse)


@flow
async def flush(prompt: str) -> str:
    await batching.flush()
    return prompt


async def main() -> None:
    work: Any = {'ask': ask, 'leave': leave, 'flush': flush}[task]
    results = await asyncio.gather(*(work(f'prompt {number}') for number in range(count)), return_exceptions=True)
    print(
        json.dumps(
            [result if isinstance(result, str | bool) else f'{type(result).__name__}: {result}' for result in results]
        )
    )


with prefect_test_harness():
    asyncio.run(main())
