"""A clock by hand that stands still while a call is under way, and models of every lane whose calls it watches.

`ManualClock.run` jumps to the end of a sleep whatever the network is doing meanwhile. Where several batches are on
their way at once, or a test is about when something happens, hours could pass between a call and its reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from lanes.conftest import harness
from lanes.harness import Harness, close
from pydantic_ai.models import Model

from pydantic_ai_batch.testing import FakeProviders, ManualClock

__all__ = ('LaneModel', 'PacedClock', 'clock', 'harness', 'lane_model')

LaneModel = Callable[..., Model]


class PacedClock(ManualClock):
    """Moves only while no call of a client that it watches is under way."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = 0

    def watch(self, client: Any) -> None:
        """Stand still during the calls of an SDK's client."""
        http: Any = client._api_client._async_httpx_client if hasattr(client, '_api_client') else client._client
        send = http._transport.handle_async_request

        async def watched(request: Any) -> Any:
            self.under_way += 1
            try:
                response = await send(request)
                await response.aread()
            finally:
                self.under_way -= 1
            return response

        http._transport.handle_async_request = watched

    async def _settle(self) -> None:
        quiet = False
        while not quiet:
            # Before and after: what comes back in between goes on first.
            quiet = not self._busy
            await asyncio.sleep(0 if quiet else 0.001)
            await super()._settle()
            quiet = quiet and not self._busy

    @property
    def _busy(self) -> bool:
        # An SDK's client does something in a thread before its first call.
        executor = getattr(asyncio.get_running_loop(), '_default_executor', None)
        return self.under_way > 0 or (executor is not None and executor._idle_semaphore._value < len(executor._threads))


@pytest.fixture
def clock() -> PacedClock:
    return PacedClock()


@pytest.fixture
async def lane_model(harness: Harness, clock: PacedClock) -> AsyncIterator[LaneModel]:
    """Makes models of the lane that talk to a fake, through real SDK clients, which are closed after the test."""
    clients: list[Any] = []

    def make(fake: FakeProviders, key: str = 'test') -> Model:
        model, client = harness.make(fake, key)
        clients.append(client)
        if client is not None:
            clock.watch(model.client)  # pyright: ignore[reportAttributeAccessIssue]
        return model

    yield make
    for client in clients:
        await close(client)
