"""Files of rows for tests, and what a source makes of them."""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from hypothesis import settings

from pydantic_ai_batch.rows.formats import Format
from pydantic_ai_batch.rows.source import Problem, RowSource, open_rows

PATIENT = settings(deadline=None)
"""Examples may take long on a machine that does other things as well."""


@contextmanager
def opened(content: bytes | str, format: Format, *, delimiter: str | None = None) -> Generator[RowSource]:
    """A source of some content, which is not read yet."""
    content = content.encode() if isinstance(content, str) else content
    with open_rows('-', format=format, delimiter=delimiter, stdin=io.BytesIO(content)) as source:
        yield source


def rows_of(content: bytes | str, format: Format, *, delimiter: str | None = None) -> list[dict[str, Any]]:
    """The rows of content that has no problem."""
    with opened(content, format, delimiter=delimiter) as source:
        assert source.read() == []
        return [row.fields for row in source]


def problems_of(content: bytes | str, format: Format) -> list[Problem]:
    """What is wrong with some content."""
    with opened(content, format) as source:
        return source.read()
