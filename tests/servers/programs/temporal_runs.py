"""Runs of an agent as workflows of Temporal.

`temporal_runs.py worker ADDRESS` serves them until it is stopped. `temporal_runs.py ask ADDRESS COUNT [TASK]` starts
them, and prints what comes of them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, ClassVar

from batching import agent_with, batching, pending_agent_with, told
from pydantic_ai import PendingModelResponse
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.worker import Worker

QUEUE = 'asking'

agent = agent_with(TemporalDurability())
leaver = pending_agent_with(TemporalDurability())


@workflow.defn
class Ask(PydanticAIWorkflow):
    __pydantic_ai_agents__: ClassVar = [agent]

    @workflow.run
    async def run(self, prompt: str) -> str:
        return (await agent.run(prompt)).output


@workflow.defn
class Leave(PydanticAIWorkflow):
    __pydantic_ai_agents__: ClassVar = [leaver]

    @workflow.run
    async def run(self, prompt: str) -> bool:
        return isinstance((await leaver.run(prompt)).output, PendingModelResponse)


@workflow.defn
class Flush:
    @workflow.run
    async def run(self, prompt: str) -> str:
        try:
            await batching.flush()
        except Exception as error:
            return f'{type(error).__name__}: {error}'
        return prompt


@workflow.defn
class Add(PydanticAIWorkflow):
    __pydantic_ai_agents__: ClassVar = [agent]

    @workflow.run
    async def run(self, prompt: str) -> str:
        try:
            return (await agent.run(prompt, capabilities=[batching])).output
        except Exception as error:
            return f'{type(error).__name__}: {error}'


async def serve(address: str) -> None:
    client = await Client.connect(address, plugins=[PydanticAIPlugin()])
    async with Worker(client, task_queue=QUEUE, workflows=[Ask, Leave, Flush, Add]):
        print('serving', flush=True)
        await asyncio.Event().wait()


async def ask(address: str, count: int, task: str) -> None:
    client = await Client.connect(address, plugins=[PydanticAIPlugin()])
    work: Any = {'ask': Ask, 'cancel': Ask, 'leave': Leave, 'flush': Flush, 'add': Add}[task]
    handles = [
        await client.start_workflow(work.run, f'prompt {number}', id=f'run-{number}', task_queue=QUEUE)
        for number in range(count)
    ]
    print('started', flush=True)
    if task == 'cancel':
        await asyncio.to_thread(sys.stdin.readline)
        await handles[0].cancel()
    results = await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)
    print(json.dumps([_told(result) for result in results]))
    history = await handles[-1].fetch_history()
    print(json.dumps(len(history.events)), flush=True)


def _told(result: Any) -> Any:
    while isinstance(result, WorkflowFailureError) or getattr(result, 'cause', None) is not None:
        result = result.cause
    return told(result)


if __name__ == '__main__':
    role, where, *more = sys.argv[1:]
    asyncio.run(serve(where) if role == 'worker' else ask(where, int(more[0]), more[1] if len(more) > 1 else 'ask'))
    # At its end the interpreter aborts now and then below Temporal's library, when all is done.
    os._exit(0)
