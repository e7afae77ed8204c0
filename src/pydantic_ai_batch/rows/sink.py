"""Opens an output of rows: a file that is there whole or not at all, or standard output."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from typing import BinaryIO

from pydantic_ai.exceptions import UserError

from .atomic_file import AtomicFile, Output, StreamOutput
from .base import RowSource
from .formats import FileFormat, Format, format_of
from .parquet_sink import ParquetSink
from .row_sink import RowSink
from .text_sink import CsvSink, JsonlSink

__all__ = ('RowSink', 'open_output')


def open_output(
    path: str | os.PathLike[str],
    columns: Sequence[str],
    *,
    format: Format | None = None,
    delimiter: str | None = None,
    stdout: BinaryIO | None = None,
    like: RowSource | None = None,
) -> RowSink:
    """Open an output, to which rows are written in the order they are given.

    It is a context manager: the rows are in the file if the block ends well, and a file that was there before is left
    as it was if not. To standard output they are written as they come.

    Args:
        path: A path of a `.csv`, `.tsv`, `.jsonl`, `.ndjson` or `.parquet` file, the text ones also with `.gz` after
            it; `-` for standard output.
        columns: The names of the columns, in their order.
        format: The format, if it is not that of the suffix; for standard output it is JSONL by default.
        delimiter: The character between two fields of a CSV file; by default a comma, and a tab in a `.tsv` file.
        stdout: What standard output is written to; by default that of the process.
        like: The input. It may not be the output as well; its columns keep their types from Parquet to Parquet.

    Raises:
        UserError: The file cannot be written there, or its format is not known. The message says why.
    """
    name = os.fspath(path)
    columns = tuple(columns)
    if repeated := sorted({column for column in columns if columns.count(column) > 1}):
        raise UserError(f'Two columns of {name} would go by the name {", ".join(repeated)}: rename one of the input.')
    how = format_of(name, format=format, delimiter=delimiter, default='jsonl')
    if name == '-':
        return _sink(StreamOutput(stdout or sys.stdout.buffer), columns, how, like)
    _check(name, like)
    if _is_special(name):
        # A pipe or a device cannot be replaced by a file.
        return _sink(StreamOutput(open(name, 'wb'), owned=True), columns, how, like)
    return _sink(AtomicFile(name), columns, how, like)


def _sink(output: Output, columns: tuple[str, ...], how: FileFormat, like: RowSource | None) -> RowSink:
    try:
        if how.format == 'csv':
            return CsvSink(output, columns, gzip=how.gzip, delimiter=how.delimiter)
        if how.format == 'jsonl':
            return JsonlSink(output, columns, gzip=how.gzip)
        return ParquetSink(output, columns, like)
    except BaseException:
        output.discard()
        raise


def _check(path: str, like: RowSource | None) -> None:
    if os.path.isdir(path):
        raise UserError(f'The output {path} is a folder: give the name of a file in it.')
    if not os.path.isdir(os.path.dirname(os.path.realpath(path))):
        raise UserError(f'The output {path} cannot be written: there is no folder {os.path.dirname(path)}.')
    if like is not None and like.path is not None and _same(path, like.path):
        raise UserError(f'The output {path} is the input as well, which would be lost: give it another name.')


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _is_special(path: str) -> bool:
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return False
