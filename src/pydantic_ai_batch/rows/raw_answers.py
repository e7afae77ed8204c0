"""Reads what a provider returned for a request that was sent as it is, as far as that can be done without its model."""

from __future__ import annotations

import warnings
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import FinishReason, ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.lanes.base import Lane

_FLAVORS = {'/v1/chat/completions': 'chat', '/v1/responses': 'responses', '/v1/embeddings': 'embeddings'}
"""The endpoints whose usage `genai-prices` reads, with its word for each."""

_FINISHES: dict[str, FinishReason] = {
    'stop': 'stop',
    'length': 'length',
    'content_filter': 'content_filter',
    'tool_calls': 'tool_call',
    'function_call': 'tool_call',
}


def response_of(lane: Lane, endpoint: str, body: dict[str, Any]) -> ModelResponse:
    """What a body says, as far as it is one of Chat Completions or Responses; of others their usage alone.

    Raises:
        ModelAPIError: It says that the request failed.
    """
    if body.get('status') in ('failed', 'cancelled'):
        said = object_of(body.get('error')).get('message') or f'its status is {body["status"]!r}'
        raise ModelAPIError(lane.model.model_name, f'The provider could not answer the request: {said}')
    text, finish, refusal = read_body(body)
    return ModelResponse(
        parts=[TextPart(content=text)] if text else [],
        usage=_usage(lane, endpoint, body),
        model_name=model if isinstance(model := body.get('model'), str) else lane.model.model_name,
        provider_name=lane.model.system,
        provider_url=lane.model.base_url,
        provider_details={'refusal': refusal} if refusal else None,
        finish_reason=finish,
    )


def _usage(lane: Lane, endpoint: str, body: dict[str, Any]) -> RequestUsage:
    if not (usage := object_of(body.get('usage'))):
        return RequestUsage()
    if (flavor := _FLAVORS.get(endpoint)) is not None:
        with warnings.catch_warnings():
            # Usage that cannot be read is no reason to lose the answer.
            warnings.simplefilter('ignore')
            return RequestUsage.extract(
                body,
                provider=lane.model.system,
                provider_url=lane.model.base_url or '',
                provider_fallback='openai',
                api_flavor=flavor,
            )
    return RequestUsage(
        input_tokens=_count(usage.get('prompt_tokens') or usage.get('input_tokens')),
        output_tokens=_count(usage.get('completion_tokens') or usage.get('output_tokens')),
    )


def read_body(body: dict[str, Any]) -> tuple[str, FinishReason | None, str | None]:
    """The text of a body, why it ends, and in what words the model refused."""
    if choices := _objects(body.get('choices')):
        message = object_of(choices[0].get('message'))
        refusal = _text(message.get('refusal'))
        finish = _FINISHES.get(str(choices[0].get('finish_reason')))
        return _text(message.get('content')), 'content_filter' if refusal else finish, refusal or None
    if not isinstance(body.get('output'), list):
        return '', None, None
    items = _objects(body['output'])
    parts = [part for item in items for part in _objects(item.get('content'))]
    text = ''.join(_text(part.get('text')) for part in parts if part.get('type') == 'output_text')
    refusal = ''.join(_text(part.get('refusal')) for part in parts if part.get('type') == 'refusal')
    if refusal:
        return text, 'content_filter', refusal
    if body.get('status') == 'incomplete':
        reason = object_of(body.get('incomplete_details')).get('reason')
        return text, 'content_filter' if reason == 'content_filter' else 'length', None
    return text, 'tool_call' if any(item.get('type') == 'function_call' for item in items) else 'stop', None


def object_of(value: Any) -> dict[str, Any]:
    """A value that should be an object; an empty one if it is none."""
    return cast('dict[str, Any]', value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [object_of(item) for item in cast('list[Any]', value)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ''


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
