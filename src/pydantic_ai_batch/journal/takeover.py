"""Finds out what became of requests that an earlier process was about to send when it ended.

A batch that was intended may exist or not. The provider is asked, once for all requests that were in it, and by one
process: if it exists, they are in it; if it does not, whoever makes one of them first sends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, UserError

from pydantic_ai_batch import creation, lifecycle
from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.exceptions import CreateUnsettled, JournalError, copy_of
from pydantic_ai_batch.lanes.base import Lane

from .digests import Fingerprint
from .ledger import Claim, Ledger, Place

_log = logging.getLogger('pydantic_ai_batch')

_FIRST_LOOK, _LONGEST_LOOK = 0.5, 10.0
"""Seconds between looks at what another process makes of a request, which grow by half."""

_TOLD = 30.0
"""Seconds after which it is said that requests wait for another process."""

_LONGEST_WAIT = 26 * 3600.0
"""Seconds that a request waits for another process to send it: a full queue may keep that for a day."""


def _is_unclear(claim: Claim | Exception | None) -> bool:
    return isinstance(claim, Claim) and claim.state not in ('mine', 'placed')


_ENDED = '`BatchModelRequests` was exited while the request waited to be found in the journal.'


class _Waiting:
    """The wait for requests that another process, or another part of this one, is about to send."""

    def __init__(self, ledger: Ledger, clock: Clock, told: set[str]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._since = clock.monotonic()
        self._next = _TOLD
        self._told = told

    async def for_others(
        self, claims: Sequence[Claim], found: list[Claim | Exception | None], unclear: Sequence[int]
    ) -> None:
        """Say, once for each, for whom requests wait, and put an error in the place of those that waited for too long.

        Nothing is sent by whoever waits, as the other process may send it any moment.
        """
        waited = self._clock.monotonic() - self._since
        places = [place for place in unclear if _is_unclear(found[place])]
        if not places or waited < self._next:
            return
        self._next = _LONGEST_WAIT
        sender = await self._ledger.sender(claims[places[0]].entry)
        path = self._ledger.store.path
        if sender not in self._told:
            self._told.add(sender)
            _log.warning('Waiting for a request of the journal %s, which is %s.', path, sender)
        if waited >= _LONGEST_WAIT:
            for place in places:
                found[place] = JournalError(
                    f'The request is {sender} in the journal {path}, which it has not been for '
                    f'{waited / 3600:.0f} hours. End that process and start this one again; with `share=False` it '
                    'would be sent, and paid for, by both.'
                )


class Takeovers:
    """Takes requests over from earlier processes, on one event loop."""

    def __init__(
        self, ledger: Ledger, clock: Clock, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self.ledger = ledger
        self._clock = clock
        self._start = start
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._tidied: set[str] = set()
        self._told: set[str] = set()
        """What was said already: of which batches, and of which processes."""
        self._closed = False

    def close(self) -> None:
        """Let go of the requests that wait for what another process does. The next start goes on."""
        self._closed = True

    def tell(self, place: Place) -> None:
        """Say, once for each batch, that requests are in a batch of an earlier run."""
        batch, journal = place.batch, self.ledger.store.path.name
        if batch.id in self._told:
            return
        self._told.add(batch.id)
        if place.answered:
            _log.info('Answers of batch %s are read from the journal %s.', batch.id, journal)
        else:
            _log.info('Batch %s of an earlier run is taken over from the journal %s.', batch.id, journal)

    async def claim(self, lane: Lane, fingerprint: Fingerprint) -> Claim:
        """Take a request over from an earlier process, or write it down, and find out where it is.

        Returns:
            The request, which is either `mine` or `placed`.

        Raises:
            CreateUnsettled: It is in a batch of which nobody can tell whether it was created.
            JournalError: The journal could not be read or written.
        """
        while True:
            (claim,) = await self.ledger.claim([fingerprint])
            if (found := await self._followed(lane, claim)) is not None:
                return found

    async def requeue(self, lane: Lane, custom_id: str, *, held_since: float | None, counted: bool) -> Claim | None:
        """Take a request out of its batch to send it again, unless another run has: then it is where that has put it.

        Returns:
            The request, which is either `mine` or `placed`; `None` if the journal does not know it.
        """
        (claim,) = await self.ledger.requeue([(custom_id, held_since)], counted=counted)
        return await self._followed(lane, claim) if claim is not None else None

    async def _followed(self, lane: Lane, claim: Claim) -> Claim | None:
        (found,) = await self.follow(lane, [claim])
        if isinstance(found, Exception):
            raise found
        return found

    async def follow(self, lane: Lane, claims: Sequence[Claim]) -> list[Claim | Exception | None]:
        """Wait until requests are either `mine` or `placed`.

        If this is cancelled, they are let go.

        Returns:
            Each request; `None` if whoever was to send it gave it up; the error if it is in a batch of which nobody
            can tell whether it was created, or if the journal cannot be read.
        """
        found: list[Claim | Exception | None] = list(claims)
        delay = _FIRST_LOOK
        waiting = _Waiting(self.ledger, self._clock, self._told)
        try:
            while unclear := [place for place, claim in enumerate(found) if _is_unclear(claim)]:
                if not await self._progress(lane, found, unclear):
                    await waiting.for_others(claims, found, unclear)
                    await self._clock.sleep(delay)
                    delay = min(delay * 1.5, _LONGEST_LOOK)
                unclear = [place for place in unclear if _is_unclear(found[place])]
                entries = [claims[place].entry for place in unclear]
                for place, claim in zip(unclear, await self.ledger.look(entries), strict=True):
                    found[place] = claim
        except BaseException:
            self.ledger.withdraw(*(claim.entry for claim in claims))
            raise
        self.ledger.withdraw(
            *(claim.entry for claim, came in zip(claims, found, strict=True) if isinstance(came, Exception))
        )
        return found

    async def _progress(self, lane: Lane, found: list[Claim | Exception | None], unclear: Sequence[int]) -> bool:
        """Settle what can be settled, and return whether something was; errors are put in the place of requests."""
        if self._closed:
            raise UserError(_ENDED)
        tags: dict[str, list[int]] = {}
        for place in unclear:
            claim = found[place]
            if isinstance(claim, Claim) and claim.state == 'unsettled' and claim.tag is not None:
                tags.setdefault(claim.tag, []).append(place)
        for tag, places in tags.items():
            try:
                await self._settled(lane, tag)
            except Exception as error:
                for place in places:
                    found[place] = copy_of(error)
        return bool(tags)

    async def tidy(self, lane: Lane, group: str) -> None:
        """Do what earlier processes left to do at the provider: find batches, and delete what is not needed any more.

        Batches are looked for in the background, as nothing that is new waits for that.
        """
        if group in self._tidied:
            return
        self._tidied.add(group)
        left = await self.ledger.left(lane, group)
        for tag in left.unsettled:
            self._settlement(lane, tag)
        if not (left.unended or left.uncleaned):
            return
        # Not in the background: where all answers are in the journal, the program may end right after this.
        async with lane.model:
            for batch in left.unended:
                with suppress(ModelAPIError):
                    ended = await lane.status(batch)
                    if ended.status == 'ended':
                        await self.ledger.ended(ended)
                        left.uncleaned.append(ended)
            for batch in left.uncleaned:
                await lifecycle.clean_up(lane, None, batch, self.ledger)

    def _settlement(self, lane: Lane, tag: str) -> asyncio.Task[None]:
        if (task := self._settling.get(tag)) is None:
            task = self._settling[tag] = self._start(self._settle(lane, tag))
            task.add_done_callback(lambda done: self._settlement_over(tag, done))
        return task

    def _settlement_over(self, tag: str, task: asyncio.Task[None]) -> None:
        self._settling.pop(tag, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning('%s', error)

    async def _settled(self, lane: Lane, tag: str) -> None:
        """Wait until it is known whether a batch was created, however many requests of it wait for that."""
        task = self._settlement(lane, tag)
        await asyncio.wait((task,))
        if task.cancelled():
            raise UserError(_ENDED)
        if (error := task.exception()) is not None:
            raise copy_of(error) if isinstance(error, Exception) else error

    async def _settle(self, lane: Lane, tag: str) -> None:
        unsettled = await self.ledger.settling(tag)
        if unsettled is None:
            return
        try:
            async with lane.model:
                batch = await creation.settle(lane, unsettled.sought, unsettled.intended_at, self._clock)
        except CreateUnsettled as error:
            if self.ledger.resend_lost:
                _log.warning('%s They are sent again, as `resend_lost` is set.', error)
                await self.ledger.absent(tag)
                return
            self.ledger.unsettled(tag)
            raise creation.with_flag(error) from error.__cause__
        except BaseException:
            self.ledger.unsettled(tag)
            raise
        if batch is None:
            await self.ledger.absent(tag)
        else:
            await self.ledger.submitted(tag, batch)
