"""Writes rows as Parquet, through `pyarrow`."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import islice
from typing import Any

from pydantic_ai.exceptions import UserError

from .arrow import arrow_modules
from .atomic_file import Output
from .base import RowSource
from .parquet_source import ParquetSource
from .row_sink import RowSink
from .stored_source import temporary_file
from .values import plain_value, text_of, without_halves

_GROUP = 10_000
"""How many rows a row group has."""

_WIDEST = 2**63


class ParquetSink(RowSink):
    """A Parquet file with row groups of 10,000 rows.

    A column has one type, which only its last value may decide, so that the rows are kept until all are there. A column
    of the input has the type it has there. Any other is of truth values, whole numbers, numbers or text, whichever
    holds all its values; what is none of them is text, as in a CSV file.
    """

    def __init__(self, output: Output, columns: tuple[str, ...], like: RowSource | None) -> None:
        super().__init__(output, columns)
        self._arrow, self._parquet = arrow_modules()
        schema = like.schema if isinstance(like, ParquetSource) else None
        self._types: dict[str, Any] = {
            name: schema.field(name).type for name in columns if schema is not None and name in schema.names
        }
        self._kinds: dict[str, set[str]] = {name: set() for name in columns if name not in self._types}
        self._rows = 0
        self._kept = temporary_file()

    def _write(self, fields: Mapping[str, Any]) -> None:
        row = {name: fields.get(name) if name in self._types else _simple(fields.get(name)) for name in self._columns}
        for name, kinds in self._kinds.items():
            if row[name] is not None:
                kinds.add(_kind(row[name]))
        pickle.dump(row, self._kept, pickle.HIGHEST_PROTOCOL)
        self._rows += 1

    def _end(self) -> None:
        arrow = self._arrow
        types = {name: self._types[name] if name in self._types else self._common(name) for name in self._columns}
        schema = arrow.schema([arrow.field(name, kind) for name, kind in types.items()])
        self._kept.seek(0)
        rows = self._read_back()
        try:
            with self._parquet.ParquetWriter(self._output.stream, schema) as writer:
                while group := list(islice(rows, _GROUP)):
                    arrays = [self._array(name, types[name], group) for name in self._columns]
                    writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))
        finally:
            self._kept.close()

    def _abandon(self) -> None:
        self._kept.close()

    def _read_back(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._rows):
            yield pickle.load(self._kept)

    def _array(self, name: str, kind: Any, group: list[dict[str, Any]]) -> Any:
        values = [row[name] for row in group]
        if name not in self._types and kind == self._arrow.string():
            values = [value if value is None else without_halves(text_of(value)) for value in values]
        try:
            return self._arrow.array(values, type=kind)
        except (self._arrow.ArrowException, TypeError, ValueError) as error:
            raise UserError(f'The column `{name}` cannot be written to Parquet as {kind}: {error}.') from error

    def _common(self, name: str) -> Any:
        """The type that holds all values of a column."""
        kinds = self._kinds[name]
        if kinds == {'bool'}:
            return self._arrow.bool_()
        if kinds == {'int'}:
            return self._arrow.int64()
        if kinds and kinds <= {'int', 'float'}:
            return self._arrow.float64()
        return self._arrow.string()


def _simple(value: Any) -> Any:
    """A value that is a truth value, a number, text or `None`."""
    if isinstance(value, Decimal):
        return float(value) if value.is_finite() else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else text_of(plain_value(value))


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return 'bool'
    if isinstance(value, int):
        return 'int' if -_WIDEST <= value < _WIDEST else 'text'
    return 'float' if isinstance(value, float) else 'text'
