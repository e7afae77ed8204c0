"""The shortest way to an OpenAI batch and its results, for tests of the fake."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from openai.types import Batch


class Submit(Protocol):
    """Uploads one Responses request for each text (or `content` as it is) and creates a batch of them."""

    async def __call__(self, *texts: str, content: bytes | None = None, **settings: Any) -> Batch: ...


class Results(Protocol):
    """Reads the lines of a batch's output and error file, as they are now."""

    async def __call__(self, batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]: ...


def input_line(number: int, text: str, **changes: Any) -> dict[str, Any]:
    body = {'model': 'gpt-5-nano', 'input': text}
    return {'custom_id': f'r{number}', 'method': 'POST', 'url': '/v1/responses', 'body': body} | changes


def input_file(texts: Sequence[str]) -> bytes:
    return b''.join(json.dumps(input_line(n, text)).encode() + b'\n' for n, text in enumerate(texts, start=1))
