"""Cancels the batches of a journal that have not ended."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.exceptions import ModelAPIError, UserError
from rich.console import Console

from pydantic_ai_batch.journal.overview import RecordedBatch, overview_of
from pydantic_ai_batch.lanes import Lane
from pydantic_ai_batch.named_model import lane_of_model


async def cancel_open(path: Path, console: Console) -> int:
    """Ask the providers to stop the batches of a journal that have not ended, and return how many could not be.

    Raises:
        JournalError: The journal cannot be read.
    """
    failed = 0
    overview = overview_of(path)
    open_batches = [batch for batch in overview.batches if batch.open]
    if not open_batches:
        console.print('No batch is under way.')
    for batch in open_batches:
        if batch.batch is None:
            failed += 1
            console.print(f'Whether the batch with tag {batch.tag} exists is not known yet: start the run again.')
            continue
        try:
            lane = lane_of(batch, overview.run)
            async with lane.model:
                await lane.cancel(batch.batch)
            console.print(f'{batch.batch.id}: asked to stop. What it has finished is billed, and can be collected.')
        except (ModelAPIError, UserError) as error:
            over = await _is_over(batch, overview.run)
            failed += not over
            said = 'it is over, and can be collected.' if over else str(error)
            console.print(f'{batch.batch.id}: {said}', highlight=False, markup=False)
    return failed


async def _is_over(batch: RecordedBatch, run: dict[str, object] | None) -> bool:
    """Whether a batch that could not be cancelled has ended, which providers say in words of their own."""
    assert batch.batch is not None
    try:
        lane = lane_of(batch, run)
        async with lane.model:
            return (await lane.status(batch.batch)).status == 'ended'
    except (ModelAPIError, UserError):
        return False


def lane_of(batch: RecordedBatch, run: dict[str, object] | None) -> Lane:
    """The lane of a batch, through a model made by its name.

    Raises:
        UserError: The model cannot be made here, as its key is not in the environment.
    """
    return lane_of_model(name_of(batch, run))


def name_of(batch: RecordedBatch, run: dict[str, object] | None) -> str:
    """The name of a batch's model, as it was given where that is known."""
    named = run.get('model') if run is not None else None
    # A run's own name may say more than the journal does, such as the endpoint.
    if isinstance(named, str) and named.partition(':')[2] == batch.model:
        return named
    return f'{batch.lane}:{batch.model}'
