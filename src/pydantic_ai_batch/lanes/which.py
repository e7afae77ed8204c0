"""Which lane serves a model, by its class, its provider and what its client asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, cast
from urllib.parse import urlsplit

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.models.wrapper import WrapperModel

from pydantic_ai_batch.codec import NativeCodec, is_a
from pydantic_ai_batch.exceptions import NoBatchLane
from pydantic_ai_batch.per_model import innermost
from pydantic_ai_batch.replay import ReplayCodec

from . import (
    anthropic,
    azure,
    bedrock,
    compatible,
    deepinfra,
    fireworks,
    google,
    groq,
    mistral,
    native,
    openai,
    openai_client,
    together,
    vertex,
    xai,
)
from .base import Lane, LaneInfo
from .credentials import client_group
from .names import canonical, model_named
from .refusals import no_lane, on_a_cloud, refused_by_name, through_gateway

LANES: Mapping[str, LaneInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            openai.INFO,
            azure.INFO,
            anthropic.INFO,
            google.INFO,
            vertex.INFO,
            bedrock.INFO,
            groq.INFO,
            mistral.INFO,
            together.INFO,
            fireworks.INFO,
            deepinfra.INFO,
            xai.INFO,
            compatible.INFO,
            native.INFO,
        )
    }
)
"""What is known about every lane, by its name."""


def lane_for(model: Model | KnownModelName | str, *, lane: str | None = None) -> Lane:
    """The lane that serves a model's requests, through the client the model is configured with.

    Args:
        model: The model, which may be wrapped, as for instrumentation, or its name, such as `'groq:gpt-oss-20b'`.
        lane: The lane that it is to be, where the model alone does not say: `'openai-compatible'` takes any server that
            speaks OpenAI's language to have a batch API. `None` goes by the model.

    Raises:
        UserError: The model is on another lane than `lane`, or there is no such model or lane.
        NoBatchLane: The provider has no batch API, or not for this model. The message says why.
        LaneNotBuilt: It has one that this package does not serve yet.
    """
    if isinstance(model, str):
        if lane is None and (refusal := refused_by_name(model)) is not None:
            raise refusal
        model = model_named(model)
    if lane is not None:
        return _asked_for(model, lane)
    if (bridged := _bridged(model)) is not None:
        return bridged
    inner = innermost(model)
    if is_a(inner, 'pydantic_ai.models.fallback', 'FallbackModel'):
        raise NoBatchLane(
            'A `FallbackModel` cannot be batched, as its models are tried one after another while the request waits: '
            'use one of them, or the `ModelFallback` capability.'
        )
    if through_gateway(inner):
        raise no_lane(inner, LANES.values())
    if is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel', 'OpenAIResponsesModel'):
        return _openai_family(model, inner)
    if is_a(inner, 'pydantic_ai.models.groq', 'GroqModel'):
        return groq.GroqLane(model, _replay(openai_client.CHAT_COMPLETIONS))
    if is_a(inner, 'pydantic_ai.models.mistral', 'MistralModel'):
        return mistral.MistralLane(model, ReplayCodec(mistral.group))
    if is_a(inner, 'pydantic_ai.models.google', 'GoogleModel') and on_a_cloud(inner):
        return vertex.VertexLane(model, ReplayCodec(vertex.group))
    if is_a(inner, 'pydantic_ai.models.bedrock', 'BedrockConverseModel'):
        return bedrock.BedrockLane(model, bedrock.codec())
    if model.batch_max_requests is None or on_a_cloud(inner):
        raise no_lane(inner, LANES.values())
    if is_a(inner, 'pydantic_ai.models.anthropic', 'AnthropicModel'):
        return anthropic.AnthropicLane(model, NativeCodec())
    if is_a(inner, 'pydantic_ai.models.google', 'GoogleModel'):
        return google.GoogleLane(model, NativeCodec())
    return native.NativeLane(model, NativeCodec())


def lane_named(name: str) -> LaneInfo:
    """What is known about the lane of that name, which may be an alias.

    Raises:
        UserError: There is none.
    """
    if (info := LANES.get(canonical(name))) is None:
        raise UserError(f'There is no lane {name!r}. There are {", ".join(LANES)}.')
    return info


def _asked_for(model: Model, name: str) -> Lane:
    """The lane of that name, if the model can be on it."""
    info, inner = lane_named(name), innermost(model)
    if info is compatible.INFO and is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel', 'OpenAIResponsesModel'):
        endpoint = _endpoint(inner)
        return compatible.CompatibleLane(model, _replay(endpoint), endpoint)
    found = lane_for(model)
    if found.info is not info:
        raise UserError(f'Model {model.model_id!r} is on the lane {found.info.name!r}, and not on {info.name!r}.')
    return found


def _bridged(model: Model) -> Lane | None:
    """The lane that `with_batch_api` has found for a model, if it has."""
    while isinstance(model, WrapperModel):
        if isinstance(lane := getattr(model, 'lane', None), Lane):
            return lane
        model = model.wrapped
    return None


def _endpoint(inner: Model) -> str:
    chat = is_a(inner, 'pydantic_ai.models.openai', 'OpenAIChatModel')
    return openai_client.CHAT_COMPLETIONS if chat else openai_client.RESPONSES


def _replay(endpoint: str) -> ReplayCodec:
    """The codec of a model that the framework encodes nothing for, whose client is of the family of OpenAI's."""
    return ReplayCodec(partial(client_group, endpoint=endpoint))


_AT: tuple[tuple[type[openai_client.OpenAIClientLane], str, str | None], ...] = (
    (azure.AzureLane, 'azure', None),
    (together.TogetherLane, 'together', 'api.together'),
    (fireworks.FireworksLane, 'fireworks', 'api.fireworks.ai'),
    (deepinfra.DeepInfraLane, 'deepinfra', 'api.deepinfra.com'),
    (xai.XAILane, 'xai', 'api.x.ai'),
    (xai.XAILane, 'x-ai', None),
)
"""The lanes of providers that are asked in OpenAI's language, by the provider's name and what its host begins with."""


def _openai_family(model: Model, inner: Model) -> Lane:
    """The lane of a model that speaks OpenAI's language, by who it speaks it to."""
    endpoint = _endpoint(inner)
    chat = endpoint == openai_client.CHAT_COMPLETIONS
    supports = cast('dict[str, Any]', inner.profile).get('openai_supports_batch_api')
    name, host = inner.system, urlsplit(inner.base_url or '').hostname or ''
    # The framework turns the flag off for Azure's clients, as it serves none of their batches.
    turned_off = supports is False and (chat or name != 'azure')
    for lane, of, at in _AT:
        if (name == of or (at and host.startswith(at))) and not turned_off:
            if endpoint not in lane.info.endpoints:
                raise no_lane(inner, LANES.values())
            return lane(model, _replay(endpoint), endpoint)
    if not supports:
        raise no_lane(inner, LANES.values())
    if not is_a(inner.provider, 'pydantic_ai.providers.openai', 'OpenAIProvider'):
        return compatible.CompatibleLane(model, _replay(endpoint), endpoint)
    if (openai.responses_twin(inner) if chat else model).batch_max_requests is None:
        raise no_lane(inner, LANES.values())
    return openai.OpenAILane(model, ReplayCodec(openai.chat_group) if chat else NativeCodec(), endpoint)
