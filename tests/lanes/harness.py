"""One way to drive every lane: what the contract suite needs to know of each, and nothing of how it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchRequest
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.testing import FakeProviders, FakeRequest

from .native_model import FakeService, NativeModel


@dataclass(frozen=True)
class Harness:
    """How to make a lane's model, and where its fake provider is."""

    name: str
    lane: str
    provider: str
    """The attribute of `FakeProviders` that plays the provider; `native` is no provider's."""
    make: Callable[[FakeProviders, str], tuple[Model, Any]]
    """Makes a model with a key, and returns it with the client to close, if it has one."""
    download: str = 'download'
    """The operation in which results come."""
    delete: str | None = None
    """The operation that deletes an uploaded file, if the lane uploads one."""
    refused: int = 400
    lacks: Mapping[str, str] = field(default_factory=dict[str, str])
    """What there is none of, and why not: a test that is about one of these is skipped."""

    def fake(self, fake: FakeProviders) -> Any:
        return FakeService.of(fake) if self.provider == FakeService.name else getattr(fake, self.provider)

    def needs(self, *things: str) -> None:
        """Skip the test if the lane lacks one of the things that it is about."""
        for thing in things:
            if reason := self.lacks.get(thing):
                pytest.skip(reason)


def _responses(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.openai.client(api_key=key, max_retries=0)
    return OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client)), client


def _chat(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.openai.client(api_key=key, max_retries=0)
    return OpenAIChatModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client)), client


def _anthropic(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.anthropic.client(api_key=key, max_retries=0)
    return AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client)), client


def _google(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.google.client(api_key=key)
    return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client)), client.aio


def _native(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    return NativeModel(fake, key), None


_NO_UPLOAD = {'upload': 'it uploads nothing'}
_INLINE = {
    'cut': 'its results come inside a JSON object, which is whole or is none',
    'download': 'its results come with its status',
    'lines': 'its results are no lines',
}
_UNKNOWN = {
    'price': "the price of a model of one's own is not known",
    'window': 'no window of it is known, so it is waited for until it ends',
    'lines': 'its results are no lines',
}

HARNESSES = [
    Harness('responses', 'openai', 'openai', _responses, delete='delete'),
    Harness('chat', 'openai', 'openai', _chat, delete='delete'),
    Harness('anthropic', 'anthropic', 'anthropic', _anthropic, lacks=_NO_UPLOAD),
    Harness('google-inline', 'google', 'google', _google, download='status', lacks=_INLINE | _NO_UPLOAD),
    Harness('google-file', 'google', 'google', _google, delete='delete_file'),
]
"""The lanes of providers, whose real SDK clients talk to a fake over HTTP."""

NATIVE = Harness('native', 'native', FakeService.name, _native, lacks=_UNKNOWN | _NO_UPLOAD)
"""The lane of models that bring batch methods of their own, with nothing on a wire."""

ALL = [*HARNESSES, NATIVE]


def harness_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """The harness of that name, with what it needs set up for one test."""
    if name == 'google-file':
        # So that a batch of a few rows is too large to be sent inline.
        monkeypatch.setattr(google, 'INLINE_BYTES', 0)
    return next(harness for harness in ALL if harness.name == name)


async def close(client: Any) -> None:
    if client is None:
        return
    await (client.aclose() if hasattr(client, 'aclose') else client.close())


def echo(request: FakeRequest) -> str:
    """An answer that says whose it is."""
    return f'answer to {request.text}'


def requests_of(rows: Iterable[str]) -> list[BatchRequest]:
    """A request for each row, with the row as its ID and its prompt."""
    return [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in rows]
