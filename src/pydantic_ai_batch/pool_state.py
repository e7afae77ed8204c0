"""What the queues and the waits of every event loop share: settings, clock, events, and what is known of batches."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from pydantic_ai.models.batch import Batch

from .clock import Clock
from .events import EventKind, Reporter
from .flights import FlightKey, Flights
from .lanes.base import Lane
from .settings import BatchSettings

_log = logging.getLogger('pydantic_ai_batch')

CLOSED = '`BatchModelRequests` was exited while the request waited for its batch to be submitted or checked.'


class PoolClosed(Exception):
    """The `async with` block of the pool ended while a run waited between two checks; its batch goes on."""


@dataclass(frozen=True)
class Submitted:
    """Where a request went: the batch, and the request's ID in it."""

    batch: Batch
    custom_id: str


class PoolState:
    """What one `BatchModelRequests` goes by and knows, on whatever event loop."""

    def __init__(self, settings: BatchSettings, clock: Clock, reporter: Reporter) -> None:
        self.settings = settings
        self.clock = clock
        self.flights = Flights()
        self._report = reporter

    def report(self, kind: EventKind, lane: Lane, *, count: int = 1, batch: Batch | None = None) -> None:
        """Tell the listener, if there is one, what happened."""
        self._report(kind, lane=lane.info.name, model_name=lane.model.model_name, count=count, batch=batch)

    def leave(self, lane: Lane, key: FlightKey, custom_id: str, *, failed: bool = False) -> None:
        """Leave a request in its batch for a later run, which keeps the batch from being cancelled."""
        if (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('failed' if failed else 'left', lane, batch=batch)
        self.flights.leave(key, custom_id)

    def give_up(self, lane: Lane, key: FlightKey, custom_id: str) -> Batch | None:
        """Record that nobody wants a request any more, and return its batch if that is to be cancelled now."""
        if (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('left', lane, batch=batch)
        if (batch := self.flights.withdraw(key, custom_id)) is not None:
            _log.warning('Batch %s is cancelled, as no run waits for it; what it has finished may be billed.', batch.id)
        return batch


class Tasks:
    """The tasks of one event loop that belong to the pool, and to no run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
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

    async def cancel(self) -> None:
        """Cancel what is running, and wait until it has ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def flight_key(lane: Lane, group: str, batch: Batch) -> FlightKey:
    """The key of a batch as the credential in `group` sees it."""
    return lane.info.name, group, batch.id
