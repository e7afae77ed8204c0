"""Reads one JSON object, and refuses what other readers of it would take for something else."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, cast

from .values import LoneSurrogate, half_in

MAX_DEPTH = 100
"""How deep an object may be nested; the parsers and serialisers on the way stop at a few hundred."""

_ESCAPED_HALF = re.compile(r'\\u[dD][89a-fA-F]')


def parse_object(text: str) -> dict[str, Any]:
    """The object that `text` is.

    Raises:
        ValueError: It is none, or holds NaN, a number too large, a key twice or nests too deeply. The message says
            which, in words that follow the name and the line of an input.
        LoneSurrogate: It is one, but for half of a character in it. The error has the object.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f'not JSON: {error.msg}, at character {error.pos + 1}') from None
    except RecursionError:
        raise ValueError(f'nested deeper than {MAX_DEPTH} levels') from None
    if not isinstance(value, dict):
        raise ValueError(f'not a JSON object but {_KINDS[type(value)]}')
    fields = cast('dict[str, Any]', value)
    if text.count('{') + text.count('[') > MAX_DEPTH and _deeper(fields):
        raise ValueError(f'nested deeper than {MAX_DEPTH} levels')
    if _ESCAPED_HALF.search(text) and (trouble := half_in(fields)) is not None:
        raise LoneSurrogate(trouble, fields)
    return fields


_KINDS: dict[type, str] = {
    list: 'an array',
    str: 'a text',
    int: 'a number',
    float: 'a number',
    bool: 'true or false',
    type(None): 'null',
}


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f'the key `{name}` twice in one object')
            seen.add(name)
    return fields


def _no_number(text: str) -> NoReturn:
    raise ValueError(f'{text}, which is no number in JSON: use null')


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f'the number {text[:20]}, which is too large')
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f'a number of {len(text):,} digits, which is too large') from None


def _deeper(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(cast('dict[str, Any]', item).values())
            elif isinstance(item, list):
                inner.extend(cast('list[Any]', item))
        level = inner
    return any(isinstance(item, dict | list) for item in level)


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_no_number, parse_float=_finite, parse_int=_whole)
