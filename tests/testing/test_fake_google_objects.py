"""What the fake serves has the shape that Google publishes and serves. Neither is part of the package."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml
from google.genai.client import AsyncClient

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeToolCall, ManualClock

from .test_fake_google_batches import call, operation, request_of, results, submit_file, submit_inline

SHARED = Path(__file__).resolve().parents[2] / '..' / 'shared'

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason='the published schemas are not on this machine')


@pytest.fixture
async def google(fake: FakeProviders) -> AsyncIterator[AsyncClient]:
    async with fake.google.client().aio as client:
        yield client


@cache
def schema(name: str) -> jsonschema_rs.Validator:
    spec = json.loads((SHARED / 'specs' / 'gemini_v1beta_batches.openapi.json').read_text('utf-8'))
    # Required of who creates a batch; the recorded replies leave it out.
    spec['components']['schemas']['GenerateContentBatch']['required'].remove('inputConfig')
    return jsonschema_rs.validator_for({'$ref': f'#/components/schemas/{name}', 'components': spec['components']})


def recorded() -> list[dict[str, Any]]:
    """The operations of the recorded batch: when it was created, while it ran, and when it was over."""
    file = SHARED / 'recordings' / 'ruby_llm' / 'gemini_gemini-2_5-flash_chats.yml'
    calls = yaml.safe_load(file.read_text('utf-8'))['http_interactions']
    return [json.loads(each['response']['body']['string']) for each in (calls[0], calls[1], calls[-1])]


def shape(value: Any) -> Any:
    """What keys and types a value is made of; of a list, its first item."""
    if isinstance(value, dict):
        return {key: shape(part) for key, part in value.items() if key != 'thoughtsTokenCount'}
    return [shape(value[0])] if isinstance(value, list) else type(value).__name__


async def test_operations_and_files_are_those_of_the_spec(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.answer = lambda request: FakeError(400, None, 'No.') if request.text == 'b' else 'ok'
    fake.google.inject('batch', 'expire', after=2, done=1, seconds=200)
    fake.google.inject('batch', 'cancel', after=3, done=1)
    fake.google.inject('batch', 'fail', after=4)
    batches = [await submit_file(google, 'a', 'b') for _ in range(2)]
    batches += [await submit_inline(google, 'a', 'b') for _ in range(3)]
    seen: set[str] = set()
    for _ in range(25):
        listing = (await call(fake, '/v1beta/batches')).json()
        schema('ListOperationsResponse').validate(listing)
        for batch in batches:
            shown = await operation(fake, batch)
            schema('BatchGenerateContentOperation').validate(shown)
            schema('GenerateContentBatch').validate(shown['metadata'])
            if 'response' in shown:
                schema('GenerateContentBatchOutput').validate(shown['response'])
            seen.add(shown['metadata']['state'])
        await clock.advance(10)
    words = {'PENDING', 'RUNNING', 'SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED'}
    assert seen == {f'BATCH_STATE_{word}' for word in words}
    files = (await call(fake, '/v1beta/files')).json()
    assert len(files['files']) == 4
    schema('ListFilesResponse').validate(files)
    for line in await results(fake, batches[0]):
        # A line is an inline result with its key instead of its metadata.
        assert line.keys() - {'response', 'error'} == {'key'}
        schema('InlinedResponse').validate({name: value for name, value in line.items() if name != 'key'})


@pytest.mark.parametrize('answer', ['text', FakeToolCall('look_up', {'name': 'x'})])
async def test_answers_are_those_of_the_spec(fake: FakeProviders, answer: Any) -> None:
    fake.answer = lambda request: answer
    reply = await call(fake, '/v1beta/models/m:generateContent', request_of('a'))
    schema('GenerateContentResponse').validate(reply.json())


async def test_operations_have_the_keys_and_types_of_the_recorded_ones(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    requests: Any = [{**request_of(text), 'metadata': {'custom_id': text}} for text in ('0', '1')]
    batch = await google.batches.create(model='m', src=requests, config={'display_name': 'a'})
    created, running, over = recorded()
    assert shape(await operation(fake, batch)) == shape(created)
    await clock.advance(11)
    assert shape(await operation(fake, batch)) == shape(running)
    await clock.advance(1000)
    assert shape(await operation(fake, batch)) == shape(over)
