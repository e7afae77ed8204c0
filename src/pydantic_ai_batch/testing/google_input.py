"""Reads the requests of a Gemini batch, inline or from a file.

What makes the API refuse a batch, or fail it, is documented only in part. Where nothing is known, the fake guesses:

- A line that is no JSON object, or has no `request` object, fails the whole batch once it is looked at.
- A file without a request fails the batch too.
- A key need not be there, and need not be the only one of its kind: the results repeat whatever the line has.
- Empty lines are passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeRow
from pydantic_ai_batch.testing.google_json import Json, object_in, rpc_status
from pydantic_ai_batch.testing.google_json import field as field_of
from pydantic_ai_batch.testing.lines import to_json


@dataclass(frozen=True)
class GoogleRow(FakeRow):
    """One request of a Gemini batch."""

    echo: Json = field(default_factory=dict[str, Any])
    """What its result repeats: the `key` of a line, the `metadata` of an inline request, or nothing."""


@dataclass(frozen=True)
class Input:
    """The requests of a batch as they were read."""

    rows: list[GoogleRow]
    """Its rows, if there are no errors."""
    errors: list[Json]
    """What is wrong with them, each a `google.rpc.Status`."""


def read_inline(requests: Any) -> Input:
    """Read the list of inline requests."""
    rows: list[GoogleRow] = []
    errors: list[Json] = []
    for index, item in enumerate(cast('list[Any]', requests) if isinstance(requests, list) else [requests]):
        value: Json = cast('Json', item) if isinstance(item, dict) else {}
        body, metadata = value.get('request'), value.get('metadata')
        if not isinstance(body, dict) or not isinstance(metadata, dict | None):
            errors.append(_error(f'Request {index} needs an object `request`, and may have an object `metadata`.'))
            continue
        labels = object_in(value, 'metadata')
        echo = {'metadata': labels} if metadata is not None else {}
        rows.append(GoogleRow(index, _key(labels), cast('Json', body), len(to_json(body)), echo))
    return Input([] if errors else rows, errors)


def read_file(content: bytes) -> Input:
    """Read the lines of an input file, each once."""
    rows: list[GoogleRow] = []
    errors: list[Json] = []
    for number, line in enumerate(content.split(b'\n'), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode(), parse_constant=_not_json)
        except ValueError:
            value = None
        body = field_of(cast('Json', value), 'request') if isinstance(value, dict) else None
        if not isinstance(body, dict):
            errors.append(_error(f'Line {number} of the file is no JSON object with an object `request`.'))
            continue
        given = cast('Json', value)
        echo = {'key': given['key']} if 'key' in given else {}
        rows.append(GoogleRow(len(rows), _key(echo), cast('Json', body), len(line), echo))
    if not rows and not errors:
        errors.append(_error('The file has no requests.'))
    return Input([] if errors else rows, errors)


def _key(labels: Json) -> str:
    """The id among what a request is labelled with: its `key`, or the one label that it has, or none."""
    key = labels.get('key') if 'key' in labels else next(iter(labels.values()), None) if len(labels) == 1 else None
    return key if isinstance(key, str) else ''


def _error(message: str) -> Json:
    return rpc_status(FakeError(400, None, message))


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)
