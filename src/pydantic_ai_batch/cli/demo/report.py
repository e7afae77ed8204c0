"""How the demo looks: headings, a table of results, and sums of money."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from pydantic_ai.messages import ModelMessage, ModelResponse
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pydantic_ai_batch.compat import PROCESSING_KEY

from .providers import Triager
from .tickets import Ticket
from .triage import Sentiment, Triage

_BOX = box.SIMPLE_HEAD
_LOG_WIDTH = 100
"""The width where there is no terminal to ask, as in a log."""
_MAX_WIDTH = 120
"""Beyond it, the eye loses the line."""

_PRIORITY_STYLES = {1: 'bold red', 2: 'yellow', 3: '', 4: 'dim'}
_SENTIMENT_STYLES = {Sentiment.ANGRY: 'red', Sentiment.WORRIED: 'yellow', Sentiment.HAPPY: 'green'}


def make_console() -> Console:
    """The console for standard output."""
    if (reconfigure := getattr(sys.stdout, 'reconfigure', None)) is not None:
        # Tickets hold characters that not every system's encoding has, which must not end the demo.
        reconfigure(errors='replace')
    console = Console(highlight=False, emoji=False)
    sized = console.is_terminal or os.environ.get('COLUMNS')
    console.width = min(console.width, _MAX_WIDTH) if sized else _LOG_WIDTH
    return console


def heading(console: Console, title: str, explanation: str) -> None:
    """Start a part of the demo: its title, and what happens in it."""
    console.print()
    console.rule(Text(title, style='bold cyan'), align='left', style='cyan')
    console.print(Text(explanation, style='dim'))
    console.print()


def failures(console: Console, failed: Sequence[tuple[Ticket, BaseException]]) -> None:
    """Say which tickets were not answered, and why: once for those that failed alike."""
    reasons: dict[str, list[str]] = {}
    for ticket, error in failed:
        reasons.setdefault(f'{type(error).__name__}: {error}', []).append(ticket.id)
    for reason, ids in reasons.items():
        console.print(Text.assemble(('Not answered: ', 'red'), f'{", ".join(ids)}. {reason}'), soft_wrap=True)


@dataclass(frozen=True)
class Cost:
    """What responses cost in a batch, and what live requests with the same tokens would have cost."""

    batch: Decimal = Decimal()
    live: Decimal = Decimal()

    @property
    def saved(self) -> str:
        """The difference, and what part of the live price it is."""
        part = (self.live - self.batch) / self.live if self.live else Decimal()
        return f'${self.live - self.batch:.4f} ({part:.0%})'

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.batch + other.batch, self.live + other.live)


@dataclass(frozen=True)
class Answered:
    """A ticket with its triage, who made it, and what that cost, if it is known."""

    ticket: Ticket
    by: Triager
    triage: Triage
    cost: Cost | None


def results(console: Console, rows: Sequence[Answered], *, limit: int) -> None:
    """The first results in a table, and the rest as counts."""
    if not rows:
        return
    roomy = console.width >= _LOG_WIDTH
    table = Table(box=_BOX, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    table.add_column('Ticket', no_wrap=True)
    table.add_column('Provider', no_wrap=True)
    table.add_column('Subject', no_wrap=True, overflow='ellipsis', ratio=3)
    table.add_column('Category', no_wrap=True)
    table.add_column('Prio', justify='center')
    if roomy:
        table.add_column('Mood', no_wrap=True)
    table.add_column('Human', justify='center')
    table.add_column('Summary', ratio=5)
    for row in rows[:limit]:
        triage = row.triage
        table.add_row(
            row.ticket.id,
            row.by.provider.name,
            Text(row.ticket.subject),
            triage.category,
            Text(str(triage.priority), style=_PRIORITY_STYLES[triage.priority]),
            *([Text(triage.sentiment, style=_SENTIMENT_STYLES.get(triage.sentiment, ''))] if roomy else []),
            'yes' if triage.needs_human else '',
            Text(triage.summary),
        )
    console.print(table)
    if len(rows) > limit:
        console.print(f'… and {len(rows) - limit} more.')
    counts = Counter(row.triage.category.value for row in rows)
    console.print('By category: ' + ', '.join(f'{name} {count}' for name, count in counts.most_common()))


def cost_of(messages: Iterable[ModelMessage]) -> Cost | None:
    """What the responses among `messages` cost, or `None` if `genai-prices` does not know the model."""
    cost = Cost()
    for response in messages:
        if isinstance(response, ModelResponse) and response.state != 'suspended':
            details = {key: value for key, value in (response.provider_details or {}).items() if key != PROCESSING_KEY}
            live = replace(response, provider_details=details)
            try:
                cost += Cost(response.cost().total_price, live.cost().total_price)
            except LookupError:
                return None
    return cost


def _total(rows: Iterable[Answered]) -> Cost | None:
    """What rows cost together, or `None` if that of one is not known."""
    total = Cost()
    for row in rows:
        if row.cost is None:
            return None
        total += row.cost
    return total


def cost_table(console: Console, rows: Sequence[Answered]) -> None:
    """What the tickets of each model cost, and what they would have cost live."""
    table = Table(box=_BOX, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column('Provider')
    table.add_column('Model')
    for name in ('Tickets', 'In a batch', 'Live', 'Saved', 'Saved on a million'):
        table.add_column(name, justify='right')
    by_model: dict[Triager, list[Answered]] = {}
    for row in rows:
        by_model.setdefault(row.by, []).append(row)
    for by, own in by_model.items():
        table.add_row(by.provider.name, by.model_name, *_amounts(own))
    if len(by_model) > 1:
        table.add_section()
        table.add_row('together', '', *_amounts(rows), style='bold green')
    console.print(table)


def _amounts(rows: Sequence[Answered]) -> list[str]:
    """The cells of rows in the table of costs."""
    count, cost = str(len(rows)), _total(rows)
    if cost is None:
        return [count, 'price unknown', '', '', '']
    million = (cost.live - cost.batch) / len(rows) * 1_000_000
    return [count, f'${cost.batch:.4f}', f'${cost.live:.4f}', cost.saved, f'${million:,.0f}']


def cost_line(console: Console, rows: Sequence[Answered]) -> None:
    """The same in a line."""
    if rows and (cost := _total(rows)) is not None:
        console.print(f'Cost: ${cost.batch:.4f} in batches; live, it would have been ${cost.live:.4f}.')
