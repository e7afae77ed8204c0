"""Shows what a run would come to, before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import BinaryIO

from rich.console import Console
from rich.table import Table

from pydantic_ai_batch.rows.plan import BatchPlan, PlanChunk, planned
from pydantic_ai_batch.rows.source import open_rows
from pydantic_ai_batch.wording import counted

from .options import RunOptions

_SHOWN = 12
"""How many batches, and how many rows that cannot be sent, are shown."""

_WIDE = 2_000
"""How much of the first request is shown."""


async def plan_of(options: RunOptions, piped: BinaryIO | None = None) -> BatchPlan:
    """The plan of a run.

    Args:
        options: What is asked of it.
        piped: What standard input held, if the rows came from there and are wanted again.

    Raises:
        UserError: Something is wrong with it.
    """
    with open_rows(options.rows, format=options.format, delimiter=options.delimiter, stdin=piped) as source:
        return await planned(options.job(), source, options.batches)


def show_plan(plan: BatchPlan, *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        print(json.dumps(_json(plan), indent=2))
        return
    console = Console()
    batches = counted(len(plan.chunks), 'batch') if len(plan.chunks) == 1 else f'{len(plan.chunks):,} batches'
    console.print(
        f'{counted(plan.requests, "request")} of {plan.name} in {batches}, {plan.bytes:,} bytes. Nothing was sent.',
        highlight=False,
    )
    console.print(_table(plan.chunks[:_SHOWN]))
    if len(plan.chunks) > _SHOWN:
        console.print(f'and {len(plan.chunks) - _SHOWN:,} more')
    out = 'not limited' if plan.output_tokens is None else f'at most {plan.output_tokens:,}'
    console.print(f'tokens: ~{plan.input_tokens:,} in, {out} out', highlight=False)
    console.print(f'cost: {plan.cost_in_words}', highlight=False)
    for caveat in plan.caveats:
        console.print(f'· {caveat}', highlight=False)
    for row_id, reason in list(plan.refused.items())[:_SHOWN]:
        console.print(f'[yellow]cannot be sent: row {row_id}: {reason}[/yellow]', highlight=False)
    if len(plan.refused) > _SHOWN:
        console.print(f'[yellow]and {len(plan.refused) - _SHOWN:,} more rows that cannot be sent[/yellow]')
    if plan.first_request is not None:
        console.print('The first request:')
        print(plan.first_request if len(plan.first_request) <= _WIDE else f'{plan.first_request[:_WIDE]}…')


def _table(chunks: Sequence[PlanChunk]) -> Table:
    table = Table('model', 'rows', 'requests', 'bytes')
    for chunk in chunks:
        table.add_row(
            chunk.model,
            chunk.ids[0] if chunk.requests == 1 else f'{chunk.ids[0]} … {chunk.ids[-1]}',
            _of(f'{chunk.requests:,}', chunk.max_requests),
            _of(f'{chunk.bytes:,}', chunk.max_bytes),
        )
    return table


def _of(amount: str, limit: int | None) -> str:
    return amount if limit is None else f'{amount} of {limit:,}'


def _json(plan: BatchPlan) -> dict[str, object]:
    return {
        'input': plan.name,
        'requests': plan.requests,
        'bytes': plan.bytes,
        'chunks': [
            {
                'lane': chunk.lane,
                'model': chunk.model,
                'requests': chunk.requests,
                'max_requests': chunk.max_requests,
                'bytes': chunk.bytes,
                'max_bytes': chunk.max_bytes,
                'ids': chunk.ids,
            }
            for chunk in plan.chunks
        ],
        'refused': dict(plan.refused),
        'input_tokens': plan.input_tokens,
        'output_tokens': plan.output_tokens,
        'cost': float(plan.cost) if plan.cost is not None else None,
        'live_cost': float(plan.live_cost) if plan.live_cost is not None else None,
        'flat_discount': plan.flat,
        'caveats': plan.caveats,
        'first_request': plan.first_request,
    }
