"""Reads the answers of text rows without the code that reads live answers, once that has shown what they look like.

A row with a text answer needs four things of a response: text, usage, finish reason and model. The full decoder makes
much more of it, for most of the time that a row takes. The first answer of a shape goes through it. Where the light
reader made the same of that one, it reads the others of that shape, and every hundredth is read in full and compared.

A shape is all of a body but its texts and the size of its numbers, and whatever else is new makes another one.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models.batch import BatchResult
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.lanes.base import Lane

from .raw_answers import object_of, read_body

_log = logging.getLogger('pydantic_ai_batch')

_SAMPLE = 100
"""One answer in so many of a shape is read in full."""

_SHAPES = 64
"""How many shapes are known at the most. Where there are more, something in them differs each time."""

_FREE = frozenset(
    {'id', 'content', 'text', 'reasoning', 'reasoning_content', 'encrypted_content', 'system_fingerprint', 'created_at'}
)
"""The keys of texts by whose words nothing is decided. Of others, the words are a part of the shape."""

_THINKING = '<think'
"""How the tags begin that some models think in, inside of their text."""

_TOTALS = frozenset({'prompt_tokens', 'completion_tokens', 'input_tokens', 'output_tokens', 'total_tokens'})


def _no_details(counts: dict[str, Any]) -> dict[str, int]:
    return {}


def _chat_details(counts: dict[str, Any]) -> dict[str, int]:
    own = {name: count for name, count in counts.items() if isinstance(count, int) and name not in _TOTALS}
    more = object_of(counts.get('completion_tokens_details'))
    return own | {name: count for name, count in more.items() if count is not None}


def _responses_details(counts: dict[str, Any]) -> dict[str, int]:
    return {'reasoning_tokens': object_of(counts.get('output_tokens_details')).get('reasoning_tokens', 0)}


@dataclass(frozen=True)
class _Usage:
    """One way in which the framework may read usage."""

    flavor: str
    """Which of a provider's APIs an answer is of, as `genai-prices` calls it."""

    details: Callable[[dict[str, Any]], dict[str, int]]

    def read(self, lane: Lane, body: dict[str, Any]) -> RequestUsage:
        counts = body.get('usage')
        with warnings.catch_warnings():
            # What cannot be read is not what was read in full, and is read in full again.
            warnings.simplefilter('ignore')
            return RequestUsage.extract(
                body,
                provider=lane.model.system,
                provider_url=lane.model.base_url or '',
                provider_fallback='openai',
                api_flavor=self.flavor,
                details=self.details(cast('dict[str, Any]', counts)) if isinstance(counts, dict) else None,
            )


_USAGES = (
    _Usage('chat', _chat_details),
    _Usage('responses', _responses_details),
    _Usage('chat', _no_details),
    _Usage('default', _no_details),
)


@dataclass
class _Shape:
    """What is known of a shape."""

    like: ModelResponse | None
    """What an answer of it was read as in full; `None` where the light reader does not make the same of it."""

    usage: _Usage = _USAGES[0]
    read: int = 0
    """How many were read by it."""


@dataclass
class LightReader:
    """Reads answers of shapes that it has learned."""

    _shapes: dict[object, _Shape] = field(default_factory=dict[object, _Shape])

    async def read(
        self, lane: Lane, result: BatchResult, sent_with: str, in_full: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """The response that a result is, which is read in full unless its shape is known.

        Args:
            lane: The lane that it came by.
            result: The result.
            sent_with: What else an answer is read by, such as the settings of its request.
            in_full: Reads it in full.
        """
        body = _body(result)
        if body is None:
            return await in_full()
        key = id(lane), sent_with, _shape_of(body)
        shape = self._shapes.get(key)
        if shape is not None and shape.like is not None:
            shape.read += 1
            light = _read(lane, body, shape.like, shape.usage)
            if light is not None and shape.read % _SAMPLE:
                return light
            full = await in_full()
            if light is not None and not _alike(light, full):
                _log.warning(
                    'An answer was read in full, and another came of it than of the light reader, which had read up to '
                    '%d of its shape since the last one that was compared. The light reader is not used for it any '
                    'more. What the provider returned is in `raw` of every row.',
                    min(shape.read, _SAMPLE) - 1,
                )
                shape.like = None
            return full
        full = await in_full()
        if shape is None and len(self._shapes) < _SHAPES:
            self._shapes[key] = _learned(lane, body, full)
        return full


def _body(result: BatchResult) -> dict[str, Any] | None:
    if result.status != 'succeeded' or result.body is None:
        return None
    try:
        body: Any = json.loads(result.body)
    except (ValueError, RecursionError):
        return None
    return cast('dict[str, Any]', body) if isinstance(body, dict) else None


def _shape_of(value: Any, key: str = '') -> object:
    if isinstance(value, dict):
        return '{', *[(name, _shape_of(item, name)) for name, item in cast('dict[str, Any]', value).items()]
    if isinstance(value, list):
        return '[', *[_shape_of(item) for item in cast('list[Any]', value)]
    if isinstance(value, str):
        return ('...' if value else '',) if key in _FREE else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return type(value).__name__, value > 0, value < 0
    return (value,)


def _read(lane: Lane, body: dict[str, Any], like: ModelResponse, usage: _Usage) -> ModelResponse | None:
    """What a body says, as far as a row needs it; `None` if that is more than its text."""
    text, finish, refusal = read_body(body)
    if refusal or not text or finish != like.finish_reason or _THINKING in text:
        return None
    response = copy(like)
    response.parts = [TextPart(content=text)]
    response.usage = usage.read(lane, body)
    response.timestamp = datetime.now(UTC)
    return response


def _learned(lane: Lane, body: dict[str, Any], full: ModelResponse) -> _Shape:
    like = replace(full, parts=[], usage=RequestUsage(), provider_response_id=None)
    if like.provider_details:
        # It is another one each time, and a price is not looked up again for that.
        like.provider_details = {name: value for name, value in like.provider_details.items() if name != 'timestamp'}
    for usage in _USAGES:
        light = _read(lane, body, like, usage)
        if light is not None and _alike(light, full):
            return _Shape(like, usage)
    return _Shape(None)


def _alike(light: ModelResponse, full: ModelResponse) -> bool:
    """Whether both say the same of all that a row is given."""
    return (
        all(isinstance(part, TextPart | ThinkingPart) for part in full.parts)
        and light.text == full.text
        and light.usage == full.usage
        and light.finish_reason == full.finish_reason
        and light.model_name == full.model_name
    )
