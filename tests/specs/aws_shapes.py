"""The shapes that AWS describes a service by, as JSON schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jsonschema_rs

from .schemas import read

Shapes = Mapping[str, dict[str, Any]]


@cache
def spec() -> dict[str, Any]:
    return read('aws_bedrock_model_invocation_job.botocore.json')


def body_schema(shape: str, shapes: Shapes) -> dict[str, Any]:
    """The schema of a shape, without what goes into the path or the query. An unknown field is refused."""
    described = shapes[shape]
    kind = described['type']
    if kind == 'structure':
        members = {name: member for name, member in described['members'].items() if 'location' not in member}
        schema: dict[str, Any] = {
            'type': 'object',
            'properties': {name: body_schema(member['shape'], shapes) for name, member in members.items()},
            'required': [name for name in described.get('required', []) if name in members],
            'additionalProperties': False,
        }
        return {**schema, 'minProperties': 1, 'maxProperties': 1} if described.get('union') else schema
    if kind == 'list':
        return {'type': 'array', 'items': body_schema(described['member']['shape'], shapes)}
    if kind == 'timestamp':
        return {'type': 'string', 'pattern': r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$'}
    if kind == 'string':
        schema = {'type': 'string', 'minLength': described.get('min', 0)}
        if 'enum' in described:
            schema['enum'] = described['enum']
        if 'pattern' in described:
            schema['pattern'] = f'^(?:{described["pattern"]})$'
        return schema
    bounds = {'minimum': described['min']} if 'min' in described else {}
    bounds |= {'maximum': described['max']} if 'max' in described else {}
    return {'type': {'integer': 'integer', 'long': 'integer', 'boolean': 'boolean'}[kind], **bounds}


def validator(shape: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.Draft202012Validator(body_schema(shape, spec()['shapes']))


@dataclass(frozen=True)
class Operation:
    """A call that the spec describes."""

    method: str
    path: re.Pattern[str]
    query: dict[str, dict[str, Any]]
    input: str

    def refuses(self, query: Mapping[str, str]) -> list[str]:
        """What is wrong with a query: names that are unknown, and values that are not allowed."""
        wrong = [name for name in query if name not in self.query]
        for name in query.keys() & self.query.keys():
            value = int(query[name]) if self.query[name]['type'] == 'integer' else query[name]
            if not jsonschema_rs.is_valid(self.query[name], value):
                wrong.append(f'{name}={query[name]}')
        return wrong


def operation(name: str, prefix: str) -> Operation:
    """A call of the spec, on a server that serves it under `prefix`."""
    shapes, described = spec()['shapes'], spec()['operations'][name]
    members = shapes[described['input']['shape']]['members']
    template = re.escape(prefix + described['http']['requestUri'])
    for member, of in members.items():
        if of.get('location') == 'uri':
            template = template.replace(re.escape(f'{{{member}}}'), f'(?:{shapes[of["shape"]]["pattern"]})')
    query = {
        of['locationName']: body_schema(of['shape'], shapes)
        for of in members.values()
        if of.get('location') == 'querystring'
    }
    return Operation(described['http']['method'], re.compile(template), query, described['input']['shape'])
