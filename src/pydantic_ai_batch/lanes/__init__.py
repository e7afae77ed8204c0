"""The lanes: one provider batch API each, and which of them serves a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from pydantic_ai.models import KnownModelName, Model, infer_model

from pydantic_ai_batch.codec import NativeCodec, is_a
from pydantic_ai_batch.exceptions import LaneNotBuilt, NoBatchLane
from pydantic_ai_batch.per_model import innermost
from pydantic_ai_batch.replay import ReplayCodec

from . import anthropic, google, native, openai
from .base import Lane, LaneInfo

__all__ = ('LANES', 'Lane', 'LaneInfo', 'lane_for')

LANES: Mapping[str, LaneInfo] = MappingProxyType(
    {info.name: info for info in (openai.INFO, anthropic.INFO, google.INFO, native.INFO)}
)
"""What is known about every lane, by its name."""

_ANTHROPICS_CLOUD_CLIENTS = (
    'AsyncAnthropicBedrock',
    'AsyncAnthropicBedrockMantle',
    'AsyncAnthropicFoundry',
    'AsyncAnthropicVertex',
)


def lane_for(model: Model | KnownModelName | str) -> Lane:
    """The lane that serves a model's requests, through the client the model is configured with.

    Args:
        model: The model, which may be wrapped, as for instrumentation, or its name.

    Raises:
        NoBatchLane: The provider has no batch API, or not for this model. The message says why.
        LaneNotBuilt: It has one that this package does not serve yet.
    """
    model = infer_model(model)
    inner = innermost(model)
    if is_a(inner, 'pydantic_ai.models.fallback', 'FallbackModel'):
        raise NoBatchLane(
            'A `FallbackModel` cannot be batched, as its models are tried one after another while the request waits: '
            'use one of them, or the `ModelFallback` capability.'
        )
    if _through_gateway(inner):
        raise _no_lane(inner)
    if is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel'):
        return _chat_lane(model, inner)
    if model.batch_max_requests is None or _on_a_cloud(inner):
        raise _no_lane(inner)
    if is_a(inner, 'pydantic_ai.models.openai', 'OpenAIResponsesModel'):
        return openai.OpenAILane(model, NativeCodec())
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        return anthropic.AnthropicLane(model, NativeCodec())
    if is_a(inner, 'pydantic_ai.models.google', 'GoogleModel'):
        return google.GoogleLane(model, NativeCodec())
    return native.NativeLane(model, NativeCodec())


def _chat_lane(model: Model, inner: Model) -> Lane:
    supports = cast('dict[str, Any]', inner.profile).get('openai_supports_batch_api', False)
    if not (supports and is_a(inner.provider, 'pydantic_ai.providers.openai', 'OpenAIProvider')):
        raise _no_lane(inner)
    if openai.responses_twin(inner).batch_max_requests is None:
        raise _no_lane(inner)
    return openai.OpenAILane(model, ReplayCodec(openai.chat_group), openai.CHAT_COMPLETIONS)


def _through_gateway(inner: Model) -> bool:
    """Whether a model asks through the Pydantic AI Gateway, which serves no batch API, whatever the provider does."""
    module = sys.modules.get('pydantic_ai.providers.gateway')
    return module is not None and inner.provider is not None and module.is_gateway_provider(inner.provider)


def _on_a_cloud(inner: Model) -> bool:
    """Whether a model is served by a cloud, which has another batch API than the provider, or none.

    That goes by the client alone: a profile that says otherwise changes nothing about where its calls go.
    """
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        return is_a(cast('Any', inner).client, 'anthropic', *_ANTHROPICS_CLOUD_CLIENTS)
    return is_a(inner, 'pydantic_ai.models.google', 'GoogleModel') and bool(cast('Any', inner).client.vertexai)


def _no_lane(inner: Model) -> NoBatchLane:
    """Why a model has no lane, and what may be done about it."""
    model_id, provider = inner.model_id, inner.system
    if _through_gateway(inner):
        return NoBatchLane(
            f'Model {model_id!r} cannot be batched: it goes through the Pydantic AI Gateway, which serves no batch '
            'API. Use the provider itself, with a key of its own.'
        )
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        if not _on_a_cloud(inner):
            return NoBatchLane(
                f'Model {model_id!r} cannot be batched: its profile has `anthropic_supports_message_batches` off.'
            )
        client = type(cast('Any', inner).client).__name__
        return NoBatchLane(
            f'Model {model_id!r} cannot be batched: Message Batches are served by the Claude API itself, and not to '
            f'an `{client}`.'
        )
    if is_a(inner, 'pydantic_ai.models.google', 'GoogleModel'):
        if not _on_a_cloud(inner):
            return NoBatchLane(
                f'Model {model_id!r} cannot be batched: its profile has `google_supports_batch_api` off.'
            )
        return LaneNotBuilt(
            f'Model {model_id!r} is on Google Cloud, whose batch jobs `pydantic-ai-batch` does not serve yet: use the '
            'Gemini API.'
        )
    if is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel', 'OpenAIResponsesModel'):
        return NoBatchLane(f'Model {model_id!r} cannot be batched through {provider!r}: {_not_openais(inner)}')
    return NoBatchLane(
        f'Model {model_id!r} cannot be batched: `{type(inner).__name__}` has no batch API here. There is one for '
        f'{"; ".join(info.models for info in LANES.values())}.'
    )


def _not_openais(inner: Model) -> str:
    """Why a model that speaks OpenAI's language has no lane, and what gives it one if its endpoint has batches."""
    profile = cast('dict[str, Any]', inner.profile)
    chat = is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel')
    through_openais = is_a(inner.provider, 'pydantic_ai.providers.openai', 'OpenAIProvider')
    instead = f'`OpenAIChatModel({inner.model_name!r}, provider=OpenAIProvider(base_url=..., api_key=...))`'
    if chat and not through_openais:
        # Its twin on the Responses API, which tells about batches, goes by the provider's own profile.
        return (
            'Chat Completions are batched through `OpenAIProvider` alone, whatever `profile=` says. If the endpoint '
            f'has `/files` and `/batches`, use {instead}.'
        )
    if not profile.get('openai_supports_batch_api', False):
        return (
            'its profile has `openai_supports_batch_api` off. If the endpoint has `/files` and `/batches`, turn it on '
            'with `profile=OpenAIModelProfile(openai_supports_batch_api=True)` on the model.'
        )
    if not chat:
        return 'its profile says that it answers in streams alone (`openai_responses_requires_streaming`).'
    return (
        f'Chat Completions are not batched with an `{type(cast("Any", inner).client).__name__}`, whatever `profile=` '
        f'says. If the endpoint has `/files` and `/batches`, use {instead}.'
    )
