"""Time, as everything in this package sees it: read and slept through a `Clock` that is passed in.

The real clock is [`SystemClock`][pydantic_ai_batch.clock.SystemClock]; tests move one by hand
([`ManualClock`][pydantic_ai_batch.testing.ManualClock]). [`sleep_until_due`][pydantic_ai_batch.clock.sleep_until_due]
is how the package waits for minutes and hours: neither a laptop that was closed, nor a wall clock set back, nor an
engine that skips time can stall it.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

MAX_SLEEP = 60.0
"""The longest single sleep, in seconds: how late a wait notices that the wall clock moved on without it."""


class Clock(Protocol):
    """Reads and sleeps the time that queues, polls and retries go by."""

    def now(self) -> float:
        """Wall-clock time, in seconds since the epoch. It may jump, in both directions."""
        ...

    def monotonic(self) -> float:
        """A time in seconds that never goes back, though it may stand still while the machine sleeps."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        """Wall-clock time, in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """The machine's monotonic time, in seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` on the running event loop."""
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def utc(clock: Clock) -> datetime:
    """The clock's wall time as an aware `datetime`."""
    return datetime.fromtimestamp(clock.now(), tz=UTC)


async def sleep_until_due(clock: Clock, seconds: float) -> None:
    """Wait `seconds` by the wall clock or the monotonic clock, whichever gets there first.

    The monotonic clock of many systems stands still while they sleep, and the wall clock can be set back, so either
    alone would make a poll late by hours. The wait is cut into sleeps of at most a minute, after each of which both
    are read again.
    """
    wall_due, monotonic_due = clock.now() + seconds, clock.monotonic() + seconds
    while (remaining := min(wall_due - clock.now(), monotonic_due - clock.monotonic())) > 0:
        await clock.sleep(min(remaining, MAX_SLEEP))
