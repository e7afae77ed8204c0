"""What came of each row, as a typed record, and how records are matched with the rows that were sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Generic, Literal, Protocol, TypeVar

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import FinishReason
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.wording import listed

Status = Literal['ok', 'error', 'truncated', 'refused', 'missing', 'expired', 'cancelled', 'pending']
"""What came of a row.

`ok`: it was answered. `error`: it failed, for the reason in `error`. `truncated`: the answer ends where its tokens did.
`refused`: the model, or a filter of the provider's, would not answer. `missing`: its batch ended without a result for
it. `expired`: its batch ended before it was run. `cancelled`: its batch was cancelled before it was run. `pending`: its
batch goes on, or it was not sent yet.
"""

T = TypeVar('T')


@dataclass(frozen=True, kw_only=True)
class RowResult(Generic[T]):
    """What came of one row."""

    id: str
    """The row's ID, as it was given."""

    status: Status
    """What came of it."""

    output: T | None = None
    """The answer, as the type that was asked for; text by default. `None` unless the status is `ok`."""

    text: str | None = None
    """The text of the answer as far as there is any, such as that of an answer that was cut off."""

    usage: RequestUsage | None = None
    """The tokens of the answer, and of those before it that were not valid; `None` if nothing is known of any."""

    model: str | None = None
    """The model that answered, as the provider names it; `None` if none did."""

    cost: Decimal | None = None
    """What it cost in US dollars, that of answers before it that were not valid included; `None` if a price of those is
    not known."""

    live_cost: Decimal | None = None
    """What live requests with the same tokens would have cost; `None` if that is not known."""

    finish_reason: FinishReason | None = None
    """Why the model stopped, in the framework's words."""

    error_class: str | None = None
    """The name of the class of the error, such as `ModelHTTPError`; `None` if there was none."""

    error: str | None = None
    """The error in words."""

    batch_id: str | None = None
    """The provider's ID of the batch that the row was last in; `None` if it was in none."""

    raw: Any = None
    """The body that the provider returned for the row, as it is; `None` if it returned none."""

    row: dict[str, Any] = field(default_factory=dict[str, Any])
    """The values of the row in the input, by column."""

    @property
    def ok(self) -> bool:
        """Whether the row was answered."""
        return self.status == 'ok'


class _Identified(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar('R', bound=_Identified)


@dataclass(frozen=True)
class Reconciled(Generic[R]):
    """Results beside the rows that were sent."""

    rows: list[tuple[str, R | None]]
    """Every ID that was sent, in that order, with its result; `None` where there is none."""

    unknown: list[R]
    """Results whose ID was not sent, as they came."""


def by_id(results: Iterable[R]) -> dict[str, R]:
    """Results by their IDs, in the order they came.

    Raises:
        UserError: Two results have one ID, so that either could be lost. The message names the IDs.
    """
    found: dict[str, R] = {}
    repeated: dict[str, None] = {}
    for result in results:
        if result.id in found:
            repeated[result.id] = None
        found[result.id] = result
    if repeated:
        raise UserError(f'There is more than one result for {listed([repr(name) for name in repeated])}.')
    return found


def reconcile(sent_ids: Sequence[str], results: Iterable[R]) -> Reconciled[R]:
    """Match results with the IDs that were sent.

    Args:
        sent_ids: Every ID that was sent, in the order that is wanted.
        results: The results, in any order.

    Raises:
        UserError: An ID was sent twice, or two results have one. The message names the IDs.
    """
    sent = dict.fromkeys(sent_ids)
    if len(sent) < len(sent_ids):
        seen: set[str] = set()
        repeated = dict.fromkeys(name for name in sent_ids if name in seen or seen.add(name))
        raise UserError(f'More than one row was sent as {listed([repr(name) for name in repeated])}.')
    found = by_id(results)
    unknown = [result for name, result in found.items() if name not in sent]
    return Reconciled([(name, found.get(name)) for name in sent_ids], unknown)
