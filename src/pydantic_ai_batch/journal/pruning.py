"""Forgets what a journal has of batches that are done with."""

from __future__ import annotations

import json
import logging
import sqlite3
import time
from datetime import timedelta

from pydantic_ai_batch.exceptions import JournalError

from .store import Store

_log = logging.getLogger('pydantic_ai_batch')

_DONE = "SELECT tag FROM batches WHERE state = 'ended' AND ended_at <= ?"


def prune(store: Store, older_than: timedelta) -> int:
    """Forget the requests of batches that ended `older_than` ago, and return how many there were."""
    before = time.time() - older_than.total_seconds()

    def work(connection: sqlite3.Connection) -> int:
        gone = (
            f'SELECT id FROM requests WHERE tag IN ({_DONE}) '
            'AND NOT EXISTS (SELECT 1 FROM claims WHERE request = requests.id)'
        )
        connection.execute(f'DELETE FROM results WHERE request IN ({gone})', (before,))
        count = connection.execute(f'DELETE FROM requests WHERE id IN ({gone})', (before,)).rowcount
        connection.execute(
            f'DELETE FROM batches WHERE tag IN ({_DONE}) '
            'AND NOT EXISTS (SELECT 1 FROM requests WHERE requests.tag = batches.tag)',
            (before,),
        )
        connection.execute('DELETE FROM moves WHERE NOT EXISTS (SELECT 1 FROM requests WHERE id = moves.request)')
        jobs = connection.execute('SELECT id, job FROM jobs WHERE submitted_at <= ?', (before,)).fetchall()
        forgotten = [(job_id,) for job_id, job in jobs if not _has_batches(connection, job)]
        connection.executemany('DELETE FROM jobs WHERE id = ?', forgotten)
        connection.execute('DELETE FROM sessions WHERE ended_at <= ?', (before,))
        return count

    count = store.post(work).result()
    try:
        store.compact().result()
    except JournalError as error:
        _log.warning('Its room could not be given back to the disk: %s', error)
    return count


def _has_batches(connection: sqlite3.Connection, job: str) -> bool:
    """Whether a batch of a job is still in the journal."""
    tags = [batch['tag'] for batch in json.loads(job)['batches']]
    return any(connection.execute('SELECT 1 FROM batches WHERE tag = ?', (tag,)).fetchone() for tag in tags)
