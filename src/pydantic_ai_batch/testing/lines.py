"""Result lines of a batch, and the ways they can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from pydantic_ai_batch.testing.answers import FakeRequest
from pydantic_ai_batch.testing.faults import Fault

ResultFile = Literal['output', 'error']
"""Which result file a line is for; providers with one file have only `'output'`."""


@dataclass(frozen=True)
class ResultLine:
    """One line of a result file, before it is written."""

    index: int
    """Place of its row in the input, from 0."""
    request: FakeRequest
    value: dict[str, Any]
    file: ResultFile


def to_json(value: Any) -> bytes:
    """JSON as providers write it: non-ASCII characters as they are, lone surrogates escaped, which UTF-8 has not."""
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


IdKey: TypeAlias = 'str | Callable[[dict[str, Any], str | None], dict[str, Any]]'
"""The key of a line that holds its row's id, or what returns the line with that id instead."""


def written(lines: Sequence[ResultLine], faults: Sequence[Fault], *, id_key: IdKey) -> dict[ResultFile, list[bytes]]:
    """The lines of each file as bytes, with the faults of the batch in them.

    Args:
        lines: Well-formed lines, in the order of the files.
        faults: The `lines` faults that were injected for the batch.
        id_key: Where a line holds its row's id.
    """
    files: dict[ResultFile, list[bytes]] = {'output': [], 'error': []}
    for line in lines:
        hit = [fault for fault in faults if _hits(fault, line)]
        names = {fault.name for fault in hit}
        if 'drop' in names:
            continue
        if 'error_in_output' in names:
            line = replace(line, file='output')
        if 'string_body' in names:
            line = replace(line, value=_with_string_body(line.value))
        raw = to_json(line.value)
        files[line.file] += [raw, raw] if 'duplicate' in names else [raw]
        for fault in hit:
            if fault.name == 'damage':
                files[line.file][-1:] = _DAMAGE[fault['how']](line.value, raw, id_key)
            elif fault.name == 'unknown_id':
                files[line.file].append(to_json(_with_id(line.value, f'unknown-{line.index}', id_key)))
    return files


def _hits(fault: Fault, line: ResultLine) -> bool:
    rows: int | Callable[[FakeRequest], bool] | None = fault['rows']
    if rows is None:
        return True
    return line.index < rows if isinstance(rows, int) else rows(line.request)


def _with_id(value: dict[str, Any], id: str | None, id_key: IdKey) -> dict[str, Any]:
    return id_key(value, id) if callable(id_key) else {**value, id_key: id}


def _with_string_body(value: dict[str, Any]) -> dict[str, Any]:
    response = value.get('response')
    if not isinstance(response, dict):
        return value
    return {**value, 'response': {**response, 'body': json.dumps(response['body'])}}


_DAMAGE: dict[str, Callable[[dict[str, Any], bytes, IdKey], list[bytes]]] = {
    'truncate': lambda value, raw, id_key: [raw[: len(raw) // 2]],
    'not_json': lambda value, raw, id_key: [b'upstream connect error'],
    'null_id': lambda value, raw, id_key: [to_json(_with_id(value, None, id_key))],
    'list': lambda value, raw, id_key: [b'[]'],
    'blank': lambda value, raw, id_key: [b'', raw],
    'bad_utf8': lambda value, raw, id_key: [raw[: len(raw) // 2] + b'\xff\xfe' + raw[len(raw) // 2 :]],
}
