"""Looks at a journal: how far its run is, what it has come to, and what it cost."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from rich.console import Console
from rich.live import Live
from rich.table import Table

from pydantic_ai_batch.clock import SYSTEM_CLOCK, utc
from pydantic_ai_batch.compat import counts_of
from pydantic_ai_batch.exceptions import JournalError, brief
from pydantic_ai_batch.journal.overview import Overview, RecordedBatch, overview_of
from pydantic_ai_batch.rows.kept_results import KeptResults
from pydantic_ai_batch.rows.record_json import unpack
from pydantic_ai_batch.rows.records import RowResult
from pydantic_ai_batch.wording import counted

from .cancelling import lane_of, name_of
from .listing import listing, show
from .options import RunOptions
from .summary import summary_of


def options_in(path: Path) -> RunOptions:
    """What the command line asked for when the run of a journal was begun.

    Raises:
        JournalError: There is no journal, or it has no run of the command line.
    """
    run = overview_of(path).run
    command: Any = run.get('command') if run is not None else None
    if not isinstance(command, dict):
        raise JournalError(f'{path} has no run of the command line: go on with the program that made it.')
    return RunOptions.of(cast('dict[str, Any]', command))


async def show_status(path: Path, *, ask: bool, as_json: bool) -> None:
    """Print how far a run is, by its journal and, if `ask`, by its providers.

    Raises:
        JournalError: The journal cannot be read.
    """
    overview = overview_of(path)
    asked = await _asked(overview) if ask else {}
    if as_json:
        print(json.dumps(_json(overview, asked), indent=2))
        return
    show(_table(overview, asked))


async def watch(path: Path, *, every: float) -> None:
    """Show how far a run is until all its batches are over."""
    with Live(console=Console(), auto_refresh=False) as live:
        while True:
            overview = overview_of(path)
            asked = await _asked(overview)
            live.update(_table(overview, asked), refresh=True)
            if not any(batch.open and asked.get(batch.tag, ('', {}))[0] not in _OVER for batch in overview.batches):
                return
            await asyncio.sleep(every)


_OVER = ('ended', 'failed', 'expired', 'canceled', 'gone')


async def _asked(overview: Overview) -> dict[str, tuple[str, dict[str, int]]]:
    """What the providers say of the batches that have not ended, by their tags: the status and the counts."""
    said: dict[str, tuple[str, dict[str, int]]] = {}
    for recorded in overview.batches:
        if not recorded.open or recorded.batch is None:
            continue
        try:
            lane = lane_of(recorded, overview.run)
            async with lane.model:
                batch = await lane.status(recorded.batch)
        except (ModelAPIError, UserError) as error:
            said[recorded.tag] = (brief(error), {})
        else:
            said[recorded.tag] = (lane.job_status(batch), counts_of(batch))
    return said


def _table(overview: Overview, asked: dict[str, tuple[str, dict[str, int]]]) -> Table:
    run = overview.run
    rows: Any = run['input']['rows'] if run is not None else None
    done = ', '.join(f'{count:,} {status}' for status, count in overview.rows.items()) or 'none yet'
    title = f'{overview.path}: {counted(rows, "row")}, done with: {done}' if rows is not None else str(overview.path)
    table = listing('batch', 'model', 'requests', 'done', 'status', 'age', title=title)
    for recorded in overview.batches:
        status, counts = asked.get(recorded.tag, (_state(recorded), {}))
        if not counts and recorded.batch is not None:
            counts = counts_of(recorded.batch)
        processed = counts.get('completed', 0) + counts.get('failed', 0)
        table.add_row(
            recorded.batch.id if recorded.batch is not None else f'tag {recorded.tag}',
            name_of(recorded, overview.run),
            f'{recorded.requests:,}',
            f'{recorded.requests if not recorded.open else processed:,}',
            status,
            _age(recorded.created_at),
        )
    return table


def _state(recorded: RecordedBatch) -> str:
    words = {'intended': 'being created', 'unsettled': 'creation not settled', 'running': 'running', 'ended': 'read'}
    return words[recorded.state]


def _age(time: datetime) -> str:
    minutes = int((utc(SYSTEM_CLOCK) - time).total_seconds() // 60)
    return f'{minutes // 60}:{minutes % 60:02} h'


def _json(overview: Overview, asked: dict[str, tuple[str, dict[str, int]]]) -> dict[str, Any]:
    run = overview.run
    return {
        'journal': str(overview.path),
        'rows': run['input']['rows'] if run is not None else None,
        'done': overview.rows,
        'batches': [
            {
                'id': recorded.batch.id if recorded.batch is not None else None,
                'tag': recorded.tag,
                'lane': recorded.lane,
                'model': recorded.model,
                'requests': recorded.requests,
                'state': recorded.state,
                'status': asked[recorded.tag][0] if recorded.tag in asked else None,
                'counts': asked[recorded.tag][1] if recorded.tag in asked else {},
                'created_at': recorded.created_at.isoformat(),
            }
            for recorded in overview.batches
        ],
    }


async def show_results(path: Path, *, failed: bool) -> None:
    """Print the results that a journal has, a JSON object a line."""
    options_in(path)
    async for result in _results(path):
        if not failed or not result.ok:
            sys.stdout.write(json.dumps(_record(result), ensure_ascii=True) + '\n')


async def show_cost(path: Path, *, as_json: bool) -> None:
    """Print what the answers in a journal cost."""
    overview_of(path)
    summary = await summary_of(_results(path))
    if as_json:
        print(json.dumps(summary.to_json(), indent=2))
        return
    console = Console()
    summary.show_models(console)
    console.print(f'cost: {summary.cost}', highlight=False)


async def _results(path: Path) -> AsyncGenerator[RowResult[Any]]:
    kept = KeptResults(path)
    try:
        async for _, result in kept.all():
            yield unpack(result)[0]
    finally:
        kept.close()


def _record(result: RowResult[Any]) -> dict[str, Any]:
    usage = result.usage
    return {
        'id': result.id,
        'status': result.status,
        'output': result.output,
        'text': result.text,
        'error_class': result.error_class,
        'error': result.error,
        'finish_reason': result.finish_reason,
        'model': result.model,
        'input_tokens': usage.input_tokens if usage is not None else None,
        'output_tokens': usage.output_tokens if usage is not None else None,
        'cost': float(result.cost) if result.cost is not None else None,
        'batch_id': result.batch_id,
        'raw': result.raw,
    }
