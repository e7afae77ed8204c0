"""One process's hold on a journal: a thread that does all its reading and writing, off every event loop.

What is asked of it while it writes is done in the next transaction, all of it in one, so that a thousand runs that
record something at the same moment wait for the disk once.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic_ai_batch.exceptions import JournalError, copy_of

from .memory import Memory
from .schema import connect, unusable
from .sessions import HOST, LEASE_SECONDS, SessionLock, is_locked

_log = logging.getLogger('pydantic_ai_batch')

T = TypeVar('T')

_AT_ONCE = 512
"""How many operations share a transaction at the most."""

_LIVENESS_SECONDS = 1.0
"""How long it is believed which other processes are alive."""


@dataclass(frozen=True)
class _Operation:
    work: Callable[[sqlite3.Connection], Any]
    future: Future[Any]
    apart: bool = False
    """Whether it is done outside of every transaction."""


class Store:
    """A journal that this process has open. Get it with [`store_of`][pydantic_ai_batch.journal.store.store_of]."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.session = 0
        """This process, among those that work on the journal."""
        self.others: set[int] = set()
        """Other sessions that were alive when that was last looked at."""
        self.memory = Memory()
        self._leases: dict[int, tuple[float, float]] = {}
        self._looked = 0.0
        self._renewed = 0.0
        self._operations: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._connection = connect(path)
        self._file = _identity(path)
        self._ended: set[int] = set()
        """Sessions that are known to have ended, which is for good."""
        self.busy = threading.Lock()
        """Held during a transaction, so that no process is forked in the middle of one."""
        try:
            self._lock = SessionLock(path)
            self._begin()
        except (sqlite3.Error, OSError) as error:
            self._connection.close()
            raise unusable(path, error) from error
        self._thread = threading.Thread(target=self._work, name=f'journal {path.name}', daemon=True)
        self.closed = False
        """Whether this process's session has ended."""
        self._thread.start()

    def _begin(self) -> None:
        connection, now = self._connection, time.time()
        try:
            self._foreign_leases(connection)
            connection.execute('BEGIN IMMEDIATE')
            cursor = connection.execute(
                'INSERT INTO sessions (token, host, pid, started_at, renewed_at) VALUES (?, ?, ?, ?, ?)',
                (self._lock.token, HOST, os.getpid(), now, now),
            )
            assert cursor.lastrowid is not None
            self.session = cursor.lastrowid
            self._renewed = time.monotonic()
            self._look_around(connection)
            connection.execute('COMMIT')
        except BaseException:
            if connection.in_transaction:
                connection.execute('ROLLBACK')
            self._lock.release()
            raise

    # What others do with it

    async def do(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in a transaction, and return what it returns once that is on the disk.

        If this is cancelled, the work is done all the same.

        Raises:
            JournalError: The journal could not be read or written.
        """
        return await asyncio.wrap_future(self.post(work))

    def post(self, work: Callable[[sqlite3.Connection], T], *, apart: bool = False) -> Future[T]:
        """Have `work` done, in the order that it was asked for, without waiting for it."""
        future: Future[T] = Future()
        if self.closed:
            future.set_exception(JournalError(f'The journal {self.path} was closed, as the process ends.'))
            return future
        # Whoever asked may be cancelled, which must not undo it.
        future.set_running_or_notify_cancel()
        self._operations.put(_Operation(work, future, apart))
        return future

    def compact(self) -> Future[None]:
        """Give the room of what was deleted back to the disk, unless another process is using the journal."""

        def work(connection: sqlite3.Connection) -> None:
            if self.others:
                return
            connection.execute('VACUUM')
            connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')

        return self.post(work, apart=True)

    def close(self) -> None:
        """End this process's session, after what was asked for has been done."""
        self.closed = True
        self._operations.put(None)
        self._thread.join()

    def forget(self) -> None:
        """Let go of it without touching the file, as in a fork."""
        self.closed = True
        self._lock.forget()

    # The thread

    def _work(self) -> None:
        while True:
            batch = self._next()
            ending = None in batch
            operations = [operation for operation in batch if operation is not None]
            if together := [operation for operation in operations if not operation.apart]:
                with self.busy:
                    self._transact(together)
            for operation in operations:
                if operation.apart:
                    with self.busy:
                        self._do_apart(operation)
            if time.monotonic() - self._renewed >= LEASE_SECONDS:
                self._renew()
            if ending:
                break
        with suppress(sqlite3.Error):
            self._connection.execute('UPDATE sessions SET ended_at = ? WHERE id = ?', (time.time(), self.session))
            self._connection.execute('DELETE FROM claims WHERE session = ?', (self.session,))
        with suppress(sqlite3.Error):
            self._connection.close()
        self._lock.release()

    def _next(self) -> list[_Operation | None]:
        batch: list[_Operation | None] = []
        with suppress(queue.Empty):
            batch.append(self._operations.get(timeout=LEASE_SECONDS))
            while len(batch) < _AT_ONCE and batch[-1] is not None:
                batch.append(self._operations.get_nowait())
        return batch

    def _transact(self, operations: list[_Operation]) -> None:
        """Do operations in one transaction, or, if one of them cannot be done, each in one of its own."""
        done: list[tuple[_Operation, Any]] = []
        connection = self._connection
        try:
            self._refuse_another_file()
            connection.execute('BEGIN IMMEDIATE')
        except (sqlite3.Error, JournalError) as error:
            # None of them has begun, and each would wait as long by itself.
            failure = unusable(self.path, error) if isinstance(error, sqlite3.Error) else error
            for operation in operations:
                operation.future.set_exception(copy_of(failure))
            return
        self.memory.begin()
        try:
            self._look_around(connection)
            done = [(operation, operation.work(connection)) for operation in operations]
            connection.execute('COMMIT')
        except Exception as error:
            if connection.in_transaction:
                connection.execute('ROLLBACK')
            self.memory.roll_back()
            if len(operations) > 1:
                for operation in operations:
                    self._transact([operation])
                return
            failure = unusable(self.path, error) if isinstance(error, sqlite3.Error | OSError) else error
            operations[0].future.set_exception(failure)
            return
        for operation, result in done:
            operation.future.set_result(result)

    def _do_apart(self, operation: _Operation) -> None:
        try:
            result = operation.work(self._connection)
        except Exception as error:
            operation.future.set_exception(unusable(self.path, error) if isinstance(error, sqlite3.Error) else error)
        else:
            operation.future.set_result(result)

    def _refuse_another_file(self) -> None:
        if _identity(self.path) != self._file:
            raise JournalError(
                f'The journal {self.path} was removed, or replaced by another file, while this process uses it. What '
                'is in flight goes on; nothing more is sent. Start the process again.'
            )

    # Who else is alive

    def is_alive(self, connection: sqlite3.Connection, session: int) -> bool:
        """Whether a session, of this process or another one, has not ended. Called in a transaction."""
        if session == self.session or session in self.others:
            return True
        if session in self._ended:
            return False
        # It may have come since that was last looked at.
        self._look_around(connection, now=True)
        if session not in self.others:
            self._ended.add(session)
        return session in self.others

    def _look_around(self, connection: sqlite3.Connection, *, now: bool = False) -> None:
        """Find out which other sessions are alive, and free what those that are not had claimed."""
        if not now and self._looked and time.monotonic() - self._looked < _LIVENESS_SECONDS:
            return
        rows = connection.execute(
            'SELECT id, token, host, renewed_at FROM sessions WHERE ended_at IS NULL AND id != ?', (self.session,)
        ).fetchall()
        alive = {id_ for id_, token, host, renewed in rows if self._is_alive(id_, token, host, renewed)}
        dead = [(time.time(), id_) for id_, *_ in rows if id_ not in alive]
        if dead:
            connection.executemany('UPDATE sessions SET ended_at = ? WHERE id = ?', dead)
        if dead or not self._looked:
            connection.execute('DELETE FROM claims WHERE session IN (SELECT id FROM sessions WHERE ended_at NOT NULL)')
        self.others = alive
        self._looked = time.monotonic()

    def _is_alive(self, session: int, token: str, host: str, renewed: float) -> bool:
        if is_locked(self.path, token):
            return True
        if host == HOST:
            return False
        # Another host's lock may not be seen here. Its lease is, whatever its clock says, if it is renewed.
        seen, since = self._leases.setdefault(session, (renewed, time.monotonic()))
        if seen != renewed:
            self._leases[session] = renewed, time.monotonic()
            return True
        return time.monotonic() - since < 2 * LEASE_SECONDS

    def _foreign_leases(self, connection: sqlite3.Connection) -> None:
        """Wait until it shows which sessions of other hosts are alive: what a dead one sent must not be sent again."""
        waited = False
        while True:
            rows = connection.execute(
                'SELECT id, token, renewed_at FROM sessions WHERE ended_at IS NULL AND host != ?', (HOST,)
            ).fetchall()
            unclear = [
                id_
                for id_, token, renewed in rows
                if not is_locked(self.path, token)
                and self._leases.setdefault(id_, (renewed, time.monotonic()))[0] == renewed
                and time.monotonic() - self._leases[id_][1] < 2 * LEASE_SECONDS
            ]
            if not unclear:
                return
            if not waited:
                _log.warning(
                    'The journal %s was last used on another host: waiting up to %g s to see whether it still is.',
                    self.path,
                    2 * LEASE_SECONDS,
                )
                waited = True
            time.sleep(1)

    def _renew(self) -> None:
        self._renewed = time.monotonic()
        with suppress(sqlite3.Error):
            self._connection.execute('UPDATE sessions SET renewed_at = ? WHERE id = ?', (time.time(), self.session))


_stores: dict[Path, Store] = {}
_inherited: list[Store] = []
_opening = threading.Lock()


def store_of(path: Path) -> Store:
    """This process's hold on the journal at `path`, which is opened if it is not yet. Takes a moment then.

    Raises:
        JournalError: The journal cannot be used.
    """
    path = path.expanduser().resolve()
    with _opening:
        if (store := _stores.get(path)) is None:
            store = _stores[path] = Store(path)
        return store


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one that has taken its path; `None` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close(path: Path) -> None:
    """End this process's session with the journal at `path`, if it has one."""
    with _opening:
        store = _stores.pop(path.expanduser().resolve(), None)
    if store is not None:
        store.close()


def close_all() -> None:
    """End this process's sessions, as at its end. A journal that is used again is opened again."""
    with _opening:
        stores = list(_stores.values())
        _stores.clear()
    for store in stores:
        store.close()


def _pause_all() -> None:
    """Wait for the transactions that are under way: a fork in the middle of one has the locks of SQLite for ever."""
    _opening.acquire()
    for store in _stores.values():
        store.busy.acquire()


def _go_on() -> None:
    for store in _stores.values():
        store.busy.release()
    _opening.release()


def _forget_all() -> None:
    """A fork has its parent's connections and locks, and can use none of them."""
    global _opening
    _opening = threading.Lock()
    for store in _stores.values():
        store.forget()
        # Closing its connection here, as collecting it would, is not ours to do either.
        _inherited.append(store)
    _stores.clear()


atexit.register(close_all)
if hasattr(os, 'register_at_fork'):
    os.register_at_fork(before=_pause_all, after_in_parent=_go_on, after_in_child=_forget_all)
