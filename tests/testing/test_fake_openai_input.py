from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError

from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .fake_openai_jobs import Submit, input_file, input_line

GOOD = input_line(1, 'a')
OTHER_MODEL = input_line(2, 'b', body={'model': 'gpt-5', 'input': 'b'})


@pytest.mark.parametrize(
    ('lines', 'code', 'line', 'param'),
    [
        ([GOOD, b'{"custom_id": '], 'invalid_json_line', 2, None),
        ([GOOD, b'[]'], 'invalid_json_line', 2, None),
        ([GOOD, b'{"custom_id": NaN}'], 'invalid_json_line', 2, None),
        ([b'\xef\xbb\xbf' + json.dumps(GOOD).encode()], 'invalid_json_line', 1, None),
        ([b'\xff\xfe', GOOD], 'invalid_json_line', 1, None),
        ([GOOD | {'custom_id': None}], 'missing_required_parameter', 1, 'custom_id'),
        ([GOOD, b'', GOOD], 'duplicate_custom_id', 3, 'custom_id'),
        ([GOOD, input_line(2, 'b', url='/v1/chat/completions')], 'invalid_url', 2, 'url'),
        ([input_line(1, 'a', method='GET')], 'invalid_method', 1, 'method'),
        ([input_line(1, 'a', body='text')], 'missing_required_parameter', 1, 'body'),
        ([input_line(1, 'a', body={'input': 'a'})], 'missing_required_parameter', 1, 'body.model'),
        ([input_line(1, 'a', body={'model': 'm', 'stream': True})], 'invalid_request', 1, 'body.stream'),
        ([GOOD, OTHER_MODEL], 'mismatched_model', 2, 'body.model'),
        ([], 'empty_file', None, None),
        ([b' ', b''], 'empty_file', None, None),
        ([input_line(n, 'a') for n in range(4)], 'too_many_tasks', None, None),
    ],
)
async def test_what_is_wrong_with_the_input_is_told_when_it_is_validated(
    fake: FakeProviders,
    openai: AsyncOpenAI,
    clock: ManualClock,
    submit: Submit,
    lines: list[Any],
    code: str,
    line: int | None,
    param: str | None,
) -> None:
    fake.openai.max_requests = 3
    content = b'\n'.join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    batch = await submit(content=content)
    assert (batch.status, batch.errors) == ('validating', None)
    await clock.advance(10)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.failed_at) == ('failed', batch.created_at + 10)
    assert batch.errors
    [error] = batch.errors.data or []
    assert (error.code, error.line, error.param) == (code, line, param)
    assert error.message
    assert batch.output_file_id is None
    assert batch.error_file_id is None
    assert fake.openai.billed == []


async def test_every_wrong_line_is_named(openai: AsyncOpenAI, clock: ManualClock, submit: Submit) -> None:
    batch = await submit(content=b'x\n' + input_file(['a']) + b'y')
    await clock.advance(10)
    batch = await openai.batches.retrieve(batch.id)
    assert batch.errors
    assert [error.line for error in batch.errors.data or []] == [1, 3]


@pytest.mark.parametrize(
    ('settings', 'param'),
    [
        ({'endpoint': '/v1/nothing'}, 'endpoint'),
        ({'completion_window': '48h'}, 'completion_window'),
        ({'metadata': {str(n): 'x' for n in range(17)}}, 'metadata'),
        ({'metadata': {'k' * 65: 'x'}}, 'metadata'),
        ({'metadata': {'k': 'x' * 513}}, 'metadata'),
        ({'metadata': {'k': 1}}, 'metadata'),
        ({'metadata': ['k']}, 'metadata'),
        ({'input_file_id': 'file-unknown'}, 'input_file_id'),
        ({'output_expires_after': {'anchor': 'created_at', 'seconds': 60}}, 'output_expires_after'),
        ({'output_expires_after': {'anchor': 'never', 'seconds': 3600}}, 'output_expires_after'),
    ],
)
async def test_a_create_that_is_wrong_is_refused(
    fake: FakeProviders, openai: AsyncOpenAI, settings: dict[str, Any], param: str
) -> None:
    file = await openai.files.create(file=input_file(['a']), purpose='batch')
    arguments: Any = {'input_file_id': file.id, 'endpoint': '/v1/responses', 'completion_window': '24h'} | settings
    with pytest.raises(BadRequestError) as caught:
        await openai.batches.create(**arguments)
    assert (caught.value.param, caught.value.type) == (param, 'invalid_request_error')
    assert fake.openai.batches == {}


async def test_metadata_at_its_limits_is_taken(submit: Submit) -> None:
    metadata = {f'{n:064}': 'x' * 512 for n in range(16)}
    assert (await submit('a', metadata=metadata)).metadata == metadata


async def test_only_a_file_for_batches_can_be_one(openai: AsyncOpenAI) -> None:
    file = await openai.files.create(file=input_file(['a']), purpose='user_data')
    with pytest.raises(BadRequestError, match='user_data'):
        await openai.batches.create(input_file_id=file.id, endpoint='/v1/responses', completion_window='24h')


async def test_a_file_that_is_too_large_is_refused_at_once(fake: FakeProviders, openai: AsyncOpenAI) -> None:
    fake.openai.max_file_bytes = 1000
    await openai.files.create(file=b'x' * 1000, purpose='batch')
    with pytest.raises(BadRequestError, match='1000 bytes'):
        await openai.files.create(file=b'x' * 1001, purpose='batch')


async def test_a_request_without_a_key_is_refused(fake: FakeProviders, openai: AsyncOpenAI) -> None:
    for header in 'Bearer', 'Basic x', '':
        with pytest.raises(AuthenticationError) as caught:
            await openai.batches.list(extra_headers={'Authorization': header})
        assert caught.value.code == 'invalid_api_key'


async def test_a_file_comes_back_as_it_was_sent(openai: AsyncOpenAI, clock: ManualClock) -> None:
    content = b'--boundary\r\n\r\n\n--\r\n'
    sent = await openai.files.create(
        file=('ünï "q".jsonl', content), purpose='batch', expires_after={'anchor': 'created_at', 'seconds': 3600}
    )
    assert (sent.bytes, sent.purpose, sent.expires_at) == (len(content), 'batch', sent.created_at + 3600)
    kept = await openai.files.retrieve(sent.id)
    assert kept == sent
    assert (await openai.files.content(sent.id)).content == content
    assert [file.id for file in (await openai.files.list(purpose='batch')).data] == [sent.id]
    assert (await openai.files.list(purpose='batch_output')).data == []
    assert (await openai.files.delete(sent.id)).deleted
    with pytest.raises(NotFoundError):
        await openai.files.retrieve(sent.id)


async def test_files_are_listed_newest_first_unless_asked_otherwise(
    openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit('a')
    await clock.advance(100)
    names = [file.purpose for file in (await openai.files.list()).data]
    assert names == ['batch_output', 'batch']
    oldest_first = [file.id async for file in openai.files.list(order='asc', limit=1)]
    assert oldest_first == [batch.input_file_id, (await openai.batches.retrieve(batch.id)).output_file_id]


async def test_an_upload_that_is_no_form_is_refused(openai: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError):
        await openai.post('/files', cast_to=object, body={'purpose': 'batch'})
    with pytest.raises(BadRequestError) as caught:
        await openai.files.create(file=b'x', purpose='poetry')  # pyright: ignore[reportArgumentType]
    assert caught.value.param == 'purpose'


async def test_a_body_that_is_no_json_is_refused(openai: AsyncOpenAI) -> None:
    for body in b'x', b'[]', b'\xff':
        with pytest.raises(BadRequestError):
            await openai.post('/batches', cast_to=object, content=body)
