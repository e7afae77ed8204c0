"""What came of the rows of a run, on disk: in the journal, or in a temporary file where there is none.

Results can be of any number: they are written as they come, and read again in the order that they are wanted in.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from pydantic_ai_batch.journal.store import Store, close, store_of

from .records import Status

_PAGE = 500
"""How many results are in memory at a time when all are read."""

_ANYTHING_DONE = 'SELECT EXISTS (SELECT 1 FROM requests) OR EXISTS (SELECT 1 FROM results_of_rows)'
"""Whether a run came so far that it counts: one that was refused before anything was sent does not."""


class KeptResults:
    """The results of one run, by the places of their rows."""

    def __init__(self, path: Path | None) -> None:
        """Open them.

        Args:
            path: The journal; `None` is a file that is deleted in the end.

        Raises:
            JournalError: The journal cannot be used.
        """
        self._folder = tempfile.TemporaryDirectory(prefix='pydantic-ai-batch-') if path is None else None
        self._path = Path(self._folder.name) / 'results.db' if self._folder is not None else path
        assert self._path is not None
        self._store: Store = store_of(self._path)

    async def begin(self, spec: dict[str, Any]) -> dict[str, Any] | None:
        """Write down what is run, and return what an earlier process has written there, if it has sent anything."""

        def work(connection: Connection) -> dict[str, Any] | None:
            row = connection.execute('SELECT spec FROM runs').fetchone()
            if row is not None and connection.execute(_ANYTHING_DONE).fetchone()[0]:
                return json.loads(row[0])
            connection.execute(
                'INSERT OR REPLACE INTO runs (id, spec, started_at) VALUES (1, ?, ?)', (json.dumps(spec), time.time())
            )
            return None

        return await self._store.do(work)

    async def go_on(self, spec: dict[str, Any]) -> None:
        """Write down by what command a run is gone on with, which may have other guards than the one before."""
        await self._store.do(lambda connection: connection.execute('UPDATE runs SET spec = ?', (json.dumps(spec),)))

    async def spec(self) -> dict[str, Any] | None:
        """What is run, if anything was."""
        row = await self._store.do(lambda connection: connection.execute('SELECT spec FROM runs').fetchone())
        return None if row is None else json.loads(row[0])

    async def settled(self) -> list[tuple[int, Status]]:
        """The place and the status of each row that is done with."""
        query = 'SELECT place, status FROM results_of_rows ORDER BY place'
        return await self._store.do(lambda connection: connection.execute(query).fetchall())

    async def write(self, results: Sequence[tuple[int, Status, bytes]]) -> None:
        """Write results down."""
        query = 'INSERT OR REPLACE INTO results_of_rows (place, status, result, settled_at) VALUES (?, ?, ?, ?)'
        now = time.time()
        rows = [(*result, now) for result in results]
        await self._store.do(lambda connection: connection.executemany(query, rows))

    async def read(self, places: Sequence[int]) -> dict[int, bytes]:
        """The results of some rows, as far as they are there."""
        marks = ','.join('?' * len(places))
        query = f'SELECT place, result FROM results_of_rows WHERE place IN ({marks})'
        return dict(await self._store.do(lambda connection: connection.execute(query, tuple(places)).fetchall()))

    async def all(self) -> AsyncGenerator[tuple[int, bytes]]:
        """Every result, in the order of the rows."""
        query = 'SELECT place, result FROM results_of_rows WHERE place > ? ORDER BY place LIMIT ?'
        last = -1
        while True:
            page: list[tuple[int, bytes]] = await self._store.do(
                lambda connection, last=last: connection.execute(query, (last, _PAGE)).fetchall()
            )
            for place, result in page:
                yield place, result
            if len(page) < _PAGE:
                return
            last = page[-1][0]

    async def forget(self, statuses: Collection[Status]) -> int:
        """Forget the results of some statuses, so that their rows are sent again, and return how many they were."""
        marks = ','.join('?' * len(statuses))
        query = f'DELETE FROM results_of_rows WHERE status IN ({marks})'
        return await self._store.do(lambda connection: connection.execute(query, tuple(statuses)).rowcount)

    async def forget_places(self, places: Sequence[int]) -> None:
        """Forget the results of some rows, which are then not done with."""
        query, values = 'DELETE FROM results_of_rows WHERE place = ?', [(place,) for place in places]
        await self._store.do(lambda connection: connection.executemany(query, values))

    def close(self) -> None:
        """Let go of the file, and delete it if it is a temporary one. A journal stays open for what else uses it."""
        if self._folder is not None and self._path is not None:
            close(self._path)
            self._folder.cleanup()
