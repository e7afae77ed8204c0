"""Sends what a queue has gathered: one batch, or more if the provider has no room for it as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.batch import Batch

from . import creation, tracing
from .backpressure import Gate, TooMuchAtOnce
from .exceptions import copy_of
from .lanes.base import Lane, Payload
from .policy import Search, full_queue
from .pool_state import PoolState, Submitted, flight_key


@dataclass(eq=False)
class Queued:
    """One request on its way into a batch."""

    body: bytes
    size: int
    """The bytes that it adds to a batch."""
    placed: asyncio.Future[Submitted]
    """Where it went, which its run waits for."""
    held_since: float | None
    """When a full queue first sent the request back, by the clock; `None` if none did."""
    queued_at: float
    """When it was queued, by the monotonic clock."""
    requester: tracing.Requester | None
    entry: int | None
    """What it is in the journal, if there is one."""


_CLAIM_SECONDS = 1.0
"""How long no run may claim a request from the journal before those that are left there count as missed."""


class _Abandoned(Exception):
    """Nobody waits any more for any request of a batch that is to be created."""


@dataclass
class Submission:
    """The requests of one batch, until it is created or has failed."""

    state: PoolState
    gate: Gate
    lane: Lane
    group: str
    search: Search | None
    """The search that the batch is a part of."""
    items: list[Queued]
    divide: Callable[[list[list[Queued]]], list[asyncio.Task[None]]]
    """Starts submissions of parts of it."""
    withdraw: Callable[[Submitted], None]
    """Called for each request whose run was cancelled while the batch was being created."""
    flushed: asyncio.Future[None]
    """Done when the batch was created or has failed, or when the provider has no room for it."""
    _wire_ids: list[str] = field(default_factory=list[str])
    _payload: Payload | None = None
    _span: tracing.BatchSpan = field(default_factory=tracing.BatchSpan)

    async def run(self) -> None:
        """Create the batch, when there is room for it, and tell the runs that wait where their requests are."""
        try:
            batch = await self.gate.submit(
                self._create,
                discard=self._discard,
                count=len(self.items),
                since=min((item.held_since for item in self.items if item.held_since is not None), default=None),
                held=self._held,
                wanted_by=[item.placed for item in self.items],
            )
        except _Abandoned:
            return
        except TooMuchAtOnce:
            middle = (len(self.items) + 1) // 2
            await asyncio.wait(self.divide([self.items[:middle], self.items[middle:]]))
            return
        except Exception as error:
            await self._fail(error)
            return
        finally:
            self.release()
        self._place(batch)

    def release(self) -> None:
        """Let go of whoever flushes, and of the memory that the requests are in."""
        if not self.flushed.done():
            self.flushed.set_result(None)
        if self._payload is not None:
            self._payload.close()

    async def _create(self, *, settling: Callable[[], None]) -> Batch:
        await self._others_first([item.entry for item in self._waiting if item.entry is not None])
        async with self.lane.model:
            payload = await self._payload_of_who_waits()
            # From here to the journal nothing is waited for: who is cancelled later is in the batch written down there.
            with tracing.submission(self.lane.model, [item.requester for item in self.items]) as self._span:
                batch = await creation.submit(
                    self.lane, payload, self.state.clock, self.state.ledger, settling=settling
                )
                self._span.answered(batch)
        return batch

    @property
    def _waiting(self) -> list[Queued]:
        return [item for item in self.items if not item.placed.done()]

    async def _payload_of_who_waits(self) -> Payload:
        """The requests of those who still wait, as it may come to this hours later, when the provider has room.

        Raises:
            _Abandoned: There are none.
        """
        while self._payload is None or len(self._waiting) < len(self.items):
            await self._discard()
            waiting = self._waiting
            self.state.report('withdrawn', self.lane, count=len(self.items) - len(waiting))
            self.items[:] = waiting
            if not self.items:
                raise _Abandoned
            self._payload = Payload(self.lane, self.group)
            self._wire_ids = [self._payload.add(item.body, item.entry) for item in self.items]
        return self._payload

    async def _others_first(self, entries: list[int]) -> None:
        """Give runs whose requests are in the journal the time to claim them, before new ones count as a miss."""
        if (ledger := self.state.ledger) is None or self._payload is not None:
            return
        left = await ledger.missed(entries)
        while left:
            await self.state.clock.sleep(_CLAIM_SECONDS)
            before, left = left, await ledger.missed(entries)
            if left == before:
                return

    async def _discard(self) -> None:
        if self._payload is None:
            return
        with tracing.under(self._span.trace_context):
            async with self.lane.model:
                await creation.discard(self.lane, self._payload)
        self._payload.close()

    def _held(self, now: float) -> None:
        for item in self.items:
            item.held_since = item.held_since or now
        if not self.flushed.done():
            self.flushed.set_result(None)

    async def _fail(self, error: Exception) -> None:
        # One that a full queue has sent back all day does not take those with it that joined it later.
        fresh = self._fresh(error)
        failed = [item for item in self.items if item not in fresh] if fresh else self.items
        self.state.report('refused', self.lane, count=len(failed))
        for item in failed:
            if not item.placed.done():
                item.placed.set_exception(copy_of(error))
        if fresh:
            await asyncio.wait(self.divide([fresh]))

    def _fresh(self, error: Exception) -> list[Queued]:
        """The requests that a full queue has not sent back for too long yet, if that is the error, and not for all."""
        if not isinstance(error, ModelAPIError) or full_queue(error) is None:
            return []
        now = self.state.clock.now()
        fresh = [
            item for item in self.items if now - (item.held_since or now) < self.gate.window and not item.placed.done()
        ]
        return fresh if len(fresh) < len(self.items) else []

    def _place(self, batch: Batch) -> None:
        state, ledger = self.state, self.state.ledger
        self.gate.entered(batch.id)
        key = flight_key(self.lane, self.group, batch)
        if self.search is not None:
            state.searches.keep(key, self.search)
        state.flights.submitted(key, batch, self._wire_ids, cancellable=ledger is None or not ledger.keeps)
        state.report('submitted', self.lane, count=len(self.items), batch=batch)
        for item, wire_id in zip(self.items, self._wire_ids, strict=True):
            submitted = Submitted(batch, wire_id, self._span.trace_context, item.held_since)
            if item.placed.done():
                self.withdraw(submitted)
            else:
                item.placed.set_result(submitted)
