"""What an earlier process left is taken over by the next one that makes the same requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes.harness import Harness, echo

from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import (
    ANSWERS,
    ROWS,
    LaneModel,
    Way,
    billed,
    counts,
    each_way,
    ended,
    forgotten,
    killed_while_waiting,
)


@pytest.fixture
def fake(clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        yield fake


@each_way
async def test_rows_in_flight_are_taken_over_after_a_kill(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


@each_way
async def test_answers_that_were_read_come_from_the_disk_long_after_the_provider_has_dropped_them(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    ended()
    forgotten(harness, fake)
    await clock.advance(60 * 86_400)
    calls = len(fake.calls)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert len(fake.calls) == calls
