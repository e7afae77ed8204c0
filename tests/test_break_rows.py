"""Attacks on what was paid for: no row is lost, paid twice, or given another row's answer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from conftest import ModelOf
from pydantic_ai import Agent, ModelMessagesTypeAdapter, ModelRequest, PendingModelResponse
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import EncodedBatchRequest
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.wrapper import WrapperModel

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock


def echo(request: FakeRequest) -> str:
    return f'about {request.text}'


def batched(clock: ManualClock, **settings: Any) -> BatchModelRequests:
    return BatchModelRequests(clock=clock, **settings)


def pending_agent(model: Model, *capabilities: AbstractCapability[Any]) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=capabilities)


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def submit(clock: ManualClock, agent: Agent[None, Any], *prompts: str) -> list[list[ModelMessage]]:
    results = await clock.run(asyncio.gather(*[agent.run(prompt) for prompt in prompts]))
    return [stored(result.all_messages()) for result in results]


def requests(*prompts: str) -> list[BatchRequest]:
    return [
        BatchRequest(custom_id=f'row {n}', messages=[ModelRequest.user_text_prompt(prompt)])
        for n, prompt in enumerate(prompts)
    ]


def texts(outcomes: list[ModelResponse | ModelAPIError]) -> list[str]:
    return [outcome.text or '' if isinstance(outcome, ModelResponse) else repr(outcome) for outcome in outcomes]


def rewrite_status(model: OpenAIResponsesModel, rewrite: Callable[[dict[str, Any]], None]) -> None:
    """Let the model's client see each status reply as `rewrite` leaves it, as a proxy in between might make it."""

    async def hook(response: httpx2.Response) -> None:
        path = response.request.url.path
        if response.request.method == 'GET' and '/batches/' in path and response.status_code == 200:
            batch = json.loads(await response.aread())
            rewrite(batch)
            response._content = json.dumps(batch).encode()

    model.client._client.event_hooks = {'response': [hook]}


# Collecting histories


async def test_histories_of_many_batches_collected_together_are_paid_once(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = pending_agent(model_of(fake), batched(clock, max_requests=1))
        prompts = [str(n) for n in range(60)]
        histories = await submit(clock, agent, *prompts)
        await clock.advance(timedelta(hours=1))
        results = await clock.run(asyncio.gather(*[agent.run(message_history=history) for history in histories]))
        assert fake.openai.count('create') == 60
        assert [result.output for result in results] == [f'about {n}' for n in prompts]


async def test_results_that_are_too_many_to_keep_are_paid_once(
    clock: ManualClock, model_of: ModelOf, monkeypatch: pytest.MonkeyPatch
):
    # A batch of 50,000 answers of 6 kB is larger than what is kept.
    monkeypatch.setattr('pydantic_ai_batch.flights._MAX_ENDED_BYTES', 1_000)
    with FakeProviders(echo, clock=clock) as fake:
        histories = await submit(clock, pending_agent(model_of(fake), batched(clock)), *map(str, range(10)))
        await clock.advance(timedelta(hours=1))
        agent = pending_agent(model_of(fake), batched(clock))
        results = await clock.run(asyncio.gather(*[agent.run(message_history=history) for history in histories]))
        assert fake.openai.count('create') == 1
        assert [result.output for result in results] == [f'about {n}' for n in range(10)]


class Records(AbstractCapability[Any]):
    def __init__(self) -> None:
        self.pending: list[list[ModelMessage]] = []

    def get_wrapper_model(self, model: Model) -> Model:
        pending = self.pending

        class Recording(WrapperModel):
            async def request(self, messages: list[ModelMessage], *args: Any, **kwargs: Any) -> ModelResponse:
                response = await super().request(messages, *args, **kwargs)
                if response.state == 'suspended':
                    pending.append(stored([*messages, response]))
                return response

        return Recording(model)


async def test_a_copy_of_a_history_whose_run_still_waits_is_answered_and_not_paid_again(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        batching, records, model = batched(clock, max_requests=1), Records(), model_of(fake)
        run = asyncio.ensure_future(Agent(model, capabilities=[records, batching]).run('mine'))
        await clock.until_asleep()
        clock.set_wall(3600)  # The batch has ended, and the run has not noticed yet.
        copied = await pending_agent(model, batching).run(message_history=records.pending[0])
        original = await clock.run(run)
        assert fake.openai.count('create') == 1
        assert [original.output, copied.output] == ['about mine', 'about mine']


async def test_a_run_that_joins_while_the_results_are_read_is_answered_and_not_paid_again(
    clock: ManualClock, model_of: ModelOf
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.text == 'bad' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        batching, model = batched(clock, max_requests=3), model_of(fake)
        reading, released = asyncio.Event(), asyncio.Event()

        async def hold_the_error_file(request: httpx2.Request) -> None:
            for batch in fake.openai.batches.values():
                if batch.error_file_id and request.url.path.endswith(f'{batch.error_file_id}/content'):
                    reading.set()
                    await released.wait()

        model.client._client.event_hooks = {'request': [hold_the_error_file]}
        waits = Agent(model, capabilities=[batching])
        left = asyncio.ensure_future(pending_agent(model, batching).run('left'))
        bad, good = asyncio.ensure_future(waits.run('bad')), asyncio.ensure_future(waits.run('good'))
        history = stored((await left).all_messages())
        run = asyncio.ensure_future(clock.run(asyncio.gather(bad, good, return_exceptions=True)))
        await reading.wait()
        with Agent.using_sleep(lambda delay: asyncio.sleep(0)):
            resumed = asyncio.ensure_future(waits.run(message_history=history))
            for _ in range(200):
                await asyncio.sleep(0)
            released.set()
            result = await clock.run(resumed)
        await run
        assert fake.openai.count('create') == 1
        assert result.output == 'about left'


async def test_an_answer_in_the_output_file_is_collected_though_the_error_file_is_gone(
    clock: ManualClock, model_of: ModelOf
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.text == 'bad' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = model_of(fake)
        good, _ = await submit(clock, pending_agent(model, batched(clock)), 'good', 'bad')
        await clock.advance(timedelta(hours=1))
        (batch,) = fake.openai.batches.values()
        await model.client.batches.retrieve(batch.id)
        assert batch.error_file_id is not None
        await model.client.files.delete(batch.error_file_id)
        agent = pending_agent(model, batched(clock))
        result = await agent.run(message_history=good)
        for _ in range(5):
            if isinstance(result.output, PendingModelResponse):
                result = await agent.run(message_history=stored(result.all_messages()))
        assert result.output == 'about good'
        assert fake.openai.count('create') == 1


# Odd results


def deep_body(lines: list[bytes], kind: str) -> list[bytes]:
    if not lines:
        return lines
    first, *rest = lines
    line = json.loads(first)
    line['response']['body'] = '[' * 200_000
    return [json.dumps(line).encode(), *rest]


async def test_a_body_as_text_that_nests_too_deep_costs_one_row(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = deep_body
        agent = Agent(model_of(fake), capabilities=[batched(clock)])
        results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(5)], return_exceptions=True))
        assert [type(result).__name__ for result in results if isinstance(result, BaseException)] == [
            'ResultUnreadable'
        ]
        assert fake.openai.count('create') == 1


@pytest.mark.parametrize('depth', [150, 230, 400, 900, 5_000, 50_000])
async def test_a_body_that_nests_deep_costs_one_row_at_most(depth: int, clock: ManualClock, model_of: ModelOf):
    def deep(lines: list[bytes], kind: str) -> list[bytes]:
        if not lines:
            return lines
        start = lines[0].index(b'"body":') + len(b'"body":')
        return [lines[0][:start] + b'[' * depth + b']' * depth + b'}, "error": null}', *lines[1:]]

    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = deep
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*map(str, range(5))), clock=clock))
        assert len(outcomes) == 5
        assert sum(isinstance(outcome, ModelAPIError) for outcome in outcomes) == 1
        assert fake.openai.count('create') == 1


@pytest.mark.parametrize(
    'odd',
    [
        {'status_code': '200'},
        {'status_code': None},
        {'status_code': 200.0},
        {'request_id': None, 'extra': [1]},
    ],
)
async def test_an_answer_with_an_odd_status_code_is_an_answer(
    odd: dict[str, Any], clock: ManualClock, model_of: ModelOf
):
    def rewrite(lines: list[bytes], kind: str) -> list[bytes]:
        read = [json.loads(line) for line in lines]
        return [json.dumps({**line, 'response': {**line['response'], **odd}}).encode() for line in read]

    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = rewrite
        outcomes = await clock.run(model_request_batch(model_of(fake), requests('a', 'b'), clock=clock))
        assert texts(outcomes) == ['about a', 'about b']


async def test_answers_with_the_ids_of_another_batch_reach_nobody(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        kept: dict[str, list[bytes]] = {}

        def swap(lines: list[bytes], kind: str) -> list[bytes]:
            # The second batch's file also holds the whole of the first one's, with other answers.
            other = kept.setdefault('first', lines)
            return lines if other is lines else [line.replace(b'about', b'WRONG') for line in other] + lines

        fake.openai.rewrite_results = swap
        outcomes = await clock.run(
            model_request_batch(
                model_of(fake), requests(*map(str, range(6))), max_requests=3, max_resubmissions=0, clock=clock
            )
        )
        assert texts(outcomes) == [f'about {n}' for n in range(6)]


async def test_a_download_that_fails_after_some_rows_loses_and_repeats_none(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('download', 'cut', fraction=0.7, times=3)
        agent = Agent(model_of(fake), capabilities=[batched(clock)])
        prompts = [str(n) for n in range(40)]
        results = await clock.run(asyncio.gather(*[agent.run(prompt) for prompt in prompts]))
        assert [result.output for result in results] == [f'about {n}' for n in prompts]
        assert Counter(row.text for row in fake.openai.billed) == Counter(prompts)


# Odd ends


@pytest.mark.parametrize('shown', ['nothing', 'error file'])
async def test_answers_whose_file_is_named_late_are_waited_for(shown: str, clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.text == 'bad' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model, late = model_of(fake), [0]

        def hide(batch: dict[str, Any]) -> None:
            if batch['status'] == 'completed':
                late[0] += 1
                if late[0] <= 2:
                    batch['output_file_id'] = None
                    if shown == 'nothing':
                        batch['error_file_id'] = None

        rewrite_status(model, hide)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'bad', 'c'), clock=clock))
        assert fake.openai.count('create') == 1
        assert [text for text in texts(outcomes) if text.startswith('about')] == ['about a', 'about c']


async def test_answers_of_a_batch_that_expired_are_waited_for_though_its_other_rows_are_listed(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'expire', done=2)
        model, late = model_of(fake), [0]

        def hide(batch: dict[str, Any]) -> None:
            if batch['status'] == 'expired':
                late[0] += 1
                if late[0] <= 2:
                    batch['output_file_id'] = None

        rewrite_status(model, hide)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b', 'c', 'd', 'e'), clock=clock))
        assert texts(outcomes) == ['about a', 'about b', 'about c', 'about d', 'about e']
        assert Counter(row.text for row in fake.openai.billed) == Counter('abcde')


ODD_COUNTS = [
    {'total': '5', 'completed': '2', 'failed': 0},
    {'total': 5, 'completed': None, 'failed': 0},
    {'total': 5, 'failed': 0},
    {'total': 5, 'completed': -1, 'failed': 0},
    {'total': 5, 'completed': False, 'failed': False},
    {'total': 5.0, 'completed': 2.0, 'failed': 0},
    {'total': 10**30, 'completed': 10**30, 'failed': 0},
]


@pytest.mark.parametrize('counts', ODD_COUNTS, ids=str)
async def test_answers_that_come_late_are_waited_for_though_their_counts_are_odd(
    counts: dict[str, Any], clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'expire', done=2)
        model, late = model_of(fake), [0]

        def hide(batch: dict[str, Any]) -> None:
            batch['request_counts'] = counts
            if batch['status'] == 'expired' and batch.get('output_file_id') and late[0] < 2:
                late[0] += 1
                batch['output_file_id'] = batch['error_file_id'] = None

        rewrite_status(model, hide)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b', 'c', 'd', 'e'), clock=clock))
        assert texts(outcomes) == ['about a', 'about b', 'about c', 'about d', 'about e']
        assert Counter(row.text for row in fake.openai.billed) == Counter('abcde')


@pytest.mark.parametrize('created_at', [0, None, 'yesterday', 1_893_456_000_000, True, '2030-01-01T00:00:00'])
async def test_a_batch_that_does_not_say_when_it_was_created_is_waited_for(
    created_at: Any, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=2)) as fake:
        model = model_of(fake)

        async def hook(response: httpx2.Response) -> None:
            if '/batches' in response.request.url.path and response.status_code == 200:
                batch = json.loads(await response.aread())
                response._content = json.dumps({**batch, 'created_at': created_at}).encode()

        model.client._client.event_hooks = {'response': [hook]}
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b'), max_resubmissions=0, clock=clock))
        assert texts(outcomes) == ['about a', 'about b']


@pytest.mark.parametrize(
    'errors',
    [
        [{'code': 'invalid_request', 'message': 'this one', 'line': 2}],
        {'object': 'list', 'data': [{'code': 'invalid_request', 'message': 'this one', 'line': 2}]},
        [{'code': 'invalid_request', 'message': 'this one', 'line': '2'}],
    ],
    ids=['bare list', 'list object', 'line as text'],
)
async def test_a_failed_batch_fails_the_rows_it_names_however_it_does(
    errors: Any, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        fake.openai.inject('batch', 'fail', errors=[{'code': 'x', 'message': 'this one', 'line': 2}])

        def rewrite(batch: dict[str, Any]) -> None:
            if batch['status'] == 'failed':
                batch['errors'] = errors

        rewrite_status(model, rewrite)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b', 'c'), clock=clock))
        assert [isinstance(outcome, ModelAPIError) for outcome in outcomes] == [False, True, False]
        assert 'this one' in texts(outcomes)[1]


@pytest.mark.parametrize('errors', ['it broke', ['it broke'], 7, {'data': 'it broke'}, None])
async def test_a_failed_batch_with_odd_errors_is_submitted_again(errors: Any, clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        fake.openai.inject('batch', 'fail')

        def rewrite(batch: dict[str, Any]) -> None:
            if batch['status'] == 'failed':
                batch['errors'] = errors

        rewrite_status(model, rewrite)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b'), clock=clock))
        assert texts(outcomes) == ['about a', 'about b']


def capitals(batch: dict[str, Any]) -> None:
    batch['status'] = batch['status'].upper()


def null_counts(batch: dict[str, Any]) -> None:
    batch['request_counts'] = {'total': None, 'completed': None, 'failed': None}


def no_counts(batch: dict[str, Any]) -> None:
    batch['request_counts'] = None


def iso_times(batch: dict[str, Any]) -> None:
    for name in list(batch):
        if name.endswith('_at') and batch[name]:
            batch[name] = '2030-01-01T00:00:00Z'


def empty_file_ids(batch: dict[str, Any]) -> None:
    for name in ('output_file_id', 'error_file_id'):
        batch[name] = batch[name] or ''


def text_counts(batch: dict[str, Any]) -> None:
    batch['request_counts'] = {name: str(count) for name, count in batch['request_counts'].items()}


def unknown_word(batch: dict[str, Any]) -> None:
    batch['status'] = 'weird'


def no_status(batch: dict[str, Any]) -> None:
    if batch['status'] != 'completed':
        del batch['status']


def another_id(batch: dict[str, Any]) -> None:
    batch['id'] = 'batch_of_a_proxy'


@pytest.mark.parametrize(
    'odd',
    [capitals, null_counts, no_counts, iso_times, empty_file_ids, text_counts, unknown_word, no_status, another_id],
)
async def test_a_status_told_in_an_odd_way_is_understood(
    odd: Callable[[dict[str, Any]], None], clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        rewrite_status(model, odd)
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b'), max_resubmissions=0, clock=clock))
        assert texts(outcomes) == ['about a', 'about b']


async def test_an_unknown_status_is_logged_once(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    fake.openai.inject('batch', 'status_word', word='resting')
    await clock.run(model_request_batch(model, requests('a'), poll_interval=timedelta(seconds=10), clock=clock))
    assert fake.openai.count('status') > 2
    assert sum("'resting'" in record.getMessage() for record in caplog.records) == 1


# Lost creates


@pytest.mark.parametrize(
    'listing',
    [
        b'{}',
        b'{"object":"list","data":null}',
        b'{"object":"list","data":"later"}',
        b'{"object":"list","data":5}',
        b'{"object":"list","data":[null],"has_more":false}',
        b'{"object":"list","data":[{"id":null}],"has_more":true}',
        b'{"error":{"message":"not now"}}',
    ],
)
async def test_a_listing_that_is_none_proves_nothing(
    listing: bytes, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('list', 'garbage', body=listing, times=None)
    outcomes = await clock.run(model_request_batch(model, requests('a', 'b'), clock=clock))
    assert fake.openai.count('create') == 1
    assert [type(outcome).__name__ for outcome in outcomes] == ['CreateUnsettled'] * 2


# List calls


class SlowToEncode(WrapperModel):
    """A model whose requests with the text `slow` take until `release` is set to encode, as those with files may."""

    def __init__(self, wrapped: Model) -> None:
        super().__init__(wrapped)
        self.release = asyncio.Event()

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        if 'slow' in str(request.messages):
            await self.release.wait()
        return await super().batch_encode(request)


async def test_a_failure_while_later_rows_are_encoded_shifts_no_answers(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    slow = SlowToEncode(model)
    monkeypatch.setattr('pydantic_ai.models.ALLOW_MODEL_REQUESTS', False)
    call = asyncio.ensure_future(
        model_request_batch(slow, requests('first', 'second', 'slow', 'third'), max_requests=1, clock=clock)
    )
    for _ in range(100):
        await asyncio.sleep(0)
    monkeypatch.setattr('pydantic_ai.models.ALLOW_MODEL_REQUESTS', True)
    slow.release.set()
    try:
        outcomes = await clock.run(call)
    except RuntimeError:
        return  # All fail together and loudly, which is no answer in another row's place.
    assert len(outcomes) == 4
