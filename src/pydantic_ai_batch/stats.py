"""A snapshot of what an instance of `BatchModelRequests` has done, and of what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from pydantic_ai.models.batch import Batch


@dataclass(frozen=True, kw_only=True)
class InFlight:
    """A batch that not all requests have come back from."""

    batch: Batch
    """The batch as it was last read."""

    lane: str
    """The lane that it is on."""

    requests: int
    """How many requests were submitted in it."""

    waiting: int
    """How many of them are still waited for here."""

    counts: Mapping[str, int]
    """The provider's counts of its requests, `total`, `completed` and `failed`; empty where it tells none."""

    age: timedelta
    """How long ago it was created."""


@dataclass(frozen=True, kw_only=True)
class BatchingStats:
    """What the runs that share an instance of `BatchModelRequests` have come to so far."""

    queued: int
    """Requests that wait in a queue, or for their batch to be created."""

    answered: int
    """Requests that got their response."""

    resubmitted: int
    """How many times a request was submitted again."""

    failed: int
    """Requests that got an error that stands."""

    held: int
    """How many times a request was sent back by a full queue of the provider, to be queued again."""

    left: int
    """Requests that nobody here waits for any more: left pending, cancelled, or let go."""

    cost: Decimal
    """What the answers cost, in US dollars, as far as prices are known; nothing where they came from the journal."""

    unpriced: int
    """How many answers there is no price for."""

    stored: int
    """How many of the answers came from the journal: they were read, and paid for, before."""

    journal_bytes: int | None
    """The bytes that the journal takes up on the disk; `None` without one."""

    batches: tuple[InFlight, ...]
    """The batches in flight, oldest first."""
