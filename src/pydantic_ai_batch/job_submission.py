"""Submits the requests of a job, each of which ends up in a batch or with the error that it was refused for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.batch import Batch

from . import creation, lifecycle
from .batch_job import JobBatch, Refused
from .chunks import Chunk, Requests, Row, as_model_error, fill
from .clock import Clock, sleep_until_due, utc
from .exceptions import is_gone
from .journal.ledger import Ledger, is_kept
from .lanes.base import Lane, line_number
from .list_claims import ListClaims, Taken, hand_out
from .policy import SETTLE_INTERVALS, CheckHistory, full_queue, poll_delay
from .settings import BatchSettings
from .tasks import Tasks

_log = logging.getLogger('pydantic_ai_batch')


class JobSubmission:
    """One call of `submit_batch`: the batches that its requests are in, and those that are in none."""

    def __init__(
        self,
        lane: Lane,
        settings: BatchSettings,
        requests: Requests,
        clock: Clock,
        ledger: Ledger | None,
    ) -> None:
        self.batches: list[JobBatch] = []
        self.refused: list[Refused] = []
        self._lane = lane
        self._settings = settings
        self._requests = requests
        self._clock = clock
        self._ledger = ledger
        self._background = Tasks()
        self._claims = ListClaims(lane, ledger, clock, self._background.start) if ledger is not None else None
        self._created: list[tuple[Chunk, asyncio.Task[Batch]]] = []
        self._taken: list[Taken] = []
        self._rows = [Row(place) for place in range(len(requests))]

    async def run(self) -> None:
        """Submit everything. If that is cancelled, cancel what was created, unless a journal keeps it."""
        try:
            await self._send(self._rows)
            while self._claims is not None and (unclear := self._claims.unclear()):
                mine: list[Row] = []
                for (row, _), found in zip(unclear, await self._claims.resolve(unclear), strict=True):
                    if isinstance(found, Exception):
                        self._refuse([row], found)
                    elif found:
                        mine.append(row)
                await self._send(mine)
            await self._send_lost()
            if self._created:
                await asyncio.wait([task for _, task in self._created])
        except BaseException:
            try:
                await _withdraw(self._lane, [task for _, task in self._created], self._ledger)
            finally:
                self.let_go()
            raise
        finally:
            await self._background.cancel()
        self._note()

    def let_go(self) -> None:
        """Let go of all requests: the next one who makes them takes them over."""
        if self._ledger is not None:
            self._ledger.withdraw(*(row.entry for row in self._rows if row.entry is not None))

    async def _send_lost(self) -> None:
        """Send rows again whose batch the provider no longer has, if the journal says that this is what to do."""
        if self._claims is None or not self._claims.ledger.resend_lost:
            return
        for taken in self._claims.taken():
            if await self._is_gone(taken.place.batch):
                _log.warning(
                    'Batch %s is gone, and its requests are sent again, as `resend_lost` is set.', taken.place.batch.id
                )
                await self._send(await self._claims.requeue(taken.rows, counted=False))
            else:
                self._taken.append(taken)

    async def _is_gone(self, batch: Batch) -> bool:
        """Whether the provider says, several times, that it does not have a batch."""
        history = CheckHistory()
        while True:
            try:
                await self._lane.status(batch)
            except ModelAPIError as error:
                if not is_gone(error):
                    return False
                if not history.tolerates(error, created_at=batch.created_at, now=utc(self._clock)):
                    return True
            else:
                return False
            await sleep_until_due(self._clock, poll_delay(history.not_found, *SETTLE_INTERVALS))

    async def _send(self, rows: Sequence[Row]) -> None:
        claims = self._claims
        chunks = fill(
            self._lane,
            self._settings,
            self._requests,
            rows,
            refused=lambda row, error: self._refuse([row], error),
            take=claims.take if claims is not None else None,
        )
        async with aclosing(hand_out(chunks, claims)) as handed_out:
            async for chunk in handed_out:
                self._create(chunk)

    def _create(self, chunk: Chunk) -> None:
        self._created.append((chunk, asyncio.get_running_loop().create_task(self._batch_of(chunk))))

    async def _batch_of(self, chunk: Chunk) -> Batch:
        with chunk.payload as payload:
            try:
                return await creation.submit_owned(self._lane, payload, self._clock, self._ledger)
            except ModelAPIError as error:
                if full_queue(error) is not None:
                    await creation.discard(self._lane, payload)
                raise

    def _refuse(self, rows: Sequence[Row], error: Exception) -> None:
        request_ids = [self._requests.custom_id(row.place) for row in rows]
        self.refused.append(Refused.of(as_model_error(self._lane.model, error), request_ids))

    def _note(self) -> None:
        """Note where each request is."""
        for chunk, task in self._created:
            rows = list(chunk.rows.values())
            if (error := task.exception()) is None:
                request_ids = [self._requests.custom_id(row.place) for row in rows]
                self.batches.append(JobBatch.of(self._lane, task.result(), chunk.payload.tag, request_ids))
            elif isinstance(error, Exception):
                self._refuse(rows, error)
                chunk.drop(self._ledger)
            else:
                raise error
        self._taken += self._claims.taken() if self._claims is not None else ()
        for taken in self._taken:
            places = {line_number(custom_id) or 0: row for custom_id, row in taken.rows.items()}
            request_ids = [self._requests.custom_id(row.place) for row in places.values()]
            batch = taken.place.batch
            self.batches.append(JobBatch.of(self._lane, batch, taken.place.tag, request_ids, list(places)))


async def _withdraw(lane: Lane, tasks: Sequence[asyncio.Task[Batch]], ledger: Ledger | None) -> None:
    """Cancel the batches of a submission that is broken off, unless a journal keeps them: nobody would know of them."""

    async def withdraw(task: asyncio.Task[Batch]) -> None:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None and not await is_kept(task.result(), ledger):
            await lifecycle.give_up(lane, task.result())

    # Each for itself: one that is made must not run on while the reply to another is looked for.
    await asyncio.gather(*(withdraw(task) for task in tasks))
