"""The lane of xAI: a batch is made empty and filled, is paid for once whatever gets lost on the way, and is read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from journal.scenes import Way, Wire, all_over, by_agents, by_job, by_list, each_way, killed_at, query
from openai import AsyncOpenAI, BadRequestError
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests, BatchRequest, Lane, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import CreateUnsettled, RequestNotSendable, ResultUnreadable
from pydantic_ai_batch.lanes import xai
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotRun, Payload, Sought, Stray
from pydantic_ai_batch.providers import XAILanguageProvider
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .harness import echo, requests_of
from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"model":"grok-4.3"}'
TAG = 't' * 20
RECORDING = (
    Path(__file__).resolve().parents[2] / '../shared/recordings/ruby_llm/xai_grok-4-1-fast-non-reasoning_chats.yml'
)
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]
ID = 'batch_1'


def model_over(client: AsyncOpenAI, model_class: Any = OpenAIChatModel) -> Any:
    return model_class('grok-4.3', provider=XAILanguageProvider(openai_client=client))


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as http_client:
        yield AsyncOpenAI(api_key='sk-secret', base_url='http://provider.test/v1', http_client=http_client)


@pytest.fixture
def lane(client: AsyncOpenAI) -> Lane:
    return lane_for(model_over(client))


@pytest.fixture
def responses(client: AsyncOpenAI) -> Lane:
    return lane_for(model_over(client, OpenAIResponsesModel))


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    with FakeProviders(echo, clock=clock) as fake:
        yield fake


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
async def model(request: pytest.FixtureRequest, fake: FakeProviders) -> AsyncIterator[Any]:
    async with fake.xai.client(max_retries=0) as client:
        yield model_over(client, request.param)


@pytest.fixture(autouse=True)
def every_process_ends() -> Iterator[None]:
    yield
    all_over()


@pytest.fixture
async def in_pairs(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Two requests are added at once."""
    lane = lane_for(model)
    size = lane.request_size((await lane.encode(requests_of(ROWS)[0])).body.encode())
    monkeypatch.setattr(xai, 'PORTION_BYTES', 2.5 * size)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


def counts(**changes: int) -> dict[str, int]:
    names = ('num_requests', 'num_pending', 'num_success', 'num_error', 'num_cancelled')
    return {**dict.fromkeys(names, 0), **changes}


def batch_object(**changes: Any) -> dict[str, Any]:
    return {
        'batch_id': ID,
        'name': f'pab-{TAG}',
        'create_time': '2030-01-01',
        'expire_time': '2030-01-31',
        'create_api_key_id': 'key',
        'cancel_time': None,
        'cancel_by_xai_message': None,
        'state': counts(num_requests=3, num_pending=3),
        **changes,
    }


def handle(**details: Any) -> Batch:
    return Batch(
        id=ID,
        model_name='grok-4.3',
        provider_name='xai',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details=details,
    )


def filled(lane: Lane, *bodies: bytes) -> Payload:
    payload = Payload(lane, GROUP, tag=TAG)
    for body in bodies:
        payload.add(body)
    return payload


async def read(lane: Lane, server: Server, *items: Any) -> list[BatchResult | Stray]:
    server.replies({'results': list(items), 'pagination_token': None})
    return [result async for result in lane.results(handle())]


async def run(clock: ManualClock, model: Any, **options: Any) -> list[Any]:
    outcomes = await clock.run(model_request_batch(model, requests_of(ROWS), clock=clock, **options))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def billed(fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in fake.xai.billed)


def made(fake: FakeProviders, *operations: str) -> list[int]:
    return [fake.xai.count(operation) for operation in operations]


# Which models it serves


@pytest.mark.parametrize('model_class', [OpenAIChatModel, OpenAIResponsesModel])
@pytest.mark.parametrize('service', ['xai', 'x-ai'])
async def test_it_serves_both_models_of_a_provider_of_that_name(model_class: Any, service: str, client: AsyncOpenAI):
    provider = type('Named', (XAILanguageProvider,), {'service': service})(openai_client=client)
    assert lane_for(model_class('grok-4.3', provider=provider)).info.name == 'xai'


@pytest.mark.parametrize('model_class', [OpenAIChatModel, OpenAIResponsesModel])
def test_it_serves_models_at_its_address(model_class: Any):
    provider = OpenAIProvider(base_url='https://api.x.ai/v1', api_key='k')
    assert lane_for(model_class('grok-4.3', provider=provider)).info.name == 'xai'


def test_the_provider_takes_its_key_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('XAI_API_KEY', raising=False)
    with pytest.raises(UserError, match='XAI_API_KEY'):
        XAILanguageProvider()
    monkeypatch.setenv('XAI_API_KEY', 'k')
    assert XAILanguageProvider().base_url == 'https://api.x.ai/v1/'


# What it sends


async def test_a_batch_is_made_with_the_tag_as_its_name_and_then_filled(lane: Lane, server: Server):
    server.replies(batch_object(state=counts()), None)
    with filled(lane, b'{"a":1}', b'{"a":2}') as payload:
        batch = await lane.create(payload)
    create, add = server.calls
    assert [(call.method, call.url.path) for call in server.calls] == [
        ('POST', '/v1/batches'),
        ('POST', f'/v1/batches/{ID}/requests'),
    ]
    assert json.loads(create.content) == {'name': f'pab-{TAG}'}
    assert add.headers['content-type'] == 'application/json'
    assert json.loads(add.content) == {
        'batch_requests': [
            {'batch_request_id': f'{TAG}-{n}', 'batch_request': {'chat_get_completion': {'a': n + 1}}} for n in (0, 1)
        ]
    }
    assert (batch.id, batch.status, batch.group, batch.request_count) == (ID, 'in_progress', GROUP, 2)


async def test_requests_of_a_responses_model_are_added_as_such(responses: Lane, server: Server):
    server.replies(batch_object(state=counts()), None)
    with filled(responses, b'{"input":"a"}') as payload:
        await responses.create(payload)
    assert json.loads(server.calls[1].content)['batch_requests'][0]['batch_request'] == {'responses': {'input': 'a'}}


async def test_requests_are_added_in_portions(lane: Lane, server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(xai, 'PORTION_BYTES', 1_000)
    server.replies(batch_object(state=counts()), None)
    bodies = [json.dumps({'a': 'x' * size}).encode() for size in (100, 500, 2_000, 10, 10, 900)]
    with filled(lane, *bodies) as payload:
        await lane.create(payload)
    portions = [json.loads(call.content)['batch_requests'] for call in server.calls[1:]]
    assert [len(portion) for portion in portions] == [2, 1, 2, 1]
    ids = [request['batch_request_id'] for portion in portions for request in portion]
    assert ids == [f'{TAG}-{n}' for n in range(6)]


async def test_a_request_that_no_call_could_hold_is_refused_by_itself(lane: Lane):
    [request] = requests_of(['ü' * 13_000_000])
    with pytest.raises(RequestNotSendable, match='25000000 is the most'):
        await lane.encode(request)
    [request] = requests_of(['u' * 13_000_000])
    assert (await lane.encode(request)).body


@pytest.mark.parametrize('call', ['create', 'add', 'status', 'results', 'cancel', 'find', 'discard'])
@pytest.mark.parametrize('status', [408, 409, 429, 500])
async def test_every_call_is_sent_once_whatever_the_client_says(call: str, status: int, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'code': 'no', 'error': 'no'})
    with filled(lane, b'{}') as payload:
        if call in ('add', 'discard'):
            payload.receipt['batch_id'] = ID

        async def read_all() -> list[Any]:
            return [result async for result in lane.results(handle())]

        calls: dict[str, Callable[[], Any]] = {
            'create': lambda: lane.create(payload),
            'add': lambda: lane.create(payload),
            'status': lambda: lane.status(handle()),
            'results': read_all,
            'cancel': lambda: lane.cancel(handle()),
            'find': lambda: lane.find(payload, since=CREATED),
            'discard': lambda: lane.discard(payload),
        }
        if call == 'discard':
            await calls[call]()
        else:
            with pytest.raises(ModelHTTPError) as failed:
                await calls[call]()
            assert failed.value.status_code == status
    assert len(server.calls) == 1
    assert server.calls[0].headers['user-agent'].startswith('pydantic-ai/')


async def test_an_id_that_a_history_made_up_reaches_no_path(lane: Lane, server: Server):
    batch = Batch(**{**vars(handle()), 'id': '../keys'})
    with pytest.raises(UserError, match='no ID of an xAI batch'):
        await lane.status(batch)
    assert server.calls == []


# A create and an add whose replies are lost


@pytest.mark.parametrize('fault', ['lose_reply', 'garbage'])
async def test_a_lost_reply_of_the_create_is_found_by_name_and_filled(
    fault: str, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('create', fault)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add', 'cancel') == [1, 1, 0]
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize(('seconds', 'batches'), [(20, 1), (600, 2)])
async def test_an_empty_batch_that_the_listing_is_late_to_show_costs_nothing(
    seconds: int, batches: int, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('create', 'lose_reply')
    fake.xai.inject('batch', 'hide', seconds=seconds)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add') == [batches, 1]
    assert billed(fake) == Counter(ROWS)


async def test_where_no_listing_can_be_read_another_empty_batch_costs_nothing(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('create', 'lose_reply')
    fake.xai.inject('list', 'http', status=403, times=None)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add') == [2, 1]
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize(
    ('fault', 'options'), [('lose_reply', {}), ('garbage', {}), ('http', {'status': 503, 'done': True})]
)
async def test_a_lost_reply_of_an_add_is_known_by_the_counts(
    fault: str, options: Any, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('add', fault, **options)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add', 'list', 'cancel') == [1, 1, 0, 0]
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize(('fault', 'options'), [('reset', {}), ('http', {'status': 503}), ('http', {'status': 408})])
async def test_an_add_that_did_nothing_is_made_again(
    fault: str, options: Any, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('add', fault, **options)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add', 'cancel') == [1, 2, 0]
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize('refusal', [None, (400, 'Duplicate batch_request_id.'), (409, 'It already exists.')])
async def test_an_add_that_arrived_though_the_counts_do_not_show_it_is_not_run_twice(
    refusal: Any, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.duplicates = refusal
    fake.xai.inject('add', 'lose_reply')
    fake.xai.lag = 60
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add', 'cancel') == [1, 2, 0]
    assert billed(fake) == Counter(ROWS)


@pytest.mark.usefixtures('in_pairs')
async def test_only_portions_that_are_missing_are_added_again(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.xai.inject('add', 'lose_reply', after=1)
    assert await run(clock, model) == ANSWERS
    sent = [
        request['batch_request_id'].partition('-')[2]
        for call in fake.xai.calls
        if call.operation == 'add'
        for request in json.loads(call.body)['batch_requests']
    ]
    assert sent == ['0', '1', '2', '3', '4', '5']
    assert billed(fake) == Counter(ROWS)


async def test_an_add_that_never_reached_the_provider_is_sent_again_in_a_moment(lane: Lane, server: Server):
    replies = [httpx2.Response(200, json=batch_object()), None, httpx2.Response(200, json=None)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if (reply := replies.pop(0)) is None:
            raise httpx2.ConnectError('no route')
        return reply

    server.answer = answer
    with filled(lane, b'{}') as payload:
        with pytest.raises(ModelConnectionError) as failed:
            await lane.create(payload)
        assert failed.value.phase == 'connect'
        assert (await lane.create(payload)).id == ID
    assert [call.url.path for call in server.calls] == [
        '/v1/batches',
        f'/v1/batches/{ID}/requests',
        f'/v1/batches/{ID}/requests',
    ]


async def test_once_a_portion_is_in_no_failure_counts_as_never_sent(
    lane: Lane, server: Server, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(xai, 'PORTION_BYTES', 1)
    replies = [httpx2.Response(200, json=batch_object()), httpx2.Response(200, json=None)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if not replies:
            raise httpx2.ConnectError('no route')
        return replies.pop(0)

    server.answer = answer
    with filled(lane, b'{}', b'{}') as payload:
        with pytest.raises(ModelConnectionError) as failed:
            await lane.create(payload)
        assert failed.value.phase is None


# Requests that are refused


async def test_requests_that_are_refused_at_once_fail_and_leave_nothing_that_could_run(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('add', 'http', status=400)
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) and outcome.status_code == 400 for outcome in outcomes)
    assert made(fake, 'create', 'add', 'cancel') == [1, 1, 1]
    assert billed(fake) == Counter()
    [batch] = fake.xai.batches.values()
    assert batch.stopped_at is not None


async def test_a_refusal_after_a_lost_reply_of_the_create_is_the_error_of_the_requests(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('create', 'lose_reply')
    fake.xai.inject('add', 'http', status=400, message='no such model', times=None)
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) and 'no such model' in str(outcome) for outcome in outcomes)
    assert made(fake, 'create', 'cancel') == [1, 1]
    assert billed(fake) == Counter()


@pytest.mark.usefixtures('in_pairs')
@pytest.mark.parametrize('status', [400, 413, 429])
async def test_a_portion_that_is_refused_after_others_were_taken_is_sent_again_and_theirs_are_kept(
    status: int, fake: FakeProviders, model: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    fake.xai.inject('add', 'http', status=status, after=1)
    assert await run(clock, model) == ANSWERS
    assert billed(fake) == Counter(ROWS)
    assert made(fake, 'create', 'cancel') == [2, 0]
    assert sorted(len(batch.requests) for batch in fake.xai.batches.values()) == [2, 4]
    assert 'Only 2 of 6 requests are known to be in batch' in caplog.text


@pytest.mark.usefixtures('in_pairs')
@pytest.mark.parametrize('done', [False, True])
async def test_a_batch_that_cannot_be_filled_any_further_is_kept_for_what_it_has(
    done: bool, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('add', 'http', status=503, done=done, after=1, times=2)
    fake.xai.lag = 30
    assert await run(clock, model) == ANSWERS
    assert billed(fake) == Counter(ROWS)
    assert made(fake, 'create', 'cancel') == [2, 0]


@pytest.mark.parametrize('words', ['The batch_request_id is used.', 'duplicate'])
async def test_a_refusal_that_may_be_of_what_arrived_before_is_not_the_end_of_it(
    words: str, fake: FakeProviders, model: Any, clock: ManualClock
):
    # Whatever the words for it are, the counts show what is there in the end.
    fake.xai.duplicates = (400, words)
    fake.xai.inject('add', 'lose_reply')
    fake.xai.lag = 20
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'cancel') == [1, 0]
    assert billed(fake) == Counter(ROWS)


async def test_a_queue_without_room_is_waited_for_in_the_same_batch(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.xai.inject('add', 'http', status=429, times=2)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'add', 'cancel')[0] == 3
    assert billed(fake) == Counter(ROWS)


# Processes that end

lists_and_agents = pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
"""A job, by itself, sends nothing again."""


async def killed_at_the_add(when: str, way: Way, model: Any, path: Path, clock: ManualClock, wire: Wire) -> None:
    await killed_at(wire.hold(when, 'POST', '/requests'), way(model, ROWS, path, clock), clock)
    wire.clear()


@each_way
async def test_an_empty_batch_of_a_process_that_was_killed_is_cancelled_and_its_requests_are_sent_once(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path, wire: Wire
):
    path = tmp_path / 'journal.db'
    await killed_at_the_add('before', way, model, path, clock, wire)
    [left] = fake.xai.batches.values()
    killed_then = clock.now()
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert made(fake, 'create', 'add', 'cancel') == [2, 1, 1]
    assert billed(fake) == Counter(ROWS)
    # What was still on its way would not be run.
    assert left.requests == []
    assert left.stopped_at is not None
    with pytest.raises(BadRequestError):
        await model.client.post(f'/batches/{left.id}/requests', cast_to=httpx2.Response, body={'batch_requests': []})
    [_, create] = [call for call in fake.xai.calls if call.operation == 'create']
    assert create.at - killed_then >= 120


@each_way
async def test_a_whole_batch_of_a_process_that_was_killed_is_found_and_read(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path, wire: Wire
):
    path = tmp_path / 'journal.db'
    await killed_at_the_add('after', way, model, path, clock, wire)
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert made(fake, 'create', 'add', 'cancel') == [1, 1, 0]
    assert billed(fake) == Counter(ROWS)


@lists_and_agents
@pytest.mark.usefixtures('in_pairs')
async def test_a_part_of_a_batch_of_a_process_that_was_killed_is_read_and_the_rest_is_sent_again(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path, wire: Wire
):
    path = tmp_path / 'journal.db'
    await killed_at_the_add('after', way, model, path, clock, wire)
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert made(fake, 'cancel') == [0]
    sizes = sorted(len(batch.requests) for batch in fake.xai.batches.values())
    # Agents' requests come back one by one, and the clock that jumps may not wait for all of them.
    assert sizes == [2, 4] if way is by_list else sum(sizes) == len(ROWS)
    assert billed(fake) == Counter(ROWS)


@pytest.mark.usefixtures('in_pairs')
async def test_a_job_of_a_part_of_a_batch_has_the_answers_of_that_part(
    fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path, wire: Wire
):
    path = tmp_path / 'journal.db'
    await killed_at_the_add('after', by_job, model, path, clock, wire)
    outcomes = await clock.run(by_job(model, ROWS, path, clock))
    assert outcomes[:2] == ANSWERS[:2]
    assert all('ended without a result' in str(outcome) for outcome in outcomes[2:])
    all_over()
    # Made once more, the others are sent.
    assert await clock.run(by_job(model, ROWS, path, clock)) == ANSWERS
    assert billed(fake) == Counter(ROWS)


@each_way
async def test_where_nobody_can_tell_whether_it_was_filled_that_is_said_and_the_next_start_finds_out(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path
):
    path = tmp_path / 'journal.db'
    fake.xai.inject('add', 'http', status=503, times=None)
    outcomes = await clock.run(way(model, ROWS, path, clock))
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * 6
    [(tag,)] = query(path, 'SELECT tag FROM batches')
    assert f'a batch that is called pab-{tag}' in str(outcomes[0])
    all_over()
    fake.xai.clear_faults()
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert made(fake, 'create', 'cancel') == [2, 1]
    assert billed(fake) == Counter(ROWS)


# The listing


async def test_all_pages_of_the_listing_are_read(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.xai.page_size = 2
    for n in range(5):
        await model.client.post('/batches', cast_to=httpx2.Response, body={'name': f'another {n}'})
    lane = lane_for(model)
    with Payload(lane, await lane.identity(), TAG) as payload:
        assert await lane.find(Sought(TAG, payload.group, 1), since=CREATED) == []
        assert fake.xai.count('list') == 3
        payload.add((await lane.encode(requests_of(['hello'])[0])).body.encode())
        created = await lane.create(payload)
        assert [batch.id for batch in await lane.find(Sought(TAG, payload.group, 1), since=CREATED)] == [created.id]


async def test_a_batch_that_the_listing_shows_without_counts_is_looked_at(lane: Lane, server: Server):
    listed = batch_object(state=None)
    server.replies({'batches': [listed], 'pagination_token': ''}, batch_object())
    [found] = await lane.find(Sought(TAG, GROUP, 3), since=CREATED)
    assert (found.id, found.request_count, found.status) == (ID, 3, 'in_progress')
    assert server.calls[1].url.path == f'/v1/batches/{ID}'


@pytest.mark.parametrize('page', [{}, {'batches': None}, {'batches': [{'name': f'pab-{TAG}'}]}, {'batches': [1]}])
async def test_a_page_that_says_nothing_proves_nothing(page: Any, lane: Lane, server: Server):
    server.replies(page)
    with pytest.raises(ListingIncomplete):
        await lane.find(Sought(TAG, GROUP, 3), since=CREATED)


async def test_a_batch_that_shows_no_name_may_be_the_one(lane: Lane, server: Server):
    nameless = batch_object(batch_id='other', name=None)
    server.replies({'batches': [nameless], 'pagination_token': None})
    with pytest.raises(ListingIncomplete, match='without names'):
        await lane.find(Sought(TAG, GROUP, 3), since=CREATED)
    server.replies({'batches': [nameless, batch_object()], 'pagination_token': None})
    assert [batch.id for batch in await lane.find(Sought(TAG, GROUP, 3), since=CREATED)] == [ID]


async def test_a_listing_without_end_proves_nothing(lane: Lane, server: Server):
    server.replies({'batches': [], 'pagination_token': 'more'})
    with pytest.raises(ListingIncomplete, match='100 pages deep'):
        await lane.find(Sought(TAG, GROUP, 3), since=CREATED)


async def test_an_empty_batch_that_takes_requests_while_it_is_cancelled_counts(lane: Lane, server: Server):
    empty = batch_object(state=counts())
    server.replies(
        {'batches': [empty], 'pagination_token': None},
        batch_object(cancel_time='2030-01-01'),
        batch_object(cancel_time='2030-01-01', state=counts(num_requests=2, num_success=1, num_cancelled=1)),
    )
    [found] = await lane.find(Sought(TAG, GROUP, 3), since=CREATED)
    assert server.calls[1].url.path == f'/v1/batches/{ID}:cancel'
    assert (found.request_count, found.status) == (3, 'ended')


async def test_an_empty_batch_that_cannot_be_cancelled_is_none_all_the_same(lane: Lane, server: Server):
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == 'POST':
            return httpx2.Response(400, json={'code': 'no', 'error': 'It cannot be cancelled.'})
        empty = batch_object(state=counts())
        return httpx2.Response(200, json={'batches': [empty]} if request.url.path.endswith('/batches') else empty)

    server.answer = answer
    assert await lane.find(Sought(TAG, GROUP, 3), since=CREATED) == []


# Status


@pytest.mark.parametrize(
    ('changes', 'word', 'job_status', 'status'),
    [
        ({'state': counts()}, 'empty', 'submitted', 'in_progress'),
        ({'state': counts(num_requests=3, num_pending=2, num_success=1)}, 'running', 'in_progress', 'in_progress'),
        ({'state': None}, 'running', 'in_progress', 'in_progress'),
        ({'state': counts(num_requests=3, num_success=2, num_error=1)}, 'completed', 'ended', 'ended'),
        ({'state': {'num_requests': '3', 'num_success': '3'}}, 'completed', 'ended', 'ended'),
        (
            {'cancel_time': '2030-01-01', 'state': counts(num_requests=3, num_pending=1)},
            'cancelling',
            'canceling',
            'canceling',
        ),
        (
            {'cancel_time': '2030-01-01', 'state': counts(num_requests=3, num_success=1, num_cancelled=2)},
            'cancelled',
            'canceled',
            'ended',
        ),
        (
            {'cancel_by_xai_message': 'A line is invalid.', 'state': counts(num_requests=3, num_cancelled=3)},
            'failed',
            'failed',
            'ended',
        ),
    ],
)
async def test_where_a_batch_is_is_derived(
    changes: Any, word: str, job_status: str, status: str, lane: Lane, server: Server
):
    server.replies(batch_object(**changes))
    batch = await lane.status(handle())
    assert (lane.word(batch), lane.job_status(batch), batch.status) == (word, job_status, status)
    assert word in lane.info.statuses
    assert (batch.created_at, batch.request_count) == (CREATED, 3)


async def test_an_end_with_fewer_requests_than_were_added_is_not_believed_at_once(lane: Lane, server: Server):
    server.replies(batch_object(state=counts(num_requests=2, num_success=1, num_error=1)))
    batch = await lane.status(handle())
    assert lane.readable(batch) == 3
    assert isinstance(lane.unlisted(batch, f'{TAG}-2'), NotRun)
    server.replies(batch_object(cancel_time='2030-01-01', state=counts(num_requests=2, num_success=1)))
    batch = await lane.status(handle())
    assert lane.readable(batch) == 1
    assert lane.unlisted(batch, f'{TAG}-2') == BatchResult(custom_id=f'{TAG}-2', status='canceled')


@pytest.mark.usefixtures('in_pairs')
async def test_counts_that_lag_behind_make_nothing_be_sent_again(
    fake: FakeProviders, model: Any, clock: ManualClock, wire: Wire
):
    def lag() -> None:
        fake.xai.lag = 120

    wire.after('POST', '/requests', lag)
    assert await run(clock, model) == ANSWERS
    assert made(fake, 'create', 'add') == [1, 3]
    assert billed(fake) == Counter(ROWS)


async def test_a_batch_that_xai_cancels_says_why(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.xai.inject('batch', 'fail', errors=[{'message': 'The team is out of credits.'}])
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) and 'out of credits' in str(outcome) for outcome in outcomes)
    assert made(fake, 'create') == [1]


# Results


async def test_results_come_page_by_page(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.xai.page_size = 2
    assert await run(clock, model) == ANSWERS
    assert fake.xai.count('download') == 3


async def test_pages_of_results_that_do_not_go_on_are_an_error(lane: Lane, server: Server):
    server.replies({'results': [], 'pagination_token': 'again'})
    with pytest.raises(ModelConnectionError, match='over and over'):
        _ = [result async for result in lane.results(handle())]


async def test_results_that_are_no_list_are_an_error(lane: Lane, server: Server):
    server.replies({'results': {}})
    with pytest.raises(ModelConnectionError, match='no list'):
        _ = [result async for result in lane.results(handle())]


@pytest.mark.parametrize(
    ('error', 'status'),
    [
        ({'code': 3, 'message': 'bad'}, 400),
        ({'code': '8', 'message': 'slow'}, 429),
        ({'code': 13, 'message': 'oh'}, 500),
        ({'code': 403, 'message': 'no'}, 403),
        ({'code': 'Client specified an invalid argument', 'message': 'bad'}, 400),
        ({'message': 'The service is unavailable'}, 503),
        ({'message': 'what?'}, 500),
        ('The model is not supported for batch processing', 400),
    ],
)
async def test_an_error_has_the_status_of_a_live_one(error: Any, status: int, lane: Lane, server: Server):
    [result] = await read(lane, server, {'batch_request_id': 'a', 'batch_result': {'error': error}})
    assert isinstance(result, BatchResult)
    assert result.status == 'errored'
    assert json.loads(result.body or '')['status_code'] == status


async def test_an_error_message_beside_the_result_is_read(lane: Lane, server: Server):
    [result] = await read(lane, server, {'batch_request_id': 'a', 'error_message': 'invalid schema'})
    assert isinstance(result, BatchResult)
    with pytest.raises(ModelHTTPError, match='invalid schema') as failed:
        await lane.decode(result, requests_of(['a'])[0])
    assert failed.value.status_code == 400


async def test_a_request_that_was_cancelled_is_said_to_be(lane: Lane, server: Server):
    error = {'code': 1, 'message': 'cancelled'}
    assert await read(lane, server, {'batch_request_id': 'a', 'batch_result': {'error': error}}) == [
        BatchResult(custom_id='a', status='canceled')
    ]


@pytest.mark.parametrize('item', [None, 1, 'text', [], {}, {'batch_request_id': None}, {'batch_request_id': 7}])
async def test_an_item_without_an_id_is_set_aside(item: Any, lane: Lane, server: Server):
    [result] = await read(lane, server, item)
    assert isinstance(result, Stray)
    assert not result.keyless


async def test_an_answer_without_an_id_is_somebodys(lane: Lane, server: Server):
    [result] = await read(lane, server, {'batch_result': {'response': {'chat_get_completion': {'id': 'x'}}}})
    assert isinstance(result, Stray)
    assert result.keyless


@pytest.mark.parametrize('outcome', [None, {}, {'response': None}, {'response': {}}, {'error': None}])
async def test_an_item_that_says_nothing_is_kept_for_its_request(outcome: Any, lane: Lane, server: Server):
    [result] = await read(lane, server, {'batch_request_id': 'a', 'batch_result': outcome})
    assert isinstance(result, Stray)
    assert result.custom_id == 'a'


# Answers to Responses requests, which come in the shape of Chat Completions


def completion(message: dict[str, Any], reason: str = 'stop', **changes: Any) -> str:
    return json.dumps(
        {
            'id': 'completion-1',
            'object': 'chat.completion',
            'created': 1786400933,
            'model': 'grok-4.3',
            'choices': [{'index': 0, 'message': {'role': 'assistant', **message}, 'finish_reason': reason}],
            'usage': {
                'prompt_tokens': 204,
                'completion_tokens': 1,
                'total_tokens': 287,
                'prompt_tokens_details': {'text_tokens': 204, 'cached_tokens': 192},
                'completion_tokens_details': {'reasoning_tokens': 82},
                'num_sources_used': 0,
                'cost_in_usd_ticks': 2087200,
            },
            **changes,
        }
    )


async def decoded(lane: Lane, body: str) -> ModelResponse:
    return await lane.decode(BatchResult(custom_id='a', status='succeeded', body=body), requests_of(['a'])[0])


async def test_text_reasoning_and_usage_are_read(responses: Lane):
    response = await decoded(responses, completion({'content': 'four', 'reasoning_content': 'hm', 'refusal': None}))
    assert response.text == 'four'
    assert response.thinking == 'hm'
    assert (response.model_name, response.provider_name) == ('grok-4.3', 'xai')
    assert (response.provider_response_id, response.finish_reason) == ('completion-1', 'stop')
    # Reasoning is output, and is counted apart from it on the wire.
    assert (response.usage.input_tokens, response.usage.output_tokens) == (204, 83)
    assert response.usage.cache_read_tokens == 192
    assert response.usage.details['reasoning_tokens'] == 82
    assert response.usage.details['cost_in_usd_ticks'] == 2087200
    assert response.provider_details is not None
    assert response.provider_details['processing'] == 'batch'


async def test_usage_that_counts_reasoning_as_output_is_not_counted_twice(responses: Lane):
    usage = {'prompt_tokens': 10, 'completion_tokens': 30, 'total_tokens': 40}
    response = await decoded(responses, completion({'content': 'four'}, usage=usage))
    assert (response.usage.input_tokens, response.usage.output_tokens) == (10, 30)
    response = await decoded(responses, completion({'content': 'four'}, usage=None))
    assert (response.usage.input_tokens, response.usage.output_tokens) == (0, 0)


@pytest.mark.parametrize(
    ('reason', 'expected'),
    [('stop', 'stop'), ('tool_calls', 'stop'), ('length', 'length'), ('content_filter', 'content_filter')],
)
async def test_the_finish_reason_is_that_of_the_live_endpoint(reason: str, expected: str, responses: Lane):
    assert (await decoded(responses, completion({'content': 'x'}, reason))).finish_reason == expected


async def test_a_refusal_is_one(responses: Lane):
    response = await decoded(responses, completion({'content': None, 'refusal': 'I will not.'}))
    assert (response.finish_reason, response.parts) == ('content_filter', [])
    assert response.provider_details is not None
    assert response.provider_details['refusal'] == 'I will not.'


async def test_tool_calls_are_read(responses: Lane):
    function = {'name': 'look', 'arguments': '{"at":"it"}'}
    calls = [{'id': f'call-{n}', 'type': 'function', 'function': function} for n in range(2)]
    response = await decoded(responses, completion({'content': 'First', 'tool_calls': calls}, 'tool_calls'))
    assert [type(part) for part in response.parts] == [TextPart, ToolCallPart, ToolCallPart]
    assert [(call.tool_call_id, call.args_as_dict()) for call in response.tool_calls] == [
        ('call-0', {'at': 'it'}),
        ('call-1', {'at': 'it'}),
    ]


async def test_a_turn_that_goes_on_from_such_an_answer_names_no_item_that_xai_never_made(responses: Lane):
    response = await decoded(responses, completion({'content': 'four', 'reasoning_content': 'hm'}))
    assert any(isinstance(part, ThinkingPart) for part in response.parts)
    request = BatchRequest(
        custom_id='a',
        messages=[ModelRequest.user_text_prompt('2+2'), response, ModelRequest.user_text_prompt('and now?')],
    )
    sent = json.loads((await responses.encode(request)).body)['input']
    assert not any(item.get('id') or item.get('type') == 'reasoning' for item in sent)


@pytest.mark.parametrize('body', ['', 'null', '{}', '{"choices":[]}', '{"choices":1}', '[]'])
async def test_a_body_that_is_no_completion_is_the_error_of_its_request(body: str, responses: Lane, lane: Lane):
    for each in (responses, lane):
        with pytest.raises((ResultUnreadable, ModelAPIError)):
            await decoded(each, body)


async def test_a_result_in_the_shape_of_the_responses_api_is_read_as_it_is(responses: Lane):
    content = [{'type': 'output_text', 'text': 'four', 'annotations': []}]
    body = {
        'id': 'resp_1',
        'object': 'response',
        'created_at': 1786400933,
        'model': 'grok-4.3',
        'status': 'completed',
        'output': [{'type': 'message', 'id': 'msg_1', 'role': 'assistant', 'status': 'completed', 'content': content}],
    }
    assert (await decoded(responses, json.dumps(body))).text == 'four'


async def test_half_a_character_in_an_answer_costs_no_answer(responses: Lane, lane: Lane):
    for each in (responses, lane):
        assert 'x' in ((await decoded(each, completion({'content': 'x\ud83d'}))).text or '')


async def test_an_agent_uses_its_tools(fake: FakeProviders, model: Any, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return 'done' if request.tool_results else FakeToolCall('look', {'at': 'it'})

    seen: list[str] = []

    def look(at: str) -> str:
        seen.append(at)
        return 'there'

    fake.answer = answer
    agent = Agent(model, tools=[look], capabilities=[BatchModelRequests(clock=clock)])
    assert (await clock.run(agent.run('hello'))).output == 'done'
    assert seen == ['it']
    assert made(fake, 'create', 'live') == [2, 0]


async def test_answers_are_those_of_the_live_endpoint(fake: FakeProviders, model: Any, clock: ManualClock):
    agent = Agent(model)
    live = (await agent.run('hello')).all_messages()[-1]
    [batched] = await clock.run(model_request_batch(model, requests_of(['hello']), clock=clock))
    assert isinstance(live, ModelResponse)
    assert isinstance(batched, ModelResponse)
    assert batched.text == live.text
    assert batched.finish_reason == live.finish_reason
    assert batched.usage.output_tokens == live.usage.output_tokens
    assert (batched.provider_name, batched.model_name) == (live.provider_name, live.model_name)


async def test_rows_that_fail_in_passing_are_sent_again_and_others_are_not(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        if request.text == ROWS[0]:
            return FakeError(400, None, 'never')
        if request.text == ROWS[1] and not request.attempt:
            return FakeError(503, None, 'not now')
        return echo(request)

    fake.answer = answer
    outcomes = await run(clock, model)
    assert isinstance(outcomes[0], ModelHTTPError)
    assert outcomes[1:] == ANSWERS[1:]
    assert made(fake, 'create') == [2]


# The recording


@pytest.mark.skipif(not RECORDING.is_file(), reason='the recording is not on this machine')
async def test_the_recorded_batch_is_made_checked_and_read(responses: Lane, server: Server):
    left = yaml.safe_load(RECORDING.read_text('utf-8'))['http_interactions']

    def answer(request: httpx2.Request) -> httpx2.Response:
        exchange = left.pop(0)
        recorded = httpx2.URL(exchange['request']['uri'])
        assert (request.method, request.url.path) == (exchange['request']['method'].upper(), recorded.path)
        assert dict(request.url.params) == dict(recorded.params)
        assert shape(request.content) == shape(exchange['request']['body']['string'])
        return httpx2.Response(
            exchange['response']['status']['code'], content=exchange['response']['body']['string'].encode()
        )

    server.answer = answer
    with Payload(responses, await responses.identity(), TAG) as payload:
        for request in requests_of(['2 + 2?', 'the largest planet?']):
            payload.add((await responses.encode(request)).body.encode())
        batch = await responses.create(payload)
    checks = [await responses.status(batch) for _ in range(3)]
    assert [responses.job_status(check) for check in checks] == ['in_progress', 'in_progress', 'ended']
    results = [result async for result in responses.results(checks[-1])]
    assert left == []
    assert responses.readable(checks[-1]) == len(results) == 2
    answers = [
        await responses.decode(result, requests_of(['x'])[0]) for result in results if isinstance(result, BatchResult)
    ]
    assert [answer.text for answer in answers] == ['4', 'Jupiter']
    assert [(answer.usage.input_tokens, answer.usage.output_tokens) for answer in answers] == [(204, 83), (204, 64)]
    assert [answer.usage.cache_read_tokens for answer in answers] == [192, 128]
    assert all(answer.thinking for answer in answers)


def shape(content: bytes | str) -> Any:
    """The keys of what is sent to make a batch, without those of the requests themselves."""
    if not content:
        return None
    value = json.loads(content)
    return [sorted(value), [sorted(item) + sorted(item['batch_request']) for item in value.get('batch_requests', [])]]
