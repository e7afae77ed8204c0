"""One way to drive every lane: what the contract suite needs to know of each, and nothing of how it works."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from google.oauth2.credentials import Credentials
from pydantic_ai import ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.groq import GroqModel
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.fireworks import FireworksProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.google_cloud import GoogleCloudProvider
from pydantic_ai.providers.groq import GroqProvider
from pydantic_ai.providers.mistral import MistralProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.together import TogetherProvider

from pydantic_ai_batch import BatchRequest
from pydantic_ai_batch.lanes import google, mistral
from pydantic_ai_batch.providers import DeepInfraProvider, XAILanguageProvider
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
    look: str = 'list'
    """The operation that a batch is looked for with if the reply to its creation was lost."""
    delete: str | None = None
    """The operation that deletes an uploaded file, if the lane uploads one."""
    refused: int = 400
    states_status: bool = True
    """Whether the HTTP status of a failed row is on the wire."""
    files: int = 1
    """How many files the results of a batch are in."""
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


def _groq(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.groq.client(api_key=key, max_retries=0)
    return GroqModel('llama-3.3-70b-versatile', provider=GroqProvider(groq_client=client)), client


def _mistral(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.mistral.client(api_key=key)
    model = MistralModel('mistral-small-latest', provider=MistralProvider(mistral_client=client))
    return model, client.sdk_configuration.async_client


def _azure(model_class: Any) -> Callable[[FakeProviders, str], tuple[Model, Any]]:
    def make(fake: FakeProviders, key: str) -> tuple[Model, Any]:
        client = fake.azure.client(api_key=key, max_retries=0)
        return model_class('gpt-5-mini', provider=AzureProvider(openai_client=client)), client

    return make


def _deepinfra(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.deepinfra.client(api_key=key, max_retries=0)
    return OpenAIChatModel('Qwen/Qwen3-32B', provider=DeepInfraProvider(openai_client=client)), client


def _together(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.together.client(api_key=key, max_retries=0)
    return OpenAIChatModel('Qwen/Qwen3.5-9B', provider=TogetherProvider(openai_client=client)), client


def _fireworks(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.fireworks.client(api_key=key, max_retries=0)
    name = 'accounts/fireworks/models/gpt-oss-20b'
    return OpenAIChatModel(name, provider=FireworksProvider(openai_client=client)), client


def _xai(model_class: Any) -> Callable[[FakeProviders, str], tuple[Model, Any]]:
    def make(fake: FakeProviders, key: str) -> tuple[Model, Any]:
        client = fake.xai.client(api_key=key, max_retries=0)
        return model_class('grok-4.3', provider=XAILanguageProvider(openai_client=client)), client

    return make


def _compatible(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.openai.client(api_key=key, max_retries=0)
    profile = OpenAIModelProfile(openai_supports_batch_api=True)
    return OpenAIChatModel('qwen3', provider=DeepSeekProvider(openai_client=client), profile=profile), client


def _anthropic(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.anthropic.client(api_key=key, max_retries=0)
    return AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client)), client


def _google(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.google.client(api_key=key)
    return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client)), client.aio


def _vertex(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.vertex.client(credentials=Credentials(token=key))
    return GoogleModel('gemini-2.5-flash', provider=GoogleCloudProvider(client=client)), client.aio


def _bedrock(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    client = fake.bedrock.client(aws_access_key_id=key)
    return BedrockConverseModel('us.amazon.nova-lite-v1:0', provider=BedrockProvider(bedrock_client=client)), None


def _native(fake: FakeProviders, key: str) -> tuple[Model, Any]:
    return NativeModel(fake, key), None


_NO_UPLOAD = {'upload': 'it uploads nothing'}
_INLINE = {
    'cut': 'its results come inside a JSON object, which is whole or is none',
    'download': 'its results come with its status',
    'lines': 'its results are no lines',
}
_NO_PRICE = {'price': 'genai-prices has no batch price of it'}
_NO_COST = {**_NO_PRICE, 'cost': 'neither its live price nor what is taken off it is known for sure'}
_NO_END = {'window': 'its batches never end by themselves'}
_UNKNOWN = {
    'price': "the price of a model of one's own is not known",
    'cost': "the price of a model of one's own is not known",
    'window': 'no window of it is known, so it is waited for until it ends',
    'lines': 'its results are no lines',
}
_XAI = {
    **_NO_UPLOAD,
    **_NO_END,
    'price': 'its batch price is four fifths of the live one',
    'word': 'its batches have no status, which is derived from their counts',
}
_FIREWORKS = {
    **_NO_PRICE,
    'cancel': 'it has no call that cancels a batch',
    'retention': 'its results are kept until their owner deletes them',
}

_VERTEX = {'retention': 'its results are kept until their owner deletes them'}
_BEDROCK = {
    **_NO_PRICE,
    'retention': 'its results are kept until their owner deletes them',
    'tools': 'its batches run no requests with tools',
}

HARNESSES = [
    Harness('responses', 'openai', 'openai', _responses, delete='delete'),
    Harness('chat', 'openai', 'openai', _chat, delete='delete'),
    Harness('anthropic', 'anthropic', 'anthropic', _anthropic, lacks=_NO_UPLOAD),
    Harness('google-inline', 'google', 'google', _google, download='status', lacks=_INLINE | _NO_UPLOAD),
    Harness('google-file', 'google', 'google', _google, delete='delete_file'),
]
"""One lane of each kind, whose real SDK clients talk to a fake over HTTP."""

NATIVE = Harness('native', 'native', FakeService.name, _native, lacks=_UNKNOWN | _NO_UPLOAD)
"""The lane of models that bring batch methods of their own, with nothing on a wire."""

ALL = [*HARNESSES, NATIVE]
"""The lanes that each suite is run over."""

MORE = [
    Harness('groq', 'groq', 'groq', _groq, delete='delete', lacks=_NO_PRICE),
    Harness('mistral-inline', 'mistral', 'mistral', _mistral, download='status', lacks=_INLINE | _NO_UPLOAD),
    Harness('mistral-file', 'mistral', 'mistral', _mistral, delete='delete'),
    Harness('azure', 'azure', 'azure', _azure(OpenAIChatModel), delete='delete', files=2, lacks=_NO_PRICE | _NO_END),
    Harness(
        'azure-responses',
        'azure',
        'azure',
        _azure(OpenAIResponsesModel),
        delete='delete',
        files=2,
        lacks=_NO_PRICE | _NO_END,
    ),
    Harness('together', 'together', 'together', _together, delete='delete', states_status=False, lacks=_NO_COST),
    Harness('fireworks', 'fireworks', 'fireworks', _fireworks, look='status', delete='delete', lacks=_FIREWORKS),
    Harness('deepinfra', 'deepinfra', 'deepinfra', _deepinfra, delete='delete', lacks=_NO_COST),
    Harness('xai-chat', 'xai', 'xai', _xai(OpenAIChatModel), states_status=False, lacks=_XAI),
    Harness('xai-responses', 'xai', 'xai', _xai(OpenAIResponsesModel), states_status=False, lacks=_XAI),
    Harness('vertex', 'vertex', 'vertex', _vertex, delete='delete', lacks=_VERTEX),
    Harness('bedrock', 'bedrock', 'bedrock', _bedrock, delete='delete', lacks=_BEDROCK),
    Harness('compatible', 'openai-compatible', 'openai', _compatible, delete='delete', lacks=_NO_COST),
]
"""Lanes that are made of the same parts, which the contract suite is run over too."""

EVERY = [*ALL, *MORE]


def harness_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """The harness of that name, with what it needs set up for one test."""
    if name == 'google-file':
        # So that a batch of a few rows is too large to be sent inline.
        monkeypatch.setattr(google, 'INLINE_BYTES', 0)
    if name == 'mistral-file':
        monkeypatch.setattr(mistral, 'INLINE_BYTES', 0)
    if name == 'fireworks':
        monkeypatch.setenv('FIREWORKS_ACCOUNT_ID', 'test')
    if name == 'bedrock':
        for variable in ('AWS_PROFILE', 'AWS_SESSION_TOKEN', 'AWS_BEARER_TOKEN_BEDROCK'):
            monkeypatch.delenv(variable, raising=False)
    harness = next(harness for harness in EVERY if harness.name == name)
    if name not in ('bedrock', 'vertex'):
        return harness

    def make(fake: FakeProviders, key: str) -> tuple[Model, Any]:
        # What its client does not tell, and where the fake is, which is known once it has started.
        for variable, value in harness.fake(fake).environment.items():
            monkeypatch.setenv(variable, value)
        return harness.make(fake, key)

    return replace(harness, make=make)


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
