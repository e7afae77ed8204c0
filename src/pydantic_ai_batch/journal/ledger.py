"""What a journal records of requests, batches and results, and in what order that is safe.

A request is written down before it is queued, and its batch before it is created; the batch's handle once it is known;
each result as it is read. A later process that makes the same request again takes over what became of it.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import datetime
from sqlite3 import Connection
from typing import Any, Literal, cast

from pydantic import TypeAdapter
from pydantic_ai.models.batch import Batch, BatchResult, BatchResultStatus

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.compat import group_of
from pydantic_ai_batch.exceptions import JournalError
from pydantic_ai_batch.lanes.base import Lane, Sought, line_number
from pydantic_ai_batch.policy import CheckHistory

from .digests import Fingerprint
from .store import Store

_log = logging.getLogger('pydantic_ai_batch')

_BATCHES = TypeAdapter(Batch)
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
    created: Batch
    """The batch as it was created, which says what may be deleted for it."""
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
    taken: bool = False
    """Whether it was made before."""
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
    created: Batch | None
    history: CheckHistory
    looked_at: float | None


@dataclass(frozen=True)
class Unsettled:
    """A batch that was intended and of which nobody knows whether it was created."""

    sought: Sought
    intended_at: float


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
        """Take over, for each request, what an earlier process left of one like it, or write it down as a new one."""
        now = self.clock.now()

        def work(connection: Connection) -> list[Claim]:
            batches: dict[str, _BatchRow] = {}
            claims = [self._claim(connection, fingerprint, now, batches) for fingerprint in fingerprints]
            me = self.store.session
            connection.executemany(
                'INSERT OR IGNORE INTO claims VALUES (?, ?)', [(claim.entry, me) for claim in claims]
            )
            return claims

        return await self.store.do(work)

    def _claim(
        self, connection: Connection, fingerprint: Fingerprint, now: float, batches: dict[str, _BatchRow]
    ) -> Claim:
        me, memory = self.store.session, self._memory
        after = memory.after(connection, fingerprint)
        if after is None and self.store.others:
            after = 0
        if after is not None:
            memory.unmatched(connection, fingerprint.family)
            mine = 'AND session = ?' if self.share else ''
            row = connection.execute(
                f'{_LOOK} WHERE r.digest = ? AND r.failed IS NULL AND r.id > ? AND NOT EXISTS '
                f'(SELECT 1 FROM claims WHERE request = r.id {mine}) ORDER BY r.id LIMIT 1',
                (fingerprint.digest, after, me) if self.share else (fingerprint.digest, after),
            ).fetchone()
            if row is not None:
                memory.claimed(fingerprint, row[0])
                return self._state(connection, row, batches)
        entry = connection.execute(
            'INSERT INTO requests (digest, family, depth, session, made_at) VALUES (?, ?, ?, ?, ?)',
            (fingerprint.digest, fingerprint.family, fingerprint.depth, me, now),
        ).lastrowid
        assert entry is not None
        memory.claimed(fingerprint, entry, new=True)
        return Claim(entry, 'mine')

    async def unmatched(self, family: str) -> int:
        """How many requests of earlier processes for the same model nothing has matched so far."""
        return await self.store.do(lambda connection: self._memory.unmatched(connection, family))

    async def look_for_misses(self, entries: Sequence[int]) -> None:
        """Say so if earlier processes left requests that nothing has matched, before new ones are sent.

        Raises:
            JournalMiss: They did, and the journal is strict.
        """
        await self.store.do(lambda connection: self._memory.look_for_misses(connection, entries, strict=self.strict))

    async def look(self, entry: int) -> Claim | None:
        """What has become of a request that was claimed; `None` if it is not in the journal any more.

        If nobody is left to send it, it is this process's to send.
        """

        def work(connection: Connection) -> Claim | None:
            row = connection.execute(f'{_LOOK} WHERE r.id = ? AND r.failed IS NULL', (entry,)).fetchone()
            return self._state(connection, row, {}) if row is not None else None

        return await self.store.do(work)

    def _state(self, connection: Connection, row: Any, batches: dict[str, _BatchRow]) -> Claim:
        """What the row of a request says. Batches are remembered, as many requests are in one."""
        entry, tag, place, resubmissions, held_since, session, has_result = cast('tuple[Any, ...]', row)
        me, others = self.store.session, self.store.others
        claim = Claim(entry, 'elsewhere', True, resubmissions, held_since, tag)
        if tag is None:
            if session not in others:
                connection.execute('UPDATE requests SET session = ? WHERE id = ?', (me, entry))
                claim.state = 'mine'
            return claim
        if (batch := batches.get(tag)) is None:
            batch = batches[tag] = self._batch(connection, tag)
        if batch.handle is not None and batch.created is not None:
            claim.state = 'placed'
            claim.place = Place(
                tag, place, batch.handle, batch.created, batch.history, batch.looked_at, bool(has_result)
            )
        elif batch.state == 'unsettled' or (batch.creator != me and batch.creator not in others):
            claim.state = 'unsettled'
        return claim

    def _batch(self, connection: Connection, tag: str) -> _BatchRow:
        state, creator, handle, created, checks, looked_at = connection.execute(
            'SELECT state, session, handle, created, checks, checked_at FROM batches WHERE tag = ?', (tag,)
        ).fetchone()
        return _BatchRow(
            state,
            creator,
            self._memory.handle(handle) if handle is not None else None,
            self._memory.handle(created) if created is not None else None,
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

        return await self.store.do(work)

    def _requeue(
        self, connection: Connection, custom_id: str, held_since: float | None, counted: bool, me: int
    ) -> Claim | None:
        tag, place = _parsed(custom_id)
        row = connection.execute(
            'SELECT id, resubmissions FROM requests WHERE tag = ? AND place = ?', (tag, place)
        ).fetchone()
        if row is None:
            row = connection.execute('SELECT request FROM moves WHERE tag = ? AND place = ?', (tag, place)).fetchone()
            return Claim(row[0], 'elsewhere', taken=True) if row is not None else None
        connection.execute('DELETE FROM results WHERE request = ?', row[:1])
        resubmissions = row[1] + int(counted)
        connection.execute(
            'UPDATE requests SET tag = NULL, place = NULL, resubmissions = ?, held_since = ?, session = ? WHERE id = ?',
            (resubmissions, held_since, me, row[0]),
        )
        connection.execute('INSERT OR IGNORE INTO claims VALUES (?, ?)', (row[0], me))
        connection.execute('INSERT OR REPLACE INTO moves VALUES (?, ?, ?)', (tag, place, row[0]))
        return Claim(row[0], 'mine', taken=True, resubmissions=resubmissions, held_since=held_since)

    def withdraw(self, entry: int) -> None:
        """Forget a request that was queued and is not sent after all."""
        me = self.store.session

        def work(connection: Connection) -> None:
            connection.execute('DELETE FROM claims WHERE request = ? AND session = ?', (entry, me))
            self._memory.rewind(connection, entry)
            if connection.execute('SELECT 1 FROM claims WHERE request = ?', (entry,)).fetchone():
                # Whoever waits for it here sends it.
                connection.execute('UPDATE requests SET session = 0 WHERE id = ? AND tag IS NULL', (entry,))
            else:
                connection.execute('DELETE FROM requests WHERE id = ? AND tag IS NULL', (entry,))

        self._post(work)

    def release(self, custom_id: str) -> None:
        """Let the next one who makes the same request, in this process too, take it over."""
        tag, place = _parsed(custom_id)
        me = self.store.session

        def work(connection: Connection) -> None:
            row = connection.execute('SELECT id FROM requests WHERE tag = ? AND place = ?', (tag, place)).fetchone()
            if row is not None:
                connection.execute('DELETE FROM claims WHERE request = ? AND session = ?', (row[0], me))
                self._memory.rewind(connection, row[0])

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
            connection.executemany(
                'UPDATE requests SET tag = ?, place = ?, session = ? WHERE id = ?',
                [(payload.tag, place, me, entry) for place, entry in enumerate(entries)],
            )
            for entry in entries:
                self._memory.placed(entry)

        await self.store.do(work)

    async def submitted(self, tag: str, batch: Batch) -> None:
        """Write down that a batch was created. A journal that cannot take that says so, and the batch goes on."""
        handle = _dumped(batch)

        def work(connection: Connection) -> None:
            connection.execute(
                "UPDATE batches SET state = 'running', batch_id = ?, created = ?, handle = ? WHERE tag = ?",
                (batch.id, handle, handle, tag),
            )

        try:
            await self.store.do(work)
        except JournalError as error:
            _log.error('Batch %s was created, and that could not be written down: %s', batch.id, error)

    async def dropped(self, tag: str, *, failed: bool) -> None:
        """Write down that a batch was not created: its requests failed, or are to be sent some other time."""

        def work(connection: Connection) -> None:
            if failed:
                connection.execute(
                    'DELETE FROM claims WHERE request IN (SELECT id FROM requests WHERE tag = ?)', (tag,)
                )
                connection.execute('DELETE FROM requests WHERE tag = ?', (tag,))
            else:
                connection.execute('UPDATE requests SET tag = NULL, place = NULL WHERE tag = ?', (tag,))
            connection.execute("DELETE FROM batches WHERE tag = ? AND state IN ('intended', 'unsettled')", (tag,))

        await self._survivable(work)

    def unsettled(self, tag: str) -> None:
        """Record that nobody knows whether a batch was created, and that nobody is finding out."""

        def work(connection: Connection) -> None:
            connection.execute("UPDATE batches SET state = 'unsettled' WHERE tag = ? AND state = 'intended'", (tag,))

        self._post(work)

    async def settling(self, tag: str) -> Unsettled | None:
        """Take it on to find out whether a batch was created; `None` if another one has, or it is known by now."""
        me, others = self.store.session, self.store.others

        def work(connection: Connection) -> Unsettled | None:
            row = connection.execute(
                'SELECT session, state, "group", requests, intended_at FROM batches WHERE tag = ?', (tag,)
            ).fetchone()
            if row is None:
                return None
            session, state, group, count, intended_at = cast('tuple[Any, ...]', row)
            if state not in ('intended', 'unsettled') or (state == 'intended' and (session == me or session in others)):
                return None
            connection.execute("UPDATE batches SET session = ?, state = 'intended' WHERE tag = ?", (me, tag))
            return Unsettled(Sought(tag, group, count), intended_at)

        return await self.store.do(work)

    async def absent(self, tag: str) -> None:
        """Write down that a batch was never created, so that its requests are whoever's who makes them first."""

        def work(connection: Connection) -> None:
            connection.execute('UPDATE requests SET tag = NULL, place = NULL, session = 0 WHERE tag = ?', (tag,))
            connection.execute("DELETE FROM batches WHERE tag = ? AND state IN ('intended', 'unsettled')", (tag,))

        await self.store.do(work)

    def checked(self, batch: Batch, history: CheckHistory) -> None:
        """Record what a check of a batch came to."""
        handle, checks, now = _dumped(batch), json.dumps(asdict(history), default=datetime.isoformat), self.clock.now()

        def work(connection: Connection) -> None:
            connection.execute(
                'UPDATE batches SET handle = ?, checks = ?, checked_at = ? WHERE batch_id = ?',
                (handle, checks, now, batch.id),
            )

        self._post(work)

    async def ended(self, batch: Batch) -> None:
        """Record that all results of a batch were read."""
        handle, now = _dumped(batch), self.clock.now()

        def work(connection: Connection) -> None:
            connection.execute(
                "UPDATE batches SET state = 'ended', handle = ?, ended_at = ? WHERE batch_id = ?",
                (handle, now, batch.id),
            )

        await self._survivable(work)

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

    async def left(self, lane: Lane, group: str) -> tuple[list[str], list[Batch]]:
        """What earlier processes left to do at a provider, for the credential of `group`.

        Returns:
            The tags of batches of which nobody knows whether they were created, and the batches, as they ended, that
            were read and whose input may still be there.
        """
        me, others, credential = self.store.session, self.store.others, _credential(group)

        def work(connection: Connection) -> tuple[list[str], list[Batch]]:
            unsettled: list[str] = []
            uncleaned: list[Batch] = []
            rows = connection.execute(
                'SELECT tag, session, state, "group", handle FROM batches WHERE lane = ? AND '
                "(state IN ('intended', 'unsettled') OR (state = 'ended' AND cleaned = 0))",
                (lane.info.name,),
            ).fetchall()
            for tag, session, state, of, handle in cast('list[tuple[Any, ...]]', rows):
                if session == me or session in others or _credential(of) != credential:
                    continue
                if state == 'ended':
                    uncleaned.append(self._memory.handle(handle))
                else:
                    unsettled.append(tag)
            return unsettled, uncleaned

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
        """Write down the handle of a list of requests."""
        now = self.clock.now()

        def work(connection: Connection) -> None:
            connection.execute('INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)', (job_id, job, now))

        await self.store.do(work)

    async def job(self, job_id: str) -> str | None:
        """The handle of a list of requests, as it was written down."""
        row = await self.store.do(
            lambda connection: connection.execute('SELECT job FROM jobs WHERE id = ?', (job_id,)).fetchone()
        )
        return row[0] if row is not None else None

    # Parts of them

    def _post(self, work: Callable[[Connection], None]) -> None:
        """Have something recorded that costs no more than a repeated look at the provider if it is lost."""
        future = self.store.post(work)
        future.add_done_callback(_log_failure)

    async def _survivable(self, work: Callable[[Connection], None]) -> None:
        try:
            await self.store.do(work)
        except JournalError as error:
            _log.error('%s', error)


def _log_failure(future: Future[None]) -> None:
    if (error := future.exception()) is not None:
        _log.error('Something could not be written down, and may be looked up again: %s', error)


_LOOK = (
    'SELECT r.id, r.tag, r.place, r.resubmissions, r.held_since, r.session, '
    'EXISTS (SELECT 1 FROM results WHERE request = r.id) FROM requests r'
)


def _parsed(custom_id: str) -> tuple[str, int]:
    """The tag and the place that an ID on the wire is made of; a place that there is none of for any other ID."""
    place = line_number(custom_id)
    return custom_id.rpartition('-')[0], -1 if place is None else place


def _dumped(batch: Batch) -> str:
    # What a provider says may hold half a character, which only this writer takes.
    return json.dumps(_BATCHES.dump_python(batch, mode='json', warnings=False))


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
