"""How the demo looks: headings, a table of results, and sums of money."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage, ModelResponse
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pydantic_ai_batch import LANES
from pydantic_ai_batch.pricing import Cost, ModelCost, dollars

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
class Answered:
    """A ticket with its triage, who made it, and what that cost."""

    ticket: Ticket
    by: Triager
    triage: Triage
    cost: Cost


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


def cost_of(messages: Iterable[ModelMessage], by: Triager) -> Cost:
    """What the responses among `messages` cost."""
    cost = Cost()
    for response in messages:
        if isinstance(response, ModelResponse):
            cost.count(response, LANES[by.provider.name])
    return cost


def _total(rows: Iterable[Answered]) -> ModelCost:
    """What rows cost together."""
    return sum((row.cost for row in rows), Cost()).total


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
    if cost.unknown:
        return [count, 'price unknown', '', '', '']
    saved = f'{dollars(cost.saved)} ({cost.share_saved:.0%})'
    million = cost.saved / len(rows) * 1_000_000
    return [count, dollars(cost.batch), dollars(cost.live), saved, f'${million:,.0f}']


def cost_line(console: Console, rows: Sequence[Answered]) -> None:
    """The same in a line."""
    cost = _total(rows)
    if rows and not cost.unknown:
        console.print(f'Cost: {dollars(cost.batch)} in batches; live, it would have been {dollars(cost.live)}.')
