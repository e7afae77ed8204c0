"""Rows of a program: mappings, or texts that are the inputs themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .base import RowSource
from .kept_source import KeptSource, RowChecks, fields_of
from .problems import Problem

_NAME = 'rows'


class SequenceSource(RowSource):
    """Rows of a sequence, which is used as it is: it must stay so until the rows are done."""

    def __init__(self, rows: Sequence[Any]) -> None:
        super().__init__(_NAME)
        self._rows = rows

    def close(self) -> None:
        """Do nothing: the rows are the program's."""

    def _find(self) -> list[Problem]:
        problems: list[Problem] = []
        checks = RowChecks()
        for number, row in enumerate(self._rows, 1):
            if checks.fields_of(row, number, len(self._lines), problems) is not None:
                self._lines.append(number)
        self.columns = checks.columns
        self.digest = checks.digest
        return problems

    def _fields(self, place: int) -> dict[str, Any]:
        return fields_of(self._rows[self._lines[place] - 1])


class IterableSource(KeptSource):
    """Rows of an iterable that may be gone once it was read, such as a generator."""

    def __init__(self, rows: Iterable[Any]) -> None:
        super().__init__(_NAME)
        self._iterable = rows

    def _rows(self) -> Iterator[Any]:
        return iter(self._iterable)
