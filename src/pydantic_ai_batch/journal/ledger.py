"""What a journal records of requests, batches and results, and in what order that is safe.

A request is written down before it is queued, and its batch before it is created; the batch's handle once it is known;
each result as it is read. A later process that makes the same request again takes over what became of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import datetime
from sqlite3 import Connection
from typing import Any, Literal, TypeVar, cast

from pydantic import TypeAdapter
from pydantic_ai.models.batch import Batch, BatchResult, BatchResultStatus

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.compat import dump_batch, group_of
from pydantic_ai_batch.exceptions import JournalError
from pydantic_ai_batch.lanes.base import Lane, Sought, line_number
from pydantic_ai_batch.policy import CheckHistory
from pydantic_ai_batch.wording import counted

from .digests import Fingerprint
from .store import Store

_log = logging.getLogger('pydantic_ai_batch')

_CHECKS = TypeAdapter(CheckHistory)
_PAGE = 500
"""How many stored results are in memory at a time while they are read."""


@dataclass(slots=True)
class Place:
    """Where a request is: the batch, which exists, and the request's place in it."""

    tag: str
    place: int
    batch: Batch
    """The batch as it was last read."""
    history: CheckHistory
    """What its checks came to so far."""
    looked_at: float | None
    """When the last of them was made."""
    answered: bool
    """Whether its result is in the journal."""

    @property
    def custom_id(self) -> str:
        """The request's ID on the wire."""
        return f'{self.tag}-{self.place}'


@dataclass(slots=True)
class Claim:
    """A request as the journal has it."""

    entry: int
    state: Literal['mine', 'placed', 'unsettled', 'elsewhere']
    """`mine`: it is in no batch, and for this process to send. `placed`: it is in a batch. `unsettled`: it is in a
    batch that may not exist. `elsewhere`: another process, or another part of this one, is about to send it."""
    resubmissions: int = 0
    held_since: float | None = None
    tag: str | None = None
    place: Place | None = None


@dataclass(frozen=True)
class _BatchRow:
    """What the journal has of a batch."""

    state: str
    creator: int
    handle: Batch | None
    history: CheckHistory
    looked_at: float | None


@dataclass(frozen=True)
class Unsettled:
    """A batch that was intended and of which nobody knows whether it was created."""

    sought: Sought
    intended_at: float


@dataclass(frozen=True)
class Left:
    """What earlier processes left to do at a provider."""

    unsettled: list[str]
    """The tags of batches of which nobody knows whether they were created."""
    unended: list[Batch]
    """Batches all of whose results were read, and that are not known to have ended."""
    uncleaned: list[Batch]
    """Batches, as they ended, that were read and whose input may still be there."""


C = TypeVar('C', bound='Claim | None')


class Ledger:
    """The journal as one capability or call goes by it."""

    def __init__(
        self, store: Store, clock: Clock, *, share: bool, strict: bool, keeps: bool, resend_lost: bool
    ) -> None:
        self.store = store
        self.clock = clock
        self.share = share
        self.strict = strict
        self.keeps = keeps
        """Whether a batch goes on when what waits for it is cancelled."""
        self.resend_lost = resend_lost
        self._memory = store.memory

    # Requests

    async def claim(self, fingerprints: Sequence[Fingerprint]) -> list[Claim]:
        """Take over, for each request, what an earlier process left of one like it, or write it down as a new one.

        If this is cancelled, nothing is claimed.
        """
        now = self.clock.now()

        def work(connection: Connection) -> list[Claim]:
            self._memory.came(connection)
            batches: dict[str, _BatchRow] = {}
            return [self._claim(connection, fingerprint, now, batches) for fingerprint in fingerprints]

        return await self._done_or_withdrawn(work)

    async def _done_or_withdrawn(self, work: Callable[[Connection], list[C]]) -> list[C]:
        """Do work that claims requests. If this is cancelled, they are let go before anything else is done."""
        claims: list[C] = []

        def noted(connection: Connection) -> None:
            # It may be done a second time, if what shares its transaction fails.
            claims[:] = work(connection)

        future = self.store.post(noted)
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # It is done all the same, for nobody.
            self._post(
                lambda connection: [self._withdraw(connection, claim.entry) for claim in claims if claim is not None]
            )
            raise
        return claims

    def _claim(
        self, connection: Connection, fingerprint: Fingerprint, now: float, batches: dict[str, _BatchRow]
    ) -> Claim:
        me, memory = self.store.session, self._memory
        memory.unmatched(connection, fingerprint.family)
        if (row := self._unclaimed(connection, fingerprint)) is not None:
            connection.execute('INSERT OR IGNORE INTO claims VALUES (?, ?)', (row[0], me))
            return self._state(connection, row, batches)
        self._tell_of_equals(connection, fingerprint, memory.last_claimed(fingerprint.digest))
        entry = connection.execute(
            'INSERT INTO requests (digest, family, depth, session, made_at) VALUES (?, ?, ?, ?, ?)',
            (fingerprint.digest, fingerprint.family, fingerprint.depth, me, now),
        ).lastrowid
        assert entry is not None
        connection.execute('INSERT INTO claims VALUES (?, ?)', (entry, me))
        memory.claimed(fingerprint, entry, new=True)
        memory.queued(entry, fingerprint.family, fingerprint.depth)
        return Claim(entry, 'mine')

    def _unclaimed(self, connection: Connection, fingerprint: Fingerprint) -> Any:
        """The row of a request of this fingerprint that is there to be taken over, if there is one.

        Of several, one that was sent goes before one that was not, which would be paid for, and one that was sent with
        the same credential before another one's, which may be in a batch that this one cannot see.
        """
        taken = f'SELECT 1 FROM claims WHERE request = r.id{" AND session = ?" if self.share else ""}'
        free = f'WHERE r.digest = ? AND r.id > ? AND r.failed IS NULL AND NOT EXISTS ({taken})'
        after = self._memory.last_claimed(fingerprint.digest)
        values = (fingerprint.digest, after, *((self.store.session,) if self.share else ()))
        rows = connection.execute(f'{_LOOK} {free} ORDER BY r.id LIMIT 2', values).fetchall()
        if not rows:
            return None
        chosen = rows[0]
        if len(rows) > 1:
            sent = f'{_LOOK} JOIN batches b ON b.tag = r.tag {free}'
            chosen = (
                connection.execute(
                    f'{sent} AND b."group" = ? ORDER BY r.id LIMIT 1', (*values, fingerprint.group)
                ).fetchone()
                or connection.execute(f'{sent} ORDER BY r.id LIMIT 1', values).fetchone()
                or chosen
            )
        self._memory.claimed(fingerprint, chosen[0], first=chosen[0] == rows[0][0])
        return chosen

    def _tell_of_equals(self, connection: Connection, fingerprint: Fingerprint, last: int) -> None:
        """Say, once each, if a new request is like one that was answered here, or that another process has now."""
        memory, store = self._memory, self.store
        answered = 'SELECT 1 FROM results WHERE request = ?'
        if last and not memory.told_of_own and connection.execute(answered, (last,)).fetchone():
            memory.told_of_own = True
            _log.warning(
                'A request is sent that is equal to one which this process was answered before: each is a request of '
                'its own. To take the answers of the journal %s over instead, as when a cell of a notebook is run '
                'again, call `close()` on it before, or start a new process.',
                store.path.name,
            )
        if store.others and not self.share and not memory.told_of_others:
            row = connection.execute(
                'SELECT s.pid, s.host FROM requests r JOIN claims c ON c.request = r.id JOIN sessions s '
                'ON s.id = c.session WHERE r.digest = ? AND c.session != ? LIMIT 1',
                (fingerprint.digest, store.session),
            ).fetchone()
            if row is not None:
                memory.told_of_others = True
                _log.warning(
                    'Process %d on %s, which is running, has made requests of this one already, and each process sends '
                    'its own: with `Journal(path, share=True)` they would share them.',
                    *row,
                )

    async def unmatched(self, family: str) -> int:
        """How many requests of earlier processes for the same model nothing has matched so far."""
        return await self.store.do(lambda connection: self._memory.unmatched(connection, family))

    async def missed(self, entries: Sequence[int]) -> int:
        """How many requests of earlier processes nothing has matched that could have been any of `entries`."""
        return await self.store.do(lambda connection: self._memory.missed(connection, entries)[0])

    async def look_for_misses(self, entries: Sequence[int]) -> None:
        """Say so if earlier processes left requests that nothing has matched, before new ones are sent.

        Raises:
            JournalMiss: They did, and the journal is strict.
        """
        await self.store.do(lambda connection: self._memory.look_for_misses(connection, entries, strict=self.strict))

    async def sender(self, entry: int) -> str:
        """Who is about to send a request."""

        def work(connection: Connection) -> str:
            row = connection.execute(
                'SELECT s.id, s.pid, s.host FROM requests r LEFT JOIN batches b ON b.tag = r.tag '
                'JOIN sessions s ON s.id = coalesce(b.session, r.session) WHERE r.id = ?',
                (entry,),
            ).fetchone()
            if row is None:
                return 'about to be sent by another process'
            if row[0] == self.store.session:
                return 'about to be sent by another part of this process'
            return f'about to be sent by process {row[1]} on {row[2]}'

        return await self.store.do(work)

    async def look(self, entries: Sequence[int]) -> list[Claim | None]:
        """What has become of requests that were claimed; `None` for one that is not in the journal any more.

        One that nobody is left to send is this process's to send.
        """

        def work(connection: Connection) -> list[Claim | None]:
            batches: dict[str, _BatchRow] = {}
            rows = [
                connection.execute(f'{_LOOK} WHERE r.id = ? AND r.failed IS NULL', (entry,)).fetchone()
                for entry in entries
            ]
            return [self._state(connection, row, batches) if row is not None else None for row in rows]

        return await self.store.do(work)

    def _state(self, connection: Connection, row: Any, batches: dict[str, _BatchRow]) -> Claim:
        """What the row of a request says. Batches are remembered, as many requests are in one."""
        entry, tag, place, resubmissions, held_since, session, family, depth, has_result = cast('tuple[Any, ...]', row)
        store, memory = self.store, self._memory
        claim = Claim(entry, 'elsewhere', resubmissions, held_since, tag)
        if tag is None:
            if not memory.sends(entry) and (session == store.session or not store.is_alive(connection, session)):
                connection.execute('UPDATE requests SET session = ? WHERE id = ?', (store.session, entry))
                memory.queued(entry, family, depth)
                claim.state = 'mine'
            return claim
        if (batch := batches.get(tag)) is None:
            batch = batches[tag] = self._batch(connection, tag)
        if batch.handle is not None:
            claim.state = 'placed'
            claim.place = Place(tag, place, batch.handle, batch.history, batch.looked_at, bool(has_result))
        elif batch.state == 'unsettled' or not store.is_alive(connection, batch.creator):
            claim.state = 'unsettled'
        return claim

    def _batch(self, connection: Connection, tag: str) -> _BatchRow:
        state, creator, handle, checks, looked_at = connection.execute(
            'SELECT state, session, handle, checks, checked_at FROM batches WHERE tag = ?', (tag,)
        ).fetchone()
        if handle is None and (unwritten := self._memory.unwritten.get(tag)) is not None:
            handle = unwritten[1]
        return _BatchRow(
            state,
            creator,
            self._memory.handle(handle) if handle is not None else None,
            _CHECKS.validate_json(checks) if checks is not None else CheckHistory(),
            looked_at,
        )

    async def requeue(self, requests: Sequence[tuple[str, float | None]], *, counted: bool) -> list[Claim | None]:
        """Take requests out of their batch to send them again.

        Args:
            requests: The ID of each in the batch, and when a full queue first sent it back.
            counted: Whether that counts as a resubmission.

        Returns:
            Each request: `mine` if it is for this process to send, `elsewhere` if it was sent again before. `None` if
            the journal does not know it.
        """
        me = self.store.session

        def work(connection: Connection) -> list[Claim | None]:
            return [self._requeue(connection, custom_id, held, counted, me) for custom_id, held in requests]

        return await self._done_or_withdrawn(work)

    def _requeue(
        self, connection: Connection, custom_id: str, held_since: float | None, counted: bool, me: int
    ) -> Claim | None:
        tag, place = _parsed(custom_id)
        row = connection.execute(
            'SELECT id, resubmissions, family, depth FROM requests WHERE tag = ? AND place = ?', (tag, place)
        ).fetchone()
        if row is None:
            row = connection.execute('SELECT request FROM moves WHERE tag = ? AND place = ?', (tag, place)).fetchone()
            return Claim(row[0], 'elsewhere') if row is not None else None
        entry, resubmissions, family, depth = row
        resubmissions += int(counted)
        connection.execute('DELETE FROM results WHERE request = ?', (entry,))
        connection.execute(
            'UPDATE requests SET tag = NULL, place = NULL, failed = NULL, resubmissions = ?, held_since = ?, '
            'session = ? WHERE id = ?',
            (resubmissions, held_since, me, entry),
        )
        connection.execute('INSERT OR IGNORE INTO claims VALUES (?, ?)', (entry, me))
        connection.execute('INSERT OR REPLACE INTO moves VALUES (?, ?, ?)', (tag, place, entry))
        self._memory.queued(entry, family, depth)
        return Claim(entry, 'mine', resubmissions=resubmissions, held_since=held_since)

    def withdraw(self, *entries: int) -> None:
        """Let go of requests, wherever they are: the next one who makes the same, in this process too, takes them over.

        One that was only queued, and is in no batch, is forgotten.
        """
        if not entries:
            return

        def work(connection: Connection) -> None:
            for entry in entries:
                self._withdraw(connection, entry)

        self._post(work)

    def _withdraw(self, connection: Connection, entry: int) -> None:
        me = self.store.session
        connection.execute('DELETE FROM claims WHERE request = ? AND session = ?', (entry, me))
        self._memory.rewind(connection, entry)
        row = connection.execute(
            'SELECT tag, session, resubmissions, held_since, EXISTS (SELECT 1 FROM claims WHERE request = r.id), '
            'EXISTS (SELECT 1 FROM moves WHERE request = r.id) FROM requests r WHERE id = ?',
            (entry,),
        ).fetchone()
        if row is None or row[0] is not None or row[1] != me:
            # It is in a batch, or for another process to send.
            return
        if row[2] or row[3] is not None or row[4] or row[5]:
            # Whoever waits for it here sends it, or whoever makes it again, who is to know how often it was sent.
            connection.execute('UPDATE requests SET session = 0 WHERE id = ?', (entry,))
        else:
            connection.execute('DELETE FROM requests WHERE id = ?', (entry,))

    def release(self, custom_id: str) -> None:
        """Let the next one who makes the same request, in this process too, take it over."""
        tag, place = _parsed(custom_id)

        def work(connection: Connection) -> None:
            row = connection.execute('SELECT id FROM requests WHERE tag = ? AND place = ?', (tag, place)).fetchone()
            if row is not None:
                self._withdraw(connection, row[0])

        self._post(work)

    def failed(self, custom_ids: Iterable[str], error: Exception) -> None:
        """Record that requests failed for good: made again by a later process, they are sent again."""
        places = [(f'{type(error).__name__}: {error}'[:500], *_parsed(custom_id)) for custom_id in custom_ids]

        def work(connection: Connection) -> None:
            connection.executemany('UPDATE requests SET failed = ? WHERE tag = ? AND place = ?', places)

        self._post(work)

    # Batches

    async def intend(self, lane: Lane, payload: Sought, entries: Sequence[int]) -> None:
        """Write down a batch before it is created. What this records is on the disk when it returns.

        Raises:
            JournalMiss: The journal is strict, and has requests of an earlier process that nothing has matched.
            JournalError: It could not be written down. Nothing may be sent.
        """
        me, now = self.store.session, self.clock.now()

        def work(connection: Connection) -> None:
            if connection.execute('SELECT 1 FROM batches WHERE tag = ?', (payload.tag,)).fetchone():
                return
            if entries:
                self._memory.look_for_misses(connection, entries, strict=self.strict)
            connection.execute(
                'INSERT INTO batches (tag, session, state, lane, model, "group", requests, intended_at) '
                "VALUES (?, ?, 'intended', ?, ?, ?, ?, ?)",
                (payload.tag, me, lane.info.name, lane.model.model_name, payload.group, payload.count, now),
            )
            placed = connection.executemany(
                'UPDATE requests SET tag = ?, place = ? WHERE id = ? AND tag IS NULL AND session = ?',
                [(payload.tag, place, entry, me) for place, entry in enumerate(entries)],
            )
            if placed.rowcount != len(entries):
                # Whoever has them now sends them.
                raise JournalError(
                    f'Of {counted(len(entries), "request")} that were about to be sent, the journal {self.store.path} '
                    f"has {len(entries) - placed.rowcount} no more as this process's: nothing was sent. Run them again."
                )
            for entry in entries:
                self._memory.placed(entry)

        await self.store.do(work)

    async def submitted(self, tag: str, batch: Batch) -> None:
        """Write down that a batch was created. A journal that cannot take that says so, and the batch goes on."""
        handle = dump_batch(batch)
        try:
            await self.store.do(lambda connection: self._created(connection, tag, batch.id, handle))
        except JournalError as error:
            _log.error('Batch %s was created, and that could not be written down: %s', batch.id, error)
            self._memory.unwritten[tag] = batch.id, handle

    @staticmethod
    def _created(connection: Connection, tag: str, batch_id: str, handle: str) -> None:
        connection.execute(
            "UPDATE batches SET state = 'running', batch_id = ?, created = ?, handle = ? WHERE tag = ?",
            (batch_id, handle, handle, tag),
        )

    def _write_what_was_not(self, connection: Connection) -> None:
        """Write down the batches that could not be when they were created."""
        for tag, (batch_id, handle) in list(self._memory.unwritten.items()):
            self._created(connection, tag, batch_id, handle)
            self._memory.written(tag)

    async def dropped(self, tag: str, *, failed: bool) -> None:
        """Write down that a batch was not created: its requests failed, or are to be sent some other time."""

        def work(connection: Connection) -> None:
            if failed:
                for (entry,) in connection.execute('SELECT id FROM requests WHERE tag = ?', (tag,)).fetchall():
                    self._memory.placed(entry)
                    self._forget(connection, entry)
            else:
                for entry, family, depth in connection.execute(
                    'SELECT id, family, depth FROM requests WHERE tag = ?', (tag,)
                ).fetchall():
                    self._memory.queued(entry, family, depth)
                connection.execute('UPDATE requests SET tag = NULL, place = NULL WHERE tag = ?', (tag,))
            connection.execute("DELETE FROM batches WHERE tag = ? AND state IN ('intended', 'unsettled')", (tag,))

        await self._survivable(work)

    @staticmethod
    def _forget(connection: Connection, entry: int) -> None:
        for table, column in (('claims', 'request'), ('moves', 'request'), ('requests', 'id')):
            connection.execute(f'DELETE FROM {table} WHERE {column} = ?', (entry,))

    def unsettled(self, tag: str) -> None:
        """Record that nobody knows whether a batch was created, and that nobody is finding out."""

        def work(connection: Connection) -> None:
            connection.execute("UPDATE batches SET state = 'unsettled' WHERE tag = ? AND state = 'intended'", (tag,))

        self._post(work)

    async def settling(self, tag: str) -> Unsettled | None:
        """Take it on to find out whether a batch was created; `None` if another one has, or it is known by now."""
        store = self.store

        def work(connection: Connection) -> Unsettled | None:
            row = connection.execute(
                'SELECT session, state, "group", requests, intended_at FROM batches WHERE tag = ?', (tag,)
            ).fetchone()
            if row is None:
                return None
            session, state, group, count, intended_at = cast('tuple[Any, ...]', row)
            if state not in ('intended', 'unsettled') or tag in self._memory.unwritten:
                return None
            if state == 'intended' and store.is_alive(connection, session):
                return None
            connection.execute("UPDATE batches SET session = ?, state = 'intended' WHERE tag = ?", (store.session, tag))
            return Unsettled(Sought(tag, group, count), intended_at)

        return await self.store.do(work)

    async def absent(self, tag: str) -> None:
        """Write down that a batch was never created.

        Its requests are this process's to send as far as it waits for them, and otherwise whoever's makes them first.
        """
        me = self.store.session

        def work(connection: Connection) -> None:
            connection.execute(
                'UPDATE requests SET tag = NULL, place = NULL, session = CASE WHEN EXISTS '
                '(SELECT 1 FROM claims WHERE request = requests.id AND session = ?) THEN ? ELSE 0 END WHERE tag = ?',
                (me, me, tag),
            )
            connection.execute("DELETE FROM batches WHERE tag = ? AND state IN ('intended', 'unsettled')", (tag,))

        await self.store.do(work)

    def checked(self, batch: Batch, history: CheckHistory) -> None:
        """Record what a check of a batch came to."""
        handle, checks, now = (
            dump_batch(batch),
            json.dumps(asdict(history), default=datetime.isoformat),
            self.clock.now(),
        )

        def work(connection: Connection) -> None:
            self._write_what_was_not(connection)
            connection.execute(
                'UPDATE batches SET handle = ?, checks = ?, checked_at = ? WHERE batch_id = ?',
                (handle, checks, now, batch.id),
            )

        self._post(work)

    async def ended(self, batch: Batch) -> None:
        """Record that all results of a batch were read."""
        handle, now = dump_batch(batch), self.clock.now()

        def work(connection: Connection) -> None:
            self._write_what_was_not(connection)
            connection.execute(
                "UPDATE batches SET state = 'ended', handle = ?, ended_at = ? WHERE batch_id = ?",
                (handle, now, batch.id),
            )

        await self._survivable(work)

    async def wanted_elsewhere(self, batch_id: str) -> bool:
        """Whether another process has claimed a request of a batch."""
        me = self.store.session
        return await self.store.do(
            lambda connection: (
                connection.execute(
                    'SELECT 1 FROM batches b JOIN requests r ON r.tag = b.tag JOIN claims c ON c.request = r.id '
                    'WHERE b.batch_id = ? AND c.session != ? LIMIT 1',
                    (batch_id, me),
                ).fetchone()
                is not None
            )
        )

    async def uncleaned(self, batch_id: str) -> Batch | None:
        """A batch as it was created, if what was uploaded for it is still there; `None` if it was deleted."""

        def work(connection: Connection) -> Batch | None:
            row = connection.execute(
                'SELECT created FROM batches WHERE batch_id = ? AND cleaned = 0', (batch_id,)
            ).fetchone()
            return self._memory.handle(row[0]) if row is not None else None

        try:
            return await self.store.do(work)
        except JournalError:
            return None

    def cleaned(self, batch_id: str) -> None:
        """Record that what was uploaded for a batch was deleted."""

        def work(connection: Connection) -> None:
            connection.execute('UPDATE batches SET cleaned = 1 WHERE batch_id = ?', (batch_id,))

        self._post(work)

    async def left(self, lane: Lane, group: str) -> Left:
        """What earlier processes left to do at a provider, for the credential of `group`."""
        store, credential = self.store, _credential(group)

        def work(connection: Connection) -> Left:
            left = Left([], [], [])
            rows = connection.execute(
                'SELECT tag, session, state, "group", handle FROM batches b WHERE lane = ? AND '
                "(state IN ('intended', 'unsettled') OR (state = 'ended' AND cleaned = 0) OR (state = 'running' AND "
                'requests <= (SELECT count(*) FROM requests r JOIN results ON request = r.id WHERE r.tag = b.tag)))',
                (lane.info.name,),
            ).fetchall()
            for tag, session, state, of, handle in cast('list[tuple[Any, ...]]', rows):
                if _credential(of) != credential or store.is_alive(connection, session):
                    continue
                if state in ('intended', 'unsettled'):
                    left.unsettled.append(tag)
                else:
                    (left.uncleaned if state == 'ended' else left.unended).append(self._memory.handle(handle))
            return left

        return await self.store.do(work)

    # Results

    async def read(self, results: Sequence[BatchResult]) -> None:
        """Write down results that were read. A journal that cannot take them says so."""
        now = self.clock.now()

        def work(connection: Connection) -> None:
            connection.executemany(
                'INSERT OR REPLACE INTO results (request, status, body, read_at) '
                'SELECT id, ?, ?, ? FROM requests WHERE tag = ? AND place = ?',
                ((result.status, _compressed(result.body), now, *_parsed(result.custom_id)) for result in results),
            )

        await self._survivable(work)

    async def result(self, custom_id: str, *, group: str | None = None) -> BatchResult | None:
        """The result of a request, if it is in the journal, for whoever asks.

        Args:
            custom_id: The request's ID on the wire.
            group: The group of the model that asks, whose credential must then be the batch's: a message history, which
                names the request, is the caller's data.
        """
        tag, place = _parsed(custom_id)
        me = self.store.session

        def work(connection: Connection) -> BatchResult | None:
            row = connection.execute(
                'SELECT r.id, b."group", s.status, s.body FROM requests r JOIN batches b ON b.tag = r.tag '
                'JOIN results s ON s.request = r.id WHERE r.tag = ? AND r.place = ?',
                (tag, place),
            ).fetchone()
            if row is None or (group is not None and _credential(row[1]) != _credential(group)):
                return None
            # An equal request that this process makes is another one.
            connection.execute('INSERT OR IGNORE INTO claims VALUES (?, ?)', (row[0], me))
            return _result(custom_id, row[2], row[3])

        return await self.store.do(work)

    async def results(self, tag: str, wanted: Iterable[str]) -> AsyncGenerator[BatchResult]:
        """The results of a batch that are in the journal, of those wanted."""
        places = {_parsed(custom_id)[1] for custom_id in wanted}
        after = -1
        while places:

            def work(connection: Connection, after: int = after) -> list[Any]:
                return connection.execute(
                    'SELECT r.place, s.status, s.body FROM requests r JOIN results s ON s.request = r.id '
                    'WHERE r.tag = ? AND r.place > ? ORDER BY r.place LIMIT ?',
                    (tag, after, _PAGE),
                ).fetchall()

            rows = await self.store.do(work)
            for place, status, body in rows:
                if place in places and (result := _result(f'{tag}-{place}', status, body)) is not None:
                    yield result
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    # Jobs

    async def keep_job(self, job_id: str, job: str) -> None:
        """Write down the handle of a list of requests. A journal that cannot take that says so."""
        now = self.clock.now()

        def work(connection: Connection) -> None:
            connection.execute('INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)', (job_id, job, now))

        await self._survivable(work)

    async def job(self, job_id: str) -> str | None:
        """The handle of a list of requests, as it was written down."""
        row = await self.store.do(
            lambda connection: connection.execute('SELECT job FROM jobs WHERE id = ?', (job_id,)).fetchone()
        )
        return row[0] if row is not None else None

    # Parts of them

    def _post(self, work: Callable[[Connection], object]) -> None:
        """Have something recorded that costs no more than a repeated look at the provider if it is lost."""
        future = self.store.post(work)
        future.add_done_callback(_log_failure)

    async def _survivable(self, work: Callable[[Connection], None]) -> None:
        try:
            await self.store.do(work)
        except JournalError as error:
            _log.error('%s', error)


async def is_kept(batch: Batch, ledger: Ledger | None) -> bool:
    """Whether a batch goes on when what waits for it here is cancelled: the next start wants it, or another process."""
    return ledger is not None and (ledger.keeps or await ledger.wanted_elsewhere(batch.id))


def _log_failure(future: Future[object]) -> None:
    if (error := future.exception()) is not None:
        _log.error('Something could not be written down, and may be looked up again: %s', error)


_LOOK = (
    'SELECT r.id, r.tag, r.place, r.resubmissions, r.held_since, r.session, r.family, r.depth, '
    'EXISTS (SELECT 1 FROM results WHERE request = r.id) FROM requests r'
)


def _parsed(custom_id: str) -> tuple[str, int]:
    """The tag and the place that an ID on the wire is made of; a place that there is none of for any other ID."""
    place = line_number(custom_id)
    return custom_id.rpartition('-')[0], -1 if place is None else place


def _compressed(body: str | None) -> bytes | None:
    return None if body is None else zlib.compress(body.encode('utf-8', 'surrogatepass'), 1)


def _result(custom_id: str, status: str, body: bytes | None) -> BatchResult | None:
    try:
        text = None if body is None else zlib.decompress(body).decode('utf-8', 'surrogatepass')
    except (zlib.error, UnicodeDecodeError):
        _log.warning('The result of request %s in the journal is damaged: it is read from the provider.', custom_id)
        return None
    return BatchResult(custom_id=custom_id, status=cast('BatchResultStatus', status), body=text)


def _credential(group: str) -> object:
    return group_of(group).get('credential')
