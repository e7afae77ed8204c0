"""What a list of requests takes over from its journal instead of sending it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from .chunks import Chunk, Encoded, Row
from .clock import Clock
from .journal.digests import fingerprint
from .journal.ledger import Claim, Ledger, Place
from .journal.takeover import Takeovers
from .lanes.base import Lane


@dataclass
class Taken:
    """A batch that an earlier process created, and the rows of the list that are in it."""

    place: Place
    """The place of one of them."""

    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    """The rows by their ID on the wire."""


class ListClaims:
    """The rows of one list that a journal has already."""

    def __init__(
        self,
        lane: Lane,
        ledger: Ledger,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self.ledger = ledger
        self.holding = False
        """Whether nothing is to be sent before all rows were looked for, as the journal has some that none has matched.
        """
        self._lane = lane
        self._takeovers = Takeovers(ledger, clock, start)
        self._taken: dict[str, Taken] = {}
        self._unclear: list[tuple[Row, Claim]] = []
        self._groups: set[str] = set()
        self._families: set[str] = set()

    async def take(self, turn: Sequence[Encoded]) -> Sequence[Encoded]:
        """Claim rows, and return those that are to be sent."""
        mine = [encoded for encoded in turn if encoded.row.entry is not None]
        new = [encoded for encoded in turn if encoded.row.entry is None]
        if not new:
            return mine
        scope = self._lane.scope
        prints = [fingerprint(scope, encoded.group, encoded.body, encoded.depth) for encoded in new]
        claims = await self.ledger.claim(prints)
        for encoded, claim in zip(new, claims, strict=True):
            if self._sort(encoded.row, claim):
                mine.append(encoded)
        groups = {encoded.group for encoded in new}
        if self.holding or groups - self._groups:
            self._families |= {printed.family for printed in prints}
            self.holding = any([await self.ledger.unmatched(family) > 0 for family in self._families])
        self._groups |= groups
        for group in groups:
            await self._takeovers.tidy(self._lane, group)
        return mine

    def _sort(self, row: Row, claim: Claim) -> bool:
        """Note where a row is, and return whether it is to be sent."""
        row.entry, row.resubmissions, row.held_since = claim.entry, claim.resubmissions, claim.held_since
        if (place := claim.place) is not None:
            self._taken.setdefault(place.tag, Taken(place)).rows[place.custom_id] = row
        elif claim.state != 'mine':
            self._unclear.append((row, claim))
        return claim.state == 'mine'

    def taken(self) -> list[Taken]:
        """The batches that rows were found in since this was asked last."""
        found, self._taken = list(self._taken.values()), {}
        return found

    def unclear(self) -> list[tuple[Row, Claim]]:
        """The rows since this was asked last that are in a batch that may not exist, or that another process sends."""
        found, self._unclear = self._unclear, []
        return found

    async def resolve(self, rows: Sequence[tuple[Row, Claim]]) -> list[Exception | bool]:
        """Wait until it is known where rows are.

        Returns:
            For each, whether it is to be sent, or the error if nobody can tell.
        """
        found = await self._takeovers.follow(self._lane, [claim for _, claim in rows])
        return [self._resolved(row, came) for (row, _), came in zip(rows, found, strict=True)]

    def _resolved(self, row: Row, found: Claim | Exception | None) -> Exception | bool:
        if isinstance(found, Exception):
            return found
        if found is None:
            # Whoever was to send it gave it up: it is claimed as a new one when it is encoded again.
            row.entry = None
            return True
        return self._sort(row, found)

    def tell(self, place: Place) -> None:
        """Say that rows are in a batch of an earlier run."""
        self._takeovers.tell(place)

    async def requeue(self, rows: dict[str, Row], *, counted: bool) -> list[Row]:
        """Take rows out of their batch to send them again, and return those that are for this process to send.

        Args:
            rows: The rows by their ID in that batch.
            counted: Whether that counts as a resubmission.
        """
        claims = await self.ledger.requeue(
            [(custom_id, row.held_since) for custom_id, row in rows.items()], counted=counted
        )
        return [
            row for row, claim in zip(rows.values(), claims, strict=True) if claim is None or self._requeued(row, claim)
        ]

    def _requeued(self, row: Row, claim: Claim) -> bool:
        row.entry = claim.entry
        if claim.state != 'mine':
            self._unclear.append((row, claim))
        return claim.state == 'mine'


async def hand_out(chunks: AsyncGenerator[Chunk], claims: ListClaims | None) -> AsyncGenerator[Chunk]:
    """Hand out chunks as they come, or, while the journal has requests that none has matched, when all are there.

    Raises:
        JournalMiss: It has some in the end, and is strict.
    """
    held: list[Chunk] = []
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                if claims is not None and claims.holding:
                    held.append(chunk)
                else:
                    yield chunk
        if held and claims is not None:
            await claims.ledger.look_for_misses([entry for chunk in held for entry in chunk.payload.entries])
        while held:
            yield held.pop(0)
    finally:
        # Those that were handed out belong to whoever sends them.
        for chunk in held:
            chunk.drop(claims.ledger if claims is not None else None)
