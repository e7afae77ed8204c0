"""Cancelling a list call cancels what has not ended, and says which batches that were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchRequest, model_request_batch
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .harness import Harness, requests_of

LaneModel = Callable[..., Model]

ROWS = [f'row {n}' for n in range(4)]


def requests() -> list[BatchRequest]:
    return requests_of(ROWS)


async def test_it_says_which_batches_were_cancelled_and_which_had_ended(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    answered = asyncio.Event()

    def listen(event: BatchEvent) -> None:
        if event.kind == 'answered':
            answered.set()

    with FakeProviders(clock=clock) as fake:
        server = harness.fake(fake)
        server.inject('batch', 'stick')
        call = asyncio.ensure_future(
            model_request_batch(lane_model(fake), requests(), max_requests=2, progress=listen, clock=clock)
        )
        await clock.run(answered.wait())
        # The file that it was made of is deleted after its last row.
        await clock.advance(1)
        await clock.until_asleep()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        stuck, ended = server.batches
        assert f'Batch {stuck} was cancelled with the call' in caplog.text
        assert f'had ended before the call was cancelled: {ended}.' in caplog.text
        assert server.count('cancel') == 1
