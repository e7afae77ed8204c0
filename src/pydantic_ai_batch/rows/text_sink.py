"""Writes rows as text: CSV and JSON lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from gzip import GzipFile
from typing import IO, Any, cast

from .atomic_file import Output
from .row_sink import RowSink
from .values import json_of, text_of, without_halves

_GZIP_LEVEL = 6


class _TextSink(RowSink):
    def __init__(self, output: Output, columns: tuple[str, ...], *, gzip: bool) -> None:
        super().__init__(output, columns)
        self._stream = output.stream
        if gzip:
            # No time and no name in it: the same rows are the same bytes.
            packed = GzipFile('', 'wb', _GZIP_LEVEL, output.stream, mtime=0)
            self._stream = cast('IO[bytes]', packed)

    def _write(self, fields: Mapping[str, Any]) -> None:
        self._stream.write(self._line(fields))

    def _end(self) -> None:
        if self._stream is not self._output.stream:
            self._stream.close()

    def _abandon(self) -> None:
        with suppress(OSError):
            self._end()

    @abstractmethod
    def _line(self, fields: Mapping[str, Any]) -> bytes: ...


class JsonlSink(_TextSink):
    """One JSON object on each line, with characters as they are, and the columns that its row has."""

    def _line(self, fields: Mapping[str, Any]) -> bytes:
        return json_of({name: fields[name] for name in self._columns if name in fields}).encode() + b'\n'


class CsvSink(_TextSink):
    r"""CSV as RFC 4180 has it, but that its records end with `\n` alone.

    Every reader of CSV takes both, and with `\n` alone the tools for lines of text, such as `tail` and `diff`, need no
    care. The `csv` module would then leave a field with a carriage return unquoted, so that it is not used for this.
    """

    def __init__(self, output: Output, columns: tuple[str, ...], *, gzip: bool, delimiter: str) -> None:
        super().__init__(output, columns, gzip=gzip)
        self._delimiter = delimiter
        # What a reader would take for a byte order mark, at the very beginning, is a character of the field.
        self._special = (delimiter, '"', '\n', '\r', '\ufeff')
        self._stream.write(self._record(columns))

    def _line(self, fields: Mapping[str, Any]) -> bytes:
        return self._record([_cell(fields.get(name)) for name in self._columns])

    def _record(self, cells: tuple[str, ...] | list[str]) -> bytes:
        # A record of one empty field would be a blank line.
        quoted = [self._quoted(cell) for cell in cells] if list(cells) != [''] else ['""']
        text = self._delimiter.join(quoted) + '\n'
        try:
            return text.encode()
        except UnicodeEncodeError:
            return without_halves(text).encode()

    def _quoted(self, cell: str) -> str:
        # On long texts, each of these searches takes a small part of the time that one for a set of characters does.
        for character in self._special:
            if character in cell:
                return '"' + cell.replace('"', '""') + '"'
        return cell


def _cell(value: Any) -> str:
    return value if type(value) is str else text_of(value)
