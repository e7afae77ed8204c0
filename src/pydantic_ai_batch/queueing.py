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

from . import job
from .clock import sleep_until_due
from .exceptions import RequestNotSendable, copy_of
from .lanes.base import Lane, Payload
from .pool_state import CLOSED, PoolState, Submitted, Tasks, flight_key

_log = logging.getLogger('pydantic_ai_batch')

QueueKey = tuple[str, str]
"""The lane and the group key of requests that may share a batch."""


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


class Queues:
    """The queues of one event loop, and the submissions that come of them."""

    def __init__(self, state: PoolState, tasks: Tasks) -> None:
        self.state = state
        self.tasks = tasks
        self._queues: dict[QueueKey, _Queue] = {}

    async def place(self, lane: Lane, group: str, body: bytes) -> Submitted:
        """Queue an encoded request, and wait until it is in a batch.

        Cancelling withdraws it: from the queue, or, if it was submitted meanwhile, from its batch.

        Raises:
            RequestNotSendable: The request alone is larger than a batch may be.
            ModelAPIError: The batch could not be created.
            UserError: The pool was closed meanwhile.
        """
        settings = self.state.settings
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
                queue.timer = self.tasks.start(self._submit_after(key, queue, settings.max_wait.total_seconds()))
        item = _Queued(body, size, asyncio.get_running_loop().create_future())
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

    async def flush(self) -> None:
        """Submit every queue now, and wait until that is done."""
        if tasks := [self._submit(key) for key in list(self._queues)]:
            await asyncio.wait(tasks)

    async def _submit_after(self, key: QueueKey, queue: _Queue, seconds: float) -> None:
        await sleep_until_due(self.state.clock, seconds)
        if self._queues.get(key) is queue:
            queue.timer = None
            self._submit(key)

    def _submit(self, key: QueueKey) -> asyncio.Task[None]:
        """Take a queue off, so that later requests start another, and submit it in a task of its own."""
        queue = self._queues.pop(key)
        if queue.timer is not None:
            queue.timer.cancel()
        items, queue.items = queue.items, []
        task = self.tasks.start(self._create(queue, items))

        # A task that is cancelled before it starts runs no code of its own.
        task.add_done_callback(lambda _: self._let_go(queue.lane, items))
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
                    batch = await job.submit(lane, payload, self.state.clock)
            except Exception as error:
                self.state.report('refused', lane, count=len(items))
                for item in items:
                    if not item.placed.done():
                        item.placed.set_exception(copy_of(error))
                return
        _log.info('Batch %s of %d requests was submitted to %s.', batch.id, len(items), lane.info.name)
        self.state.flights.submitted(flight_key(lane, queue.group, batch), batch, wire_ids)
        self.state.report('submitted', lane, count=len(items), batch=batch)
        for item, wire_id in zip(items, wire_ids, strict=True):
            if item.placed.done():
                # Its run was cancelled while the batch was being created.
                self._withdraw(lane, queue.group, Submitted(batch, wire_id))
            else:
                item.placed.set_result(Submitted(batch, wire_id))

    def _withdraw(self, lane: Lane, group: str, submitted: Submitted) -> None:
        key = flight_key(lane, group, submitted.batch)
        if (batch := self.state.give_up(lane, key, submitted.custom_id)) is not None:
            self.tasks.start(self._cancel(lane, batch))

    async def _cancel(self, lane: Lane, batch: Batch) -> None:
        with suppress(ModelAPIError):
            async with lane.model:
                await job.cancel(lane, batch)

    def close(self) -> None:
        """Fail what is queued. What is being submitted fails when its task is cancelled."""
        for key in list(self._queues):
            queue = self._queues.pop(key)
            if queue.timer is not None:
                queue.timer.cancel()
            self._let_go(queue.lane, queue.items)

    def _let_go(self, lane: Lane, items: list[_Queued]) -> None:
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
