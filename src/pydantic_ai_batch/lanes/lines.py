"""Reads what providers send, whatever is in it: result files line by line as their bytes arrive, and odd JSON.

A line ends at a newline byte and nowhere else: JSON strings may hold raw U+2028, U+0085 and other characters that
Unicode, and Python's `splitlines`, take for line ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Any, cast

from pydantic_ai.models.batch import BatchResult
from pydantic_core import from_json, to_json

_SHOWN = 300
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Stray:
    """A line of a result file that is no request's result."""

    reason: str
    """What is wrong with it."""

    line: str
    """The line: whole if it can be told whose it was, else cut to a few hundred characters."""

    custom_id: str | None = None
    """Whose result the line was, where it is too damaged to be read but says so."""

    keyless: bool = False
    """Whether it is a result, and only says not whose: an answer that was paid for and that nobody can be given."""


_NANOSECONDS = re.compile(r'(\.\d{6})\d+')
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


async def chunks_of(file: IO[bytes]) -> AsyncIterator[bytes]:
    """The content of a file that is open, from where it stands, a megabyte at a time."""
    while chunk := file.read(_CHUNK):
        yield chunk


def parse_object(line: bytes) -> Mapping[str, Any] | None:
    """The JSON object on a line, or `None` if it is none, however it is damaged."""
    try:
        value = parse_json(line)
    except (ValueError, RecursionError):
        return None
    return cast('Mapping[str, Any]', value) if isinstance(value, dict) else None


def as_object(value: Any) -> dict[str, Any]:
    """A value that is to be an object; empty if it is none."""
    return cast('dict[str, Any]', value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """A value that is to be a list; empty if it is none."""
    return cast('list[Any]', value) if isinstance(value, list) else []


def object_in(value: Any, name: str) -> dict[str, Any]:
    """The object under a name in an object; empty if either is none."""
    return as_object(cast('Mapping[str, Any]', value).get(name)) if isinstance(value, Mapping) else {}


def list_of_objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty if it is none."""
    if not isinstance(value, list):
        return []
    return [cast('dict[str, Any]', item) for item in cast('list[Any]', value) if isinstance(item, dict)]


def parse_number(value: Any) -> int | None:
    """A whole number, which some write as text; `None` if it is none."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def parse_count(value: Any) -> int | None:
    """A number of requests, which some write as text; `None` if it is none, as one below zero is."""
    number = parse_number(value)
    return number if number is not None and number >= 0 else None


def counts_in(said: Mapping[str, Any], **names: str) -> dict[str, int]:
    """The counts of a batch that a provider tells, by our name for each; one that it leaves out is no zero."""
    counts = {ours: parse_count(said.get(theirs)) for ours, theirs in names.items()}
    return {ours: count for ours, count in counts.items() if count is not None}


def unwrapped(value: Any) -> Any:
    """What a text of JSON holds, as some send a body; whatever is no such text is left as it is."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            return parse_json(value)
    return value


def parse_time(value: Any) -> datetime | None:
    """A time given in seconds since the epoch, or as ISO 8601 text with up to nanoseconds."""
    with suppress(ValueError, OverflowError, OSError):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, tz=UTC)
        if isinstance(value, str):
            time = datetime.fromisoformat(_NANOSECONDS.sub(r'\1', value))
            return time if time.tzinfo else time.replace(tzinfo=UTC)
    return None


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


def read_line(line: bytes, read: Callable[[bytes], BatchResult | Stray], key: str) -> BatchResult | Stray:
    """What a line says of its request, or that it is damaged, where it is so odd that reading it fails."""
    try:
        return read(line)
    except (ValueError, RecursionError):
        return damaged(line, key)


def damaged(line: bytes, key: str) -> Stray:
    """A line that cannot be parsed, with the one ID that `key` still has in it: an answer that was paid for."""
    pattern = rb'"' + re.escape(key).encode() + rb'"\s*:\s*"([A-Za-z0-9_-]{1,64})"'
    ids = re.findall(pattern, line)
    if len(ids) != 1:
        return stray(line, 'it is no JSON object')
    return Stray('it is no JSON object', line.decode('utf-8', 'replace'), ids[0].decode())
