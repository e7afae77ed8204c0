"""What the fake serves has the shape that OpenAI publishes. The schemas are not part of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from openai import AsyncOpenAI

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeToolCall, ManualClock

from .fake_openai_jobs import Submit, input_file

SPECS = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'specs'

pytestmark = pytest.mark.skipif(not SPECS.is_dir(), reason='the published schemas are not on this machine')


def openapi(file: str, schema: str) -> jsonschema_rs.Validator:
    spec = json.loads((SPECS / file).read_text('utf-8'))
    return jsonschema_rs.validator_for({'$ref': f'#/components/schemas/{schema}', 'components': spec['components']})


def sdk(model: str) -> jsonschema_rs.Validator:
    models = json.loads((SPECS / 'sdk_batch_models.jsonschema.json').read_text('utf-8'))['openai']['models']
    return jsonschema_rs.validator_for(next(schema for name, schema in models.items() if name.endswith(model)))


def without_nulls(value: Any) -> Any:
    """The published spec types optional fields as never null, which the recorded traffic contradicts."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


async def test_batches_and_files_are_those_of_the_spec_and_of_the_sdk(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.inject('batch', 'expire', after=1, done=1, seconds=200)
    fake.openai.inject('batch', 'cancel', after=2, done=1)
    fake.openai.inject('batch', 'fail', after=3)
    for _ in range(4):
        await submit('a', 'b', metadata={'tag': 'x'})
    spec, model = openapi('openai_batches_files.openapi.json', 'Batch'), sdk('Batch')
    seen: set[str] = set()
    for _ in range(60):
        listing = (await openai.batches.with_raw_response.list()).http_response.json()
        for batch in listing['data']:
            seen.add(batch['status'])
            spec.validate(without_nulls(batch))
            model.validate(batch)
        await clock.advance(5)
    words = {'validating', 'in_progress', 'finalizing', 'completed', 'expired', 'cancelling', 'cancelled', 'failed'}
    assert seen == words
    files = (await openai.files.with_raw_response.list()).http_response.json()['data']
    assert len(files) == 9
    for file in files:
        openapi('openai_batches_files.openapi.json', 'OpenAIFile').validate(without_nulls(file))
        sdk('FileObject').validate(file)


async def test_result_lines_are_those_of_the_spec(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.answer = lambda request: FakeError(400, 'no', 'No.') if request.text == 'b' else 'ok'
    fake.openai.inject('batch', 'expire', done=2, seconds=100)
    schema = json.loads((SPECS / 'openai_batch_line_schemas_2025-04.json').read_text('utf-8'))['BatchRequestOutput']
    line_schema = jsonschema_rs.validator_for(schema)
    batch = await submit('a', 'b', 'c')
    await clock.advance(100)
    batch = await openai.batches.retrieve(batch.id)
    for file_id in batch.output_file_id, batch.error_file_id:
        for line in (await openai.files.content(file_id or '')).content.splitlines():
            value = json.loads(line)
            assert value.keys() == {'id', 'custom_id', 'response', 'error'}
            assert value['id'].startswith('batch_req_')
            line_schema.validate(without_nulls(value))


@pytest.mark.parametrize('answer', ['text', FakeToolCall('look_up', {'name': 'x'})])
async def test_answers_are_those_of_the_spec(fake: FakeProviders, openai: AsyncOpenAI, answer: Any) -> None:
    fake.answer = lambda request: answer
    chat: Any = {'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}]}
    for reply, schema in (
        (await openai.responses.with_raw_response.create(model='m', input='hi'), 'Response'),
        (await openai.chat.completions.with_raw_response.create(**chat), 'CreateChatCompletionResponse'),
        (
            await openai.embeddings.with_raw_response.create(model='m', input='hi', encoding_format='float'),
            'CreateEmbeddingResponse',
        ),
    ):
        body = reply.http_response.json()
        # Recorded as null, though the spec says it is a string.
        assert body.pop('user', None) is None
        openapi('openai_request_bodies.openapi.json', schema).validate(body)


def test_the_input_that_these_tests_write_is_that_of_the_spec() -> None:
    schema = json.loads((SPECS / 'openai_batch_line_schemas_2025-04.json').read_text('utf-8'))['BatchRequestInput']
    jsonschema_rs.validator_for(schema).validate(json.loads(input_file(['a'])))
