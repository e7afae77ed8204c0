"""Lists what a provider holds, and marks the batches that no journal knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.compat import counts_of
from pydantic_ai_batch.journal.overview import overview_of
from pydantic_ai_batch.listing import list_batches

from .listing import listing, show


async def show_provider(provider: str, journals: Sequence[Path], *, limit: int, as_json: bool) -> None:
    """Print the batches that a provider holds, newest first.

    Args:
        provider: A lane, or a name that it goes by.
        journals: The journals whose batches are known.
        limit: How many batches are shown.
        as_json: Whether to print JSON.

    Raises:
        UserError: There is no such lane, or its key is not there.
    """
    known = {
        batch.batch.id: path for path in journals for batch in overview_of(path).batches if batch.batch is not None
    }
    if limit < 1:
        raise UserError('`--limit` must be at least 1.')
    found: list[dict[str, object]] = []
    async with aclosing(list_batches(provider)) as batches:
        async for batch in batches:
            counts = counts_of(batch)
            journal = known.get(batch.id)
            found.append(
                {
                    'id': batch.id,
                    'model': batch.model_name,
                    'status': batch.status,
                    'requests': batch.request_count,
                    'counts': counts,
                    'created_at': batch.created_at.isoformat(),
                    'journal': str(journal) if journal is not None else None,
                }
            )
            if len(found) == limit:
                break
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = listing('batch', 'model', 'status', 'requests', 'created (UTC)', 'journal')
    for one in found:
        known = one['journal'] or '[yellow]an orphan[/yellow]'
        table.add_row(
            str(one['id']),
            str(one['model']),
            str(one['status']),
            str(one['requests']),
            f'{datetime.fromisoformat(str(one["created_at"])).astimezone(UTC):%Y-%m-%d %H:%M}',
            str(known),
        )
    show(table)
