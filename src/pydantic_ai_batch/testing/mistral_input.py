"""Reads the requests of a Mistral batch, inline or from files, and finds what a job of them would fail for.

What makes a job fail is not documented. The fake guesses that a line which is no JSON object with an object `body`, an
ID that is used twice, and a model that is another than the job's fail it as a whole.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn, cast

from pydantic_ai_batch.testing.batches import FakeRow
from pydantic_ai_batch.testing.lines import to_json
from pydantic_ai_batch.testing.openai_input import Input


def read_files(contents: Iterable[bytes], *, model: str | None, max_requests: int) -> Input:
    """Read the lines of the input files, one file after another."""
    return _read(_lines(contents), model=model, max_requests=max_requests)


def read_inline(requests: Sequence[Any], *, model: str | None, max_requests: int) -> Input:
    """Read the requests in a create call."""
    return _read(((item, len(to_json(item))) for item in requests), model=model, max_requests=max_requests)


def error(message: str, count: int = 1) -> dict[str, Any]:
    """One of the errors of a job that failed."""
    return {'message': message, 'count': count}


def _lines(contents: Iterable[bytes]) -> Iterator[tuple[Any, int]]:
    for content in contents:
        for line in content.split(b'\n'):
            if line.strip():
                try:
                    value = json.loads(line.decode(), parse_constant=_not_json)
                except ValueError:
                    value = None
                yield value, len(line)


def _read(items: Iterable[tuple[Any, int]], *, model: str | None, max_requests: int) -> Input:
    rows: list[FakeRow] = []
    problems: Counter[str] = Counter()
    seen: set[str] = set()
    for value, size in items:
        row = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
        custom_id, body = row.get('custom_id'), row.get('body')
        if not isinstance(body, dict) or not isinstance(custom_id, str | None):
            problems['A request is no JSON object with an object `body` and a string `custom_id`.'] += 1
            continue
        request = cast('dict[str, Any]', body)
        named = request.get('model', model)
        model = model or named
        if custom_id is not None and custom_id in seen:
            problems['A `custom_id` is used by two requests.'] += 1
        elif not isinstance(named, str) or named != model:
            problems['All requests must be for the one model of the job.'] += 1
        elif request.get('stream'):
            problems['A batch cannot stream.'] += 1
        else:
            rows.append(FakeRow(len(rows), custom_id or '', {'model': named, **request}, size))
        if custom_id is not None:
            seen.add(custom_id)
    if not rows and not problems:
        problems['There are no requests.'] += 1
    if len(rows) > max_requests:
        problems[f'A job has at most {max_requests} requests.'] += 1
    errors = [error(message, count) for message, count in problems.items()]
    return Input([] if errors else rows, errors, model)


def _not_json(constant: str) -> NoReturn:
    raise ValueError(constant)
