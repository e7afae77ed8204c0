"""When a batch does what. Pure arithmetic: a time goes in, and where the batch is comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from pydantic_ai_batch.testing.faults import Fault

VALIDATING_SHARE = 0.1
"""The part of the processing time that goes by before the first row runs."""

FINALIZING_SHARE = 0.1
"""The part at the end in which every row has run and the results are not there yet."""

CANCELLING_SHARE = 0.1
"""How long a cancellation takes, as a part of the processing time."""


class Phase(StrEnum):
    """Where a batch is, in words that fit every provider."""

    VALIDATING = 'validating'
    RUNNING = 'running'
    FINALIZING = 'finalizing'
    CANCELLING = 'cancelling'
    COMPLETED = 'completed'
    FAILED = 'failed'
    EXPIRED = 'expired'
    CANCELLED = 'cancelled'


@dataclass(frozen=True)
class Timetable:
    """The life of one batch, in seconds since the epoch."""

    created_at: float
    processing: float
    """How long it takes, in seconds."""
    total: int
    """How many rows it has."""
    done: int
    """How many of them are finished by the end."""
    end: Phase
    """How it ends."""
    ended_at: float
    """When it ends; infinite if it never does."""
    cancelling_at: float = inf
    """When someone cancels it."""

    @property
    def running_at(self) -> float:
        """When the first row starts to run."""
        return self.created_at + self.processing * VALIDATING_SHARE

    @property
    def finalizing_at(self) -> float:
        """When the last row has run."""
        return self.created_at + self.processing * (1 - FINALIZING_SHARE)

    def entered(self, now: float) -> dict[Phase, float]:
        """The phases that it has been in by `now`, in order, and when it entered each."""
        entered = {Phase.VALIDATING: self.created_at}
        if self.end is not Phase.FAILED:
            entered[Phase.RUNNING] = self.running_at
        if self.end is Phase.COMPLETED:
            entered[Phase.FINALIZING] = self.finalizing_at
        reached = {phase: at for phase, at in entered.items() if at <= min(now, self.cancelling_at, self.ended_at)}
        last = {Phase.CANCELLING: self.cancelling_at, self.end: self.ended_at}
        return reached | {phase: at for phase, at in last.items() if at <= now}

    def phase(self, now: float) -> Phase:
        """Where it is at `now`."""
        return next(reversed(self.entered(now)), Phase.VALIDATING)

    def done_by(self, now: float) -> int:
        """How many rows are finished at `now`."""
        if now >= self.ended_at:
            return self.done
        running = self.finalizing_at - self.running_at
        share = (now - self.running_at) / running if running > 0 else float(now >= self.running_at)
        return min(self.done, int(self.total * min(max(share, 0.0), 1.0)))

    def cancelled(self, now: float, done: int) -> Timetable:
        """The timetable after somebody cancelled it at `now`, with `done` rows finished."""
        ended_at = now + self.processing * CANCELLING_SHARE
        return replace(self, done=done, end=Phase.CANCELLED, ended_at=ended_at, cancelling_at=now)


def timetable(
    total: int, *, created_at: float, processing: float, window: float, invalid: bool, faults: Sequence[Fault]
) -> Timetable:
    """When a batch does what: by its processing time and window, unless a fault says otherwise.

    Args:
        total: Number of rows.
        created_at: When it was created, in seconds since the epoch.
        processing: How long it takes, in seconds.
        window: When it expires if it takes longer, in seconds after its creation.
        invalid: Its input is refused once it is looked at.
        faults: The `batch` faults that were injected for it.
    """
    natural = Timetable(created_at, processing, total, total, Phase.COMPLETED, created_at + processing)
    by_name = {fault.name: fault for fault in faults}
    if invalid or 'fail' in by_name:
        return replace(natural, end=Phase.FAILED, ended_at=natural.running_at, done=0)
    if expire := by_name.get('expire'):
        return replace(
            natural, end=Phase.EXPIRED, ended_at=created_at + expire['seconds'], done=min(expire['done'], total)
        )
    if cancel := by_name.get('cancel'):
        done, cancelling_at = min(cancel['done'], total), natural.finalizing_at
        return replace(natural, end=Phase.CANCELLED, done=done, cancelling_at=cancelling_at)
    if stick := by_name.get('stick'):
        return replace(natural, end=Phase.RUNNING, ended_at=inf, done=min(stick['done'], total))
    if processing > window:
        expires_at = created_at + window
        return replace(natural, end=Phase.EXPIRED, ended_at=expires_at, done=natural.done_by(expires_at))
    return natural
