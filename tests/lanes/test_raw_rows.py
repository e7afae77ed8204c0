"""Requests of endpoints that no model of the framework is for, with bodies that the caller writes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchResult, lane_for
from pydantic_ai_batch.lanes.base import Payload
from pydantic_ai_batch.lanes.openai_shape import OpenAIShapedLane
from pydantic_ai_batch.testing import FakeProviders, ManualClock


@pytest.mark.parametrize('wire_id', [None, 'my-row'])
async def test_embeddings_are_batched_as_raw_rows(wire_id: str | None, clock: ManualClock):
    with FakeProviders(clock=clock) as fake:
        async with fake.openai.client() as client:
            model = OpenAIChatModel('text-embedding-3-small', provider=OpenAIProvider(openai_client=client))
            found = lane_for(model)
            assert isinstance(found, OpenAIShapedLane)
            lane = replace(found, endpoint='/v1/embeddings')
            with Payload(lane, await lane.identity()) as payload:
                body = json.dumps({'model': 'text-embedding-3-small', 'input': 'a sentence'}).encode()
                sent = payload.add(body, wire_id=wire_id)
                batch = await lane.create(payload)
            await clock.advance(timedelta(hours=1))
            batch = await lane.status(batch)
            [result] = [result async for result in lane.results(batch)]
        assert isinstance(result, BatchResult)
        assert (result.custom_id, result.status) == (sent, 'succeeded')
        answer: Any = json.loads(result.body or '')
        assert len(answer['data'][0]['embedding']) > 1
        assert [row.custom_id for row in fake.openai.billed] == [sent]
