"""What a process remembers of a journal, so that it need not ask the file for every request.

Only the journal's own thread touches it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from sqlite3 import Connection

from pydantic import TypeAdapter
from pydantic_ai.models.batch import Batch

from pydantic_ai_batch.exceptions import JournalMiss
from pydantic_ai_batch.wording import counted

from .digests import Fingerprint

_log = logging.getLogger('pydantic_ai_batch')

_BATCHES = TypeAdapter(Batch)
_MAX_HANDLES = 256


class Memory:
    """The part of a journal that one process has in mind."""

    def __init__(self) -> None:
        self.newest_before: int | None = None
        """The newest request that was there when this process came; `None` until that is known."""
        self._claimed: dict[bytes, int] = {}
        """By digest, the last request that this process claimed. Those before it are claimed, too."""
        self._queued: dict[int, tuple[str, int]] = {}
        """Family and depth of the requests that wait to be sent."""
        self._unmatched: dict[str, dict[int, int]] = {}
        """By family and depth, how many requests of earlier processes nothing has matched."""
        self._warned: set[str] = set()
        self._handles: OrderedDict[str, Batch] = OrderedDict()

    def after(self, connection: Connection, fingerprint: Fingerprint) -> int | None:
        """The request that those to be claimed come after, or `None` if there can be none."""
        if self.newest_before is None:
            self.newest_before = connection.execute('SELECT coalesce(max(id), 0) FROM requests').fetchone()[0]
        last = self._claimed.get(fingerprint.digest)
        return last if last is not None else 0 if self.newest_before else None

    def claimed(self, fingerprint: Fingerprint, entry: int, *, new: bool = False) -> None:
        """Remember that a request is this process's, from an earlier one or newly made."""
        self._claimed[fingerprint.digest] = entry
        self._queued[entry] = fingerprint.family, fingerprint.depth
        unmatched = self._unmatched.get(fingerprint.family)
        if unmatched and not new and unmatched.get(fingerprint.depth):
            unmatched[fingerprint.depth] -= 1

    def placed(self, entry: int) -> None:
        """Remember that a request is in a batch."""
        self._queued.pop(entry, None)

    def rewind(self, connection: Connection, entry: int) -> None:
        """Let a request be claimed again by this process."""
        self._queued.pop(entry, None)
        row = connection.execute('SELECT digest FROM requests WHERE id = ?', (entry,)).fetchone()
        if row is not None and self._claimed.get(row[0], 0) >= entry:
            self._claimed[row[0]] = entry - 1

    def unmatched(self, connection: Connection, family: str, depth: int | None = None) -> int:
        """How many requests of earlier processes nothing has matched, up to a depth.

        Those that are deeper come when the answers before them are there.
        """
        if family not in self._unmatched:
            self._unmatched[family] = dict(
                connection.execute(
                    'SELECT depth, count(*) FROM requests r WHERE family = ? AND failed IS NULL AND id <= ? '
                    'AND NOT EXISTS (SELECT 1 FROM claims WHERE request = r.id) GROUP BY depth',
                    (family, self.newest_before or 0),
                ).fetchall()
            )
        return sum(count for at, count in self._unmatched[family].items() if depth is None or at <= depth)

    def look_for_misses(self, connection: Connection, entries: Sequence[int], *, strict: bool) -> None:
        """Say so, before new requests are sent, if the journal has others like them that nothing has matched.

        Raises:
            JournalMiss: It has, and is strict.
        """
        queued = [self._queued[entry] for entry in entries if entry in self._queued]
        if not queued:
            return
        family, depth = queued[0][0], min(depth for _, depth in queued)
        count = self.unmatched(connection, family, depth)
        if not count:
            return
        text = (
            f'{counted(len(entries), "new request")} for a model are about to be sent, while the journal has {count} '
            'of an earlier run for it that nothing has matched. If this is the same job, something in its '
            'requests changes from run to run, such as a date in a prompt or the version of an SDK, and it is paid for '
            'again'
        )
        if strict:
            raise JournalMiss(f'{text}. Nothing was sent, as the journal is strict: a new job takes a new file.')
        if family not in self._warned:
            self._warned.add(family)
            _log.warning('%s. A new job takes a new file; `Journal(path, strict=True)` refuses instead.', text)

    def handle(self, text: str) -> Batch:
        """A batch's handle as it was written down. It is read once, and not for every request of the batch."""
        if (batch := self._handles.get(text)) is None:
            batch = self._handles[text] = _BATCHES.validate_json(text)
            if len(self._handles) > _MAX_HANDLES:
                self._handles.popitem(last=False)
        return batch
