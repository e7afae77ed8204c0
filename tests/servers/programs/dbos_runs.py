"""Runs of an agent as workflows of DBOS: `dbos_runs.py DATABASE COUNT [TASK]`. Started again, it goes on with them."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from batching import agent_with, batching, pending_agent_with
from dbos import DBOS, SetWorkflowID
from pydantic_ai import PendingModelResponse
from pydantic_ai.durable_exec.dbos import DBOSDurability

database, count = sys.argv[1], int(sys.argv[2])
task = sys.argv[3] if len(sys.argv) > 3 else 'ask'

DBOS(
    config={
        'name': 'asker',
        'system_database_url': database,
        'run_admin_server': False,
        'log_level': 'ERROR',
        # By default it is a digest of the code, and runs of another are not gone on with.
        'application_version': '1',
        'executor_id': 'one',
    }
)
agent = agent_with(DBOSDurability())
leaver = pending_agent_with(DBOSDurability())


@DBOS.workflow()
async def ask(prompt: str) -> str:
    return (await agent.run(prompt)).output


@DBOS.workflow()
async def leave(prompt: str) -> bool:
    return isinstance((await leaver.run(prompt)).output, PendingModelResponse)


@DBOS.workflow()
async def flush(prompt: str) -> str:
    await batching.flush()
    return prompt


@DBOS.workflow()
async def add(prompt: str) -> str:
    return (await agent.run(prompt, capabilities=[batching])).output


async def main() -> None:
    work: Any = {'ask': ask, 'cancel': ask, 'leave': leave, 'flush': flush, 'add': add}[task]
    handles = []
    for number in range(count):
        with SetWorkflowID(f'run-{number}'):
            handles.append(await DBOS.start_workflow_async(work, f'prompt {number}'))
    print('started', flush=True)
    if task == 'cancel':
        # Told by its standard input, when the batch is there.
        await asyncio.to_thread(sys.stdin.readline)
        await DBOS.cancel_workflow_async('run-0')
    results = await asyncio.gather(*(handle.get_result() for handle in handles), return_exceptions=True)
    print(
        json.dumps(
            [result if isinstance(result, str | bool) else f'{type(result).__name__}: {result}' for result in results]
        )
    )
    steps = await DBOS.list_workflow_steps_async('run-0')
    print(json.dumps([step['function_name'] for step in steps]), flush=True)


DBOS.launch()
asyncio.run(main())
DBOS.destroy()
