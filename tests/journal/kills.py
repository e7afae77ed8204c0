"""Starts the program of the kill matrix again and again until it is done, and looks at what the providers billed."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall

from .program import ROWS, FastClock, Kill, Orders, run

SECONDS = 60
"""How long one start may take, on the machine's clock."""

_processes = multiprocessing.get_context('forkserver')
_processes.set_forkserver_preload(['journal.program'])


@dataclass
class Outcome:
    """What came of a program that was killed and started again until it was done."""

    answers: list[dict[str, list[str]]]
    """Of each copy of the program."""
    billed: Counter[str]
    creates: int
    starts: int
    kept_files: int
    """Input files that are still at the providers."""


def answer(request: FakeRequest) -> str | FakeToolCall:
    """Echo the prompt, after a call of the tool if there is one."""
    if request.tools and not request.tool_results:
        return FakeToolCall(request.tools[0].name, {'number': 7})
    return f'you said {request.text}'


def play(
    tmp_path: Path,
    kills: Sequence[Kill | float | None],
    *,
    copies: int = 1,
    tools: bool = False,
) -> Outcome:
    """Start the program once for each of `kills`, and then until it is done.

    Args:
        tmp_path: Where the journal is.
        kills: Where it kills itself, or after how many seconds it is killed, at each start.
        copies: How many copies of it share the journal. The first one is killed.
        tools: Whether its agents have two turns.
    """
    clock = FastClock(time.time())
    with FakeProviders(answer, clock=clock, processing=timedelta(seconds=60)) as fake:
        environment = {
            name: value for provider in fake.providers.values() for name, value in provider.environment.items()
        }
        orders = Orders(environment, clock.start, tmp_path / 'journal.db', tmp_path / '0.json', copies > 1, tools)
        others = [replace(orders, report=tmp_path / f'{copy}.json') for copy in range(1, copies)]
        running: list[BaseProcess] = []
        starts = 0
        for kill in [*kills, None]:
            starts += 1
            process = _start(replace(orders, kill=kill if isinstance(kill, Kill) else None))
            if not running and others:
                # Two that start at the same moment share the rows between them, each with queues that are not full.
                _wait_for_requests(orders.journal, process)
                running = [_start(order) for order in others]
            if isinstance(kill, float):
                process.join(kill)
                process.kill()
            _ended(process, (0, -signal.SIGKILL) if kill is not None else (0,))
            if orders.report.exists():
                break
        for process in running:
            _ended(process, (0,))
        reports = [json.loads(order.report.read_text()) for order in (orders, *others)]
        providers = fake.providers.values()
        deleted = {call.path for call in fake.openai.calls if call.operation == 'delete'}
        files = fake.openai.count('upload') - len(deleted)
        return Outcome(
            reports,
            Counter(row.text for provider in providers for row in provider.billed),
            sum(provider.count('create') for provider in providers),
            starts,
            files,
        )


def _wait_for_requests(journal: Path, process: BaseProcess) -> None:
    """Wait until a process has written all its requests down, or has ended."""
    written = 0
    while written < 3 * ROWS and process.is_alive():
        process.join(0.02)
        with suppress(sqlite3.Error), closing(sqlite3.connect(f'file:{journal}?mode=ro', uri=True)) as connection:
            (written,) = connection.execute('SELECT count(*) FROM requests').fetchone()


def kill_at_random(tmp_path: Path, seed: int) -> Outcome:
    """Kill the program a few times, each time after as long as the seed says."""
    chance = random.Random(seed)
    kills = [chance.uniform(0.1, 1.5) for _ in range(chance.randint(1, 4))]
    return play(tmp_path, kills, copies=chance.choice([1, 1, 2]))


def _start(orders: Orders) -> BaseProcess:
    with pytest.MonkeyPatch.context() as patch:
        # The server that processes are forked off finds the program, and imports it once for all of them, only by this.
        patch.setenv('PYTHONPATH', str(Path(__file__).parents[1]))
        process = _processes.Process(target=run, args=(orders,))
        process.start()
    return process


def _ended(process: BaseProcess, codes: tuple[int, ...]) -> None:
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise TimeoutError(f'The program has not ended in {SECONDS} seconds.')
    assert process.exitcode in codes


def expected(name: str) -> list[str]:
    """The answers to the runs of one agent, without a tool."""
    return [f'you said {name} {row}' for row in range(ROWS)]
