"""Gathers requests into batches and brings their results back, for every run that shares a pool.

A request waits in a queue with those it may share a batch with. The queue is submitted when it is full, when its
oldest request has waited long enough, or when it is flushed. From then on one task checks the batch, however many runs
wait on it, and only while one does; it resolves their futures as the results are read.

Futures belong to an event loop, so each loop has a [`LoopPool`] of its own. What is known of batches is shared between
them, in `Flights`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import Batch, BatchResult

from . import job
from .clock import SYSTEM_CLOCK, Clock, sleep_until_due, utc
from .events import EventKind, Listener, Reporter
from .exceptions import RequestNotSendable, copy_of
from .flights import FlightKey, Flights
from .lanes.base import Lane, NotRun, Payload
from .policy import CheckHistory
from .settings import BatchSettings

_log = logging.getLogger('pydantic_ai_batch')

_CLOSED = '`BatchModelRequests` was exited while the request waited for its batch to be submitted or checked.'

QueueKey = tuple[str, str]
"""The lane and the group key of requests that may share a batch."""


class PoolClosed(Exception):
    """The `async with` block of the pool ended while a run waited between two checks; its batch goes on."""


@dataclass(frozen=True)
class Submitted:
    """Where a request went: the batch, and the request's ID in it."""

    batch: Batch
    custom_id: str


@dataclass(frozen=True)
class Looked:
    """What a single check of a batch came to for one request."""

    batch: Batch
    """The batch as it is now."""

    read_at: datetime
    """When that was read."""

    result: BatchResult | NotRun | None
    """The request's result once the batch has ended, or `None` while it runs."""

    history: CheckHistory
    """The checks so far, this one included."""


@dataclass(eq=False)
class _Queued:
    body: bytes
    size: int
    placed: asyncio.Future[Submitted]


@dataclass
class _Queue:
    lane: Lane
    group: str
    max_requests: int
    max_bytes: int
    items: list[_Queued] = field(default_factory=list[_Queued])
    size: int = 0
    timer: asyncio.Task[None] | None = None

    def fits(self, size: int) -> bool:
        return not self.items or self.size + size <= self.max_bytes

    def add(self, item: _Queued) -> None:
        self.items.append(item)
        self.size += item.size

    def remove(self, item: _Queued) -> bool:
        """Take an item out, and return whether it was still in."""
        if item not in self.items:
            return False
        self.items.remove(item)
        self.size -= item.size
        return True


@dataclass
class _Wait:
    """The runs that wait on one batch, and the task that checks it for them."""

    futures: dict[str, list[asyncio.Future[BatchResult | NotRun]]] = field(
        default_factory=dict[str, 'list[asyncio.Future[BatchResult | NotRun]]']
    )
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

    watch: job.BatchWatch
    task: asyncio.Task[bool]
    results: dict[str, BatchResult]


class Pool:
    """Everything that the models of one `BatchModelRequests` share."""

    def __init__(
        self, settings: BatchSettings, *, clock: Clock = SYSTEM_CLOCK, listener: Listener | None = None
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._report = Reporter(listener)
        self.flights = Flights()
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = weakref.WeakKeyDictionary()

    def here(self) -> LoopPool:
        """The part of the pool that belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if (pool := self._loops.get(loop)) is None:
                pool = self._loops[loop] = LoopPool(self)
            return pool

    def report(self, kind: EventKind, lane: Lane, *, count: int = 1, batch: Batch | None = None) -> None:
        """Tell the listener, if there is one, what happened."""
        self._report(kind, lane=lane.info.name, model_name=lane.model.model_name, count=count, batch=batch)

    def leave(self, lane: Lane, key: FlightKey, custom_id: str, *, failed: bool = False) -> None:
        """Leave a request in its batch for a later run, which keeps the batch from being cancelled."""
        if (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('failed' if failed else 'left', lane, batch=batch)
        self.flights.leave(key, custom_id)

    async def withdraw(self, lane: Lane, key: FlightKey, custom_id: str) -> None:
        """Give a request up, and cancel its batch if this process made it and nobody else waits on it.

        A run that was given a copy of another run's history gives up nothing of that run's.
        """
        with self._lock:
            loops = list(self._loops.values())
        if any(loop.waits_for(key, custom_id) for loop in loops):
            return
        if (batch := self.give_up(lane, key, custom_id)) is not None:
            # Entered, as the run that gives up may have left the model, and its client closed, by now.
            async with lane.model:
                await lane.cancel(batch)

    def give_up(self, lane: Lane, key: FlightKey, custom_id: str) -> Batch | None:
        """Record that nobody wants a request any more, and return its batch if that is to be cancelled now."""
        if (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('left', lane, batch=batch)
        if (batch := self.flights.withdraw(key, custom_id)) is not None:
            _log.info('Batch %s is cancelled, as no run waits for it any more.', batch.id)
        return batch


class LoopPool:
    """The queues, submissions and checks of one event loop."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.entered = 0
        """How many `async with` blocks are open on this loop."""
        self._queues: dict[QueueKey, _Queue] = {}
        self._waits: dict[FlightKey, _Wait] = {}
        self._looks: dict[FlightKey, _Look] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    # Queueing and submitting

    async def place(self, lane: Lane, group: str, body: bytes) -> Submitted:
        """Queue an encoded request, and wait until it is in a batch.

        Cancelling withdraws it: from the queue, or, if it was submitted meanwhile, from its batch.

        Raises:
            RequestNotSendable: The request alone is larger than a batch may be.
            ModelAPIError: The batch could not be created.
            UserError: The pool was closed meanwhile.
        """
        settings = self.pool.settings
        key = (lane.info.name, group)
        size = lane.request_size(body)
        max_bytes = min(lane.max_bytes, settings.max_bytes or lane.max_bytes)
        if size > max_bytes:
            raise too_large(lane, size, max_bytes)
        queue = self._queues.get(key)
        if queue is not None and not queue.fits(size):
            self._submit(key)
            queue = None
        if queue is None:
            max_requests = min(lane.max_requests, settings.max_requests or lane.max_requests)
            queue = self._queues[key] = _Queue(lane, group, max_requests, max_bytes)
            if settings.max_wait is not None:
                queue.timer = self._start(self._submit_after(key, queue, settings.max_wait.total_seconds()))
        item = _Queued(body, size, asyncio.get_running_loop().create_future())
        queue.add(item)
        self.pool.report('queued', lane)
        if len(queue.items) >= queue.max_requests:
            self._submit(key)
        try:
            return await item.placed
        except asyncio.CancelledError:
            if queue.remove(item):
                self.pool.report('withdrawn', lane)
            elif item.placed.done() and not item.placed.cancelled() and item.placed.exception() is None:
                # It was placed, and the run was cancelled before it heard of it.
                self._withdraw(lane, group, item.placed.result())
            raise

    async def flush(self) -> None:
        """Submit every queue now, and wait until that is done."""
        if tasks := [self._submit(key) for key in list(self._queues)]:
            await asyncio.wait(tasks)

    async def _submit_after(self, key: QueueKey, queue: _Queue, seconds: float) -> None:
        await sleep_until_due(self.pool.clock, seconds)
        if self._queues.get(key) is queue:
            queue.timer = None
            self._submit(key)

    def _submit(self, key: QueueKey) -> asyncio.Task[None]:
        """Take a queue off, so that later requests start another, and submit it in a task of its own."""
        queue = self._queues.pop(key)
        if queue.timer is not None:
            queue.timer.cancel()
        items, queue.items = queue.items, []
        task = self._start(self._create(queue, items))

        def settle(_: asyncio.Task[None]) -> None:
            # A task that is cancelled before it starts runs no code of its own.
            for item in items:
                if not item.placed.done():
                    self.pool.report('withdrawn', queue.lane)
                    item.placed.set_exception(UserError(_CLOSED))

        task.add_done_callback(settle)
        return task

    async def _create(self, queue: _Queue, items: list[_Queued]) -> None:
        lane = queue.lane
        items = [item for item in items if not item.placed.done()]
        if not items:
            return
        with Payload(lane, queue.group) as payload:
            wire_ids = [payload.add(item.body) for item in items]
            try:
                async with lane.model:
                    batch = await job.submit(lane, payload, self.pool.clock)
            except Exception as error:
                self.pool.report('refused', lane, count=len(items))
                for item in items:
                    if not item.placed.done():
                        item.placed.set_exception(copy_of(error))
                return
        _log.info('Batch %s of %d requests was submitted to %s.', batch.id, len(items), lane.info.name)
        self.pool.flights.submitted(flight_key(lane, queue.group, batch), batch, wire_ids)
        self.pool.report('submitted', lane, count=len(items), batch=batch)
        for item, wire_id in zip(items, wire_ids, strict=True):
            if item.placed.done():
                # Its run was cancelled while the batch was being created.
                self._withdraw(lane, queue.group, Submitted(batch, wire_id))
            else:
                item.placed.set_result(Submitted(batch, wire_id))

    def _withdraw(self, lane: Lane, group: str, submitted: Submitted) -> None:
        key = flight_key(lane, group, submitted.batch)
        if (batch := self.pool.give_up(lane, key, submitted.custom_id)) is not None:
            self._start(self._cancel(lane, batch))

    async def _cancel(self, lane: Lane, batch: Batch) -> None:
        with suppress(ModelAPIError):
            async with lane.model:
                await lane.cancel(batch)

    # Waiting and checking

    async def wait(self, lane: Lane, key: FlightKey, submitted: Submitted) -> BatchResult | NotRun:
        """Wait until the batch has ended and the request's result was read, however long that takes.

        Raises:
            PoolClosed: The pool was closed while the batch was between two checks.
            UserError: The pool was closed while a check was under way.
            ModelAPIError: The batch could not be checked, or its results not be read. It is left as it is.
        """
        if (found := self._found(lane, key, submitted.custom_id)) is not None:
            return found
        wait = self._waits.get(key)
        if wait is None:
            wait = self._waits[key] = _Wait()
            wait.poller = self._start(self._poll(lane, key, submitted.batch, wait))
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
                del self._waits[key]
                wait.poller.cancel()
            raise

    def waits_for(self, key: FlightKey, custom_id: str) -> bool:
        """Whether a run waits for the request's result on this loop."""
        return (wait := self._waits.get(key)) is not None and custom_id in wait.futures

    def _found(self, lane: Lane, key: FlightKey, custom_id: str) -> BatchResult | NotRun | None:
        found = self.pool.flights.find(key, custom_id)
        if found is None:
            return None
        batch, result = found
        return result or lane.unlisted(batch, custom_id)

    async def _poll(self, lane: Lane, key: FlightKey, batch: Batch, wait: _Wait) -> None:
        """Check the batch for all who wait on it until each has its result."""
        last: list[BatchResult] = []

        async def deliver(result: BatchResult) -> None:
            if len(wait.futures) == 1 and result.custom_id in wait.futures:
                # The last run to get its answer may end the program: what is left to do comes first.
                self.pool.flights.read(key, result, taken=False)
                last.append(result)
            else:
                self._hand_over(key, wait, result)

        error: Exception | None = None
        try:
            async with lane.model:
                while wait.futures and not last:
                    watch = self._watch(lane, key, batch, CheckHistory(), deliver)
                    await self._until_read(watch, wait)
                    batch = watch.batch
                    for custom_id in list(wait.futures):
                        # Whoever came to wait while the results were read may have missed theirs: they are read again.
                        if not watch.delivered(custom_id):
                            wait.resolve(custom_id, watch.missing(custom_id))
                    await self._finish(lane, key, watch)
        except Exception as failure:
            error = failure
        finally:
            if self._waits.get(key) is wait:
                del self._waits[key]
        for result in last:
            wait.resolve(result.custom_id, result)
        if error is not None:
            wait.fail(error)

    async def _until_read(self, watch: job.BatchWatch, wait: _Wait) -> None:
        done = False
        while not done:
            if watch.batch.status != 'ended' or watch.history.polls:
                await sleep_until_due(self.pool.clock, watch.delay)
            wait.checking = True
            done = await watch.look()
            wait.checking = False

    def _hand_over(self, key: FlightKey, wait: _Wait | None, result: BatchResult) -> None:
        """Give a result to whoever waits for it here, or keep it for who asks later."""
        taken = wait is not None and wait.resolve(result.custom_id, result)
        self.pool.flights.read(key, result, taken=taken)

    def _watch(
        self,
        lane: Lane,
        key: FlightKey,
        batch: Batch,
        history: CheckHistory,
        deliver: Callable[[BatchResult], Awaitable[None]],
    ) -> job.BatchWatch:
        def checked(batch: Batch) -> None:
            self.pool.flights.checked(key, batch, utc(self.pool.clock))
            self.pool.report('checked', lane, batch=batch)

        return job.BatchWatch(lane, batch, self.pool.settings, self.pool.clock, deliver, checked, history)

    async def _finish(self, lane: Lane, key: FlightKey, watch: job.BatchWatch) -> None:
        """Note that all results of a batch were read, and delete the input that this process uploaded for it."""
        if (created := self.pool.flights.ended(key, watch.batch)) is not None:
            await job.clean_up(lane, created, watch.batch)

    async def look(
        self, lane: Lane, key: FlightKey, submitted: Submitted, *, checked_at: datetime | None, history: CheckHistory
    ) -> Looked:
        """Check on a batch once for a request that a history left pending, and do not wait for it.

        Requests that check on one batch together, or one after another, share the provider's answer.

        Raises:
            UserError: The pool was closed meanwhile.
            ModelAPIError: The batch could not be checked, or its results not be read. It is left as it is.
        """
        flights, clock = self.pool.flights, self.pool.clock
        if (found := self._found(lane, key, submitted.custom_id)) is not None:
            return Looked(submitted.batch, utc(clock), found, history)
        if (status := flights.status(key, submitted.custom_id, newer_than=checked_at)) is not None:
            history.polls += 1
            history.answered(status[1])
            return Looked(*status, None, history)
        look = self._looks.get(key)
        if look is None:
            look = self._looks[key] = self._start_look(lane, key, submitted.batch, history)
        # Not awaited directly, as cancelling this run must not cancel the check that others share.
        await asyncio.wait((look.task,))
        if look.task.cancelled():
            raise UserError(_CLOSED)
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

    def _start_look(self, lane: Lane, key: FlightKey, batch: Batch, history: CheckHistory) -> _Look:
        results: dict[str, BatchResult] = {}

        async def deliver(result: BatchResult) -> None:
            # Kept for all who share the look, whatever has been evicted or taken by the time they come to read it.
            results[result.custom_id] = result
            self._hand_over(key, self._waits.get(key), result)

        async def look() -> bool:
            async with lane.model:
                done = await watch.look()
                if done:
                    await self._finish(lane, key, watch)
            return done

        watch = self._watch(lane, key, batch, history, deliver)
        task = self._start(look())
        task.add_done_callback(lambda _: self._looks.pop(key, None))
        return _Look(watch, task, results)

    # Ending

    async def close(self) -> None:
        """End what this loop's part of the pool is doing, and leave every batch as it is.

        Requests that are queued, being submitted or being checked fail. Runs between two checks get their pending
        response back.
        """
        for key in list(self._queues):
            queue = self._queues.pop(key)
            if queue.timer is not None:
                queue.timer.cancel()
            for item in queue.items:
                if not item.placed.done():
                    self.pool.report('withdrawn', queue.lane)
                    item.placed.set_exception(UserError(_CLOSED))
        waits, self._waits = self._waits, {}
        for (_, _, batch_id), wait in waits.items():
            _log.warning(
                'Batch %s is still in flight with %d requests waiting for it. It is left running: resume their '
                'histories to collect it.',
                batch_id,
                len(wait.futures),
            )
            wait.fail(UserError(_CLOSED) if wait.checking else PoolClosed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task that belongs to the pool and to no run.

        Its context is empty, so that neither the trace nor the context variables of the run that happened to start it
        reach requests of others.
        """
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Marks a failure as seen when every run that waited for it was cancelled.
            task.exception()


def flight_key(lane: Lane, group: str, batch: Batch) -> FlightKey:
    """The key of a batch as the credential in `group` sees it."""
    return lane.info.name, group, batch.id


def too_large(lane: Lane, size: int, max_bytes: int) -> RequestNotSendable:
    """The error for a request that no batch can hold."""
    return RequestNotSendable(
        lane.model.model_name,
        f'The request takes {size:,} bytes in a batch, which may hold {max_bytes:,}: shorten it, or send it live.',
    )
