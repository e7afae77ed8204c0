"""What a journal has, read without working on it: for a look at a run that another process has in hand, or left."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_ai.models.batch import Batch

from pydantic_ai_batch.exceptions import JournalError

from .schema import APPLICATION_ID, STEPS, unusable

_BATCH: TypeAdapter[Batch] = TypeAdapter(Batch)


@dataclass(frozen=True, kw_only=True)
class RecordedBatch:
    """A batch as a journal has it."""

    tag: str
    """What it carries at the provider."""

    state: Literal['intended', 'unsettled', 'running', 'ended']
    """How far it is: its creation was begun, or lost; it was created; all its results were read."""

    lane: str
    """The lane that it is on."""

    model: str
    """The name of its model."""

    requests: int
    """How many requests it has."""

    created_at: datetime
    """When it was created, or was about to be."""

    checked_at: datetime | None
    """When it was looked at last."""

    batch: Batch | None
    """Its handle as it was last read; `None` if it is not known to exist."""

    @property
    def open(self) -> bool:
        """Whether there may be something to wait for, or to cancel."""
        return self.state != 'ended'


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A journal as it is now."""

    path: Path
    """The file."""

    batches: tuple[RecordedBatch, ...]
    """Its batches, oldest first."""

    run: dict[str, Any] | None
    """The run over rows that it has, as JSON; `None` if it has another kind of work, or none."""

    rows: dict[str, int]
    """How many rows of that run are done with, by their status."""


def overview_of(path: Path) -> Overview:
    """What a journal has.

    Raises:
        JournalError: There is none, or it cannot be read.
    """
    with _reading(path) as connection:
        rows = connection.execute(
            'SELECT tag, state, lane, model, requests, intended_at, checked_at, handle, created FROM batches '
            'ORDER BY intended_at'
        ).fetchall()
        has_rows = connection.execute('PRAGMA user_version').fetchone()[0] > 1
        run = connection.execute('SELECT spec FROM runs').fetchone() if has_rows else None
        counts = (
            connection.execute('SELECT status, count(*) FROM results_of_rows GROUP BY status').fetchall()
            if has_rows
            else []
        )
    return Overview(
        path=path,
        batches=tuple(_recorded(row) for row in rows),
        run=json.loads(run[0]) if run is not None else None,
        rows=dict(counts),
    )


def _recorded(row: Any) -> RecordedBatch:
    tag, state, lane, model, requests, intended_at, checked_at, handle, created = row
    batch = _BATCH.validate_json(handle or created) if handle or created else None
    return RecordedBatch(
        tag=tag,
        state=state,
        lane=lane,
        model=model,
        requests=requests,
        created_at=batch.created_at if batch is not None else datetime.fromtimestamp(intended_at, UTC),
        checked_at=datetime.fromtimestamp(checked_at, UTC) if checked_at is not None else None,
        batch=batch,
    )


@contextmanager
def _reading(path: Path) -> Generator[sqlite3.Connection]:
    if not path.is_file():
        raise JournalError(f'There is no journal {path}.')
    try:
        # To write as well, as the last one who has it open may have to tidy up the log of what was written.
        connection = sqlite3.connect(f'{path.resolve().as_uri()}?mode=rw', uri=True)
        connection.execute('PRAGMA query_only = ON')
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    try:
        if connection.execute('PRAGMA application_id').fetchone()[0] != APPLICATION_ID:
            raise JournalError(f'{path} is no journal.')
        if connection.execute('PRAGMA user_version').fetchone()[0] > len(STEPS):
            raise JournalError(f'A later version of `pydantic-ai-batch` wrote the journal {path}: upgrade the package.')
        yield connection
    except sqlite3.Error as error:
        raise unusable(path, error) from error
    finally:
        connection.close()
