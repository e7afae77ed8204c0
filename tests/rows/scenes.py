"""What the tests of runs over rows have in common."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from pydantic_ai_batch import RowResult, run_rows
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock


def echo(request: FakeRequest) -> str:
    """An answer that says whose it is."""
    return f'answer to {request.text}'


async def all_of(clock: ManualClock, rows: Any, **settings: Any) -> list[RowResult[Any]]:
    """Every result of a run, as they come."""

    async def run() -> list[RowResult[Any]]:
        async with aclosing(run_rows(rows, clock=clock, **settings)) as results:
            return [result async for result in results]

    return await clock.run(run())


def statuses(results: Sequence[RowResult[Any]]) -> dict[str, str]:
    """The status of each row by its ID."""
    return {result.id: result.status for result in results}


def asked(fake: FakeProviders) -> list[str]:
    """The prompts that the fakes ran and charged, in their order."""
    return [row.text for provider in fake.providers.values() for row in provider.billed]


def sizes(fake: FakeProviders) -> list[int]:
    """How many requests each batch at the fake OpenAI has, in the order they were created."""
    return [len(batch.requests) for batch in fake.openai.batches.values()]
