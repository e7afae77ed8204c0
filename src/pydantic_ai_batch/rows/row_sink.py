"""What an output of rows is, whatever its format: rows that are written in order, and there when all are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from .atomic_file import Output


class RowSink(ABC):
    """An output of rows. A context manager, which commits if its block ends well, and discards if not."""

    def __init__(self, output: Output, columns: tuple[str, ...]) -> None:
        self._output = output
        self._columns = columns
        self._known = frozenset(columns)
        self._open = True

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            fields: Its values by column. A column that it lacks is empty.

        Raises:
            ValueError: It has a value for a column that the output has not.
            OSError: It cannot be written, such as for lack of room.
        """
        if not fields.keys() <= self._known:
            raise ValueError(f'the output has no column {", ".join(sorted(fields.keys() - self._known))}')
        self._write(fields)

    def commit(self) -> None:
        """End the output with all rows in it. Nothing can be written any more.

        Raises:
            OSError: It cannot be written, such as for lack of room. A file that was there before is as it was.
        """
        if not self._open:
            return
        try:
            self._end()
        except BaseException:
            self.discard()
            raise
        self._open = False
        self._output.commit()

    def discard(self) -> None:
        """End the output without its rows: a file that was there before is as it was."""
        if self._open:
            self._open = False
            self._abandon()
            self._output.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    @abstractmethod
    def _write(self, fields: Mapping[str, Any]) -> None:
        """Write the row, whose columns are all known."""

    @abstractmethod
    def _end(self) -> None:
        """Write whatever is still to be written."""

    @abstractmethod
    def _abandon(self) -> None:
        """Let go of whatever is still to be written."""
