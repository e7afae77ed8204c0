"""Rows of CSV as RFC 4180 has it: everything is text, and a quoted field may hold line ends."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from threading import Lock
from typing import IO, Any, BinaryIO

from pydantic_ai_batch.wording import counted

from .problems import Problem
from .text_source import TextSource, decoded

_CHUNK = 1 << 20
_MAX_FIELD = 1 << 26
"""The most characters in a field: more is no prompt, and rather a quote that is missing somewhere above."""


class CsvSource(TextSource):
    """Rows of a CSV file with a header."""

    def __init__(self, name: str, path: str | None, stream: BinaryIO, *, compressed: bool, delimiter: str) -> None:
        self._delimiter = delimiter
        super().__init__(name, path, stream, compressed=compressed)

    def _find(self) -> list[Problem]:
        lines = _Lines(self._file, self._start)
        records = _Records(lines, self._delimiter)
        problems: list[Problem] = []
        header = False
        for begin, line, record in records:
            if (trouble := lines.trouble) is not None:
                problems.append(trouble)
                lines.trouble = None
            if isinstance(record, Problem):
                problems.append(record)
            elif not header:
                header = True
                problems += self._take_header(line, record)
            elif len(record) != len(self.columns):
                problems.append(
                    Problem(line, f'{counted(len(record), "field")}, and the header has {len(self.columns):,}')
                )
            elif trouble is None:
                self._add(begin, line)
        if not header:
            reason = 'there is no header, which is the line with the names of the columns'
            problems.insert(0, Problem(1, reason, of_all=True))
        return problems

    def _take_header(self, line: int, record: list[str]) -> Iterator[Problem]:
        self.columns = tuple(name.strip() for name in record)
        for number, name in enumerate(self.columns, 1):
            if not name:
                yield Problem(line, f'column {number} has no name', of_all=True)
            elif name in self.columns[: number - 1]:
                yield Problem(line, f'two columns go by the name `{name}`', of_all=True)

    def _parse(self, text: bytes) -> dict[str, Any]:
        lines = [line.decode('utf-8', 'replace') for line in text.splitlines(keepends=True)]
        try:
            record = next(_reader(lines, self._delimiter))
        except csv.Error:
            # It was read before, so that only the limit can be in the way.
            with _BigFields():
                record = next(_reader(lines, self._delimiter))
        return dict(zip(self.columns, record, strict=True))


def _reader(lines: Any, delimiter: str) -> Any:
    return csv.reader(lines, strict=True, delimiter=delimiter)


class _Records:
    """The records of a file one by one: where each begins, on which line, and its fields or what is wrong with it."""

    def __init__(self, lines: _Lines, delimiter: str) -> None:
        self._lines = lines
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[tuple[int, int, list[str] | Problem]]:
        lines = self._lines
        reader = _reader(lines, self._delimiter)
        while True:
            begin, line = lines.position, lines.number + 1
            try:
                record = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if _is_limit(error):
                    lines.back(begin, line - 1)
                    record = self._again(reader, line)
                else:
                    # The reader goes on with the next line.
                    record = Problem(line, _reason(error, lines.number - line))
            # A blank line has no field at all.
            if record:
                yield begin, line, record

    def _again(self, reader: Any, line: int) -> list[str] | Problem:
        try:
            with _BigFields():
                return next(reader)
        except csv.Error as error:
            return Problem(line, _reason(error, self._lines.number - line))


def _is_limit(error: csv.Error) -> bool:
    """Whether a field is larger than the limit of the `csv` module, which is one for the whole process."""
    return 'limit' in str(error)


def _reason(error: csv.Error, more_lines: int) -> str:
    said = str(error)
    if _is_limit(error):
        return f'a field of more than {_MAX_FIELD:,} characters: a closing quote may be missing'
    if 'end of data' in said:
        return 'a field that begins with a quote, which is never closed'
    where = f', {counted(more_lines, "line")} further down' if more_lines else ''
    return f'a quoted field that goes on after its closing quote{where}; a quote within it is written twice'


class _BigFields:
    """Lets the `csv` module read fields of any sensible size, for as long as one record takes."""

    _lock = Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = csv.field_size_limit(_MAX_FIELD)

    def __exit__(self, *_: object) -> None:
        csv.field_size_limit(self._before)
        self._lock.release()


class _Lines:
    """The lines of a file from some byte on, with their ends, as the `csv` module takes them one by one.

    It takes no more of them than it needs for a record, so that `position` is where the next record begins. A line ends
    at a newline, a carriage return or both, and at nothing else that Unicode has for it.
    """

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file = file
        self.trouble: Problem | None = None
        self.back(start, 0)

    def back(self, position: int, number: int) -> None:
        """Go on from a position, before which there are so many lines."""
        self.position = position
        self.number = number
        self.trouble = None
        self._file.seek(position)
        self._lines = self._split()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.position += len(line)
        self.number += 1
        try:
            return decoded(line)
        except ValueError as error:
            if self.trouble is None:
                self.trouble = Problem(self.number, str(error))
            return line.decode('utf-8', 'replace')

    def _split(self) -> Iterator[bytes]:
        pending: list[bytes] = []
        while chunk := self._file.read(_CHUNK):
            # What splits bytes is a newline, a carriage return and both, and nothing else.
            lines = chunk.splitlines(keepends=True)
            if pending:
                # A newline may belong to a carriage return at the end of the chunk before.
                pending.append(lines.pop(0))
                if not lines and not pending[-1].endswith(b'\n'):
                    continue
                lines = [*b''.join(pending).splitlines(keepends=True), *lines]
                pending = []
            if not lines[-1].endswith(b'\n'):
                pending = [lines.pop()]
            yield from lines
        yield from b''.join(pending).splitlines(keepends=True)
