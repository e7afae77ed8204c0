"""What a process remembers of a journal, so that it need not ask the file for every request.

Only the journal's own thread touches it, and what a transaction changed is taken back with it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from sqlite3 import Connection
from typing import Any

from pydantic_ai.models.batch import Batch

from pydantic_ai_batch.compat import load_batch
from pydantic_ai_batch.exceptions import JournalMiss
from pydantic_ai_batch.wording import counted

from .digests import Fingerprint

_log = logging.getLogger('pydantic_ai_batch')

_MAX_HANDLES = 256
_NOTHING: Any = object()


class Memory:
    """The part of a journal that one process has in mind."""

    def __init__(self) -> None:
        self._newest_before: int | None = None
        """The newest request that was there when this process came; `None` until that is known."""
        self._claimed: dict[bytes, int] = {}
        """By digest, the last request that this process claimed with all before it."""
        self._queued: dict[int, tuple[str, int]] = {}
        """Family and depth of the requests that a part of this process is about to send."""
        self._unmatched: dict[tuple[str, int], int] = {}
        """By family and depth, how many requests of earlier processes nothing has matched."""
        self._matched: dict[int, tuple[str, int]] = {}
        """The requests of earlier processes that this one has claimed, as far as they were counted there."""
        self._families: set[str] = set()
        """The families for which that is known."""
        self._warned: set[str] = set()
        self.told_of_own = False
        """Whether it was said that a request is made again that was answered."""
        self.told_of_others = False
        """Whether it was said that another process makes the same requests."""
        self._handles: OrderedDict[str, Batch] = OrderedDict()
        self.unwritten: dict[str, tuple[str, str]] = {}
        """By tag, ID and handle of batches that were created while the journal could not be written."""
        self._undo: list[Callable[[], object]] = []

    # Transactions

    def begin(self) -> None:
        """Begin a transaction."""
        self._undo.clear()

    def roll_back(self) -> None:
        """Take back what was remembered since."""
        while self._undo:
            self._undo.pop()()

    def _set(self, where: dict[Any, Any], key: object, value: object) -> None:
        self._undo_of(where, key)
        where[key] = value

    def _drop(self, where: dict[Any, Any], key: object) -> None:
        self._undo_of(where, key)
        where.pop(key, None)

    def _undo_of(self, where: dict[Any, Any], key: object) -> None:
        before = where.get(key, _NOTHING)
        if before is _NOTHING:
            self._undo.append(lambda: where.pop(key, None))
        else:
            self._undo.append(lambda: where.__setitem__(key, before))

    # Requests

    def last_claimed(self, digest: bytes) -> int:
        """The request of a digest that this process claimed last: those to be claimed come after it."""
        return self._claimed.get(digest, 0)

    def claimed(self, fingerprint: Fingerprint, entry: int, *, new: bool = False, first: bool = True) -> None:
        """Remember that a request is this process's, from an earlier one or newly made.

        Args:
            fingerprint: What it is recognised by.
            entry: What it is in the journal.
            new: Whether it was newly made.
            first: Whether there is none before it of that digest that may still be claimed.
        """
        if first:
            self._set(self._claimed, fingerprint.digest, entry)
        matched = fingerprint.family, fingerprint.depth
        if not new and entry <= (self._newest_before or 0) and self._unmatched.get(matched):
            self._set(self._unmatched, matched, self._unmatched[matched] - 1)
            self._set(self._matched, entry, matched)

    def sends(self, entry: int) -> bool:
        """Whether a part of this process is about to send a request."""
        return entry in self._queued

    def queued(self, entry: int, family: str, depth: int) -> None:
        """Remember that a part of this process is about to send a request."""
        self._set(self._queued, entry, (family, depth))

    def placed(self, entry: int) -> None:
        """Remember that a request is in a batch."""
        self._drop(self._queued, entry)

    def rewind(self, connection: Connection, entry: int) -> None:
        """Let a request be claimed again by this process."""
        self._drop(self._queued, entry)
        row = connection.execute('SELECT digest FROM requests WHERE id = ?', (entry,)).fetchone()
        if row is not None and self._claimed.get(row[0], 0) >= entry:
            self._set(self._claimed, row[0], entry - 1)
        if (matched := self._matched.get(entry)) is not None:
            self._drop(self._matched, entry)
            self._set(self._unmatched, matched, self._unmatched.get(matched, 0) + 1)

    def written(self, tag: str) -> None:
        """Remember that a batch is written down that could not be when it was created."""
        self._drop(self.unwritten, tag)

    # Misses

    def came(self, connection: Connection) -> None:
        """Note what was there when this process came, the first time."""
        if self._newest_before is None:
            self._newest_before = connection.execute('SELECT coalesce(max(id), 0) FROM requests').fetchone()[0]

    def unmatched(self, connection: Connection, family: str, depth: int | None = None) -> int:
        """How many requests of earlier processes nothing has matched, up to a depth.

        Those that are deeper come when the answers before them are there.
        """
        if family not in self._families:
            self._families.add(family)
            for at, count in connection.execute(
                'SELECT depth, count(*) FROM requests r WHERE family = ? AND failed IS NULL AND id <= ? '
                'AND tag NOT NULL AND NOT EXISTS (SELECT 1 FROM claims WHERE request = r.id) '
                # A run over rows does not make those again whose rows are done with.
                'AND NOT (EXISTS (SELECT 1 FROM runs) AND EXISTS (SELECT 1 FROM batches b WHERE b.tag = r.tag '
                "AND b.state = 'ended')) GROUP BY depth",
                (family, self._newest_before or 0),
            ).fetchall():
                self._unmatched[family, at] = count
        return sum(
            count for (of, at), count in self._unmatched.items() if of == family and (depth is None or at <= depth)
        )

    def missed(self, connection: Connection, entries: Sequence[int]) -> tuple[int, str]:
        """How many requests of earlier processes nothing has matched that could have been any of `entries`.

        Returns:
            Their number, and the family that they are of.
        """
        queued = [self._queued[entry] for entry in entries if entry in self._queued]
        families: dict[str, int] = {}
        for family, depth in queued:
            families[family] = min(depth, families.get(family, depth))
        missed = {family: self.unmatched(connection, family, depth) for family, depth in families.items()}
        return sum(missed.values()), next((family for family, count in missed.items() if count), '')

    def look_for_misses(self, connection: Connection, entries: Sequence[int], *, strict: bool) -> None:
        """Say so, before new requests are sent, if the journal has others like them that nothing has matched.

        Raises:
            JournalMiss: It has, and is strict.
        """
        count, family = self.missed(connection, entries)
        if not count:
            return
        text = (
            f'{counted(len(entries), "new request")} {"is" if len(entries) == 1 else "are"} about to be sent, while '
            f'the journal has {count} of an earlier run for the same model that nothing has matched. If this is the '
            'same job, something in its requests changes from run to run, such as a date in a prompt, what a tool '
            'returns or the version of an SDK, and it is paid for again'
        )
        if strict:
            raise JournalMiss(f'{text}. Nothing was sent, as the journal is strict: a new job takes a new file.')
        if family not in self._warned:
            self._warned.add(family)
            _log.warning('%s. A new job takes a new file; `Journal(path, strict=True)` refuses instead.', text)

    # Batches

    def handle(self, text: str) -> Batch:
        """A batch's handle as it was written down. It is read once, and not for every request of the batch."""
        if (batch := self._handles.get(text)) is None:
            batch = self._handles[text] = load_batch(text)
            if len(self._handles) > _MAX_HANDLES:
                self._handles.popitem(last=False)
        return batch
