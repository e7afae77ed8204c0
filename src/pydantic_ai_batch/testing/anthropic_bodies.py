"""Anthropic's request and response bodies: what a body asks, what is wrong with it, and an answer to it."""

from __future__ import annotations

import json
import uuid
from typing import Any, cast

from pydantic_ai_batch.testing.answers import Asked, FakeRequest, FakeTool, FakeToolCall, token_estimate
from pydantic_ai_batch.testing.anthropic_schemas import with_described_limits

MESSAGES = '/v1/messages'
"""Path of the one endpoint that batches run on, and that answers live."""

Json = dict[str, Any]

_NOT_IN_BATCHES = ('speed', 'store', 'previous_thread_event_id', 'cache_hint', 'context_hint', 'fallbacks')
"""What a live request may say and a batched one may not, whatever its value."""


def read_request(body: Json) -> Asked:
    """What a body asks for."""
    messages = as_objects(body.get('messages'))
    user_blocks = [
        block for message in messages if message.get('role') == 'user' for block in _blocks(message.get('content'))
    ]
    texts = [block['text'] for block in user_blocks if isinstance(block.get('text'), str)]
    choice = as_object(body.get('tool_choice'))
    # Tools that Anthropic runs itself have a dated type and no schema, and are not the caller's to answer.
    tools = [tool for tool in as_objects(body.get('tools')) if 'input_schema' in tool]
    if choice.get('type') == 'none':
        tools = []
    return Asked(
        text=texts[-1] if texts else '',
        tools=tuple(FakeTool(str(tool.get('name')), _schema(tool['input_schema'])) for tool in tools),
        forced_tool=_forced_tool(choice),
        tool_results=sum(block.get('type') == 'tool_result' for block in user_blocks),
        output_schema=_output_schema(body),
    )


def write_answer(request: FakeRequest, answer: str | FakeToolCall, size: int) -> Json:
    """A whole Message, with usage estimated from lengths."""
    if isinstance(answer, str):
        block: Json = {'type': 'text', 'text': answer}
        made = token_estimate(len(answer))
    else:
        block = {
            'type': 'tool_use',
            'id': f'toolu_{uuid.uuid4().hex[:24]}',
            'name': answer.name,
            'input': answer.arguments,
        }
        made = token_estimate(len(json.dumps(answer.arguments)))
    return {
        'model': request.model,
        'id': f'msg_{uuid.uuid4().hex[:24]}',
        'type': 'message',
        'role': 'assistant',
        'content': [block],
        'stop_reason': 'end_turn' if isinstance(answer, str) else 'tool_use',
        'stop_sequence': None,
        'stop_details': None,
        'usage': {
            'input_tokens': token_estimate(size),
            'cache_creation_input_tokens': 0,
            'cache_read_input_tokens': 0,
            'cache_creation': {'ephemeral_5m_input_tokens': 0, 'ephemeral_1h_input_tokens': 0},
            'output_tokens': made,
            'service_tier': 'standard' if request.custom_id is None else 'batch',
            'inference_geo': 'not_available',
        },
    }


def body_problem(body: Json) -> str | None:
    """Why a body is refused, live and in a batch; `None` if it is not."""
    if not isinstance(body.get('model'), str):
        return 'model: the body names no model.'
    if not as_objects(body.get('messages')):
        return 'messages: there must be at least one.'
    limit = body.get('max_tokens')
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        return 'max_tokens: a number of tokens is required.'
    return None


def batch_problem(body: Json) -> str | None:
    """Why a body is refused in a batch; `None` if it is not."""
    if problem := body_problem(body):
        return problem
    if body.get('stream'):
        return 'stream: a batch cannot stream.'
    if body['max_tokens'] == 0:
        return 'max_tokens: a batch cannot be asked for no tokens.'
    for name in _NOT_IN_BATCHES:
        if body.get(name) is not None:
            return f'{name}: not supported in a batch.'
    if body.get('research_preview_2026_02') == 'active':
        return 'research_preview_2026_02: not supported in a batch.'
    if as_object(body.get('billing_policy')).get('bill_to') == 'user_profile':
        return 'billing_policy.bill_to: a batch cannot be billed to a user profile.'
    return None


def as_object(value: Any) -> Json:
    """The value if it is a JSON object, else an empty one."""
    return cast('Json', value) if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[Json]:
    """The objects in the value, if it is a list."""
    items = cast('list[Any]', value) if isinstance(value, list) else []
    return [as_object(item) for item in items if isinstance(item, dict)]


def _blocks(content: Any) -> list[Json]:
    return [{'type': 'text', 'text': content}] if isinstance(content, str) else as_objects(content)


def _forced_tool(choice: Json) -> str | None:
    if choice.get('type') == 'any':
        return '*'
    name = choice.get('name')
    return name if choice.get('type') == 'tool' and isinstance(name, str) else None


def _output_schema(body: Json) -> Json | None:
    """The schema that the text must satisfy: `output_format` is the older place for it."""
    for output_format in as_object(body.get('output_config')).get('format'), body.get('output_format'):
        schema = as_object(output_format).get('schema')
        if isinstance(schema, dict):
            return _schema(schema)
    return None


def _schema(value: Any) -> Json:
    return with_described_limits(as_object(value))
