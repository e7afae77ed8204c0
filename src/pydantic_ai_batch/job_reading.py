"""Reads the results of one batch of a job, whatever state it and the provider are in."""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from . import lifecycle
from .batch_job import JobBatch
from .chunks import as_model_error
from .clock import Clock, sleep_until_due, utc
from .exceptions import ResultsGone, brief, copy_of, with_batch
from .journal.ledger import Ledger
from .lanes.base import Lane, NotRun, is_in
from .list_call import Outcome
from .policy import not_found, overdue
from .pricing import priced
from .settings import BatchSettings

_log = logging.getLogger('pydantic_ai_batch')


def seen(lane: Lane, known: JobBatch, batch: Batch, clock: Clock) -> JobBatch:
    """The batch of a job after a check that the provider answered."""
    status = lane.job_status(batch)
    return replace(
        known, batch=batch, status=status, checked_at=utc(clock), failed_checks=0, not_found=0, retry_after=0.0
    )


@dataclass
class Reading:
    """One reading of one batch."""

    lane: Lane
    known: JobBatch
    """The batch as the job has it."""
    requests: dict[str, BatchRequest]
    """The requests of the job by their `custom_id`."""
    outcomes: dict[str, Outcome]
    """What came of each request, which is filled in."""
    clock: Clock
    ledger: Ledger | None
    partial: bool
    """Whether to wait for nothing."""
    _open: dict[str, BatchRequest] = field(init=False)
    _names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._names = dict(self.known.requests)
        self._open = {wire_id: self.requests[request_id] for wire_id, request_id in self._names.items()}

    async def run(self) -> tuple[JobBatch, bool]:
        """Check the batch once and, if it is over, read its results.

        Results that cannot be read for good, or a batch that is gone, give its requests that error. What only says that
        the batch could not be checked is raised, as it may well have answers: an error for a row must not invite to pay
        again.

        Returns:
            The batch as it is now, and whether each of its requests has its outcome.
        """
        watch = lifecycle.BatchWatch(
            self.lane,
            self.known.batch,
            BatchSettings(),
            self.clock,
            self._deliver,
            history=self.known.history,
            ledger=self.ledger,
            is_known=self._is_known,
        )
        await self._read_journal(watch)
        if not self._open:
            return self.known, True
        try:
            while not await watch.look():
                history = watch.history
                faults = history.failed or history.not_found or history.incomplete
                if (watch.batch.status != 'ended' and not faults) or (self.partial and watch.batch.status == 'ended'):
                    # What can be read of it is there: the rest may be another time.
                    return seen(self.lane, self.known, watch.batch, self.clock), False
                await sleep_until_due(self.clock, watch.delay)
        except Exception as error:
            return self._failed(error, watch)
        for wire_id, request in self._open.items():
            result = watch.missing(wire_id)
            if isinstance(result, NotRun) and result.culprit in self._names:
                result = result.because_of(self._names[result.culprit])
            await self._settle(wire_id, result, request)
        await lifecycle.clean_up(self.lane, None, watch.batch, self.ledger)
        return seen(self.lane, self.known, watch.batch, self.clock), True

    async def _read_journal(self, watch: lifecycle.BatchWatch) -> None:
        if self.ledger is None:
            return
        async with aclosing(self.ledger.results(self.known.tag, self._open)) as stored:
            async for result in stored:
                watch.written(result)
                await self._deliver(result)

    def _is_known(self, custom_id: str) -> bool:
        if self.known.places is None:
            return custom_id in self._names
        # Others in the batch may be wanted by others.
        return is_in(custom_id, self.known.tag, self.known.batch)

    async def _deliver(self, result: BatchResult) -> None:
        if (request := self._open.pop(result.custom_id, None)) is not None:
            await self._settle(result.custom_id, result, request)

    async def _settle(self, wire_id: str, result: BatchResult | NotRun, request: BatchRequest) -> None:
        try:
            self.outcomes[request.custom_id] = priced(await self.lane.outcome(result, request), self.lane.info)
        except Exception as error:
            self.outcomes[request.custom_id] = with_batch(as_model_error(self.lane.model, error), self.known.batch)
            if self.ledger is not None:
                self.ledger.failed([wire_id], error)

    def _failed(self, error: Exception, watch: lifecycle.BatchWatch) -> tuple[JobBatch, bool]:
        """What a check that failed for good means for the batch and its requests."""
        lane, known, batch = self.lane, self.known, watch.batch
        failure = as_model_error(lane.model, error)
        gone = not_found(failure)
        if batch.status != 'ended' and not gone:
            late = overdue(known.batch.created_at, lane.window_of(known.batch.group), utc(self.clock))
            if self.partial or (late and not isinstance(error, ModelHTTPError | ModelConnectionError)):
                _log.warning('Batch %s is not collected: %s', known.batch.id, brief(error))
                return (seen(lane, known, batch, self.clock) if late else known.checked(watch.history)), False
            raise with_batch(failure, known.batch) from error
        if gone:
            failure = ResultsGone(
                lane.model.model_name,
                f'{lane.info.title} no longer has batch {known.batch.id!r} or its results: they are kept for a limited '
                'time, and only for the project that made them. To run the requests again, submit them again.',
            )
            failure.__cause__ = error
        for request in self._open.values():
            self.outcomes[request.custom_id] = with_batch(copy_of(failure), known.batch)
        return (known if gone else seen(lane, known, batch, self.clock)), True
