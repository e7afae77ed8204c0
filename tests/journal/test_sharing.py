"""Several processes on one journal: who is alive, what each claims, and what they share."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from lanes.harness import Harness, close, echo
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError

from pydantic_ai_batch import BatchModelRequests, Journal, model_request_batch
from pydantic_ai_batch.exceptions import JournalError
from pydantic_ai_batch.journal import schema
from pydantic_ai_batch.journal import store as stores
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .program import FastClock
from .scenes import (
    ANSWERS,
    ROWS,
    LaneModel,
    another_process,
    billed,
    by_agents,
    by_list,
    counts,
    each_way,
    ended,
    killed_while_waiting,
    query,
    requests_of,
    runs_of,
    settled,
)

one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)

_processes = multiprocessing.get_context('forkserver')
_processes.set_forkserver_preload(['journal.test_sharing'])


@dataclass(frozen=True)
class Orders:
    environment: dict[str, str]
    clock_start: float
    journal: Path
    share: bool
    rows: int
    way: str
    answers: Any
    begin: Any
    hold: bool = False
    """Whether the process stays when it is done."""


def run(orders: Orders) -> None:
    os.environ.update(orders.environment)
    logging.disable()
    orders.answers.put(asyncio.run(_answers(orders)))


async def _answers(orders: Orders) -> list[Any]:
    clock, journal = FastClock(orders.clock_start), Journal(orders.journal, share=orders.share)
    rows = [f'row {n}' for n in range(orders.rows)]
    # All begin at the same moment.
    await asyncio.to_thread(orders.begin.wait, 30)
    if orders.way == 'list':
        outcomes = await model_request_batch(
            'openai-responses:gpt-5-mini', requests_of(rows), journal=journal, clock=clock
        )
        return [getattr(outcome, 'text', repr(outcome)) for outcome in outcomes]
    batching = BatchModelRequests(
        journal=journal, max_requests=orders.rows, max_wait=timedelta(seconds=200), clock=clock
    )
    agent = Agent('openai-responses:gpt-5-mini', capabilities=[batching])
    results = await asyncio.gather(*[agent.run(row) for row in rows])
    return [result.output for result in results]


def start(orders: Orders) -> BaseProcess:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('PYTHONPATH', str(Path(__file__).parents[1]))
        process = _processes.Process(target=run, args=(orders,))
        process.start()
    return process


@pytest.mark.parametrize('way', ['list', 'agents'])
@pytest.mark.parametrize(('share', 'paid'), [(True, 1), (False, 2)], ids=['share', 'each its own'])
def test_two_processes_that_submit_the_same_rows_at_once(share: bool, paid: int, way: str, path: Path):
    rows = 500
    clock = FastClock(time.time())
    with FakeProviders(echo, clock=clock, processing=timedelta(seconds=200)) as fake:
        answers, begin = _processes.Queue(), _processes.Barrier(2)
        orders = Orders(fake.openai.environment, clock.start, path, share, rows, way, answers, begin)
        running = [start(orders) for _ in range(2)]
        try:
            got = [answers.get(timeout=50) for _ in running]
            for process in running:
                process.join(20)
        finally:
            for process in running:
                process.kill()
        assert got == [[f'answer to row {n}' for n in range(rows)]] * 2
        billed = Counter(row.text for row in fake.openai.billed)
        assert billed == Counter({f'row {n}': paid for n in range(rows)})
        assert len(query(path, 'SELECT id FROM requests')) == rows * paid


@one_lane
async def test_who_waits_for_what_another_process_sends_says_so_and_does_not_wait_for_ever(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    journal = Journal(path, share=True)
    batching = BatchModelRequests(journal=journal, max_requests=5, max_wait=None, clock=clock)
    run = asyncio.ensure_future(runs_of(lane_model(fake), ROWS[:1], batching))
    for _ in range(500):
        if batching.stats().queued:
            break
        await asyncio.sleep(0.01)
    other = another_process()
    began = clock.monotonic()
    outcomes = await clock.run(by_list(lane_model(fake), ROWS[:2], journal, clock))
    # It was still that process's to send, and nothing was sent twice.
    told = f'Waiting for a request of the journal {path}, which is about to be sent by process {os.getpid()} on'
    assert caplog.text.count(told) == 1
    assert isinstance(outcomes[0], ModelAPIError)
    assert f'process {os.getpid()} on' in str(outcomes[0])
    assert outcomes[1] == ANSWERS[1]
    assert timedelta(hours=24) < timedelta(seconds=clock.monotonic() - began) < timedelta(hours=30)
    assert counts(harness, fake, 'create') == [1]
    await batching.flush()
    assert await clock.run(run) == ANSWERS[:1]
    other.close()
    assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_file_that_another_program_holds_fails_all_that_waits_for_it_at_once(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(schema, 'BUSY_SECONDS', 0.5)
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute('BEGIN IMMEDIATE')
        async with asyncio.timeout(20):
            outcomes = await by_agents(lane_model(fake), [f'new {n}' for n in range(200)], path, clock)
    assert {type(outcome) for outcome in outcomes} == {JournalError}
    assert 'database is locked' in str(outcomes[0])
    assert counts(harness, fake, 'create') == [1]
    assert await clock.run(by_agents(lane_model(fake), ['new 0'], path, clock)) == ['answer to new 0']


@pytest.mark.parametrize('share', [True, False], ids=['share', 'each its own'])
@one_lane
def test_event_loops_in_threads_of_one_process_can_have_one_journal(share: bool, harness: Harness, path: Path):
    clock, journal = FastClock(time.time()), Journal(path, share=share)
    with FakeProviders(echo, clock=clock, processing=timedelta(seconds=20)) as fake:

        async def call(way: Any, rows: list[str] = ROWS) -> list[Any]:
            model, client = harness.make(fake, 'test')
            try:
                return await way(model, rows, journal, clock)
            finally:
                await close(client)

        with ThreadPoolExecutor() as threads:
            outcomes = list(threads.map(asyncio.run, map(call, [by_list, by_agents, by_list, by_agents])))
        assert outcomes == [ANSWERS] * 4
        # What one process asks for twice is two requests, whatever is shared with others.
        assert Counter(billed(harness, fake)) == Counter(dict.fromkeys(ROWS, 4))
        ended()
        assert asyncio.run(call(by_list, ROWS * 4)) == ANSWERS * 4
        assert Counter(billed(harness, fake)) == Counter(dict.fromkeys(ROWS, 4))


# Who is alive


def from_another_host(path: Path) -> int:
    """Make the last session one of another host, and return which it is."""
    [(session,)] = query(path, 'SELECT max(id) FROM sessions')
    query(path, "UPDATE sessions SET host = 'elsewhere', ended_at = NULL WHERE id = ?", session)
    return session


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> float:
    """A lease that is short enough to see it run out."""
    monkeypatch.setattr(stores, 'LEASE_SECONDS', 0.6)
    monkeypatch.setattr(stores, '_LIVENESS_SECONDS', 0.0)
    return 0.6


@one_lane
async def test_a_session_of_another_host_that_no_longer_renews_its_lease_is_dead(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    lease: float,
    caplog: pytest.LogCaptureFixture,
):
    await killed_while_waiting(by_list(lane_model(fake), ROWS, path, clock), clock)
    from_another_host(path)
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]
    assert 'last used on another host' in caplog.text


@one_lane
async def test_a_session_of_another_host_that_renews_its_lease_keeps_its_claims(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, lease: float
):
    await killed_while_waiting(by_list(lane_model(fake), ROWS, path, clock), clock)
    session = from_another_host(path)
    renewing = True

    async def renew() -> None:
        while renewing:
            query(path, 'UPDATE sessions SET renewed_at = renewed_at + 1 WHERE id = ?', session)
            await asyncio.sleep(lease / 4)

    task = asyncio.ensure_future(renew())
    try:
        # It lives, so that its requests are its own.
        assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    finally:
        renewing = False
        await task
    assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_session_of_this_host_that_has_no_lock_is_dead_at_once(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(by_list(lane_model(fake), ROWS, path, clock), clock)
    # Whatever its lease says.
    query(path, 'UPDATE sessions SET renewed_at = renewed_at + 1000000')
    began = time.monotonic()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert time.monotonic() - began < 10
    assert counts(harness, fake, 'create') == [1]


@one_lane
async def test_a_process_renews_its_lease(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, lease: float
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    [(before,)] = query(path, 'SELECT renewed_at FROM sessions')
    deadline = time.monotonic() + 10
    while query(path, 'SELECT renewed_at FROM sessions') == [(before,)]:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@each_way
@one_lane
async def test_a_process_that_ends_by_itself_frees_what_it_had_claimed(
    way: Any, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert query(path, 'SELECT count(*) FROM claims') == [(6,)]
    ended()
    assert query(path, 'SELECT count(*) FROM claims') == [(0,)]
    assert query(path, 'SELECT count(*) FROM sessions WHERE ended_at IS NULL') == [(0,)]


@one_lane
async def test_a_fork_of_a_process_has_a_session_of_its_own(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    await settled()
    processes = multiprocessing.get_context('fork')
    ours, theirs = processes.Pipe()

    def child() -> None:
        theirs.send(stores.store_of(path).session)
        os._exit(0)

    process = processes.Process(target=child)
    process.start()
    try:
        assert await asyncio.to_thread(ours.poll, 30)
        assert ours.recv() != stores.store_of(path).session
    finally:
        process.kill()
        process.join()
    # The parent's is as it was.
    assert await clock.run(by_list(lane_model(fake), ['another'], path, clock)) == ['answer to another']
