"""Requests of endpoints that no model of the framework is for, with bodies that the caller writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchResult, lane_for
from pydantic_ai_batch.lanes.base import Payload
from pydantic_ai_batch.lanes.openai_shape import OpenAIShapedLane
from pydantic_ai_batch.testing import FakeProviders, ManualClock


def vector_in(answer: Any) -> bool:
    return len(answer['data'][0]['embedding']) > 1


def judgement_in(answer: Any) -> bool:
    return answer['results'][0]['flagged'] is False


@pytest.mark.parametrize('wire_id', [None, 'my-row'])
@pytest.mark.parametrize('provider', ['openai', 'a provider of its own'])
@pytest.mark.parametrize(
    ('endpoint', 'name', 'has'),
    [
        ('/v1/embeddings', 'text-embedding-3-small', vector_in),
        ('/v1/moderations', 'omni-moderation-latest', judgement_in),
    ],
)
async def test_endpoints_that_no_model_is_for_are_batched_as_raw_rows(
    endpoint: str, name: str, has: Callable[[Any], bool], provider: str, wire_id: str | None, clock: ManualClock
):
    with FakeProviders(clock=clock) as fake:
        async with fake.openai.client() as client:
            own = provider == 'openai'
            made = OpenAIProvider(openai_client=client) if own else DeepSeekProvider(openai_client=client)
            found = lane_for(OpenAIChatModel(name, provider=made), lane=None if own else 'openai-compatible')
            assert isinstance(found, OpenAIShapedLane)
            lane = replace(found, endpoint=endpoint)
            with Payload(lane, await lane.identity()) as payload:
                sent = payload.add(json.dumps({'model': name, 'input': 'a sentence'}).encode(), wire_id=wire_id)
                batch = await lane.create(payload)
            await clock.advance(timedelta(hours=1))
            batch = await lane.status(batch)
            [result] = [result async for result in lane.results(batch)]
        assert isinstance(result, BatchResult)
        assert (result.custom_id, result.status) == (sent, 'succeeded')
        assert has(json.loads(result.body or ''))
        assert [row.custom_id for row in fake.openai.billed] == [sent]
        assert [batch.endpoint for batch in fake.openai.batches.values()] == [endpoint]
