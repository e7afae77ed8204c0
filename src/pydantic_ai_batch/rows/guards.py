"""What stops a run before it has sent everything: a trial that went wrong, too many failures, or too much spent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.exceptions import RowMismatch
from pydantic_ai_batch.lanes.base import Lane
from pydantic_ai_batch.pricing import estimate
from pydantic_ai_batch.wording import counted

from .records import RowResult

_MAY_FAIL = 0.2
"""The share of a trial's rows that may fail, where `max_failures` says nothing else."""


@dataclass(frozen=True, kw_only=True)
class Guards:
    """What a run may come to before it stops sending.

    Raises:
        UserError: A value is out of its range.
    """

    canary: int | None = None
    """How many rows are sent first, as a batch of their own. The others follow if enough of them are answered."""

    max_failures: float | int | None = None
    """How many rows may fail: a share of all if it is a `float` below 1, a number if it is an `int`."""

    max_cost: Decimal | None = None
    """The most that a run may cost, in US dollars, as far as its answers' prices are known."""

    verify: int | None = None
    """How many rows have a token in their prompt that has to come back. The token of another row stops the run."""

    def __post_init__(self) -> None:
        if self.canary is not None and (isinstance(self.canary, bool) or self.canary < 1):
            raise UserError(f'`canary` must be a number of rows of at least 1, not {self.canary!r}.')
        most = self.max_failures
        if most is not None and (
            isinstance(most, bool) or math.isnan(most) or most < 0 or (isinstance(most, float) and most >= 1)
        ):
            raise UserError(
                f'`max_failures` must be a number of rows, such as 10, or a share of them, such as 0.05, not {most!r}.'
            )
        if self.max_cost is not None and (not math.isfinite(self.max_cost) or self.max_cost <= 0):
            raise UserError(f'`max_cost` must be a sum in US dollars above 0, not {self.max_cost!r}.')

    def refuse_unpriced(self, lane: Lane, name: str) -> None:
        """Refuse a limit on what a model may cost whose price is not known: it would never stop anything.

        Raises:
            UserError: It is not.
        """
        if self.max_cost is None:
            return
        model = lane.model
        price = estimate(model.model_name, model.system, lane.info, 1_000, 1_000, provider_url=model.base_url)
        if price.batch is None:
            raise UserError(
                f'`max_cost` cannot be kept for {name!r}, of which no batch price is known: leave it out, or limit the '
                'rows, or `max_tokens`. Nothing was sent.'
            )

    @property
    def any(self) -> bool:
        """Whether there is a guard at all."""
        return self.canary is not None or self.verify is not None or self.watchful

    @property
    def watchful(self) -> bool:
        """Whether batches are to go one after the other, as each may be the last."""
        return self.max_failures is not None or self.max_cost is not None


@dataclass
class Watch:
    """What a run has come to, by its guards."""

    guards: Guards
    rows: int
    """How many rows it has."""

    answered: int = 0
    failed: int = 0
    cost: Decimal = field(default_factory=Decimal)
    reasons: dict[str, int] = field(default_factory=dict[str, int])
    """How many rows failed for each reason."""

    mismatch: str | None = None
    """What is wrong with a row that was given the answer to another one."""

    def take(self, record: RowResult[Any]) -> None:
        """Take the record of a row in."""
        self.cost += record.cost or 0
        if record.status == 'ok':
            self.answered += 1
            return
        self.failed += 1
        if record.error_class == RowMismatch.__name__:
            self.mismatch = f'row {record.id!r} was given the answer to another row'
        reason = cause_of(record)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def stop(self) -> str | None:
        """Why nothing more is to be sent, if that is so."""
        if self.mismatch is not None:
            return self.mismatch
        most, failed = self.guards.max_failures, counted(self.failed, 'row')
        if most is not None and self.failed > (most * self.rows if isinstance(most, float) else most):
            allowed = f'{most:.4g} of {self.rows:,}' if isinstance(most, float) else f'{most:,}'
            return f'{failed} failed, and {allowed} may{self._commonest()}'
        if self.guards.max_cost is not None and self.cost > self.guards.max_cost:
            return f'the answers cost ${self.cost:.4f}, and ${self.guards.max_cost} may be spent'
        return None

    def trial_failed(self, failed: int, sent: int) -> str | None:
        """Why nothing is to be sent after the first rows, if that is so.

        Args:
            failed: How many of them failed.
            sent: How many there were.
        """
        most = self.guards.max_failures
        # Whole rows, as 5 times 0.2 need not come to one in binary fractions.
        if failed <= math.floor(round(sent * (most if isinstance(most, float) else _MAY_FAIL), 9)):
            return None
        return f'{failed} of the first {counted(sent, "row")} failed{self._commonest()}'

    def _commonest(self) -> str:
        if not self.reasons:
            return ''
        reason, count = max(self.reasons.items(), key=lambda item: item[1])
        return f', {count:,} of them with: {reason}'


def cause_of(record: RowResult[Any]) -> str:
    """Why a row has no answer, in words that rows which failed for the same reason share."""
    reason = (record.error or record.status).split('\n', 1)[0]
    return f'{record.error_class}: {reason}' if record.error_class else reason
