"""Mistral's request and response bodies: what a body asks, and an answer or an error as the endpoint would give it."""

from __future__ import annotations

import json
import uuid
from typing import Any

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall, token_estimate
from pydantic_ai_batch.testing.openai_bodies import read_request as read_openai_request

_ERROR_TYPES = {401: 'unauthorized', 403: 'forbidden', 404: 'not_found', 429: 'rate_limited'}


def read_request(endpoint: str, body: dict[str, Any]) -> Asked:
    """What a body of that endpoint asks for, in OpenAI's language but for one word."""
    if body.get('tool_choice') == 'any':
        body = {**body, 'tool_choice': 'required'}
    return read_openai_request(endpoint, body)


def write_answer(request: FakeRequest, answer: str | FakeToolCall, size: int, *, now: float) -> dict[str, Any]:
    """A whole response body, with usage estimated from lengths."""
    token, spent = uuid.uuid4().hex, token_estimate(size)
    message: dict[str, Any] = {
        'role': 'assistant',
        'content': '',
        'tool_calls': None,
        'tool_call_id': None,
        'index': None,
        'metadata': None,
    }
    if isinstance(answer, str):
        text = message['content'] = answer
    else:
        text = json.dumps(answer.arguments)
        function = {'name': answer.name, 'arguments': text}
        message['tool_calls'] = [{'id': token[:9], 'type': 'function', 'function': function, 'index': 0}]
    made = token_estimate(len(text))
    return {
        'id': token,
        'object': 'chat.completion',
        'model': request.model,
        'usage': {
            'prompt_tokens': spent,
            'completion_tokens': made,
            'total_tokens': spent + made,
            'prompt_audio_seconds': None,
            'prompt_token_details': None,
            'request_count': 0,
            'prompt_tokens_details': {'messages': [], 'cached_tokens': 0, 'audio_tokens': 0},
            'completion_tokens_details': None,
            'service_tier': None,
        },
        'created': int(now),
        'choices': [
            {
                'index': 0,
                'finish_reason': 'stop' if isinstance(answer, str) else 'tool_calls',
                'message': message,
            }
        ],
    }


def error_body(error: FakeError) -> dict[str, Any]:
    """The body of an error reply, or of a failed row."""
    fallback = 'internal_error' if error.status >= 500 else 'invalid_request_error'
    return {
        'object': 'error',
        'message': error.message,
        'type': error.type or _ERROR_TYPES.get(error.status, fallback),
        'param': error.param,
        'code': error.code,
    }
