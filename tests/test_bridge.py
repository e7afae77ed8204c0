"""A model with the framework's batch methods over a lane of ours keeps to the framework's contract."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lanes.conftest import lane_model
from lanes.harness import EVERY, Harness, close, echo, harness_of
from pydantic import TypeAdapter
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.capabilities import BatchModelRequests as TheFrameworks
from pydantic_ai.direct import model_request_batch as the_frameworks_list
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch, BatchRequest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.deepseek import DeepSeekProvider

from pydantic_ai_batch import BatchModelRequests, lane_for, with_batch_api
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

__all__ = ('lane_model',)

LaneModel = Callable[..., Model]
ROWS = [f'row {n}' for n in range(5)]
ANSWERS = [f'answer to {row}' for row in ROWS]

BRIDGED = ['chat', 'groq', 'azure', 'together', 'deepinfra', 'compatible', 'responses', 'anthropic', 'google-inline']
one_lane = pytest.mark.parametrize('harness', ['groq'], indirect=True)


@pytest.fixture(params=BRIDGED)
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Lanes with and without a codec of the framework's own."""
    return harness_of(request.param, monkeypatch)


@pytest.fixture
async def fake(clock: ManualClock) -> AsyncIterator[FakeProviders]:
    """Providers whose answers say whose they are."""
    with FakeProviders(echo, clock=clock) as fake:
        yield fake


def requests_of(rows: list[str]) -> list[BatchRequest]:
    return [
        BatchRequest(custom_id=row.replace(' ', '-'), messages=[ModelRequest.user_text_prompt(row)]) for row in rows
    ]


async def created(model: Model, rows: list[str] = ROWS) -> Batch:
    return await model.batch_create([await model.batch_encode(request) for request in requests_of(rows)])


# The framework over it


async def test_the_frameworks_list_call_runs_over_it(harness: Harness, lane_model: LaneModel):
    with FakeProviders(echo, processing=timedelta(seconds=0.2)) as fake:
        answers = await the_frameworks_list(
            with_batch_api(lane_model(fake)), requests_of(ROWS), poll_interval=timedelta(seconds=0.2)
        )
        assert [answer.text for answer in answers if isinstance(answer, ModelResponse)] == ANSWERS
        assert harness.fake(fake).count('create') == 1
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)


async def test_the_frameworks_capability_runs_over_it(harness: Harness, lane_model: LaneModel):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return echo(request) if request.tool_results else FakeToolCall('look_up', {'number': 7})

    def look_up(number: int) -> str:
        """Look a number up."""
        return f'number {number}'

    with FakeProviders(answer, processing=timedelta(seconds=0.2)) as fake:
        batching = TheFrameworks(
            max_requests=len(ROWS), max_wait=timedelta(seconds=5), poll_interval=timedelta(seconds=0.2)
        )
        agent = Agent(with_batch_api(lane_model(fake)), tools=[look_up], capabilities=[batching])
        results = await asyncio.gather(*[agent.run(row) for row in ROWS])
        assert [result.output for result in results] == ANSWERS
        assert harness.fake(fake).count('create') == 2
        assert harness.fake(fake).count('live') == 0


@one_lane
async def test_answers_carry_the_cost_that_the_framework_does_not_know(lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = with_batch_api(lane_model(fake))
        batch = await created(model, ROWS[:1])
        await clock.advance(timedelta(hours=1))
        (result,) = await model.batch_results(await model.batch_status(batch))
        answer = model.batch_decode(result, requests_of(ROWS[:1])[0])
        assert answer.usage.cost == answer.cost().total_price / 2 > 0


async def test_our_capability_takes_its_lane(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock
):
    model = with_batch_api(lane_model(fake))
    assert lane_for(model).info.name == harness.lane
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    assert (await clock.run(agent.run('hello'))).output == 'answer to hello'


# Its contract


async def test_results_are_those_of_the_requests_and_a_handle_survives_json(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, None, 'it is not to be') if request.text == 'row 3' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = with_batch_api(lane_model(fake))
        adapter = TypeAdapter(Batch)
        batch = adapter.validate_json(adapter.dump_json(await created(model)))
        assert batch.request_count == len(ROWS)
        with pytest.raises(UserError, match='has not ended'):
            await model.batch_results(batch)
        await clock.advance(timedelta(hours=1))
        batch = await model.batch_status(batch)
        results = {result.custom_id: result for result in await model.batch_results(batch)}
        requests = {request.custom_id: request for request in requests_of(ROWS)}
        assert results.keys() == requests.keys()
        for custom_id, request in requests.items():
            if custom_id == 'row-3':
                with pytest.raises(ModelHTTPError, match='it is not to be'):
                    model.batch_decode(results[custom_id], request)
            else:
                assert (
                    model.batch_decode(results[custom_id], request).text == f'answer to {custom_id.replace("-", " ")}'
                )


async def test_a_batch_can_be_cancelled(harness: Harness, lane_model: LaneModel, fake: FakeProviders):
    model = with_batch_api(lane_model(fake))
    batch = await model.batch_cancel(await created(model))
    assert harness.fake(fake).count('cancel') == 1
    assert batch.status in ('canceling', 'ended', 'in_progress')


@pytest.mark.parametrize('fault', ['lose_reply', 'http'])
async def test_a_create_is_sent_once_and_a_lost_reply_says_that_a_batch_may_exist(
    fault: str, harness: Harness, lane_model: LaneModel, fake: FakeProviders
):
    harness.fake(fake).inject('create', fault, **({'status': 503} if fault == 'http' else {}))
    model = with_batch_api(lane_model(fake))
    with pytest.raises(CreateUnsettled, match='look for'):
        await created(model)
    assert harness.fake(fake).count('create') == 1
    assert harness.fake(fake).count('list') == 0


async def test_a_create_that_is_refused_raises_the_refusal(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders
):
    harness.fake(fake).inject('create', 'http', status=400, message='No.')
    model = with_batch_api(lane_model(fake))
    with pytest.raises(ModelHTTPError, match='No'):
        await created(model)


@one_lane
async def test_what_cannot_be_one_batch_is_refused_before_anything_is_sent(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, monkeypatch: pytest.MonkeyPatch
):
    model = with_batch_api(lane_model(fake))
    encoded = [await model.batch_encode(request) for request in requests_of(ROWS)]
    wrong: dict[str, list[Any]] = {
        'at least one': [],
        'share a `group`': [*encoded[:1], replace(encoded[1], group='another')],
        'of its own': [encoded[0], encoded[0]],
        'letters, digits': [replace(encoded[0], custom_id='a "quoted" id')],
    }
    for said, requests in wrong.items():
        with pytest.raises(UserError, match=said):
            await model.batch_create(requests)
    monkeypatch.setattr(type(lane_for(model)), 'max_requests', 3)
    with pytest.raises(UserError, match='at most 3 requests'):
        await model.batch_create(encoded)
    monkeypatch.setattr(type(lane_for(model)), 'max_requests', 3000)
    monkeypatch.setattr(type(lane_for(model)), 'max_bytes', 300)
    with pytest.raises(UserError, match='at most 300 bytes'):
        await model.batch_create(encoded)
    assert harness.fake(fake).calls == []


@pytest.mark.parametrize('harness', ['vertex'], indirect=True)
@pytest.mark.parametrize('custom_id', ['Row-1', 'r' * 64])
async def test_an_id_that_its_lane_has_no_room_for_is_refused_before_anything_is_sent(
    custom_id: str, harness: Harness, lane_model: LaneModel, fake: FakeProviders
):
    model = with_batch_api(lane_model(fake))
    encoded = await model.batch_encode(requests_of(ROWS)[0])
    with pytest.raises(UserError, match='63 small letters'):
        await model.batch_create([replace(encoded, custom_id=custom_id)])
    assert harness.fake(fake).calls == []
    await model.batch_create([encoded])


@one_lane
async def test_the_sizes_that_it_tells_are_never_less_than_what_is_sent(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders
):
    model = with_batch_api(lane_model(fake))
    encoded = [
        replace(await model.batch_encode(request), custom_id=request.custom_id * 8) for request in requests_of(ROWS)
    ]
    await model.batch_create(encoded)
    [upload] = [call for call in harness.fake(fake).calls if call.operation == 'upload']
    told = sum(model.batch_request_size(request) for request in encoded)
    content = upload.body.split(b'\r\n\r\n')
    assert told >= max(len(part.rpartition(b'\r\n--')[0]) for part in content) > 0


# Which lane


def test_a_lane_can_be_asked_for_where_the_model_alone_does_not_say():
    model = OpenAIChatModel('qwen3', provider=DeepSeekProvider(api_key='k'))
    bridged = with_batch_api(model, lane='openai-compatible')
    assert lane_for(bridged).info.name == 'openai-compatible'
    with pytest.raises(UserError, match='There is no lane'):
        with_batch_api(model, lane='nowhere')


@one_lane
async def test_a_lane_that_the_model_is_not_on_is_refused(harness: Harness, lane_model: LaneModel, fake: FakeProviders):
    with pytest.raises(UserError, match="on the lane 'groq', and not on 'anthropic'"):
        with_batch_api(lane_model(fake), lane='claude')


def test_the_harnesses_that_are_bridged_are_there():
    assert set(BRIDGED) <= {harness.name for harness in EVERY}


# What is paid for is not sent again


@pytest.fixture(params=['vertex', 'bedrock', 'azure-responses', 'xai-responses'])
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Lanes of models that the framework's own batching refuses or does not know."""
    return harness_of(request.param, monkeypatch)


async def test_the_frameworks_capability_runs_over_lanes_that_it_would_refuse(other: Harness):
    with FakeProviders(echo, processing=timedelta(seconds=0.2)) as fake:
        model, client = other.make(fake, 'test')
        batching = TheFrameworks(
            max_requests=len(ROWS), max_wait=timedelta(seconds=5), poll_interval=timedelta(seconds=0.2)
        )
        agent = Agent(with_batch_api(model), capabilities=[batching])
        results = await asyncio.gather(*[agent.run(row) for row in ROWS])
        assert [result.output for result in results] == ANSWERS
        assert other.fake(fake).count('create') == 1
        await close(client)


async def test_results_that_are_there_after_the_end_make_the_framework_pay_for_nothing_again(
    harness: Harness, lane_model: LaneModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.bridge._READ_AGAIN', (0.2,) * 10)
    with FakeProviders(echo, processing=timedelta(seconds=0.2)) as fake:
        provider = harness.fake(fake)
        for fault in ('delay_results', 'expire'):
            if reason := provider.inapplicable.get(fault):
                pytest.skip(f'{fault}: {reason}')
        provider.inject('batch', 'delay_results', seconds=1)
        provider.inject('batch', 'expire', done=2, seconds=0.3)
        answers = await the_frameworks_list(
            with_batch_api(lane_model(fake)), requests_of(ROWS), poll_interval=timedelta(seconds=0.2)
        )
        assert [getattr(answer, 'text', answer) for answer in answers] == ANSWERS
        assert Counter(row.text for row in provider.billed) == Counter(ROWS)


async def test_a_damaged_line_and_a_repeated_one_make_the_framework_pay_for_nothing_again(
    harness: Harness, lane_model: LaneModel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.bridge._READ_AGAIN', (0.01, 0.01))
    with FakeProviders(echo, processing=timedelta(seconds=0.2)) as fake:

        def rewrite(lines: list[bytes], kind: str) -> list[bytes]:
            if not lines:
                return lines
            damaged = lines[0][:-2]
            return [damaged, *lines[1:], *lines[1:2]]

        harness.fake(fake).rewrite_results = rewrite
        answers = await the_frameworks_list(
            with_batch_api(lane_model(fake)), requests_of(ROWS), poll_interval=timedelta(seconds=0.2)
        )
        if 'lines' in harness.lacks:
            # What is cut off there says not whose it was, and is sent again.
            assert len(harness.fake(fake).batches) <= 3
            return
        assert sum(isinstance(answer, ModelResponse) for answer in answers) == len(ROWS) - 1
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)
