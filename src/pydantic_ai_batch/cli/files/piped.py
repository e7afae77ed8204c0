"""Rows from standard input, which can be read once: kept beside the journal, which alone can go on then."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import BinaryIO, cast

from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.stored_source import temporary_file


def rows_beside(journal: Path) -> Path:
    """The file beside a journal that has the rows of its run, where those came from standard input."""
    return journal.with_name(f'{journal.name}.rows')


def read_piped() -> BinaryIO:
    """What standard input holds, in a temporary file without a name."""
    copy = cast('BinaryIO', temporary_file())
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.seek(0)
    return copy


def open_kept(journal: Path) -> BinaryIO:
    """The rows of a journal's run; those of standard input, where none were kept.

    Raises:
        UserError: None were, and standard input is a terminal.
    """
    path = rows_beside(journal)
    if path.is_file():
        return path.open('rb')
    if sys.stdin.isatty():
        raise UserError(
            f'The rows of {journal} came from standard input, and {path} is not there: pipe them in once more.'
        )
    return read_piped()


def keep(rows: BinaryIO, journal: Path) -> None:
    """Keep the rows beside the journal, readable by their owner only, as it is. What was kept before is replaced.

    Raises:
        UserError: They cannot be written.
    """
    path = rows_beside(journal)
    fresh = path.with_name(f'{path.name}.tmp')
    rows.seek(0)
    try:
        # One that a process left there may be readable by others.
        fresh.unlink(missing_ok=True)
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'wb') as file:
            shutil.copyfileobj(rows, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise UserError(f'The rows cannot be kept in {path}: {error.strerror}. Nothing was sent.') from error
