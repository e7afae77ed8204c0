"""What a source of rows is, whatever it reads: rows that are found once, and then read again in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

from .problems import Problem


@dataclass(frozen=True, slots=True)
class InputRow:
    """One row of an input."""

    place: int
    """Where it stands among the rows, from 0."""

    line: int
    """The line it begins on, from 1; for Parquet and Python rows, its number from 1."""

    fields: dict[str, Any]
    """Its values by the names of the columns."""


class RowSource(ABC):
    """The rows of one input of any length: memory holds where each of them is, and not what is in it.

    A context manager. `close` deletes the temporary files.
    """

    counts: ClassVar[Literal['line', 'row']] = 'row'
    """What `InputRow.line` and `Problem.line` count."""

    name: str
    """The input's name in messages: the file's as it was given, 'standard input' or 'rows'."""

    path: str | None
    """The file that the rows are from, if they are from one."""

    columns: tuple[str, ...]
    """The names of the columns, in the order of their first appearance; known after `read`."""

    digest: str
    """A hex digest that is the same for the same rows in the same order; known after `read`."""

    def __init__(self, name: str, path: str | None = None) -> None:
        self.name = name
        self.path = path
        self.columns = ()
        self.digest = ''
        self._problems: list[Problem] | None = None
        # Four bytes a row: what a list of integers takes is several times that.
        self._lines = array('I')

    def read(self) -> list[Problem]:
        """Go over the whole input once: find every row, and everything that is wrong.

        A row that has a problem is none of the rows of this source, unless the problem has its `place`. A second call
        reads nothing, and returns the same.

        Raises:
            UserError: The input as a whole cannot be read. The message says why, and what to do.
        """
        if self._problems is None:
            self._problems = self._find()
        return list(self._problems)

    @abstractmethod
    def _find(self) -> list[Problem]:
        """Fill `columns`, `digest`, and where the rows are."""

    @abstractmethod
    def _fields(self, place: int) -> dict[str, Any]:
        """The values of the row at a place that exists."""

    @abstractmethod
    def close(self) -> None:
        """Delete the temporary files. The rows cannot be read any more."""

    def __len__(self) -> int:
        self._require_read()
        return len(self._lines)

    def __iter__(self) -> Iterator[InputRow]:
        for place in range(len(self)):
            yield self[place]

    def __getitem__(self, place: int) -> InputRow:
        if not 0 <= place < len(self):
            raise IndexError(f'{self.name} has {len(self)} rows, and none at place {place}')
        return InputRow(place, self._lines[place], self._fields(place))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _require_read(self) -> None:
        if self._problems is None:
            raise RuntimeError('`read()` finds the rows, and must be called first')
