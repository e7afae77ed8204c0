"""Rows in a temporary file, each of which is read alone, from where it begins to where the next one does."""

from __future__ import annotations

from array import array
from threading import Lock
from typing import IO

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
