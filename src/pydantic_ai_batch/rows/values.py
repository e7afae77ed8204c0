"""The values of rows as text and as JSON, and what a value may not be."""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any, cast

from pydantic_ai_batch.codec import compact_json

_HALF = re.compile('[\ud800-\udfff]')
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def text_of(value: Any) -> str:
    """A value as text: text as it is, `None` as nothing, dates as ISO 8601, and everything else as compact JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ''
    if isinstance(value, Decimal):
        return format(value, 'f')
    plain = plain_value(value)
    return plain if isinstance(plain, str) else compact_json(plain)


def json_of(value: Any) -> str:
    """A value as compact JSON that every reader takes: what is no JSON is written as its text, and NaN as `null`."""
    return compact_json(plain_value(value))


def plain_value(value: Any) -> Any:
    """A value as JSON has it."""
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    if isinstance(value, Mapping):
        pairs = cast('Mapping[Any, Any]', value).items()
        return {key if isinstance(key, str) else text_of(key): plain_value(item) for key, item in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(item) for item in cast('Iterable[Any]', value)]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value if isinstance(value, str | int) else str(value)


def without_halves(text: str) -> str:
    """Text with U+FFFD for each half of a surrogate pair, which UTF-8 cannot hold."""
    return _HALF.sub('\ufffd', text)


class LoneSurrogate(ValueError):
    """A row has half of a surrogate pair in it, which no UTF-8 can hold. It can be read, and not sent as it is."""

    fields: dict[str, Any]
    """The row."""

    def __init__(self, message: str, fields: dict[str, Any]) -> None:
        super().__init__(message)
        self.fields = fields


def half_in(fields: Mapping[str, Any]) -> str | None:
    """What is wrong with a row that has half of a surrogate pair in it, or `None` if it has none."""
    for name, value in fields.items():
        if _HALF.search(json.dumps([name, value], ensure_ascii=False, default=repr)):
            return f'a lone surrogate, which is half of a character, in `{without_halves(name)}`'
    return None


def row_json(fields: Mapping[Any, Any]) -> str:
    """A row of a program as JSON, by which it is known again.

    Raises:
        ValueError: The row has a value that nothing could be sent with. The message says which.
    """
    for key in fields:
        if not isinstance(key, str):
            raise ValueError(f'the key {key!r} is no text')
    try:
        return json.dumps(dict(fields), ensure_ascii=False, allow_nan=False, separators=(',', ':'), default=repr)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(_trouble(fields, error)) from error


def _trouble(fields: Mapping[str, Any], error: Exception) -> str:
    if isinstance(error, RecursionError) or 'Circular' in str(error):
        return 'a value is nested too deeply'
    if isinstance(error, TypeError):
        return f'a value is no JSON: {error}'
    for name, value in fields.items():
        try:
            json.dumps(value, allow_nan=False, default=repr)
        except ValueError:
            return f'a NaN or an infinite number in `{name}`, which JSON has not: use None'
    raise AssertionError('unreachable') from error
