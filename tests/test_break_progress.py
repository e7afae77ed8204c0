"""Attacks on the progress display."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime

from conftest import ModelOf
from pydantic_ai import Agent
from pydantic_ai.models.batch import Batch
from rich.console import Console

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.progress import TerminalProgress
from pydantic_ai_batch.testing import FakeProviders, ManualClock


async def test_the_display_ends_when_the_block_does_with_requests_in_the_queue(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(clock=clock) as fake:
        display = TerminalProgress(Console(file=io.StringIO(), force_terminal=True, width=100))
        batching = BatchModelRequests(max_wait=None, progress=display, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        async with batching:
            run = asyncio.ensure_future(agent.run('x'))
            await clock.advance(1)
        await asyncio.gather(run, return_exceptions=True)
        assert display.idle
        assert display._live is None


def test_a_line_in_a_log_takes_no_name_for_markup():
    file = io.StringIO()
    display = TerminalProgress(Console(file=file, width=80))
    batch = Batch(
        id='[bold]batch_1',
        model_name='[/]',
        provider_name='openai',
        group='g',
        status='in_progress',
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        request_count=1,
        provider_details=None,
    )
    display(BatchEvent(kind='submitted', lane='openai', model_name='[/]', batch=batch))
    assert file.getvalue() == 'batch [bold]batch_1: 1 request of [/] submitted\n'
