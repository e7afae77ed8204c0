"""The lane of Mistral's batch API: what it sends, and how leniently it reads what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import httpx2
import jsonschema_rs
import pytest
import yaml
from mistralai.client import Mistral
from mistralai.client.utils import BackoffStrategy, RetryConfig
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UserError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.providers.mistral import MistralProvider

from pydantic_ai_batch import BatchModelRequests, Lane, lane_for, model_request_batch
from pydantic_ai_batch.lanes import mistral
from pydantic_ai_batch.lanes.base import TAG_KEY, ListingIncomplete, NotCreated, NotRun, Payload, Sought, Stray
from pydantic_ai_batch.lanes.mistral import MistralLane
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall, ManualClock, auto_answer
from pydantic_ai_batch.testing.multipart import read_form

from .server import Server

SHARED = Path(__file__).resolve().parents[2] / '..' / 'shared'
SPEC = SHARED / 'specs' / 'mistral_batch_files.openapi.json'
RECORDING = SHARED / 'recordings' / 'ruby_llm' / 'mistral_mistral-small-latest_chats.yml'

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"model":"mistral-small-latest"}'
TAG = 't' * 20


def model_with(client: Mistral) -> MistralModel:
    return MistralModel('mistral-small-latest', provider=MistralProvider(mistral_client=client))


@pytest.fixture
async def http_client(server: Server) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as client:
        yield client


@pytest.fixture
def lane(http_client: httpx2.AsyncClient) -> Lane:
    # A client that would repeat what fails.
    retry = RetryConfig('backoff', BackoffStrategy(1, 2, 1.0, 50), retry_connection_errors=True)
    client = Mistral(api_key='secret', server_url='http://provider.test/', async_client=http_client, retry_config=retry)
    return lane_for(model_with(client))


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch is too large to be sent inline."""
    monkeypatch.setattr(mistral, 'INLINE_BYTES', 0)


def job_object(**changes: Any) -> dict[str, Any]:
    return {
        'id': 'job-1',
        'object': 'batch',
        'input_files': ['file-made'],
        'metadata': None,
        'endpoint': '/v1/chat/completions',
        'model': 'mistral-small-latest',
        'output_file': None,
        'error_file': None,
        'errors': [],
        'outputs': None,
        'status': 'RUNNING',
        'created_at': int(CREATED.timestamp()),
        'total_requests': 3,
        'completed_requests': 1,
        'succeeded_requests': 1,
        'failed_requests': 0,
        'started_at': None,
        'completed_at': None,
        **changes,
    }


def handle(**details: Any) -> Batch:
    return Batch(
        id='job-1',
        model_name='mistral-small-latest',
        provider_name='mistral',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details=details,
    )


def ok(custom_id: str = 'a-0', **response: Any) -> dict[str, Any]:
    response = {'status_code': 200, 'body': {'id': 'r'}, **response}
    return {'id': 'batch-1', 'custom_id': custom_id, 'response': response, 'error': None}


async def results(lane: Lane, batch: Batch) -> list[BatchResult | Stray]:
    return [result async for result in lane.results(batch)]


async def read(lane: Lane, server: Server, *lines: bytes | dict[str, Any]) -> list[BatchResult | Stray]:
    content = b'\n'.join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    server.answer = lambda request: httpx2.Response(200, content=content)
    return await results(lane, handle(output_file='file-out'))


# What it sends


async def test_a_small_batch_is_one_call_with_the_requests_as_they_were_encoded(lane: Lane, server: Server):
    server.replies(job_object(status='QUEUED', total_requests=0, succeeded_requests=0))
    with Payload(lane, GROUP, tag=TAG) as payload:
        assert [payload.add(b'{"n": 1.0}'), payload.add('{"n":"é\u2028"}'.encode())] == [f'{TAG}-0', f'{TAG}-1']
        batch = await lane.create(payload)
    (call,) = server.calls
    assert (call.method, call.url.path) == ('POST', '/v1/batch/jobs')
    assert b'{"n": 1.0}' in call.content
    assert json.loads(call.content) == {
        'endpoint': '/v1/chat/completions',
        'model': 'mistral-small-latest',
        'metadata': {'pydantic_ai_batch': TAG},
        'timeout_hours': 24,
        'requests': [
            {'custom_id': f'{TAG}-0', 'body': {'n': 1.0}},
            {'custom_id': f'{TAG}-1', 'body': {'n': 'é\u2028'}},
        ],
    }
    assert (batch.id, batch.status, batch.group, batch.request_count) == ('job-1', 'in_progress', GROUP, 2)
    assert lane.job_status(batch) == 'submitted'


@pytest.mark.usefixtures('files')
async def test_a_large_batch_is_an_upload_and_a_create(lane: Lane, server: Server):
    server.replies({'id': 'file-in'}, job_object())
    with Payload(lane, GROUP, tag=TAG) as payload:
        payload.add(b'{"n":1}')
        payload.add(b'{"n":2}')
        batch = await lane.create(payload)
    upload, create = server.calls
    assert [(call.method, call.url.path) for call in (upload, create)] == [
        ('POST', '/v1/files'),
        ('POST', '/v1/batch/jobs'),
    ]
    form = read_form(upload.headers['content-type'], upload.content)
    assert form['purpose'].content == b'batch'
    assert form['file'].filename == f'pab-{TAG}.jsonl'
    assert form['file'].content == b'{"custom_id":"%b-0","body":{"n":1}}\n{"custom_id":"%b-1","body":{"n":2}}\n' % (
        TAG.encode(),
        TAG.encode(),
    )
    assert json.loads(create.content) == {
        'endpoint': '/v1/chat/completions',
        'model': 'mistral-small-latest',
        'metadata': {'pydantic_ai_batch': TAG},
        'timeout_hours': 24,
        'input_files': ['file-in'],
    }
    assert batch.provider_details is not None
    assert batch.provider_details['input_file'] == 'file-in'


@pytest.mark.parametrize(('count', 'calls'), [(9_999, 1), (10_000, 2)])
async def test_ten_thousand_requests_are_a_file_however_small(count: int, calls: int, lane: Lane, server: Server):
    server.replies(*[{'id': 'file-in'}] * (calls - 1), job_object())
    with Payload(lane, GROUP) as payload:
        for _ in range(count):
            payload.add(b'{}')
        await lane.create(payload)
    assert len(server.calls) == calls


def test_the_tag_fits_into_mistrals_metadata():
    assert 1 <= len(TAG_KEY) <= 32


@pytest.mark.parametrize('hours', [1, 24, 48, 167])
async def test_a_window_is_asked_for_in_hours(hours: int, lane: Lane, server: Server):
    server.replies(job_object())
    lane.ask(timedelta(hours=hours))
    with Payload(lane, await lane.identity()) as payload:
        payload.add(b'{}')
        await lane.create(payload)
    assert json.loads(server.calls[0].content)['timeout_hours'] == hours


@pytest.mark.parametrize('hours', [0, 168, 1.5])
async def test_a_window_that_mistral_does_not_take_is_refused(hours: float, lane: Lane):
    with pytest.raises(UserError, match='a whole number of hours from 1 to 167'):
        lane.ask(timedelta(hours=hours))


@pytest.mark.parametrize(
    'call', ['create', 'status', 'results', 'cancel', 'find', 'listing', 'recall', 'discard', 'clean_up']
)
@pytest.mark.parametrize('status', [301, 408, 409, 429, 500])
async def test_every_call_is_sent_once_whatever_the_client_says(call: str, status: int, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'message': 'no'})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        payload.receipt['input_file'] = 'file-in'
        batch = handle(output_file='file-out', input_file='file-in', status='SUCCESS')

        async def listed() -> list[Batch]:
            return [batch async for batch in lane.listing()]

        calls: dict[str, Callable[[], Any]] = {
            'create': lambda: lane.create(payload),
            'status': lambda: lane.status(batch),
            'results': lambda: results(lane, batch),
            'cancel': lambda: lane.cancel(batch),
            'find': lambda: lane.find(payload, since=CREATED),
            'listing': listed,
            'recall': lambda: lane.recall(payload, since=CREATED),
            'discard': lambda: lane.discard(payload),
            'clean_up': lambda: lane.clean_up(batch, batch),
        }
        if call in ('discard', 'clean_up'):
            await calls[call]()
        else:
            with pytest.raises(ModelHTTPError) as raised:
                await calls[call]()
            assert raised.value.status_code == status
    assert len(server.calls) == 1
    assert server.calls[0].headers['user-agent'].startswith('pydantic-ai')
    assert server.calls[0].headers['authorization'] == 'Bearer secret'


@pytest.mark.usefixtures('files')
@pytest.mark.parametrize('reply', [None, {}, {'id': ''}, {'id': 5}, [], 'file-1'])
async def test_an_upload_without_a_file_id_is_no_upload(reply: Any, lane: Lane, server: Server):
    server.replies(reply)
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        with pytest.raises(NotCreated):
            await lane.create(payload)
    assert payload.receipt == {}


@pytest.mark.usefixtures('files')
async def test_a_file_that_is_up_is_not_sent_up_again(lane: Lane, server: Server):
    def answer(request: httpx2.Request) -> httpx2.Response:
        upload = request.url.path == '/v1/files'
        return httpx2.Response(200, json={'id': 'file-in'}) if upload else httpx2.Response(503)

    server.answer = answer
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        for _ in range(2):
            with pytest.raises(ModelHTTPError):
                await lane.create(payload)
    assert [call.url.path for call in server.calls] == ['/v1/files', '/v1/batch/jobs', '/v1/batch/jobs']


async def test_only_the_uploaded_input_of_a_job_that_was_run_is_deleted(lane: Lane, server: Server):
    server.replies({})
    for status in ('TIMEOUT_EXCEEDED', 'CANCELLED', 'FAILED', 'RUNNING'):
        await lane.clean_up(handle(input_file='file-in'), handle(status=status, input_file='file-in'))
    await lane.clean_up(handle(), handle(status='SUCCESS', input_file='a file that others named'))
    assert server.calls == []
    await lane.clean_up(handle(input_file='file-in'), handle(status='SUCCESS'))
    with Payload(lane, GROUP) as payload:
        payload.receipt['input_file'] = 'file-of-none'
        await lane.discard(payload)
        await lane.discard(payload)
    assert [(call.method, call.url.path) for call in server.calls] == [
        ('DELETE', '/v1/files/file-in'),
        ('DELETE', '/v1/files/file-of-none'),
    ]


@pytest.mark.parametrize('made_up', ['../files/x', 'a/b', '', 'é', 'a?b'])
async def test_an_id_that_is_none_is_not_asked_for(made_up: str, lane: Lane, server: Server):
    batch = Batch(**{**vars(handle()), 'id': made_up})
    for call in (lane.status, lane.cancel):
        with pytest.raises(UserError):
            await call(batch)
    if made_up:
        with pytest.raises(UserError):
            await results(lane, handle(output_file=made_up))
    assert server.calls == []


# Whose calls they are


def client_with(http_client: httpx2.AsyncClient, **settings: Any) -> Mistral:
    return Mistral(**{'api_key': 'secret', 'async_client': http_client, **settings})


async def test_requests_of_other_keys_addresses_or_models_are_no_group(http_client: httpx2.AsyncClient):
    same = await lane_for(model_with(client_with(http_client))).identity()
    assert await lane_for(model_with(client_with(http_client))).identity() == same
    assert 'secret' not in same
    others: list[Model] = [
        model_with(client_with(http_client, api_key='other')),
        model_with(client_with(http_client, server='eu')),
        model_with(client_with(http_client, server_url='http://provider.test')),
        MistralModel('mistral-large-latest', provider=MistralProvider(mistral_client=client_with(http_client))),
    ]
    async with (
        httpx2.AsyncClient(headers={'x-proxy-key': 'k'}) as by_header,
        httpx2.AsyncClient(params={'key': 'k'}) as by_query,
    ):
        others += [model_with(client_with(proxied)) for proxied in (by_header, by_query)]
        groups = [await lane_for(model).identity() for model in others]
    assert len({same, *groups}) == 1 + len(others)


async def test_what_a_transport_says_of_itself_is_no_credential(http_client: httpx2.AsyncClient):
    same = await lane_for(model_with(client_with(http_client))).identity()
    async with httpx2.AsyncClient(headers={'User-Agent': 'x', 'Authorization': 'is replaced'}) as other:
        assert await lane_for(model_with(client_with(other))).identity() == same


async def test_the_key_is_looked_for_where_the_sdk_looks_for_it(
    http_client: httpx2.AsyncClient, server: Server, monkeypatch: pytest.MonkeyPatch
):
    server.replies(job_object())
    lane = lane_for(model_with(client_with(http_client, api_key=None, server_url='http://provider.test')))
    monkeypatch.delenv('MISTRAL_SA_TOKEN_PATH', raising=False)
    monkeypatch.delenv('MISTRAL_API_KEY', raising=False)
    await lane.status(handle())
    monkeypatch.setenv('MISTRAL_API_KEY', 'from-outside')
    await lane.status(handle())
    assert [call.headers.get('authorization') for call in server.calls] == [None, 'Bearer from-outside']


async def test_a_credential_that_is_made_for_each_call_is_refused(
    http_client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
):
    async with httpx2.AsyncClient(auth=('user', 'password')) as signing:
        monkeypatch.setenv('MISTRAL_SA_TOKEN_PATH', 'token')
        clients = {
            'calls a function': client_with(http_client, api_key=lambda: 'secret'),
            'reads a token from a file': client_with(http_client, api_key=None),
            'no API key': client_with(http_client, api_key=''),
            '`auth` of its HTTP client': client_with(signing),
        }
        for does, client in clients.items():
            lane = lane_for(model_with(client))
            with pytest.raises(UserError, match=does):
                await lane.identity()
            with pytest.raises(UserError, match=does):
                await lane.encode(asking('hello'))


# How it reads a job


@pytest.mark.parametrize(
    ('word', 'status', 'of_job'),
    [
        ('QUEUED', 'in_progress', 'submitted'),
        ('RUNNING', 'in_progress', 'in_progress'),
        ('CANCELLATION_REQUESTED', 'canceling', 'canceling'),
        ('SUCCESS', 'ended', 'ended'),
        ('FAILED', 'ended', 'failed'),
        ('TIMEOUT_EXCEEDED', 'ended', 'expired'),
        ('CANCELLED', 'ended', 'canceled'),
        ('success', 'ended', 'ended'),
        ('Queued', 'in_progress', 'submitted'),
        (None, 'in_progress', 'in_progress'),
        (7, 'in_progress', 'in_progress'),
        ('ON_HOLIDAY', 'in_progress', 'in_progress'),
    ],
)
async def test_states_are_read_in_any_case_and_unknown_ones_run(
    word: Any, status: str, of_job: str, lane: Lane, server: Server
):
    server.replies(job_object(status=word))
    batch = await lane.status(handle())
    assert (batch.status, lane.job_status(batch)) == (status, of_job)


@pytest.mark.parametrize(
    ('signs', 'status'),
    [
        ({'completed_at': 1}, 'ended'),
        ({'succeeded_requests': 2, 'failed_requests': 1, 'output_file': 'file-out'}, 'ended'),
        ({'succeeded_requests': 3, 'outputs': [{}]}, 'ended'),
        ({'failed_requests': 3, 'succeeded_requests': 0, 'error_file': 'file-err'}, 'ended'),
        # Its results are still being written.
        ({'succeeded_requests': 3}, 'in_progress'),
        ({'total_requests': 0, 'succeeded_requests': 0, 'output_file': 'file-out'}, 'in_progress'),
    ],
)
async def test_a_job_with_an_unknown_state_that_shows_its_end_has_ended(
    signs: dict[str, Any], status: str, lane: Lane, server: Server
):
    server.replies(job_object(status='ARCHIVED', **signs))
    assert (await lane.status(handle())).status == status


async def test_a_job_of_nulls_is_one_of_which_nothing_is_known_yet(lane: Lane, server: Server):
    server.replies({**dict.fromkeys(job_object()), 'status': 'SUCCESS'})
    batch = await lane.status(handle(input_file='file-in'))
    assert (batch.id, batch.created_at, batch.request_count) == ('job-1', CREATED, 3)
    assert batch.provider_details == {'status': 'SUCCESS', 'input_file': 'file-in'}
    assert lane.readable(batch) == 0
    assert await results(lane, batch) == []


async def test_a_job_without_an_id_is_a_transport_fault(lane: Lane, server: Server):
    server.replies({key: value for key, value in job_object().items() if key != 'id'})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        with pytest.raises(ModelConnectionError):
            await lane.create(payload)
    assert (await lane.status(handle())).id == 'job-1'


@pytest.mark.parametrize('reply', [b'', b'[]', b'null', b'"ok"', b'<html>', b'\xff'])
async def test_a_reply_that_is_no_object_is_a_transport_fault(reply: bytes, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(200, content=reply)
    with pytest.raises(ModelConnectionError):
        await lane.status(handle())


# How it reads results


@pytest.mark.parametrize(
    'line',
    [
        ok(),
        ok(status_code='200'),
        ok(status_code=None),
        ok(status_code=201),
        ok(body='{"id": "r"}'),
        {**ok(), 'error': {}},
    ],
)
async def test_a_success_is_one_in_every_shape(line: dict[str, Any], lane: Lane, server: Server):
    (result,) = await read(lane, server, line)
    assert isinstance(result, BatchResult)
    assert (result.custom_id, result.status) == ('a-0', 'succeeded')
    assert json.loads(result.body or '') == {'id': 'r'}


@pytest.mark.parametrize(
    ('line', 'status', 'part'),
    [
        ({'custom_id': 'a', 'response': {'status_code': 400, 'body': {'message': 'm'}}}, 400, 'm'),
        ({'custom_id': 'a', 'response': {'status_code': '429', 'body': '{"code":"c"}'}}, 429, 'c'),
        ({'custom_id': 'a', 'response': {'status_code': 502, 'body': 'Bad gateway'}}, 502, 'Bad gateway'),
        ({'custom_id': 'a', 'response': {'status_code': 500, 'body': None}, 'error': {'message': 'why'}}, 500, 'why'),
        ({'custom_id': 'a', 'response': {'status_code': 200, 'body': None}}, 500, 'no reason'),
        ({'custom_id': 'a', 'response': None, 'error': {'message': 'm'}}, 500, 'm'),
        ({'custom_id': 'a', 'response': None, 'error': 'just text'}, 500, 'just text'),
        ({'custom_id': 'a'}, 500, 'no reason'),
    ],
)
async def test_an_error_keeps_its_status_and_its_words(
    line: dict[str, Any], status: int, part: str, lane: Lane, server: Server
):
    (result,) = await read(lane, server, line)
    assert isinstance(result, BatchResult)
    assert result.status == 'errored'
    body = json.loads(result.body or '')
    assert body['status_code'] == status
    assert part in json.dumps(body['body'])


@pytest.mark.parametrize(
    ('line', 'custom_id'),
    [
        (b'{"custom_id":null,"response":{}}', None),
        (b'{"custom_id":7}', None),
        (b'[]', None),
        (b'not json', None),
        (b'{"custom_id":"a-1","response":{"status_code":200,"bo', 'a-1'),
        (b'{"custom_id" : "a-1", \xff\xfe}', 'a-1'),
    ],
)
async def test_a_line_that_is_no_result_is_set_aside_with_the_one_id_it_has(
    line: bytes, custom_id: str | None, lane: Lane, server: Server
):
    first, result, last = await read(lane, server, ok('before'), line, ok('after'))
    assert isinstance(first, BatchResult)
    assert isinstance(last, BatchResult)
    assert isinstance(result, Stray)
    assert result.custom_id == custom_id


async def test_the_output_is_read_before_the_errors(lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(200, content=json.dumps(ok(request.url.path.split('/')[-2])))
    read = await results(lane, handle(error_file='err', output_file='out'))
    assert [result.custom_id for result in read] == ['out', 'err']


async def ended(lane: Lane, server: Server, **job: Any) -> tuple[list[str | None], list[str]]:
    """The IDs that are read of a job that a status shows to have ended, and the paths that they were asked for at."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.startswith('/v1/files'):
            return httpx2.Response(200, content=json.dumps(ok(f'of-{request.url.path.split("/")[-2]}')))
        inline = {'outputs': [ok('asked for')]} if request.url.params.get('inline') else {}
        return httpx2.Response(200, json=job_object(status='SUCCESS', **{**job, **inline}))

    server.answer = answer
    read = await results(lane, await lane.status(handle()))
    return [result.custom_id for result in read], [str(call.url.raw_path, 'ascii') for call in server.calls[1:]]


async def test_answers_in_the_job_are_not_downloaded_again(lane: Lane, server: Server):
    outputs = [ok('a-0'), ok('a-1')]
    ids, paths = await ended(lane, server, outputs=outputs, succeeded_requests=2, output_file='out')
    assert (ids, paths) == (['a-0', 'a-1'], [])


async def test_errors_beside_answers_in_the_job_are_downloaded(lane: Lane, server: Server):
    ids, paths = await ended(lane, server, outputs=[ok('a-0')], output_file='out', error_file='err')
    assert (ids, paths) == (['a-0', 'of-err'], ['/v1/files/err/content'])


async def test_a_job_that_has_not_all_its_answers_in_it_is_read_from_its_file(lane: Lane, server: Server):
    ids, paths = await ended(lane, server, outputs=[ok('a-0')], succeeded_requests=2, output_file='out')
    assert (ids, paths) == (['of-out'], ['/v1/files/out/content'])


async def test_answers_that_are_nowhere_are_asked_for(lane: Lane, server: Server):
    ids, paths = await ended(lane, server, outputs=None, succeeded_requests=1)
    assert (ids, paths) == (['asked for'], ['/v1/batch/jobs/job-1?inline=true'])


async def test_what_is_no_answer_among_those_in_the_job_is_set_aside(lane: Lane, server: Server):
    server.replies(job_object(status='SUCCESS', outputs=[None, 'text', [], {}, ok('a-0')]))
    *strays, result = await results(lane, await lane.status(handle()))
    assert len(strays) == 4
    assert all(isinstance(each, Stray) for each in strays)
    assert result.custom_id == 'a-0'


async def test_a_download_that_breaks_is_a_transport_fault_after_the_lines_it_brought(lane: Lane, server: Server):
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(ok()).encode() + b'\n{"cust'
        raise httpx2.ReadError('gone')

    server.answer = lambda request: httpx2.Response(200, content=body())
    lines = lane.results(handle(output_file='file-out'))
    assert isinstance(await anext(lines), BatchResult)
    with pytest.raises(ModelConnectionError) as raised:
        await anext(lines)
    assert raised.value.phase == 'read'


async def test_a_download_that_is_broken_off_is_closed_at_once(lane: Lane, server: Server):
    class Body(httpx2.AsyncByteStream):
        closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield json.dumps(ok()).encode() + b'\n'

        async def aclose(self) -> None:
            self.closed = True

    body = Body()
    server.answer = lambda request: httpx2.Response(200, stream=body)
    lines = lane.results(handle(output_file='file-out'))
    await anext(lines)
    assert not body.closed
    await lines.aclose()
    assert body.closed


# Rows without a line


@pytest.mark.parametrize(('state', 'status'), [('TIMEOUT_EXCEEDED', 'expired'), ('CANCELLED', 'canceled')])
async def test_the_end_of_the_job_is_the_end_of_its_unlisted_rows(state: str, status: Any, lane: Lane):
    assert lane.unlisted(handle(status=state), 'a-0') == BatchResult(custom_id='a-0', status=status)


@pytest.mark.parametrize('details', [{'status': 'SUCCESS'}, {}, {'status': 'FAILED'}, {'status': 'WEIRD'}])
async def test_a_row_that_nothing_explains_was_not_run(details: dict[str, Any], lane: Lane):
    result = lane.unlisted(handle(**details), 'a-0')
    assert isinstance(result, NotRun)
    assert 'job-1' in result.reason


@pytest.mark.parametrize(
    ('errors', 'status'),
    [
        ([{'message': 'Invalid model', 'count': 3}], 400),
        ([{'message': 'One'}, {'message': 'Two', 'count': 2}], 400),
        ([{'message': 'Internal Server Error', 'count': 1}], 500),
        ([{'message': 'Rate limit exceeded'}], 429),
        ([{'message': 'The internal model name is wrong', 'count': 3}], 400),
        ([{'message': 'The timeout of the job is unavailable', 'count': 3}], 400),
    ],
)
async def test_an_error_of_all_requests_is_every_rows(errors: list[Any], status: int, lane: Lane):
    result = lane.unlisted(handle(status='FAILED', errors=errors), 'a-0')
    assert isinstance(result, BatchResult)
    body = json.loads(result.body or '')
    assert body['status_code'] == status
    assert errors[0]['message'] in body['body']['message']
    with pytest.raises(ModelHTTPError) as raised:
        await lane.decode(result, asking('hello'))
    assert raised.value.status_code == status


async def test_an_error_of_some_requests_has_them_sent_in_parts(lane: Lane):
    result = lane.unlisted(handle(status='FAILED', errors=[{'message': 'No `messages`', 'count': 1}]), 'a-0')
    assert isinstance(result, NotRun)
    assert (result.cause, result.again) == ('invalid', False)


# Finding a batch


def page(*jobs: dict[str, Any], total: Any = None) -> dict[str, Any]:
    return {'object': 'list', 'data': list(jobs), 'total': len(jobs) if total is None else total}


def at(minutes: int, number: int, **changes: Any) -> dict[str, Any]:
    created = CREATED + timedelta(minutes=minutes)
    return job_object(id=f'job-{number}', created_at=int(created.timestamp()), **changes)


async def find(lane: Lane, *, since: datetime = CREATED) -> list[str]:
    with Payload(lane, GROUP, tag='mine') as payload:
        payload.receipt['input_file'] = 'file-in'
        return [batch.id for batch in await lane.find(payload, since=since)]


MINE = {'metadata': {'pydantic_ai_batch': 'mine', 'more': 'x'}}


async def test_jobs_are_found_by_tag_on_any_page_oldest_first(lane: Lane, server: Server):
    server.replies(page(at(9, 9), at(8, 8, **MINE), total=4), page(at(7, 7), at(6, 6, **MINE), total=4))
    assert await find(lane) == ['job-6', 'job-8']
    assert [dict(call.url.params) for call in server.calls] == [
        {'page': '0', 'page_size': '100', 'order_by': '-created'},
        {'page': '1', 'page_size': '100', 'order_by': '-created'},
    ]


async def test_a_job_that_moved_to_the_next_page_is_one(lane: Lane, server: Server):
    server.replies(page(at(9, 9), at(8, 8, **MINE), total=4), page(at(8, 8, **MINE), at(7, 7), total=4))
    assert await find(lane) == ['job-8']
    assert [batch.id async for batch in lane.listing()] == ['job-8', 'job-7']


async def test_a_job_whose_metadata_was_dropped_is_found_by_its_file(lane: Lane, server: Server):
    server.replies(page(at(1, 1, input_files=['file-in']), at(0, 0)))
    assert await find(lane) == ['job-1']


async def test_the_listing_is_read_no_further_back_than_asked_for(lane: Lane, server: Server):
    server.replies(page(at(1, 5), at(-1, 4), total=900))
    assert await find(lane) == []
    assert len(server.calls) == 1


@pytest.mark.parametrize('empty', [{'object': 'list', 'data': [], 'total': 0}, {'total': 0}])
async def test_an_empty_listing_proves_that_there_is_no_job(empty: Any, lane: Lane, server: Server):
    server.replies(empty)
    assert await find(lane) == []


@pytest.mark.parametrize(
    'pages',
    [
        [page(at(1, 1), total=9)],
        [page(at(1, 1), total=9), page(total=9)],
        [page(at(2, 2), total=9), page(at(1, 1), total=8)],
        [{'data': [], 'total': None}],
        [{'data': None, 'total': 0}],
        [{'data': ['job'], 'total': 1}],
        [{'data': [{'status': 'RUNNING'}], 'total': 1}],
        [{'total': 3}],
        [{}],
    ],
)
async def test_a_listing_that_is_not_whole_proves_nothing(
    pages: list[Any], lane: Lane, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mistral, '_MAX_PAGES', 5)
    server.replies(*pages)
    with pytest.raises(ListingIncomplete):
        await find(lane)


async def test_an_uploaded_file_is_found_by_its_name_on_any_page(lane: Lane, server: Server):
    other, mine = {'id': 'file-1', 'filename': 'pab-other.jsonl'}, {'id': 'file-2', 'filename': 'pab-mine.jsonl'}
    server.replies({'data': [other], 'total': 2}, {'data': [mine], 'total': 2})
    sought = Sought('mine', GROUP)
    await lane.recall(sought, since=CREATED)
    assert sought.receipt == {'input_file': 'file-2'}
    assert [dict(call.url.params) for call in server.calls] == [
        {'page': '0', 'page_size': '100', 'purpose': 'batch'},
        {'page': '1', 'page_size': '100', 'purpose': 'batch'},
    ]


@pytest.mark.parametrize('reply', [{'data': [], 'total': 0}, {'data': None}, {}, {'data': [{'id': 'x'}], 'total': 1}])
async def test_a_file_that_is_not_there_is_not_found(reply: Any, lane: Lane, server: Server):
    server.replies(reply)
    sought = Sought('mine', GROUP)
    await lane.recall(sought, since=CREATED)
    assert sought.receipt == {}


# Errors


@pytest.mark.parametrize(
    ('status', 'body', 'hinted'),
    [
        (404, b'Not Found', True),
        (404, b'{"detail":"Not Found"}', True),
        (405, b'{"message":"Method not allowed"}', True),
        (404, b'{"message":"No such job"}', False),
        (404, b'{"detail":"Job not found"}', False),
        (400, b'Bad Request', False),
    ],
)
async def test_a_server_without_the_api_is_named_with_its_base_url(
    status: int, body: bytes, hinted: bool, lane: Lane, server: Server
):
    server.answer = lambda request: httpx2.Response(status, content=body)
    for path, asked in (('/v1/batch', lane.status(handle())), ('/v1/files', results(lane, handle(output_file='x')))):
        with pytest.raises(ModelHTTPError) as raised:
            await asked
        assert (f'The server at http://provider.test may have no `{path}`' in str(raised.value)) is hinted


@pytest.mark.parametrize(
    ('status', 'category'),
    [(401, ModelAuthenticationError), (403, ModelAuthenticationError), (429, ModelRateLimitError)],
)
async def test_errors_have_the_frameworks_category_and_the_providers_words(
    status: int, category: type[ModelHTTPError], lane: Lane, server: Server
):
    error = {'object': 'error', 'message': 'no', 'code': '1300', 'type': 'some_type'}
    server.answer = lambda request: httpx2.Response(status, json=error, headers={'retry-after': '7'})
    with pytest.raises(category) as raised:
        await lane.status(handle())
    assert (raised.value.provider_error_code, raised.value.provider_error_type) == ('1300', 'some_type')
    assert (raised.value.headers or {})['retry-after'] == '7'
    assert 'secret' not in f'{raised.value!r} {raised.value} {vars(raised.value)} {lane!r}'


@pytest.mark.parametrize(
    ('fault', 'phase', 'kind'),
    [
        (httpx2.ConnectError('x'), 'connect', ModelConnectionError),
        (httpx2.ConnectTimeout('x'), 'connect', ModelTimeoutError),
        (httpx2.PoolTimeout('x'), 'pool', ModelTimeoutError),
        (httpx2.ReadTimeout('x'), 'read', ModelTimeoutError),
        (httpx2.WriteError('x'), 'write', ModelConnectionError),
        (ValueError('of a transport of the user'), None, ModelConnectionError),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_transports_fault_tells_its_phase(
    fault: Exception, phase: str, kind: type[ModelAPIError], lane: Lane, server: Server
):
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise fault

    server.answer = answer
    with pytest.raises(kind) as raised:
        await lane.status(handle())
    assert isinstance(raised.value, ModelConnectionError)
    assert raised.value.phase == phase


@pytest.mark.parametrize(('milliseconds', 'seconds'), [(None, 300.0), (1_500, 1.5)])
async def test_a_call_stands_still_no_longer_than_the_client_lets_it(
    milliseconds: int | None, seconds: float, http_client: httpx2.AsyncClient, server: Server
):
    server.replies(job_object())
    client = client_with(http_client, server_url='http://provider.test', timeout_ms=milliseconds)
    await lane_for(model_with(client)).status(handle())
    assert server.calls[0].extensions['timeout']['read'] == seconds


async def test_a_client_of_the_older_package_of_httpx_is_asked_through_too():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith('/v1/files'):
            raise httpx.ReadTimeout('slow')
        return httpx.Response(200, json=job_object())

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as older:
        client = Mistral(api_key='secret', server_url='http://provider.test', async_client=cast('Any', older))
        lane = lane_for(model_with(client))
        assert json.loads((await lane.encode(asking('hello'))).body)['model'] == 'mistral-small-latest'
        assert (await lane.status(handle())).status == 'in_progress'
        with pytest.raises(ModelTimeoutError) as raised:
            await results(lane, handle(output_file='file-out'))
        assert raised.value.phase == 'read'


# Encoding and decoding


def asking(text: str) -> BatchRequest:
    return BatchRequest(custom_id='', messages=[ModelRequest.user_text_prompt(text)])


async def test_a_request_is_the_live_one_without_a_word_on_streaming(lane: Lane, server: Server):
    encoded = await lane.encode(asking('hello'))
    body = json.loads(encoded.body)
    assert (body['model'], body['messages'][-1]['content']) == ('mistral-small-latest', 'hello')
    assert 'stream' not in body
    assert server.calls == []


async def test_a_context_that_is_too_long_is_told_as_it_is_live(lane: Lane):
    error = {'object': 'error', 'message': 'too long', 'type': 'invalid_request', 'code': '3051'}
    body = json.dumps({'status_code': 400, 'body': error})
    with pytest.raises(ModelContextWindowExceededError):
        await lane.decode(BatchResult(custom_id='a', status='errored', body=body), asking('hello'))


# The fake, the spec and the recording


@pytest.mark.parametrize('inline', [True, False])
async def test_the_fake_and_the_lane_agree_on_a_whole_life(
    inline: bool, fake: FakeProviders, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    if not inline:
        monkeypatch.setattr(mistral, 'INLINE_BYTES', 0)
    async with fake.mistral.client() as client:
        lane = lane_for(model_with(client))
        with Payload(lane, await lane.identity()) as payload:
            encoded = await lane.encode(asking('hello'))
            wire_id = payload.add(encoded.body.encode())
            created = await lane.create(payload)
            assert [found.id for found in await lane.find(payload, since=created.created_at)] == [created.id]
            sought = Sought(payload.tag, payload.group)
            await lane.recall(sought, since=created.created_at)
            assert sought.receipt == payload.receipt
        await clock.advance(timedelta(hours=1))
        batch = await lane.status(created)
        assert batch.status == 'ended'
        (result,) = await results(lane, batch)
        assert isinstance(result, BatchResult)
        assert result.custom_id == wire_id
        response = await lane.decode(result, asking('hello'))
        assert response.text == 'Answer to: hello'
        assert (response.provider_details or {})['processing'] == 'batch'
        await lane.clean_up(created, batch)
    assert fake.mistral.count('download') == fake.mistral.count('delete') == (0 if inline else 1)


async def test_a_wrong_request_that_is_not_named_is_found_by_sending_parts(clock: ManualClock):
    def answer(request: FakeRequest) -> str:
        return f'answer to {request.text}'

    texts = [f'row {n}' for n in range(5)]
    with FakeProviders(answer, clock=clock) as fake:
        errors = [{'message': 'The request is wrong.', 'count': 1}]
        fake.mistral.inject('batch', 'fail', times=None, errors=errors, rows=lambda request: request.text == 'row 3')
        async with fake.mistral.client() as client:
            requests = [BatchRequest(custom_id=text, messages=[ModelRequest.user_text_prompt(text)]) for text in texts]
            outcomes = await clock.run(model_request_batch(model_with(client), requests, clock=clock))
    wrong = outcomes.pop(3)
    assert isinstance(wrong, ModelRequestRejectedError)
    assert 'The request is wrong.' in str(wrong)
    assert [outcome.text for outcome in outcomes if isinstance(outcome, ModelResponse)] == [
        f'answer to {text}' for text in texts if text != 'row 3'
    ]
    assert sorted(row.text for row in fake.mistral.billed) == [text for text in texts if text != 'row 3']


async def test_the_sdk_reads_what_the_fake_answers(fake: FakeProviders, clock: ManualClock):
    async with fake.mistral.client() as client:
        file = await client.files.upload_async(
            file={'file_name': 'in.jsonl', 'content': b'{"custom_id":"0","body":{"messages":[]}}\n'}, purpose='batch'
        )
        job = await client.batch.jobs.create_async(
            endpoint='/v1/chat/completions', model='mistral-small-latest', input_files=[file.id]
        )
        await clock.advance(timedelta(hours=1))
        job = await client.batch.jobs.get_async(job_id=job.id, inline=True)
        assert (job.status, job.succeeded_requests, len(job.outputs or [])) == ('SUCCESS', 1, 1)
        assert [each.id for each in (await client.batch.jobs.list_async()).data or []] == [job.id]
        listed = [each.id for each in (await client.files.list_async()).data]
        assert listed == [job.output_file, file.id]


needs_spec = pytest.mark.skipif(not SPEC.is_file(), reason='the published specs are not on this machine')
needs_recording = pytest.mark.skipif(not RECORDING.is_file(), reason='the recordings are not on this machine')


def schema(name: str) -> jsonschema_rs.Validator:
    """The validator of one of the spec's objects, which lets no field pass that it does not have."""
    spec = json.loads(SPEC.read_text('utf-8'))
    return jsonschema_rs.Draft202012Validator(
        {'$ref': f'#/components/schemas/{name}', 'components': spec['components'], 'unevaluatedProperties': False}
    )


class Label(BaseModel):
    name: str


@needs_spec
@pytest.mark.parametrize('inline', [True, False])
async def test_requests_and_what_the_fake_answers_are_those_of_the_spec(
    inline: bool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    if not inline:
        monkeypatch.setattr(mistral, 'INLINE_BYTES', 0)

    def answer(request: FakeRequest) -> Any:
        if request.tools and not request.tool_results and request.forced_tool is None:
            return FakeToolCall('look_up', {'name': 'x'})
        return auto_answer(request)

    with FakeProviders(answer, clock=clock) as fake:
        async with fake.mistral.client() as client:
            model = model_with(client)
            batching = BatchModelRequests(clock=clock)
            agent, typed = (
                Agent(model, capabilities=[batching]),
                Agent(model, output_type=Label, capabilities=[batching]),
            )

            @agent.tool_plain
            def look_up(name: str) -> str:
                return f'{name} was found'

            fake.mistral.inject('create', 'lose_reply')
            await clock.run(asyncio.gather(agent.run('Look it up.'), typed.run('Label it.')))
            cancelled = asyncio.ensure_future(model_request_batch(model, [asking('hello')], clock=clock))
            await clock.until_asleep()
            cancelled.cancel()
            with suppress(asyncio.CancelledError):
                await cancelled
        calls = fake.mistral.calls

        def replies(path: str) -> Any:
            headers = {'authorization': 'Bearer test'}
            return httpx2.get(f'{fake.mistral.base_url}{path}', headers=headers, trust_env=False).json()

        schema('BatchJobsOut').validate(replies('/v1/batch/jobs'))
        for batch in fake.mistral.batches:
            schema('BatchJobOut').validate(replies(f'/v1/batch/jobs/{batch}'))
        schema('ListFilesOut').validate(replies('/v1/files'))

    operations = {call.operation for call in calls}
    assert operations >= {'create', 'status', 'list', 'cancel'} | (set() if inline else {'upload', 'download'})
    paths = json.loads(SPEC.read_text('utf-8'))['paths']
    for call in calls:
        path = '/'.join('{id}' if len(part) == 36 else part for part in call.path.removeprefix('/mistral').split('/'))
        (described,) = [item for name, item in paths.items() if name.replace('file_', '').replace('job_', '') == path]
        parameters = {each['name']: each['schema'] for each in described[call.method.lower()]['parameters']}
        for name, text in call.query.items():
            assert jsonschema_rs.is_valid(parameters[name], int(text) if text.isdecimal() else text)
        if call.operation == 'create':
            order = json.loads(call.body)
            schema('BatchJobIn').validate(order)
            assert ('requests' in order) is inline
        if call.operation == 'upload':
            form = read_form(call.headers['content-type'], call.body)
            assert form.keys() == {'file', 'purpose'}
            schema('FilePurpose').validate(form['purpose'].content.decode())
            for line in form['file'].content.splitlines():
                schema('BatchRequest').validate(json.loads(line))


@needs_recording
async def test_a_recorded_job_is_created_checked_and_read(http_client: httpx2.AsyncClient, server: Server):
    recorded = yaml.safe_load(RECORDING.read_text('utf-8'))['http_interactions']
    replies = [json.loads(call['response']['body']['string']) for call in recorded]
    # The last one is the same job, asked for with `inline=true`.
    server.replies(*replies[:-1])
    lane = lane_for(model_with(client_with(http_client, server_url='http://provider.test')))
    assert isinstance(lane, MistralLane)
    with Payload(lane, await lane.identity(), TAG) as payload:
        for text in ('one', 'two'):
            payload.add((await lane.encode(asking(text))).body.encode())
        created = await lane.create(payload)
    checks = [await lane.status(created) for _ in replies[1:-1]]
    assert [(call.method, call.url.path) for call in server.calls] == [
        (call['request']['method'].upper(), httpx2.URL(call['request']['uri']).path) for call in recorded[:-1]
    ]
    sent, ours = json.loads(recorded[0]['request']['body']['string']), json.loads(server.calls[0].content)
    assert sent.keys() <= ours.keys()
    assert [item.keys() for item in sent['requests']] == [item.keys() for item in ours['requests']]

    shown = [lane.word(batch) for batch in (created, *checks)]
    assert shown == [reply['status'] for reply in replies[:-1]]
    assert [batch.status for batch in (created, *checks)] == ['in_progress'] * (len(checks)) + ['ended']
    assert {batch.request_count for batch in (created, *checks)} == {2}
    assert created.created_at == datetime.fromtimestamp(replies[0]['created_at'], UTC)
    answers: dict[str, tuple[str | None, int, int]] = {}
    for result in await results(lane, checks[-1]):
        assert isinstance(result, BatchResult)
        response = await lane.decode(result, asking('one'))
        assert response.finish_reason == 'stop'
        answers[result.custom_id] = (response.text, response.usage.input_tokens, response.usage.output_tokens)
    assert answers == {'0': ('4', 27, 2), '1': ('Jupiter', 27, 3)}
    assert lane.readable(checks[-1]) == 2


@needs_recording
async def test_the_fakes_job_has_the_fields_of_the_recorded_one(fake: FakeProviders, clock: ManualClock):
    recorded = yaml.safe_load(RECORDING.read_text('utf-8'))['http_interactions']
    order, last = recorded[0]['request']['body']['string'], json.loads(recorded[-2]['response']['body']['string'])
    headers = {'authorization': 'Bearer test'}
    jobs = f'{fake.mistral.base_url}/v1/batch/jobs'
    async with httpx2.AsyncClient(headers=headers, trust_env=False) as client:
        created = (await client.post(jobs, content=order)).json()
        await clock.advance(timedelta(hours=1))
        ended = (await client.get(f'{jobs}/{created["id"]}')).json()
    assert ended.keys() == created.keys() == last.keys()
    kinds = {name: type(value) for name, value in ended.items()}
    assert kinds == {name: type(value) for name, value in last.items()}
    assert shape(ended['outputs'][0]) == shape(last['outputs'][0])


def shape(value: Any) -> Any:
    """The fields of a value, and of what is in it, without what they hold."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    return [shape(part) for part in value] if isinstance(value, list) else None
