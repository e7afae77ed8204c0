"""Agents whose requests travel in batches behave as they do live."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelHTTPError, UsageLimitExceeded, UserError
from pydantic_ai.messages import ModelResponse, ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock


def echo(request: FakeRequest) -> str:
    return f'you said: {request.text}'


class CountsPasses(AbstractCapability[Any]):
    """Wraps the model outermost, where each pass of the agent graph through a request is seen."""

    def __init__(self) -> None:
        self.passes = 0

    def get_wrapper_model(self, model: Model) -> Model:
        counts = self

        class Counting(WrapperModel):
            async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
                counts.passes += 1
                return await super().request(*args, **kwargs)

        return Counting(model)


async def test_100_runs_are_one_batch_of_two_passes_each_and_one_status_request_a_poll(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=999)) as fake:
        passes = CountsPasses()
        batching = BatchModelRequests(poll_interval=timedelta(minutes=10), clock=clock)
        agent = Agent(model_of(fake), capabilities=[passes, batching])

        results = await clock.run(asyncio.gather(*[agent.run(f'question {n}') for n in range(100)]))

        assert [result.output for result in results] == [f'you said: question {n}' for n in range(100)]
        assert passes.passes == 200
        assert fake.openai.count('create') == 1
        assert fake.openai.count('status') == 100
        assert fake.openai.count('download') == 1
        assert Counter(row.text for row in fake.openai.billed) == Counter(f'question {n}' for n in range(100))


async def test_no_two_checks_come_closer_than_the_poll_interval_even_when_runs_start_apart(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    batching = BatchModelRequests(max_wait=timedelta(seconds=10), clock=clock)
    agent = Agent(model, capabilities=[batching])
    first = asyncio.ensure_future(agent.run('a'))
    await clock.until_asleep()
    await clock.advance(5)
    second = asyncio.ensure_future(agent.run('b'))
    await clock.run(asyncio.gather(first, second))
    assert fake.openai.count('create') == 1
    at = [call.at for call in fake.openai.calls if call.operation == 'status']
    assert at[0] - next(call.at for call in fake.openai.calls if call.operation == 'create') == 30
    assert all(later - earlier >= 30 for earlier, later in itertools.pairwise(at))


async def test_a_batch_is_submitted_when_its_oldest_request_has_waited_long_enough(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(max_wait=timedelta(seconds=10), clock=clock)])
    started = clock.now()
    runs = [asyncio.ensure_future(agent.run('a'))]
    for text in ('b', 'c', 'd'):
        await clock.advance(3)
        runs.append(asyncio.ensure_future(agent.run(text)))
    await clock.run(asyncio.gather(*runs))
    created = [call.at - started for call in fake.openai.calls if call.operation == 'create']
    assert created == [10]


async def test_a_full_batch_does_not_wait(fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock):
    agent = Agent(model, capabilities=[BatchModelRequests(max_requests=3, max_wait=None, clock=clock)])
    await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(6)]))
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [3, 3]


async def test_a_batch_is_split_before_it_would_pass_its_byte_limit(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(max_bytes=5_000, clock=clock)])
    await clock.run(asyncio.gather(*[agent.run('x' * 2_000) for _ in range(5)]))
    assert sorted(len(batch.requests) for batch in fake.openai.batches.values()) == [1, 2, 2]
    uploads = [call for call in fake.openai.calls if call.operation == 'upload']
    assert all(len(call.body) < 5_000 + 1_000 for call in uploads)


async def test_flush_submits_what_waits_without_an_end(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    batching = BatchModelRequests(max_wait=None, clock=clock)
    agent = Agent(model, capabilities=[batching])
    runs = asyncio.gather(*[agent.run(str(n)) for n in range(4)])
    await clock.advance(100_000)
    assert fake.openai.count('create') == 0
    await batching.flush()
    assert fake.openai.count('create') == 1
    await clock.run(runs)


async def test_requests_of_different_models_go_in_batches_of_their_own(
    fake: FakeProviders, model_of: ModelOf, clock: ManualClock
):
    batching = BatchModelRequests(clock=clock)
    agent = Agent(capabilities=[batching])
    models = [model_of(fake, 'gpt-5-mini'), model_of(fake, 'gpt-5-nano')]
    await clock.run(asyncio.gather(*[agent.run(str(n), model=models[n % 2]) for n in range(6)]))
    assert sorted(batch.requests[0].body['model'] for batch in fake.openai.batches.values()) == [
        'gpt-5-mini',
        'gpt-5-nano',
    ]


async def test_requests_with_different_keys_never_share_a_batch(
    fake: FakeProviders, model_of: ModelOf, clock: ManualClock
):
    agent = Agent(capabilities=[BatchModelRequests(clock=clock)])
    models = [model_of(fake, api_key='one'), model_of(fake, api_key='two')]
    results = await clock.run(asyncio.gather(*[agent.run(str(n), model=models[n % 2]) for n in range(4)]))
    assert len(fake.openai.batches) == 2
    assert len(results) == 4


async def test_one_instance_serves_several_agents_in_shared_batches(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    batching = BatchModelRequests(clock=clock)
    agents = [Agent(model, capabilities=[batching], instructions=f'agent {n}') for n in range(3)]
    await clock.run(asyncio.gather(*[agent.run('hello') for agent in agents]))
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [3]


async def test_tools_run_and_each_turn_is_a_request_in_a_batch(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        if request.tool_results:
            return 'it is 21 degrees'
        return FakeToolCall('temperature', {'city': request.text})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_requests=2, max_wait=None, clock=clock)])
        asked: list[str] = []

        @agent.tool_plain
        async def temperature(city: str) -> int:
            asked.append(city)
            return 21

        results = await clock.run(asyncio.gather(agent.run('Oslo'), agent.run('Rome')))
        assert [result.output for result in results] == ['it is 21 degrees'] * 2
        assert sorted(asked) == ['Oslo', 'Rome']
        assert [len(batch.requests) for batch in fake.openai.batches.values()] == [2, 2]
        returns = [part for message in results[0].all_messages() for part in message.parts]
        assert any(isinstance(part, ToolReturnPart) and part.content == 21 for part in returns)


class City(BaseModel):
    name: str
    population: int


async def test_structured_output_is_validated_and_retried_as_live(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> FakeToolCall:
        population = 'a lot' if not request.tool_results else 5
        return FakeToolCall('final_result', {'name': 'Oslo', 'population': population})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), output_type=City, capabilities=[BatchModelRequests(clock=clock)])
        result = await clock.run(agent.run('Oslo'))
        assert result.output == City(name='Oslo', population=5)
        assert fake.openai.count('create') == 2


async def test_an_output_validator_may_ask_again(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str:
        return 'better' if 'again' in str(request.body) else 'good'

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])

        @agent.output_validator
        def check(output: str) -> str:
            if output != 'better':
                raise ModelRetry('try again')
            return output

        result = await clock.run(agent.run('how is it?'))
        assert result.output == 'better'
        assert fake.openai.count('create') == 2


async def test_usage_counts_a_request_once_and_its_tokens_once(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    result = await clock.run(agent.run('hello'))
    answer = result.all_messages()[-1]
    assert isinstance(answer, ModelResponse)
    assert result.usage.requests == 1
    assert result.usage.input_tokens == answer.usage.input_tokens > 0
    assert result.usage.output_tokens == answer.usage.output_tokens > 0


async def test_a_token_limit_stops_a_batched_run_as_a_live_one(model: OpenAIResponsesModel, clock: ManualClock):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    limits = UsageLimits(output_tokens_limit=1)
    with pytest.raises(UsageLimitExceeded):
        await clock.run(agent.run('write a long text about everything', usage_limits=limits))


async def test_a_cost_limit_goes_by_the_batch_price(model: OpenAIResponsesModel, clock: ManualClock):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    result = await clock.run(agent.run('hello'))
    answer = result.all_messages()[-1]
    assert isinstance(answer, ModelResponse)
    live = replace(answer, provider_details={})
    batch_cost, live_cost = answer.cost().total_price, live.cost().total_price
    assert batch_cost == live_cost / 2
    assert result.usage.cost == batch_cost

    between = UsageLimits(cost_limit=(batch_cost + live_cost) / 2)
    await clock.run(agent.run('hello', usage_limits=between))
    with pytest.raises(UsageLimitExceeded):
        await clock.run(agent.run('hello', usage_limits=UsageLimits(cost_limit=batch_cost * 99 / 100)))


async def test_run_stream_waits_and_then_streams(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])

        async def stream() -> list[str]:
            async with agent.run_stream('hello') as streamed:
                return [text async for text in streamed.stream_text()]

        assert (await clock.run(stream()))[-1] == 'you said: hello'
        assert fake.openai.count('create') == 1
        assert fake.openai.count('live') == 0


async def test_run_stream_events_come_through(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])

        async def events() -> list[str]:
            async with agent.run_stream_events('hello') as stream:
                return [type(event).__name__ async for event in stream]

        names = await clock.run(events())
        assert 'PartStartEvent' in names
        assert names[-1] == 'AgentRunResultEvent'


@pytest.mark.parametrize(
    'error',
    [
        FakeError(400, 'invalid_prompt', 'the prompt is not valid'),
        FakeError(400, 'context_length_exceeded', 'too long'),
        FakeError(401, 'invalid_api_key', 'no such key'),
        FakeError(403, None, 'not yours'),
        FakeError(404, 'model_not_found', 'no such model'),
        FakeError(429, 'rate_limit_exceeded', 'too fast'),
        FakeError(429, 'insufficient_quota', 'pay first'),
        FakeError(500, 'server_error', 'oh no'),
        FakeError(503, None, 'overloaded'),
    ],
    ids=lambda error: f'{error.status}-{error.code}',
)
async def test_an_error_is_only_its_own_runs_and_has_the_class_a_live_one_has(
    error: FakeError, clock: ManualClock, model_of: ModelOf
):
    def answer(request: FakeRequest) -> str | FakeError:
        return error if request.text == 'bad' else 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_resubmissions=0, clock=clock)])
        good, bad, other = await clock.run(
            asyncio.gather(agent.run('good'), agent.run('bad'), agent.run('other'), return_exceptions=True)
        )
        with pytest.raises(ModelHTTPError) as live:
            await Agent(model_of(fake)).run('bad')
        assert not isinstance(good, BaseException)
        assert not isinstance(other, BaseException)
        assert [good.output, other.output] == ['fine', 'fine']
        assert type(bad) is type(live.value)
        assert isinstance(bad, ModelHTTPError)
        assert bad.status_code == live.value.status_code
        assert bad.provider_error_code == live.value.provider_error_code
        assert len(fake.openai.batches) == 1


async def test_a_passing_failure_is_submitted_again_and_answered(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(503, None, 'try later') if request.text == 'flaky' and request.attempt == 0 else 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])
        results = await clock.run(asyncio.gather(agent.run('flaky'), agent.run('steady')))
        assert [result.output for result in results] == ['fine', 'fine']
        assert [len(batch.requests) for batch in fake.openai.batches.values()] == [2, 1]
        answer_message = results[0].all_messages()[-1]
        assert isinstance(answer_message, ModelResponse)
        details = answer_message.provider_details
        assert details is not None
        assert details['batch'] == {
            'id': list(fake.openai.batches)[1],
            'custom_id': list(fake.openai.batches.values())[1].requests[0].custom_id,
            'resubmissions': 1,
        }


async def test_resubmissions_are_bounded_and_the_last_error_is_raised(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: FakeError(503, None, 'never'), clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_resubmissions=2, clock=clock)])
        with pytest.raises(ModelHTTPError) as raised:
            await clock.run(agent.run('x'))
        assert raised.value.status_code == 503
        assert fake.openai.count('create') == 3
        assert any('submitted 3 times' in note for note in raised.value.__notes__)


async def test_requests_that_expired_are_submitted_again(fake: FakeProviders, clock: ManualClock, model_of: ModelOf):
    fake.openai.inject('batch', 'expire', done=2)
    agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])
    await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(5)]))
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [5, 3]
    assert Counter(row.text for row in fake.openai.billed) == Counter(str(n) for n in range(5))


async def test_requests_that_somebody_cancelled_are_not_submitted_again(
    fake: FakeProviders, clock: ManualClock, model_of: ModelOf
):
    fake.openai.inject('batch', 'cancel', done=2)
    agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])
    results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(5)], return_exceptions=True))
    assert sum(isinstance(result, Exception) for result in results) == 3
    assert fake.openai.count('create') == 1


@pytest.mark.parametrize('how', ['truncate', 'not_json', 'null_id', 'list', 'bad_utf8'])
async def test_a_damaged_line_costs_one_row(how: str, fake: FakeProviders, clock: ManualClock, model_of: ModelOf):
    fake.openai.inject('lines', 'damage', rows=1, how=how)
    agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_resubmissions=0, clock=clock)])
    results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(5)], return_exceptions=True))
    assert sum(isinstance(result, Exception) for result in results) == 1
    assert fake.openai.count('create') == 1


async def test_rows_that_validation_does_not_name_are_submitted_again_without_those_it_does(
    fake: FakeProviders, clock: ManualClock, model_of: ModelOf
):
    fake.openai.inject('batch', 'fail', errors=[{'code': 'invalid_request', 'message': 'this one is wrong', 'line': 2}])
    agent = Agent(model_of(fake), capabilities=[BatchModelRequests(clock=clock)])
    results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(4)], return_exceptions=True))
    assert [isinstance(result, Exception) for result in results] == [False, True, False, False]
    assert 'this one is wrong' in str(results[1])
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [4, 3]


async def test_a_run_that_is_cancelled_in_the_queue_never_reaches_the_provider(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    stays, goes = asyncio.ensure_future(agent.run('stays')), asyncio.ensure_future(agent.run('goes'))
    await clock.until_asleep()
    goes.cancel()
    await asyncio.gather(goes, return_exceptions=True)
    await clock.run(stays)
    assert [row.text for row in fake.openai.billed] == ['stays']


async def test_a_batch_is_cancelled_once_every_run_in_it_is(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    batching = BatchModelRequests(max_wait=None, clock=clock)
    agent = Agent(model, capabilities=[batching])
    runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(3)]
    await clock.advance(1)
    await batching.flush()
    await clock.until_asleep()
    for run in runs[:2]:
        run.cancel()
    await asyncio.gather(*runs[:2], return_exceptions=True)
    assert fake.openai.count('cancel') == 0
    runs[2].cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert fake.openai.count('cancel') == 1
    assert clock.sleeping == 0


async def test_leaving_the_block_fails_what_is_queued_and_leaves_batches_running(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    batching = BatchModelRequests(max_wait=None, clock=clock)
    agent = Agent(model, capabilities=[batching])
    async with batching:
        waiting = asyncio.ensure_future(agent.run('waiting'))
        await clock.advance(1)
        await batching.flush()
        await clock.until_asleep()
        queued = asyncio.ensure_future(agent.run('queued'))
        await clock.advance(1)
    with pytest.raises(UserError, match='exited'):
        await queued
    assert fake.openai.count('cancel') == 0
    assert next(iter(fake.openai.batches)) in caplog.text
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_the_input_file_is_deleted_once_all_its_requests_were_run(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    await clock.run(agent.run('hello'))
    assert fake.openai.count('delete') == 1


# What cannot be batched


class Plain(TestModel):
    """A model whose provider has no batch API."""

    @property
    def batch_max_requests(self) -> None:
        return None


@pytest.mark.parametrize(
    ('model', 'reason'),
    [(FallbackModel(TestModel(), TestModel()), 'FallbackModel'), (Plain(), '`Plain` has no batch API here')],
    ids=['fallback', 'plain'],
)
async def test_a_model_without_a_lane_says_why(model: Model, reason: str, clock: ManualClock):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    with pytest.raises(UserError, match=reason):
        await clock.run(agent.run('x'))


@pytest.mark.parametrize(
    ('settings', 'named'),
    [
        (ModelSettings(timeout=5), '`timeout`'),
        (ModelSettings(extra_headers={'x': 'y'}), '`extra_headers`'),
        (ModelSettings(extra_body={'stream': True}), '`stream`'),
        (OpenAIResponsesModelSettings(openai_background=True), '`openai_background`'),
    ],
)
async def test_a_setting_that_a_batch_cannot_honour_is_refused_before_anything_is_sent(
    settings: ModelSettings, named: str, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    with pytest.raises(UserError, match=named):
        await clock.run(agent.run('x', model_settings=settings))
    assert fake.calls == []


async def test_max_retries_is_ignored_with_one_warning(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)], model_settings=ModelSettings(max_retries=5))
    with pytest.warns(UserWarning, match='max_retries') as warned:
        results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(3)]))
    assert len(results) == 3
    assert [str(warning.message) for warning in warned if 'max_retries' in str(warning.message)] == [
        'The setting `max_retries` is ignored in a batch, whose requests the provider runs: set `max_resubmissions` '
        'for those, and `max_retries` on the client of the provider for its own calls.'
    ]


async def test_both_capabilities_on_one_agent_are_refused_in_either_order(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    from pydantic_ai.capabilities import BatchModelRequests as BuiltIn

    for capabilities in ([BuiltIn(), BatchModelRequests(clock=clock)], [BatchModelRequests(clock=clock), BuiltIn()]):
        with pytest.raises(UserError, match='two `BatchModelRequests`'):
            await Agent(model, capabilities=capabilities).run('x')
    assert fake.calls == []


async def test_two_instances_on_one_run_are_refused(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock), BatchModelRequests(clock=clock)])
    with pytest.raises(UserError, match='two instances'):
        await clock.run(agent.run('x'))
    assert fake.calls == []


async def test_what_is_submitted_again_does_not_wait_for_a_flush(model_of: ModelOf, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeError:
        return 'fine' if request.attempt else FakeError(500, 'oops', 'Again.')

    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(max_requests=3, max_wait=None, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        results = await clock.run(asyncio.gather(*[agent.run(row) for row in 'abc']))
        assert [result.output for result in results] == ['fine'] * 3
        # The last run hears of its answer when the input is deleted, which a clock by hand may overtake.
        assert fake.openai.count('create') in (2, 3)
        assert batching.stats().resubmitted == 3
