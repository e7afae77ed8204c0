"""Reads result files line by line as their bytes arrive, whatever is in them.

A line ends at a newline byte and nowhere else: JSON strings may hold raw U+2028, U+0085 and other characters that
Unicode, and Python's `splitlines`, take for line ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

from pydantic_core import from_json, to_json

from .base import Stray

_SHOWN = 300
_BOM = b'\xef\xbb\xbf'


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a file that arrives in `chunks`, without their newlines; blank ones are left out."""
    pending: list[bytes] = []
    first = True
    async for chunk in chunks:
        *complete, rest = chunk.split(b'\n')
        for part in complete:
            pending.append(part)
            line = b''.join(pending)
            pending.clear()
            if first:
                line, first = line.removeprefix(_BOM), False
            if line.strip():
                yield line
        if rest:
            pending.append(rest)
    if pending:
        line = b''.join(pending)
        if first:
            line = line.removeprefix(_BOM)
        if line.strip():
            yield line


def parse_object(line: bytes) -> Mapping[str, Any] | None:
    """The JSON object on a line, or `None` if it is none, however it is damaged."""
    try:
        value = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return cast('Mapping[str, Any]', value) if isinstance(value, dict) else None


def parse_json(text: bytes | str) -> Any:
    """Parse JSON, including the lone surrogates that the faster parser refuses.

    Raises:
        ValueError: It is not JSON.
    """
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def dump_json(value: Any) -> str:
    """Write JSON, including the lone surrogates that the faster serialiser refuses."""
    try:
        return to_json(value).decode()
    except ValueError:
        return json.dumps(value)


def stray(line: bytes, reason: str) -> Stray:
    """A line that is no request's result."""
    return Stray(reason, line[:_SHOWN].decode('utf-8', 'replace'))


def damaged(line: bytes, key: str) -> Stray:
    """A line that cannot be parsed, with the one ID that `key` still has in it: an answer that was paid for."""
    pattern = rb'"' + re.escape(key).encode() + rb'"\s*:\s*"([A-Za-z0-9_-]{1,64})"'
    ids = re.findall(pattern, line)
    if len(ids) != 1:
        return stray(line, 'it is no JSON object')
    return Stray('it is no JSON object', line.decode('utf-8', 'replace'), ids[0].decode())
