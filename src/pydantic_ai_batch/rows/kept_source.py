"""Rows that are read once and kept in a temporary file, whatever they came from."""

from __future__ import annotations

import hashlib
import pickle
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, cast

from .problems import Problem
from .stored_source import StoredSource, store, temporary_file
from .values import half_in, row_json


class KeptSource(StoredSource):
    """Rows of values that can be read only once, or only in bulk: they are kept one by one as pickles."""

    def __init__(self, name: str, path: str | None = None) -> None:
        super().__init__(name, path, temporary_file())

    @abstractmethod
    def _rows(self) -> Iterator[Any]:
        """The rows, once."""

    def _find(self) -> list[Problem]:
        problems: list[Problem] = []
        checks = RowChecks()
        for number, row in enumerate(self._rows(), 1):
            fields = checks.fields_of(row, number, len(self._begins), problems)
            if fields is None:
                continue
            try:
                kept = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                # Whatever a class of the program does when it is pickled.
                problems.append(Problem(number, f'a value cannot be kept for later ({type(error).__name__}: {error})'))
            else:
                self._add(self._file.tell(), number)
                store(self.name, self._file, kept)
        self.columns = checks.columns
        self.digest = checks.digest
        return problems

    def _fields(self, place: int) -> dict[str, Any]:
        return pickle.loads(self._stored(place))


class RowChecks:
    """Goes over rows of values: what each is, their columns, and the digest of all."""

    def __init__(self) -> None:
        self._columns: dict[str, None] = {}
        self._digest = hashlib.sha256()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows so far."""
        return tuple(self._columns)

    @property
    def digest(self) -> str:
        """The digest of the rows so far."""
        return self._digest.hexdigest()

    def fields_of(self, row: Any, number: int, place: int, problems: list[Problem]) -> dict[str, Any] | None:
        """The values of a row, which may be its input alone, as text; `None` if it is no row.

        Args:
            row: What is to be a row.
            number: Its number, from 1.
            place: Where it stands among the rows, if it is one.
            problems: What is wrong with it is added to them.
        """
        try:
            fields = fields_of(row)
            text = row_json(fields)
        except ValueError as error:
            problems.append(Problem(number, str(error)))
            return None
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            encoded = text.encode(errors='surrogatepass')
            problems.append(Problem(number, str(half_in(fields)), place))
        self._digest.update(encoded + b'\n')
        self._columns.update(dict.fromkeys(fields))
        return fields


def fields_of(row: Any) -> dict[str, Any]:
    """The values of a row: those of a mapping, or its input alone, as text.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(row, str):
        return {'input': row}
    if isinstance(row, Mapping):
        return dict(cast('Mapping[str, Any]', row))
    raise ValueError(f'a row must be a mapping or a text, not {type(row).__name__}')
