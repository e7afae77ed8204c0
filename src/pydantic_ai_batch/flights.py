"""What one process knows of the batches its requests are in: their status, their results, and who still wants them.

One record per batch, shared by every event loop and thread that a pool serves, and changed only through the verbs
here. It answers three questions: may a status that was read lately serve this check as well; is a result here already,
so that a hundred stored histories of one batch cost one download; and does anyone still wait for a batch that this
process made, or may it be cancelled.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from pydantic_ai.models.batch import Batch, BatchResult

FlightKey = tuple[str, str, str]
"""A batch as one credential sees it: scope of the lane, group key of the model that asks, batch ID.

The group holds a digest of the credential. What was read with one is never shown to another, which must ask the
provider itself: a message history's ticket is the caller's data, and proves nothing.
"""

_MAX_RUNNING = 1024
_MAX_ENDED = 32
_MAX_ENDED_BYTES = 256 * 1024 * 1024


@dataclass
class _Flight:
    batch: Batch | None = None
    read_at: datetime | None = None
    served: set[str] = field(default_factory=set[str])
    """Requests that the status was served for since it was read."""
    wanted: set[str] = field(default_factory=set[str])
    """Requests that this process submitted in the batch and whose runs have not got their result yet."""
    created: Batch | None = None
    """The batch as this process made it, until its input was deleted."""
    cancellable: bool = False
    """Whether this process made the batch, and nobody left a request in it for later."""
    ended: bool = False
    results: dict[str, BatchResult] = field(default_factory=dict[str, BatchResult])
    taken: set[str] = field(default_factory=set[str])
    """Requests whose results went straight to who waited for them, and were not kept."""
    size: int = 0
    """The bytes that the bodies of the results take up in memory."""
    keyless: bool = False
    """Whether it has results that do not say whose they are."""


class Flights:
    """The record of every batch a pool has to do with."""

    def __init__(self) -> None:
        # Never held across an `await`.
        self._lock = threading.Lock()
        self._flights: OrderedDict[FlightKey, _Flight] = OrderedDict()

    def submitted(self, key: FlightKey, batch: Batch, custom_ids: Iterable[str], *, cancellable: bool = True) -> None:
        """Record a batch that this process made of the requests of runs that wait for it.

        Args:
            key: The batch as the credential of its requests sees it.
            batch: The batch.
            custom_ids: The IDs of the requests in it.
            cancellable: Whether it is cancelled when nobody waits for it any more.
        """
        with self._lock:
            flight = self._flight(key)
            flight.batch = flight.created = batch
            flight.wanted.update(custom_ids)
            flight.cancellable = cancellable
            self._evict()

    def taken_over(self, key: FlightKey, batch: Batch, custom_id: str) -> None:
        """Record a request that is in a batch of an earlier process, for a run that waits for it."""
        with self._lock:
            flight = self._flight(key)
            flight.batch = flight.batch or batch
            flight.wanted.add(custom_id)
            self._evict()

    def checked(self, key: FlightKey, batch: Batch, at: datetime) -> None:
        """Record a status that the provider answered."""
        with self._lock:
            flight = self._flight(key)
            flight.batch, flight.read_at = batch, at
            flight.served.clear()
            self._evict()

    def status(self, key: FlightKey, custom_id: str, *, newer_than: datetime | None) -> tuple[Batch, datetime] | None:
        """The status of a running batch, and when it was read, if that serves a check for the request; else `None`.

        It does if it was read after `newer_than` and was not served for the same request before. Going by the order
        of readings and not by their age, many histories that were stored together cost one status request each time
        they are gone through, and every time through makes progress, under any clock.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is None or flight.batch is None or flight.read_at is None or flight.ended:
                return None
            if custom_id in flight.served or (newer_than is not None and flight.read_at <= newer_than):
                return None
            flight.served.add(custom_id)
            return flight.batch, flight.read_at

    def serve(self, key: FlightKey, custom_id: str) -> None:
        """Record that a request has been told the status that was read last."""
        with self._lock:
            if (flight := self._flights.get(key)) is not None:
                flight.served.add(custom_id)

    def read(self, key: FlightKey, result: BatchResult, *, taken: bool) -> None:
        """Record a result that was read: kept for whoever asks later, unless it was `taken` by all who wait."""
        with self._lock:
            flight = self._flight(key)
            if taken:
                flight.taken.add(result.custom_id)
                return
            if result.custom_id not in flight.results:
                flight.results[result.custom_id] = result
                flight.size += sys.getsizeof(result.body)

    def ended(self, key: FlightKey, batch: Batch, *, keyless: bool = False) -> Batch | None:
        """Record that a batch ended and all its results were read.

        Returns the batch as this process created it, once, if it did: what may be deleted for it only that says, and
        no ticket of a history.
        """
        with self._lock:
            flight = self._flight(key)
            flight.batch, flight.ended, flight.cancellable, flight.keyless = batch, True, False, keyless
            created, flight.created = flight.created, None
            self._evict()
            return created

    def find(self, key: FlightKey, custom_id: str) -> tuple[Batch, BatchResult | None, bool] | None:
        """The batch and its result for the request, if that is here; the result is `None` if the ended batch has none.

        The third is whether it has results that do not say whose they are.

        `None` when the provider has to be asked, as the batch has not been seen to end, or its result was not kept.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is None or flight.batch is None:
                return None
            self._flights.move_to_end(key)
            result = flight.results.get(custom_id)
            if result is None and (not flight.ended or custom_id in flight.taken):
                return None
            return flight.batch, result, flight.keyless

    def wanted(self, key: FlightKey, custom_id: str) -> Batch | None:
        """The batch of a request that this process submitted and a run of it still wants, or `None`."""
        with self._lock:
            flight = self._flights.get(key)
            return flight.batch if flight is not None and custom_id in flight.wanted else None

    def is_wanted(self, key: FlightKey) -> bool:
        """Whether a run of this process still wants a request of the batch."""
        with self._lock:
            return (flight := self._flights.get(key)) is not None and bool(flight.wanted)

    def collected(self, key: FlightKey, custom_id: str) -> None:
        """Record that a run has got its result."""
        with self._lock:
            if (flight := self._flights.get(key)) is not None:
                flight.wanted.discard(custom_id)
                self._evict()

    def leave(self, key: FlightKey, custom_id: str) -> None:
        """Record that a request is left for later, so that its batch is never cancelled from here any more."""
        with self._lock:
            if (flight := self._flights.get(key)) is not None:
                flight.wanted.discard(custom_id)
                flight.cancellable = False
                self._evict()

    def withdraw(self, key: FlightKey, custom_id: str) -> Batch | None:
        """Record that nobody wants a request any more, and return its batch if that makes it one to cancel.

        That is a batch this process made, that has not ended, and that no other request of this process waits for;
        it is returned once.
        """
        with self._lock:
            flight = self._flights.get(key)
            if flight is None or custom_id not in flight.wanted:
                return None
            flight.wanted.discard(custom_id)
            if flight.wanted or not flight.cancellable:
                return None
            flight.cancellable = False
            return flight.batch

    def _flight(self, key: FlightKey) -> _Flight:
        flight = self._flights.setdefault(key, _Flight())
        self._flights.move_to_end(key)
        return flight

    def _evict(self) -> None:
        """Forget the batches that were used longest ago and that no run of this process waits for."""
        unwanted = [(key, flight) for key, flight in self._flights.items() if not flight.wanted]
        ended = [(key, flight) for key, flight in unwanted if flight.ended]
        size = sum(flight.size for _, flight in ended)
        surplus = len(ended) - _MAX_ENDED
        for key, flight in ended:
            if surplus <= 0 and size <= _MAX_ENDED_BYTES:
                break
            del self._flights[key]
            size -= flight.size
            surplus -= 1
        running = [key for key, flight in unwanted if not flight.ended]
        for key in running[: max(0, len(running) - _MAX_RUNNING)]:
            del self._flights[key]
