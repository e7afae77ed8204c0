"""What happens to requests and batches, as plain events, and the counts they add up to.

The pool and list calls report here; a progress display, or a callable of the user's, listens.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch

from .lanes.base import Lane
from .pricing import cost_of

_log = logging.getLogger('pydantic_ai_batch')

EventKind = Literal[
    'queued',
    'withdrawn',
    'submitted',
    'taken_over',
    'refused',
    'checked',
    'answered',
    'failed',
    'resubmitted',
    'held',
    'left',
]


@dataclass(frozen=True, kw_only=True)
class BatchEvent:
    """Something that happened to `count` requests, or to a batch."""

    kind: EventKind
    """What happened.

    `queued`, `withdrawn`: requests came into a queue, or left it again. `submitted`, `refused`: a batch of them was
    created, or could not be. `taken_over`: the journal has them in a batch of an earlier run. `checked`: the provider
    told a batch's status. `answered`, `failed`: requests got their response, or an error that stands. `resubmitted`:
    requests failed in a passing way and are queued again. `held`: the provider's queue had no room for their batch, and
    they are queued again until it has. `left`: nobody here waits for them any more, as their run ended with a pending
    response, was cancelled, or was let go.
    """

    lane: str
    """The lane's name."""

    model_name: str
    """The model's name."""

    count: int = 1
    """How many requests it concerns."""

    batch: Batch | None = None
    """The batch as it was last read, where there is one."""

    cost: Decimal | None = None
    """What the answer cost, in US dollars, by the batch price or the discount of the lane, where either is known."""

    stored: bool = False
    """Whether the answer came from the journal: it was read, and paid for, before."""


def event_of(
    kind: EventKind,
    lane: Lane,
    *,
    count: int = 1,
    batch: Batch | None = None,
    response: ModelResponse | None = None,
    stored: bool = False,
) -> BatchEvent:
    """The event that something happened to requests of a lane.

    Args:
        kind: What happened.
        lane: Their lane.
        count: How many they are.
        batch: Their batch.
        response: What one of them was answered with.
        stored: Whether that came from the journal.
    """
    return BatchEvent(
        kind=kind,
        lane=lane.info.name,
        model_name=lane.model.model_name,
        count=count,
        batch=batch,
        cost=cost_of(response, lane.info) if response is not None else None,
        stored=stored,
    )


Listener = Callable[[BatchEvent], None]
"""Called with each event, on the event loop it happened on. It must not block."""


_REMEMBERED = 1000
"""How many batches a reporter remembers as they were last read: more than are under way at a time, and not all ever."""

_PROGRESS = {'in_progress': 0, 'canceling': 1, 'ended': 2}


@dataclass
class Reporter:
    """Tells a listener, if there is one, what happens."""

    listener: Listener | None
    _last_read: dict[str, Batch] = field(default_factory=dict[str, Batch], init=False, repr=False)
    _reading: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __call__(self, event: BatchEvent) -> None:
        """Report an event. A listener that raises is logged and let go: nobody's answer depends on it."""
        if self.listener is None:
            return
        try:
            returned: object = self.listener(self._as_last_read(event))
        except Exception:
            _log.exception('The listener to the events of batches raised, and is not called again.')
            self.listener = None
            return
        if inspect.iscoroutine(returned):
            returned.close()
            _log.error(
                'The listener to the events of batches returned a coroutine, which nobody awaits, and is not called '
                'again: pass a plain function.'
            )
            self.listener = None

    def _as_last_read(self, event: BatchEvent) -> BatchEvent:
        """The event with its batch as it was last read.

        What becomes of a request is reported with the batch as that request knew it, which is often as it was created.
        """
        if event.batch is None:
            return event
        batch = event.batch
        with self._reading:
            # Put last again, so that the first is the one that nothing was heard of for the longest time.
            known = self._last_read.pop(batch.id, None)
            if known is not None and event.kind not in ('submitted', 'taken_over', 'checked'):
                batch = max(known, batch, key=lambda batch: _PROGRESS.get(batch.status, 0))
            self._last_read[batch.id] = batch
            if len(self._last_read) > _REMEMBERED:
                del self._last_read[next(iter(self._last_read))]
        return event if batch is event.batch else replace(event, batch=batch)


@dataclass
class BatchTally:
    """One batch, and what became of its requests so far."""

    batch: Batch
    lane: str
    submitted: int
    answered: int = 0
    failed: int = 0
    resubmitted: int = 0
    held: int = 0
    left: int = 0

    @property
    def back(self) -> int:
        """How many of its requests have come back."""
        return self.answered + self.failed + self.resubmitted + self.held

    @property
    def done(self) -> bool:
        """Whether every request of the batch has come back, or is waited for no more."""
        return self.back + self.left >= self.submitted


@dataclass
class Tally:
    """What events add up to: a listener that keeps the counts a progress display shows."""

    queued: int = 0
    """Requests that wait in a queue now."""

    submitted: int = 0
    """Requests that were put into batches, those that were resubmitted counted again."""

    answered: int = 0
    failed: int = 0
    resubmitted: int = 0
    held: int = 0
    left: int = 0

    cost: Decimal = Decimal()
    """What the answers cost, in US dollars, as far as prices are known; nothing where they came from the journal."""

    unpriced: int = 0
    """How many answers there is no price for."""

    stored: int = 0
    """How many answers came from the journal."""

    batches: dict[str, BatchTally] = field(default_factory=dict[str, BatchTally])
    """The batches that were created, by ID, in that order."""

    keeps_done: bool = True
    """Whether batches whose requests have all come back are kept."""

    def __call__(self, event: BatchEvent) -> None:
        """Take an event into the counts."""
        batch = self.batches.get(event.batch.id) if event.batch is not None else None
        match event.kind:
            case 'queued':
                self.queued += event.count
            case 'withdrawn':
                self.queued -= event.count
            case 'refused':
                self.queued -= event.count
                self.failed += event.count
            case 'submitted' | 'taken_over':
                self.queued -= event.count
                self.submitted += event.count
                if batch is not None and event.batch is not None and not batch.done:
                    # Its requests are taken over from an earlier process one by one.
                    batch.batch = event.batch
                    batch.submitted += event.count
                elif event.batch is not None:
                    self.batches[event.batch.id] = BatchTally(event.batch, event.lane, event.count)
            case 'checked':
                if batch is not None and event.batch is not None:
                    batch.batch = event.batch
            case 'answered' | 'failed' | 'resubmitted' | 'held' | 'left' as outcome:
                for counts in (self, batch):
                    if counts is not None:
                        setattr(counts, outcome, getattr(counts, outcome) + event.count)
                if outcome == 'answered':
                    self.stored += event.stored
                    self.cost += 0 if event.stored else event.cost or 0
                    self.unpriced += event.cost is None and not event.stored
        if batch is not None and batch.done and not self.keeps_done:
            self.batches.pop(batch.batch.id, None)
