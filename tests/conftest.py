from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch.testing import FakeProviders, ManualClock

if hasattr(signal, 'SIGQUIT') and signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As where the tests run in the background of a shell. The programs that they press Ctrl-C in would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope='session')
def anyio_backend() -> str:
    """Async tests run on asyncio alone: the package and the SDK clients under it use nothing else."""
    return 'asyncio'


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    """Providers on loopback that go by the hand-moved clock and answer by themselves."""
    with FakeProviders(clock=clock) as providers:
        yield providers


class ModelOf(Protocol):
    def __call__(
        self, fake: FakeProviders, name: str = 'gpt-5-mini', *, api_key: str = 'test'
    ) -> OpenAIResponsesModel: ...


@pytest.fixture
async def model_of() -> AsyncIterator[ModelOf]:
    """Makes models whose real SDK client talks to a fake; the clients are closed after the test."""
    clients: list[AsyncOpenAI] = []

    def model_of(fake: FakeProviders, name: str = 'gpt-5-mini', *, api_key: str = 'test') -> OpenAIResponsesModel:
        client = fake.openai.client(api_key=api_key, max_retries=0)
        clients.append(client)
        return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=client))

    yield model_of
    for client in clients:
        await client.close()


@pytest.fixture
async def model(fake: FakeProviders, model_of: ModelOf) -> OpenAIResponsesModel:
    return model_of(fake)
