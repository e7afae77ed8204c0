"""Gathers requests into batches and brings their results back, for every run that shares a pool.

Requests wait in [`queueing`][pydantic_ai_batch.queueing], and runs in [`waiting`][pydantic_ai_batch.waiting]. Futures
belong to an event loop, so each loop has queues and waits of its own; what is known of batches is shared between them.
"""

from __future__ import annotations

import asyncio
import threading
import weakref

from . import lifecycle
from .backpressure import gates_here
from .clock import SYSTEM_CLOCK, Clock
from .events import Listener, Reporter
from .flights import FlightKey
from .journal import Journal, ledger_of, refuse_unfindable
from .journal.ledger import is_kept
from .journal.takeover import Takeovers
from .lanes.base import Lane
from .pool_state import PoolState
from .queueing import Queues
from .settings import BatchSettings
from .sync import running_loop
from .tasks import Tasks
from .waiting import Waits


class Pool(PoolState):
    """Everything that the models of one `BatchModelRequests` share."""

    def __init__(
        self,
        settings: BatchSettings,
        *,
        clock: Clock = SYSTEM_CLOCK,
        listener: Listener | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(settings, clock, Reporter(listener), journal)
        self._lock = threading.Lock()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopPool] = weakref.WeakKeyDictionary()

    def here(self) -> LoopPool:
        """The part of the pool that belongs to the running event loop.

        Raises:
            UserError: There is none, as under Trio.
        """
        loop = running_loop('`BatchModelRequests`')
        with self._lock:
            if (pool := self._loops.get(loop)) is None:
                # A loop that was closed while it had tasks is held by them, and would stay for ever.
                for closed in [other for other in self._loops if other.is_closed()]:
                    self._loops.pop(closed).abandon()
                pool = self._loops[loop] = LoopPool(self)
            return pool

    def leave(self, lane: Lane, key: FlightKey, custom_id: str, *, failed: bool = False, goes_on: bool = False) -> None:
        """Leave a request in its batch for a later run, and count no more on seeing the batch end."""
        super().leave(lane, key, custom_id, failed=failed, goes_on=goes_on)
        self._forget(key)

    def _forget(self, key: FlightKey) -> None:
        """Count no more on seeing a batch end that nobody here waits for."""
        if self.flights.is_wanted(key):
            return
        with self._lock:
            loops = list(self._loops.values())
        for loop in loops:
            loop.gates.forget(*key)

    async def withdraw(self, lane: Lane, key: FlightKey, custom_id: str) -> None:
        """Give a request up, and cancel its batch if this process made it and nobody else waits on it.

        A run that was given a copy of another run's history gives up nothing of that run's.
        """
        with self._lock:
            loops = list(self._loops.values())
        if any(loop.waits.waits_for(key, custom_id) for loop in loops):
            return
        wanted = self.flights.wanted(key, custom_id)
        if self.ledger is not None:
            self.ledger.release(custom_id)
        batch = self.give_up(lane, key, custom_id)
        self._forget(key)
        if batch is None and wanted is not None and self.ledger is not None and self.ledger.keeps:
            self.tell_kept(wanted)
        if batch is not None and not await is_kept(batch, self.ledger):
            # Entered, as the run that gives up may have left the model, and its client closed, by now.
            async with lane.model:
                await lifecycle.cancel(lane, batch)


class LoopPool:
    """The part of a pool that belongs to one event loop."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._opening = asyncio.Lock()
        self._takeovers: Takeovers | None = None
        self.entered = 0
        """How many `async with` blocks are open on this loop."""
        self._tasks = Tasks()
        self.gates = gates_here(state.clock)
        self.queues = Queues(state, self._tasks, self.gates)
        self.waits = Waits(state, self._tasks, self.gates)

    async def takeovers(self, lane: Lane) -> Takeovers | None:
        """What takes requests over from earlier processes; `None` without a journal, which is opened first.

        Raises:
            JournalError: The journal cannot be used. Nothing was sent.
            UserError: None can be kept for the lane.
        """
        state = self._state
        if state.journal is None:
            return None
        refuse_unfindable(lane)
        async with self._opening:
            if state.ledger is None or state.ledger.store.closed:
                state.ledger = await ledger_of(state.journal, state.clock)
        if state.ledger is not None and (self._takeovers is None or self._takeovers.ledger is not state.ledger):
            self._takeovers = Takeovers(state.ledger, state.clock, self._tasks.start)
        return self._takeovers

    def abandon(self) -> None:
        """Leave what an event loop was doing that was closed while runs waited in it."""
        self.queues.abandon()
        self.waits.abandon()

    async def close(self) -> None:
        """End what this loop's part of the pool is doing, and leave every batch as it is.

        Requests that are queued, being submitted or being checked fail. Runs between two checks get their pending
        response back.
        """
        if self._takeovers is not None:
            self._takeovers.close()
            self._takeovers = None
        self.queues.close()
        self.waits.close()
        await self._tasks.cancel()
