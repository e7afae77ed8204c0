"""Puts back into a JSON schema what Anthropic's SDK takes out of it.

Anthropic's structured output knows few keywords. The SDK writes the others into the description, as `{minimum: 1,
maximum: 3}` after what it says already, for the model to read. The fake reads them too.
"""

from __future__ import annotations

import ast
import re
from typing import Any, cast

Json = dict[str, Any]

_NOTE = re.compile(r'(?:\A|\n\n)\{(.*)\}\Z', re.DOTALL)
"""What the SDK adds to a description."""

_PAIR = re.compile(r', (?=[$\w-]+: )')

_LITERALS = frozenset(
    {
        'minimum',
        'maximum',
        'exclusiveMinimum',
        'exclusiveMaximum',
        'multipleOf',
        'minLength',
        'maxLength',
        'minItems',
        'maxItems',
        'uniqueItems',
        'prefixItems',
    }
)
"""Keywords whose values are written as Python writes them."""

_TEXTS = frozenset({'format', 'pattern'})
"""Keywords whose values are written as they are."""


def with_described_limits(schema: Json) -> Json:
    """The schema with the limits that its descriptions tell of."""
    described = schema.get('description')
    note = _NOTE.search(described) if isinstance(described, str) else None
    limits = _limits(note[1]) if note else {}
    whole = {**limits, **schema}
    for key in 'properties', '$defs':
        parts = whole.get(key)
        if isinstance(parts, dict):
            whole[key] = {name: _part(part) for name, part in cast('Json', parts).items()}
    for key in 'anyOf', 'oneOf', 'allOf', 'prefixItems':
        parts = whole.get(key)
        if isinstance(parts, list):
            whole[key] = [_part(part) for part in cast('list[Any]', parts)]
    if 'items' in whole:
        whole['items'] = _part(whole['items'])
    return whole


def _part(part: Any) -> Any:
    return with_described_limits(cast('Json', part)) if isinstance(part, dict) else part


def _limits(note: str) -> Json:
    limits: Json = {}
    for pair in _PAIR.split(note):
        key, _, text = pair.partition(': ')
        if key in _TEXTS:
            limits[key] = text
        elif key in _LITERALS:
            try:
                limits[key] = ast.literal_eval(text)
            except (ValueError, SyntaxError):
                # Not the SDK's words after all, but those of whoever described the value.
                continue
    return limits
