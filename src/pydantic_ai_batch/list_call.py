"""One call of `model_request_batch`: its rows, the batches they went in, and what came of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import aclosing

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from . import lifecycle
from .backpressure import Gate, Gates, TooMuchAtOnce
from .chunks import Chunk, Row, as_model_error, fill, listed
from .clock import Clock
from .events import EventKind, Listener, Reporter, event_of
from .exceptions import copy_of, with_batch
from .lanes.base import Lane, NotRun
from .policy import Search
from .settings import BatchSettings

_log = logging.getLogger('pydantic_ai_batch')

Outcome = ModelResponse | ModelAPIError


class ListCall:
    """Sends a list of requests, and sends again what is worth it, until each has its outcome."""

    def __init__(
        self,
        lane: Lane,
        settings: BatchSettings,
        clock: Clock,
        requests: Sequence[BatchRequest],
        listener: Listener | None,
    ) -> None:
        self.lane = lane
        self.settings = settings
        self.clock = clock
        self.requests = requests
        self._reporter = Reporter(listener)
        self._outcomes: list[Outcome | None] = [None] * len(requests)
        self._tasks: set[asyncio.Task[None]] = set()
        self._gates = Gates(clock)
        self._read: list[str] = []
        """The IDs of the batches whose results were all read."""

    @property
    def outcomes(self) -> list[Outcome]:
        """What came of each request."""
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        # A row without an outcome would give each one after it another row's answer.
        assert len(outcomes) == len(self._outcomes)
        return outcomes

    async def run(self) -> None:
        """Send every row and wait for every answer; if that is cancelled, cancel the batches that have not ended."""
        try:
            await self._send([Row(place) for place in range(len(self.requests))])
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done
                for task in done:
                    task.result()
        except BaseException:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._read:
                _log.warning('These batches had ended before the call was cancelled: %s.', ', '.join(self._read))
            raise

    async def _send(self, rows: Sequence[Row], *, at_most: int | None = None, search: Search | None = None) -> None:
        """Encode rows into batches, and start each as soon as it is full."""

        def refused(row: Row, error: ModelAPIError) -> None:
            self._report('refused')
            self._outcomes[row.place] = error

        self._report('queued', len(rows))
        chunks = fill(self.lane, self.settings, self.requests, rows, refused=refused, at_most=at_most, search=search)
        async with aclosing(chunks):
            async for chunk in chunks:
                self._tasks.add(asyncio.get_running_loop().create_task(self._carry(chunk)))

    async def _send_halves(self, rows: Sequence[Row], search: Search | None = None) -> None:
        await self._send(rows, at_most=(len(rows) + 1) // 2, search=search)

    async def _carry(self, chunk: Chunk) -> None:
        """Take one batch from its creation to its last row's outcome, whatever goes wrong with it."""
        rows = list(chunk.rows.values())
        gate = self._gates.of(self.lane, chunk.payload.group)
        since = min((row.held_since for row in rows if row.held_since is not None), default=None)
        try:
            with chunk.payload as payload:
                batch = await gate.submit(
                    lambda: lifecycle.submit_owned(self.lane, payload, self.clock),
                    discard=lambda: lifecycle.discard(self.lane, payload),
                    count=len(rows),
                    since=since,
                )
        except TooMuchAtOnce:
            self._report('withdrawn', len(rows))
            await self._send_halves(rows)
            return
        except Exception as error:
            self._report('refused', len(rows))
            self._fail(rows, error)
            return
        self._report('submitted', len(rows), batch)
        gate.entered(batch.id)
        try:
            await self._collect(chunk, batch, gate)
        finally:
            gate.left(batch.id)

    async def _collect(self, chunk: Chunk, batch: Batch, gate: Gate) -> None:
        """Wait for a batch, and settle each of its rows."""
        again: list[Row] = []
        open_rows = dict(chunk.rows)

        async def deliver(result: BatchResult) -> None:
            row = open_rows.pop(result.custom_id)
            if await self._settle(row, result, batch):
                again.append(row)

        watch = lifecycle.BatchWatch(
            self.lane,
            batch,
            self.settings,
            self.clock,
            deliver,
            lambda now: self._report('checked', batch=now),
            is_known=chunk.rows.__contains__,
        )
        try:
            await watch.until_read()
        except Exception as error:
            self._report('failed', len(open_rows), batch)
            self._fail(open_rows.values(), error)
        except BaseException:
            await lifecycle.give_up(self.lane, watch.batch)
            raise
        else:
            self._read.append(batch.id)
            await self._settle_missing(chunk, open_rows, watch, gate)
            await lifecycle.clean_up(self.lane, batch, watch.batch)
        if again:
            await self._send(again)

    async def _settle_missing(
        self, chunk: Chunk, open_rows: dict[str, Row], watch: lifecycle.BatchWatch, gate: Gate
    ) -> None:
        """Settle the rows that a batch ended without a result for."""
        missing = {wire_id: watch.missing(wire_id) for wire_id in open_rows}
        causes = {result.cause for result in missing.values() if isinstance(result, NotRun)}
        rows = list(open_rows.values())
        if 'full_queue' in causes:
            since = min(row.held_since or self.clock.now() for row in rows)
            if self.clock.now() - since <= gate.window:
                await self._hold(rows, watch.batch, gate)
                return
        if 'invalid' in causes and self.settings.max_resubmissions:
            search = chunk.search or Search()
            if search.goes_on(watch.batch.id):
                self._report('resubmitted', len(rows), watch.batch)
                await self._send_halves(rows, search)
                return
        again: list[Row] = []
        culprits: set[str] = set()
        for wire_id, row in open_rows.items():
            result = missing[wire_id]
            if isinstance(result, NotRun) and result.culprit in chunk.rows:
                culprit = self.requests[chunk.rows[result.culprit].place].custom_id
                culprits.add(culprit)
                result = result.because_of(culprit)
            if await self._settle(row, result, watch.batch):
                again.append(row)
        if culprits:
            _log.warning(
                'Batch %s failed because of requests %s, and ran none.',
                watch.batch.id,
                listed([repr(culprit) for culprit in sorted(culprits)]),
            )
        if again:
            await self._send(again)

    async def _hold(self, rows: Sequence[Row], batch: Batch, gate: Gate) -> None:
        """Send again what was sent back by a full queue, which is no failure and counts as none."""
        gate.sent_back(batch_id=batch.id)
        # Whatever else may have been in the queue the first time, a wait has not helped.
        again = all(row.held_since is not None for row in rows)
        for row in rows:
            row.held_since = row.held_since or self.clock.now()
        self._report('held', len(rows), batch)
        if gate.empty and len(rows) > 1 and again:
            await self._send_halves(rows)
        else:
            await self._send(rows)

    async def _settle(self, row: Row, result: BatchResult | NotRun, batch: Batch) -> bool:
        """Record a row's outcome, or return that it is to be submitted again."""
        try:
            response = self._outcomes[row.place] = await self.lane.outcome(result, self.requests[row.place])
        except Exception as failure:
            error = as_model_error(self.lane.model, failure)
            if lifecycle.sent_again(result, error) and row.resubmissions < self.settings.max_resubmissions:
                row.resubmissions += 1
                row.held_since = None
                self._report('resubmitted', batch=batch)
                return True
            self._outcomes[row.place] = with_batch(error, batch)
            self._report('failed', batch=batch)
        else:
            self._report('answered', batch=batch, response=response)
        return False

    def _fail(self, rows: Iterable[Row], error: Exception) -> None:
        for row in rows:
            self._outcomes[row.place] = copy_of(as_model_error(self.lane.model, error))

    def _report(
        self, kind: EventKind, count: int = 1, batch: Batch | None = None, response: ModelResponse | None = None
    ) -> None:
        if self._reporter.listener is None or not count:
            return
        self._reporter(event_of(kind, self.lane, count=count, batch=batch, response=response))
