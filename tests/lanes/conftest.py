from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from pydantic_ai.models import Model

from pydantic_ai_batch.testing import FakeProviders

from .harness import ALL, Harness, close, harness_of
from .server import Server


@pytest.fixture(params=[harness.name for harness in ALL])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Each lane in turn."""
    return harness_of(request.param, monkeypatch)


@pytest.fixture
async def lane_model(harness: Harness) -> AsyncIterator[Callable[..., Model]]:
    """Makes models of the lane that talk to a fake, through real SDK clients, which are closed after the test."""
    clients: list[Any] = []

    def make(fake: FakeProviders, key: str = 'test') -> Model:
        model, client = harness.make(fake, key)
        clients.append(client)
        return model

    yield make
    for client in clients:
        await close(client)


@pytest.fixture
def server() -> Server:
    """What the `lane` of a lane's own tests talks to."""
    return Server()
