"""Requests made with a template are, byte for byte, those that the model would have encoded."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from pydantic_ai import ModelMessage, ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, EncodedBatchRequest
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import lane_for
from pydantic_ai_batch.chunks import prepared
from pydantic_ai_batch.lanes import Lane
from pydantic_ai_batch.rows import encode_template
from pydantic_ai_batch.rows.encode_template import EncodeTemplates
from pydantic_ai_batch.testing import FakeProviders, ManualClock
from tests.lanes.harness import EVERY, Harness, close, harness_of

PROMPTS = [
    'plain',
    ' with "quotes", \\ and \n\t\x00\x1f\x7f',
    'é 漢字 😀 \u2028 \u0085 \ufeff',
    '{{ braces }} </script> &amp; <|im_start|>',
    '-',
    '0' * 5000,
]


def request(prompt: str, **settings: Any) -> BatchRequest:
    messages: list[ModelMessage] = [ModelRequest.user_text_prompt(prompt, instructions='Be brief.')]
    model_settings = cast('ModelSettings', {'max_tokens': 50, **settings})
    return BatchRequest(custom_id='', messages=messages, model_settings=model_settings)


async def real(lane: Lane, prompt: str) -> EncodedBatchRequest:
    return await lane.encode(prepared(lane.model, request(prompt)))


@pytest.fixture(params=[harness.name for harness in EVERY])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return harness_of(request.param, monkeypatch)


async def test_bodies_are_those_of_the_model_on_every_lane(harness: Harness, clock: ManualClock):
    with FakeProviders(clock=clock) as fake:
        model, client = harness.make(fake, 'test')
        lane = lane_for(model, lane='openai-compatible' if harness.lane == 'openai-compatible' else None)
        templates = EncodeTemplates()
        for prompt in PROMPTS:
            made, wanted = await templates.encode(lane, '', prompt, request), await real(lane, prompt)
            assert (made.body, made.group) == (wanted.body, wanted.group)
        await close(client)


@pytest.fixture
async def model(clock: ManualClock) -> AsyncIterator[Model]:
    with FakeProviders(clock=clock) as fake:
        async with fake.openai.client() as client:
            yield OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))


async def test_the_model_encodes_few_of_many(model: Model, monkeypatch: pytest.MonkeyPatch):
    lane, encoded = lane_for(model), 0
    encode = lane.encode

    async def counted(request: BatchRequest) -> EncodedBatchRequest:
        nonlocal encoded
        encoded += 1
        return await encode(request)

    monkeypatch.setattr(lane, 'encode', counted)
    templates = EncodeTemplates()
    for number in range(2500):
        await templates.encode(lane, '', f'prompt {number}', request)
    # Three for the template, and one of each thousand.
    assert encoded == 6


async def test_rows_with_other_settings_have_a_template_of_their_own(model: Model):
    lane, templates = lane_for(model), EncodeTemplates()
    for tokens in (10, 20, 10):
        made = await templates.encode(lane, str(tokens), 'x', lambda prompt: request(prompt, max_tokens=tokens))  # noqa: B023
        assert f'"max_output_tokens":{tokens}' in made.body


async def test_a_model_that_is_changed_meanwhile_encodes_each_request_itself(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(encode_template, '_LOOKED_AT', 2)
    lane, templates = lane_for(model), EncodeTemplates()
    await templates.encode(lane, '', 'first', request)
    model._settings = OpenAIResponsesModelSettings(openai_user='somebody')
    await templates.encode(lane, '', 'second', request)
    with caplog.at_level(logging.WARNING):
        for prompt in ('third', 'fourth'):
            assert '"user":"somebody"' in (await templates.encode(lane, '', prompt, request)).body
    assert 'do not differ in their prompts alone' in caplog.text
