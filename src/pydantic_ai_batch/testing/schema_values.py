"""Values that satisfy a JSON schema, the same ones for the same seed."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic_ai_batch.testing.patterns import matching

_DEEP = 5
"""From this depth on, optional things are left out, so that schemas which contain themselves come to an end."""

_HOPELESS = 60
"""A schema that goes on to this depth requires itself."""

_NUMBERS = 100
"""How far a number is from the limit that it has, at most."""


def json_value(schema: Mapping[str, Any], seed: str) -> Any:
    """A value that satisfies `schema`, drawn from `seed`.

    References, `enum`, `const`, `anyOf`, `oneOf`, `allOf`, arrays, objects and the limits of numbers, lengths and
    counts are kept. `format` and `pattern` are kept where they are of the usual kind; `not`, `if` and the like are not
    looked at.

    Raises:
        ValueError: The schema requires itself without end, or refers to something that is not there.
    """
    return _Maker(schema, random.Random(seed)).value(schema)


class _Maker:
    def __init__(self, root: Mapping[str, Any], draw: random.Random) -> None:
        self._root = root
        self._draw = draw

    def value(self, schema: Any, name: str = 'text', depth: int = 0) -> Any:
        """A value for `schema`, which is that of the property `name`."""
        if depth > _HOPELESS:
            raise ValueError('The JSON schema requires itself without end.')
        schema = self._resolved(schema)
        if 'const' in schema:
            return schema['const']
        if 'enum' in schema:
            return self._draw.choice(schema['enum'])
        for union in ('anyOf', 'oneOf'):
            if options := schema.get(union):
                rest = {key: value for key, value in schema.items() if key not in (union, 'discriminator')}
                return self.value(_merged(rest, self._option(options, depth)), name, depth + 1)
        kind = _type(schema)
        if kind == 'object':
            return self._object(schema, name, depth)
        if kind == 'array':
            return self._array(schema, name, depth)
        if kind == 'integer':
            return self._integer(schema)
        if kind == 'number':
            return self._number(schema)
        if kind == 'boolean':
            return self._draw.random() < 0.5
        return None if kind == 'null' else self._string(schema, name)

    def _resolved(self, schema: Any) -> dict[str, Any]:
        """The schema with its `$ref` and `allOf` put in."""
        if not isinstance(schema, dict):
            return {}
        resolved = cast('dict[str, Any]', schema)
        while ref := resolved.get('$ref'):
            rest = {key: value for key, value in resolved.items() if key != '$ref'}
            resolved = _merged(self._referred(ref), rest)
        for part in resolved.get('allOf', ()):
            resolved = _merged({key: value for key, value in resolved.items() if key != 'allOf'}, self._resolved(part))
        return resolved

    def _referred(self, ref: str) -> dict[str, Any]:
        target: Any = self._root
        for key in ref.removeprefix('#').strip('/').split('/'):
            key = key.replace('~1', '/').replace('~0', '~')
            if key and (not isinstance(target, dict) or key not in target):
                raise ValueError(f'The JSON schema refers to {ref!r}, which is not in it.')
            target = cast('Any', target[key] if key else target)
        return cast('dict[str, Any]', target)

    def _option(self, options: Sequence[Any], depth: int) -> dict[str, Any]:
        """One option of a union: a real value rather than null, and deep down rather one that ends."""
        resolved = [self._resolved(option) for option in options]
        null = [option for option in resolved if _type(option) == 'null']
        flat = [option for option in resolved if _type(option) not in ('object', 'array')]
        if depth >= _DEEP:
            return (null or flat or resolved)[0]
        real = [option for option in resolved if option not in null] or null
        # Of plain types the first: a string beside a number mostly stands for one, as in the schema of a `Decimal`.
        return real[0] if all(option in flat for option in real) else self._draw.choice(real)

    def _object(self, schema: dict[str, Any], name: str, depth: int) -> dict[str, Any]:
        required = set(schema.get('required', ()))
        made = {
            key: self.value(part, key, depth + 1)
            for key, part in schema.get('properties', {}).items()
            if key in required or depth < _DEEP
        }
        for key in required - made.keys():
            made[key] = self.value(schema.get('additionalProperties'), key, depth + 1)
        while len(made) < schema.get('minProperties', 0):
            made[f'key_{len(made) + 1}'] = self.value(schema.get('additionalProperties'), name, depth + 1)
        return made

    def _array(self, schema: dict[str, Any], name: str, depth: int) -> list[Any]:
        made = [self.value(part, name, depth + 1) for part in schema.get('prefixItems', ())]
        least = schema.get('minItems', len(made) or (1 if depth < _DEEP else 0))
        for _ in range(1000):
            if len(made) >= min(least, schema.get('maxItems', least)):
                break
            item = self.value(schema.get('items'), name, depth + 1)
            if not schema.get('uniqueItems') or item not in made:
                made.append(item)
        return made

    def _string(self, schema: dict[str, Any], name: str) -> str:
        made = None
        if pattern := schema.get('pattern'):
            made = matching(pattern, self._draw)
        elif make := _FORMATS.get(schema.get('format', '')):
            made = make(self._draw)
        if made is None:
            made = f'{name} {self._draw.randrange(10_000)}'
            made = made.ljust(schema.get('minLength', 0), '.')[: schema.get('maxLength')]
        return made

    def _integer(self, schema: dict[str, Any]) -> int:
        step = schema.get('multipleOf', 1)
        low, high = _limits(schema, step)
        return round(self._draw.randint(math.ceil(low / step), math.floor(high / step)) * step)

    def _number(self, schema: dict[str, Any]) -> float:
        step = schema.get('multipleOf', 0.25)
        low, high = _limits(schema, step)
        first, last = math.ceil(low / step), math.floor(high / step)
        return self._draw.randint(first, last) * step if first <= last else (low + high) / 2


def _type(schema: Mapping[str, Any]) -> str | None:
    """The type of a schema's values: the first that is not null, or what its keywords tell."""
    kind = schema.get('type')
    if isinstance(kind, list):
        kinds = cast('list[str]', kind)
        kind = next((each for each in kinds if each != 'null'), 'null')
    if kind is None:
        kind = 'object' if 'properties' in schema else 'array' if 'items' in schema else None
    return kind


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Both schemas as one that asks for what either asks for."""
    merged = {**first, **second}
    if 'properties' in first and 'properties' in second:
        merged['properties'] = {**first['properties'], **second['properties']}
    if 'required' in first and 'required' in second:
        merged['required'] = [*first['required'], *second['required']]
    return merged


def _limits(schema: Mapping[str, Any], step: float) -> tuple[float, float]:
    """The least and greatest number that are allowed, those excluded being a step away from the limit."""
    lows = [schema[key] + more for key, more in (('minimum', 0), ('exclusiveMinimum', step)) if key in schema]
    highs = [schema[key] - less for key, less in (('maximum', 0), ('exclusiveMaximum', step)) if key in schema]
    if lows:
        return max(lows), min(highs, default=max(lows) + _NUMBERS * step)
    high = min(highs, default=_NUMBERS * step)
    return min(0, high - _NUMBERS * step) if highs else 0, high


def _date(draw: random.Random) -> str:
    return f'20{draw.randint(20, 29)}-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}'


def _time(draw: random.Random) -> str:
    return f'{draw.randint(0, 23):02}:{draw.randint(0, 59):02}:{draw.randint(0, 59):02}Z'


_FORMATS: dict[str, Callable[[random.Random], str]] = {
    'date': _date,
    'time': _time,
    'date-time': lambda draw: f'{_date(draw)}T{_time(draw)}',
    'duration': lambda draw: f'PT{draw.randint(1, 59)}M',
    'email': lambda draw: f'user{draw.randrange(10_000)}@example.com',
    'hostname': lambda draw: f'host{draw.randrange(10_000)}.example.com',
    'uri': lambda draw: f'https://example.com/{draw.randrange(10_000)}',
    'ipv4': lambda draw: f'192.0.2.{draw.randint(1, 254)}',
    'ipv6': lambda draw: f'2001:db8::{draw.randint(1, 9999):x}',
    'uuid': lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}
