from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .fake_openai_jobs import Results, Submit, input_file


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    """Fakes on a hand-moved clock, on which a batch takes 100 seconds."""
    with FakeProviders(clock=clock, processing=timedelta(seconds=100)) as fakes:
        yield fakes


@pytest.fixture
async def openai(fake: FakeProviders) -> AsyncIterator[AsyncOpenAI]:
    """The real SDK on the fake, without retries, so that each fault is seen."""
    async with fake.openai.client(max_retries=0) as client:
        yield client


@pytest.fixture
def submit(openai: AsyncOpenAI) -> Submit:
    async def submit(*texts: str, content: bytes | None = None, **settings: Any) -> Batch:
        content = input_file(texts) if content is None else content
        file = await openai.files.create(file=('input.jsonl', content), purpose='batch')
        settings = {'endpoint': '/v1/responses', 'completion_window': '24h'} | settings
        return await openai.batches.create(input_file_id=file.id, **settings)

    return submit


@pytest.fixture
def results(openai: AsyncOpenAI) -> Results:
    async def lines(file_id: str | None) -> list[dict[str, Any]]:
        if file_id is None:
            return []
        return [json.loads(line) for line in (await openai.files.content(file_id)).content.splitlines()]

    async def results(batch: Batch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        batch = await openai.batches.retrieve(batch.id)
        return await lines(batch.output_file_id), await lines(batch.error_file_id)

    return results
