"""A clock that tests move by hand, so that a day of waiting takes no time and no test sleeps."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar('T')

_SETTLE_TURNS = 50
"""How many turns of the event loop other tasks get before time moves: enough for any number of agent runs that start
together to reach the queue, as each turn advances every task that is ready."""

_QUIET = 5e-5
"""Seconds of the processor that threads may use in the meantime and still count as doing nothing."""

_PATIENCE = 400
"""How often `run` waits at most, before it moves time, for threads that go on doing something."""

_STUCK_AFTER = 30
"""Real seconds after which `run` gives up on what neither ends nor sleeps."""


@dataclass(order=True)
class _Sleeper:
    due: float
    order: int
    woken: asyncio.Future[None] = field(compare=False)


class ManualClock:
    """A [`Clock`][pydantic_ai_batch.clock.Clock] that stands still until it is moved.

    Sleeps end when [`advance`][pydantic_ai_batch.testing.ManualClock.advance] passes the time they are due, in the
    order they are due. [`run`][pydantic_ai_batch.testing.ManualClock.run] moves it for you: whenever something sleeps,
    time jumps to the end of the sleep that ends first, until what it runs is done.

    The clock may be read from any thread, so that a fake provider in a thread of its own goes by it too.

    Args:
        start: The wall time it stands at first.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._now = start.timestamp()
        self._monotonic = 0.0
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._sleepers: list[_Sleeper] = []
        self._watchers: list[asyncio.Future[None]] = []

    def now(self) -> float:
        """The wall time it stands at, in seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """How far it was moved, in seconds; setting the wall clock alone does not count."""
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        """Wait until the clock has been moved by `seconds`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sleeper = _Sleeper(self._monotonic + seconds, next(self._order), woken)
        with self._lock:
            heapq.heappush(self._sleepers, sleeper)
            watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher.get_loop().call_soon_threadsafe(_resolve, watcher)
        try:
            await woken
        finally:
            with self._lock:
                if sleeper in self._sleepers:
                    self._sleepers.remove(sleeper)
                    heapq.heapify(self._sleepers)

    def set_wall(self, seconds: float) -> None:
        """Move only the wall clock by `seconds`, which may be negative, as someone who sets it would."""
        self._now += seconds

    @property
    def sleeping(self) -> int:
        """How many sleeps are waiting for the clock to move."""
        return len(self._sleepers)

    async def advance(self, by: float | timedelta) -> None:
        """Move the clock, waking each sleep as its time comes, and let tasks run, before and after, until they wait.

        A task that waits for the network is not waited for: [`run`][pydantic_ai_batch.testing.ManualClock.run] is.

        Args:
            by: How far, in seconds or as a `timedelta`.
        """
        await self._settle()
        end = self._monotonic + (by.total_seconds() if isinstance(by, timedelta) else by)
        while self._sleepers and self._sleepers[0].due <= end:
            self._wake_next()
            await self._settle()
        self._move_to(end)
        await self._settle()

    async def run(self, awaitable: Awaitable[T]) -> T:
        """Await `awaitable`, jumping over every sleep that it, or anything else on this clock, waits in.

        Args:
            awaitable: What to wait for.

        Returns:
            Its result.

        Raises:
            TimeoutError: Nothing slept on this clock for 30 real seconds, and the awaitable was still not done.
        """
        task = asyncio.get_running_loop().create_task(_await(awaitable))
        try:
            # What begins in a thread has time to begin.
            await asyncio.sleep(0.001)
            await self._drive(task)
            return await task
        except asyncio.CancelledError:
            # What it runs tidies up behind itself, which may take time.
            task.cancel()
            await self._drive(task)
            raise
        finally:
            task.cancel()

    async def _drive(self, task: asyncio.Task[Any]) -> None:
        """Move the clock until `task` is done."""
        while not task.done():
            await self._quiet()
            if task.done():
                break
            if self._sleepers:
                self._wake_next()
            elif not await self._something_sleeps(task):
                raise TimeoutError(
                    'For 30 seconds nothing slept on the manual clock, and what it runs goes on. Does all that '
                    'waits in it have this clock, as `BatchModelRequests(clock=...)`?'
                )

    async def until_asleep(self, sleeps: int = 1) -> None:
        """Wait, in real time, until that many sleeps wait for the clock to move.

        Args:
            sleeps: How many.

        Raises:
            TimeoutError: For 30 real seconds nothing more came to sleep.
        """
        while len(self._sleepers) < sleeps:
            if not await self._something_sleeps(None):
                raise TimeoutError(f'{self.sleeping} sleeps wait for the manual clock, and not {sleeps}.')

    async def _something_sleeps(self, task: asyncio.Task[Any] | None) -> bool:
        """Wait, in real time, until one more sleeps or `task` is done, and return whether that came to be."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._watchers.append(watcher)
        waits: set[asyncio.Future[Any]] = {watcher} if task is None else {watcher, task}
        try:
            done, _ = await asyncio.wait(waits, timeout=_STUCK_AFTER, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Or the next sleep, maybe on another loop, would tell a loop that is closed.
            with self._lock:
                if watcher in self._watchers:
                    self._watchers.remove(watcher)
        return bool(done)

    def _wake_next(self) -> None:
        with self._lock:
            sleeper = heapq.heappop(self._sleepers)
        self._move_to(sleeper.due)
        sleeper.woken.get_loop().call_soon_threadsafe(_resolve, sleeper.woken)

    def _move_to(self, monotonic: float) -> None:
        moved = max(0.0, monotonic - self._monotonic)
        self._monotonic += moved
        self._now += moved

    async def _quiet(self) -> None:
        """Let tasks go on until they wait, and threads until they do nothing, as far as that can be seen.

        Time that moved while a fake is at an answer, or while a thread of an SDK is, would end other waits before
        what was first has happened.
        """
        for _ in range(_PATIENCE):
            before = time.process_time() - time.thread_time()
            await self._settle()
            if time.process_time() - time.thread_time() - before < _QUIET:
                break

    async def _settle(self) -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
