"""Queues requests with those they may share a batch with, and submits them.

A queue is submitted when it is full, when its oldest request has waited long enough, or when it is flushed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import Batch

from . import lifecycle, tracing
from .backpressure import Gates
from .clock import sleep_until_due
from .exceptions import RequestNotSendable
from .lanes.base import Lane
from .policy import Search
from .pool_state import CLOSED, PoolState, Submitted, flight_key
from .submission import Queued, Submission
from .tasks import Tasks

_log = logging.getLogger('pydantic_ai_batch')

QueueKey = tuple[str, str, str]
"""The scope of the lane, the group key and the part of requests that may share a batch."""

_AGAIN_WAIT = 30.0
"""Seconds that what is submitted again waits for others where queues wait without an end."""


@dataclass(frozen=True)
class Part:
    """A part of a batch that is sent again in parts, whose requests come back to the queue one by one."""

    key: str
    size: int
    """How many requests the part has, if none was withdrawn."""
    search: Search | None = None
    """The search for the wrong requests of the batch, if that is why it was divided."""


@dataclass
class _Queue:
    lane: Lane
    group: str
    max_requests: int
    max_bytes: int
    search: Search | None = None
    items: list[Queued] = field(default_factory=list[Queued])
    size: int = 0
    timer: asyncio.Task[None] | None = None

    def fits(self, size: int) -> bool:
        return not self.items or self.size + size <= self.max_bytes

    def add(self, item: Queued) -> None:
        self.items.append(item)
        self.size += item.size

    def remove(self, item: Queued) -> bool:
        """Take an item out, and return whether it was still in."""
        if item not in self.items:
            return False
        self.items.remove(item)
        self.size -= item.size
        return True


class Queues:
    """The queues of one event loop, and the submissions that come of them."""

    def __init__(self, state: PoolState, tasks: Tasks, gates: Gates) -> None:
        self.state = state
        self.tasks = tasks
        self.gates = gates
        self._queues: dict[QueueKey, _Queue] = {}

    async def place(
        self,
        lane: Lane,
        group: str,
        body: bytes,
        *,
        again: bool = False,
        part: Part | None = None,
        since: float | None = None,
        entry: int | None = None,
    ) -> Submitted:
        """Queue an encoded request, and wait until it is in a batch.

        Cancelling withdraws it: from the queue, or, if it was submitted meanwhile, from its batch.

        Args:
            lane: The lane of its model.
            group: Its group key.
            body: Its body.
            again: Whether it was submitted before. Where queues wait without an end, nobody may come to flush it.
            part: The part of a divided batch that it belongs to, whose requests share a batch with no others.
            since: When a full queue first sent it back, by the clock.
            entry: What it is in the journal, if there is one.

        Raises:
            RequestNotSendable: The request alone is larger than a batch may be.
            ModelAPIError: The batch could not be created.
            UserError: The pool was closed meanwhile.
        """
        settings = self.state.settings
        apart = part.key if part else 'again' if again and settings.max_wait is None else ''
        key = (lane.scope, group, apart)
        size = lane.request_size(body)
        max_bytes = lane.room(settings.max_bytes)
        if size > max_bytes:
            raise too_large(lane, size, max_bytes)
        queue = self._queues.get(key)
        if queue is not None and not queue.fits(size):
            self._submit(key)
            queue = None
        if queue is None:
            queue = self._queues[key] = self._new_queue(key, lane, group, max_bytes, part)
        placed = asyncio.get_running_loop().create_future()
        clock = self.state.clock
        item = Queued(body, size, placed, since, clock.monotonic(), tracing.requester(), entry)
        queue.add(item)
        self.state.report('queued', lane)
        if len(queue.items) >= queue.max_requests:
            self._submit(key)
        try:
            return await item.placed
        except asyncio.CancelledError:
            if queue.remove(item):
                self.state.report('withdrawn', lane)
            elif item.placed.done() and not item.placed.cancelled() and item.placed.exception() is None:
                # It was placed, and the run was cancelled before it heard of it.
                self._withdraw(lane, group, item.placed.result())
            raise

    def _new_queue(self, key: QueueKey, lane: Lane, group: str, max_bytes: int, part: Part | None) -> _Queue:
        settings = self.state.settings
        max_requests = min(lane.max_requests, settings.max_requests or lane.max_requests)
        queue = _Queue(lane, group, min(max_requests, part.size) if part else max_requests, max_bytes)
        queue.search = part.search if part else None
        wait = settings.max_wait.total_seconds() if settings.max_wait is not None else _AGAIN_WAIT if key[2] else None
        if wait is not None:
            queue.timer = self.tasks.start(self._submit_after(key, queue, wait))
        return queue

    async def flush(self) -> None:
        """Submit every queue now, and wait until that is done, or until the provider has no room for it."""
        if submissions := [self._submit(key) for key in list(self._queues)]:
            await asyncio.wait(submissions)

    async def _submit_after(self, key: QueueKey, queue: _Queue, seconds: float) -> None:
        clock = self.state.clock
        started, left = clock.monotonic(), seconds
        while left > 0:
            await sleep_until_due(clock, left)
            if self._queues.get(key) is not queue:
                return
            if not queue.items:
                # All were withdrawn: the next request starts a queue, and a wait, of its own.
                del self._queues[key]
                return
            # Those that were withdrawn do not shorten the wait of the others.
            left = queue.items[0].queued_at - started
            started = queue.items[0].queued_at
        queue.timer = None
        self._submit(key)

    def _submit(self, key: QueueKey) -> asyncio.Future[None]:
        """Take a queue off, so that later requests start another, and submit it in a task of its own.

        Returns:
            What is done when it was submitted, or is held back by a full queue.
        """
        queue = self._queues.pop(key)
        if queue.timer is not None:
            queue.timer.cancel()
        items, queue.items = queue.items, []
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._start(queue, items, flushed)
        return flushed

    def _start(
        self, queue: _Queue, items: list[Queued], flushed: asyncio.Future[None] | None = None
    ) -> asyncio.Task[None]:
        submission = Submission(
            self.state,
            self.gates.of(queue.lane, queue.group),
            queue.lane,
            queue.group,
            queue.search,
            items,
            divide=lambda parts: [self._start(queue, part) for part in parts],
            withdraw=lambda submitted: self._withdraw(queue.lane, queue.group, submitted),
            flushed=flushed or asyncio.get_running_loop().create_future(),
        )
        task = self.tasks.start(submission.run())

        def done(_: asyncio.Task[None]) -> None:
            # A task that is cancelled before it starts runs no code of its own.
            submission.release()
            self._let_go(queue.lane, items)

        task.add_done_callback(done)
        return task

    def _withdraw(self, lane: Lane, group: str, submitted: Submitted) -> None:
        key = flight_key(lane, group, submitted.batch)
        batch = self.state.give_up(lane, key, submitted.custom_id)
        if not self.state.flights.is_wanted(key):
            self.gates.forget(*key)
        if batch is not None:
            self.tasks.start(self._cancel(lane, batch, submitted.trace_context))

    async def _cancel(self, lane: Lane, batch: Batch, trace_context: tracing.TraceContext | None) -> None:
        with suppress(ModelAPIError), tracing.under(trace_context):
            async with lane.model:
                await lifecycle.cancel(lane, batch)

    def abandon(self) -> None:
        """Count out what was queued on an event loop that was closed, where nothing can be told to it any more."""
        for queue in self._queues.values():
            self.state.report('withdrawn', queue.lane, count=len(queue.items))
        self._queues.clear()

    def close(self) -> None:
        """Fail what is queued. What is being submitted fails when its task is cancelled."""
        for key in list(self._queues):
            queue = self._queues.pop(key)
            if queue.timer is not None:
                queue.timer.cancel()
            self._let_go(queue.lane, queue.items)

    def _let_go(self, lane: Lane, items: list[Queued]) -> None:
        for item in items:
            if not item.placed.done():
                self.state.report('withdrawn', lane)
                item.placed.set_exception(UserError(CLOSED))


def too_large(lane: Lane, size: int, max_bytes: int) -> RequestNotSendable:
    """The error for a request that no batch can hold."""
    return RequestNotSendable(
        lane.model.model_name,
        f'The request takes {size:,} bytes in a batch, which may hold {max_bytes:,}: shorten it, or send it live.',
    )
