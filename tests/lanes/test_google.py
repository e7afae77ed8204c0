"""The lane of the Gemini API: inline or file, and the many forms in which an operation holds its results."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from google.genai import Client
from google.genai.types import HttpOptions
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
)
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from pydantic_ai_batch import BatchRequest, Lane, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import ResultIntegrityError, ResultUnreadable, batch_of
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotCreated, NotRun, Payload, Stray
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

from .harness import echo
from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"model":"gemini-2.5-flash"}'
TAG = 't' * 20
NAME = 'batches/b1'
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]


MakeModel = Callable[..., GoogleModel]


@pytest.fixture
async def model_of_google() -> AsyncIterator[MakeModel]:
    clients: list[Client] = []

    def make(fake: FakeProviders, **client: Any) -> GoogleModel:
        clients.append(fake.google.client(**client))
        return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=clients[-1]))

    yield make
    for client in clients:
        await client.aio.aclose()


@pytest.fixture(params=['inline', 'file'])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way for requests to get to Google, in turn."""
    if request.param == 'file':
        monkeypatch.setattr(google, 'INLINE_BYTES', 0)
    return request.param


@pytest.fixture
def as_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any batch is too large to be sent inline."""
    monkeypatch.setattr(google, 'INLINE_BYTES', 0)


async def run(clock: ManualClock, model: GoogleModel, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    """The text of each row's answer, or its error."""
    requests = [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in rows]
    outcomes = await clock.run(model_request_batch(model, requests, clock=clock, **settings))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def billed(fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in fake.google.billed)


def created(fake: FakeProviders) -> list[dict[str, Any]]:
    """What each create asked for."""
    return [json.loads(call.body)['batch'] for call in fake.google.calls if call.operation == 'create']


# Inline or file


@pytest.mark.parametrize(('size', 'uploads'), [(2_000, 0), (12_000, 1)])
async def test_a_large_batch_goes_up_as_a_file_and_a_small_one_inline(
    size: int,
    uploads: int,
    model_of_google: MakeModel,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(google, 'INLINE_BYTES', 10_000)
    with FakeProviders(lambda request: str(len(request.text)), clock=clock) as fake:
        assert await run(clock, model_of_google(fake), ['x' * size]) == [str(size)]
        assert fake.google.count('upload') == fake.google.count('delete_file') == uploads
        (order,) = created(fake)
        assert ('fileName' in order['inputConfig'], 'requests' in order['inputConfig']) == (uploads == 1, uploads == 0)
        assert fake.google.count('download') == uploads


@pytest.mark.parametrize('text', ['ü' * 800, '漢' * 1_200, '🙂' * 400, '\n"\\' * 500], ids=['ü', '漢', '🙂', 'escapes'])
async def test_the_inline_limit_holds_for_the_call_as_the_sdk_writes_it(
    text: str, model_of_google: MakeModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """The SDK escapes what is not ASCII, so that the call is up to three times as long as the encoded requests."""
    monkeypatch.setattr(google, 'INLINE_BYTES', 4_000)
    with FakeProviders(lambda request: str(len(request.text)), clock=clock) as fake:
        fake.google.max_inline_bytes = 4_200
        assert await run(clock, model_of_google(fake), [text]) == [str(len(text))]
        assert fake.google.count('create') == 1


async def test_many_small_requests_stay_below_the_inline_limit_as_the_sdk_writes_them(
    model_of_google: MakeModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    """It puts a space after every colon and comma."""
    monkeypatch.setattr(google, 'INLINE_BYTES', 19_000)
    rows = [f'r{n}' for n in range(120)]
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.max_inline_bytes = 20_000
        assert await run(clock, model_of_google(fake), rows) == [f'answer to {row}' for row in rows]
        assert fake.google.count('create') == 1


async def test_the_inline_limit_leaves_room_below_googles(model_of_google: MakeModel, fake: FakeProviders):
    assert google.INLINE_BYTES < fake.google.max_inline_bytes == 20_000_000
    assert lane_for(model_of_google(fake)).max_bytes == 2_000_000_000


async def test_requests_reach_google_as_they_were_encoded(
    transport: str, model_of_google: MakeModel, fake: FakeProviders
):
    lane = lane_for(model_of_google(fake))
    bodies = [
        (await lane.encode(BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt(text)]))).body
        for text in ('plain', 'ü € 🙂 \u2028', '"quoted" \\ \n')
    ]
    with Payload(lane, await lane.identity(), tag=TAG) as payload:
        for body in bodies:
            payload.add(body.encode())
        batch = await lane.create(payload)
    fake_batch = fake.google.batches[batch.id]
    assert [(row.custom_id, row.body) for row in fake_batch.requests] == [
        (f'{TAG}-{n}', json.loads(body)) for n, body in enumerate(bodies)
    ]
    assert fake_batch.display_name == f'pab-{TAG}'
    assert (fake_batch.input_file is None) == (transport == 'inline')
    if transport == 'file':
        (upload,) = [call.body for call in fake.google.calls if call.operation == 'upload_bytes']
        lines = [b'{"key":"%b-%d","request":%b}\n' % (TAG.encode(), n, body.encode()) for n, body in enumerate(bodies)]
        assert upload == b''.join(lines)


async def test_an_input_file_is_deleted_once_its_batch_was_read(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        assert await run(clock, model_of_google(fake)) == ANSWERS
        operations = [call.operation for call in fake.google.calls]
        assert operations.count('upload') == operations.count('delete_file') == 1
        assert operations.index('delete_file') > operations.index('download')
        (deleted,) = [call.path for call in fake.google.calls if call.operation == 'delete_file']
        assert deleted.endswith(created(fake)[0]['inputConfig']['fileName'])


async def test_the_input_file_of_a_refused_create_is_deleted(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('create', 'http', status=400)
        outcomes = await run(clock, model_of_google(fake))
        assert [type(outcome) is not str for outcome in outcomes] == [True] * len(ROWS)
        assert (fake.google.count('create'), fake.google.count('delete_file')) == (1, 1)


async def test_an_upload_that_fails_is_not_yet_a_create(as_file: None, model_of_google: MakeModel, fake: FakeProviders):
    fake.google.inject('upload', 'http', status=503)
    lane = lane_for(model_of_google(fake))
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[]}')
        with pytest.raises(NotCreated) as raised:
            await lane.create(payload)
    assert isinstance(raised.value.__cause__, ModelHTTPError)
    assert fake.google.count('create') == 0


async def test_a_file_that_is_up_is_not_sent_up_again(as_file: None, model_of_google: MakeModel, fake: FakeProviders):
    fake.google.inject('create', 'http', status=503)
    lane = lane_for(model_of_google(fake))
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[{"parts":[{"text":"x"}]}]}')
        with pytest.raises(ModelHTTPError):
            await lane.create(payload)
        assert await lane.create(payload)
    assert (fake.google.count('upload'), fake.google.count('create')) == (1, 2)


# Where results are


@pytest.mark.parametrize('place', ['both', 'metadata', 'response'])
async def test_results_are_read_wherever_the_operation_has_them(
    place: Any, transport: str, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.output_in = place
        assert await run(clock, model_of_google(fake), max_resubmissions=0) == ANSWERS
        assert fake.google.count('download') == (transport == 'file')


async def test_a_batch_of_a_file_may_be_answered_inline(as_file: None, model_of_google: MakeModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.answers_inline = True
        assert await run(clock, model_of_google(fake), max_resubmissions=0) == ANSWERS
        assert (fake.google.count('upload'), fake.google.count('download')) == (1, 0)


@pytest.mark.parametrize('key_in', ['key', 'metadata'])
@pytest.mark.parametrize('error_key', ['error', 'status'])
async def test_keys_and_errors_are_read_in_either_form(
    key_in: Any, error_key: Any, transport: str, model_of_google: MakeModel, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, None, 'it is not to be') if request.text == 'row 3' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        fake.google.key_in, fake.google.error_key = key_in, error_key
        fake.google.ordered = False
        outcomes = await run(clock, model_of_google(fake))
        assert [*outcomes[:3], *outcomes[4:]] == [*ANSWERS[:3], *ANSWERS[4:]]
        assert isinstance(outcomes[3], ModelHTTPError)
        assert outcomes[3].status_code == 400
        assert 'it is not to be' in str(outcomes[3])
        assert fake.google.count('create') == 1


async def test_a_success_that_is_seen_before_its_output_is_waited_for(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.output_delay = 45.0
        assert await run(clock, model_of_google(fake), max_resubmissions=0) == ANSWERS
        assert fake.google.count('create') == 1
        assert billed(fake) == Counter(ROWS)


async def test_an_output_that_never_comes_leaves_the_rows_with_the_batch_and_pays_nothing_twice(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.output_delay = 10.0**9
        outcomes = await run(clock, model_of_google(fake))
        for outcome in outcomes:
            assert isinstance(outcome, ModelAPIError)
            batch = batch_of(outcome)
            assert batch is not None
            assert batch.id in fake.google.batches
        assert (fake.google.count('create'), fake.google.count('cancel')) == (1, 0)


async def test_a_long_file_id_goes_straight_to_the_download(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    """Asking for the file itself is refused for an ID of more than 40 characters, as those of result files are."""
    with FakeProviders(echo, clock=clock) as fake:
        assert await run(clock, model_of_google(fake)) == ANSWERS
        (download,) = [call.path for call in fake.google.calls if call.operation == 'download']
        assert len(download.partition('/files/')[2].removesuffix(':download')) > 40
        assert (fake.google.count('file'), fake.google.count('files')) == (0, 0)


# Results without keys


@pytest.mark.parametrize('ordered', [True, False])
async def test_inline_results_without_any_key_are_taken_in_their_order_with_a_warning(
    ordered: bool, model_of_google: MakeModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.echo_metadata = False
        fake.google.ordered = ordered
        answers = await run(clock, model_of_google(fake))
        # Only the order tells, so that one which is not kept cannot be noticed.
        assert (answers == ANSWERS) is ordered
        assert sorted(answers) == ANSWERS
        assert len([record for record in caplog.records if 'without keys' in record.getMessage()]) == 1
        assert fake.google.count('create') == 1


async def test_no_warning_is_given_where_results_have_keys(
    transport: str, model_of_google: MakeModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with FakeProviders(echo, clock=clock) as fake:
        assert await run(clock, model_of_google(fake)) == ANSWERS
    assert [record for record in caplog.records if record.name == 'pydantic_ai_batch' and record.levelno > 20] == []


@pytest.mark.parametrize('fault', ['drop', 'unknown_id'])
async def test_results_without_keys_of_another_number_are_given_to_nobody_and_not_paid_again(
    fault: str, model_of_google: MakeModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.echo_metadata = False

        def rewrite(lines: list[bytes], kind: Any) -> list[bytes]:
            return lines[1:] if fault == 'drop' else [*lines, lines[0]]

        fake.google.rewrite_results = rewrite
        outcomes = await run(clock, model_of_google(fake))
        assert [type(outcome) for outcome in outcomes] == [ResultIntegrityError] * len(ROWS)
        assert all(batch in str(outcome) for outcome in outcomes for batch in fake.google.batches)
        assert fake.google.count('create') == 1
        assert billed(fake) == Counter(ROWS)
        assert 'carries no key' in caplog.text


def without_key(line: bytes) -> bytes:
    return json.dumps(
        {name: value for name, value in json.loads(line).items() if name in ('response', 'error')}
    ).encode()


async def test_where_only_some_results_have_keys_the_others_are_given_to_nobody(
    transport: str, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.rewrite_results = lambda lines, kind: [
            without_key(line) if place in (1, 4) else line for place, line in enumerate(lines)
        ]
        outcomes = await run(clock, model_of_google(fake))
        assert [outcomes[place] for place in (0, 2, 3, 5)] == [ANSWERS[place] for place in (0, 2, 3, 5)]
        assert [type(outcomes[place]) for place in (1, 4)] == [ResultIntegrityError] * 2
        assert fake.google.count('create') == 1


async def test_lines_of_a_file_without_any_key_are_given_to_nobody(
    as_file: None, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.rewrite_results = lambda lines, kind: [without_key(line) for line in lines]
        outcomes = await run(clock, model_of_google(fake))
        assert [type(outcome) for outcome in outcomes] == [ResultIntegrityError] * len(ROWS)
        assert fake.google.count('create') == 1


# Successes that are none


@pytest.mark.parametrize('answer', [{}, {'usageMetadata': {'promptTokenCount': 3}}, {'responseId': 'r'}])
async def test_a_success_without_an_answer_or_a_reason_is_unreadable_and_kept(
    answer: dict[str, Any], transport: str, model_of_google: MakeModel, clock: ManualClock
):
    with FakeProviders(lambda request: answer if request.text == 'row 3' else echo(request), clock=clock) as fake:
        outcomes = await run(clock, model_of_google(fake))
        assert [*outcomes[:3], *outcomes[4:]] == [*ANSWERS[:3], *ANSWERS[4:]]
        assert isinstance(outcomes[3], ResultUnreadable)
        assert json.loads(str(outcomes[3].body)) == answer
        assert fake.google.count('create') == 1


async def test_a_prompt_that_was_blocked_is_an_answer(transport: str, model_of_google: MakeModel, clock: ManualClock):
    blocked = {'promptFeedback': {'blockReason': 'PROHIBITED_CONTENT'}, 'usageMetadata': {'promptTokenCount': 3}}
    with FakeProviders(lambda request: blocked, clock=clock) as fake:
        requests = [BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('x')])]
        (outcome,) = await clock.run(model_request_batch(model_of_google(fake), requests, clock=clock))
        assert isinstance(outcome, ModelResponse)
        assert outcome.finish_reason == 'content_filter'


# How it reads an operation


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Lane]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as http_client:
        options: Any = {'base_url': 'http://provider.test', 'httpx_async_client': http_client}
        client = Client(api_key='secret-key', vertexai=False, http_options=HttpOptions(**options))
        yield lane_for(GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client)))


def operation(*, done: bool = False, response: Any = None, error: Any = None, **metadata: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {
        'name': NAME,
        'metadata': {
            'model': 'models/gemini-2.5-flash',
            'displayName': f'pab-{TAG}',
            'createTime': '2030-01-01T00:00:00.123456789Z',
            'state': 'BATCH_STATE_RUNNING',
            **metadata,
        },
    }
    if done:
        shown['done'] = True
    if response is not None:
        shown['response'] = response
    if error is not None:
        shown['error'] = error
    return shown


def handle(**changes: Any) -> Batch:
    return replace(
        Batch(
            id=NAME,
            model_name='gemini-2.5-flash',
            provider_name='google',
            group=GROUP,
            status='in_progress',
            created_at=CREATED,
            request_count=3,
            provider_details={},
        ),
        **changes,
    )


@pytest.mark.parametrize('prefix', ['BATCH_STATE_', 'JOB_STATE_'])
@pytest.mark.parametrize(
    ('word', 'status'),
    [
        ('PENDING', 'in_progress'),
        ('QUEUED', 'in_progress'),
        ('RUNNING', 'in_progress'),
        ('PAUSED', 'in_progress'),
        ('CANCELLING', 'canceling'),
        ('SUCCEEDED', 'ended'),
        ('PARTIALLY_SUCCEEDED', 'ended'),
        ('FAILED', 'ended'),
        ('CANCELLED', 'ended'),
        ('EXPIRED', 'ended'),
        ('ON_HOLIDAY', 'in_progress'),
    ],
)
async def test_a_state_is_read_by_its_last_word(prefix: str, word: str, status: str, lane: Lane, server: Server):
    server.replies(operation(state=prefix + word))
    batch = await lane.status(handle())
    assert batch.status == status
    assert batch.provider_details is not None
    assert batch.provider_details['state'] == f'JOB_STATE_{word}'


@pytest.mark.parametrize('state', ['BATCH_STATE_RUNNING', 'BATCH_STATE_ON_HOLIDAY', None])
async def test_an_operation_that_is_done_has_ended_whatever_its_state(state: Any, lane: Lane, server: Server):
    server.replies(operation(state=state, done=True))
    assert (await lane.status(handle())).status == 'ended'


@pytest.mark.parametrize(
    ('stats', 'counts'),
    [
        ({'requestCount': '3', 'successfulRequestCount': '2', 'failedRequestCount': '1'}, (3, 2, 1)),
        ({'requestCount': '3', 'successfulRequestCount': '3'}, (3, 3, 0)),
        ({'requestCount': 3, 'pendingRequestCount': 3}, (3, 0, 0)),
        ({'requestCount': 'many', 'successfulRequestCount': None}, (0, 0, 0)),
    ],
)
async def test_counts_are_read_from_text_and_zero_where_they_are_left_out(
    stats: Any, counts: tuple[int, int, int], lane: Lane, server: Server
):
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True, batchStats=stats))
    batch = await lane.status(handle())
    assert batch.provider_details is not None
    told = batch.provider_details['request_counts']
    assert (told['total'], told['completed'], told['failed']) == counts
    # Of a batch that succeeded every request has a result, whatever counts it still shows.
    assert lane.readable(batch) == batch.request_count == 3


@pytest.mark.parametrize('word', ['EXPIRED', 'CANCELLED', 'FAILED'])
async def test_a_batch_that_did_not_succeed_is_not_expected_to_have_results(word: str, lane: Lane, server: Server):
    server.replies(operation(state=f'BATCH_STATE_{word}', done=True, batchStats={'successfulRequestCount': '2'}))
    assert lane.readable(await lane.status(handle())) == 0


async def test_times_with_nanoseconds_are_read(lane: Lane, server: Server):
    server.replies(operation(createTime='2030-01-01T10:20:30.123456789Z', state='BATCH_STATE_PENDING'))
    with Payload(lane, GROUP, tag=TAG) as payload:
        payload.add(b'{"contents":[]}')
        batch = await lane.create(payload)
    assert batch.created_at == datetime(2030, 1, 1, 10, 20, 30, 123456, tzinfo=UTC)
    assert (batch.id, batch.status, batch.request_count) == (NAME, 'in_progress', 1)
    server.replies({**operation(), 'name': 'batches/another'})
    assert (await lane.status(batch)).created_at == batch.created_at


@pytest.mark.parametrize(('word', 'status'), [('EXPIRED', 'expired'), ('CANCELLED', 'canceled')])
async def test_the_end_of_the_batch_is_the_end_of_its_unlisted_rows(word: str, status: str, lane: Lane, server: Server):
    server.replies(operation(state=f'BATCH_STATE_{word}', done=True))
    result = lane.unlisted(await lane.status(handle()), f'{TAG}-0')
    assert isinstance(result, BatchResult)
    assert (result.custom_id, result.status) == (f'{TAG}-0', status)


@pytest.mark.parametrize(('error', 'words'), [({'code': 3, 'message': 'bad file'}, 'bad file'), (None, 'not say why')])
async def test_a_batch_that_failed_gives_every_row_its_error(error: Any, words: str, lane: Lane, server: Server):
    server.replies(operation(state='BATCH_STATE_FAILED', done=True, error=error))
    result = lane.unlisted(await lane.status(handle()), f'{TAG}-0')
    request = BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('x')])
    with pytest.raises(ModelHTTPError, match=words) as raised:
        await lane.outcome(result, request)
    assert raised.value.status_code == (400 if error else 500)


async def test_a_row_that_a_batch_which_succeeded_does_not_list_was_not_run(lane: Lane, server: Server):
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True))
    result = lane.unlisted(await lane.status(handle()), f'{TAG}-0')
    assert isinstance(result, NotRun)
    assert NAME in result.reason


OK = {'response': {'candidates': []}}


@pytest.mark.parametrize(
    ('answer', 'status', 'part'),
    [
        ({'key': 'a', **OK}, 'succeeded', 'candidates'),
        ({'metadata': {'key': 'a'}, **OK}, 'succeeded', 'candidates'),
        ({'key': 'a', 'error': {'code': 3, 'message': 'no'}}, 'errored', 'no'),
        ({'key': 'a', 'status': {'code': 13, 'message': 'oh'}}, 'errored', 'oh'),
        ({'key': 'a', 'response': None, 'error': None}, 'errored', 'neither'),
        ({'key': 'a', 'error': {'code': 3}, **OK}, 'succeeded', 'candidates'),
    ],
)
async def test_an_inline_result_says_how_its_request_ended(
    answer: Any, status: str, part: str, lane: Lane, server: Server
):
    output = {'inlinedResponses': {'inlinedResponses': [answer]}}
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True, response=output))
    (result,) = [result async for result in lane.results(handle())]
    assert isinstance(result, BatchResult)
    assert (result.custom_id, result.status) == ('a', status)
    assert part in (result.body or '')


@pytest.mark.parametrize(
    'output',
    [
        {},
        {'inlinedResponses': None},
        {'inlinedResponses': {'inlinedResponses': 'none'}},
        [],
        'text',
        {'responsesFile': 7},
    ],
)
async def test_an_output_that_is_none_has_no_results(output: Any, lane: Lane, server: Server):
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True, response=output))
    assert [result async for result in lane.results(handle())] == []


async def test_what_is_no_object_among_inline_results_costs_no_other(lane: Lane, server: Server):
    answers = [{'key': 'a', **OK}, 'text', None, 7, [], {'key': 'b', **OK}, {'no': 'key'}]
    output = {'inlinedResponses': {'inlinedResponses': answers}}
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True, response=output))
    results = [result async for result in lane.results(handle())]
    assert [result.custom_id for result in results if isinstance(result, BatchResult)] == ['a', 'b']
    strays = [result for result in results if isinstance(result, Stray)]
    assert len(strays) >= 1
    assert not strays[-1].keyless


async def test_results_cost_no_second_status_request_after_the_one_that_saw_the_end(lane: Lane, server: Server):
    output = {'inlinedResponses': {'inlinedResponses': [{'key': 'a', **OK}]}}
    server.replies(operation(state='BATCH_STATE_SUCCEEDED', done=True, response=output))
    batch = await lane.status(handle())
    assert len([result async for result in lane.results(batch)]) == 1
    assert len(server.calls) == 1
    # Read once more, as after a damaged line, they are asked for again.
    assert len([result async for result in lane.results(batch)]) == 1
    assert len(server.calls) == 2


NO_REPLIES = [b'', b'[]', b'null', b'"ok"', b'<html>', b'\xff']


@pytest.mark.parametrize('reply', NO_REPLIES)
async def test_a_reply_that_is_no_object_is_a_transport_fault(reply: bytes, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(200, content=reply)
    with pytest.raises(ModelConnectionError):
        await lane.status(handle())
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[]}')
        with pytest.raises(ModelConnectionError):
            await lane.create(payload)


@pytest.mark.parametrize('reply', [reply for reply in NO_REPLIES if reply])
async def test_a_listing_that_is_none_does_not_prove_that_there_is_no_batch(reply: bytes, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(200, content=reply)
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[]}')
        with pytest.raises((ListingIncomplete, ModelConnectionError)):
            await lane.find(payload, since=CREATED)


async def test_an_empty_listing_is_an_empty_object(lane: Lane, server: Server):
    server.replies({})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[]}')
        assert await lane.find(payload, since=CREATED) == []


@pytest.mark.parametrize('call', ['create', 'status', 'results', 'cancel', 'find'])
@pytest.mark.parametrize('status', [408, 429, 500, 503, 504])
async def test_every_call_is_sent_once_whatever_the_client_says(call: str, status: int, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'error': {'code': status, 'message': 'no'}})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{"contents":[]}')
        calls: dict[str, Callable[[], Any]] = {
            'create': lambda: lane.create(payload),
            'status': lambda: lane.status(handle()),
            'results': lambda: anext(lane.results(handle())),
            'cancel': lambda: lane.cancel(handle()),
            'find': lambda: lane.find(payload, since=CREATED),
        }
        with pytest.raises(ModelHTTPError) as raised:
            await calls[call]()
    assert raised.value.status_code == status
    assert len(server.calls) == 1
    assert 'secret-key' not in f'{raised.value!r} {vars(raised.value)}'


# Others' batches


async def test_a_batch_of_another_key_is_not_found(model_of_google: MakeModel, fake: FakeProviders):
    lane, other = lane_for(model_of_google(fake)), lane_for(model_of_google(fake, api_key='other'))
    with Payload(lane, await lane.identity()) as payload:
        payload.add(b'{"contents":[{"parts":[{"text":"x"}]}]}')
        batch = await lane.create(payload)
        assert (await lane.status(batch)).status == 'in_progress'
        assert [found.id for found in await lane.find(payload, since=batch.created_at)] == [batch.id]
        assert await other.find(payload, since=batch.created_at) == []
    with pytest.raises(ModelNotFoundError):
        await other.status(batch)
    with pytest.raises(ModelNotFoundError):
        await other.cancel(batch)
    assert (await lane.status(batch)).status == 'in_progress'


async def test_a_403_is_believed_at_once_and_a_404_only_when_it_lasts(model_of_google: MakeModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('status', 'http', status=404, times=3)
        assert await run(clock, model_of_google(fake)) == ANSWERS
        before = fake.google.count('status')
        fake.google.inject('status', 'http', status=403)
        outcomes = await run(clock, model_of_google(fake))
        assert fake.google.count('status') == before + 1
        for outcome in outcomes:
            assert isinstance(outcome, ModelAuthenticationError)
            batch = batch_of(outcome)
            assert batch is not None
            assert batch.id in fake.google.batches
        assert fake.google.count('cancel') == 0


async def test_a_file_that_a_handle_names_is_deleted_only_if_this_process_made_it(
    as_file: None, model_of_google: MakeModel, fake: FakeProviders, clock: ManualClock
):
    lane = lane_for(model_of_google(fake))
    with Payload(lane, await lane.identity()) as payload:
        payload.add(b'{"contents":[{"parts":[{"text":"x"}]}]}')
        batch = await lane.create(payload)
    await clock.advance(timedelta(hours=1))
    ended = await lane.status(batch)
    claimed = replace(ended, provider_details={**(ended.provider_details or {}), 'input_file': 'files/of-somebody'})
    await lane.clean_up(replace(batch, provider_details={}), claimed)
    assert fake.google.count('delete_file') == 0
    await lane.clean_up(batch, claimed)
    (deleted,) = [call.path for call in fake.google.calls if call.operation == 'delete_file']
    assert deleted.endswith((batch.provider_details or {})['input_file'])


# The other version of the API


async def test_everything_goes_under_v1_too_if_the_client_says_so(
    transport: str, model_of_google: MakeModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of_google(fake, http_options={'api_version': 'v1'})
        fake.google.inject('create', 'lose_reply')
        assert await run(clock, model, max_resubmissions=0) == ANSWERS
        # The SDK begins an upload under a version of its own.
        paths = [call.path for call in fake.google.calls if not call.operation.startswith('upload')]
        assert [path for path in paths if '/v1/' not in path or 'v1beta' in path] == []
        operations = {'create', 'status', 'list'}
        if transport == 'file':
            operations |= {'upload', 'upload_bytes', 'download', 'delete_file'}
        assert {call.operation for call in fake.google.calls} == operations
        assert fake.google.count('create') == 1
