"""Says why a model has no lane, and what may be done about it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic_ai.models import Model

from pydantic_ai_batch.codec import is_a
from pydantic_ai_batch.exceptions import LaneNotBuilt, NoBatchLane

from .base import LaneInfo

_ANTHROPICS_CLOUD_CLIENTS = (
    'AsyncAnthropicBedrock',
    'AsyncAnthropicBedrockMantle',
    'AsyncAnthropicFoundry',
    'AsyncAnthropicVertex',
)

_ON_BEDROCK = ' Claude models on Amazon Bedrock are batched with `BedrockConverseModel`.'


def through_gateway(inner: Model) -> bool:
    """Whether a model asks through the Pydantic AI Gateway, which serves no batch API, whatever the provider does."""
    module = sys.modules.get('pydantic_ai.providers.gateway')
    return module is not None and inner.provider is not None and module.is_gateway_provider(inner.provider)


def on_a_cloud(inner: Model) -> bool:
    """Whether a model is served by a cloud, which has another batch API than the provider, or none.

    That goes by the client alone: a profile that says otherwise changes nothing about where its calls go.
    """
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        return is_a(cast('Any', inner).client, 'anthropic', *_ANTHROPICS_CLOUD_CLIENTS)
    return is_a(inner, 'pydantic_ai.models.google', 'GoogleModel') and bool(cast('Any', inner).client.vertexai)


_SELF_HOSTED = (
    'on a server of your own there is no price per token to take half off. If it has `/files` and `/batches` all the '
    "same, use `with_batch_api(model, lane='openai-compatible')`; vLLM runs files of requests with `vllm run-batch`"
)
_WITHOUT: Mapping[str, str] = MappingProxyType(
    {
        'openrouter': 'OpenRouter has no batch API. Use the provider of the model itself',
        'cohere': 'Cohere has no batch API for chat',
        'huggingface': 'the inference providers of Hugging Face have no batch API',
        'deepseek': 'DeepSeek has no batch API',
        'ollama': f'Ollama has no batch API, and {_SELF_HOSTED}',
        'vllm': f'`vllm serve` has no batch API, and {_SELF_HOSTED}',
        'lmstudio': f'LM Studio has no batch API, and {_SELF_HOSTED}',
        'llamafile': f'llamafile has no batch API, and {_SELF_HOSTED}',
        'litellm': "LiteLLM's proxy passes on the batches of the providers behind it: use `OpenAIProvider` with its "
        '`base_url`',
    }
)
"""Why models of a provider have no lane, by the name that it has in the framework."""


def refused_by_name(name: str) -> NoBatchLane | None:
    """Why the model of a name has no lane, where its provider alone says so; `None` if it may have one.

    So nobody is asked for the key or the SDK of a provider that has no batch API.
    """
    provider = name.partition(':')[0].strip().lower()
    return _through_gateway(name) if provider.startswith('gateway/') else _without(name, provider)


def _through_gateway(model_id: str) -> NoBatchLane:
    return NoBatchLane(
        f'Model {model_id!r} cannot be batched: it goes through the Pydantic AI Gateway, which serves no batch '
        'API. Use the provider itself, with a key of its own.'
    )


def _without(model_id: str, provider: str) -> NoBatchLane | None:
    """Why no model of a provider has a lane; `None` if that does not go by the provider."""
    if provider == 'cerebras':
        return LaneNotBuilt(
            f'Model {model_id!r} cannot be batched: the batch API of Cerebras is a private preview, which '
            '`pydantic-ai-batch` does not serve yet.'
        )
    why = _WITHOUT.get(provider)
    return NoBatchLane(f'Model {model_id!r} cannot be batched: {why}.') if why is not None else None


def no_lane(inner: Model, known: Iterable[LaneInfo]) -> NoBatchLane:
    """Why a model has no lane, and what may be done about it."""
    model_id, provider = inner.model_id, inner.system
    if through_gateway(inner):
        return _through_gateway(model_id)
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        if not on_a_cloud(inner):
            return NoBatchLane(
                f'Model {model_id!r} cannot be batched: its profile has `anthropic_supports_message_batches` off.'
            )
        client = type(cast('Any', inner).client).__name__
        return NoBatchLane(
            f'Model {model_id!r} cannot be batched: Message Batches are served by the Claude API itself, and not to '
            f'an `{client}`.{_ON_BEDROCK if "Bedrock" in client else ""}'
        )
    if is_a(inner, 'pydantic_ai.models.google', 'GoogleModel'):
        return NoBatchLane(f'Model {model_id!r} cannot be batched: its profile has `google_supports_batch_api` off.')
    if is_a(inner, 'pydantic_ai.models.xai', 'XaiModel'):
        return NoBatchLane(
            f'Model {model_id!r} cannot be batched: an `XaiModel` speaks gRPC. Use `OpenAIChatModel('
            f'{inner.model_name!r}, provider=XAILanguageProvider())`, from `pydantic_ai_batch.providers`.'
        )
    if (refusal := _without(model_id, provider)) is not None:
        return refusal
    if is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel', 'OpenAIResponsesModel'):
        return NoBatchLane(f'Model {model_id!r} cannot be batched through {provider!r}: {_not_openais(inner)}')
    return NoBatchLane(
        f'Model {model_id!r} cannot be batched: `{type(inner).__name__}` has no batch API here. There is one for '
        f'{"; ".join(info.models for info in known)}.'
    )


def _not_openais(inner: Model) -> str:
    """Why a model that speaks OpenAI's language has no lane, and what gives it one if its endpoint has batches."""
    profile = cast('dict[str, Any]', inner.profile)
    chat = is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel')
    if not profile.get('openai_supports_batch_api', False):
        return (
            'its profile has `openai_supports_batch_api` off. If the endpoint has `/files` and `/batches`, turn it on '
            'with `profile=OpenAIModelProfile(openai_supports_batch_api=True)` on the model, or use '
            "`with_batch_api(model, lane='openai-compatible')`."
        )
    if not chat:
        return 'its profile says that it answers in streams alone (`openai_responses_requires_streaming`).'
    return (
        f'Chat Completions are not batched with an `{type(cast("Any", inner).client).__name__}`, whatever `profile=` '
        f'says: use `OpenAIChatModel({inner.model_name!r}, provider=AzureProvider(openai_client=...))`.'
    )
