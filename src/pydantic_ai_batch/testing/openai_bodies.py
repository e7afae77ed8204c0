"""OpenAI's request and response bodies: what a body asks, and an answer as the endpoint would give it."""

from __future__ import annotations

import base64
import json
import random
import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

from pydantic_ai_batch.testing.answers import Asked, FakeRequest, FakeTool, FakeToolCall, token_estimate

RESPONSES, CHAT, EMBEDDINGS = '/v1/responses', '/v1/chat/completions', '/v1/embeddings'
MODERATIONS = '/v1/moderations'

Json = dict[str, Any]


def read_request(endpoint: str, body: Json) -> Asked:
    """What a body of that endpoint asks for."""
    if endpoint in (EMBEDDINGS, MODERATIONS):
        return Asked(text=embedding_inputs(body)[-1])
    if endpoint == CHAT:
        messages = _objects(body.get('messages'))
        schema = _object(_object(body.get('response_format')).get('json_schema')).get('schema')
        tools = [
            _object(tool.get('function')) for tool in _objects(body.get('tools')) if tool.get('type') == 'function'
        ]
        results = sum(message.get('role') == 'tool' for message in messages)
    else:
        source = body.get('input')
        messages = [{'role': 'user', 'content': source}] if isinstance(source, str) else _objects(source)
        schema = _object(_object(body.get('text')).get('format')).get('schema')
        tools = [tool for tool in _objects(body.get('tools')) if tool.get('type') == 'function']
        results = sum(message.get('type') == 'function_call_output' for message in messages)
    if body.get('tool_choice') == 'none':
        tools = []
    return Asked(
        text=_last_user_text(messages),
        tools=tuple(FakeTool(str(tool.get('name')), _object(tool.get('parameters'))) for tool in tools),
        forced_tool=_forced_tool(body.get('tool_choice')),
        tool_results=results,
        output_schema=_object(schema) if isinstance(schema, dict) else None,
    )


def write_answer(request: FakeRequest, answer: str | FakeToolCall, size: int, *, now: float) -> Json:
    """A whole response body of the request's endpoint, with usage estimated from lengths."""
    write: dict[str, Callable[[FakeRequest, str | FakeToolCall, int, int], Json]] = {
        CHAT: _chat,
        EMBEDDINGS: _embeddings,
        MODERATIONS: _moderations,
    }
    return write.get(request.endpoint, _response)(request, answer, token_estimate(size), int(now))


def usage_tokens(body: Json) -> tuple[int, int]:
    """Input and output tokens that a response body says it took."""
    usage = _object(body.get('usage'))
    spent = usage.get('input_tokens', usage.get('prompt_tokens', 0))
    made = usage.get('output_tokens', usage.get('completion_tokens', 0))
    return int(spent or 0), int(made or 0)


def embedding_inputs(body: Json) -> list[str]:
    """The texts to embed, or to judge; tokens stand for themselves in words. Never empty."""
    source = body.get('input')
    if isinstance(source, list) and source:
        items = cast('list[Any]', source)
        if not isinstance(items[0], int):
            return [item if isinstance(item, str) else json.dumps(item) for item in items]
    return [source if isinstance(source, str) else json.dumps(source)]


def _response(request: FakeRequest, answer: str | FakeToolCall, spent: int, now: int) -> Json:
    body, token = request.body, uuid.uuid4().hex
    if isinstance(answer, str):
        text = answer
        item: Json = {
            'id': f'msg_{token}',
            'type': 'message',
            'status': 'completed',
            'role': 'assistant',
            'content': [{'type': 'output_text', 'annotations': [], 'logprobs': [], 'text': text}],
        }
    else:
        text = json.dumps(answer.arguments)
        item = {
            'id': f'fc_{token}',
            'type': 'function_call',
            'status': 'completed',
            'call_id': f'call_{token[:24]}',
            'name': answer.name,
            'arguments': text,
        }
    made = token_estimate(len(text))
    return {
        'id': f'resp_{token}',
        'object': 'response',
        'created_at': now,
        'status': 'completed',
        'background': False,
        'completed_at': now,
        'error': None,
        'incomplete_details': None,
        'instructions': body.get('instructions'),
        'max_output_tokens': body.get('max_output_tokens'),
        'model': request.model,
        'output': [item],
        'parallel_tool_calls': body.get('parallel_tool_calls', True),
        'previous_response_id': body.get('previous_response_id'),
        'reasoning': {'effort': None, 'summary': None},
        'service_tier': 'default',
        'store': body.get('store', True),
        'temperature': body.get('temperature', 1.0),
        'text': {'format': _object(body.get('text')).get('format', {'type': 'text'})},
        'tool_choice': body.get('tool_choice', 'auto'),
        'tools': body.get('tools', []),
        'top_p': body.get('top_p', 1.0),
        'truncation': 'disabled',
        'usage': {
            'input_tokens': spent,
            'input_tokens_details': {'cached_tokens': 0, 'cache_write_tokens': 0},
            'output_tokens': made,
            'output_tokens_details': {'reasoning_tokens': 0},
            'total_tokens': spent + made,
        },
        'user': body.get('user'),
        'metadata': body.get('metadata') or {},
    }


def _chat(request: FakeRequest, answer: str | FakeToolCall, spent: int, now: int) -> Json:
    token = uuid.uuid4().hex
    message: Json = {'role': 'assistant', 'content': None, 'refusal': None, 'annotations': []}
    if isinstance(answer, str):
        text = answer
        message['content'] = answer
    else:
        text = json.dumps(answer.arguments)
        function = {'name': answer.name, 'arguments': text}
        message['tool_calls'] = [{'id': f'call_{token[:24]}', 'type': 'function', 'function': function}]
    made = token_estimate(len(text))
    return {
        'id': f'chatcmpl-{token}',
        'object': 'chat.completion',
        'created': now,
        'model': request.model,
        'choices': [
            {
                'index': 0,
                'message': message,
                'logprobs': None,
                'finish_reason': 'stop' if isinstance(answer, str) else 'tool_calls',
            }
        ],
        'usage': {
            'prompt_tokens': spent,
            'completion_tokens': made,
            'total_tokens': spent + made,
            'prompt_tokens_details': {'cached_tokens': 0, 'audio_tokens': 0},
            'completion_tokens_details': {
                'reasoning_tokens': 0,
                'audio_tokens': 0,
                'accepted_prediction_tokens': 0,
                'rejected_prediction_tokens': 0,
            },
        },
        'service_tier': 'default',
        'system_fingerprint': 'fp_fake',
    }


def _embeddings(request: FakeRequest, answer: str | FakeToolCall, spent: int, now: int) -> Json:
    """One vector for each input, drawn from its text: what the answer says does not matter."""
    size = request.body.get('dimensions') or 8
    data: list[Json] = []
    for index, text in enumerate(embedding_inputs(request.body)):
        draw = random.Random(text)
        vector: list[float] | str = [round(draw.uniform(-1, 1), 6) for _ in range(size)]
        if request.body.get('encoding_format') == 'base64':
            vector = base64.b64encode(struct.pack(f'<{size}f', *vector)).decode()
        data.append({'object': 'embedding', 'index': index, 'embedding': vector})
    return {
        'object': 'list',
        'data': data,
        'model': request.model,
        'usage': {'prompt_tokens': spent, 'total_tokens': spent},
    }


def _moderations(request: FakeRequest, answer: str | FakeToolCall, spent: int, now: int) -> Json:
    """One judgement for each input: it is harmless, whatever the answer says, unless that is `'flagged'`."""
    flagged = answer == 'flagged'
    judgement: Json = {
        'flagged': flagged,
        'categories': {'harassment': flagged, 'violence': False},
        'category_scores': {'harassment': 0.9 if flagged else 0.01, 'violence': 0.01},
    }
    return {
        'id': f'modr-{uuid.uuid4().hex[:24]}',
        'model': request.model,
        'results': [judgement for _ in embedding_inputs(request.body)],
    }


def _last_user_text(messages: list[Json]) -> str:
    for message in reversed(messages):
        if message.get('role') == 'user':
            texts = list(_texts(message.get('content')))
            if texts:
                return texts[-1]
    return ''


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in _objects(content):
        if isinstance(text := part.get('text'), str):
            yield text


def _forced_tool(choice: Any) -> str | None:
    if choice == 'required':
        return '*'
    chosen = _object(choice)
    if chosen.get('mode') == 'required':
        return '*'
    name = chosen.get('name') or _object(chosen.get('function')).get('name')
    return name if isinstance(name, str) else None


def _object(value: Any) -> Json:
    return cast('Json', value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Json]:
    return (
        [_object(item) for item in cast('list[Any]', value) if isinstance(item, dict)]
        if isinstance(value, list)
        else []
    )
