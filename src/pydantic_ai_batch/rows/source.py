"""Opens an input of rows, whatever it is: a file of CSV, JSONL or Parquet, standard input, or rows of a program."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, cast

from pydantic_ai.exceptions import UserError

from .base import InputRow, RowSource
from .csv_source import CsvSource
from .formats import FileFormat, Format, format_of
from .jsonl_source import JsonlSource
from .parquet_source import ParquetSource
from .problems import Problem, problems_error
from .python_source import IterableSource, SequenceSource
from .stored_source import temporary_file

__all__ = ('InputRow', 'Problem', 'RowSource', 'open_rows', 'problems_error')


def open_rows(
    rows: str | os.PathLike[str] | Iterable[Mapping[str, Any] | str],
    *,
    format: Format | None = None,
    delimiter: str | None = None,
    stdin: BinaryIO | None = None,
) -> RowSource:
    """Open an input. Its rows are there once `read` was called.

    Args:
        rows: A path of a `.csv`, `.tsv`, `.jsonl`, `.ndjson` or `.parquet` file, the text ones also with `.gz` after
            it; `-` for standard input; or the rows themselves, as mappings, or as texts that become `input`.
        format: The format, if it is not that of the suffix; needed for standard input.
        delimiter: The character between two fields of a CSV file; by default a comma, and a tab in a `.tsv` file.
        stdin: What standard input is read from; by default that of the process.

    Raises:
        UserError: There is no such file, it is empty, not UTF-8, or of no known format. The message says what to do.
    """
    if isinstance(rows, str | os.PathLike):
        return _open_file(os.fspath(rows), format, delimiter, stdin)
    if format is not None or delimiter is not None:
        raise UserError('`format` and `delimiter` are for files, and the rows are those of a program: leave them out.')
    kind = type(rows).__name__
    if hasattr(rows, 'to_dict') and hasattr(rows, 'columns'):
        raise UserError(f"A {kind} is no iterable of rows: pass `frame.to_dict('records')`, or `frame.to_dicts()`.")
    if isinstance(rows, Mapping | bytes | bytearray) or not hasattr(rows, '__iter__'):
        raise UserError(f'The rows must be a path, or an iterable of mappings or texts, not one {kind}.')
    return SequenceSource(cast('Sequence[Any]', rows)) if isinstance(rows, Sequence) else IterableSource(rows)


def _open_file(path: str, format: Format | None, delimiter: str | None, stdin: BinaryIO | None) -> RowSource:
    how = format_of(path, format=format, delimiter=delimiter)
    if path == '-':
        return _source('standard input', None, stdin or sys.stdin.buffer, how)
    try:
        stream = open(path, 'rb')  # noqa: SIM115 - a Parquet file stays open as long as its source
    except IsADirectoryError:
        raise UserError(f'{path} is a folder, not a file.') from None
    except FileNotFoundError:
        raise UserError(f'There is no file {path}.') from None
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}.') from error
    try:
        source = _source(path, path, stream, how)
    except BaseException:
        stream.close()
        raise
    if how.format != 'parquet':
        stream.close()
    return source


def _source(name: str, path: str | None, stream: BinaryIO, how: FileFormat) -> RowSource:
    if how.format == 'csv':
        return CsvSource(name, path, stream, compressed=how.gzip, delimiter=how.delimiter)
    if how.format == 'jsonl':
        return JsonlSource(name, path, stream, compressed=how.gzip)
    return ParquetSource(name, path, stream if path is not None else _whole(stream))


def _whole(stream: BinaryIO) -> BinaryIO:
    """What a stream holds, in a temporary file: Parquet is read from its end."""
    copy = temporary_file()
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return cast('BinaryIO', copy)
