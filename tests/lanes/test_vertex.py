"""The lane of Gemini on Google Cloud: what it sends, whose it is, and how leniently its files are read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.auth import exceptions as auth_errors
from google.auth.credentials import Credentials as AnyCredentials
from google.genai import Client
from google.genai.types import HttpOptions
from google.oauth2.credentials import Credentials
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    UserError,
)
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.providers.google_cloud import GoogleCloudProvider

from pydantic_ai_batch import BatchModelRequests, Lane, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import RequestNotSendable, ResultIntegrityError
from pydantic_ai_batch.lanes.base import TAG_KEY, ListingIncomplete, NotCreated, NotRun, Payload, Sought, Stray
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

from .harness import echo, requests_of
from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
TAG = 't' * 20
GROUP = '{"model":"gemini-2.5-flash"}'
JOB = 'projects/123/locations/us-central1/batchPredictionJobs/456'
PLACE = 'gs://bucket/a/b'
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]


def model_with(client: Client) -> GoogleModel:
    return GoogleModel('gemini-2.5-flash', provider=GoogleCloudProvider(client=client))


def client_over(server: Server, credentials: Any = None, **options: Any) -> Client:
    http_client = httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle))
    return Client(
        vertexai=True,
        project='my-project',
        location='us-central1',
        credentials=credentials or Credentials(token='secret'),
        http_options=HttpOptions(httpx_async_client=http_client, **options),
    )


@pytest.fixture(autouse=True)
def bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('GOOGLE_CLOUD_BATCH_GCS_URI', PLACE)
    monkeypatch.delenv('STORAGE_EMULATOR_HOST', raising=False)


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Any]:
    client = client_over(server)
    yield lane_for(model_with(client))
    await client.aio.aclose()


@pytest.fixture
async def vertex(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., GoogleModel]]:
    """Makes models on a fake, with the place in Cloud Storage set."""
    clients: list[Client] = []

    def make(fake: FakeProviders, **settings: Any) -> GoogleModel:
        for name, value in fake.vertex.environment.items():
            monkeypatch.setenv(name, value)
        clients.append(fake.vertex.client(**settings))
        return model_with(clients[-1])

    yield make
    for client in clients:
        await client.aio.aclose()


def job_object(**changes: Any) -> dict[str, Any]:
    return {'name': JOB, 'displayName': f'pab-{TAG}', 'state': 'JOB_STATE_RUNNING', **changes}


def handle(**details: Any) -> Batch:
    return Batch(
        id=JOB,
        model_name='gemini-2.5-flash',
        provider_name='google-cloud',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details={'state': 'JOB_STATE_SUCCEEDED', **details},
    )


def line(custom_id: str | None = f'{TAG}-0', **changes: Any) -> dict[str, Any]:
    labels = {} if custom_id is None else {TAG_KEY: custom_id}
    answer = {'candidates': [{'content': {'parts': [{'text': 'hi'}]}}]}
    return {'status': '', 'request': {'labels': labels}, 'response': answer, **changes}


async def read(lane: Lane, server: Server, files: dict[str, list[Any]]) -> list[BatchResult | Stray]:
    """What the lane reads of the files below a place."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith('/o'):
            return httpx2.Response(200, json={'items': [{'name': name} for name in files]})
        content = files[request.url.path.partition('/o/')[2]]
        return httpx2.Response(200, content=b''.join(json.dumps(item).encode() + b'\n' for item in content))

    server.answer = answer
    return [result async for result in lane.results(handle(output_directory=PLACE))]


# What it asks for


async def test_the_input_goes_to_the_bucket_and_the_job_names_it(lane: Lane, server: Server):
    server.replies({}, job_object())
    with Payload(lane, GROUP, TAG) as payload:
        payload.add(b'{"labels":{},"contents":[]}')
        payload.add(b'{"labels":{"team":"x"},"contents":[]}')
        batch = await lane.create(payload)
    upload, create = server.calls
    assert str(upload.url) == (
        f'https://storage.googleapis.com/upload/storage/v1/b/bucket/o?uploadType=media&name=a%2Fb%2Fpab-{TAG}.jsonl'
    )
    lines = [json.loads(item) for item in upload.content.split(b'\n') if item]
    assert lines == [
        {'request': {'labels': {TAG_KEY: f'{TAG}-0'}, 'contents': []}},
        {'request': {'labels': {TAG_KEY: f'{TAG}-1', 'team': 'x'}, 'contents': []}},
    ]
    assert upload.headers['content-length'] == str(len(upload.content))
    assert str(create.url) == (
        'https://us-central1-aiplatform.googleapis.com/v1beta1'
        '/projects/my-project/locations/us-central1/batchPredictionJobs'
    )
    assert json.loads(create.content) == {
        'displayName': f'pab-{TAG}',
        'model': 'publishers/google/models/gemini-2.5-flash',
        'labels': {TAG_KEY: TAG},
        'inputConfig': {'instancesFormat': 'jsonl', 'gcsSource': {'uris': [f'{PLACE}/pab-{TAG}.jsonl']}},
        'outputConfig': {
            'predictionsFormat': 'jsonl',
            'gcsDestination': {'outputUriPrefix': f'{PLACE}/pab-{TAG}'},
        },
    }
    assert {call.headers['authorization'] for call in server.calls} == {'Bearer secret'}
    assert (batch.id, batch.request_count, batch.status) == (JOB, 2, 'in_progress')
    assert 'secret' not in repr(batch)


async def test_a_failed_upload_is_no_create_and_an_upload_that_went_well_is_not_repeated(lane: Lane, server: Server):
    with Payload(lane, GROUP, TAG) as payload:
        payload.add(b'{"labels":{}}')
        server.answer = lambda request: httpx2.Response(503)
        with pytest.raises(NotCreated):
            await lane.create(payload)
        server.replies({}, {'error': {'code': 500, 'message': 'oh no'}})
        server.answer = lambda request: httpx2.Response(200 if 'upload' in str(request.url) else 500, json={})
        with pytest.raises(ModelServerError):
            await lane.create(payload)
        server.answer = lambda request: httpx2.Response(200, json=job_object())
        await lane.create(payload)
    assert ['upload' in str(call.url) for call in server.calls] == [True, True, False, False]


@pytest.mark.parametrize('status', [403, 404])
async def test_a_bucket_that_is_not_there_or_not_allowed_is_named_with_its_variable(
    status: int, vertex: Callable[..., GoogleModel], clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.vertex.inject('upload', 'http', status=status)
        [error] = await clock.run(model_request_batch(vertex(fake), requests_of(['a']), clock=clock))
        fake.vertex.inject('download', 'http', status=status, times=None)
        [unread] = await clock.run(model_request_batch(vertex(fake), requests_of(['a']), clock=clock))
    for raised in (error, unread):
        assert isinstance(raised, ModelHTTPError)
        assert not isinstance(raised, ModelNotFoundError)
        assert "'test-bucket'" in str(raised)
        assert '`GOOGLE_CLOUD_BATCH_GCS_URI`' in str(raised)


@pytest.mark.parametrize('uri', ['', 'bucket/folder', 's3://bucket/folder', 'gs://'])
async def test_without_a_place_in_cloud_storage_nothing_is_sent(
    uri: str, lane: Lane, server: Server, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('GOOGLE_CLOUD_BATCH_GCS_URI', uri)
    with pytest.raises(UserError, match='`GOOGLE_CLOUD_BATCH_GCS_URI` to a place in Cloud Storage'):
        await clock.run(model_request_batch(lane.model, requests_of(ROWS), clock=clock))
    assert server.calls == []


async def test_a_key_of_the_express_mode_which_opens_no_bucket_is_refused(clock: ManualClock):
    client = Client(vertexai=True, api_key='key')
    with pytest.raises(UserError, match='which opens no bucket'):
        await clock.run(model_request_batch(model_with(client), requests_of(ROWS), clock=clock))
    await client.aio.aclose()


async def test_the_emulator_that_googles_libraries_know_stands_in_for_cloud_storage(
    lane: Lane, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('STORAGE_EMULATOR_HOST', 'localhost:4443')
    await read(lane, server, {'a/b/predictions.jsonl': [line()]})
    assert {call.url.host for call in server.calls} == {'localhost'}


async def test_what_the_client_adds_to_each_call_goes_with_these_too(server: Server):
    credentials = Credentials(token='secret', quota_project_id='billed')
    client = client_over(server, credentials, headers={'x-team': 'evals'}, api_version='v1')
    server.replies(job_object())
    await lane_for(model_with(client)).status(handle())
    (call,) = server.calls
    assert call.url.path.startswith('/v1/projects/123/')
    assert (call.headers['x-goog-user-project'], call.headers['x-team']) == ('billed', 'evals')
    await client.aio.aclose()


@pytest.mark.parametrize(
    ('name', 'resource'),
    [
        ('gemini-2.5-flash', 'publishers/google/models/gemini-2.5-flash'),
        ('meta/llama-4', 'publishers/meta/models/llama-4'),
        ('projects/p/locations/l/models/1', 'projects/p/locations/l/models/1'),
    ],
)
async def test_a_model_is_named_as_the_resource_that_it_is(name: str, resource: str, server: Server):
    client = client_over(server)
    lane = lane_for(GoogleModel(name, provider=GoogleCloudProvider(client=client)))
    server.replies({}, job_object())
    with Payload(lane, GROUP, TAG) as payload:
        payload.add(b'{"labels":{}}')
        await lane.create(payload)
    assert json.loads(server.calls[-1].content)['model'] == resource
    await client.aio.aclose()


async def test_a_label_of_the_name_of_ours_does_not_take_its_place(
    vertex: Callable[..., GoogleModel], clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        settings = GoogleModelSettings(google_labels={TAG_KEY: 'mine', 'team': 'evals'})
        requests = [replace(request, model_settings=settings) for request in requests_of(ROWS)]
        outcomes = await clock.run(model_request_batch(vertex(fake), requests, clock=clock))
        assert [getattr(outcome, 'text', outcome) for outcome in outcomes] == ANSWERS
        assert fake.vertex.count('create') == 1


@pytest.mark.parametrize(
    'labels',
    [
        {'Team': 'evals'},
        {'team': 'Evals'},
        {'team': 'the evals'},
        {'team': 'e' * 64},
        {'t' * 64: 'evals'},
        {'7th': 'evals'},
        {'': 'evals'},
    ],
)
async def test_a_label_that_google_does_not_take_is_refused_before_anything_is_sent(
    labels: dict[str, str], lane: Lane, server: Server, clock: ManualClock
):
    request = replace(requests_of(['a'])[0], model_settings=GoogleModelSettings(google_labels=labels))
    [refused] = await clock.run(model_request_batch(lane.model, [request], clock=clock))
    assert isinstance(refused, RequestNotSendable)
    assert f'{next(iter(labels))!r}: ' in str(refused)
    assert server.calls == []


async def test_as_many_labels_as_google_takes_beside_ours_are_sent(lane: Lane):
    most = {f'label-{n}': 'größe_1' if n else '' for n in range(63)}
    for labels in (most, {**most, TAG_KEY: 'mine'}):
        settings = GoogleModelSettings(google_labels=labels)
        encoded = await lane.encode(replace(requests_of(['a'])[0], model_settings=settings))
        assert json.loads(encoded.body)['labels'] == most
    settings = GoogleModelSettings(google_labels={**most, 'one-more': 'x'})
    with pytest.raises(UserError, match='at most 63 labels'):
        await lane.encode(replace(requests_of(['a'])[0], model_settings=settings))


async def test_a_status_that_is_none_says_nothing_about_the_job(lane: Lane, server: Server):
    server.replies({})
    with pytest.raises(ModelConnectionError, match='no batch'):
        await lane.status(handle())


async def test_labels_of_the_user_stay_and_raw_bodies_get_one(vertex: Callable[..., GoogleModel], clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = vertex(fake)
        settings = GoogleModelSettings(google_labels={'team': 'evals'})
        [answer] = await clock.run(
            model_request_batch(model, [replace(requests_of(['a'])[0], model_settings=settings)], clock=clock)
        )
        assert not isinstance(answer, ModelAPIError)
        assert answer.text == 'answer to a'
        (billed,) = fake.vertex.billed
        assert billed.body['labels'] == {'team': 'evals'}
        lane = lane_for(model)
        with Payload(lane, await lane.identity()) as payload:
            body = {'contents': [{'role': 'user', 'parts': [{'text': 'raw'}]}], 'labels': {'team': 'raw'}}
            wire_id = payload.add(json.dumps(body).encode(), wire_id='my-row')
            batch = await lane.create(payload)
        await clock.advance(timedelta(hours=1))
        [result] = [result async for result in lane.results(await lane.status(batch))]
        assert isinstance(result, BatchResult)
        assert (result.custom_id, result.status) == (wire_id, 'succeeded')


# Whose it is


class Renewed(AnyCredentials):
    """Credentials of a service account, with another token each time they are asked for one."""

    service_account_email: str

    def __init__(self, email: str) -> None:
        super().__init__()
        self.service_account_email = email
        self.times = 0

    def refresh(self, request: Any) -> None:
        self.times += 1
        self.token = f'token-{self.times}'


class Revoked(Renewed):
    def __init__(self, email: str, error: Exception) -> None:
        super().__init__(email)
        self.error = error

    def refresh(self, request: Any) -> None:
        raise self.error


async def test_a_batch_outlives_the_token_that_it_was_made_with(server: Server):
    credentials = Renewed('me@project')
    client = client_over(server, credentials)
    lane = lane_for(model_with(client))
    server.replies(job_object())
    before = await lane.identity()
    for _ in range(2):
        await lane.status(handle())
        # As it is once it has expired.
        credentials.token = ''
    assert await lane.identity() == before
    first, second = (call.headers['authorization'] for call in server.calls)
    assert first != second
    await client.aio.aclose()


async def test_requests_of_others_share_no_batch(server: Server, monkeypatch: pytest.MonkeyPatch):
    groups: list[str] = []

    async def note(client: Client) -> None:
        groups.append(await lane_for(model_with(client)).identity())
        await client.aio.aclose()

    for credentials in (Renewed('me@project'), Renewed('you@project'), Credentials(token='a'), Credentials(token='b')):
        await note(client_over(server, credentials))
    monkeypatch.setenv('GOOGLE_CLOUD_BATCH_GCS_URI', 'gs://another-bucket')
    await note(client_over(server, Renewed('me@project')))
    await note(Client(vertexai=True, project='other', location='us-central1', credentials=Credentials(token='a')))
    assert len(set(groups)) == len(groups)
    assert not [group for group in groups if 'me@project' in group]


@pytest.mark.parametrize(
    'error', [auth_errors.RefreshError('revoked'), OSError('revoked'), ValueError('revoked'), RuntimeError('revoked')]
)
async def test_credentials_that_cannot_be_renewed_send_nothing(error: Exception, server: Server):
    client = client_over(server, Revoked('me@project', error))
    with pytest.raises(ModelConnectionError, match='could not be renewed: revoked') as raised:
        await lane_for(model_with(client)).status(handle())
    # So a create may be tried again.
    assert raised.value.phase == 'connect'
    assert server.calls == []
    await client.aio.aclose()


@pytest.mark.parametrize('content', ['{', '[]', '{"type":"authorized_user"}'])
async def test_credentials_that_cannot_be_read_are_the_callers_to_mend(
    content: str, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    file = tmp_path / 'credentials.json'
    file.write_text(content)
    monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(file))
    client = client_over(server)
    client._api_client._credentials = None
    with pytest.raises(UserError, match='credentials for Google Cloud'):
        await lane_for(model_with(client)).status(handle())
    assert server.calls == []
    await client.aio.aclose()


def test_a_name_without_a_project_says_where_it_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    file = tmp_path / 'credentials.json'
    file.write_text('{"type":"authorized_user","client_id":"a","client_secret":"b","refresh_token":"c"}')
    monkeypatch.setenv('GOOGLE_APPLICATION_CREDENTIALS', str(file))
    monkeypatch.setenv('PATH', str(tmp_path))
    monkeypatch.setenv('NO_GCE_CHECK', 'true')
    for name in ('GOOGLE_API_KEY', 'GEMINI_API_KEY', 'GOOGLE_CLOUD_PROJECT', 'GCLOUD_PROJECT'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match='`GOOGLE_CLOUD_PROJECT`'):
        lane_for('vertex:gemini-2.5-flash')


def test_a_name_without_credentials_says_where_they_are_looked_for(monkeypatch: pytest.MonkeyPatch):
    for name in ('GOOGLE_APPLICATION_CREDENTIALS', 'GOOGLE_API_KEY', 'GEMINI_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('NO_GCE_CHECK', 'true')
    for prefix in ('vertex', 'google-cloud', 'vertexai'):
        with pytest.raises(UserError, match='`GOOGLE_APPLICATION_CREDENTIALS`'):
            lane_for(f'{prefix}:gemini-2.5-flash')


@pytest.mark.parametrize(
    'made_up',
    ['456', 'projects/p/locations/l/batchPredictionJobs/1:cancel?x=', 'projects/../locations/l/batchPredictionJobs/1'],
)
async def test_a_name_that_a_history_made_up_goes_into_no_path(made_up: str, lane: Lane, server: Server):
    for call in (lane.status, lane.cancel):
        with pytest.raises(UserError, match='no name of a batch prediction job'):
            await call(replace(handle(), id=made_up))
    assert server.calls == []


# What it reads


async def test_every_file_of_predictions_is_read_and_no_other(lane: Lane, server: Server):
    found = await read(
        lane,
        server,
        {
            'a/b/prediction-x/incremental_predictions.jsonl': [line('incremental-0')],
            'a/b/prediction-x/predictions_00001.jsonl': [line('second-0')],
            'a/b/prediction-x/predictions_00000.jsonl': [line('first-0')],
            'a/b/prediction-x/errors_stats-00000-of-00001': [line('other-0')],
            'a/b/prediction-x/input.jsonl': [line('input-0')],
        },
    )
    # What may be half of it comes last: the first line of a row counts.
    assert [result.custom_id for result in found] == ['first-0', 'second-0', 'incremental-0']


@pytest.mark.parametrize('files', [1, 3])
async def test_a_batch_in_several_files_is_joined_by_its_labels(
    files: int, vertex: Callable[..., GoogleModel], clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.vertex.files = files
        outcomes = await clock.run(model_request_batch(vertex(fake), requests_of(ROWS), clock=clock))
        assert [getattr(outcome, 'text', outcome) for outcome in outcomes] == ANSWERS
        # The input is deleted, and the results are left to the owner of the bucket.
        names = [item.name.rpartition('/')[2] for item in fake.vertex.objects]
        assert len([name for name in names if name.startswith('predictions')]) == files
        assert not [name for name in names if name.startswith('pab-')]


async def test_rows_without_a_label_are_kept_and_sent_to_nobody(vertex: Callable[..., GoogleModel], clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        fake.vertex.rewrite_results = lambda lines, kind: [
            json.dumps({**json.loads(item), 'request': {}}).encode() for item in lines
        ]
        outcomes = await clock.run(model_request_batch(vertex(fake), requests_of(ROWS), clock=clock))
        assert {type(outcome) for outcome in outcomes} == {ResultIntegrityError}
        assert fake.vertex.count('create') == 1


ERROR = {'error': {'code': 429, 'message': 'Quota exceeded', 'status': 'RESOURCE_EXHAUSTED'}}


@pytest.mark.parametrize(
    ('status', 'code', 'message'),
    [
        (f'Too Many Requests: {json.dumps(ERROR)}', 429, 'Quota exceeded'),
        ('Bad Request: no contents', 400, 'Bad Request: no contents'),
        ('Deadline Exceeded', 504, 'Deadline Exceeded'),
        ('Bad Request: {half', 400, 'Bad Request: {half'),
        ('whatever', 500, 'whatever'),
        ({'code': 8, 'message': 'exhausted'}, 429, 'exhausted'),
        (None, 500, 'The provider returned neither a response nor an error.'),
    ],
)
async def test_the_status_of_a_row_is_read_whatever_it_looks_like(
    status: Any, code: int, message: str, lane: Lane, server: Server
):
    [result] = await read(lane, server, {'a/b/predictions.jsonl': [line(status=status, response={})]})
    assert isinstance(result, BatchResult)
    body = json.loads(result.body or '')
    assert (result.status, body['status_code'], body['body']['error']['message']) == ('errored', code, message)


@pytest.mark.parametrize(
    ('error', 'error_class'),
    [
        (FakeError(400, None, 'no'), ModelRequestRejectedError),
        (FakeError(429, None, 'slow down'), ModelRateLimitError),
        (FakeError(500, None, 'oh no'), ModelServerError),
    ],
)
async def test_a_row_fails_with_the_error_that_a_live_request_raises(
    error: FakeError, error_class: type[Exception], vertex: Callable[..., GoogleModel], clock: ManualClock
):
    with FakeProviders(lambda request: error, clock=clock) as fake:
        model = vertex(fake)
        [batched] = await clock.run(model_request_batch(model, requests_of(['a']), max_resubmissions=0, clock=clock))
        with pytest.raises(error_class) as live:
            await Agent(model, retries=0).run('a')
        assert type(batched) is type(live.value)
        assert error.message in str(batched)


async def test_what_an_expired_job_finished_is_kept_and_the_rest_is_sent_again(
    vertex: Callable[..., GoogleModel], clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.vertex.inject('batch', 'expire', done=4)
        outcomes = await clock.run(model_request_batch(vertex(fake), requests_of(ROWS), clock=clock))
        assert [getattr(outcome, 'text', outcome) for outcome in outcomes] == ANSWERS
        assert [row.text for row in fake.vertex.billed].count('row 0') == 1
        assert [len(batch.requests) for batch in fake.vertex.batches.values()] == [6, 2]


async def test_a_job_that_says_it_succeeded_and_has_no_files_yet_is_read_again(lane: Lane, server: Server):
    with pytest.raises(ModelConnectionError, match='without files of results'):
        await read(lane, server, {})
    server.replies({})
    details = {'state': 'JOB_STATE_EXPIRED', 'output_directory': PLACE}
    assert [result async for result in lane.results(handle(**details))] == []


@pytest.mark.parametrize('word', ['JOB_STATE_SUCCEEDED', 'BATCH_STATE_SUCCEEDED', 'job_state_succeeded', 'SUCCEEDED'])
async def test_states_are_known_by_their_last_word(word: str, lane: Lane, server: Server):
    server.replies(job_object(state=word, completionStats={'successfulCount': '2', 'incompleteCount': '-1'}))
    batch = await lane.status(handle())
    assert (batch.status, lane.word(batch), lane.readable(batch)) == ('ended', 'SUCCEEDED', 3)


async def test_the_directory_that_the_job_tells_now_is_read_and_none_that_a_ticket_does(lane: Lane, server: Server):
    server.replies(job_object(outputInfo={'gcsOutputDirectory': 'gs://bucket/true'}))
    batch = await lane.status(handle(output_directory='gs://evil/elsewhere'))
    assert (batch.provider_details or {})['output_directory'] == 'gs://bucket/true'
    server.replies(job_object())
    batch = await lane.status(handle(output_directory='gs://evil/elsewhere'))
    assert 'output_directory' not in (batch.provider_details or {})


@pytest.mark.parametrize(('code', 'cause'), [(8, 'full_queue'), (429, 'full_queue'), (3, 'invalid'), (13, None)])
async def test_why_a_job_failed_decides_what_is_done_about_it(code: int, cause: str | None, lane: Lane):
    batch = handle(state='JOB_STATE_FAILED', error={'code': code, 'message': 'no'})
    found = lane.unlisted(batch, f'{TAG}-0')
    assert (found.cause if isinstance(found, NotRun) else None) == cause


async def test_a_listing_that_is_none_proves_nothing(lane: Lane, server: Server):
    sought = Sought(TAG, GROUP)
    for page in ({'batchPredictionJobs': {}}, {'batchPredictionJobs': [{'name': JOB}]}, {'batchPredictionJobs': [{}]}):
        server.replies(page)
        with pytest.raises(ListingIncomplete):
            await lane.find(sought, since=CREATED)
    server.replies({'batchPredictionJobs': [job_object(displayName='pab-other')], 'nextPageToken': 'more'}, {})
    assert await lane.find(sought, since=CREATED) == []
    server.replies({'batchPredictionJobs': [{'name': f'{JOB}7'}, job_object()]})
    assert [batch.id for batch in await lane.find(sought, since=CREATED)] == [JOB]
    assert server.calls[-1].url.params['filter'] == f'display_name="pab-{TAG}"'


async def test_a_file_is_known_again_only_by_the_place_that_it_went_to(
    lane: Lane, server: Server, monkeypatch: pytest.MonkeyPatch
):
    group, source = await lane.identity(), f'{PLACE}/pab-{TAG}.jsonl'
    same = Sought(TAG, group)
    await lane.recall(same, since=CREATED)
    assert same.receipt == {'input_file': source}
    monkeypatch.setenv('GOOGLE_CLOUD_BATCH_GCS_URI', 'gs://others-bucket')
    moved = Sought(TAG, group)
    await lane.recall(moved, since=CREATED)
    await lane.discard(moved)
    assert (moved.receipt, server.calls) == ({}, [])
    for uris, known in (([source], source), (['gs://bucket/everyones.jsonl', None], None), (None, None)):
        sought = Sought(TAG, group)
        server.replies({'batchPredictionJobs': [job_object(inputConfig={'gcsSource': {'uris': uris}})]})
        [batch] = await lane.find(sought, since=CREATED)
        assert (batch.provider_details or {}).get('input_file') == known


async def test_agents_with_tools_go_through_it_and_each_answer_says_that_it_was_batched(
    vertex: Callable[..., GoogleModel], clock: ManualClock
):
    def answer(request: FakeRequest) -> str:
        return f'{request.text}: {request.tool_results}'

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(vertex(fake), capabilities=[BatchModelRequests(max_requests=3, clock=clock)])
        results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS[:3]]))
        assert [result.output for result in results] == [f'{row}: 0' for row in ROWS[:3]]
        assert fake.vertex.count('create') == 1
        assert {(result.response.provider_details or {})['processing'] for result in results} == {'batch'}


async def test_a_success_without_an_answer_is_unreadable(lane: Lane, server: Server):
    empty = line(response={'usageMetadata': {}}, status='')
    [result] = await read(lane, server, {'a/b/predictions.jsonl': [empty]})
    assert isinstance(result, BatchResult)
    request = BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('a')])
    with pytest.raises(ModelAPIError, match='neither an answer nor a reason'):
        await lane.decode(result, request)


async def test_another_project_is_no_place_to_look_for_a_batch(server: Server):
    keys: list[dict[str, str]] = []
    for project in ('one', 'two'):
        client = Client(
            vertexai=True, project=project, location='us-central1', credentials=Credentials(token='the same')
        )
        keys.append(json.loads(await lane_for(model_with(client)).identity()))
        await client.aio.aclose()
    # What a lost batch is looked for by leaves out who asks, and keeps where.
    assert keys[0]['endpoint'] != keys[1]['endpoint']


async def test_what_the_users_client_adds_for_a_gateway_is_not_told_to_cloud_storage(server: Server):
    client = client_over(server, base_url='https://gateway.test', headers={'x-gateway-key': 'secret'})
    lane = lane_for(model_with(client))
    server.replies({}, job_object())
    with Payload(lane, GROUP, TAG) as payload:
        payload.add(b'{"labels":{}}')
        await lane.create(payload)
    upload, create = server.calls
    assert (upload.url.host, create.url.host) == ('storage.googleapis.com', 'gateway.test')
    assert 'x-gateway-key' not in upload.headers
    assert create.headers['x-gateway-key'] == 'secret'
    await client.aio.aclose()


async def test_credentials_that_are_renewed_and_say_not_whose_they_are_keep_their_group(server: Server):
    class Federated(Renewed):
        service_account_email = ''

        def __init__(self) -> None:
            super().__init__('')
            self.audience = '//iam.googleapis.com/pool'

    credentials = Federated()
    client = client_over(server, credentials)
    lane, groups = lane_for(model_with(client)), set[str]()
    for _ in range(3):
        groups.add(await lane.identity())
        credentials.token = ''
        server.replies(job_object())
        await lane.status(handle())
    assert len(groups) == 1
    await client.aio.aclose()


async def test_half_a_character_is_escaped_in_the_input_file(lane: Lane):
    request = BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('bad \ud800')])
    encoded = await lane.encode(request)
    lane.frame('a-0', encoded.body.encode()).decode()
    assert '\\ud800' in encoded.body


async def test_an_answer_that_was_blocked_is_one_whatever_the_status_says(lane: Lane, server: Server):
    blocked = line(status='OK', response={'promptFeedback': {'blockReason': 'SAFETY'}})
    [result] = await read(lane, server, {'a/b/predictions.jsonl': [blocked]})
    assert isinstance(result, BatchResult)
    assert result.status == 'succeeded'
