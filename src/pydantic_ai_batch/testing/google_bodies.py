"""Gemini's request and response bodies: what a body asks, and an answer as the model would give it."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator
from typing import Any, cast

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeTool, FakeToolCall, token_estimate
from pydantic_ai_batch.testing.google_json import Json, field, object_in, objects_in

_ENDPOINT = re.compile(r'/v1beta/models/(.+):generateContent')

_KEYWORDS = (
    'anyOf',
    'maxItems',
    'minItems',
    'minProperties',
    'maxProperties',
    'minLength',
    'maxLength',
    'minimum',
    'maximum',
    'enum',
    'required',
    'pattern',
    'format',
)
"""What a `Schema` of Google's has in common with a JSON schema."""


def endpoint_of(model: str) -> str:
    """Path of the API that generates content with a model."""
    return f'/v1beta/models/{model}:generateContent'


def model_of(endpoint: str) -> str | None:
    """The model in such a path."""
    found = _ENDPOINT.fullmatch(endpoint)
    return found[1] if found else None


def read_request(body: Json) -> Asked:
    """What a body asks for."""
    contents = objects_in(body, 'contents')
    parts = [part for content in contents for part in objects_in(content, 'parts')]
    config = object_in(object_in(body, 'toolConfig'), 'functionCallingConfig')
    mode, allowed = field(config, 'mode'), cast('list[str] | None', field(config, 'allowedFunctionNames'))
    tools = [tool for tool in _tools(body) if mode != 'NONE' and (not allowed or tool.name in allowed)]
    return Asked(
        text=_last_user_text(contents),
        tools=tuple(tools),
        forced_tool=(tools[0].name if len(tools) == 1 else '*') if tools and mode == 'ANY' else None,
        tool_results=sum(field(part, 'functionResponse') is not None for part in parts),
        output_schema=_output_schema(object_in(body, 'generationConfig')),
    )


def body_problem(body: Json) -> FakeError | None:
    """What the API answers to a body that it cannot run."""
    return None if objects_in(body, 'contents') else FakeError(400, None, 'The request has no `contents`.')


def write_answer(request: FakeRequest, answer: str | FakeToolCall, size: int) -> Json:
    """A whole response body, with usage estimated from lengths."""
    if isinstance(answer, str):
        text = answer
        part: Json = {'text': answer}
    else:
        text = json.dumps(answer.arguments)
        # Gemini gives no id to a call.
        part = {'functionCall': {'name': answer.name, 'args': answer.arguments}}
    spent, made = token_estimate(size), token_estimate(len(text))
    return {
        'candidates': [{'content': {'parts': [part], 'role': 'model'}, 'finishReason': 'STOP', 'index': 0}],
        'usageMetadata': {
            'promptTokenCount': spent,
            'candidatesTokenCount': made,
            'totalTokenCount': spent + made,
            'promptTokensDetails': [{'modality': 'TEXT', 'tokenCount': spent}],
            'serviceTier': 'standard',
        },
        'modelVersion': request.model,
        'responseId': secrets.token_urlsafe(16),
    }


def _tools(body: Json) -> Iterator[FakeTool]:
    for tool in objects_in(body, 'tools'):
        for function in objects_in(tool, 'functionDeclarations'):
            schema = field(function, 'parametersJsonSchema')
            if schema is None:
                schema = _json_schema(field(function, 'parameters'))
            yield FakeTool(str(function.get('name')), cast('Json', schema) if isinstance(schema, dict) else {})


def _output_schema(config: Json) -> Json | None:
    # What google-genai 1 wrote instead of `responseJsonSchema` began with an underscore.
    for name in ('responseJsonSchema', '_responseJsonSchema'):
        if isinstance(schema := field(config, name), dict):
            return cast('Json', schema)
    if isinstance(schema := field(config, 'responseSchema'), dict):
        return _json_schema(schema)
    # JSON without a schema: any object will do.
    return {'type': 'object'} if field(config, 'responseMimeType') == 'application/json' else None


def _json_schema(value: Any) -> Json:
    """A `Schema` of Google's, which is like one of OpenAPI 3.0, as a JSON schema."""
    if not isinstance(value, dict):
        return {}
    schema = cast('Json', value)
    made: Json = {name: given for name in _KEYWORDS if (given := field(schema, name)) is not None}
    for name in ('minItems', 'maxItems', 'minProperties', 'maxProperties', 'minLength', 'maxLength'):
        if name in made:
            # 64-bit numbers are strings in Protobuf's JSON.
            made[name] = int(made[name])
    if isinstance(kind := schema.get('type'), str):
        made['type'] = kind.lower()
    if 'items' in schema:
        made['items'] = _json_schema(schema['items'])
    if 'properties' in schema:
        made['properties'] = {name: _json_schema(part) for name, part in object_in(schema, 'properties').items()}
    if 'anyOf' in made:
        made['anyOf'] = [_json_schema(part) for part in made['anyOf']]
    return {'anyOf': [made, {'type': 'null'}]} if schema.get('nullable') else made


def _last_user_text(contents: list[Json]) -> str:
    for content in reversed(contents):
        if field(content, 'role') in (None, 'user'):
            texts = [text for part in objects_in(content, 'parts') if isinstance(text := part.get('text'), str)]
            if texts:
                return texts[-1]
    return ''
