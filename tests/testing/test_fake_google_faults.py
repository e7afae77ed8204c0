from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from google.genai.client import AsyncClient
from google.genai.errors import APIError, ServerError

from pydantic_ai_batch.testing import FakeError, FakeProviders, ManualClock
from pydantic_ai_batch.testing.lines import ResultFile

from .test_fake_google_batches import (
    call,
    inline_results,
    operation,
    result_lines,
    results,
    submit_file,
    submit_inline,
    text_of,
    upload,
)

# The SDK asks with one or the other, as its version and what is installed are.
BROKEN = httpx.RemoteProtocolError, httpx2.RemoteProtocolError
RESET = httpx.ReadError, httpx2.ReadError


@pytest.fixture
async def google(fake: FakeProviders) -> AsyncIterator[AsyncClient]:
    async with fake.google.client().aio as client:
        yield client


async def test_a_lost_create_reply_leaves_a_batch_that_its_name_finds(fake: FakeProviders, google: AsyncClient) -> None:
    fake.google.inject('create', 'lose_reply')
    with pytest.raises(BROKEN):
        await submit_inline(google, 'a', name='pab-tag')
    [job] = [job async for job in await google.batches.list()]
    assert job.display_name == 'pab-tag'
    assert fake.google.count('create') == 1


async def test_a_reset_leaves_nothing(fake: FakeProviders, google: AsyncClient) -> None:
    fake.google.inject('create', 'reset')
    with pytest.raises(RESET):
        await submit_inline(google, 'a')
    assert fake.google.batches == {}


async def test_an_injected_error_has_googles_shape(fake: FakeProviders, google: AsyncClient) -> None:
    batch = await submit_inline(google, 'a')
    fake.google.inject('status', 'http', status=503, message='Later.', headers={'retry-after': '1'})
    with pytest.raises(ServerError, match='Later') as caught:
        await google.batches.get(name=batch.name or '')
    assert (caught.value.code, caught.value.status) == (503, 'UNAVAILABLE')
    fake.google.inject('cancel', 'http', status=409, code='ABORTED', done=True)
    with pytest.raises(APIError, match='ABORTED'):
        await google.batches.cancel(name=batch.name or '')
    fake.google.inject('status', 'garbage')
    with pytest.raises(json.JSONDecodeError):
        await google.batches.get(name=batch.name or '')


@pytest.mark.parametrize('step', ['upload', 'upload_bytes'])
async def test_an_upload_that_fails_does_so_at_once(fake: FakeProviders, google: AsyncClient, step: str) -> None:
    fake.google.inject(step, 'http', status=503)
    started = time.monotonic()
    with pytest.raises(ServerError):
        await upload(google, b'{}')
    assert time.monotonic() - started < 1
    assert fake.google.count(step) == 1
    assert [file async for file in await google.files.list()] == []


async def test_a_cut_download_ends_short_of_its_length(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_file(google, 'a', 'b')
    await clock.advance(100)
    file = (await operation(fake, batch))['response']['responsesFile']
    whole = await google.files.download(file=file)
    fake.google.inject('download', 'cut')
    with pytest.raises(BROKEN):
        await google.files.download(file=file)
    fake.google.inject('download', 'cut', announced=False)
    assert await google.files.download(file=file) == whole[: len(whole) // 2]


@pytest.mark.parametrize(
    ('fault', 'options', 'state', 'code'),
    [
        ('expire', {'done': 1, 'seconds': 100}, 'EXPIRED', 4),
        ('cancel', {'done': 1}, 'CANCELLED', 1),
        ('fail', {}, 'FAILED', 13),
        ('fail', {'errors': [{'code': 8, 'message': 'Full.'}]}, 'FAILED', 8),
        ('fail', {'errors': [{'code': 'NOT_FOUND', 'message': 'Gone.'}]}, 'FAILED', 5),
    ],
)
async def test_a_batch_that_does_not_succeed_says_why_and_has_no_results(
    fake: FakeProviders,
    google: AsyncClient,
    clock: ManualClock,
    fault: str,
    options: dict[str, Any],
    state: str,
    code: int,
) -> None:
    fake.google.inject('batch', fault, **options)
    batch = await submit_inline(google, 'a', 'b')
    await clock.advance(100)
    shown = await operation(fake, batch)
    assert (shown['metadata']['state'], shown['done']) == (f'BATCH_STATE_{state}', True)
    assert shown['error']['code'] == code
    assert shown['error']['message'] == (options.get('errors') or [shown['error']])[0]['message']
    assert 'response' not in shown
    assert 'output' not in shown['metadata']
    assert len(fake.google.billed) == options.get('done', 0)


async def test_a_batch_that_expires_does_so_after_googles_48_hours(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('batch', 'expire')
    batch = await submit_inline(google, 'a')
    await clock.advance(48 * 3600 - 1)
    assert 'done' not in await operation(fake, batch)
    await clock.advance(1)
    assert (await operation(fake, batch))['metadata']['state'] == 'BATCH_STATE_EXPIRED'


async def test_a_stuck_batch_ends_only_when_it_is_cancelled(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('batch', 'stick', done=1)
    batch = await submit_inline(google, 'a', 'b')
    await clock.advance(1_000_000)
    metadata = (await operation(fake, batch))['metadata']
    assert metadata['state'] == 'BATCH_STATE_RUNNING'
    assert metadata['batchStats'] == {'requestCount': '2', 'successfulRequestCount': '1', 'pendingRequestCount': '1'}
    await google.batches.cancel(name=batch.name or '')
    await clock.advance(10)
    assert (await operation(fake, batch))['metadata']['state'] == 'BATCH_STATE_CANCELLED'


async def test_a_state_can_be_a_word_that_nobody_knows(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('batch', 'status_word', word='BATCH_STATE_PONDERING')
    fake.google.inject('batch', 'status_word', word='JOB_STATE_DONE', when='BATCH_STATE_SUCCEEDED', after=1)
    batches = [await submit_inline(google, 'a'), await submit_inline(google, 'a')]
    states: list[list[str]] = []
    for _ in range(3):
        states.append([(await operation(fake, batch))['metadata']['state'] for batch in batches])
        await clock.advance(50)
    assert states == [
        ['BATCH_STATE_PENDING', 'BATCH_STATE_PENDING'],
        ['BATCH_STATE_PONDERING', 'BATCH_STATE_RUNNING'],
        ['BATCH_STATE_SUCCEEDED', 'JOB_STATE_DONE'],
    ]
    with pytest.raises(ValueError, match='BATCH_STATE_RUNNING'):
        fake.google.inject('batch', 'status_word', when='in_progress')


@pytest.mark.parametrize('fault', ['error_in_output', 'string_body'])
def test_faults_that_google_cannot_have_are_refused_by_name(fake: FakeProviders, fault: str) -> None:
    with pytest.raises(ValueError, match=f"'{fault}' does not apply to google"):
        fake.google.inject('lines', fault)


async def test_lines_of_a_file_can_be_missing_doubled_or_nobodys(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('lines', 'drop', rows=lambda request: request.text == 'b')
    fake.google.inject('lines', 'duplicate', rows=lambda request: request.text == 'c')
    fake.google.inject('lines', 'unknown_id', rows=lambda request: request.text == 'd')
    batch = await submit_file(google, 'a', 'b', 'c', 'd')
    await clock.advance(100)
    assert [line['key'] for line in await results(fake, batch)] == ['r1', 'r3', 'r3', 'r4', 'unknown-3']
    assert len(fake.google.billed) == 4


@pytest.mark.parametrize('how', ['truncate', 'not_json', 'null_id', 'list', 'blank', 'bad_utf8'])
async def test_a_damaged_line_leaves_the_others_whole(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock, how: str
) -> None:
    fake.google.inject('lines', 'damage', how=how)
    batch = await submit_file(google, 'a', 'b')
    await clock.advance(100)
    lines = await result_lines(fake, batch)
    assert json.loads(lines[-1])['key'] == 'r2'
    if how == 'null_id':
        assert json.loads(lines[0])['key'] is None
    elif how == 'blank':
        assert lines[0] == b''
        assert json.loads(lines[1])['key'] == 'r1'
    elif how == 'list':
        assert lines[0] == b'[]'
    else:
        with pytest.raises(ValueError):  # noqa: PT011
            json.loads(lines[0].decode())


async def test_inline_results_can_be_missing_doubled_or_nobodys(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('lines', 'drop', rows=lambda request: request.text == 'b')
    fake.google.inject('lines', 'duplicate', rows=lambda request: request.text == 'c')
    fake.google.inject('lines', 'unknown_id', rows=lambda request: request.text == 'd')
    batch = await submit_inline(google, 'a', 'b', 'c', 'd')
    await clock.advance(100)
    keys = [result['metadata']['key'] for result in await inline_results(fake, batch)]
    assert keys == ['r1', 'r3', 'r3', 'r4', 'unknown-3']


@pytest.mark.parametrize(
    ('how', 'kind'),
    [
        ('truncate', str),
        ('not_json', str),
        ('bad_utf8', str),
        ('blank', str),
        ('list', list),
        ('null_id', dict),
    ],
)
async def test_a_damaged_inline_result_is_another_value_in_the_list(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock, how: str, kind: type
) -> None:
    fake.google.inject('lines', 'damage', how=how)
    batch = await submit_inline(google, 'a', 'b')
    await clock.advance(100)
    first, *_, last = await inline_results(fake, batch)
    assert isinstance(first, kind)
    assert last['metadata'] == {'key': 'r2'}
    if how == 'null_id':
        assert first['metadata'] == {'key': None}


async def test_an_unknown_id_stands_where_the_caller_put_its_own(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.inject('lines', 'unknown_id')
    item = {'request': {'contents': [{'parts': [{'text': 'a'}]}]}, 'metadata': {'custom_id': '7'}}
    order = {'batch': {'displayName': 'a', 'inputConfig': {'requests': {'requests': [item]}}}}
    name = (await call(fake, '/v1beta/models/m:batchGenerateContent', order)).json()['name']
    await clock.advance(100)
    [output] = [(await call(fake, f'/v1beta/{name}')).json()['response']['inlinedResponses']]
    labels = [result['metadata'] for result in output['inlinedResponses']]
    assert labels == [{'custom_id': '7'}, {'custom_id': 'unknown-0'}]


async def test_results_can_be_rewritten_line_by_line_in_a_file_and_inline(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    def rewrite(lines: list[bytes], kind: ResultFile) -> list[bytes]:
        assert kind == 'output'
        return [line.replace(b'Answer', b'Reply') for line in lines]

    fake.google.rewrite_results = rewrite
    file, inline = await submit_file(google, 'a'), await submit_inline(google, 'a')
    await clock.advance(100)
    assert text_of((await results(fake, file))[0]) == 'Reply to: a'
    assert text_of((await inline_results(fake, inline))[0]) == 'Reply to: a'


async def test_a_row_without_an_answer_is_missing(fake: FakeProviders, google: AsyncClient, clock: ManualClock) -> None:
    fake.answer = lambda request: None if request.text == 'a' else FakeError(500, None, 'No.')
    file, nothing = await submit_file(google, 'a', 'b'), await submit_file(google, 'a')
    await clock.advance(100)
    assert await results(fake, file) == [{'key': 'r2', 'error': {'code': 13, 'message': 'No.'}}]
    assert await results(fake, nothing) == []
