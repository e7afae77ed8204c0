"""The specs that providers publish, as validators, and where they say less or other than the APIs take.

The specs are not part of the package.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

SPECS = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'specs'


def read(file: str) -> dict[str, Any]:
    return json.loads((SPECS / file).read_text('utf-8'))


def rewritten(value: Any, rewrite: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """A schema with each object in it rewritten."""
    if isinstance(value, dict):
        return rewrite({name: rewritten(part, rewrite) for name, part in value.items()})
    return [rewritten(part, rewrite) for part in value] if isinstance(value, list) else value


# Where the specs and the APIs differ


def any_branch(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAI's branches overlap: an image in a message is valid by two of them, and `oneOf` means exactly one."""
    if isinstance(branches := schema.pop('oneOf', None), list):
        schema['anyOf'] = branches
        schema.pop('discriminator', None)
    return schema


def exact(schema: dict[str, Any]) -> dict[str, Any]:
    """Google refuses a field that it does not know, which its spec does not say.

    It does take each field in snake case too, and a 64-bit number as a number: both are rules of protobuf's JSON.
    """
    if schema.get('type') == 'object' and isinstance(fields := schema.get('properties'), dict):
        snake = {re.sub(r'(?<!^)([A-Z])', lambda upper: '_' + upper[1].lower(), name): name for name in fields}
        schema['properties'] = {**{alias: fields[name] for alias, name in snake.items()}, **fields}
        schema['additionalProperties'] = False
    if schema.get('format') == 'int64':
        schema['type'] = ['string', 'integer']
    return schema


@cache
def openai_control() -> dict[str, Any]:
    return read('openai_batches_files.openapi.json')


@cache
def openai_bodies() -> dict[str, Any]:
    return rewritten(read('openai_request_bodies.openapi.json'), any_branch)


@cache
def anthropic() -> dict[str, Any]:
    """Anthropic's spec, which is older than its API in two places."""
    spec = read('anthropic_message_batches.openapi.json')
    schemas = spec['components']['schemas']
    schemas['CreateMessageBatchParams']['properties']['requests']['maxItems'] = 100_000
    # Structured outputs, as documented.
    schemas['CreateMessageParams']['properties']['output_config'] = {
        'type': 'object',
        'properties': {
            'format': {
                'type': 'object',
                'properties': {'type': {'const': 'json_schema'}, 'schema': {'type': 'object'}},
                'required': ['type', 'schema'],
                'additionalProperties': False,
            }
        },
        'required': ['format'],
        'additionalProperties': False,
    }
    return spec


@cache
def gemini() -> dict[str, Any]:
    """Google's spec, in which the model is required beside the path, where no recorded or documented batch has it."""
    spec = read('gemini_v1beta_batches.openapi.json')
    schemas = spec['components']['schemas']
    spec['components']['schemas'] = {name: rewritten(schema, exact) for name, schema in schemas.items()}
    spec['components']['schemas']['GenerateContentBatch']['required'].remove('model')
    spec['components']['schemas']['GenerateContentRequest']['required'].remove('model')
    return spec


@cache
def together() -> dict[str, Any]:
    return read('together_batch_files.openapi.json')


@cache
def vertex() -> dict[str, Any]:
    """Google's description of Vertex AI, whose references are bare names."""

    def referring(schema: dict[str, Any]) -> dict[str, Any]:
        if schema.get('type') == 'any':
            return {}
        if isinstance(name := schema.get('$ref'), str):
            return {'$ref': f'#/components/schemas/{name}'}
        return exact({key: value for key, value in schema.items() if key not in ('id', 'format') or value == 'int64'})

    schemas = {
        name.removeprefix('GoogleCloudAiplatformV1'): rewritten(schema, referring)
        for name, schema in read('vertex_aiplatform_v1_batchPredictionJobs.discovery.json')['schemas'].items()
    }
    text = json.dumps(schemas).replace('/schemas/GoogleCloudAiplatformV1', '/schemas/')
    return {'components': {'schemas': json.loads(text)}}


@cache
def xai() -> dict[str, set[str]]:
    """The names of the fields of each message of xAI's protocol.

    It cannot be compiled, as it imports files that are not published with it.
    """
    messages: dict[str, set[str]] = {}
    open_messages: list[str] = []
    for line in (SPECS / 'xai_batch.proto').read_text('utf-8').splitlines():
        text = line.split('//')[0].strip()
        if found := re.match(r'(message|oneof|enum|service) (\w+) {', text):
            # The fields of a `oneof` are its message's.
            open_messages.append(found[2] if found[1] == 'message' else open_messages[-1] if open_messages else '')
            messages.setdefault(open_messages[-1], set())
        elif text == '}':
            open_messages.pop()
        elif open_messages and (found := re.fullmatch(r'(?:optional |repeated )?[\w.]+ (\w+) = \d+;', text)):
            messages[open_messages[-1]].add(found[1])
    return messages


# Validators


def validator(spec: Mapping[str, Any], name: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(
        # OpenAI's spec lets unknown fields pass, and a field that is not in it has no business in a request.
        {'$ref': f'#/components/schemas/{name}', 'components': spec['components'], 'unevaluatedProperties': False}
    )


@cache
def schema(name: str) -> jsonschema_rs.Validator:
    """The validator of one of the bodies that lanes send, by the name that its spec gives it."""
    if name == 'BatchRequestInput':
        line = read('openai_batch_line_schemas_2025-04.json')[name]
        # It names no required field, and has no word on the body.
        line['properties']['body'] = {'type': 'object'}
        line['required'], line['additionalProperties'] = list(line['properties']), False
        return jsonschema_rs.Draft202012Validator(line)
    spec = next(
        spec
        for spec in (openai_control(), openai_bodies(), anthropic(), gemini())
        if name in spec['components']['schemas']
    )
    return validator(spec, name)


@cache
def sdk_model(sdk: str, name: str) -> jsonschema_rs.Validator:
    """The validator of a reply, as the models of a provider's SDK have it."""
    models = read('sdk_batch_models.jsonschema.json')[sdk]['models']
    (schema,) = [schema for of, schema in models.items() if of.endswith(f':{name}')]
    return jsonschema_rs.Draft202012Validator(schema)


@cache
def google_file() -> jsonschema_rs.Validator:
    """The body that begins an upload to Google; OpenAI's spec has the same name for another thing."""
    return validator(gemini(), 'CreateFileRequest')


@dataclass(frozen=True)
class Endpoint:
    """A call that a spec describes."""

    method: str
    path: re.Pattern[str]
    query: dict[str, dict[str, Any]]

    def refuses(self, query: Mapping[str, str]) -> list[str]:
        """What is wrong with a query: names that are unknown, and values that are not allowed."""
        wrong = [name for name in query if name not in self.query]
        for name in query.keys() & self.query.keys():
            text = query[name]
            value = int(text) if self.query[name].get('type') == 'integer' and text.isdecimal() else text
            if not jsonschema_rs.is_valid(self.query[name], value):
                wrong.append(f'{name}={text}')
        return wrong


def endpoints(spec: Mapping[str, Any], prefix: str) -> list[Endpoint]:
    """The calls of a spec, on a server that serves it under `prefix`."""
    found: list[Endpoint] = []
    for template, item in spec['paths'].items():
        parts = re.split(r'\{\w+\}', template)
        path = re.compile('[^/:]+'.join(re.escape(part) for part in (prefix + parts[0], *parts[1:])))
        for method in item.keys() & {'get', 'post', 'delete'}:
            parameters = [
                spec['components']['parameters'][each['$ref'].rpartition('/')[2]] if '$ref' in each else each
                for each in [*item.get('parameters', []), *item[method].get('parameters', [])]
            ]
            # Google's spec writes `$alt` for what Google takes under both names.
            query = {each['name'].removeprefix('$'): each['schema'] for each in parameters if each['in'] == 'query'}
            found.append(Endpoint(method.upper(), path, query))
    return found
