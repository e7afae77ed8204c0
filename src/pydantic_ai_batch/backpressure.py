"""Holds batches back while the provider's queue is full, and lets them go one by one as it empties.

A queue that is full is no failure: an earlier batch ends and there is room. A batch that was sent back waits for that,
or for a time that grows, with all that come after it, so that nothing spins and no queue is flooded as it opens.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.batch import Batch

from .clock import Clock, sleep_until_due
from .exceptions import brief
from .lanes.base import Lane
from .policy import FULL_INTERVALS, FULL_WINDOW, MAX_RETRY_AFTER, full_queue, poll_delay
from .wording import counted

_log = logging.getLogger('pydantic_ai_batch')


class TooMuchAtOnce(Exception):
    """A batch is larger than all that the queue may hold, as nothing of ours is in it: parts of it may fit.

    The provider's error is the cause.
    """


class Create(Protocol):
    """Makes the create call of a batch, again if need be."""

    def __call__(self, *, settling: Callable[[], None]) -> Awaitable[Batch]:
        """Make the call. `settling` is called if its reply is lost, so that the batch has to be looked for."""
        ...


@dataclass
class _Attempt:
    create: Create
    count: int
    wall_end: float
    end: float
    """When it is held no longer, by the wall clock and by the monotonic one, whichever comes first."""
    held: Callable[[float], None]
    wanted_by: Sequence[asyncio.Future[Any]]
    refused: bool = False
    """Whether the provider had no room when it was last tried, so that no batch came of it."""

    @property
    def given_up(self) -> bool:
        return bool(self.wanted_by) and all(future.done() for future in self.wanted_by)


class Gate:
    """What stands between the batches of one group and their provider's queue, on one event loop."""

    def __init__(self, lane: Lane, clock: Clock) -> None:
        self._info = lane.info
        self._clock = clock
        self._running: dict[str, int] = {}
        """The batches that take room in the queue, and which refusal they were made after."""
        self._sent_back: set[str] = set()
        self._full = False
        self._refusals = 0
        self._round = 0
        """Counts all refusals: those of batches that were made before the last one are part of it."""
        self._retry_after = 0.0
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._told_late = False
        self._room = asyncio.Event()

    @property
    def window(self) -> float:
        """Seconds for which a batch is held back at the most: after that, its requests fail."""
        return min((*self._info.windows[:1], FULL_WINDOW)).total_seconds()

    @property
    def empty(self) -> bool:
        """Whether no batch of the group is known to be in the queue."""
        return not self._running

    def entered(self, batch_id: str) -> None:
        """Record a batch that takes room in the queue."""
        self._running.setdefault(batch_id, self._round)

    def left(self, batch_id: str) -> None:
        """Record a batch that takes no more room, so that the next one is let go."""
        if self._running.pop(batch_id, None) is not None:
            self._refusals = 0
            self._room.set()

    def forget(self, batch_id: str) -> None:
        """Record that nobody here will see a batch end, so that it is not counted on to make room."""
        self._running.pop(batch_id, None)

    def sent_back(self, batch_id: str) -> None:
        """Record that the queue had no room for a batch after all, which providers may say long after they made it."""
        if batch_id in self._sent_back:
            return
        self._sent_back.add(batch_id)
        self._told_late = True
        _log.warning(
            'The queue of %s had no room for batch %s: its requests are sent again when there is some.',
            self._info.title,
            batch_id,
        )
        # Of those that were in the queue at the same time, one counts.
        if self._running.pop(batch_id, self._round) == self._round:
            self._refuse(0.0)
        self._full = True
        self._room.clear()

    def _refuse(self, retry_after: float) -> None:
        self._full = True
        self._refusals += 1
        self._round += 1
        self._retry_after = min(retry_after, MAX_RETRY_AFTER)
        self._room.clear()

    async def submit(
        self,
        create: Create,
        *,
        discard: Callable[[], Awaitable[None]],
        count: int,
        since: float | None,
        held: Callable[[float], None],
        wanted_by: Sequence[asyncio.Future[Any]] = (),
    ) -> Batch:
        """Create a batch when there is room for it.

        Args:
            create: Makes the create call, again if need be.
            discard: Called if it comes to nothing after all, to delete what was uploaded for it.
            count: How many requests the batch has.
            since: When the first of its requests was held back, by the clock; `None` if none was.
            held: Called with the time, by the clock, at which the provider first had no room for it.
            wanted_by: What waits for it. When all of it is done, nobody wants the batch any more, and `create`, which
                is called then without a wait, is to say so.

        Raises:
            TooMuchAtOnce: There is none for so much, and part of it may fit.
            ModelAPIError: The provider refused it, or had no room for as long as a batch may take.
        """
        now, monotonic = self._clock.now(), self._clock.monotonic()
        # No history's word for it, which may lie in the future, can hold it any longer.
        left = self.window - max(0.0, now - (since or now))
        attempt = _Attempt(create, count, now + left, monotonic + left, held, wanted_by)
        self._waiting += 1
        turn = _Turn(self._turn)
        try:
            if not self._full and (batch := await self._try(attempt, lambda: None)) is not None:
                return batch
            while True:
                await turn.take()
                left = self._left(attempt)
                if self._full and left > 0 and not attempt.given_up:
                    await self._until_room(left, attempt)
                # While a lost reply is settled, which can take as long as a batch, the next one has its turn.
                if (batch := await self._try(attempt, turn.end, waited=True)) is not None:
                    if not self._told_late and turn.held:
                        # It was said at once that there is room, so that the next one may ask at once.
                        self._full, self._refusals = False, 0
                    return batch
        finally:
            turn.end()
            self._waiting -= 1
            if not self._waiting:
                self._full = False
            if attempt.refused:
                await discard()

    def _left(self, attempt: _Attempt) -> float:
        return min(attempt.wall_end - self._clock.now(), attempt.end - self._clock.monotonic())

    async def _try(self, attempt: _Attempt, settling: Callable[[], None], *, waited: bool = False) -> Batch | None:
        # Whatever else it comes to, what was uploaded may be in use.
        attempt.refused = False
        round_before = self._round
        try:
            return await attempt.create(settling=settling)
        except ModelAPIError as error:
            lacking = full_queue(error)
            if lacking is None:
                raise
            attempt.refused = True
            if self._round == round_before:
                # Of those that asked at the same time, one counts.
                self._refuse(error.retry_after or 0.0)
            self._full = True
            attempt.held(self._clock.now())
            if self._left(attempt) <= 0:
                error.add_note(f'The queue of {self._info.title} had no room for it for a day.')
                raise
            if lacking == 'tokens' and attempt.count > 1 and self.empty and waited:
                # Whatever else may have been in the queue, a wait has not helped.
                raise TooMuchAtOnce from error
            _log.warning(
                'The queue of %s has no room for a batch of %s now, which waits for it: %s',
                self._info.title,
                counted(attempt.count, 'request'),
                brief(error),
            )
            return None

    async def _until_room(self, at_most: float, attempt: _Attempt) -> None:
        """Wait until a batch of the group has ended, until it is time to ask again, or until nobody wants the batch."""
        delay = min(max(poll_delay(max(0, self._refusals - 1), *FULL_INTERVALS), self._retry_after), at_most)
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._room.wait()),
            asyncio.ensure_future(sleep_until_due(self._clock, delay)),
        ]
        if attempt.wanted_by:
            waits.append(asyncio.ensure_future(asyncio.wait(attempt.wanted_by)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not attempt.given_up:
            self._room.clear()


class _Turn:
    """One batch's turn to ask for room, which it may end before its creation has."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self.held = False

    async def take(self) -> None:
        if not self.held:
            await self._lock.acquire()
            self.held = True

    def end(self) -> None:
        if self.held:
            self.held = False
            self._lock.release()


class Gates:
    """The gates of one event loop, one for each group of requests and clock, whoever sends them."""

    def __init__(self, gates: dict[tuple[str, str, int], Gate], clock: Clock) -> None:
        self._gates = gates
        self._clock = clock

    def forget(self, scope: str, group: str, batch_id: str) -> None:
        """Record that nobody here will see a batch of the group end."""
        if (gate := self._gates.get((scope, group, id(self._clock)))) is not None:
            gate.forget(batch_id)

    def of(self, lane: Lane, group: str) -> Gate:
        """The gate of a group."""
        key = (lane.scope, group, id(self._clock))
        if (gate := self._gates.get(key)) is None:
            gate = self._gates[key] = Gate(lane, self._clock)
        return gate


_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, int], Gate]] = (
    weakref.WeakKeyDictionary()
)


def gates_here(clock: Clock) -> Gates:
    """The gates of the running event loop: list calls and agents that share a queue of the provider share them."""
    return Gates(_loops.setdefault(asyncio.get_running_loop(), {}), clock)
