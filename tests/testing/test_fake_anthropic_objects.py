"""What the fake serves has the shape that Anthropic publishes. The schemas are not part of the package."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from anthropic import APIStatusError, AsyncAnthropic

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeToolCall, ManualClock

from .test_fake_anthropic_batches import raw_results, requests_of, submit

SPECS = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'specs'

pytestmark = pytest.mark.skipif(not SPECS.is_dir(), reason='the published schemas are not on this machine')


@pytest.fixture
async def anthropic(fake: FakeProviders) -> AsyncIterator[AsyncAnthropic]:
    async with fake.anthropic.client(max_retries=0) as client:
        yield client


def openapi(schema: str) -> jsonschema_rs.Validator:
    spec = json.loads((SPECS / 'anthropic_message_batches.openapi.json').read_text('utf-8'))
    return jsonschema_rs.validator_for({'$ref': f'#/components/schemas/{schema}', 'components': spec['components']})


def sdk(model: str) -> jsonschema_rs.Validator:
    models = json.loads((SPECS / 'sdk_batch_models.jsonschema.json').read_text('utf-8'))['anthropic']['models']
    return jsonschema_rs.validator_for(next(schema for name, schema in models.items() if name.endswith(f':{model}')))


def with_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """The published spec requires some fields to be there as null, which the recorded traffic leaves out."""
    content = [{'citations': None, **block} if block['type'] == 'text' else block for block in message['content']]
    return {**message, 'content': content, 'usage': {'server_tool_use': None, **message['usage']}}


async def test_batches_and_lists_are_those_of_the_spec_and_of_the_sdk(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'expire', after=1, done=1, seconds=200)
    fake.anthropic.inject('batch', 'cancel', after=2, done=1)
    for _ in range(3):
        await submit(anthropic, 'a', 'b')
    seen: set[str] = set()
    for pause in [5] * 50 + [29 * 86_400]:
        listing = (await anthropic.messages.batches.with_raw_response.list()).http_response.json()
        openapi('ListResponse_MessageBatch_').validate(listing)
        for batch in listing['data']:
            seen.add(batch['processing_status'])
            sdk('MessageBatch').validate(batch)
            assert set(batch) == set(openapi_properties('MessageBatch'))
        await clock.advance(pause)
    assert seen == {'in_progress', 'canceling', 'ended'}
    [first, *_] = fake.anthropic.batches
    reply = await anthropic.messages.batches.with_raw_response.delete(first)
    openapi('DeleteMessageBatchResponse').validate(reply.http_response.json())
    sdk('DeletedMessageBatch').validate(reply.http_response.json())


def openapi_properties(schema: str) -> dict[str, Any]:
    spec = json.loads((SPECS / 'anthropic_message_batches.openapi.json').read_text('utf-8'))
    return spec['components']['schemas'][schema]['properties']


async def test_result_lines_are_those_of_the_spec_and_of_the_sdk(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    answers = {'a': 'ok', 'b': FakeToolCall('look_up', {'name': 'x'}), 'c': FakeError(400, None, 'No.'), 'd': 'ok'}
    fake.answer = lambda request: answers[request.text]
    fake.anthropic.inject('batch', 'expire', done=3, seconds=100)
    fake.anthropic.inject('batch', 'cancel', done=3, after=1)
    batches = [await submit(anthropic, *answers) for _ in range(2)]
    await clock.advance(100)
    seen: set[str] = set()
    for batch in batches:
        for line in (await raw_results(anthropic, batch.id)).splitlines():
            value = json.loads(line)
            result = value['result']
            seen.add(result['type'])
            sdk('MessageBatchIndividualResponse').validate(value)
            if result['type'] == 'succeeded':
                result['message'] = with_nulls(result['message'])
            openapi('MessageBatchIndividualResponse').validate(value)
    assert seen == {'succeeded', 'errored', 'canceled', 'expired'}


@pytest.mark.parametrize('answer', ['text', FakeToolCall('look_up', {'name': 'x'})])
async def test_live_answers_are_those_of_the_spec(fake: FakeProviders, anthropic: AsyncAnthropic, answer: Any) -> None:
    fake.answer = lambda request: answer
    messages: Any = [{'role': 'user', 'content': 'hi'}]
    reply = await anthropic.messages.with_raw_response.create(model='m', max_tokens=10, messages=messages)
    openapi('Message').validate(with_nulls(reply.http_response.json()))


@pytest.mark.parametrize('status', [400, 401, 402, 403, 404, 429, 500, 504, 529])
async def test_errors_are_those_of_the_spec(fake: FakeProviders, anthropic: AsyncAnthropic, status: int) -> None:
    fake.anthropic.inject('list', 'http', status=status, code='some_code')
    with pytest.raises(APIStatusError) as caught:
        await anthropic.messages.batches.list()
    openapi('ErrorResponse').validate(caught.value.response.json())


def test_the_input_that_these_tests_write_is_that_of_the_spec() -> None:
    openapi('CreateMessageBatchParams').validate({'requests': requests_of(['a', 'b'])})
