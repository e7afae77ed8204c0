"""The program that the kill matrix kills: 60 runs of three agents, each on a model of another provider.

It runs in a process of its own, which kills itself where a test says, and says what it did only if it comes to its end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sqlite3
import time
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import httpx2
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel

from pydantic_ai_batch import BatchModelRequests, Journal

# Imported before the fork, as it takes seconds.
for sdk in ('anthropic', 'google.genai', 'openai'):
    import_module(sdk)

ROWS = 20
"""Runs of each agent."""

SPEED = 400.0
"""How much faster the clock of the program and of the fakes goes than the machine's."""


class FastClock:
    """A clock that goes faster, from the same time on in every process."""

    def __init__(self, start: float) -> None:
        self.start = start

    def now(self) -> float:
        return self.start + (time.time() - self.start) * SPEED

    def monotonic(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / SPEED)


@dataclass(frozen=True)
class Kill:
    """Where the program kills itself: at the `nth` time that something happens."""

    what: str
    """`sql` before a statement, `call` before a call to a provider, `reply` when its reply has begun to arrive."""
    pattern: str
    """What the statement begins with, or the method of the call and a part of its path."""
    nth: int = 1


@dataclass(frozen=True)
class Orders:
    """What one start of the program is to do."""

    environment: dict[str, str]
    start: float
    journal: Path
    report: Path
    """Where it writes the answers when it is done."""
    share: bool = False
    tools: bool = False
    """Whether the agents have a tool, so that each run has two turns."""
    kill: Kill | None = None


def run(orders: Orders) -> None:
    """One start of the program."""
    os.environ.update(orders.environment)
    # What it logs would be in the way of what the tests print.
    logging.disable()
    if orders.kill is not None:
        _arm(orders.kill)
    answers = asyncio.run(_main(orders))
    unfinished = orders.report.with_suffix('.unfinished')
    unfinished.write_text(json.dumps(answers))
    unfinished.rename(orders.report)


async def _main(orders: Orders) -> dict[str, list[str]]:
    clock = FastClock(orders.start)
    batching = BatchModelRequests(
        max_requests=ROWS // 2,
        max_wait=timedelta(seconds=1000),
        poll_interval=timedelta(seconds=20),
        max_poll_interval=timedelta(seconds=30),
        journal=Journal(orders.journal, share=orders.share),
        clock=clock,
    )
    models = {
        'openai': OpenAIResponsesModel('gpt-5-mini'),
        'anthropic': AnthropicModel('claude-haiku-4-5'),
        'google': GoogleModel('gemini-2.5-flash', provider='google'),
    }

    def look_up(number: int) -> str:
        """Look a number up."""
        return f'number {number}'

    async def answers_of(name: str, model: Any) -> list[str]:
        agent = Agent(model, tools=[look_up] if orders.tools else [], capabilities=[batching])
        results = await asyncio.gather(*[agent.run(f'{name} {row}') for row in range(ROWS)])
        return [result.output for result in results]

    outputs = await asyncio.gather(*[answers_of(name, model) for name, model in models.items()])
    return dict(zip(models, outputs, strict=True))


def _arm(kill: Kill) -> None:
    left = kill.nth

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    if kill.what == 'sql':
        connect = sqlite3.connect

        def traced(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options)
            connection.set_trace_callback(lambda statement: count() if statement.startswith(kill.pattern) else None)
            return connection

        sqlite3.connect = traced
        return
    method, part = kill.pattern.split()
    for transport in (httpx.AsyncHTTPTransport, httpx2.AsyncHTTPTransport):
        _arm_transport(transport, kill.what, method, part, count)


def _arm_transport(transport: Any, what: str, method: str, part: str, count: Any) -> None:
    handle = transport.handle_async_request

    async def handled(self: Any, request: Any) -> Any:
        meant = request.method == method and part in str(request.url)
        if meant and what == 'call':
            count()
        response = await handle(self, request)
        if meant and what == 'reply':
            count()
        return response

    transport.handle_async_request = handled
