"""The lanes: one provider batch API each, and which of them serves a model."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType

from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

from pydantic_ai_batch.codec import NativeCodec
from pydantic_ai_batch.exceptions import LaneNotBuilt, NoBatchLane

from . import openai
from .base import Lane, LaneInfo

__all__ = ('LANES', 'Lane', 'LaneInfo', 'lane_for')

LANES: Mapping[str, LaneInfo] = MappingProxyType({openai.INFO.name: openai.INFO})
"""What is known about every lane, by its name."""


def lane_for(model: Model) -> Lane:
    """The lane that serves a model's requests, through the client the model is configured with.

    Args:
        model: The model, which may be wrapped, as for instrumentation.

    Raises:
        NoBatchLane: The provider has no batch API, or not for this model.
        LaneNotBuilt: It has one that this package does not serve yet.
    """
    inner = model
    while isinstance(inner, WrapperModel):
        inner = inner.wrapped
    if _is_a(inner, 'pydantic_ai.models.openai', 'OpenAIResponsesModel'):
        if model.batch_max_requests is None:
            raise NoBatchLane(
                f'Model {model.model_id!r} cannot be batched: its profile says that its endpoint has no batch API '
                '(`openai_supports_batch_api`), or only streams. If it has one, set the flag with `profile=` on the '
                'model.'
            )
        return openai.OpenAILane(model, NativeCodec())
    if _is_a(inner, 'pydantic_ai.models.fallback', 'FallbackModel'):
        raise NoBatchLane(
            'A `FallbackModel` cannot be batched, as its models are tried one after another while the request waits: '
            'use one of them, or the `ModelFallback` capability.'
        )
    if model.batch_max_requests is not None:
        raise LaneNotBuilt(
            f'Model {model.model_id!r} has a batch API, which `pydantic-ai-batch` does not serve yet. It serves: '
            f'{", ".join(info.models for info in LANES.values())}.'
        )
    raise NoBatchLane(
        f'Model {model.model_id!r} cannot be batched: `{type(inner).__name__}` has no batch API here. There is one for '
        f'{", ".join(info.models for info in LANES.values())}.'
    )


def _is_a(model: Model, module: str, name: str) -> bool:
    """Whether a model is of a class, without importing the module, and with it the SDK, that defines it."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(model, cls)
