"""The lane of Anthropic's Message Batches: beta flags, where results are read, and how a lost batch is known again."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelNotFoundError, UserError
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, BatchRequest, Lane, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotRun, Payload, Stray, Undecided
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .harness import echo
from .server import Server

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
GROUP = '{"betas":[],"credential":"c","endpoint":"e"}'
TAG = 't' * 20
ONE, TWO = 'files-api-2025-04-14', 'context-1m-2025-08-07'
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]


def asked(text: str, **settings: Any) -> BatchRequest:
    return BatchRequest(
        custom_id=text,
        messages=[ModelRequest.user_text_prompt(text)],
        model_settings=AnthropicModelSettings(**settings) if settings else None,
    )


MakeModel = Callable[..., AnthropicModel]


@pytest.fixture
async def model_of_anthropic() -> AsyncIterator[MakeModel]:
    clients: list[AsyncAnthropic] = []

    def make(fake: FakeProviders, name: str = 'claude-haiku-4-5', *, settings: Any = None, **client: Any):
        clients.append(fake.anthropic.client(max_retries=0, **client))
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=clients[-1]), settings=settings)

    yield make
    for client in clients:
        await client.close()


async def run(clock: ManualClock, model: AnthropicModel, requests: list[BatchRequest], **settings: Any) -> list[Any]:
    """The text of each row's answer, or its error."""
    outcomes = await clock.run(model_request_batch(model, requests, clock=clock, **settings))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def creates(fake: FakeProviders) -> list[tuple[str | None, list[dict[str, Any]]]]:
    """The beta header of each create, and the requests in it."""
    return [
        (call.headers.get('anthropic-beta'), json.loads(call.body)['requests'])
        for call in fake.anthropic.calls
        if call.operation == 'create'
    ]


def texts(requests: list[dict[str, Any]]) -> list[str]:
    return [request['params']['messages'][0]['content'][0]['text'] for request in requests]


# Beta flags


async def test_beta_flags_travel_in_the_header_and_rows_of_one_set_share_a_batch(
    model_of_anthropic: MakeModel, clock: ManualClock
):
    rows = [
        asked('plain 1'),
        asked('one 1', anthropic_betas=[ONE]),
        asked('both 1', anthropic_betas=[ONE, TWO]),
        asked('plain 2'),
        asked('one 2', anthropic_betas=[ONE]),
        asked('both 2', anthropic_betas=[TWO, ONE]),
    ]
    with FakeProviders(echo, clock=clock) as fake:
        answers = await run(clock, model_of_anthropic(fake), rows)
        assert answers == [f'answer to {row.custom_id}' for row in rows]
        sent = {header: texts(requests) for header, requests in creates(fake)}
        assert sent == {
            None: ['plain 1', 'plain 2'],
            ONE: ['one 1', 'one 2'],
            f'{TWO},{ONE}': ['both 1', 'both 2'],
        }
        assert sorted(batch.betas for batch in fake.anthropic.batches.values()) == [(), (TWO, ONE), (ONE,)]
        bodies = json.dumps([requests for _, requests in creates(fake)])
        assert ONE not in bodies
        assert TWO not in bodies


async def test_a_batched_request_has_the_beta_flags_of_a_live_one(model_of_anthropic: MakeModel, clock: ManualClock):
    settings = AnthropicModelSettings(anthropic_betas=[ONE], max_tokens=100)
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of_anthropic(fake, settings=settings, default_headers={'anthropic-beta': TWO})
        agent = Agent(model)
        await agent.run('x')
        await clock.run(agent.run('x', capabilities=[BatchModelRequests(clock=clock, max_requests=1)]))
        live, batched = (call for call in fake.anthropic.calls if call.operation in ('live', 'create'))

        def betas(header: str) -> set[str]:
            return set(header.replace(' ', '').split(','))

        assert betas(batched.headers['anthropic-beta']) == betas(live.headers['anthropic-beta'])
        # Whether the client's own flags are merged with those of the settings is the framework's to say.
        assert {ONE} <= betas(live.headers['anthropic-beta']) <= {ONE, TWO}


async def test_a_feature_that_adds_a_flag_puts_its_requests_in_a_batch_of_their_own(
    model_of_anthropic: MakeModel, clock: ManualClock
):
    thinking: Any = {'type': 'enabled', 'budget_tokens': 2048}
    context: Any = {'edits': [{'type': 'clear_tool_uses_20250919'}]}
    rows = [
        asked('plain'),
        asked('thinks', anthropic_thinking=thinking, max_tokens=4096),
        asked('forgets', anthropic_context_management=context, max_tokens=100),
    ]
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of_anthropic(fake)
        lane = lane_for(model)
        groups = {row.custom_id: (await lane.encode(row)).group for row in rows}
        flags = {name: json.loads(group)['betas'] for name, group in groups.items()}
        assert flags['plain'] == []
        await run(clock, model, rows)
        sent = {text: header for header, requests in creates(fake) for text in texts(requests)}
        assert sent == {name: ','.join(betas) or None for name, betas in flags.items()}
        assert len(creates(fake)) == len(set(groups.values()))


@pytest.mark.parametrize('group', ['{}', '{"credential":"c","endpoint":"e"}', '{"betas":null}', '{"betas":"a"}', 'x'])
async def test_a_group_that_does_not_tell_its_flags_is_refused_before_anything_is_sent(
    group: str, fake: FakeProviders, model_of_anthropic: MakeModel
):
    lane = lane_for(model_of_anthropic(fake))
    with Payload(lane, group) as payload:
        payload.add(b'{}')
        with pytest.raises(UserError, match='group key'):
            await lane.create(payload)
    assert fake.calls == []


# What a batch may mix


async def test_models_and_settings_mix_in_one_batch(model_of_anthropic: MakeModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        capability = BatchModelRequests(clock=clock)
        client = model_of_anthropic(fake).client
        provider = AnthropicProvider(anthropic_client=client)
        agents = [
            Agent(AnthropicModel('claude-haiku-4-5', provider=provider), capabilities=[capability]),
            Agent(AnthropicModel('claude-opus-4-5', provider=provider), capabilities=[capability]),
        ]
        settings = [ModelSettings(max_tokens=100), ModelSettings(max_tokens=200, stop_sequences=['END'])]
        results = await clock.run(
            asyncio.gather(*[agent.run('x', model_settings=given) for agent in agents for given in settings])
        )
        assert [result.output for result in results] == ['answer to x'] * 4
        ((_, requests),) = creates(fake)
        told = Counter((request['params']['model'], request['params']['max_tokens']) for request in requests)
        assert told == Counter([(name, n) for name in ('claude-haiku-4-5', 'claude-opus-4-5') for n in (100, 200)])
        last = [result.all_messages()[-1] for result in results]
        models = [message.model_name for message in last if isinstance(message, ModelResponse)]
        assert models == ['claude-haiku-4-5'] * 2 + ['claude-opus-4-5'] * 2


async def test_two_keys_do_not_share_a_batch(model_of_anthropic: MakeModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        capability = BatchModelRequests(clock=clock)
        agents = [Agent(model_of_anthropic(fake, api_key=key), capabilities=[capability]) for key in ('one', 'two')]
        await clock.run(asyncio.gather(*[agent.run('x') for agent in agents]))
        assert [len(requests) for _, requests in creates(fake)] == [1, 1]


# Bytes


async def test_the_bytes_that_are_sent_are_those_that_were_encoded(fake: FakeProviders, model_of_anthropic: MakeModel):
    lane = lane_for(model_of_anthropic(fake))
    bodies = [
        (await lane.encode(asked(text, max_tokens=100))).body.encode()
        for text in ('plain', 'ü € 🙂 \u2028', '"quoted" \\ \n', 'x' * 3_000_000)
    ]
    with Payload(lane, await lane.identity(), tag=TAG) as payload:
        for body in bodies:
            payload.add(body)
        assert await lane.create(payload)
    (call,) = [call for call in fake.calls if call.operation == 'create']
    items = [b'{"custom_id":"%b-%d","params":%b}' % (TAG.encode(), n, body) for n, body in enumerate(bodies)]
    assert call.body == b'{"requests":[%b]}' % b','.join(items)
    assert call.headers['content-length'] == str(len(call.body))
    assert 'transfer-encoding' not in call.headers
    assert call.headers['content-type'] == 'application/json'
    assert call.query == {'beta': 'true'}


async def test_a_requests_size_is_never_less_than_it_takes_up(fake: FakeProviders, model_of_anthropic: MakeModel):
    lane = lane_for(model_of_anthropic(fake))
    with Payload(lane, GROUP) as payload:
        bodies = [b'{}', b'{"max_tokens":' + b'1' * 1000 + b'}', '{"a":"ü€"}'.encode()] * 4
        for body in bodies:
            payload.add(body)
        framing = len(lane.prefix) + len(lane.suffix)
        assert len(payload.open().read()) == payload.size
        assert payload.size <= framing + sum(lane.request_size(body) for body in bodies)


# Reading


@pytest.fixture
async def lane(server: Server) -> AsyncIterator[Lane]:
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(server.handle)) as http_client:
        client = AsyncAnthropic(api_key='sk-secret', base_url='http://proxy.test/claude', http_client=http_client)
        yield lane_for(AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client)))


def batch_object(**changes: Any) -> dict[str, Any]:
    return {
        'id': 'msgbatch_1',
        'type': 'message_batch',
        'processing_status': 'in_progress',
        'request_counts': {'processing': 3, 'succeeded': 0, 'errored': 0, 'canceled': 0, 'expired': 0},
        'created_at': '2030-01-01T00:00:00.123456Z',
        'expires_at': '2030-01-02T00:00:00.123456Z',
        'ended_at': None,
        'archived_at': None,
        'results_url': None,
        **changes,
    }


def handle(**changes: Any) -> Batch:
    return replace(
        Batch(
            id='msgbatch_1',
            model_name='claude-haiku-4-5',
            provider_name='anthropic',
            group=GROUP,
            status='ended',
            created_at=CREATED,
            request_count=3,
            provider_details={},
        ),
        **changes,
    )


async def read(lane: Lane, server: Server, *lines: bytes | dict[str, Any]) -> list[BatchResult | Stray]:
    content = b'\n'.join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    server.answer = lambda request: httpx2.Response(200, content=content)
    return [result async for result in lane.results(handle())]


def ok(custom_id: str = 'a-0') -> dict[str, Any]:
    return {'custom_id': custom_id, 'result': {'type': 'succeeded', 'message': {'id': 'msg_1'}}}


async def test_results_are_read_from_the_clients_own_base_url_and_not_from_where_the_batch_says(
    lane: Lane, server: Server
):
    server.replies(
        batch_object(
            processing_status='ended',
            request_counts={'processing': 0, 'succeeded': 1},
            results_url='http://elsewhere.test/v1/messages/batches/msgbatch_1/results',
        )
    )
    batch = await lane.status(handle(status='in_progress'))
    assert (batch.status, lane.readable(batch)) == ('ended', 1)
    server.calls.clear()
    server.answer = lambda request: httpx2.Response(200, content=json.dumps(ok()).encode())
    assert [result.custom_id async for result in lane.results(batch)] == ['a-0']
    (call,) = server.calls
    assert call.url.host == 'proxy.test'
    assert call.url.path == '/claude/v1/messages/batches/msgbatch_1/results'
    assert call.headers['authorization'] == 'Bearer sk-secret'
    assert 'elsewhere' not in json.dumps(batch.provider_details)


async def test_archived_results_are_gone_without_asking_for_them(lane: Lane, server: Server):
    server.replies(batch_object(processing_status='ended', archived_at='2030-01-30T00:00:00Z'))
    batch = await lane.status(handle(status='in_progress'))
    server.calls.clear()
    with pytest.raises(ModelNotFoundError, match='archived'):
        await anext(lane.results(batch))
    assert server.calls == []


async def test_results_that_anthropic_archived_are_not_asked_for(
    fake: FakeProviders, model_of_anthropic: MakeModel, clock: ManualClock
):
    lane = lane_for(model_of_anthropic(fake))
    with Payload(lane, await lane.identity()) as payload:
        payload.add((await lane.encode(asked('x'))).body.encode())
        created = await lane.create(payload)
    kept = lane.info.results_kept
    assert kept is not None
    await clock.advance(kept - timedelta(hours=1))
    assert len([result async for result in lane.results(await lane.status(created))]) == 1
    await clock.advance(timedelta(hours=2))
    batch = await lane.status(created)
    with pytest.raises(ModelNotFoundError, match='archived'):
        await anext(lane.results(batch))
    assert fake.anthropic.count('download') == 1


@pytest.mark.parametrize(
    ('line', 'status', 'body'),
    [
        (ok(), 'succeeded', {'type': 'succeeded', 'message': {'id': 'msg_1'}}),
        (
            {'custom_id': 'a-0', 'result': {'type': 'errored', 'error': {'error': {'type': 'api_error'}}}},
            'errored',
            {'type': 'errored', 'error': {'error': {'type': 'api_error'}}},
        ),
        ({'custom_id': 'a-0', 'result': {'type': 'expired'}}, 'expired', None),
        ({'custom_id': 'a-0', 'result': {'type': 'canceled'}}, 'canceled', None),
    ],
)
async def test_a_line_says_how_its_request_ended(line: Any, status: str, body: Any, lane: Lane, server: Server):
    (result,) = await read(lane, server, line)
    assert isinstance(result, BatchResult)
    assert (result.custom_id, result.status) == ('a-0', status)
    assert (None if result.body is None else json.loads(result.body)) == body


@pytest.mark.parametrize(
    ('line', 'custom_id'),
    [
        (b'{"custom_id":null,"result":{"type":"succeeded"}}', None),
        (b'{"result":{"type":"succeeded"}}', None),
        (b'[]', None),
        (b'{"custom_id":"a-1","result":null}', 'a-1'),
        (b'{"custom_id":"a-1"}', 'a-1'),
        (b'{"custom_id":"a-1","result":{"type":"on_holiday"}}', 'a-1'),
        (b'{"custom_id":"a-1","result":{"type":"succeeded","mess', 'a-1'),
    ],
)
async def test_a_line_that_is_no_result_is_set_aside_with_the_id_it_has(
    line: bytes, custom_id: str | None, lane: Lane, server: Server
):
    first, result, last = await read(lane, server, ok('before'), line, ok('after'))
    assert isinstance(first, BatchResult)
    assert isinstance(last, BatchResult)
    assert isinstance(result, Stray)
    assert result.custom_id == custom_id


@pytest.mark.parametrize(
    ('word', 'ended_at', 'status'),
    [
        ('in_progress', None, 'in_progress'),
        ('canceling', None, 'canceling'),
        ('ended', '2030-01-01T01:00:00Z', 'ended'),
        ('ENDED', None, 'ended'),
        ('paused', None, 'in_progress'),
        ('archived', '2030-01-01T01:00:00Z', 'ended'),
        (None, None, 'in_progress'),
    ],
)
async def test_a_status_is_read_in_any_case_and_an_unknown_one_runs_until_it_shows_its_end(
    word: Any, ended_at: Any, status: str, lane: Lane, server: Server
):
    server.replies(batch_object(processing_status=word, ended_at=ended_at))
    assert (await lane.status(handle())).status == status


@pytest.mark.parametrize('counts', [None, {}, [], {'succeeded': None}, {'processing': '3'}])
async def test_counts_that_are_none_leave_the_number_that_was_submitted(counts: Any, lane: Lane, server: Server):
    server.replies(batch_object(request_counts=counts))
    assert (await lane.status(handle())).request_count == 3


@pytest.mark.parametrize('id', ['../files', 'msgbatch_1/results', 'msgbatch_1?beta=false', '', '..', 'ü'])
async def test_an_id_that_a_history_made_up_reaches_no_other_path(id: str, lane: Lane, server: Server):
    with pytest.raises(UserError, match='no ID'):
        await lane.status(handle(id=id))
    with pytest.raises(UserError, match='no ID'):
        await lane.cancel(handle(id=id))
    with pytest.raises(UserError, match='no ID'):
        await anext(lane.results(handle(id=id)))
    assert server.calls == []


@pytest.mark.parametrize('call', ['create', 'status', 'results', 'cancel', 'find'])
@pytest.mark.parametrize('status', [408, 409, 429, 500, 529])
async def test_every_call_is_sent_once_whatever_the_client_says(call: str, status: int, lane: Lane, server: Server):
    server.answer = lambda request: httpx2.Response(status, json={'type': 'error', 'error': {'message': 'no'}})
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
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
    assert server.calls[0].headers['user-agent'].startswith('pydantic-ai')
    assert 'sk-secret' not in f'{raised.value!r} {vars(raised.value)}'


@pytest.mark.parametrize('reply', [{}, {'id': ''}, {'id': 7}])
async def test_a_create_that_answers_without_an_id_has_an_unknown_outcome(reply: Any, lane: Lane, server: Server):
    server.replies(reply)
    with Payload(lane, GROUP) as payload:
        payload.add(b'{}')
        with pytest.raises(ModelConnectionError) as raised:
            await lane.create(payload)
    assert raised.value.phase == 'read'


async def test_a_row_that_an_ended_batch_does_not_list_was_not_run(lane: Lane):
    result = lane.unlisted(handle(), 'a-0')
    assert isinstance(result, NotRun)
    assert result.again
    assert 'msgbatch_1' in result.reason


# A lost reply


def page(*batches: dict[str, Any], more: bool = False, last: str | None = None) -> dict[str, Any]:
    return {'data': list(batches), 'has_more': more, 'first_id': None, 'last_id': last}


def ended(number: int, *, minutes: int = 0, count: int = 2) -> dict[str, Any]:
    created = CREATED + timedelta(minutes=minutes)
    return batch_object(
        id=f'msgbatch_{number}',
        processing_status='ended',
        created_at=created.isoformat(),
        request_counts={'processing': 0, 'succeeded': count},
    )


async def find(lane: Lane, server: Server, *pages: Any, tags: dict[str, str]) -> list[str]:
    waiting = list(pages)

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith('/results'):
            line = ok(f'{tags[request.url.path.split("/")[-2]]}-1')
            return httpx2.Response(200, content=json.dumps(line).encode())
        return httpx2.Response(200, json=waiting.pop(0))

    server.answer = answer
    with Payload(lane, GROUP, tag=TAG) as payload:
        payload.add(b'{}')
        payload.add(b'{}')
        return [batch.id for batch in await lane.find(payload, since=CREATED)]


async def test_a_batch_is_found_on_any_page_by_the_ids_in_its_results(lane: Lane, server: Server):
    pages = [
        page(ended(9, minutes=9), ended(8, minutes=8), ended(7, minutes=7, count=5), more=True, last='msgbatch_7'),
        page(ended(6, minutes=6), ended(5, minutes=-1)),
    ]
    tags = {'msgbatch_9': 'u' * 20, 'msgbatch_8': TAG, 'msgbatch_6': TAG}
    assert await find(lane, server, *pages, tags=tags) == ['msgbatch_6', 'msgbatch_8']
    asked_for = [dict(call.url.params) for call in server.calls if not call.url.path.endswith('/results')]
    assert asked_for == [
        {'beta': 'true', 'limit': '100'},
        {'beta': 'true', 'limit': '100', 'after_id': 'msgbatch_7'},
    ]


async def test_a_tag_that_ours_only_begins_with_is_another(lane: Lane, server: Server):
    assert await find(lane, server, page(ended(1)), tags={'msgbatch_1': f'{TAG}x'}) == []


async def test_a_running_batch_of_the_same_size_leaves_it_undecided_and_one_of_another_size_does_not(
    lane: Lane, server: Server
):
    running = batch_object(request_counts={'processing': 2})
    with pytest.raises(Undecided):
        await find(lane, server, page(running), tags={})
    other = batch_object(request_counts={'processing': 3})
    assert await find(lane, server, page(other), tags={}) == []
    found = await find(lane, server, page(running, ended(2)), tags={'msgbatch_2': TAG})
    assert found == ['msgbatch_2']


@pytest.mark.parametrize('data', [None, {}, 'none', [7], [{'no': 'id'}]])
async def test_a_page_that_is_no_listing_proves_nothing(data: Any, lane: Lane, server: Server):
    with pytest.raises(ListingIncomplete):
        await find(lane, server, {'data': data, 'has_more': False}, tags={})


async def test_a_lost_batch_is_waited_for_beside_a_running_one_of_its_size_and_proven_by_its_ids(
    model_of_anthropic: MakeModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger='pydantic_ai_batch')
    hours = timedelta(hours=3)
    with FakeProviders(echo, clock=clock, processing=hours) as fake:
        model = model_of_anthropic(fake)
        names = [f'other {n}' for n in range(len(ROWS))]
        others = [asked(name) for name in names]
        fake.anthropic.inject('create', 'lose_reply', after=1)
        started = clock.now()
        theirs, ours = await clock.run(
            asyncio.gather(
                model_request_batch(model, others, clock=clock),
                model_request_batch(model, [asked(row) for row in ROWS], clock=clock),
            )
        )
        answers = [getattr(outcome, 'text', outcome) for outcome in [*theirs, *ours]]
        assert answers == [*(f'answer to {name}' for name in names), *ANSWERS]
        assert fake.anthropic.count('create') == 2
        assert Counter(row.text for row in fake.anthropic.billed) == Counter(
            [*ROWS, *(row.custom_id for row in others)]
        )
        assert timedelta(seconds=clock.now() - started) >= hours
        assert 'not found yet' in caplog.text
        # Nothing was read of a batch before it had ended.
        downloads = [call.at for call in fake.anthropic.calls if call.operation == 'download']
        assert min(downloads) - started >= hours.total_seconds()


async def test_a_create_that_made_nothing_is_sent_again_once_the_other_batch_has_shown_its_ids(
    model_of_anthropic: MakeModel, clock: ManualClock
):
    hours = timedelta(hours=3)
    with FakeProviders(echo, clock=clock, processing=hours) as fake:
        model = model_of_anthropic(fake)
        names = [f'other {n}' for n in range(len(ROWS))]
        others = [asked(name) for name in names]
        fake.anthropic.inject('create', 'reset', after=1)
        await clock.run(
            asyncio.gather(
                model_request_batch(model, others, clock=clock),
                model_request_batch(model, [asked(row) for row in ROWS], clock=clock),
            )
        )
        first, lost, second = [call for call in fake.anthropic.calls if call.operation == 'create']
        assert lost.status is None
        assert lost.body == second.body
        assert second.at - first.at >= hours.total_seconds()
        assert len(fake.anthropic.batches) == 2
        assert Counter(row.text for row in fake.anthropic.billed) == Counter(
            [*ROWS, *(row.custom_id for row in others)]
        )


async def test_a_lost_create_whose_listing_cannot_be_read_says_where_to_look(
    model_of_anthropic: MakeModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.anthropic.inject('create', 'lose_reply')
        fake.anthropic.inject('list', 'http', status=500, times=None)
        outcomes = await run(clock, model_of_anthropic(fake), [asked(row) for row in ROWS])
        ((_, requests),) = creates(fake)
        tag = requests[0]['custom_id'].partition('-')[0]
        for outcome in outcomes:
            assert isinstance(outcome, CreateUnsettled)
            assert f'a batch of {len(ROWS)} requests' in str(outcome)
            assert f'begin with `{tag}`' in str(outcome)
            assert 'None' not in str(outcome)
        assert fake.anthropic.count('create') == 1


async def test_the_fake_and_the_lane_agree_on_a_whole_life(
    fake: FakeProviders, model_of_anthropic: MakeModel, clock: ManualClock
):
    lane = lane_for(model_of_anthropic(fake))
    request = asked('hello', max_tokens=100)
    with Payload(lane, await lane.identity()) as payload:
        wire_id = payload.add((await lane.encode(request)).body.encode())
        created = await lane.create(payload)
        with pytest.raises(Undecided):
            await lane.find(payload, since=created.created_at)
        await clock.advance(timedelta(hours=1))
        assert [found.id for found in await lane.find(payload, since=created.created_at)] == [created.id]
    batch = await lane.status(created)
    assert (batch.status, batch.request_count, batch.created_at) == ('ended', 1, created.created_at)
    (result,) = [result async for result in lane.results(batch)]
    assert isinstance(result, BatchResult)
    assert result.custom_id == wire_id
    assert (await lane.decode(result, request)).text == 'Answer to: hello'
