"""What the queues and the waits of every event loop share: settings, clock, events, and what is known of batches."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch

from .clock import Clock, utc
from .compat import counts_of
from .events import EventKind, Reporter, Tally, event_of
from .flights import FlightKey, Flights
from .journal import Journal
from .journal.ledger import Ledger, Place
from .lanes.base import Lane
from .policy import Search
from .settings import BatchSettings
from .stats import BatchingStats, InFlight
from .tracing import TraceContext

_MAX_SEARCHES = 1024

_log = logging.getLogger('pydantic_ai_batch')

CLOSED = (
    '`BatchModelRequests` was exited while the request waited for its batch to be submitted or checked: await the runs '
    'inside the `async with` block. Batches that exist go on, and are named in the log.'
)


@dataclass(frozen=True)
class Submitted:
    """Where a request went: the batch, and the request's ID in it."""

    batch: Batch
    custom_id: str
    trace_context: TraceContext | None = None
    """The trace of the batch's submission, if that was traced."""

    held_since: float | None = None
    """When a full queue first sent it back, by the clock."""

    place: Place | None = None
    """What the journal says of it, if an earlier process submitted it."""


class Searches:
    """The searches for wrong requests that batches are parts of. Shared by threads; the oldest are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._searches: OrderedDict[FlightKey, Search] = OrderedDict()

    def keep(self, key: FlightKey, search: Search) -> None:
        """Record that a batch is a part of a search."""
        with self._lock:
            self._searches[key] = search
            while len(self._searches) > _MAX_SEARCHES:
                self._searches.popitem(last=False)

    def was_run(self, key: FlightKey) -> None:
        """Record that a batch was run, whether it is a part of a search or not."""
        with self._lock:
            if (search := self._searches.get(key)) is not None:
                search.found = True

    def of(self, key: FlightKey) -> Search:
        """The search that a batch is a part of, or a new one that begins with it."""
        with self._lock:
            return self._searches.setdefault(key, Search())


class PoolState:
    """What one `BatchModelRequests` goes by and knows, on whatever event loop."""

    def __init__(
        self, settings: BatchSettings, clock: Clock, reporter: Reporter, journal: Journal | None = None
    ) -> None:
        self.settings = settings
        self.journal = journal
        self.ledger: Ledger | None = None
        """The journal, once it is open."""
        self.clock = clock
        self.flights = Flights()
        self._tally = Tally(keeps_done=False)
        self._tallying = threading.Lock()
        self.searches = Searches()
        self._resubmitted: OrderedDict[str, None] = OrderedDict()
        """Batches that requests were sent again of, as far as that was logged."""
        self._kept: OrderedDict[str, None] = OrderedDict()
        """Batches that go on though runs that waited for them were cancelled, as far as that was logged."""
        self._report = reporter

    def report(
        self,
        kind: EventKind,
        lane: Lane,
        *,
        count: int = 1,
        batch: Batch | None = None,
        response: ModelResponse | None = None,
        stored: bool = False,
    ) -> None:
        """Count what happened, and tell the listener, if there is one."""
        if not count:
            return
        if kind == 'resubmitted' and batch is not None and _remember(self._resubmitted, batch.id):
            _log.info('Requests of batch %s are sent again.', batch.id)
        event = event_of(kind, lane, count=count, batch=batch, response=response, stored=stored)
        with self._tallying:
            self._tally(event)
        self._report(event)

    def tell_kept(self, batch: Batch) -> None:
        """Say, once for each batch, that it goes on though runs that waited for it were cancelled."""
        if _remember(self._kept, batch.id):
            _log.warning('Batch %s goes on: run this again with the same journal to collect it.', batch.id)

    def stats(self) -> BatchingStats:
        """What it comes to so far."""
        now = utc(self.clock)
        with self._tallying:
            tally = replace(self._tally, batches=dict(self._tally.batches))
        return BatchingStats(
            queued=tally.queued,
            answered=tally.answered,
            resubmitted=tally.resubmitted,
            failed=tally.failed,
            held=tally.held,
            left=tally.left,
            cost=tally.cost,
            unpriced=tally.unpriced,
            stored=tally.stored,
            journal_bytes=self.journal.size if self.journal is not None else None,
            batches=tuple(
                InFlight(
                    batch=batch.batch,
                    lane=batch.lane,
                    requests=batch.submitted,
                    waiting=batch.submitted - batch.back - batch.left,
                    counts=counts_of(batch.batch),
                    age=now - batch.batch.created_at,
                )
                for batch in tally.batches.values()
            ),
        )

    def leave(self, lane: Lane, key: FlightKey, custom_id: str, *, failed: bool = False, goes_on: bool = False) -> None:
        """Leave a request in its batch for a later run, which keeps the batch from being cancelled.

        Args:
            lane: Its lane.
            key: The batch as the credential of the request sees it.
            custom_id: The ID of the request in it.
            failed: Whether its run got an error.
            goes_on: Whether its run goes on to wait, by itself.
        """
        if not goes_on and (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('failed' if failed else 'left', lane, batch=batch)
        self.flights.leave(key, custom_id)

    def give_up(self, lane: Lane, key: FlightKey, custom_id: str) -> Batch | None:
        """Record that nobody wants a request any more, and return its batch if that is to be cancelled now."""
        if (batch := self.flights.wanted(key, custom_id)) is not None:
            self.report('left', lane, batch=batch)
        if (batch := self.flights.withdraw(key, custom_id)) is not None:
            _log.warning('Batch %s is cancelled, as no run waits for it; what it has finished may be billed.', batch.id)
        return batch


def _remember(known: OrderedDict[str, None], batch_id: str) -> bool:
    """Note a batch, and return whether it was not yet."""
    if batch_id in known:
        return False
    known[batch_id] = None
    if len(known) > _MAX_SEARCHES:
        known.popitem(last=False)
    return True


def flight_key(lane: Lane, group: str, batch: Batch) -> FlightKey:
    """The key of a batch as the credential in `group` sees it."""
    return lane.scope, group, batch.id
