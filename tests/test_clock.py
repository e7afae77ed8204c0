from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pydantic_ai_batch.clock import SYSTEM_CLOCK, sleep_until_due
from pydantic_ai_batch.testing import ManualClock


async def test_a_wait_ends_when_it_is_due(clock: ManualClock):
    waiting = asyncio.ensure_future(sleep_until_due(clock, 600))
    await clock.advance(599)
    assert not waiting.done()
    await clock.advance(1)
    assert waiting.done()


async def test_a_machine_that_slept_is_late_by_a_minute_at_the_most(clock: ManualClock):
    waiting = asyncio.ensure_future(sleep_until_due(clock, 600))
    await clock.advance(1)
    clock.set_wall(3600)  # The wall clock went on while the monotonic clock stood still.
    await clock.advance(60)
    assert waiting.done()


async def test_a_wall_clock_that_is_set_back_does_not_stall_a_wait(clock: ManualClock):
    waiting = asyncio.ensure_future(sleep_until_due(clock, 600))
    await clock.advance(1)
    clock.set_wall(-3600)
    await clock.advance(599)
    assert waiting.done()


def test_a_clock_goes_on_in_another_event_loop(clock: ManualClock):
    for _ in range(2):
        asyncio.run(clock.run(asyncio.sleep(0.01)))
    asyncio.run(clock.run(sleep_until_due(clock, 600)))
    assert clock.monotonic() == 600


async def test_a_wait_for_no_time_does_not_wait(clock: ManualClock):
    await asyncio.wait_for(sleep_until_due(clock, 0), timeout=5)
    await asyncio.wait_for(sleep_until_due(clock, -5), timeout=5)


async def test_run_jumps_over_every_sleep(clock: ManualClock):
    started = clock.now()

    async def day() -> str:
        for _ in range(24):
            await sleep_until_due(clock, 3600)
        return 'done'

    assert await clock.run(day()) == 'done'
    assert clock.now() - started == timedelta(days=1).total_seconds()


async def test_run_raises_what_it_runs_raises(clock: ManualClock):
    async def fail() -> None:
        await clock.sleep(5)
        raise LookupError('inside')

    with pytest.raises(LookupError, match='inside'):
        await clock.run(fail())


async def test_a_cancelled_sleep_is_forgotten(clock: ManualClock):
    sleeping = asyncio.ensure_future(clock.sleep(5))
    await clock.until_asleep()
    sleeping.cancel()
    await asyncio.gather(sleeping, return_exceptions=True)
    assert clock.sleeping == 0


async def test_the_system_clock_sleeps_and_tells_the_time():
    before = SYSTEM_CLOCK.monotonic()
    await SYSTEM_CLOCK.sleep(0.001)
    assert SYSTEM_CLOCK.monotonic() > before
    assert SYSTEM_CLOCK.now() > 1_700_000_000
