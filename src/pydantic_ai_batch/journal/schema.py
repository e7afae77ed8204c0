"""The journal's file: its tables, its version, and what is checked before anything is sent by it.

The tables are plain enough to be queried by hand, and moved to another database. Times are seconds since the epoch,
handles of batches the framework's `Batch` as JSON, result bodies compressed with zlib.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic_ai_batch.exceptions import JournalError

APPLICATION_ID = 0x70616231
"""Marks the file as a journal of this package, in its SQLite header."""

BUSY_SECONDS = 60.0
"""How long a process waits for another one that is writing."""

TABLES = """
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- a process that works, or worked, on the journal
    token TEXT NOT NULL UNIQUE,      -- its lock file is `<journal>.<token>.lock`
    host TEXT NOT NULL,              -- where it runs
    pid INTEGER NOT NULL,            -- its number there
    started_at REAL NOT NULL,        -- when it opened the journal
    renewed_at REAL NOT NULL,        -- the lease, which counts where another host asks
    ended_at REAL                    -- when it ended, or was found to have
);

CREATE TABLE batches (
    tag TEXT PRIMARY KEY,            -- what the batch carries at the provider; its requests are `<tag>-<place>` there
    session INTEGER NOT NULL,        -- who creates it, or settles whether it was created
    state TEXT NOT NULL CHECK (state IN ('intended', 'unsettled', 'running', 'ended')),  -- how far it is
    lane TEXT NOT NULL,              -- the lane's name
    model TEXT NOT NULL,             -- the model's name
    "group" TEXT NOT NULL,           -- what its requests share; of the credential a digest
    requests INTEGER NOT NULL,       -- how many it has
    intended_at REAL NOT NULL,       -- before the call that creates it
    batch_id TEXT,                   -- the provider's ID, once known
    created TEXT,                    -- the handle as it was created
    handle TEXT,                     -- the handle as it was last read
    checks TEXT,                     -- what the checks came to so far
    checked_at REAL,                 -- when the last of them was made
    ended_at REAL,                   -- when all its results were read
    cleaned INTEGER NOT NULL DEFAULT 0  -- whether its input was deleted at the provider
) WITHOUT ROWID;
CREATE INDEX batches_by_id ON batches (batch_id);

CREATE TABLE requests (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used twice, as others may still hold it
    digest BLOB NOT NULL,            -- of lane, endpoint, model and body
    family TEXT NOT NULL,            -- the same without the body
    depth INTEGER NOT NULL,          -- how many answers its messages hold
    session INTEGER NOT NULL,        -- who sends it
    tag TEXT,                        -- the batch it is in; NULL while it is queued
    place INTEGER,                   -- where it stands in that
    resubmissions INTEGER NOT NULL DEFAULT 0,  -- how often it was submitted again
    held_since REAL,                 -- when a full queue first sent it back
    failed TEXT,                     -- the error that stands: made again, the request is sent anew
    made_at REAL NOT NULL            -- when it was first made
);
CREATE INDEX requests_by_digest ON requests (digest);
CREATE UNIQUE INDEX requests_by_place ON requests (tag, place);

CREATE TABLE moves (                 -- where requests were that have been sent again since
    tag TEXT NOT NULL,               -- the batch that it was in
    place INTEGER NOT NULL,          -- where it stood in that
    request INTEGER NOT NULL,        -- the request
    PRIMARY KEY (tag, place)
) WITHOUT ROWID;
CREATE INDEX moves_by_request ON moves (request);

CREATE TABLE results (
    request INTEGER PRIMARY KEY REFERENCES requests (id),  -- the request
    status TEXT NOT NULL,            -- succeeded, errored, expired or canceled
    body BLOB,                       -- as the provider wrote it, compressed with zlib
    read_at REAL NOT NULL            -- when it was read
);

CREATE TABLE claims (
    request INTEGER NOT NULL,        -- the request
    session INTEGER NOT NULL,        -- a process that got, or waits for, its answer; gone with the process
    PRIMARY KEY (request, session)
) WITHOUT ROWID;

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,             -- the job's ID
    job TEXT NOT NULL,               -- `BatchJob.to_json()`
    submitted_at REAL NOT NULL       -- when it was written down last
) WITHOUT ROWID;
"""

ROWS = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY CHECK (id = 1),  -- a journal is one job
    spec TEXT NOT NULL,              -- what is run over which rows, as JSON
    started_at REAL NOT NULL         -- when it was begun
);

CREATE TABLE results_of_rows (
    place INTEGER PRIMARY KEY,       -- where the row stands in the input, from 0
    status TEXT NOT NULL,            -- ok, error, truncated, refused, missing, expired or cancelled
    result BLOB NOT NULL,            -- its record as JSON, compressed with zlib
    settled_at REAL NOT NULL         -- when it was done with
);
"""

STEPS: tuple[str, ...] = (TABLES, ROWS)
"""What brings about each version from the one before it, from an empty file on.

Their number is the version of the tables, which the file records as `user_version`. A file of an earlier one is brought
forward when it is opened, all of it or nothing.
"""


def connect(path: Path, steps: Sequence[str] = STEPS) -> sqlite3.Connection:
    """Open a journal, made if there is none, and check that it can be trusted and written to.

    Args:
        path: The file.
        steps: What brings its tables about.

    Raises:
        JournalError: It cannot. Nothing was changed.
    """
    try:
        _make_private(path)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise unusable(path, error) from error
    try:
        _prepare(path, connection, steps)
    except sqlite3.Error as error:
        connection.close()
        raise unusable(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _make_private(path: Path) -> None:
    """Make the file, if there is none, so that only its owner can read it: it holds what models answered."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, 'O_CLOEXEC', 0), 0o600))


def _prepare(path: Path, connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    # Takes the lock to write, which says now, and not after something was sent, if it cannot be; and no other process
    # makes the tables meanwhile.
    connection.execute('BEGIN IMMEDIATE')
    try:
        version = _checked(path, connection, len(steps))
        for step in steps[version:]:
            for statement in step.split(';\n'):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f'PRAGMA application_id = {APPLICATION_ID}')
        connection.execute(f'PRAGMA user_version = {len(steps)}')
        connection.execute('COMMIT')
    except BaseException:
        if connection.in_transaction:
            connection.execute('ROLLBACK')
        raise
    _write_ahead(connection)
    # Durable when a write returns, as a batch is created right after its intent was written.
    connection.execute('PRAGMA synchronous = FULL')


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn on the write-ahead log, which takes the file for a moment, and does not wait for others that have it."""
    until = time.monotonic() + BUSY_SECONDS
    while connection.execute('PRAGMA journal_mode').fetchone()[0] != 'wal':
        try:
            connection.execute('PRAGMA journal_mode = WAL')
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _checked(path: Path, connection: sqlite3.Connection, known: int) -> int:
    """The version of a journal, 0 if the file is new.

    Raises:
        JournalError: It is none, damaged, or of a later version.
    """
    application, version, tables = (
        connection.execute('PRAGMA application_id').fetchone()[0],
        connection.execute('PRAGMA user_version').fetchone()[0],
        connection.execute('SELECT count(*) FROM sqlite_master').fetchone()[0],
    )
    if (tables or application) and application != APPLICATION_ID:
        raise JournalError(f'{path} is an SQLite file of something else: give the journal a path of its own.')
    if version > known:
        raise JournalError(
            f'A later version of `pydantic-ai-batch` wrote the journal {path} (format {version}, this one knows up to '
            f'{known}): upgrade the package, or give this program a journal of its own.'
        )
    damage = connection.execute('PRAGMA quick_check(1)').fetchone()[0]
    if damage != 'ok':
        raise _damaged(path, damage)
    return int(version)


def _damaged(path: Path, damage: str) -> JournalError:
    return JournalError(
        f'The journal {path} is damaged ({damage}): restore it from a copy. With a new file, everything that was sent '
        'by this one would be sent, and paid for, again.'
    )


def unusable(path: Path, error: Exception) -> JournalError:
    """The error for a journal that SQLite, or the file system, cannot work with."""
    if isinstance(error, sqlite3.DatabaseError) and 'malformed' in str(error):
        return _damaged(path, str(error))
    if isinstance(error, sqlite3.DatabaseError) and 'not a database' in str(error):
        return JournalError(
            f'{path} is no journal, or its beginning was overwritten: give the journal a path of its own.'
        )
    return JournalError(
        f'The journal {path} cannot be used: {error}. Nothing is sent without it: give `journal=` a file that can be '
        'written, on a disk of this machine.'
    )
