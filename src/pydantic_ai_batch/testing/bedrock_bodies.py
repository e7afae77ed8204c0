"""Bedrock's Converse bodies: what a body asks, and an answer or an error as the service would give it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, cast

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeTool, FakeToolCall, token_estimate

Json = dict[str, Any]

ERRORS: Mapping[int, str] = {
    400: 'ValidationException',
    401: 'UnrecognizedClientException',
    403: 'AccessDeniedException',
    404: 'ResourceNotFoundException',
    408: 'ModelTimeoutException',
    409: 'ConflictException',
    424: 'ModelErrorException',
    429: 'ThrottlingException',
    500: 'InternalServerException',
    503: 'ServiceUnavailableException',
}
"""What errors are called, by their status."""


def read_request(body: Json) -> Asked:
    """What a body asks for."""
    messages, config = _objects(body.get('messages')), _object(body.get('toolConfig'))
    choice = _object(config.get('toolChoice'))
    specs = [_object(tool.get('toolSpec')) for tool in _objects(config.get('tools'))]
    structure = _object(_object(_object(body.get('outputConfig')).get('textFormat')).get('structure'))
    schema = _object(structure.get('jsonSchema')).get('schema')
    return Asked(
        text=_last_user_text(messages),
        tools=tuple(
            FakeTool(str(spec.get('name')), _object(_object(spec.get('inputSchema')).get('json'))) for spec in specs
        ),
        forced_tool='*' if 'any' in choice else _object(choice.get('tool')).get('name'),
        tool_results=sum('toolResult' in part for message in messages for part in _objects(message.get('content'))),
        output_schema=_object(json.loads(schema)) if isinstance(schema, str) else None,
    )


def write_answer(answer: str | FakeToolCall, size: int) -> Json:
    """A whole response body, with usage estimated from lengths."""
    if isinstance(answer, str):
        text, content = answer, {'text': answer}
    else:
        text = json.dumps(answer.arguments)
        use_id = f'tooluse_{uuid.uuid4().hex[:22]}'
        content = {'toolUse': {'toolUseId': use_id, 'name': answer.name, 'input': answer.arguments}}
    spent, made = token_estimate(size), token_estimate(len(text))
    return {
        'output': {'message': {'role': 'assistant', 'content': [content]}},
        'stopReason': 'end_turn' if isinstance(answer, str) else 'tool_use',
        'usage': {'inputTokens': spent, 'outputTokens': made, 'totalTokens': spent + made},
        'metrics': {'latencyMs': 1},
    }


def usage_tokens(body: Json) -> tuple[int, int]:
    """Input and output tokens that a response body says it took."""
    usage = _object(body.get('usage'))
    return int(usage.get('inputTokens') or 0), int(usage.get('outputTokens') or 0)


def row_error(error: FakeError) -> Json:
    """What the line of a failed row says."""
    return {'errorCode': error.status, 'errorMessage': error.message, 'expired': False, 'retryable': False}


def _last_user_text(messages: list[Json]) -> str:
    for message in reversed(messages):
        if message.get('role') == 'user' and (texts := list(_texts(message.get('content')))):
            return texts[-1]
    return ''


def _texts(content: Any) -> Iterator[str]:
    for part in _objects(content):
        if isinstance(text := part.get('text'), str):
            yield text


def _object(value: Any) -> Json:
    return cast('Json', value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    items = cast('list[Any]', value) if isinstance(value, list) else []
    return [_object(item) for item in items if isinstance(item, dict)]
