"""The formats of files of rows, by the names of the files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic_ai.exceptions import UserError

Format = Literal['csv', 'jsonl', 'parquet']
"""The formats that rows are read from and written to."""

FORMATS: tuple[Format, ...] = get_args(Format)

_SUFFIXES: dict[str, tuple[Format, str | None]] = {
    '.csv': ('csv', ','),
    '.tsv': ('csv', '\t'),
    '.jsonl': ('jsonl', None),
    '.ndjson': ('jsonl', None),
    '.parquet': ('parquet', None),
}


@dataclass(frozen=True)
class FileFormat:
    """How a file of rows is read or written."""

    format: Format
    delimiter: str
    """What stands between two fields of a CSV file."""
    gzip: bool


def format_of(path: str, *, format: Format | None, delimiter: str | None, default: Format | None = None) -> FileFormat:
    """How a file is read or written, by its suffix unless `format` says it.

    Args:
        path: The file's name; `-` is standard input or output, and has no suffix.
        format: The format, whatever the suffix is.
        delimiter: The character between two fields of a CSV file, if it is not that of the suffix.
        default: The format of `-`, if there is one.

    Raises:
        UserError: The format is not known, or `delimiter` is no character that can stand between fields.
    """
    if format is not None and format not in FORMATS:
        raise UserError(f'`format` must be one of {", ".join(FORMATS)}, not {format!r}.')
    name = os.path.basename(path).lower()
    gzip = name.endswith('.gz')
    stem = name.removesuffix('.gz')
    named, separator = _SUFFIXES.get(os.path.splitext(stem)[1], (None, None))
    found = format or named or (default if path == '-' else None)
    if found is None:
        if path == '-':
            raise UserError(f'Standard input has no suffix to go by: give `format` as well: {", ".join(FORMATS)}.')
        raise UserError(
            f'The suffix of {path} is none of {", ".join(_SUFFIXES)} (the text ones with .gz too): rename it, or give '
            f'`format` as well: {", ".join(FORMATS)}.'
        )
    if found == 'parquet' and gzip:
        raise UserError(f'{path} cannot be both Parquet, which is compressed in itself, and gzip: leave out .gz.')
    return FileFormat(found, _delimiter(found, delimiter) or separator or ',', gzip)


def _delimiter(format: Format, delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    if format != 'csv':
        raise UserError(f'`delimiter` is for CSV, and the format is {format}: leave it out.')
    # Shells pass a typed \t as these two characters.
    delimiter = '\t' if delimiter == '\\t' else delimiter
    if len(delimiter) != 1 or delimiter in '"\r\n\0\ufeff':
        raise UserError(
            f'`delimiter` must be one character, such as ; or a tab, and no quote or line end, not {delimiter!r}.'
        )
    return delimiter
