"""One list of requests on its way: its rows, the batches they are in, and what comes of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult

from . import creation, lifecycle
from .backpressure import Gate, TooMuchAtOnce, gates_here
from .batch_job import BatchJob, JobBatch
from .chunks import Chunk, Encoded, Requests, Row, as_model_error, fill
from .clock import Clock, utc
from .events import EventKind, Listener, Reporter, event_of
from .exceptions import JournalError, copy_of, is_gone, submitted_times, with_batch, with_job
from .journal.ledger import Claim, Ledger, Place, is_kept
from .lanes.base import Lane, NotRun, is_in
from .list_claims import ListClaims, Taken, hand_out
from .policy import Search, full_queue
from .pricing import priced
from .settings import BatchSettings
from .tasks import Tasks
from .wording import listed

_log = logging.getLogger('pydantic_ai_batch')

Outcome = ModelResponse | ModelAPIError


class Settled(Protocol):
    """Takes what came of a request for good: its outcome, what that was read from, and the batch that it was in."""

    def __call__(
        self, place: int, outcome: Outcome, result: BatchResult | NotRun | None, batch: Batch | None
    ) -> Awaitable[None] | None:
        """Take it, and return what to wait for before the next one, if anything."""
        ...


class ListCall:
    """Sends a list of requests, and sends again what is worth it, until each has its outcome."""

    def __init__(
        self,
        lane: Lane,
        settings: BatchSettings,
        clock: Clock,
        requests: Requests,
        settled: Settled,
        listener: Listener | None,
        ledger: Ledger | None = None,
        places: Iterable[int] | None = None,
    ) -> None:
        """Prepare to send a list.

        Args:
            lane: The lane of all of it.
            settings: The limits of the call.
            clock: What time is read from and slept on.
            requests: The requests of the list.
            settled: Called once for each that is sent, and awaited where it returns something to wait for.
            listener: Called with what happens.
            ledger: The journal, if there is one.
            places: Which of the requests are sent. `None` is all of them.
        """
        self.lane = lane
        self.ledger = ledger
        self.settings = settings
        self.clock = clock
        self.requests = requests
        self._reporter = Reporter(listener)
        self._settled = settled
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates = gates_here(clock)
        self._background = Tasks()
        """What no row waits for."""
        self._claims = ListClaims(lane, ledger, clock, self._background.start) if ledger is not None else None
        self.encoded = False
        """Whether every row was encoded, and is on its way."""
        self._rows = [Row(place) for place in (range(len(requests)) if places is None else places)]
        self._told: set[str] = set()
        """The batches of which it was logged that requests are sent again."""
        self._read: list[str] = []
        """The IDs of the batches whose results were all read."""

    async def run(self) -> None:
        """Send every row and wait for every answer; if that is cancelled, cancel the batches that have not ended."""
        try:
            await self._send(self._rows)
            self.encoded = True
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done
                for task in done:
                    task.result()
            await self._background.cancel()
        except BaseException:
            try:
                await self._background.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
            finally:
                # Answered or not: nobody hears of the answers. Also if this is cancelled a second time.
                if self.ledger is not None:
                    self.ledger.withdraw(*(row.entry for row in self._rows if row.entry is not None))
            if self._read:
                _log.warning('These batches had ended before the call was cancelled: %s.', ', '.join(self._read))
            raise

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Start what rows wait for."""
        self._tasks.add(asyncio.get_running_loop().create_task(work))

    async def _send(self, rows: Sequence[Row], *, at_most: int | None = None, search: Search | None = None) -> None:
        """Encode rows into batches, and start each as soon as it is full."""

        def refused(row: Row, error: ModelAPIError) -> None:
            self._report('refused')
            failed.append((row, error))

        failed: list[tuple[Row, ModelAPIError]] = []
        self._report('queued', len(rows))
        claims = self._claims
        chunks = fill(
            self.lane,
            self.settings,
            self.requests,
            rows,
            refused=refused,
            at_most=at_most,
            search=search,
            take=self._take if claims is not None else None,
        )
        async with aclosing(hand_out(chunks, claims)) as handed_out:
            async for chunk in handed_out:
                self._run(self._carry(chunk))
                await self._settle_refused(failed)
        await self._settle_refused(failed)
        self._take_over()

    async def _settle_refused(self, failed: list[tuple[Row, ModelAPIError]]) -> None:
        """Settle the rows that cannot be sent, and forget them here."""
        while failed:
            row, error = failed.pop()
            await self._finish(row, error)

    async def _finish(
        self, row: Row, outcome: Outcome, result: BatchResult | NotRun | None = None, batch: Batch | None = None
    ) -> None:
        """Hand over what came of a row for good."""
        taken = self._settled(row.place, outcome, result, batch)
        if taken is not None:
            await taken

    async def _take(self, turn: Sequence[Encoded]) -> Sequence[Encoded]:
        """Claim rows. If the journal fails in the middle of the list, they alone do."""
        assert self._claims is not None
        try:
            return await self._claims.take(turn)
        except JournalError as error:
            if not self._tasks:
                raise
            self._report('refused', len(turn))
            await self._fail([encoded.row for encoded in turn], error)
            return []

    def _take_over(self) -> None:
        """Go on with the rows that the journal has already."""
        if self._claims is None:
            return
        for taken in self._claims.taken():
            self._run(self._adopt(taken))
        unclear: dict[str | None, list[tuple[Row, Claim]]] = {}
        for row, claim in self._claims.unclear():
            unclear.setdefault(claim.tag, []).append((row, claim))
        for rows in unclear.values():
            self._run(self._resolve(self._claims, rows))

    async def _resolve(self, claims: ListClaims, rows: list[tuple[Row, Claim]]) -> None:
        """Wait until it is known where rows are, and go on with them."""
        mine: list[Row] = []
        for (row, _), found in zip(rows, await claims.resolve(rows), strict=True):
            if isinstance(found, Exception):
                self._report('refused')
                await self._fail([row], found)
            elif found:
                mine.append(row)
        if mine:
            self._report('withdrawn', len(mine))
            await self._send(mine)
        self._take_over()

    async def _adopt(self, taken: Taken) -> None:
        """Wait for the rows that are in a batch of an earlier process."""
        batch = taken.place.batch
        gate = self._gates.of(self.lane, batch.group)
        self._report('taken_over', len(taken.rows), batch)
        assert self._claims is not None
        self._claims.tell(taken.place)
        gate.entered(batch.id)
        try:
            await self._collect(taken.rows, batch, gate, place=taken.place)
        finally:
            gate.left(batch.id)

    async def _carry(self, chunk: Chunk) -> None:
        """Take one batch from its creation to its last row's outcome, whatever goes wrong with it."""
        rows = list(chunk.rows.values())
        gate = self._gates.of(self.lane, chunk.payload.group)
        since = min((row.held_since for row in rows if row.held_since is not None), default=None)

        def create(*, settling: Callable[[], None]) -> Awaitable[Batch]:
            return creation.submit_owned(self.lane, payload, self.clock, self.ledger, settling=settling)

        def held(now: float) -> None:
            for row in rows:
                row.held_since = row.held_since or now

        try:
            with chunk.payload as payload:
                batch = await gate.submit(
                    create,
                    discard=lambda: creation.discard(self.lane, payload),
                    count=len(rows),
                    since=since,
                    held=held,
                )
        except TooMuchAtOnce:
            self._report('withdrawn', len(rows))
            await self._send(rows, at_most=(len(rows) + 1) // 2)
            return
        except Exception as error:
            # One that a full queue has sent back all day does not take those with it that joined it later.
            fresh = self._fresh(rows, error, gate.window)
            failed = [row for row in rows if row not in fresh] if fresh else rows
            self._report('refused', len(failed))
            await self._fail(failed, error)
            if self.ledger is not None:
                self.ledger.withdraw(*(row.entry for row in failed if row.entry is not None))
            if fresh:
                self._report('withdrawn', len(fresh))
                await self._send(fresh)
            return
        self._report('submitted', len(rows), batch)
        gate.entered(batch.id)
        try:
            await self._collect(chunk.rows, batch, gate, search=chunk.search)
        finally:
            gate.left(batch.id)

    def _fresh(self, rows: Sequence[Row], error: Exception, window: float) -> list[Row]:
        """The rows of a batch that a full queue has not sent back for too long yet, if that is the error."""
        if not isinstance(error, ModelAPIError) or full_queue(error) is None:
            return []
        now = self.clock.now()
        fresh = [row for row in rows if now - (row.held_since or now) < window]
        return fresh if len(fresh) < len(rows) else []

    async def _collect(
        self,
        rows: dict[str, Row],
        batch: Batch,
        gate: Gate,
        *,
        search: Search | None = None,
        place: Place | None = None,
    ) -> None:
        """Wait for a batch, and settle each of its rows.

        Args:
            rows: The rows by their ID on the wire.
            batch: The batch as it was last read.
            gate: Where it stands in the provider's queue.
            search: The search that it is a part of.
            place: A place in it, if an earlier process created it.
        """
        again: dict[str, Row] = {}
        cancelled: dict[str, Row] = {}
        open_rows = dict(rows)

        async def deliver(result: BatchResult, *, stored: bool = False) -> None:
            if (row := open_rows.pop(result.custom_id, None)) is None:
                # In a batch of an earlier process, it may be of no row of this list.
                return
            if place is not None and result.status == 'canceled':
                # The earlier process cancelled it, and this one makes it again.
                cancelled[result.custom_id] = row
                return
            if await self._settle(row, result.custom_id, result, batch, stored=stored):
                again[result.custom_id] = row

        def checked(now: Batch) -> None:
            self._report('checked', batch=now)
            if search is not None and self.lane.job_status(now) == 'in_progress':
                # It has passed its validation.
                search.found = True

        watch = lifecycle.BatchWatch(
            self.lane,
            batch,
            self.settings,
            self.clock,
            deliver,
            checked,
            is_known=rows.__contains__ if place is None else lambda custom_id: is_in(custom_id, place.tag, batch),
            ledger=self.ledger,
        )
        try:
            if place is not None:
                watch.take_over(place)
                await self._read_journal(place, watch, deliver, open_rows)
            if open_rows:
                await watch.until_read()
        except Exception as error:
            if not await self._send_lost(error, open_rows, watch.batch):
                self._report('failed', len(open_rows), batch)
                await self._fail(open_rows.values(), self._with_job(error, rows, watch.batch, place), watch.batch)
                self._release(open_rows)
        except BaseException:
            if await self._is_kept(batch, place):
                _log.warning('Batch %s goes on: run this again with the same journal to collect it.', batch.id)
            else:
                await lifecycle.give_up(self.lane, watch.batch)
            raise
        else:
            self._read.append(batch.id)
            if search is not None and len(open_rows) < len(rows):
                search.found = True
            cancelled |= _pop_cancelled(open_rows, watch, place)
            self._report('resubmitted', len(cancelled), batch)
            await self._settle_missing(rows, open_rows, watch, gate, search)
            await lifecycle.clean_up(self.lane, batch, watch.batch, self.ledger)
        await self._send_again(cancelled, counted=False)
        await self._send_again(again, counted=True)

    async def _is_kept(self, batch: Batch, place: Place | None) -> bool:
        """Whether a batch goes on when the call is cancelled: others may want it, or a later start."""
        return (place is not None and self.ledger is not None) or await is_kept(batch, self.ledger)

    def _with_job(self, error: Exception, rows: dict[str, Row], batch: Batch, place: Place | None) -> Exception:
        """The error for rows whose batch is left as it is, with what collects it."""
        # In a batch of an earlier process, other rows may be in between: the journal finds them.
        if place is None and not is_gone(error):
            tag, _, _ = next(iter(rows)).rpartition('-')
            request_ids = tuple(self.requests.custom_id(row.place) for row in rows.values())
            with_job(error, BatchJob.of(self.lane, [JobBatch.of(self.lane, batch, tag, request_ids)], utc(self.clock)))
        return error

    async def _read_journal(
        self,
        place: Place,
        watch: lifecycle.BatchWatch,
        deliver: _Deliver,
        open_rows: dict[str, Row],
    ) -> None:
        """Settle the rows whose results are in the journal."""
        assert self.ledger is not None
        async with aclosing(self.ledger.results(place.tag, open_rows)) as results:
            async for result in results:
                watch.written(result)
                await deliver(result, stored=True)

    async def _send_lost(self, error: Exception, rows: dict[str, Row], batch: Batch) -> bool:
        """Send rows again whose batch is gone, if the journal says that this is what to do."""
        if self._claims is None or not self._claims.ledger.resend_lost or not is_gone(error):
            return False
        _log.warning('Batch %s is gone, and its requests are sent again, as `resend_lost` is set.', batch.id)
        self._report('resubmitted', len(rows), batch)
        await self._send_again(rows, counted=False)
        return True

    def _release(self, rows: Iterable[str]) -> None:
        if self.ledger is not None:
            for custom_id in rows:
                self.ledger.release(custom_id)

    async def _settle_missing(
        self,
        rows: dict[str, Row],
        open_rows: dict[str, Row],
        watch: lifecycle.BatchWatch,
        gate: Gate,
        search: Search | None,
    ) -> None:
        """Settle the rows that a batch ended without a result for."""
        missing = {wire_id: watch.missing(wire_id) for wire_id in open_rows}
        causes = {result.cause for result in missing.values() if isinstance(result, NotRun)}
        if 'full_queue' in causes:
            since = min(row.held_since or self.clock.now() for row in open_rows.values())
            if self.clock.now() - since <= gate.window:
                await self._hold(open_rows, watch.batch, gate)
                return
        if 'invalid' in causes and self.settings.max_resubmissions:
            search = search or Search()
            if search.goes_on(watch.batch.id):
                self._report('resubmitted', len(open_rows), watch.batch)
                await self._send_again(open_rows, counted=False, halves=True, search=search)
                return
        again: dict[str, Row] = {}
        victims: dict[str, Row] = {}
        culprits: set[str] = set()
        for wire_id, row in open_rows.items():
            result = missing[wire_id]
            if isinstance(result, NotRun) and result.culprit in rows:
                culprit = self.requests.custom_id(rows[result.culprit].place)
                culprits.add(culprit)
                result = result.because_of(culprit)
                if result.again and self.settings.max_resubmissions:
                    victims[wire_id] = row
                    continue
            if await self._settle(row, wire_id, result, watch.batch):
                again[wire_id] = row
        if culprits:
            _log.warning(
                'Batch %s failed because of requests %s, and ran none.',
                watch.batch.id,
                listed([repr(culprit) for culprit in sorted(culprits)]),
            )
        # What failed for another request has not failed itself. The other one is not sent again with it, so that this
        # ends when all wrong requests are named.
        self._report('resubmitted', len(victims), watch.batch)
        await self._send_again(victims, counted=False)
        await self._send_again(again, counted=True)

    async def _hold(self, rows: dict[str, Row], batch: Batch, gate: Gate) -> None:
        """Send again what was sent back by a full queue, which is no failure and counts as none."""
        gate.sent_back(batch.id)
        # Whatever else may have been in the queue the first time, a wait has not helped.
        again = all(row.held_since is not None for row in rows.values())
        for row in rows.values():
            row.held_since = row.held_since or self.clock.now()
        self._report('held', len(rows), batch)
        await self._send_again(rows, counted=False, halves=gate.empty and len(rows) > 1 and again)

    async def _send_again(
        self, rows: dict[str, Row], *, counted: bool, halves: bool = False, search: Search | None = None
    ) -> None:
        """Send rows again that came to nothing in their batch.

        Args:
            rows: The rows by their ID in that batch.
            counted: Whether that counts as a resubmission.
            halves: Whether to divide them.
            search: The search that the parts are parts of.
        """
        if not rows:
            return
        mine = list(rows.values())
        if self._claims is not None:
            mine = await self._claims.requeue(rows, counted=counted)
        if mine:
            await self._send(mine, at_most=(len(mine) + 1) // 2 if halves else None, search=search)
        else:
            self._take_over()

    async def _settle(
        self, row: Row, custom_id: str, result: BatchResult | NotRun, batch: Batch, *, stored: bool = False
    ) -> bool:
        """Record a row's outcome, or return that it is to be submitted again."""
        try:
            response = priced(await self.requests.outcome(self.lane, row.place, result), self.lane.info)
        except Exception as failure:
            error = as_model_error(self.lane.model, failure)
            if lifecycle.sent_again(result, error) and row.resubmissions < self.settings.max_resubmissions:
                row.resubmissions += 1
                row.held_since = None
                self._report('resubmitted', batch=batch)
                return True
            with_batch(error, batch)
            if row.resubmissions:
                error.add_note(submitted_times(row.resubmissions, batch))
            self._report('failed', batch=batch)
            if self.ledger is not None:
                self.ledger.failed([custom_id], error)
            await self._finish(row, error, result, batch)
        else:
            self._report('answered', batch=batch, response=response, stored=stored)
            await self._finish(row, response, result, batch)
        return False

    async def _fail(self, rows: Iterable[Row], error: Exception, batch: Batch | None = None) -> None:
        for row in rows:
            await self._finish(row, copy_of(as_model_error(self.lane.model, error)), None, batch)

    def _report(
        self,
        kind: EventKind,
        count: int = 1,
        batch: Batch | None = None,
        response: ModelResponse | None = None,
        *,
        stored: bool = False,
    ) -> None:
        if kind == 'resubmitted' and count and batch is not None and batch.id not in self._told:
            self._told.add(batch.id)
            _log.info('Requests of batch %s are sent again.', batch.id)
        if self._reporter.listener is None or not count:
            return
        self._reporter(event_of(kind, self.lane, count=count, batch=batch, response=response, stored=stored))


class _Deliver(Protocol):
    """Takes a result, and whether it came from the journal."""

    async def __call__(self, result: BatchResult, *, stored: bool = False) -> None: ...


def _pop_cancelled(open_rows: dict[str, Row], watch: lifecycle.BatchWatch, place: Place | None) -> dict[str, Row]:
    """Take the rows out that the batch of an earlier process was cancelled before, where it does not list them."""
    cancelled: dict[str, Row] = {}
    for custom_id in list(open_rows) if place is not None else ():
        result = watch.missing(custom_id)
        if isinstance(result, BatchResult) and result.status == 'canceled':
            cancelled[custom_id] = open_rows.pop(custom_id)
    return cancelled
