"""Rows in a temporary file, each of which is read alone, from where it begins to where the next one does."""

from __future__ import annotations

import tempfile
from array import array
from threading import Lock
from typing import IO

from pydantic_ai.exceptions import UserError

from .base import RowSource


class StoredSource(RowSource):
    """Rows in a temporary file without a name, which is gone when it is closed."""

    def __init__(self, name: str, path: str | None, file: IO[bytes]) -> None:
        super().__init__(name, path)
        self._file = file
        self._lock = Lock()
        self._begins = array('Q')

    def close(self) -> None:
        """Delete the temporary file. The rows cannot be read any more."""
        self._file.close()

    def _add(self, begin: int, line: int) -> None:
        """Note that a row begins at a byte of the file, and on a line of the input."""
        self._begins.append(begin)
        self._lines.append(line)

    def _stored(self, place: int) -> bytes:
        """What the file holds from where a row begins to where the next one does."""
        begin = self._begins[place]
        size = self._begins[place + 1] - begin if place + 1 < len(self._begins) else -1
        # Several threads may read rows, and the file has one position.
        with self._lock:
            self._file.seek(begin)
            return self._file.read(size)


def temporary_file() -> IO[bytes]:
    """A file for what may be larger than memory, which is gone when it is closed."""
    return tempfile.TemporaryFile(buffering=1 << 18)


def store(name: str, file: IO[bytes], data: bytes) -> None:
    """Write to the temporary file of an input.

    Raises:
        UserError: There is no room for it. The message names the folder, and how to choose another.
    """
    try:
        file.write(data)
    except OSError as error:
        raise UserError(
            f'{name} cannot be copied to {tempfile.gettempdir()}, where it is kept while it is read: '
            f'{error.strerror}. Set TMPDIR to a folder with more room.'
        ) from error
