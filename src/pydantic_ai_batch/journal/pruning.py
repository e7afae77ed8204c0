"""Forgets what a journal has of batches that are done with."""

from __future__ import annotations

import sqlite3
import time
from datetime import timedelta

from .store import Store

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
        connection.execute('DELETE FROM jobs WHERE submitted_at <= ?', (before,))
        connection.execute('DELETE FROM sessions WHERE ended_at <= ?', (before,))
        return count

    count = store.post(work).result()
    store.compact().result()
    return count
