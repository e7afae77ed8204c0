"""What the tests of this package have in common: both capabilities, models of every lane, and what a provider got."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import pytest
from lanes.harness import Harness
from pydantic_ai import ModelRequest
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, BatchRequest
from pydantic_ai_batch.testing import FakeProviders

LaneModel = Callable[..., Model]
Batching = BuiltIn | BatchModelRequests

BRIEF = timedelta(milliseconds=10)
AT_ONCE = timedelta(0)
"""How long a batch takes where a scene is played to the built-in capability too, which has no clock to be moved."""

BOTH = pytest.mark.parametrize('capability', [BuiltIn, BatchModelRequests], ids=['built-in', 'ours'])
"""Plays a scene to pydantic-ai's own capability, and to ours, which is to be at least as good."""

PROVIDERS = {'responses': 'openai', 'chat': 'openai', 'anthropic': 'anthropic', 'google': 'google'}
"""The kinds of models with an SDK client, and the fake that each asks."""


def full_batches(capability: type[Batching], max_requests: int) -> Any:
    """A capability that sends full batches only, and checks on them at once."""
    return capability(max_requests=max_requests, max_wait=None, poll_interval=BRIEF, max_poll_interval=BRIEF)


def can_batch(capability: type[Batching], kind: str) -> None:
    """Skip what the built-in capability has no batches for."""
    if capability is BuiltIn and kind == 'chat':
        pytest.skip('the built-in capability does not batch chat models')


def rows(*prompts: str, settings: ModelSettings | None = None) -> list[BatchRequest]:
    return [
        BatchRequest(custom_id=prompt, messages=[ModelRequest.user_text_prompt(prompt)], model_settings=settings)
        for prompt in prompts
    ]


class Make(Protocol):
    """Makes a model of a kind, whose client is the SDK's with further settings, and closes the client in the end."""

    def __call__(
        self, kind: str, fake: FakeProviders, name: str | None = None, *, settings: Any = None, **client: Any
    ) -> Model: ...


def model_and_client(
    kind: str, fake: FakeProviders, name: str | None, settings: Any, client: dict[str, Any]
) -> tuple[Model, Any]:
    if kind == 'google':
        google = fake.google.client(**client)
        return GoogleModel(
            name or 'gemini-2.5-flash', provider=GoogleProvider(client=google), settings=settings
        ), google
    if kind == 'anthropic':
        anthropic = fake.anthropic.client(max_retries=0, **client)
        provider = AnthropicProvider(anthropic_client=anthropic)
        return AnthropicModel(name or 'claude-haiku-4-5', provider=provider, settings=settings), anthropic
    openai = fake.openai.client(max_retries=0, **client)
    model_class = OpenAIChatModel if kind == 'chat' else OpenAIResponsesModel
    return model_class(name or 'gpt-5-mini', provider=OpenAIProvider(openai_client=openai), settings=settings), openai


def batched(fake: Any) -> list[list[str]]:
    """The prompts in each batch that a provider was given, sorted."""
    return sorted(sorted(prompt_of(row.body) for row in batch.requests) for batch in fake.batches.values())


def prompt_of(body: Any) -> str:
    """The last text that a user said in a request, in whichever provider's words."""
    said = body.get('input') or body.get('messages') or body.get('contents')
    while not isinstance(said, str):
        if isinstance(said, list):
            said = said[-1]
        else:
            said = next(said[name] for name in ('content', 'parts', 'text') if name in said)
    return said


def sent_live(fake: FakeProviders) -> int:
    return sum(call.operation == 'live' for call in fake.calls)


def as_sent(harness: Harness, fake: FakeProviders) -> list[bytes]:
    """What each batch was made of, as it went over the wire: its file, or the body of its create call."""
    calls = harness.fake(fake).calls
    if harness.provider == 'openai':
        uploads = [call.body for call in calls if call.operation == 'upload']
        return [body[body.index(b'{"custom_id"') : body.rindex(b'}\n') + 2] for body in uploads]
    operation = 'upload_bytes' if harness.name == 'google-file' else 'create'
    return [call.body for call in calls if call.operation == operation]
