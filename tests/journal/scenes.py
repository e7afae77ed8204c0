"""What the tests of the journal have in common: starts of a program, their ends, and what the file and the fakes show.

A process is played inside the test's own. It ends well by `ended`, and by kill -9 with `killed`, after which the
journal's lock is free and whatever it still does is written down nowhere.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import httpx2
import pytest
from botocore.httpsession import URLLib3Session
from lanes.harness import Harness
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import (
    BatchModelRequests,
    BatchRequest,
    collect_batch,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.journal import JournalLike
from pydantic_ai_batch.journal import store as stores
from pydantic_ai_batch.testing import FakeProviders, ManualClock

LaneModel = Callable[..., Model]
Outcomes = list[Any]

ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]


# Processes


_killed: list[stores.Store] = []


def ended() -> None:
    """The process ends by itself: what comes after is another one."""
    stores.close_all()


def killed() -> None:
    """The process is killed: its locks are free, and nothing that it does from now on reaches the journal."""
    for store in stores._stores.values():
        # What was asked for before is on the disk, and nothing more comes there.
        store.post(lambda connection: None).result()
        store.closed = True
        store._renewed = float('inf')
        store.forget()
        _killed.append(store)
    stores._stores.clear()


def another_process() -> stores.Store:
    """What has the journal open goes on as a process of its own, and what comes after is another one."""
    [(path, store)] = stores._stores.items()
    del stores._stores[path]
    return store


def back_to(store: stores.Store) -> None:
    """What comes after is the process again that `another_process` was, and the one since then ends."""
    stores.close_all()
    stores._stores[store.path] = store


def all_over() -> None:
    """End what plays a process, at the end of a test."""
    stores.close_all()
    while _killed:
        _killed.pop().close()


# Ways to make requests


def requests_of(rows: Iterable[str]) -> list[BatchRequest]:
    """A request for each row, which may be equal."""
    return [
        BatchRequest(custom_id=f'id {n}', messages=[ModelRequest.user_text_prompt(row)]) for n, row in enumerate(rows)
    ]


def outcome_of(outcome: object) -> Any:
    """The text of an answer, or the error."""
    return outcome.text if isinstance(outcome, ModelResponse) else outcome


async def by_list(
    model: Model, rows: Sequence[str], journal: JournalLike | None, clock: ManualClock, **options: Any
) -> Outcomes:
    outcomes = await model_request_batch(model, requests_of(rows), journal=journal, clock=clock, **options)
    return [outcome_of(outcome) for outcome in outcomes]


async def by_agents(
    model: Model, rows: Sequence[str], journal: JournalLike | None, clock: ManualClock, **options: Any
) -> Outcomes:
    # Nothing is sent before all rows are queued, or found in the journal, as the manual clock passes any wait.
    batching = BatchModelRequests(
        journal=journal, clock=clock, **{'max_requests': len(rows), 'max_wait': None, **options}
    )
    return await runs_of(model, rows, batching)


async def runs_of(model: Model, rows: Sequence[str], batching: BatchModelRequests) -> Outcomes:
    agent = Agent(model, capabilities=[batching], retries=0)
    results = await asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True)
    return [result if isinstance(result, BaseException) else result.output for result in results]


async def by_job(
    model: Model, rows: Sequence[str], journal: JournalLike | None, clock: ManualClock, **options: Any
) -> Outcomes:
    job = await submit_batch(model, requests_of(rows), journal=journal, clock=clock, **options)
    await wait_batch(job.id, model, journal=journal, clock=clock)
    outcomes = await collect_batch(job.id, requests_of(rows), model, journal=journal, clock=clock)
    return [outcome_of(outcome) for outcome in outcomes]


Way = Callable[..., Coroutine[Any, Any, Outcomes]]

WAYS: dict[str, Way] = {'list': by_list, 'agents': by_agents, 'job': by_job}

each_way = pytest.mark.parametrize('way', WAYS.values(), ids=WAYS)
"""A list call, agents, and a job that is submitted and collected."""


async def until_waiting(call: Awaitable[Any], clock: ManualClock) -> asyncio.Future[Any]:
    """Start a call and return when it waits for its batch."""
    task = asyncio.ensure_future(call)
    sleeping = asyncio.ensure_future(clock.until_asleep())
    await asyncio.wait((task, sleeping), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        sleeping.cancel()
        task.result()
        raise AssertionError('the call has not waited')
    await sleeping
    await settled()
    return task


async def settled() -> None:
    """Let everything go on that waits for no network and no time."""
    for _ in range(5):
        for store in list(stores._stores.values()):
            await store.do(lambda connection: None)
        for _ in range(50):
            await asyncio.sleep(0)


async def given_up(task: asyncio.Future[Any]) -> None:
    """Cancel a call, as Ctrl-C does, and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def torn_down(before: set[asyncio.Task[Any]]) -> None:
    """End all that a process which was killed was doing in this one, however it clings to it."""
    me, left = asyncio.current_task(), set[asyncio.Task[Any]]()
    for _ in range(200):
        left = {task for task in asyncio.all_tasks() - before if task is not me}
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.sleep(0)
    raise AssertionError(left)


async def killed_while_waiting(call: Coroutine[Any, Any, Any], clock: ManualClock) -> None:
    """Make a call in a process that is killed while it waits for its batch."""
    before = asyncio.all_tasks()
    await until_waiting(call, clock)
    killed()
    await torn_down(before)


async def killed_when(
    condition: Callable[[], bool], call: Coroutine[Any, Any, Any], clock: ManualClock, *, step: float = 10
) -> None:
    """Make a call in a process that is killed while everything waits for time to pass, once `condition` holds."""
    before = asyncio.all_tasks()
    await stepped_until(condition, asyncio.ensure_future(call), clock, step=step)
    # What came of the last call is taken note of.
    await settled()
    killed()
    await torn_down(before)


async def stepped_until(
    condition: Callable[[], bool], task: asyncio.Future[Any], clock: ManualClock, *, step: float = 10
) -> None:
    """Let time pass, a few seconds at once, until everything waits for more and `condition` holds."""
    for _ in range(1_000):
        sleeping = asyncio.ensure_future(clock.until_asleep())
        await asyncio.wait((task, sleeping), return_when=asyncio.FIRST_COMPLETED)
        sleeping.cancel()
        if condition():
            return
        assert not task.done(), task
        await clock.advance(step)
    raise AssertionError('it did not come to be')


async def killed_at(reached: asyncio.Event, call: Coroutine[Any, Any, Any], clock: ManualClock) -> None:
    """Make a call in a process that is killed when an event is set, with what is on the wire then held for ever."""
    before = asyncio.all_tasks()
    task = asyncio.ensure_future(clock.run(call))
    at = asyncio.ensure_future(reached.wait())
    await asyncio.wait((task, at), return_when=asyncio.FIRST_COMPLETED)
    assert reached.is_set(), task
    killed()
    await torn_down(before)


# The wire


CREATE = {
    'openai': '/v1/batches',
    'anthropic': '/messages/batches',
    'google': ':batchGenerateContent',
    'mistral': '/batch/jobs',
    **dict.fromkeys(('azure', 'groq', 'together', 'deepinfra', 'xai'), '/batches'),
    'fireworks': '/batchInferenceJobs',
    'vertex': '/batchPredictionJobs',
    'bedrock': '/model-invocation-job',
}
"""What the path of the call ends in that creates a batch."""


class Wire:
    """Calls something before a call to a provider goes out, or when its reply is about to be read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._hooks: list[tuple[str, str, str, Callable[[], Any]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._patch_boto(monkeypatch)
        for transport in (httpx.AsyncHTTPTransport, httpx2.AsyncHTTPTransport):
            self._patch(monkeypatch, transport)

    def before(self, method: str, ending: str, hook: Callable[[], Any]) -> None:
        self._add('before', method, ending, hook)

    def after(self, method: str, ending: str, hook: Callable[[], Any]) -> None:
        self._add('after', method, ending, hook)

    def hold(self, when: str, method: str, ending: str) -> asyncio.Event:
        """Hold such a call, or its reply, for ever, and return what is set when it comes to that."""
        reached, never = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await never.wait()

        self._add(when, method, ending, hold)
        return reached

    def gate(self, when: str, method: str, harness: Harness) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold the call that creates a batch, or its reply, and return what is set then, and what lets it go on."""
        reached, opened = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            reached.set()
            await opened.wait()

        self._add(when, method, CREATE[harness.provider], hold)
        return reached, opened

    def before_any(self, hook: Callable[[], Any]) -> None:
        """Call something before any call."""
        for method in ('GET', 'POST', 'PUT', 'DELETE'):
            self._add('before', method, '', hook)

    def before_delete(self, hook: Callable[[], Any]) -> None:
        """Call something before anything is deleted."""
        self._add('before', 'DELETE', '', hook)

    def clear(self) -> None:
        self._hooks.clear()

    def _add(self, when: str, method: str, ending: str, hook: Callable[[], Any]) -> None:
        self._hooks.append((when, method, ending, hook))
        self._loop = asyncio.get_running_loop()

    def _patch(self, monkeypatch: pytest.MonkeyPatch, transport: Any) -> None:
        handle = transport.handle_async_request

        async def handled(this: Any, request: Any) -> Any:
            await self._call('before', request.method, request.url.path)
            response = await handle(this, request)
            await self._call('after', request.method, request.url.path)
            return response

        monkeypatch.setattr(transport, 'handle_async_request', handled)

    def _patch_boto(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same for AWS's SDK, whose calls are made in threads. What is held in one ends with the event loop."""
        send = URLLib3Session.send

        def call(when: str, request: Any) -> None:
            if self._loop is not None:
                hooks = self._call(when, request.method, urlsplit(request.url).path)
                asyncio.run_coroutine_threadsafe(hooks, self._loop).result()

        def sent(this: Any, request: Any) -> Any:
            call('before', request)
            response = send(this, request)
            call('after', request)
            return response

        monkeypatch.setattr(URLLib3Session, 'send', sent)

    async def _call(self, when: str, sent: str, path: str) -> None:
        for at, method, ending, hook in list(self._hooks):
            if (at, method) == (when, sent) and path.endswith(ending):
                result = hook()
                if asyncio.iscoroutine(result):
                    await result


# The file and the fakes


def query(path: Path, sql: str, *values: Any) -> list[Any]:
    """What the file says, or, after a change of it, nothing."""
    with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
        return connection.execute(sql, values).fetchall()


def bytes_of(path: Path) -> bytes:
    """All that is on the disk of a journal."""
    return b''.join(part.read_bytes() for part in sorted(path.parent.iterdir()) if part.is_file())


def billed(harness: Harness, fake: FakeProviders) -> list[str]:
    """The prompts that were billed, each as often as it was."""
    return sorted(row.text for row in harness.fake(fake).billed)


def counts(harness: Harness, fake: FakeProviders, *operations: str) -> list[int]:
    return [harness.fake(fake).count(operation) for operation in operations]


def forgotten(harness: Harness, fake: FakeProviders) -> None:
    """The provider has dropped every batch."""
    harness.fake(fake)._batches.clear()


def sent(calls: Iterable[Any]) -> list[str]:
    """The operations that cost something, or may."""
    return [call.operation for call in calls if call.operation in ('create', 'upload', 'upload_bytes', 'live')]
