"""Attacks on the lanes: what a provider, a proxy or a history may say without costing anybody an answer or money."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, ImageUrl, ModelMessagesTypeAdapter, ModelRequest, PendingModelResponse
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests, BatchRequest, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import CreateUnsettled, ResultUnreadable
from pydantic_ai_batch.lanes.base import Payload
from pydantic_ai_batch.policy import CheckHistory
from pydantic_ai_batch.pool import Pool
from pydantic_ai_batch.pool_state import Submitted, flight_key
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock

ROWS = [f'row {n}' for n in range(4)]
ANSWERS = [f'answer to {row}' for row in ROWS]


def echo(request: FakeRequest) -> str:
    return f'answer to {request.text}'


def requests(rows: list[str] = ROWS) -> list[BatchRequest]:
    return [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in rows]


async def run(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    outcomes = await clock.run(model_request_batch(model, requests(rows), clock=clock, **settings))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


Meddle = Callable[[Any, int, bytes], tuple[int, bytes] | None]


class Between(httpx2.AsyncBaseTransport):
    """A proxy between a client and the fake, which may change what a provider answers."""

    def __init__(self) -> None:
        self.inner: dict[str, Any] = {}
        self.seen: list[str] = []
        self.meddle: Meddle = lambda request, status, body: None

    async def handle_async_request(self, request: Any) -> Any:
        # Google's SDK may speak through httpx and the others through httpx2.
        name = type(request).__module__.partition('.')[0]
        library = importlib.import_module(name)
        if name not in self.inner:
            self.inner[name] = library.AsyncHTTPTransport()
        self.seen.append(f'{request.method} {request.url.path}')
        response = await self.inner[name].handle_async_request(request)
        body = await response.aread()
        await response.aclose()
        status, content = self.meddle(request, response.status_code, body) or (response.status_code, body)
        unchanged = {'content-length', 'content-encoding', 'transfer-encoding'}
        headers = {name: value for name, value in response.headers.items() if name.lower() not in unchanged}
        return library.Response(status, headers=headers, content=content)

    async def aclose(self) -> None:
        for transport in self.inner.values():
            await transport.aclose()


class Proxied:
    """Makes models whose clients go through the proxy."""

    def __init__(self, between: Between) -> None:
        self.between = between
        self.clients: list[Any] = []

    def http_client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=self.between)

    def anthropic(self, fake: FakeProviders) -> AnthropicModel:
        client = AsyncAnthropic(
            api_key='sk-secret', base_url=fake.anthropic.base_url, http_client=self.http_client(), max_retries=0
        )
        self.clients.append(client)
        return AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client))

    def openai(self, fake: FakeProviders) -> OpenAIResponsesModel:
        client = AsyncOpenAI(
            api_key='sk-secret', base_url=fake.openai.base_url, http_client=self.http_client(), max_retries=0
        )
        self.clients.append(client)
        return OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))

    def google(self, fake: FakeProviders) -> GoogleModel:
        client = fake.google.client(
            api_key='AIza-secret',
            http_options={'async_client_args': {'trust_env': False, 'transport': self.between}},
        )
        self.clients.append(client.aio)
        return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client))


@pytest.fixture
def between() -> Between:
    return Between()


@pytest.fixture
async def proxied(between: Between) -> AsyncIterator[Proxied]:
    proxied = Proxied(between)
    yield proxied
    for client in proxied.clients:
        await (client.aclose() if hasattr(client, 'aclose') else client.close())


def is_list(request: Any) -> bool:
    return request.method == 'GET' and request.url.path.endswith('/batches')


def rewrites(when: Callable[[Any], bool], change: Callable[[Any], Any]) -> Meddle:
    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        if when(request) and status == 200:
            return 200, json.dumps(change(json.loads(body))).encode()
        return None

    return meddle


# Listings after a lost reply


async def test_a_listing_that_is_cut_short_does_not_prove_that_there_is_no_batch_at_anthropic(
    proxied: Proxied, between: Between, clock: ManualClock
):
    between.meddle = rewrites(is_list, lambda page: {**page, 'data': [], 'has_more': True, 'last_id': None})
    with FakeProviders(echo, clock=clock) as fake:
        fake.anthropic.inject('create', 'lose_reply')
        outcomes = await run(clock, proxied.anthropic(fake))
        assert fake.anthropic.count('create') == 1
        assert all(isinstance(outcome, CreateUnsettled) for outcome in outcomes)


async def test_a_listing_that_is_cut_short_does_not_prove_that_there_is_no_batch_at_openai(
    proxied: Proxied, between: Between, clock: ManualClock
):
    between.meddle = rewrites(is_list, lambda page: {**page, 'data': [], 'has_more': True, 'last_id': None})
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('create', 'lose_reply')
        outcomes = await run(clock, proxied.openai(fake))
        assert fake.openai.count('create') == 1
        assert all(isinstance(outcome, CreateUnsettled) for outcome in outcomes)


@pytest.mark.parametrize('item', [{}, {'metadata': {}}, {'name': 'batches/1'}, None, 5, []])
async def test_listed_batches_that_say_nothing_do_not_prove_that_there_is_none_at_google(
    item: Any, proxied: Proxied, between: Between, clock: ManualClock
):
    between.meddle = rewrites(is_list, lambda page: {'operations': [item]})
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('create', 'lose_reply')
        await run(clock, proxied.google(fake))
        assert fake.google.count('create') == 1


async def test_empty_pages_in_the_middle_of_googles_listing_are_paged_over(
    proxied: Proxied, between: Between, clock: ManualClock
):
    pages = {None: b'{"nextPageToken":"1"}', '1': b'{"nextPageToken":"2"}'}

    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        page = pages.get(request.url.params.get('pageToken')) if is_list(request) else None
        return None if page is None else (200, page)

    between.meddle = meddle
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('create', 'lose_reply')
        outcomes = await run(clock, proxied.google(fake))
        assert fake.google.count('create') == 1
        assert outcomes == ANSWERS or all(isinstance(outcome, CreateUnsettled) for outcome in outcomes)


def twice(name: str) -> Callable[[Any], Any]:
    return lambda page: {**page, name: [*page.get(name, []), *page.get(name, [])]}


@pytest.mark.parametrize('provider', ['openai', 'anthropic', 'google'])
async def test_a_batch_that_a_listing_shows_twice_is_not_cancelled_as_its_own_double(
    provider: str, proxied: Proxied, between: Between, clock: ManualClock
):
    between.meddle = rewrites(is_list, twice('operations' if provider == 'google' else 'data'))
    with FakeProviders(echo, clock=clock) as fake:
        one = getattr(fake, provider)
        one.inject('create', 'lose_reply')
        outcomes = await run(clock, getattr(proxied, provider)(fake))
        assert one.count('cancel') == 0
        assert outcomes == ANSWERS


@pytest.mark.parametrize('counts', [None, {}, {'processing': '4'}, {'processing': 0}, 'many'])
async def test_a_listed_batch_of_unknown_size_does_not_prove_that_there_is_none_at_anthropic(
    counts: Any, proxied: Proxied, between: Between, clock: ManualClock
):
    def change(page: Any) -> Any:
        return {**page, 'data': [{**item, 'request_counts': counts} for item in page['data']]}

    between.meddle = rewrites(is_list, change)
    with FakeProviders(echo, clock=clock) as fake:
        fake.anthropic.inject('create', 'lose_reply')
        await run(clock, proxied.anthropic(fake))
        assert fake.anthropic.count('create') == 1


@pytest.mark.parametrize('first', [b'', b'{"custom_id"', b'{"custom_id":"%b","result":{"type":"new"}}', b'{}'])
async def test_a_batch_whose_results_do_not_say_whose_they_are_is_not_sent_again_at_anthropic(
    first: bytes, proxied: Proxied, between: Between, clock: ManualClock
):
    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        if request.url.path.endswith('/results') and status == 200:
            custom_id = json.loads(body.split(b'\n')[0])['custom_id'].encode()
            return 200, first.replace(b'%b', custom_id)
        return None

    between.meddle = meddle
    with FakeProviders(echo, clock=clock, processing=timedelta(0)) as fake:
        fake.anthropic.inject('create', 'lose_reply')
        await run(clock, proxied.anthropic(fake), ROWS[:1], max_resubmissions=0)
        assert fake.anthropic.count('create') == 1


async def test_one_listing_that_fails_after_many_that_were_undecided_settles_nothing(
    clock: ManualClock, proxied: Proxied
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=6)) as fake:
        fake.anthropic.inject('create', 'lose_reply')
        fake.anthropic.inject('list', 'http', after=6, status=503)
        assert await run(clock, proxied.anthropic(fake)) == ANSWERS
        assert fake.anthropic.count('create') == 1


async def test_another_batch_whose_results_are_gone_does_not_hide_the_one_looked_for(
    proxied: Proxied, between: Between, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(0)) as fake:
        model = proxied.anthropic(fake)
        assert await run(clock, model) == ANSWERS
        other = next(iter(fake.anthropic.batches))
        between.meddle = lambda request, status, body: (404, b'{}') if f'{other}/results' in str(request.url) else None
        fake.anthropic.inject('create', 'lose_reply')
        assert await run(clock, model) == ANSWERS
        assert fake.anthropic.count('create') == 2


@pytest.mark.parametrize('provider', ['openai', 'anthropic', 'google'])
async def test_a_batch_is_found_though_the_providers_clock_is_ten_minutes_behind(
    provider: str, proxied: Proxied, between: Between, clock: ManualClock
):
    def earlier(item: dict[str, Any]) -> dict[str, Any]:
        then = clock.now() - 600
        iso = datetime.fromtimestamp(then, tz=UTC).isoformat()
        if provider == 'google':
            return {**item, 'metadata': {**item['metadata'], 'createTime': iso.replace('+00:00', 'Z')}}
        return {**item, 'created_at': int(then) if provider == 'openai' else iso}

    name = 'operations' if provider == 'google' else 'data'
    between.meddle = rewrites(
        is_list, lambda page: {**page, name: [earlier(item) for item in page.get(name, [])]} if page else page
    )
    with FakeProviders(echo, clock=clock) as fake:
        one = getattr(fake, provider)
        one.inject('create', 'lose_reply')
        await run(clock, getattr(proxied, provider)(fake))
        assert one.count('create') == 1


# Ends that are seen before their results


async def test_a_gemini_batch_that_succeeded_and_shows_neither_its_output_nor_new_counts_is_not_paid_again(
    proxied: Proxied, between: Between, clock: ManualClock
):
    hidden = 2

    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        nonlocal hidden
        if request.method != 'GET' or '/batches/' not in request.url.path or status != 200:
            return None
        operation = json.loads(body)
        if not operation.get('done') or not hidden:
            return None
        hidden -= 1
        operation.pop('response', None)
        operation['metadata'].pop('output', None)
        operation['metadata']['batchStats'] = {'requestCount': '4', 'pendingRequestCount': '4'}
        return 200, json.dumps(operation).encode()

    between.meddle = meddle
    with FakeProviders(echo, clock=clock) as fake:
        assert await run(clock, proxied.google(fake)) == ANSWERS
        assert fake.google.count('create') == 1


# Odd results


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b'1' + b'}' * depth


ODD = [
    b'null',
    b'[]',
    b'5',
    b'"text"',
    b'{}',
    b'{"role":5}',
    b'{"content":[null]}',
    b'{"content":"text"}',
    b'{"candidates":null}',
    b'{"candidates":[null]}',
    b'{"candidates":[{"content":5}]}',
    b'{"candidates":[{"content":{"parts":[{"text":5}]}}]}',
    b'{"candidates":{}}',
    b'{"usage":"free"}',
    b'NaN',
    b'{"big":' + b'9' * 5000 + b'}',
    b'{"big":' + b'9' * 4000 + b'}',
    b'{"big":1e999}',
    b'{"text":"\\ud800"}',
    *[nested(depth) for depth in (150, 199, 201, 250, 300, 400, 500, 900, 950, 985, 990, 1000, 3000, 100_000)],
]


def odd_anthropic(custom_id: str, odd: bytes, where: str) -> bytes:
    result = {
        'message': b'{"type":"succeeded","message":%b}' % odd,
        'error': b'{"type":"errored","error":%b}' % odd,
        'inner': b'{"type":"errored","error":{"type":"error","error":%b}}' % odd,
        'result': odd,
        'type': b'{"type":%b}' % odd,
    }[where]
    return b'{"custom_id":"%b","result":%b}' % (custom_id.encode(), result)


@pytest.mark.parametrize('where', ['message', 'error', 'inner', 'result', 'type'])
async def test_an_odd_result_of_anthropics_costs_its_own_row_at_most(
    where: str, proxied: Proxied, between: Between, clock: ManualClock
):
    rows = [f'row {n}' for n in range(len(ODD) + 2)]

    def last(tag: str) -> str:
        return f'{tag}-{len(rows) - 1}'

    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        if not request.url.path.endswith('/results') or status != 200:
            return None
        tag = json.loads(body.split(b'\n')[0])['custom_id'].partition('-')[0]
        kept = [line for line in body.strip().split(b'\n') if json.loads(line)['custom_id'] in (f'{tag}-0', last(tag))]
        odd_lines = [odd_anthropic(f'{tag}-{place}', odd, where) for place, odd in enumerate(ODD, start=1)]
        return 200, b'\n'.join([*odd_lines, *kept])

    between.meddle = meddle
    with FakeProviders(echo, clock=clock) as fake:
        outcomes = await run(clock, proxied.anthropic(fake), rows, max_resubmissions=0)
        assert [outcomes[0], outcomes[-1]] == [f'answer to {rows[0]}', f'answer to {rows[-1]}']
        assert all(isinstance(outcome, Exception) for outcome in outcomes[1:-1])
        assert fake.anthropic.count('create') == 1


def odd_google(place: int, tag: str, odd: bytes, where: str, transport: str) -> bytes:
    result = {
        'response': b'"response":%b' % odd,
        'error': b'"error":%b' % odd,
        'code': b'"error":{"code":%b,"message":"oh"}' % odd,
        'message': b'"error":{"code":400,"message":%b}' % odd,
        'metadata': b'"response":{"modelVersion":%b,"candidates":[]}' % odd,
    }[where]
    key = b'"key":"%b-%d"' % (tag.encode(), place)
    return b'{%b,%b}' % (key if transport == 'file' else b'"metadata":{%b}' % key, result)


@pytest.mark.parametrize('where', ['response', 'error', 'code', 'message', 'metadata'])
@pytest.mark.parametrize('transport', ['inline', 'file'])
async def test_an_odd_result_of_googles_costs_its_own_row_at_most(
    transport: str, where: str, proxied: Proxied, between: Between, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    if transport == 'file':
        monkeypatch.setattr('pydantic_ai_batch.lanes.google.INLINE_BYTES', 0)
    # An operation that is no JSON as a whole tells nothing of any row.
    odds = [odd for odd in ODD if transport == 'file' or len(odd) < 4_500]
    rows = [f'row {n}' for n in range(len(odds) + 2)]

    def odd_results(tag: str) -> list[bytes]:
        return [odd_google(place, tag, odd, where, transport) for place, odd in enumerate(odds, start=1)]

    def meddle(request: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        if transport == 'file' and ':download' in request.url.path:
            lines = body.strip().split(b'\n')
            tag = json.loads(lines[0])['key'].partition('-')[0]
            return 200, b'\n'.join([lines[0], *odd_results(tag), lines[-1]])
        if transport == 'inline' and request.method == 'GET' and '/batches/' in request.url.path:
            operation = json.loads(body)
            answers = operation.get('response', {}).get('inlinedResponses', {}).get('inlinedResponses')
            if answers:
                tag = answers[0]['metadata']['key'].partition('-')[0]
                answers[1:-1] = ['HERE']
                operation['metadata'].pop('output', None)
                return 200, json.dumps(operation).encode().replace(b'"HERE"', b','.join(odd_results(tag)))
        return None

    between.meddle = meddle
    with FakeProviders(echo, clock=clock) as fake:
        outcomes = await run(clock, proxied.google(fake), rows, max_resubmissions=0)
        assert [outcomes[0], outcomes[-1]] == [f'answer to {rows[0]}', f'answer to {rows[-1]}']
        assert fake.google.count('create') == 1


@pytest.mark.parametrize('response', ['{"candidates":[{"content":{"parts":[{"text":"hi"}]}}]}', [], 5])
async def test_an_answer_of_googles_in_an_odd_form_is_unreadable_and_not_paid_again(
    response: Any, proxied: Proxied, between: Between, clock: ManualClock
):
    def change(operation: Any) -> Any:
        for output in (operation.get('response', {}), operation['metadata'].get('output', {})):
            if listed := output.get('inlinedResponses', {}).get('inlinedResponses'):
                listed[1]['response'] = response
        return operation

    between.meddle = rewrites(lambda request: request.method == 'GET' and '/batches/' in request.url.path, change)
    with FakeProviders(echo, clock=clock) as fake:
        outcomes = await run(clock, proxied.google(fake))
        assert fake.google.count('create') == 1
        assert isinstance(outcomes[1], ResultUnreadable)


# Made-up batch ids


@pytest.mark.parametrize(
    'made_up',
    [
        'batches/../files/x',
        'files/x',
        '../files/x',
        '//evil.test/x',
        'http://evil.test/x',
        'batches/x?alt=media&key=1',
        'batches/x#y',
        'batches/x:cancel',
        'models/gemini-2.5-flash',
        '',
    ],
)
async def test_a_made_up_id_of_a_gemini_batch_reaches_no_other_path(
    made_up: str, proxied: Proxied, between: Between, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        lane = lane_for(proxied.google(fake))
        with Payload(lane, await lane.identity()) as payload:
            payload.add((await lane.encode(requests()[0])).body.encode())
            batch = await lane.create(payload)
        between.seen.clear()
        with pytest.raises((UserError, ModelAPIError)):
            await lane.status(replace(batch, id=made_up))
        assert between.seen == []


async def test_a_history_with_a_made_up_time_spoils_the_check_of_nobody_else(proxied: Proxied, clock: ManualClock):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=5)) as fake:
        model = proxied.openai(fake)

        def agent() -> Agent[None, str | PendingModelResponse]:
            return Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])

        history = (await clock.run(agent().run('a'))).all_messages()
        made_up = ModelMessagesTypeAdapter.dump_python(history, mode='json')
        made_up[-1]['provider_details']['batch']['batch']['created_at'] = '2001-01-01T00:00:00Z'
        forged = ModelMessagesTypeAdapter.validate_python(made_up)
        collecting = agent()
        runs = [collecting.run(message_history=messages) for messages in (forged, history)]
        _, honest = await clock.run(asyncio.gather(*runs, return_exceptions=True))
        assert not isinstance(honest, BaseException), honest


# Rows that cannot be encoded


@pytest.mark.parametrize('provider', ['openai', 'anthropic', 'google'])
async def test_a_row_whose_image_cannot_be_fetched_costs_no_other_row(
    provider: str, proxied: Proxied, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        gone = ImageUrl(f'{fake.openai.base_url}/nothing.png', force_download='allow-local')
        asked = requests()
        asked[1] = BatchRequest(
            custom_id='row 1', messages=[ModelRequest(parts=[UserPromptPart(content=['row 1', gone])])]
        )
        model = getattr(proxied, provider)(fake)
        outcomes = await clock.run(model_request_batch(model, asked, max_requests=1, clock=clock))
        assert [getattr(outcome, 'text', None) for outcome in outcomes] == [ANSWERS[0], None, *ANSWERS[2:]]
        assert getattr(fake, provider).count('cancel') == 0


# Waiting


async def test_a_run_that_comes_while_the_model_is_being_left_is_answered(clock: ManualClock):
    """The poller has read everything and closes the client, which takes a moment: nobody may be left waiting."""
    leaving = asyncio.Event()
    go_on = asyncio.Event()

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart('an answer')])

    class SlowToLeave(FunctionModel):
        slow = False

        async def __aexit__(self, *args: Any) -> None:
            await super().__aexit__(*args)
            if self.slow:
                leaving.set()
                await go_on.wait()

    model = SlowToLeave(answer)
    pool = Pool(BatchSettings(max_requests=2), clock=clock)
    lane = lane_for(model)
    here = pool.here()

    async def place(row: str) -> Submitted:
        encoded = await lane.encode(requests([row])[0])
        return await here.queues.place(lane, encoded.group, encoded.body.encode())

    first, second = await clock.run(asyncio.gather(place('a'), place('b')))
    group = await lane.identity()
    key = flight_key(lane, group, first.batch)
    model.slow = True
    waits = [asyncio.create_task(here.waits.wait(lane, key, one, history=CheckHistory())) for one in (first, second)]
    await clock.run(leaving.wait())
    late = asyncio.create_task(here.waits.wait(lane, key, first, history=CheckHistory()))
    await clock.run(asyncio.sleep(0))
    go_on.set()
    done, pending = await asyncio.wait([*waits, late], timeout=5)
    for task in pending:
        task.cancel()
    assert not pending
    assert len(done) == 3


# Never ending


async def test_an_anthropic_batch_that_never_ends_is_not_said_to_be_gone(clock: ManualClock, proxied: Proxied):
    with FakeProviders(echo, clock=clock) as fake:
        fake.anthropic.inject('batch', 'stick')
        agent = Agent(proxied.anthropic(fake), capabilities=[BatchModelRequests(clock=clock)])
        with pytest.raises(ModelAPIError, match='has not ended'):
            await clock.run(agent.run('hello'))


async def test_five_thousand_rows_get_their_own_answers(clock: ManualClock, proxied: Proxied):
    rows = [f'row {n}' for n in range(5_000)]
    with FakeProviders(echo, clock=clock, ordered=False) as fake:
        assert await run(clock, proxied.google(fake), rows) == [f'answer to {row}' for row in rows]
        assert Counter(row.text for row in fake.google.billed) == Counter(rows)
