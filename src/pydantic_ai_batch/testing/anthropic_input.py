"""Reads the body of a call that creates an Anthropic batch, and finds what the call is refused for.

What is wrong with the parameters of a single request is not found here: it makes that row an error, later.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from pydantic_ai_batch.testing.batches import FakeRow

CUSTOM_ID = re.compile(r'[a-zA-Z0-9_-]{1,64}')
"""What an id of a request looks like."""


class InputProblem(Exception):
    """The call is refused with this status, for this reason."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


def read_json(content: bytes) -> dict[str, Any]:
    """The JSON object that a body is.

    Raises:
        InputProblem: It is something else.
    """
    try:
        value = json.loads(content, parse_constant=_not_json)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputProblem('The body must be a JSON object.')
    return cast('dict[str, Any]', value)


def read_requests(body: dict[str, Any], *, max_requests: int) -> list[FakeRow]:
    """The requests that a batch is created of.

    Raises:
        InputProblem: It cannot be created of them.
    """
    _only(body, {'requests'}, 'The body')
    requests = body.get('requests')
    if not isinstance(requests, list) or not requests:
        raise InputProblem('requests: there must be at least one.')
    items = cast('list[Any]', requests)
    if len(items) > max_requests:
        raise InputProblem(f'requests: a batch has at most {max_requests}.', status=413)
    rows: list[FakeRow] = []
    seen: set[str] = set()
    for index, item in enumerate(items):
        row = _row(index, item)
        if row.custom_id in seen:
            raise InputProblem(f'requests.{index}.custom_id: {row.custom_id!r} is used before.')
        seen.add(row.custom_id)
        rows.append(row)
    return rows


def _row(index: int, item: Any) -> FakeRow:
    place = f'requests.{index}'
    if not isinstance(item, dict):
        raise InputProblem(f'{place}: a request must be an object.')
    request = cast('dict[str, Any]', item)
    _only(request, {'custom_id', 'params'}, place)
    custom_id, params = request.get('custom_id'), request.get('params')
    if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
        raise InputProblem(f'{place}.custom_id: it must match ^{CUSTOM_ID.pattern}$.')
    if not isinstance(params, dict):
        raise InputProblem(f'{place}.params: they must be an object.')
    body = cast('dict[str, Any]', params)
    return FakeRow(index, custom_id, body, len(json.dumps(body)))


def _only(value: dict[str, Any], known: set[str], place: str) -> None:
    if more := value.keys() - known:
        raise InputProblem(f'{place}: {", ".join(sorted(more))} is not allowed here.')


def _not_json(constant: str) -> None:
    raise ValueError(constant)
