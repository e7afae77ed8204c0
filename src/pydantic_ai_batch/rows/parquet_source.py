"""Rows of Parquet files, through `pyarrow`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, BinaryIO

from pydantic_ai.exceptions import UserError

from .arrow import arrow_modules
from .kept_source import KeptSource
from .problems import Problem

_BATCH = 1_000
"""How many rows are in memory at a time."""


class ParquetSource(KeptSource):
    """Rows of a Parquet file.

    A row group may be larger than memory, and no row of it can be read alone, so that the rows are kept one by one.
    """

    schema: Any
    """The schema of the file, as `pyarrow` has it."""

    def __init__(self, name: str, path: str | None, stream: BinaryIO) -> None:
        arrow, parquet = arrow_modules()
        self._failure = arrow.ArrowException
        try:
            self._parquet = parquet.ParquetFile(stream, buffer_size=1 << 20)
        except (self._failure, ValueError, OSError) as error:
            raise UserError(f'{name} is no Parquet file, or is damaged: {error}.') from error
        self.schema = self._parquet.schema_arrow
        names = list(self.schema.names)
        if repeated := sorted({column for column in names if names.count(column) > 1}):
            raise UserError(f'{name} has more than one column that goes by the name {", ".join(repeated)}.')
        super().__init__(name, path)
        self._stream = stream
        self._before = self._state()

    def close(self) -> None:
        """Close the file, and delete what is kept of it."""
        super().close()
        self._stream.close()

    def _find(self) -> list[Problem]:
        problems = super()._find()
        self.columns = tuple(self.schema.names)
        self.digest = _digest(self._stream)
        if self._state() != self._before:
            raise UserError(f'{self.name} was changed while it was read: start again once it is whole.')
        return problems

    def _state(self) -> tuple[int, int]:
        known = os.fstat(self._stream.fileno())
        return known.st_size, known.st_mtime_ns

    def _rows(self) -> Iterator[Any]:
        try:
            for batch in self._parquet.iter_batches(batch_size=_BATCH, use_threads=False):
                yield from batch.to_pylist()
        except (self._failure, ValueError, OSError) as error:
            raise UserError(f'{self.name} cannot be read: {error}.') from error


def _digest(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    stream.seek(0)
    while chunk := stream.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
