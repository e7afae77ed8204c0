from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from lanes.conftest import harness, lane_model
from lanes.harness import Harness, close, harness_of
from pydantic_ai.models import Model

from pydantic_ai_batch.testing import FakeProviders

from .scenes import Make, model_and_client
from .ways import SCENES, Scene

# The lanes and their models, as the contract suite of the lanes has them.
__all__ = ('harness', 'lane_model')


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes models whose clients have settings of their own; the clients are closed after the test."""
    clients: list[Any] = []

    def make(kind: str, fake: FakeProviders, name: str | None = None, *, settings: Any = None, **client: Any) -> Model:
        model, made = model_and_client(kind, fake, name, settings, client)
        clients.append(made.aio if kind == 'google' else made)
        if isinstance(options := client.get('http_options'), dict) and 'httpx_async_client' in options:
            # Google's SDK leaves one that it was given to whoever gave it.
            clients.append(options['httpx_async_client'])
        return model

    yield make
    for client in clients:
        await close(client)


@pytest.fixture(params=SCENES, ids=str)
def scene(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Each capability in turn, on each of its lanes."""
    return Scene(request.param.way, harness_of(request.param.harness.name, monkeypatch))


@pytest.fixture
async def model_for() -> AsyncIterator[Callable[..., Model]]:
    """Makes models of any lane that talk to a fake through real SDK clients, which are closed after the test."""
    clients: list[Any] = []

    def make(harness: Harness, fake: FakeProviders, key: str = 'test') -> Model:
        model, client = harness.make(fake, key)
        clients.append(client)
        return model

    yield make
    for client in clients:
        await close(client)


@pytest.fixture
async def hurry(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the event loop's own clock on, by which the framework times requests out."""
    loop, ahead = asyncio.get_running_loop(), 0.0

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, 'time', lambda: time.monotonic() + ahead)
    return move


@pytest.fixture
def nothing_unretrieved(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task or future is dropped with an exception that nobody saw."""
    yield
    gc.collect()
    records = [*caplog.get_records('call'), *caplog.records]
    assert [record.getMessage() for record in records if record.name == 'asyncio'] == []
