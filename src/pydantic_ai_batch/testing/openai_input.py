"""Reads an OpenAI batch input file, and finds what a batch of it would fail for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from pydantic_ai_batch.testing.batches import FakeRow
from pydantic_ai_batch.testing.openai_bodies import EMBEDDINGS, embedding_inputs

MAX_ERRORS = 100
"""How many errors of one file are reported."""


@dataclass(frozen=True)
class Input:
    """An input file as it was read."""

    rows: list[FakeRow]
    """Its rows, if there are no errors."""
    errors: list[dict[str, Any]]
    """What is wrong with it, in the shape of the batch object's `errors.data`."""
    model: str | None
    """The model of its rows."""


def read_input(content: bytes, *, endpoint: str, max_requests: int, addressed: bool = True) -> Input:
    """Read the lines of a file, each once.

    The codes are those of the documentation and of reports; for some lines no source tells the real code.

    Args:
        content: The file.
        endpoint: The endpoint that the batch is for.
        max_requests: The most lines that it may have.
        addressed: Whether each line names the method and the URL of its request.
    """
    rows: list[FakeRow] = []
    errors: list[dict[str, Any]] = []
    seen: set[str] = set()
    model: str | None = None
    inputs = 0
    for number, line in enumerate(content.split(b'\n'), start=1):
        if not line.strip():
            continue
        try:
            custom_id, body = _read_line(line, endpoint if addressed else None)
            if custom_id in seen:
                _refuse('duplicate_custom_id', f'The custom_id {custom_id!r} is used on an earlier line.', 'custom_id')
            seen.add(custom_id)
            model = model or body['model']
            if body['model'] != model:
                _refuse('mismatched_model', f'All lines must name one model, {model!r} here.', 'body.model')
        except _LineError as error:
            errors.append({**error.details, 'line': number})
            continue
        rows.append(FakeRow(len(rows), custom_id, body, len(line)))
        if endpoint == EMBEDDINGS:
            inputs += len(embedding_inputs(body))
    if not rows and not errors:
        errors.append(_details('empty_file', 'The input file has no requests.') | {'line': None})
    if max(len(rows), inputs) > max_requests:
        errors.append(_details('too_many_tasks', f'A batch has at most {max_requests} requests.') | {'line': None})
    return Input([] if errors else rows, errors[:MAX_ERRORS], model)


class _LineError(Exception):
    def __init__(self, details: dict[str, Any]) -> None:
        super().__init__(details)
        self.details = details


def _details(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    return {'code': code, 'message': message, 'param': param}


def _refuse(code: str, message: str, param: str | None = None) -> NoReturn:
    raise _LineError(_details(code, message, param))


def _read_line(line: bytes, endpoint: str | None) -> tuple[str, dict[str, Any]]:
    try:
        value = json.loads(line.decode(), parse_constant=_not_json)
    except ValueError:
        _refuse('invalid_json_line', 'The line is not valid JSON.')
    if not isinstance(value, dict):
        _refuse('invalid_json_line', 'The line is not a JSON object.')
    row = cast('dict[str, Any]', value)
    custom_id, body = row.get('custom_id'), row.get('body')
    if not isinstance(custom_id, str) or not custom_id:
        _refuse('missing_required_parameter', 'The line has no custom_id, or one that is no string.', 'custom_id')
    if endpoint and row.get('method') != 'POST':
        _refuse('invalid_method', 'The method must be POST.', 'method')
    if endpoint and row.get('url') != endpoint:
        _refuse('invalid_url', f'The url must be {endpoint!r}, the endpoint of the batch.', 'url')
    if not isinstance(body, dict):
        _refuse('missing_required_parameter', 'The line has no body.', 'body')
    request = cast('dict[str, Any]', body)
    if not isinstance(request.get('model'), str):
        _refuse('missing_required_parameter', 'The body names no model.', 'body.model')
    if request.get('stream'):
        _refuse('invalid_request', 'A batch cannot stream.', 'body.stream')
    return custom_id, request


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)
