"""The lane of OpenAI's Batch API: what it sends, and how leniently it reads what comes back."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelTimeoutError,
)
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import LANES, Lane, LaneInfo, lane_for
from pydantic_ai_batch.lanes import openai_shape
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotCreated, NotRun, Payload, Stray
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"model":"gpt-5-mini"}'


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Lane]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as http_client:
        client = AsyncOpenAI(api_key='sk-secret', base_url='http://provider.test/v1', http_client=http_client)
        yield lane_for(OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client)))


def batch_object(**changes: Any) -> dict[str, Any]:
    return {
        'id': 'batch_1',
        'status': 'in_progress',
        'input_file_id': 'file-in',
        'created_at': int(CREATED.timestamp()),
        'request_counts': {'total': 3, 'completed': 1, 'failed': 0},
        **changes,
    }


def handle(**details: Any) -> Batch:
    return Batch(
        id='batch_1',
        model_name='gpt-5-mini',
        provider_name='openai',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details=details,
    )


async def read(lane: Lane, server: Server, *lines: bytes | dict[str, Any]) -> list[BatchResult | Stray]:
    content = b'\n'.join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    server.answer = lambda request: httpx2.Response(200, content=content)
    return [result async for result in lane.results(handle(output_file_id='file-out'))]


# What it sends


async def test_a_batch_is_an_upload_and_a_create_with_the_tag_in_both(lane: Lane, server: Server):
    server.replies({'id': 'file-in'}, batch_object(status='validating'))
    with Payload(lane, GROUP, tag='t' * 20) as payload:
        assert [payload.add(b'{"input":"a"}'), payload.add(b'{"input":"b"}')] == [f'{"t" * 20}-0', f'{"t" * 20}-1']
        batch = await lane.create(payload)
    upload, create = server.calls
    assert [(call.method, call.url.path) for call in server.calls] == [('POST', '/v1/files'), ('POST', '/v1/batches')]
    assert f'filename="pab-{"t" * 20}.jsonl"'.encode() in upload.content
    assert b'name="purpose"\r\n\r\nbatch\r\n' in upload.content
    (lines,) = re.findall(rb'jsonl\r\n\r\n(.*?)\r\n--', upload.content, re.DOTALL)
    assert lines == b''.join(
        b'{"custom_id":"%b-%d","method":"POST","url":"/v1/responses","body":{"input":"%b"}}\n' % (b't' * 20, n, text)
        for n, text in enumerate((b'a', b'b'))
    )
    assert json.loads(create.content) == {
        'input_file_id': 'file-in',
        'endpoint': '/v1/responses',
        'completion_window': '24h',
        'metadata': {'pydantic_ai_batch': 't' * 20},
    }
    assert (batch.id, batch.status, batch.group, batch.request_count) == ('batch_1', 'in_progress', GROUP, 3)


@pytest.mark.parametrize('call', ['create', 'status', 'results', 'cancel', 'find', 'discard', 'clean_up'])
@pytest.mark.parametrize('status', [408, 409, 429, 500])
async def test_every_call_is_sent_once_whatever_the_client_says(call: str, status: int, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'error': {'message': 'no'}})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        payload.receipt['input_file_id'] = 'file-in'
        batch = handle(output_file_id='file-out', input_file_id='file-in', status='completed')

        async def read_all() -> list[Any]:
            return [result async for result in lane.results(batch)]

        calls: dict[str, Callable[[], Any]] = {
            'create': lambda: lane.create(payload),
            'status': lambda: lane.status(batch),
            'results': read_all,
            'cancel': lambda: lane.cancel(batch),
            'find': lambda: lane.find(payload, since=CREATED),
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
    assert server.calls[0].headers['authorization'] == 'Bearer sk-secret'


async def test_an_upload_that_fails_is_not_yet_a_create(lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(503)
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        with pytest.raises(NotCreated) as raised:
            await lane.create(payload)
    assert isinstance(raised.value.__cause__, ModelHTTPError)
    assert 'input_file_id' not in payload.receipt


async def test_a_file_that_is_up_is_not_sent_up_again(lane: Lane, server: Server):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith('/files'):
            return httpx2.Response(200, json={'id': 'file-in'})
        return httpx2.Response(503)

    server.answer = answer
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        for _ in range(2):
            with pytest.raises(ModelHTTPError):
                await lane.create(payload)
    assert [call.url.path for call in server.calls] == ['/v1/files', '/v1/batches', '/v1/batches']


@pytest.mark.parametrize('reply', [{}, {'id': ''}, {'id': 5}, [], 'file-1'])
async def test_an_upload_without_a_file_id_is_no_upload(reply: Any, lane: Lane, server: Server):
    server.replies(reply)
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        with pytest.raises(NotCreated):
            await lane.create(payload)


async def test_only_the_input_of_a_completed_batch_is_cleaned_up(lane: Lane, server: Server):
    server.replies({})
    created = handle(status='validating', input_file_id='file-in')
    for status in ('expired', 'cancelled', 'failed', 'in_progress'):
        await lane.clean_up(created, handle(status=status, input_file_id='file-in'))
    assert server.calls == []
    await lane.clean_up(created, handle(status='completed', input_file_id='a file that others named'))
    assert [(call.method, call.url.path) for call in server.calls] == [('DELETE', '/v1/files/file-in')]


async def test_an_input_file_is_discarded_once(lane: Lane, server: Server):
    server.replies({})
    with Payload(lane, GROUP) as payload:
        payload.receipt['input_file_id'] = 'file-in'
        await lane.discard(payload)
        await lane.discard(payload)
    assert [(call.method, call.url.path) for call in server.calls] == [('DELETE', '/v1/files/file-in')]


async def test_a_requests_size_is_never_less_than_it_takes_up(lane: Lane):
    with Payload(lane, GROUP) as payload:
        bodies = [b'{}', b'{"input":"' + b'x' * 1000 + b'"}', '{"input":"ü€"}'.encode()]
        for body in bodies * 4:
            payload.add(body)
        assert len(payload.open().read()) <= sum(lane.request_size(body) for body in bodies * 4)


# How it reads a batch


@pytest.mark.parametrize(
    ('word', 'status'),
    [
        ('validating', 'in_progress'),
        ('in_progress', 'in_progress'),
        ('finalizing', 'in_progress'),
        ('cancelling', 'canceling'),
        ('completed', 'ended'),
        ('failed', 'ended'),
        ('expired', 'ended'),
        ('cancelled', 'ended'),
        ('COMPLETED', 'ended'),
        ('Validating', 'in_progress'),
        (None, 'in_progress'),
        (7, 'in_progress'),
        ('on_holiday', 'in_progress'),
    ],
)
async def test_statuses_are_read_in_any_case_and_unknown_ones_run(word: Any, status: str, lane: Lane, server: Server):
    server.replies(batch_object(status=word))
    assert (await lane.status(handle())).status == status


@pytest.mark.parametrize(
    'signs',
    [
        {'completed_at': 1},
        {'failed_at': '2030-01-01'},
        {'expired_at': 1},
        {'cancelled_at': 1},
        {'request_counts': {'total': 3, 'completed': 2, 'failed': 1}},
    ],
)
async def test_a_batch_with_an_unknown_status_that_shows_its_end_has_ended(
    signs: dict[str, Any], lane: Lane, server: Server
):
    server.replies(batch_object(status='archived', **signs))
    assert (await lane.status(handle())).status == 'ended'


@pytest.mark.parametrize(
    ('created_at', 'read'),
    [
        (int(CREATED.timestamp()), CREATED),
        (CREATED.timestamp(), CREATED),
        ('2030-01-01T00:00:00Z', CREATED),
        ('2030-01-01T01:00:00+01:00', CREATED),
        ('2030-01-01T00:00:00', CREATED),
        ('2030-01-01', CREATED),
    ],
)
async def test_times_are_read_as_seconds_or_as_text(created_at: Any, read: datetime, lane: Lane, server: Server):
    server.replies(batch_object(created_at=created_at))
    assert (await lane.cancel(handle())).created_at == read


async def test_the_time_of_a_batchs_creation_does_not_change_with_its_status(lane: Lane, server: Server):
    server.replies(batch_object(created_at=0))
    assert (await lane.status(handle())).created_at == CREATED


@pytest.mark.parametrize('created_at', [None, 'yesterday', True, 10**30, float('inf'), [], {}])
async def test_a_time_that_is_none_leaves_the_one_that_was_known(created_at: Any, lane: Lane, server: Server):
    content = json.dumps(batch_object(created_at=created_at)).encode()
    server.answer = lambda request: httpx2.Response(200, content=content)
    assert (await lane.status(handle())).created_at == CREATED


@pytest.mark.parametrize('counts', [None, {}, [], {'total': None, 'completed': None}, {'total': '3'}, 'three'])
async def test_counts_that_are_none_leave_the_number_that_was_submitted(counts: Any, lane: Lane, server: Server):
    server.replies(batch_object(request_counts=counts))
    assert (await lane.status(handle())).request_count == 3


@pytest.mark.parametrize('file_id', [None, '', 0, [], {}])
async def test_a_file_id_that_is_none_is_no_file(file_id: Any, lane: Lane, server: Server):
    server.replies(batch_object(status='completed', output_file_id=file_id, error_file_id=file_id))
    batch = await lane.status(handle())
    assert batch.provider_details is not None
    assert {'output_file_id', 'error_file_id'}.isdisjoint(batch.provider_details)
    server.calls.clear()
    assert [result async for result in lane.results(batch)] == []
    assert server.calls == []


async def test_a_status_goes_by_the_id_that_was_asked_for(lane: Lane, server: Server):
    server.replies(batch_object(id='of-a-proxy'))
    assert (await lane.status(handle())).id == 'batch_1'
    server.replies({key: value for key, value in batch_object().items() if key != 'id'})
    assert (await lane.status(handle())).id == 'batch_1'


@pytest.mark.parametrize('reply', [b'', b'[]', b'null', b'"ok"', b'<html>', b'\xff'])
async def test_a_reply_that_is_no_object_is_a_transport_fault(reply: bytes, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(200, content=reply)
    with pytest.raises(ModelConnectionError):
        await lane.status(handle())


# How it reads lines


def ok(custom_id: str = 'a-0', **response: Any) -> dict[str, Any]:
    return {'custom_id': custom_id, 'response': {'status_code': 200, 'body': {'id': 'r'}, **response}, 'error': None}


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
        ({'custom_id': 'a', 'response': {'status_code': 400, 'body': {'error': {'message': 'm'}}}}, 400, 'm'),
        ({'custom_id': 'a', 'response': {'status_code': '429', 'body': '{"error":{"code":"c"}}'}}, 429, 'c'),
        ({'custom_id': 'a', 'response': {'status_code': 500, 'body': None}, 'error': {'code': 'why'}}, 500, 'why'),
        ({'custom_id': 'a', 'response': {'status_code': 502, 'body': 'Bad gateway'}}, 502, 'Bad gateway'),
        ({'custom_id': 'a', 'response': None, 'error': {'code': 'x', 'message': 'm'}}, 500, 'm'),
        ({'custom_id': 'a', 'response': None, 'error': 'just text'}, 500, 'just text'),
        ({'custom_id': 'a', 'error': ['a', 'list']}, 500, 'list'),
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


@pytest.mark.parametrize(('code', 'status'), [('batch_expired', 'expired'), ('batch_cancelled', 'canceled')])
async def test_rows_that_the_end_of_the_batch_left_out_say_so(code: str, status: str, lane: Lane, server: Server):
    (result,) = await read(lane, server, {'custom_id': 'a', 'response': None, 'error': {'code': code}})
    assert result == BatchResult(custom_id='a', status=status)  # pyright: ignore[reportArgumentType]


async def test_lone_surrogates_in_an_answer_are_kept(lane: Lane, server: Server):
    line = rb'{"custom_id":"a","response":{"status_code":200,"body":{"text":"\ud800"}}}'
    (result,) = await read(lane, server, line)
    assert isinstance(result, BatchResult)
    assert json.loads(result.body or '') == {'text': '\ud800'}


@pytest.mark.parametrize(
    ('line', 'custom_id'),
    [
        (b'{"custom_id":null,"response":{}}', None),
        (b'{"custom_id":"","response":{}}', None),
        (b'{"custom_id":7}', None),
        (b'[]', None),
        (b'7', None),
        (b'not json', None),
        (b'{"custom_id":"a-1","response":{"status_code":200,"bo', 'a-1'),
        (b'{"custom_id":"a-1","x":{"custom_id":"b-2","y', None),
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
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=json.dumps(ok(request.url.path.split('/')[-2])))

    server.answer = answer
    results = [result async for result in lane.results(handle(error_file_id='err', output_file_id='out'))]
    assert [result.custom_id for result in results] == ['out', 'err']


async def test_a_download_that_breaks_is_a_transport_fault_after_the_lines_it_brought(lane: Lane, server: Server):
    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(ok()).encode() + b'\n{"cust'
        raise httpx2.ReadError('gone')

    server.answer = lambda request: httpx2.Response(200, content=body())
    results = lane.results(handle(output_file_id='file-out'))
    assert isinstance(await anext(results), BatchResult)
    with pytest.raises(ModelConnectionError) as raised:
        await anext(results)
    assert raised.value.phase == 'read'


# Rows without a line


@pytest.mark.parametrize(('state', 'status'), [('expired', 'expired'), ('cancelled', 'canceled')])
async def test_the_end_of_the_batch_is_the_end_of_its_unlisted_rows(state: str, status: str, lane: Lane):
    assert lane.unlisted(handle(status=state), 'a-0') == BatchResult(
        custom_id='a-0',
        status=status,  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.parametrize('details', [{'status': 'completed'}, {}, {'status': 'failed'}, {'status': 'weird'}])
async def test_a_row_that_nothing_explains_was_not_run(details: dict[str, Any], lane: Lane):
    result = lane.unlisted(handle(**details), 'a-0')
    assert isinstance(result, NotRun)
    assert 'batch_1' in result.reason


async def test_a_row_that_the_validation_names_has_its_error_and_the_others_were_not_run(lane: Lane):
    batch = handle(status='failed', errors=[{'code': 'bad', 'message': 'no such field', 'line': 2}])
    named, other = lane.unlisted(batch, 'a-1'), lane.unlisted(batch, 'a-0')
    assert isinstance(named, BatchResult)
    assert json.loads(named.body or '')['status_code'] == 400
    assert 'no such field' in (named.body or '')
    assert isinstance(other, NotRun)
    assert 'no such field' in other.reason
    assert other.culprit == 'a-1'


@pytest.mark.parametrize(
    ('code', 'status'),
    [('billing_hard_limit_reached', 400), ('insufficient_quota', 400), ('model_not_found', 400), ('server_error', 500)],
)
async def test_an_error_of_the_whole_batch_is_every_rows(code: str, status: int, lane: Lane):
    for custom_id in ('a-0', 'a-1', 'not ours'):
        result = lane.unlisted(handle(status='failed', errors=[{'code': code, 'message': 'm'}]), custom_id)
        assert isinstance(result, BatchResult)
        assert json.loads(result.body or '')['status_code'] == status


@pytest.mark.parametrize(
    ('code', 'cause', 'status'), [('token_limit_exceeded', 'full_queue', 429), ('invalid_value', 'invalid', 400)]
)
async def test_an_error_that_says_how_to_send_the_rows_again_is_their_last_word_if_they_are_not(
    code: str, cause: str, status: int, lane: Lane
):
    result = lane.unlisted(handle(status='failed', errors=[{'code': code, 'message': 'm'}]), 'a-0')
    assert isinstance(result, NotRun)
    assert (result.cause, result.again) == (cause, False)
    assert result.result is not None
    assert json.loads(result.result.body or '')['status_code'] == status


# Finding a batch


def page(*batches: dict[str, Any], more: bool = False) -> dict[str, Any]:
    return {'object': 'list', 'data': list(batches), 'has_more': more}


def at(minutes: int, number: int, **changes: Any) -> dict[str, Any]:
    created = CREATED + timedelta(minutes=minutes)
    return batch_object(id=f'batch_{number}', created_at=int(created.timestamp()), input_file_id='other', **changes)


async def find(lane: Lane, *, since: datetime = CREATED) -> list[str]:
    with Payload(lane, GROUP, tag='mine') as payload:
        payload.receipt['input_file_id'] = 'file-in'
        return [batch.id for batch in await lane.find(payload, since=since)]


MINE = {'metadata': {'pydantic_ai_batch': 'mine'}}


async def test_batches_are_found_by_tag_on_any_page_oldest_first(lane: Lane, server: Server):
    server.replies(page(at(9, 9), at(8, 8, **MINE), more=True), page(at(7, 7), at(6, 6, **MINE), more=False))
    assert await find(lane) == ['batch_6', 'batch_8']
    assert [dict(call.url.params) for call in server.calls] == [{'limit': '100'}, {'limit': '100', 'after': 'batch_8'}]


async def test_a_batch_whose_metadata_was_dropped_is_found_by_its_file(lane: Lane, server: Server):
    server.replies(page({**at(1, 1), 'metadata': None, 'input_file_id': 'file-in'}, at(0, 0)))
    assert await find(lane) == ['batch_1']


async def test_the_listing_is_read_no_further_back_than_asked_for(lane: Lane, server: Server):
    server.replies(page(at(1, 5), at(-1, 4), more=True))
    assert await find(lane) == []
    assert len(server.calls) == 1


async def test_pages_without_times_are_read_to_their_end(lane: Lane, server: Server):
    undated = {key: value for key, value in at(0, 1).items() if key != 'created_at'}
    server.replies(page(undated, more=True), page({**undated, 'id': 'batch_0', **MINE}))
    assert await find(lane) == ['batch_0']


async def test_a_listing_without_an_end_proves_nothing(lane: Lane, server: Server):
    server.replies(page(at(1, 1), more=True))
    with pytest.raises(ListingIncomplete):
        await find(lane)


# Errors


@pytest.mark.parametrize('call', ['/files', '/batches'])
@pytest.mark.parametrize(
    ('status', 'body', 'hinted'),
    [
        (404, b'Not Found', True),
        (404, b'{"detail":"Not Found"}', True),
        (405, b'{"error":{"message":"Method not allowed"}}', True),
        (404, b'{"error":{"message":"No such batch"}}', False),
        (400, b'Bad Request', False),
    ],
)
async def test_a_server_without_the_api_is_named_with_its_base_url(
    call: str, status: int, body: bytes, hinted: bool, lane: Lane, server: Server
):
    headers = {'content-type': 'application/json'}
    server.answer = lambda request: httpx2.Response(status, content=body, headers=headers)
    asked = lane.status(handle()) if call == '/batches' else anext(lane.results(handle(output_file_id='x')))
    with pytest.raises(ModelHTTPError) as raised:
        await asked
    text = str(raised.value)
    assert ('http://provider.test/v1' in text and call in text) is hinted


@pytest.mark.parametrize(
    ('status', 'category'),
    [(401, ModelAuthenticationError), (403, ModelAuthenticationError), (429, ModelRateLimitError)],
)
async def test_errors_have_the_frameworks_category_and_the_providers_words(
    status: int, category: type[ModelHTTPError], lane: Lane, server: Server
):
    error = {'message': 'no', 'code': 'some_code', 'type': 'some_type'}
    server.answer = lambda request: httpx2.Response(status, json={'error': error}, headers={'retry-after': '7'})
    with pytest.raises(category) as raised:
        await lane.status(handle())
    assert raised.value.provider_error_code == 'some_code'
    assert 'sk-secret' not in f'{raised.value!r} {raised.value} {vars(raised.value)}'


@pytest.mark.parametrize(
    ('fault', 'phase', 'kind'),
    [
        (httpx2.ConnectError('x'), 'connect', ModelConnectionError),
        (httpx2.ConnectTimeout('x'), 'connect', ModelTimeoutError),
        (httpx2.PoolTimeout('x'), 'pool', ModelTimeoutError),
        (httpx2.ReadTimeout('x'), 'read', ModelTimeoutError),
        (httpx2.ReadError('x'), 'read', ModelConnectionError),
        (httpx2.WriteError('x'), 'write', ModelConnectionError),
        (httpx2.RemoteProtocolError('x'), 'read', ModelConnectionError),
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


async def test_the_fake_and_the_lane_agree_on_a_whole_life(
    fake: FakeProviders, model_of: Callable[..., OpenAIResponsesModel], clock: ManualClock
):
    lane = lane_for(model_of(fake))
    with Payload(lane, await lane.identity()) as payload:
        wire_id = payload.add(b'{"model":"gpt-5-mini","input":"hello"}')
        created = await lane.create(payload)
        assert [found.id for found in await lane.find(payload, since=created.created_at)] == [created.id]
    await clock.advance(timedelta(hours=1))
    batch = await lane.status(created)
    assert batch.status == 'ended'
    assert [result.custom_id async for result in lane.results(batch)] == [wire_id]
    await lane.clean_up(created, batch)
    assert fake.openai.count('delete') == 1


# Facts


@pytest.mark.parametrize('info', LANES.values(), ids=LANES)
def test_every_fact_about_a_lane_has_a_source(info: LaneInfo):
    ours = {'name', 'title', 'models', 'sources', 'key_variables', 'verified'}
    facts = {field.name for field in fields(info)} - ours
    known = {name for name in facts if getattr(info, name) is not None}
    assert known - info.sources.keys() == set()
    assert info.sources.keys() - facts == set()


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=30),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=8,
        ),
        max_size=4,
    ),
    st.booleans(),
    st.sampled_from([(', ', ': '), (',', ':')]),
)
def test_a_body_that_is_cut_out_of_its_line_is_the_body(body: dict[str, Any], escaped: bool, separators: Any):
    line = {
        'id': 'batch_req_1',
        'custom_id': 'tag-7',
        'response': {'status_code': 200, 'request_id': 'r', 'body': body},
        'error': None,
    }
    text = json.dumps(line, ensure_ascii=escaped, separators=separators)
    read = openai_shape._read_line(text.encode('utf-8', 'surrogatepass'))
    if isinstance(read, Stray):
        # A lone surrogate that is not escaped is no UTF-8.
        assert read.custom_id == 'tag-7'
    else:
        assert (read.custom_id, read.status) == ('tag-7', 'succeeded')
        assert json.loads(read.body or '') == body
