"""Checks batches for the runs that wait on them, and hands each its result.

One task checks a batch, however many runs wait on it, and only while one does. A run that comes with a stored history
does not wait: it gets one check, which it shares with all who ask at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import Batch, BatchResult

from . import lifecycle, tracing
from .backpressure import Gates
from .clock import sleep_until_due, utc
from .exceptions import copy_of
from .flights import FlightKey
from .lanes.base import Lane, NotRun
from .policy import CheckHistory, poll_delay
from .pool_state import CLOSED, PoolState, Submitted
from .tasks import Tasks
from .wording import counted

_log = logging.getLogger('pydantic_ai_batch')


@dataclass(frozen=True)
class Looked:
    """What a single check of a batch came to for one request."""

    batch: Batch
    """The batch as it is now."""

    read_at: datetime | None
    """When that was read; `None` if it was not since the batch was created."""

    result: BatchResult | NotRun | None
    """The request's result once the batch has ended, or `None` while it runs."""

    history: CheckHistory
    """The checks so far, this one included."""


class LetGo(Exception):
    """The pool was closed while a run waited between two checks: what it knows by now, and when it is to ask next."""

    def __init__(self, looked: Looked, delay: float) -> None:
        super().__init__()
        self.looked = looked
        self.delay = delay
        """Seconds until the next check is due."""


@dataclass
class _Wait:
    """The runs that wait on one batch, and the task that checks it for them."""

    batch: Batch
    """The batch as it was last read."""

    due: float
    """When it is checked next, by the monotonic clock."""

    history: CheckHistory
    """The checks so far."""

    read_at: datetime | None = None
    """When it was read; `None` if it was not since it was created."""

    futures: dict[str, list[asyncio.Future[BatchResult | NotRun]]] = field(
        default_factory=dict[str, 'list[asyncio.Future[BatchResult | NotRun]]']
    )
    trace: tracing.BatchTrace = field(default_factory=tracing.BatchTrace)
    poller: asyncio.Task[None] | None = None
    checking: bool = False

    def resolve(self, custom_id: str, result: BatchResult | NotRun) -> bool:
        """Hand a result to the runs that wait for it, and return whether there was one."""
        taken = False
        for future in self.futures.pop(custom_id, ()):
            if not future.done():
                future.set_result(result)
                taken = True
        return taken

    def let_go(self, now: float) -> LetGo:
        """What the runs that wait are told when the pool is closed."""
        return LetGo(Looked(self.batch, self.read_at, None, self.history), max(0.0, self.due - now))

    def fail(self, error: Exception) -> None:
        """Give each run that waits an error of its own."""
        for futures in self.futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(copy_of(error))
        self.futures.clear()


@dataclass(frozen=True)
class _Look:
    """One check that several requests share, and the results it read."""

    watch: lifecycle.BatchWatch
    task: asyncio.Task[bool]
    results: dict[str, BatchResult]


class Waits:
    """The waits and checks of one event loop."""

    def __init__(self, state: PoolState, tasks: Tasks, gates: Gates) -> None:
        self.state = state
        self.tasks = tasks
        self.gates = gates
        self._waits: dict[FlightKey, _Wait] = {}
        # Shared by those alone whose histories agree on the batch's age, which a made-up one may not.
        self._looks: dict[tuple[FlightKey, datetime], _Look] = {}

    async def wait(
        self, lane: Lane, key: FlightKey, submitted: Submitted, *, history: CheckHistory
    ) -> BatchResult | NotRun:
        """Wait until the batch has ended and the request's result was read, however long that takes.

        Args:
            lane: The lane of the request's model.
            key: The batch as the model's credential sees it.
            submitted: Where the request is.
            history: The checks of the batch so far, from which the interval goes on to grow.

        Raises:
            LetGo: The pool was closed while the batch was between two checks.
            UserError: The pool was closed while a check was under way.
            ModelAPIError: The batch could not be checked, or its results not be read. It is left as it is.
        """
        if (found := self._found(lane, key, submitted.custom_id)) is not None:
            return found
        wait = self._waits.get(key)
        if wait is None:
            settings = self.state.settings
            # A history may say anything, and below zero there would be no interval at all.
            history.polls = max(0, history.polls)
            delay = max(
                poll_delay(history.polls, settings.poll_interval, settings.max_poll_interval),
                history.retry_after,
            )
            if submitted.place is not None:
                history = replace(submitted.place.history)
                delay = lifecycle.left_of(delay, submitted.place, self.state.clock)
            wait = self._waits[key] = _Wait(submitted.batch, self.state.clock.monotonic() + delay, history)
            first_due = delay if submitted.place is not None else None
            wait.poller = self.tasks.start(self._poll(lane, key, submitted.batch, wait, first_due))
        wait.trace.join(submitted.trace_context)
        future: asyncio.Future[BatchResult | NotRun] = asyncio.get_running_loop().create_future()
        wait.futures.setdefault(submitted.custom_id, []).append(future)
        try:
            return await future
        except asyncio.CancelledError:
            futures = wait.futures.get(submitted.custom_id, [])
            if future in futures:
                futures.remove(future)
                if not futures:
                    del wait.futures[submitted.custom_id]
            if not wait.futures and wait.poller is not None and self._waits.get(key) is wait:
                self._forget(key, wait)
                wait.poller.cancel()
            raise

    def waits_for(self, key: FlightKey, custom_id: str) -> bool:
        """Whether a run waits for the request's result on this loop."""
        return (wait := self._waits.get(key)) is not None and custom_id in wait.futures

    def _found(self, lane: Lane, key: FlightKey, custom_id: str) -> BatchResult | NotRun | None:
        found = self.state.flights.find(key, custom_id)
        if found is None:
            return None
        batch, result, keyless = found
        return result or lifecycle.missing(lane, batch, custom_id, keyless=keyless)

    async def _poll(
        self, lane: Lane, key: FlightKey, batch: Batch, wait: _Wait, first_due: float | None = None
    ) -> None:
        """Check the batch for all who wait on it until each has its result."""
        last: list[BatchResult] = []

        async def deliver(result: BatchResult) -> None:
            if len(wait.futures) == 1 and result.custom_id in wait.futures:
                # The last run to get its answer may end the program: what is left to do comes first.
                self.state.flights.read(key, result, taken=False)
                last.append(result)
            else:
                self._hand_over(key, wait, result)

        error: Exception | None = None
        gate = self.gates.of(lane, batch.group)
        gate.entered(batch.id)
        try:
            async with lane.model:
                while wait.futures.keys() - {result.custom_id for result in last}:
                    watch = self._watch(lane, key, batch, wait.history, deliver)
                    watch.first_due, first_due = first_due, None
                    await self._until_read(watch, wait)
                    batch, wait.history = watch.batch, CheckHistory()
                    for custom_id in list(wait.futures):
                        # Whoever came to wait while the results were read may have missed theirs: they are read again.
                        if not watch.delivered(custom_id):
                            wait.resolve(custom_id, watch.missing(custom_id))
                    with wait.trace.inside():
                        await self._finish(lane, key, watch)
                # Before anything else is awaited, so that whoever comes now starts a wait of their own.
                self._forget(key, wait)
        except Exception as failure:
            error = failure
        except asyncio.CancelledError:
            # Whoever did it, nobody would check for those who wait.
            wait.fail(UserError(CLOSED))
            raise
        finally:
            gate.left(batch.id)
            self._forget(key, wait)
        for result in last:
            wait.resolve(result.custom_id, result)
        if error is not None:
            wait.fail(error)

    def _forget(self, key: FlightKey, wait: _Wait) -> None:
        if self._waits.get(key) is wait:
            del self._waits[key]

    async def _until_read(self, watch: lifecycle.BatchWatch, wait: _Wait) -> None:
        done = False
        while not done:
            wait.due = self.state.clock.monotonic() + watch.due_in
            await sleep_until_due(self.state.clock, watch.due_in)
            wait.checking = True
            with wait.trace.check(watch.lane.model, watch.batch):
                done = await watch.look()
            wait.checking, wait.batch = False, watch.batch

    def _hand_over(self, key: FlightKey, wait: _Wait | None, result: BatchResult) -> None:
        """Give a result to whoever waits for it here, or keep it for who asks later."""
        taken = wait is not None and wait.resolve(result.custom_id, result)
        self.state.flights.read(key, result, taken=taken)

    def _watch(
        self,
        lane: Lane,
        key: FlightKey,
        batch: Batch,
        history: CheckHistory,
        deliver: Callable[[BatchResult], Awaitable[None]],
    ) -> lifecycle.BatchWatch:
        def checked(batch: Batch) -> None:
            now = utc(self.state.clock)
            self.state.flights.checked(key, batch, now)
            if (wait := self._waits.get(key)) is not None:
                wait.read_at = now
            self.state.report('checked', lane, batch=batch)
            if lane.job_status(batch) == 'in_progress':
                # It has passed its validation, if it is a part of a search.
                self.state.searches.was_run(key)
            tracing.current().answered(batch)

        def failed(error: ModelAPIError) -> None:
            tracing.current().failed(error)

        return lifecycle.BatchWatch(
            lane,
            batch,
            self.state.settings,
            self.state.clock,
            deliver,
            checked,
            failed,
            history,
            ledger=self.state.ledger,
        )

    async def _finish(self, lane: Lane, key: FlightKey, watch: lifecycle.BatchWatch) -> None:
        """Note that all results of a batch were read, and delete the input that this process uploaded for it."""
        created = self.state.flights.ended(key, watch.batch, keyless=watch.keyless)
        await lifecycle.clean_up(lane, created, watch.batch, self.state.ledger)

    async def look(
        self, lane: Lane, key: FlightKey, submitted: Submitted, *, checked_at: datetime | None, history: CheckHistory
    ) -> Looked:
        """Check on a batch once for a request that a history left pending, and do not wait for it.

        Requests that check on one batch together, or one after another, share the provider's answer.

        Raises:
            UserError: The pool was closed meanwhile.
            ModelAPIError: The batch could not be checked, or its results not be read. It is left as it is.
        """
        flights, clock = self.state.flights, self.state.clock
        if (found := self._found(lane, key, submitted.custom_id)) is not None:
            return Looked(submitted.batch, utc(clock), found, history)
        if (status := flights.status(key, submitted.custom_id, newer_than=checked_at)) is not None:
            history.polls += 1
            history.answered(status[1])
            return Looked(*status, None, history)
        shared = (key, submitted.batch.created_at)
        if (look := self._looks.get(shared)) is None:
            look = self._looks[shared] = self._start_look(lane, key, submitted, history)
            look.task.add_done_callback(lambda _: self._looks.pop(shared, None))
        # Not awaited directly, as cancelling this run must not cancel the check that others share.
        await asyncio.wait((look.task,))
        if look.task.cancelled():
            raise UserError(CLOSED)
        watch = look.watch
        flights.serve(key, submitted.custom_id)
        # What was read counts, whatever became of the rest.
        result = look.results.get(submitted.custom_id)
        if result is None:
            if (error := look.task.exception()) is not None:
                raise copy_of(error) if isinstance(error, Exception) else error
            if look.task.result():
                return Looked(watch.batch, utc(clock), watch.missing(submitted.custom_id), watch.history)
        return Looked(watch.batch, utc(clock), result, watch.history)

    def _start_look(self, lane: Lane, key: FlightKey, submitted: Submitted, history: CheckHistory) -> _Look:
        results: dict[str, BatchResult] = {}
        trace = tracing.BatchTrace()
        trace.join(submitted.trace_context)

        async def deliver(result: BatchResult) -> None:
            # Kept for all who share the look, whatever has been evicted or taken by the time they come to read it.
            results[result.custom_id] = result
            self._hand_over(key, self._waits.get(key), result)

        async def look() -> bool:
            async with lane.model:
                with trace.check(lane.model, watch.batch):
                    done = await watch.look()
                if done:
                    with trace.inside():
                        await self._finish(lane, key, watch)
            return done

        watch = self._watch(lane, key, submitted.batch, history, deliver)
        return _Look(watch, self.tasks.start(look()), results)

    def close(self) -> None:
        """Let go of the runs that wait. Those between two checks go on by themselves; the others fail."""
        waits, self._waits = self._waits, {}
        now = self.state.clock.monotonic()
        for key, wait in waits.items():
            going_on = 'fail, as it was being checked' if wait.checking else 'go on, and check it when that is due'
            _log_in_flight(key, f'{counted(len(wait.futures), "run")} here that waited for it {going_on}')
            wait.fail(UserError(CLOSED) if wait.checking else wait.let_go(now))
        for key in {key for key, _ in self._looks} - waits.keys():
            _log_in_flight(key, 'the runs that were checking it fail')

    def abandon(self) -> None:
        """Leave the batches of an event loop that was closed while runs waited in it, of which none can go on."""
        waits, self._waits = self._waits, {}
        for key, wait in waits.items():
            for custom_id in wait.futures:
                self.state.flights.leave(key, custom_id)


def _log_in_flight(key: FlightKey, runs: str) -> None:
    lane, _, batch_id = key
    _log.warning(
        'Batch %s of the lane %s is still in flight and left running; %s. To collect it, run with the history of a '
        'run that ended pending, or read it by the handle that `batch_of` finds in the error of one that failed.',
        batch_id,
        lane,
        runs,
    )
