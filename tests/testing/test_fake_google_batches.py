from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from google.genai.client import AsyncClient
from google.genai.errors import APIError, ClientError
from google.genai.types import BatchJob, File

from pydantic_ai_batch.testing import FakeError, FakeProviders, ManualClock

TEXTS = [f'text {n}' for n in range(1, 11)]
MODEL = 'gemini-2.5-flash'
RPC_STATUS = {'code': 3, 'message': 'No.'}


@pytest.fixture
async def google(fake: FakeProviders) -> AsyncIterator[AsyncClient]:
    """The real SDK on the fake."""
    async with fake.google.client().aio as client:
        yield client


def request_of(text: str) -> dict[str, Any]:
    return {'contents': [{'role': 'user', 'parts': [{'text': text}]}]}


def input_file(texts: Sequence[str]) -> bytes:
    lines = ({'key': f'r{n}', 'request': request_of(text)} for n, text in enumerate(texts, start=1))
    return b''.join(json.dumps(line).encode() + b'\n' for line in lines)


async def upload(client: AsyncClient, content: bytes) -> File:
    return await client.files.upload(file=io.BytesIO(content), config={'mime_type': 'application/jsonl'})


async def submit_file(client: AsyncClient, *texts: str, content: bytes | None = None, name: str = 'a') -> BatchJob:
    """A batch of a file with a line for each text, with keys from `r1`, or of `content` as it is."""
    file = await upload(client, input_file(texts) if content is None else content)
    return await client.batches.create(model=MODEL, src=file.name or '', config={'display_name': name})


async def submit_inline(client: AsyncClient, *texts: str, name: str = 'a') -> BatchJob:
    """A batch of one inline request for each text, with keys from `r1` in their metadata."""
    requests: Any = [{**request_of(text), 'metadata': {'key': f'r{n}'}} for n, text in enumerate(texts, start=1)]
    return await client.batches.create(model=MODEL, src=requests, config={'display_name': name})


async def call(
    fake: FakeProviders, path: str, body: Any = None, *, api_key: str | None = 'test', **query: Any
) -> httpx2.Response:
    """What is on the wire, which the SDK shows but in part."""
    async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
        return await client.request(
            'GET' if body is None else 'POST',
            fake.google.base_url + path,
            json=body,
            params=query or None,
            headers={} if api_key is None else {'x-goog-api-key': api_key},
        )


async def operation(fake: FakeProviders, batch: BatchJob) -> dict[str, Any]:
    return (await call(fake, f'/v1beta/{batch.name}')).json()


async def inline_results(fake: FakeProviders, batch: BatchJob) -> list[Any]:
    return (await operation(fake, batch))['response']['inlinedResponses']['inlinedResponses']


async def result_lines(fake: FakeProviders, batch: BatchJob) -> list[bytes]:
    file = (await operation(fake, batch))['response']['responsesFile']
    return (await call(fake, f'/download/v1beta/{file}:download', alt='media')).content.split(b'\n')[:-1]


async def results(fake: FakeProviders, batch: BatchJob) -> list[dict[str, Any]]:
    return [json.loads(line) for line in await result_lines(fake, batch)]


def text_of(result: dict[str, Any]) -> str:
    return result['response']['candidates'][0]['content']['parts'][0]['text']


async def test_a_batch_goes_through_every_state_as_the_clock_goes_by(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, *TEXTS)
    seen: list[tuple[str, str | None, str | None, bool]] = []
    for _ in range(11):
        shown = await operation(fake, batch)
        stats = shown['metadata']['batchStats']
        assert stats['requestCount'] == '10'
        done = stats.get('pendingRequestCount'), stats.get('successfulRequestCount')
        seen.append((shown['metadata']['state'], *done, 'done' in shown))
        await clock.advance(10)
    assert seen == [
        ('BATCH_STATE_PENDING', '10', None, False),
        ('BATCH_STATE_RUNNING', '10', None, False),
        ('BATCH_STATE_RUNNING', '9', '1', False),
        ('BATCH_STATE_RUNNING', '8', '2', False),
        ('BATCH_STATE_RUNNING', '7', '3', False),
        ('BATCH_STATE_RUNNING', '5', '5', False),
        ('BATCH_STATE_RUNNING', '4', '6', False),
        ('BATCH_STATE_RUNNING', '3', '7', False),
        ('BATCH_STATE_RUNNING', '2', '8', False),
        ('BATCH_STATE_RUNNING', None, '10', False),
        ('BATCH_STATE_SUCCEEDED', None, '10', True),
    ]


async def test_an_operation_looks_as_the_recorded_ones(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, 'hello', name='pab-x')
    kind = 'type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch'
    assert await operation(fake, batch) == {
        'name': batch.name,
        'metadata': {
            '@type': kind,
            'model': 'models/gemini-2.5-flash',
            'displayName': 'pab-x',
            'createTime': '2030-01-01T00:00:00.000000162Z',
            'updateTime': '2030-01-01T00:00:00.000000162Z',
            'batchStats': {'requestCount': '1', 'pendingRequestCount': '1'},
            'state': 'BATCH_STATE_PENDING',
            'name': batch.name,
        },
    }
    await clock.advance(1000)
    shown = await operation(fake, batch)
    output = shown['response']
    assert output.pop('@type') == kind + 'Output'
    assert shown['metadata'].pop('output') == output
    [result] = output['inlinedResponses']['inlinedResponses']
    assert result.keys() == {'response', 'metadata'}
    assert shown['metadata']['endTime'] == shown['metadata']['updateTime'] == '2030-01-01T00:01:40.000000162Z'
    assert shown['metadata']['batchStats'] == {'requestCount': '1', 'successfulRequestCount': '1'}


async def test_inline_results_stand_in_the_operation_in_order_with_their_metadata(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, *TEXTS)
    await clock.advance(100)
    dest = (await google.batches.get(name=batch.name or '')).dest
    assert dest
    keys = [result.metadata and result.metadata['key'] for result in dest.inlined_responses or ()]
    assert keys == [f'r{n}' for n in range(1, 11)]
    texts = [result.response and result.response.text for result in dest.inlined_responses or ()]
    assert texts == [f'Answer to: {text}' for text in TEXTS]


@pytest.mark.parametrize('metadata', [{'custom_id': '7', 'tag': 'x'}, {}, None])
async def test_whatever_the_metadata_are_they_come_back(
    fake: FakeProviders, clock: ManualClock, metadata: dict[str, str] | None
) -> None:
    item = {'request': request_of('a')} | ({} if metadata is None else {'metadata': metadata})
    order = {'batch': {'displayName': 'a', 'inputConfig': {'requests': {'requests': [item]}}}}
    name = (await call(fake, '/v1beta/models/m:batchGenerateContent', order)).json()['name']
    await clock.advance(100)
    [result] = await inline_results(fake, BatchJob(name=name))
    assert result.get('metadata') == metadata


async def test_fields_may_be_spelled_either_way(fake: FakeProviders, google: AsyncClient, clock: ManualClock) -> None:
    file = await upload(google, input_file(['a']))
    config = {'file_name': file.name}
    order = {'batch': {'display_name': 'a', 'input_config': config}}
    name = (await call(fake, '/v1/models/m:batchGenerateContent', order)).json()['name']
    await clock.advance(100)
    assert len(await results(fake, BatchJob(name=name))) == 1


async def test_results_of_a_file_are_a_file_with_the_keys_of_its_lines(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.answer = lambda request: FakeError(429, None, 'Slow down.') if request.custom_id == 'r2' else 'ok'
    batch = await submit_file(google, *TEXTS)
    await clock.advance(100)
    lines = await results(fake, batch)
    assert [line['key'] for line in lines] == [f'r{n}' for n in range(1, 11)]
    assert lines[1] == {'key': 'r2', 'error': {'code': 8, 'message': 'Slow down.'}}
    assert text_of(lines[2]) == 'ok'
    stats = (await operation(fake, batch))['metadata']['batchStats']
    assert stats == {'requestCount': '10', 'successfulRequestCount': '9', 'failedRequestCount': '1'}
    assert [row.custom_id for row in fake.google.billed if row.custom_id == 'r2'] == []


async def test_a_result_file_has_an_id_too_long_for_anything_but_a_download(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_file(google, 'a')
    await clock.advance(100)
    dest = (await google.batches.get(name=batch.name or '')).dest
    file = (dest and dest.file_name) or ''
    assert file == (batch.name or '').replace('batches/', 'files/batch-')
    for of_file in google.files.get, google.files.delete:
        with pytest.raises(ClientError, match='at most 40 characters') as caught:
            await of_file(name=file)
        assert (caught.value.code, caught.value.status) == (400, 'INVALID_ARGUMENT')
    content = await google.files.download(file=file)
    streamed = io.BytesIO()
    await google.files.download(file=file, destination=streamed)
    for path in '/v1', '/v1beta', '/download/v1', '/download/v1beta':
        assert (await call(fake, f'{path}/{file}:download', alt='media')).content == content == streamed.getvalue()


async def test_large_files_are_uploaded_in_pieces(fake: FakeProviders, google: AsyncClient, clock: ManualClock) -> None:
    content = input_file(['a' * 9_000_000, 'b'])
    batch = await submit_file(google, content=content)
    assert fake.google.count('upload_bytes') == 2
    await clock.advance(100)
    assert len(await results(fake, batch)) == 2


async def test_an_upload_can_be_gone_on_with_where_it_stopped(fake: FakeProviders) -> None:
    file = {'file': {'name': 'files/my-file', 'displayName': 'Mine'}}
    start = {'x-goog-api-key': 'test', 'x-goog-upload-command': 'start', 'x-goog-upload-header-content-length': '6'}
    async with httpx2.AsyncClient(verify=False, trust_env=False) as client:
        begun = await client.post(f'{fake.google.base_url}/upload/v1beta/files', json=file, headers=start)
        url = begun.headers['x-goog-upload-url']

        async def send(command: str, offset: int = 0, content: bytes = b'') -> httpx2.Response:
            headers = {'x-goog-upload-command': command, 'x-goog-upload-offset': str(offset)}
            return await client.post(url, content=content, headers=headers)

        assert (await send('upload', 0, b'abc')).headers['x-goog-upload-status'] == 'active'
        assert (await send('query')).headers['x-goog-upload-size-received'] == '3'
        assert (await send('upload', 0, b'abc')).status_code == 400
        assert (await send('finalize')).status_code == 400
        done = await send('upload, finalize', 3, b'def')
        assert done.headers['x-goog-upload-status'] == 'final'
        assert done.json()['file']['sizeBytes'] == '6'
        assert done.json()['file']['displayName'] == 'Mine'
        assert (await send('query')).status_code == 404
        again = await client.post(f'{fake.google.base_url}/upload/v1beta/files', json=file, headers=start)
        assert (again.status_code, again.json()['error']['status']) == (409, 'ALREADY_EXISTS')


async def test_files_are_listed_newest_first_and_gone_after_their_time(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_file(google, 'a')
    await clock.advance(200)
    second = await upload(google, b'{}')
    files = [file async for file in await google.files.list(config={'page_size': 1})]
    assert files[0].name == second.name
    assert [file.source and file.source.value for file in files] == ['UPLOADED', 'GENERATED', 'UPLOADED']
    with pytest.raises(ClientError, match='cannot be downloaded'):
        await google.files.download(file=second.name or '')
    await google.files.delete(name=second.name or '')
    with pytest.raises(ClientError) as caught:
        await google.files.get(name=second.name or '')
    assert (caught.value.code, caught.value.status) == (403, 'PERMISSION_DENIED')
    await clock.advance(timedelta(hours=48))
    [output] = [file async for file in await google.files.list()]
    assert output.download_uri
    assert await results(fake, batch)
    await clock.advance(timedelta(weeks=6))
    assert (await call(fake, f'/v1beta/{output.name}:download', alt='media')).status_code == 404


@pytest.mark.parametrize('place', ['both', 'metadata', 'response'])
async def test_the_output_stands_where_the_test_wants_it(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock, place: Any
) -> None:
    fake.google.output_in = place
    batch = await submit_inline(google, 'a')
    await clock.advance(100)
    shown = await operation(fake, batch)
    assert ('response' in shown, 'output' in shown['metadata']) == (place != 'metadata', place != 'response')


async def test_a_batch_can_succeed_before_it_says_which_file_its_results_are_in(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.output_delay = 60
    batch = await submit_file(google, 'a')
    await clock.advance(100)
    shown = await operation(fake, batch)
    assert (shown['metadata']['state'], shown['done']) == ('BATCH_STATE_SUCCEEDED', True)
    assert 'output' not in shown['metadata']
    assert 'response' not in shown
    await clock.advance(60)
    assert len(await results(fake, batch)) == 1


async def test_a_batch_of_a_file_can_be_answered_inline(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.answers_inline = True
    batch = await submit_file(google, 'a', 'b')
    await clock.advance(100)
    assert 'responsesFile' not in (await operation(fake, batch))['response']
    assert [result['metadata'] for result in await inline_results(fake, batch)] == [{'key': 'r1'}, {'key': 'r2'}]


async def test_results_can_be_written_in_the_other_ways_that_were_reported(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.answer = lambda request: FakeError(400, None, 'No.')
    fake.google.error_key, fake.google.key_in, fake.google.echo_metadata = 'status', 'metadata', False
    file, inline = await submit_file(google, 'a'), await submit_inline(google, 'a')
    await clock.advance(100)
    assert await results(fake, file) == [{'metadata': {'key': 'r1'}, 'status': RPC_STATUS}]
    assert await inline_results(fake, inline) == [{'status': RPC_STATUS}]


async def test_results_come_in_another_order_on_request(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.ordered = False
    batch = await submit_file(google, *TEXTS)
    await clock.advance(100)
    keys = [line['key'] for line in await results(fake, batch)]
    assert keys != sorted(keys, key=lambda key: int(key[1:]))
    assert set(keys) == {f'r{n}' for n in range(1, 11)}


async def test_a_batch_longer_than_48_hours_expires_with_no_results_at_all(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.processing = timedelta(hours=96)
    batch = await submit_inline(google, *TEXTS)
    await clock.advance(timedelta(hours=48))
    shown = await operation(fake, batch)
    assert shown['metadata']['state'] == 'BATCH_STATE_EXPIRED'
    assert (shown['done'], shown['error']['code']) == (True, 4)
    assert 'response' not in shown
    assert 'output' not in shown['metadata']
    assert len(fake.google.billed) == 5


async def test_a_cancelled_batch_has_an_error_and_no_results(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, *TEXTS)
    await clock.advance(50)
    reply = await call(fake, f'/v1beta/{batch.name}:cancel', {})
    assert (reply.status_code, reply.json()) == (200, {})
    assert (await operation(fake, batch))['metadata']['state'] == 'BATCH_STATE_RUNNING'
    await clock.advance(10)
    shown = await operation(fake, batch)
    assert shown['metadata']['state'] == 'BATCH_STATE_CANCELLED'
    assert shown['error']['code'] == 1
    assert 'response' not in shown
    # Too late a cancellation is no error.
    await google.batches.cancel(name=batch.name or '')


async def test_batches_that_ended_early_can_have_the_results_of_what_was_finished(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.partial_results = True
    fake.google.inject('batch', 'expire', done=2, seconds=100)
    batch = await submit_file(google, 'a', 'b', 'c')
    await clock.advance(100)
    shown = await operation(fake, batch)
    assert (shown['metadata']['state'], 'error' in shown) == ('BATCH_STATE_EXPIRED', False)
    assert [line['key'] for line in await results(fake, batch)] == ['r1', 'r2']


async def test_a_deleted_batch_stops_and_is_not_there_any_more(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, *TEXTS)
    await clock.advance(50)
    await google.batches.delete(name=batch.name or '')
    await clock.advance(1000)
    with pytest.raises(ClientError) as caught:
        await google.batches.get(name=batch.name or '')
    assert (caught.value.code, caught.value.status) == (404, 'NOT_FOUND')
    assert [job async for job in await google.batches.list()] == []
    assert len(fake.google.billed) == 5
    assert fake.google.batches[batch.name or ''].deleted


async def test_inline_results_are_kept_for_six_weeks(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    batch = await submit_inline(google, 'a')
    await clock.advance(timedelta(weeks=6))
    assert await inline_results(fake, batch)
    await clock.advance(100)
    assert 'response' not in await operation(fake, batch)


async def test_a_listing_is_newest_first_in_pages_and_leaves_out_inline_results(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    first, second = await submit_file(google, 'a'), await submit_inline(google, 'a')
    fake.google.inject('batch', 'hide', seconds=500)
    third = await submit_inline(google, 'a')
    await clock.advance(100)
    page = (await call(fake, '/v1beta/batches', pageSize=1)).json()
    assert [shown['name'] for shown in page['operations']] == [second.name]
    assert (page['operations'][0]['done'], 'response' in page['operations'][0]) == (True, False)
    await google.batches.delete(name=second.name or '')
    page = (await call(fake, '/v1beta/batches', pageSize=1, pageToken=page['nextPageToken'])).json()
    assert [shown['name'] for shown in page['operations']] == [first.name]
    assert page['operations'][0]['response']['responsesFile']
    assert 'nextPageToken' not in page
    await clock.advance(400)
    listed = [job.name async for job in await google.batches.list(config={'page_size': 1})]
    assert listed == [third.name, first.name]
    for query in 'pageToken=x', 'pageSize=-1':
        assert (await call(fake, f'/v1beta/batches?{query}')).status_code == 400


def inline(*items: Any) -> dict[str, Any]:
    return {'displayName': 'a', 'inputConfig': {'requests': {'requests': list(items)}}}


@pytest.mark.parametrize(
    ('order', 'status', 'message'),
    [
        (inline({'request': request_of('a')}) | {'displayName': ''}, 400, 'displayName'),
        ({'displayName': 'a'}, 400, 'inputConfig'),
        ({'displayName': 'a', 'inputConfig': {'fileName': 'files/a', 'requests': {'requests': []}}}, 400, 'either'),
        (inline(), 400, 'no requests'),
        (inline({'request': request_of('a')}, {'request': 'a'}), 400, 'Request 1'),
        (inline({'request': request_of('a'), 'metadata': 'a'}), 400, 'Request 0'),
        ({'displayName': 'a', 'inputConfig': {'fileName': 'files/nowhere'}}, 404, 'files/nowhere'),
        (inline({'request': request_of('a' * 20_000_000)}), 400, '20000000 bytes'),
    ],
)
async def test_what_cannot_be_a_batch_is_refused(
    fake: FakeProviders, order: dict[str, Any], status: int, message: str
) -> None:
    reply = await call(fake, '/v1beta/models/m:batchGenerateContent', {'batch': order})
    assert reply.status_code == reply.json()['error']['code'] == status
    assert message in reply.json()['error']['message']
    assert fake.google.batches == {}


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (b'not json\n', 'Line 1'),
        (input_file(['a']) + b'[]\n', 'Line 2'),
        (b'{"key":"r1"}\n', 'Line 1'),
        (b'{"key":"r1","request":NaN}\n', 'Line 1'),
        (b'{"key":"r1","request":"\xff"}\n', 'Line 1'),
        (b'\n', 'no requests'),
    ],
)
async def test_a_file_that_cannot_be_read_fails_its_batch(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock, content: bytes, message: str
) -> None:
    batch = await submit_file(google, content=content)
    assert (await operation(fake, batch))['metadata']['state'] == 'BATCH_STATE_PENDING'
    await clock.advance(10)
    shown = await operation(fake, batch)
    assert (shown['metadata']['state'], shown['done']) == ('BATCH_STATE_FAILED', True)
    assert shown['error']['code'] == 3
    assert message in shown['error']['message']
    assert fake.google.billed == []


async def test_lines_need_no_key_and_no_key_of_their_own(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    lines = [{'key': 'a', 'request': request_of('1')}] * 2 + [{'request': request_of('2')}, {'request': {}}]
    batch = await submit_file(google, content=b'\n\n'.join(json.dumps(line).encode() for line in lines))
    await clock.advance(100)
    first, second, third, fourth = await results(fake, batch)
    assert first['key'] == second['key'] == 'a'
    assert third.keys() == {'response'}
    # What is wrong with one request is wrong with its row alone.
    assert fourth['error']['code'] == 3
    assert Counter(row.custom_id for row in fake.google.billed) == {'a': 2, None: 1}


async def test_a_key_is_a_project_of_its_own(fake: FakeProviders, google: AsyncClient, clock: ManualClock) -> None:
    file = await upload(google, input_file(['a']))
    batch = await submit_file(google, 'a')
    order = {'batch': {'displayName': 'b', 'inputConfig': {'fileName': file.name}}}
    await clock.advance(100)
    output = (await operation(fake, batch))['response']['responsesFile']
    calls: list[tuple[str, Any, int]] = [
        (f'/v1beta/{batch.name}', None, 404),
        (f'/v1beta/{batch.name}:cancel', {}, 404),
        (f'/v1beta/{file.name}', None, 403),
        (f'/v1beta/{output}:download?alt=media', None, 404),
        ('/v1beta/models/m:batchGenerateContent', order, 404),
    ]
    for path, body, status in calls:
        assert (await call(fake, path, body, api_key='other')).status_code == status
        reply = await call(fake, path, body, api_key=None)
        assert (reply.status_code, reply.json()['error']['status']) == (403, 'PERMISSION_DENIED')
    assert (await call(fake, '/v1beta/batches', api_key='other')).json() == {}
    fake.google.projects = {'test': 'shared', 'third': 'shared'}
    await submit_inline(google, 'a')
    assert len((await call(fake, '/v1beta/batches', api_key=None, key='third')).json()['operations']) == 1
    assert 'third' not in repr(fake.google.calls)


async def test_a_project_has_only_so_many_batches_and_tokens_in_the_queue(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    fake.google.max_jobs = 2
    for _ in range(2):
        await submit_inline(google, 'a' * 400)
    with pytest.raises(APIError, match='At most 2') as caught:
        await submit_inline(google, 'a')
    assert (caught.value.code, caught.value.status) == (429, 'RESOURCE_EXHAUSTED')
    fake.google.max_jobs, fake.google.enqueued_token_limit = 100, 300
    with pytest.raises(APIError, match='300 enqueued tokens'):
        await submit_inline(google, 'a' * 400)
    await clock.advance(100)
    await submit_inline(google, 'a' * 400)
