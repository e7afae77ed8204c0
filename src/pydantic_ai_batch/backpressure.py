"""Holds batches back while the provider's queue is full, and lets them go one by one as it empties.

A queue that is full is no failure: an earlier batch ends and there is room. A batch that was sent back waits for that,
or for a time that grows, with all that come after it, so that nothing spins and no queue is flooded as it opens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.batch import Batch

from .clock import Clock, sleep_until_due
from .lanes.base import Lane
from .policy import FULL_INTERVALS, FULL_WINDOW, full_queue, poll_delay

_log = logging.getLogger('pydantic_ai_batch')


class TooMuchAtOnce(Exception):
    """A batch is larger than all that the queue may hold, as nothing of ours is in it: parts of it may fit.

    The provider's error is the cause.
    """


@dataclass
class _Attempt:
    create: Callable[[], Awaitable[Batch]]
    count: int
    since: float
    refused: bool = False
    """Whether the provider had no room when it was last tried, so that no batch came of it."""


class Gate:
    """What stands between the batches of one group and their provider's queue, on one event loop."""

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._lane = lane
        self._clock = clock
        self._running: set[str] = set()
        self._sent_back: set[str] = set()
        self._full = False
        self._refusals = 0
        self._retry_after = 0.0
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._told_late = False
        self._room = asyncio.Event()

    @property
    def window(self) -> float:
        """Seconds for which a batch is held back at the most: after that, its requests fail."""
        return min((*self._lane.info.windows[:1], FULL_WINDOW)).total_seconds()

    @property
    def empty(self) -> bool:
        """Whether no batch of the group is known to be in the queue."""
        return not self._running

    def entered(self, batch_id: str) -> None:
        """Record a batch that takes room in the queue."""
        self._running.add(batch_id)

    def left(self, batch_id: str) -> None:
        """Record a batch that takes no more room, so that the next one is let go."""
        if batch_id in self._running:
            self._running.discard(batch_id)
            self._refusals = 0
            self._room.set()

    def forget(self, batch_id: str) -> None:
        """Record that nobody here will see a batch end, so that it is not counted on to make room."""
        self._running.discard(batch_id)

    def sent_back(self, error: ModelAPIError | None = None, *, batch_id: str | None = None) -> None:
        """Record that the queue had no room, which providers may say long after they made the batch."""
        self._told_late = batch_id is not None
        if batch_id is not None:
            if batch_id in self._sent_back:
                return
            self._sent_back.add(batch_id)
            _log.warning(
                'The queue of %s had no room for batch %s: its requests are sent again when there is some.',
                self._lane.info.title,
                batch_id,
            )
            self._running.discard(batch_id)
        self._full = True
        self._refusals += 1
        self._retry_after = (error.retry_after or 0.0) if error is not None else 0.0
        self._room.clear()

    async def submit(
        self,
        create: Callable[[], Awaitable[Batch]],
        *,
        discard: Callable[[], Awaitable[None]],
        count: int,
        since: float | None,
    ) -> Batch:
        """Create a batch when there is room for it.

        Args:
            create: Makes the create call, again if need be.
            discard: Called if it comes to nothing after all, to delete what was uploaded for it.
            count: How many requests the batch has.
            since: When the first of its requests was held back, by the clock; `None` if none was.

        Raises:
            TooMuchAtOnce: There is none for so much, and part of it may fit.
            ModelAPIError: The provider refused it, or had no room for as long as a batch may take.
        """
        # No history's word for it, which may lie in the future, can hold it any longer.
        attempt = _Attempt(create, count, min(since or self._clock.now(), self._clock.now()))
        self._waiting += 1
        try:
            if not self._full and (batch := await self._try(attempt)) is not None:
                return batch
            async with self._turn:
                while True:
                    left = attempt.since + self.window - self._clock.now()
                    if self._full and left > 0:
                        await self._until_room(left)
                    if (batch := await self._try(attempt, waited=True)) is not None:
                        if not self._told_late:
                            # It was said at once that there is room, so that the next one may ask at once.
                            self._full, self._refusals = False, 0
                        return batch
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._full = False
            if attempt.refused:
                await discard()

    async def _try(self, attempt: _Attempt, *, waited: bool = False) -> Batch | None:
        # Whatever else it comes to, what was uploaded may be in use.
        attempt.refused = False
        try:
            return await attempt.create()
        except ModelAPIError as error:
            lacking = full_queue(error)
            if lacking is None:
                raise
            attempt.refused = True
            if waited or not self._full:
                # Of those that asked at the same time, one counts.
                self.sent_back(error)
            if self._clock.now() - attempt.since >= self.window:
                error.add_note(f'The queue of {self._lane.info.title} had no room for it for a day.')
                raise
            count = attempt.count
            if lacking == 'tokens' and count > 1 and self.empty and waited:
                # Whatever else may have been in the queue, a wait has not helped.
                raise TooMuchAtOnce from error
            _log.warning(
                'The queue of %s has no room for a batch of %d requests now, which waits for it: %s',
                self._lane.info.title,
                count,
                error,
            )
            return None

    async def _until_room(self, at_most: float) -> None:
        """Wait until a batch of the group has ended, or until it is time to ask again."""
        delay = min(max(poll_delay(max(0, self._refusals - 1), *FULL_INTERVALS), self._retry_after), at_most)
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._room.wait()),
            asyncio.ensure_future(sleep_until_due(self._clock, delay)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._room.clear()


class Gates:
    """The gates of one event loop, one for each group of requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._gates: dict[tuple[str, str], Gate] = {}

    def forget(self, scope: str, group: str, batch_id: str) -> None:
        """Record that nobody here will see a batch of the group end."""
        if (gate := self._gates.get((scope, group))) is not None:
            gate.forget(batch_id)

    def of(self, lane: Lane, group: str) -> Gate:
        """The gate of a group."""
        key = (lane.scope, group)
        if (gate := self._gates.get(key)) is None:
            gate = self._gates[key] = Gate(lane, self._clock)
        return gate
