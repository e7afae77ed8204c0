"""What a run came to, as people read it: how many rows have an answer, what it cost, and why others have none."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.table import Table

from pydantic_ai_batch.pricing import Cost, Price, dollars
from pydantic_ai_batch.rows.guards import cause_of
from pydantic_ai_batch.rows.records import RowResult
from pydantic_ai_batch.wording import counted

_SHOWN = 5
"""How many causes of failures are shown."""

_WIDE = 160
"""How much of a cause is shown."""


@dataclass
class Summary:
    """What results add up to."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    cost: Cost = field(default_factory=Cost)
    causes: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    """The ID of the first row of each cause."""

    input_tokens: int = 0
    output_tokens: int = 0

    def take(self, result: RowResult[Any]) -> None:
        """Take a result in."""
        self.statuses[result.status] += 1
        if result.usage is not None:
            self.input_tokens += result.usage.input_tokens
            self.output_tokens += result.usage.output_tokens
            basis = 'unknown' if result.cost is None else 'batch price'
            self.cost.add(result.model or '', Price(result.cost, result.live_cost, basis))
        if result.status not in ('ok', 'pending'):
            cause = cause_of(result)
            self.causes[cause] += 1
            self.examples.setdefault(cause, result.id)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(self.statuses.values())

    @property
    def failed(self) -> int:
        """How many rows are done with and have no answer that is whole."""
        return self.rows - self.statuses['ok'] - self.statuses['pending']

    def show(self, console: Console) -> None:
        """Print it."""
        said = [f'{counted(self.rows, "row")}: {self.statuses["ok"]:,} ok']
        said += [f'{count:,} {status}' for status, count in self.statuses.most_common() if status != 'ok']
        console.print(', '.join(said), highlight=False)
        if self.input_tokens:
            console.print(
                f'{self.input_tokens:,} tokens in, {self.output_tokens:,} out; cost: {self.cost}', highlight=False
            )
        if self.causes:
            table = Table.grid(padding=(0, 2))
            for cause, count in self.causes.most_common(_SHOWN):
                table.add_row(f'{count:,}', f'{_short(cause)} [dim](row {self.examples[cause]})[/dim]')
            console.print('Failed because of:', table)
            if len(self.causes) > _SHOWN:
                console.print(f'and {len(self.causes) - _SHOWN:,} other causes', style='dim')

    def to_json(self) -> dict[str, Any]:
        """It as JSON."""
        total = self.cost.total
        return {
            'rows': self.rows,
            'statuses': dict(self.statuses),
            'input_tokens': self.input_tokens,
            'output_tokens': self.output_tokens,
            'cost': _number(total.batch) if total.answers > total.unknown else None,
            'live_cost': _number(total.live) if total.answers > total.unknown else None,
            'unpriced': total.unknown,
            'models': {
                name: {'answers': cost.answers, 'unpriced': cost.unknown, 'cost': _number(cost.batch)}
                for name, cost in self.cost.models.items()
            },
            'causes': dict(self.causes),
        }

    def show_models(self, console: Console) -> None:
        """Print what each model cost."""
        table = Table('model', 'answers', 'in batches', 'live', 'saved')
        for name, cost in self.cost.models.items():
            known = cost.answers > cost.unknown
            amounts = [dollars(amount) for amount in (cost.batch, cost.live, cost.saved)]
            table.add_row(name, f'{cost.answers:,}', *(amounts if known else ['unknown'] * 3))
        console.print(table)
        if unknown := self.cost.total.unknown:
            console.print(f'{counted(unknown, "answer")} without a known price: they count in no amount.')


async def summary_of(results: AsyncIterable[RowResult[Any]]) -> Summary:
    """What results add up to."""
    summary = Summary()
    async for result in results:
        summary.take(result)
    return summary


def _short(text: str) -> str:
    return text if len(text) <= _WIDE else f'{text[: _WIDE - 1]}…'


def _number(amount: Decimal) -> float:
    return float(amount)
