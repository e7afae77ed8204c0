"""The lane of Fireworks: what it sends, that a job is made once whatever gets lost, and how its files are read."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from journal.scenes import Way, all_over, each_way
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    SuspendedResponseExpired,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.fireworks import FireworksProvider
from pydantic_ai.providers.openai import OpenAIProvider
from specs.schemas import SPECS
from specs.schemas import read as read_schemas

from pydantic_ai_batch import (
    BatchModelRequests,
    Lane,
    cancel_batch,
    lane_for,
    list_batches,
    model_request_batch,
    submit_batch,
)
from pydantic_ai_batch.exceptions import BatchNotCancellable, NoBatchLane
from pydantic_ai_batch.lanes import fireworks
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotCreated, NotReadYet, NotRun, Payload, Sought, Stray
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock
from pydantic_ai_batch.testing.multipart import read_form

from .harness import echo, requests_of
from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"model":"gpt-oss-20b"}'
MODEL = 'accounts/fireworks/models/gpt-oss-20b'
TAG = 't' * 20
NAME = f'pab-{TAG}'
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]
ACCOUNT = '/v1/accounts/test'


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv('FIREWORKS_ACCOUNT_ID', 'test')
    yield
    all_over()


def model_over(client: AsyncOpenAI) -> OpenAIChatModel:
    return OpenAIChatModel(MODEL, provider=FireworksProvider(openai_client=client))


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Any]:
    # A client below the SDK's that tells who asks, too.
    async with httpx2.AsyncClient(
        transport=httpx2.MockTransport(server.handle), headers={'x-proxy-key': 'secret'}, params={'via': 'proxy'}
    ) as http_client:
        base = 'http://provider.test/inference/v1'
        yield lane_for(model_over(AsyncOpenAI(api_key='sk-secret', base_url=base, http_client=http_client)))


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    with FakeProviders(echo, clock=clock) as fake:
        yield fake


@pytest.fixture
async def model(fake: FakeProviders) -> AsyncIterator[OpenAIChatModel]:
    async with fake.fireworks.client(max_retries=0) as client:
        yield model_over(client)


def job_object(**changes: Any) -> dict[str, Any]:
    return {
        'name': f'accounts/test/batchInferenceJobs/{NAME}',
        'createTime': '2030-01-01T00:00:00Z',
        'state': 'JOB_STATE_RUNNING',
        'status': {'code': 'OK', 'message': ''},
        'model': MODEL,
        'inputDatasetId': f'accounts/test/datasets/{NAME}',
        'outputDatasetId': f'accounts/test/datasets/{NAME}-out',
        'jobProgress': {'totalInputRequests': 3, 'successfullyProcessedRequests': 1, 'failedRequests': 0},
        **changes,
    }


def handle(**details: Any) -> Batch:
    return Batch(
        id=NAME,
        model_name=MODEL,
        provider_name='fireworks',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details={'status': 'COMPLETED', 'output_dataset': f'{NAME}-out', **details},
    )


def filled(lane: Lane, *bodies: bytes) -> Payload:
    payload = Payload(lane, GROUP, tag=TAG)
    for body in bodies:
        payload.add(body)
    return payload


async def read(lane: Lane, server: Server, files: dict[str, list[Any]]) -> list[BatchResult | Stray]:
    urls = {name: f'https://storage.test/{name}?signature=s' for name in files}

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host != 'storage.test':
            return httpx2.Response(200, json={'filenameToSignedUrls': urls})
        lines = files[request.url.path.removeprefix('/')]
        return httpx2.Response(200, content=b''.join(json.dumps(line).encode() + b'\n' for line in lines))

    server.answer = answer
    return [result async for result in lane.results(handle())]


async def run(clock: ManualClock, model: Any, **options: Any) -> list[Any]:
    outcomes = await clock.run(model_request_batch(model, requests_of(ROWS), clock=clock, **options))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def billed(fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in fake.fireworks.billed)


# The account


@pytest.mark.parametrize('value', [None, '', 'a/b', 'accounts/'])
async def test_without_an_account_nothing_is_sent_and_the_error_names_the_variable(
    value: str | None, fake: FakeProviders, model: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    if value is None:
        monkeypatch.delenv('FIREWORKS_ACCOUNT_ID')
    else:
        monkeypatch.setenv('FIREWORKS_ACCOUNT_ID', value)
    with pytest.raises(UserError, match='FIREWORKS_ACCOUNT_ID'):
        await Agent(model, capabilities=[BatchModelRequests(clock=clock)]).run('hello')
    with pytest.raises(UserError, match='FIREWORKS_ACCOUNT_ID'):
        await clock.run(model_request_batch(model, requests_of(['row']), clock=clock))
    with pytest.raises(UserError, match='FIREWORKS_ACCOUNT_ID'):
        [batch async for batch in list_batches(model)]
    assert fake.calls == []


async def test_requests_of_two_accounts_share_no_batch(model: Any, monkeypatch: pytest.MonkeyPatch):
    first = await lane_for(model).identity()
    assert await lane_for(model).identity() == first
    monkeypatch.setenv('FIREWORKS_ACCOUNT_ID', 'accounts/test')
    assert await lane_for(model).identity() == first
    monkeypatch.setenv('FIREWORKS_ACCOUNT_ID', 'other')
    assert await lane_for(model).identity() != first
    assert 'other' not in await lane_for(model).identity()


async def test_which_models_it_serves(monkeypatch: pytest.MonkeyPatch):
    client = AsyncOpenAI(api_key='k', base_url='https://api.fireworks.ai/inference/v1')
    assert lane_for(OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))).info is fireworks.INFO
    with pytest.raises(NoBatchLane):
        lane_for(OpenAIResponsesModel(MODEL, provider=FireworksProvider(openai_client=client)))
    monkeypatch.setenv('FIREWORKS_API_KEY', 'k')
    monkeypatch.delenv('FIREWORKS_ACCOUNT_ID')
    assert lane_for(f'fireworks:{MODEL}').info.name == 'fireworks'


@pytest.mark.parametrize(
    ('base', 'root'),
    [
        ('https://api.fireworks.ai/inference/v1', 'https://api.fireworks.ai'),
        ('https://proxy.test/fw/inference/v1/', 'https://proxy.test/fw'),
        ('https://proxy.test/else', 'https://proxy.test'),
    ],
)
async def test_batch_calls_go_to_the_host_of_the_live_ones(base: str, root: str, server: Server):
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as http_client:
        lane = lane_for(model_over(AsyncOpenAI(api_key='k', base_url=base, http_client=http_client)))
        server.replies(job_object())
        await lane.status(handle())
    assert str(server.calls[0].url) == f'{root}{ACCOUNT}/batchInferenceJobs/{NAME}'


# What it sends


async def test_a_batch_is_a_dataset_an_upload_and_a_job_with_our_id(lane: Lane, server: Server):
    server.replies({'state': 'UPLOADING'}, {'id': NAME}, {'state': 'READY'}, job_object())
    with filled(lane, b'{"n":1.0}', b'{"n":2}') as payload:
        batch = await lane.create(payload)
    dataset, upload, check, create = server.calls
    assert [(call.method, call.url.path) for call in server.calls] == [
        ('POST', f'{ACCOUNT}/datasets'),
        ('POST', f'{ACCOUNT}/datasets/{NAME}:upload'),
        ('GET', f'{ACCOUNT}/datasets/{NAME}'),
        ('POST', f'{ACCOUNT}/batchInferenceJobs'),
    ]
    assert json.loads(dataset.content) == {'datasetId': NAME, 'dataset': {'userUploaded': {}}}
    file = read_form(upload.headers['content-type'], upload.content)['file']
    assert file.filename == f'{NAME}.jsonl'
    line = b'{"custom_id":"%b-%d","body":{"n":%b}}\n'
    assert file.content == line % (TAG.encode(), 0, b'1.0') + line % (TAG.encode(), 1, b'2')
    assert create.url.params['batchInferenceJobId'] == NAME
    assert json.loads(create.content) == {
        'displayName': NAME,
        'model': MODEL,
        'inputDatasetId': f'accounts/test/datasets/{NAME}',
        'outputDatasetId': f'accounts/test/datasets/{NAME}-out',
    }
    assert all(call.headers['authorization'] == 'Bearer sk-secret' for call in (dataset, upload, check, create))
    assert (batch.id, batch.status, batch.group, batch.request_count) == (NAME, 'in_progress', GROUP, 3)
    assert batch.created_at == CREATED
    assert batch.provider_details == {
        'status': 'RUNNING',
        'input_dataset': NAME,
        'output_dataset': f'{NAME}-out',
        'request_counts': {'total': 3, 'completed': 1, 'failed': 0},
    }


async def test_a_line_does_not_name_the_model(lane: Lane):
    [request] = requests_of(['é\u2028'])
    encoded = await lane.encode(request)
    body = json.loads(encoded.body)
    assert 'model' not in body
    assert body['messages'][0]['content'] == 'é\u2028'


@pytest.mark.parametrize('hours', [12, 48, 72])
async def test_no_window_can_be_asked_for_as_no_field_of_a_call_says_it(hours: int, lane: Lane):
    lane.ask(timedelta(hours=24))
    with pytest.raises(UserError, match='must be 24 hours'):
        lane.ask(timedelta(hours=hours))


@pytest.mark.parametrize('call', ['create', 'status', 'results', 'find', 'listing', 'discard', 'clean_up'])
@pytest.mark.parametrize('status', [408, 429, 500])
async def test_every_call_is_sent_once(call: str, status: int, lane: Any, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'code': 13, 'message': 'no'})
    with filled(lane, b'{}') as payload:
        if call in ('discard', 'clean_up'):
            await _called(call, lane, payload)
        else:
            with pytest.raises(NotCreated if call == 'create' else ModelHTTPError):
                await _called(call, lane, payload)
    assert len(server.calls) == 1


async def _called(call: str, lane: Lane, payload: Payload) -> None:
    if call == 'create':
        await lane.create(payload)
    elif call == 'status':
        await lane.status(handle())
    elif call == 'find':
        await lane.find(payload, since=CREATED)
    elif call == 'discard':
        await lane.recall(payload, since=CREATED)
        await lane.discard(payload)
    elif call == 'clean_up':
        await lane.clean_up(handle(input_dataset=NAME), handle())
    else:
        [item async for item in (lane.listing() if call == 'listing' else lane.results(handle()))]


# Created once


@pytest.mark.parametrize('operation', ['dataset', 'upload', 'dataset_status'])
@pytest.mark.parametrize('fault', ['lose_reply', 'reset'])
async def test_what_is_lost_before_the_job_is_tried_again_and_done_once(
    operation: str, fault: str, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.fireworks.inject(operation, fault)
    assert await run(clock, model) == ANSWERS
    assert fake.fireworks.count('create') == 1
    assert len(fake.fireworks.batches) == 1
    assert billed(fake) == Counter(ROWS)


async def test_a_repeated_create_reads_the_job_that_there_is(lane: Lane, server: Server):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == 'POST':
            return httpx2.Response(409, json={'code': 6, 'message': 'it exists', 'details': []})
        return httpx2.Response(200, json=job_object())

    server.answer = answer
    with filled(lane, b'{}') as payload:
        payload.receipt |= {'dataset': NAME, 'ready': True}
        batch = await lane.create(payload)
        assert batch.id == NAME
        # That it cannot be read is no refusal.
        server.answer = lambda request: httpx2.Response(409 if request.method == 'POST' else 404, json={'message': 'x'})
        with pytest.raises(ModelConnectionError):
            await lane.create(payload)


async def test_a_create_that_took_effect_and_answered_an_error_is_found(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.fireworks.inject('create', 'http', status=500, done=True)
    fake.fireworks.inject('status', 'http', status=404, times=4)
    # All looks find nothing, so that it is sent again, which the ID keeps from making a second one.
    assert await run(clock, model) == ANSWERS
    assert fake.fireworks.count('create') == 2
    assert len(fake.fireworks.batches) == 1
    assert billed(fake) == Counter(ROWS)


async def test_a_404_of_something_in_between_proves_nothing(lane: Lane, server: Server):
    sought = Sought(TAG, GROUP, 1)
    server.answer = lambda request: httpx2.Response(404, text='<html>no</html>')
    with pytest.raises(ListingIncomplete):
        await lane.find(sought, since=CREATED)
    server.answer = lambda request: httpx2.Response(404, json={'code': 5, 'message': 'not found'})
    assert await lane.find(sought, since=CREATED) == []
    server.answer = lambda request: httpx2.Response(403, json={'code': 7, 'message': 'no'})
    with pytest.raises(ModelHTTPError):
        await lane.find(sought, since=CREATED)
    server.replies(job_object())
    [found] = await lane.find(sought, since=CREATED)
    assert found.id == NAME
    assert NAME in lane.where_to_look(sought)


async def test_a_dataset_that_is_being_read_is_waited_for(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.fireworks.reading = 20
    assert await run(clock, model) == ANSWERS
    assert (fake.fireworks.count('upload'), fake.fireworks.count('create')) == (1, 1)
    assert fake.fireworks.count('dataset_status') > 2


async def test_a_dataset_that_is_being_read_is_not_filled_again(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.fireworks.reading = 20
    fake.fireworks.inject('upload', 'lose_reply')
    assert await run(clock, model) == ANSWERS
    # The second is refused, as the dataset has its file.
    assert [call.status for call in fake.fireworks.calls if call.operation == 'upload'] == [None, 400]
    assert billed(fake) == Counter(ROWS)


async def test_a_reply_that_is_no_job_says_nothing_of_what_was_made(lane: Lane, server: Server):
    server.replies({'ok': True})
    with filled(lane, b'{}') as payload:
        payload.receipt |= {'dataset': NAME, 'ready': True}
        with pytest.raises(ModelConnectionError):
            await lane.create(payload)
        with pytest.raises(ModelConnectionError):
            await lane.find(payload, since=CREATED)


async def test_a_dataset_is_not_filled_twice(lane: Lane, server: Server):
    server.replies({}, {}, {'state': 'UPLOADING'})
    with filled(lane, b'{}') as payload:
        for _ in range(2):
            with pytest.raises(NotReadYet):
                await lane.create(payload)
        assert [call.method for call in server.calls] == ['POST', 'POST', 'GET', 'GET', 'GET']


async def test_the_dataset_of_a_refused_job_is_deleted(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.fireworks.inject('create', 'http', status=400)
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) for outcome in outcomes)
    assert fake.fireworks.datasets == {}


async def test_the_input_is_deleted_and_the_results_are_left(fake: FakeProviders, model: Any, clock: ManualClock):
    await run(clock, model)
    [batch] = fake.fireworks.batches.values()
    assert list(fake.fireworks.datasets) == [f'{batch.id}-out']


@each_way
async def test_a_job_of_a_process_that_ended_is_found_by_the_next(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path
):
    path = tmp_path / 'journal.db'
    fake.fireworks.inject('create', 'lose_reply')
    fake.fireworks.inject('status', 'http', status=503, times=4)
    await clock.run(way(model, ROWS, path, clock))
    all_over()
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert fake.fireworks.count('create') == 1
    assert billed(fake) == Counter(ROWS)


# How it reads a job


@pytest.mark.parametrize(
    ('word', 'status', 'of_job'),
    [
        ('JOB_STATE_UNSPECIFIED', 'in_progress', 'submitted'),
        ('JOB_STATE_CREATING_INPUT_DATASET', 'in_progress', 'submitted'),
        ('JOB_STATE_PENDING', 'in_progress', 'submitted'),
        ('pending', 'in_progress', 'submitted'),
        ('RUNNING', 'in_progress', 'in_progress'),
        ('JOB_STATE_WRITING_RESULTS', 'in_progress', 'in_progress'),
        ('JOB_STATE_CANCELLING', 'canceling', 'canceling'),
        ('job_state_completed', 'ended', 'ended'),
        ('JOB_STATE_EARLY_STOPPED', 'ended', 'ended'),
        ('JOB_STATE_FAILED', 'ended', 'failed'),
        ('Expired', 'ended', 'expired'),
        ('JOB_STATE_CANCELLED', 'ended', 'canceled'),
        ('JOB_STATE_NEW', 'in_progress', 'in_progress'),
        (None, 'in_progress', 'submitted'),
    ],
)
async def test_words_for_where_a_job_is(word: str | None, status: str, of_job: str, lane: Lane, server: Server):
    server.replies(job_object(state=word))
    batch = await lane.status(handle())
    assert (batch.status, lane.job_status(batch)) == (status, of_job)


async def test_counts_may_be_text_or_missing(lane: Lane, server: Server):
    progress = {'totalInputRequests': '7', 'successfullyProcessedRequests': '5', 'failedRequests': None}
    server.replies(job_object(jobProgress=progress), job_object(jobProgress=None, outputDatasetId=''))
    batch = await lane.status(handle())
    assert (batch.request_count, lane.readable(batch)) == (7, 5)
    batch = await lane.status(handle())
    assert batch.provider_details == {'status': 'RUNNING', 'output_dataset': f'{NAME}-out'}


@pytest.mark.parametrize('reply', [{'name': ''}, {'name': 'accounts/a/'}, {'name': 7}])
async def test_a_listed_job_without_an_id_is_no_listing(reply: dict[str, Any], lane: Lane, server: Server):
    server.replies({'batchInferenceJobs': [reply]})
    with pytest.raises((ListingIncomplete, ModelAPIError)):
        [batch async for batch in lane.listing()]


async def test_all_pages_of_the_listing_are_read(lane: Lane, server: Server):
    other = job_object(name='accounts/test/batchInferenceJobs/theirs', model='accounts/test/models/own')
    server.replies({'batchInferenceJobs': [job_object()], 'nextPageToken': 'n'}, {'batchInferenceJobs': [other]}, {})
    batches = [batch async for batch in lane.listing()]
    assert [(batch.id, batch.model_name) for batch in batches] == [
        (NAME, MODEL),
        ('theirs', 'accounts/test/models/own'),
    ]
    assert [call.url.params.get('pageToken') for call in server.calls] == [None, 'n']
    assert [batch async for batch in lane.listing()] == []


@pytest.mark.parametrize('made_up', ['../secrets', 'a/b', '', 'a?b'])
async def test_an_id_that_a_history_made_up_is_put_into_no_path(made_up: str, lane: Lane, server: Server):
    batch = replace(handle(), id=made_up)
    with pytest.raises(UserError, match='no ID'):
        await lane.status(batch)
    with pytest.raises(UserError, match='no ID'):
        [result async for result in lane.results(handle(output_dataset=made_up))]
    await lane.clean_up(handle(input_dataset=made_up), handle())
    assert server.calls == []


async def test_it_cannot_be_cancelled_and_says_so(fake: FakeProviders, model: Any, clock: ManualClock):
    job = await clock.run(submit_batch(model, requests_of(ROWS), clock=clock))
    with pytest.raises(BatchNotCancellable, match='cannot cancel'):
        await clock.run(cancel_batch(job, model=model, clock=clock))
    with pytest.raises(ModelAPIError, match='no call that cancels'):
        await lane_for(model).cancel(handle())
    assert fake.fireworks.count('unknown') == 0


async def test_the_batch_of_a_call_that_is_cancelled_goes_on_and_a_warning_says_so(
    fake: FakeProviders, model: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    call = asyncio.ensure_future(model_request_batch(model, requests_of(ROWS), clock=clock))
    await clock.until_asleep()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert 'could not be cancelled, and goes on' in caplog.text
    await clock.advance(timedelta(hours=1))
    assert billed(fake) == Counter(ROWS)


# How it reads results


async def test_signed_urls_are_called_without_anything_that_says_who_asks(lane: Lane, server: Server):
    await read(lane, server, {'out.jsonl': []})
    api, download = server.calls
    assert api.headers['authorization'] == 'Bearer sk-secret'
    assert str(download.url) == 'https://storage.test/out.jsonl?signature=s'
    assert download.headers.keys() <= {'host', 'accept', 'accept-encoding', 'connection', 'user-agent'}
    assert 'secret' not in repr(download.headers)


@pytest.mark.parametrize(
    'response',
    [
        {'id': 'r', 'choices': []},
        {'body': {'id': 'r', 'choices': []}},
        {'status_code': 200, 'body': {'id': 'r', 'choices': []}},
        {'status_code': '200', 'body': '{"id":"r","choices":[]}'},
        '{"id":"r","choices":[]}',
    ],
)
async def test_an_answer_is_read_with_and_without_a_body_around_it(response: Any, lane: Lane, server: Server):
    [result] = await read(lane, server, {'out.jsonl': [{'custom_id': 'a-0', 'response': response}]})
    assert result == BatchResult(custom_id='a-0', status='succeeded', body='{"id":"r","choices":[]}')


@pytest.mark.parametrize(
    ('line', 'status'),
    [
        ({'error': {'code': 429, 'message': 'slow'}}, 429),
        ({'error': {'code': 'RESOURCE_EXHAUSTED', 'message': 'slow'}}, 429),
        ({'error': {'code': '400', 'message': 'bad'}}, 400),
        ({'error': {'code': 'invalid_argument', 'message': 'bad'}}, 400),
        ({'error': {'code': 'invalid_request_error', 'message': 'bad'}}, 400),
        ({'error': {'type': 'rate_limit_exceeded', 'message': 'slow'}}, 429),
        ({'error': {'code': 'UNKNOWN', 'message': 'bad'}}, 500),
        ({'error': 'something broke'}, 500),
        ({'error': {'message': 'something broke'}}, 500),
        ({'response': {'error': {'code': 503, 'message': 'x'}}}, 503),
        ({'response': {'status_code': 404, 'body': {'error': {'message': 'x'}}}}, 404),
        ({'response': {'status_code': 404, 'body': None}}, 404),
        ({'code': 400, 'error': 'bad'}, 400),
        ({'response': None}, 500),
        ({}, 500),
    ],
)
async def test_the_error_of_a_request(line: dict[str, Any], status: int, lane: Lane, server: Server):
    [result] = await read(lane, server, {'error-data.jsonl': [{'custom_id': 'a-0', **line}]})
    assert isinstance(result, BatchResult)
    assert result.status == 'errored'
    assert json.loads(result.body or '')['status_code'] == status


async def test_files_of_errors_are_read_last_and_odd_lines_are_no_results(lane: Lane, server: Server):
    answer = {'id': 'r'}
    results = await read(
        lane,
        server,
        {
            'Error-data.jsonl': [{'custom_id': 'a-0', 'error': 'no'}],
            'z.jsonl': [{'custom_id': 'a-0', 'response': answer}, {'response': answer}, {'custom_id': 7}, [], None],
        },
    )
    assert [getattr(result, 'status', 'stray') for result in results] == ['succeeded', *['stray'] * 4, 'errored']
    assert [result.keyless for result in results if isinstance(result, Stray)] == [True, False, False, False]


@pytest.mark.parametrize('files', [{}, None, {'out.jsonl': None}])
async def test_a_completed_job_without_files_is_not_taken_for_one_that_ran_nothing(
    files: Any, lane: Lane, server: Server
):
    server.replies({'filenameToSignedUrls': files})
    with pytest.raises(ModelConnectionError, match='without'):
        [result async for result in lane.results(handle())]


@pytest.mark.parametrize('word', ['FAILED', 'EXPIRED', 'CANCELLED'])
async def test_a_job_that_ended_before_anything_was_run_has_no_results(word: str, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(404, json={'code': 5, 'message': 'no'})
    assert [result async for result in lane.results(handle(status=word))] == []
    counts = {'total': 3, 'completed': 1, 'failed': 0}
    with pytest.raises(ModelHTTPError):
        [result async for result in lane.results(handle(status=word, request_counts=counts))]
    with pytest.raises(ModelHTTPError):
        [result async for result in lane.results(handle())]


async def test_a_signed_url_that_fails_is_told_to_nobody(lane: Lane, server: Server):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == 'storage.test':
            return httpx2.Response(403, text='signature=s has expired')
        return httpx2.Response(200, json={'filenameToSignedUrls': {'o': 'https://storage.test/o?signature=s'}})

    server.answer = answer
    with pytest.raises(ModelHTTPError) as error:
        [result async for result in lane.results(handle())]
    assert 'signature' not in str(error.value)


@pytest.mark.parametrize(
    ('details', 'count', 'expected'),
    [
        ({'status': 'EXPIRED'}, 3, 'expired'),
        ({'status': 'CANCELLED'}, 3, 'canceled'),
        ({'status': 'COMPLETED'}, 3, 'again'),
        ({'status': 'EARLY_STOPPED'}, 3, 'again'),
        ({'status': 'FAILED'}, 3, 'again'),
        ({'status': 'FAILED', 'error': {'code': 'INVALID_ARGUMENT', 'message': 'line is no JSON'}}, 3, 'invalid'),
        ({'status': 'FAILED', 'error': {'code': 'INVALID_ARGUMENT', 'message': 'line is no JSON'}}, 1, 400),
        ({'status': 'FAILED', 'error': {'code': 'INVALID_ARGUMENT', 'message': 'Model is not served'}}, 3, 400),
        ({'status': 'FAILED', 'error': {'code': 'INTERNAL', 'message': 'oh no'}}, 3, 500),
        ({'status': 'FAILED', 'error': {'code': 'RESOURCE_EXHAUSTED', 'message': 'later'}}, 3, 429),
        ({'status': 'FAILED', 'error': {'message': 'line is no JSON'}}, 1, 400),
    ],
)
async def test_a_request_without_a_result(details: dict[str, Any], count: int, expected: Any, lane: Lane):
    batch = replace(handle(**details), request_count=count)
    outcome = lane.unlisted(batch, 'a-0')
    if isinstance(outcome, NotRun):
        assert expected == (outcome.cause or 'again')
        assert outcome.again is (outcome.cause is None)
    elif outcome.status == 'errored':
        assert json.loads(outcome.body or '')['status_code'] == expected
    else:
        assert outcome.status == expected


# With the fake


def strict(model: str) -> dict[str, Any]:
    """The schema of an answer of Fireworks' SDK, which takes no name that it does not know."""
    schema = read_schemas('sdk_batch_models.jsonschema.json')['fireworks-ai']['models'][model]
    for part in (schema, *schema.get('$defs', {}).values()):
        part['additionalProperties'] = False
    return schema


@pytest.mark.skipif(not SPECS.is_dir(), reason='the published specs are not on this machine')
async def test_the_fake_answers_and_the_lane_orders_in_the_sdks_names(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    job = jsonschema_rs.validator_for(strict('fireworks.types.batch_inference_job:BatchInferenceJob'))
    dataset = jsonschema_rs.validator_for(strict('fireworks.types.dataset:Dataset'))
    await run(clock, model)
    for batch in fake.fireworks.batches.values():
        job.validate(batch.to_json())
    for made in fake.fireworks.datasets.values():
        dataset.validate(made.to_json('test', clock.now()))
    calls = {call.operation: call for call in fake.fireworks.calls}
    job.validate(json.loads(calls['create'].body))
    dataset.validate(json.loads(calls['dataset'].body)['dataset'])


@pytest.mark.parametrize('wrapped', [False, True])
async def test_answers_and_errors_come_from_both_files(
    wrapped: bool, fake: FakeProviders, model: Any, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, None, 'it is not to be') if request.text == 'row 3' else echo(request)

    fake.answer, fake.fireworks.wrapped = answer, wrapped
    outcomes = await run(clock, model)
    assert [*outcomes[:3], *outcomes[4:]] == [*ANSWERS[:3], *ANSWERS[4:]]
    assert isinstance(outcomes[3], ModelHTTPError)
    assert 'it is not to be' in str(outcomes[3])
    assert fake.fireworks.count('download') == 2


def _stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def test_results_that_their_owner_deleted_are_said_to_be_gone(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    def collector() -> Agent[None, Any]:
        return Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])

    result = await clock.run(collector().run('hello'))
    await clock.advance(timedelta(hours=1))
    fake.fireworks.inject('files', 'http', status=404, times=None)
    history = result.all_messages()
    for _ in range(3):
        history = (await collector().run(message_history=_stored(history))).all_messages()
    with pytest.raises(SuspendedResponseExpired, match='without its last response'):
        await collector().run(message_history=_stored(history))
    assert fake.fireworks.count('create') == 1


async def test_a_job_that_fails_for_a_request_is_searched_for_it(fake: FakeProviders, model: Any, clock: ManualClock):
    def is_wrong(request: FakeRequest) -> bool:
        return request.text == 'row 3'

    errors = [{'code': 'INVALID_ARGUMENT', 'message': 'a line is wrong'}]
    fake.fireworks.inject('batch', 'fail', errors=errors, rows=is_wrong, times=None)
    outcomes = await run(clock, model)
    assert [*outcomes[:3], *outcomes[4:]] == [*ANSWERS[:3], *ANSWERS[4:]]
    assert isinstance(outcomes[3], ModelHTTPError)
    assert billed(fake) == Counter(row for row in ROWS if row != 'row 3')
