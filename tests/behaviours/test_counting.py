"""What a batched run counts: requests, tokens, cost, and the calls of wrappers and hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import Harness
from pydantic_ai import Agent, PendingModelResponse, UsageLimits
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModelSettings
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RunUsage

from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .ways import (
    ANTHROPIC,
    OURS,
    RESPONSES,
    ModelFor,
    Scene,
    Way,
    left_pending,
    message_of,
    pending_agent,
    providers,
    stored,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')

HOUR = timedelta(hours=1)


# Usage


async def test_a_cycle_counts_a_request_for_each_run_and_its_tokens_in_the_run_that_got_the_answer(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        agent = pending_agent(model, scene.way.batching(clock))
        usages: list[RunUsage] = []
        submitted = await agent.run('hello')
        usages.append(submitted.usage)
        # Another instance, as what the other capability remembers of a check goes by the machine's clock.
        checked = await pending_agent(model, scene.way.batching(clock)).run(
            message_history=stored(submitted.all_messages())
        )
        usages.append(checked.usage)
        await clock.advance(HOUR)
        collected = await pending_agent(model, scene.way.batching(clock)).run(
            message_history=stored(checked.all_messages())
        )
        usages.append(collected.usage)
        assert collected.output == 'answer to hello'
        assert [usage.requests for usage in usages] == [1, 1, 1]
        tokens = [(usage.input_tokens, usage.output_tokens) for usage in usages]
        assert tokens[:2] == [(0, 0), (0, 0)]
        answer = collected.all_messages()[-1]
        assert isinstance(answer, ModelResponse)
        assert tokens[2] == (answer.usage.input_tokens, answer.usage.output_tokens)
        assert min(tokens[2]) > 0
        assert [bool(usage.cost) for usage in usages] == [False, False, scene.harness.name != 'native']


async def test_a_run_that_waits_counts_one_request_however_often_its_batch_is_checked(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, processing=timedelta(hours=20)) as fake:
        agent = waiting_agent(model_for(harness, fake), OURS.batching(clock))
        result = await clock.run(agent.run('hello', usage_limits=UsageLimits(request_limit=1)))
        assert result.usage.requests == 1
        assert harness.fake(fake).count('status') > 50


async def test_a_request_that_was_submitted_again_counts_once(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        scene.harness.fake(fake).inject('batch', 'expire', seconds=60)
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))
        result = await clock.run(agent.run('hello', usage_limits=UsageLimits(request_limit=1)))
        assert scene.harness.fake(fake).count('create') == 2
        assert result.usage.requests == 1
        answer = result.all_messages()[-1]
        assert isinstance(answer, ModelResponse)
        assert result.usage.output_tokens == answer.usage.output_tokens


async def test_a_run_that_resumes_and_waits_counts_one_request(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock)
        (history,) = await left_pending(model, batching)
        agent = waiting_agent(model, batching)
        result = await clock.run(agent.run(message_history=history, usage_limits=UsageLimits(request_limit=1)))
        assert result.usage.requests == 1
        assert result.usage.output_tokens > 0


async def test_each_turn_of_a_run_counts_a_request(scene: Scene, model_for: ModelFor, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return 'warm' if request.tool_results else FakeToolCall('temperature', {'city': 'Oslo'})

    with providers(clock, answer) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))

        @agent.tool_plain
        async def temperature(city: str) -> int:
            return 21

        result = await clock.run(agent.run('Oslo'))
        assert (result.usage.requests, result.usage.tool_calls) == (2, 1)


@ways
async def test_each_part_of_a_paused_turn_counts_in_the_run_that_got_it(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | dict[str, Any]:
        if request.body['messages'][-1]['role'] == 'assistant':
            return 'second'
        usage = {'input_tokens': 100, 'output_tokens': 7}
        return message_of('first', stop_reason='pause_turn', usage=usage)

    with providers(clock, answer) as fake:
        model, tokens = model_for(ANTHROPIC, fake), list[int]()
        (history,) = await left_pending(model, way.batching(clock))
        for _ in range(2):
            await clock.advance(HOUR)
            result = await pending_agent(model, way.batching(clock)).run(message_history=history)
            tokens.append(result.usage.input_tokens)
            history = stored(result.all_messages())
        assert fake.anthropic.count('create') == 2
        # The first run that collects gets the first part, and submits the request that continues it.
        assert tokens[0] == 100
        assert 0 < tokens[1] < 100


async def test_a_limit_on_cost_uses_the_batch_price_in_the_run_that_collects(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    scene.harness.needs('price')
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock)
        result = await clock.run(waiting_agent(model, batching).run('hello'))
        price = result.usage.cost
        assert price
        between, below = UsageLimits(cost_limit=price * 3 / 2), UsageLimits(cost_limit=price * 9 / 10)
        (first,) = await left_pending(model, batching)
        (second,) = await left_pending(model, batching)
        await clock.advance(HOUR)
        agent = pending_agent(model, scene.way.batching(clock))
        assert (await agent.run(message_history=first, usage_limits=between)).output == 'answer to hello'
        with pytest.raises(UsageLimitExceeded):
            await agent.run(message_history=second, usage_limits=below)
        # Nothing of it is withdrawn: the batch has ended, and was paid for.
        assert scene.harness.fake(fake).count('cancel') == 0


@ways
async def test_a_limit_on_requests_keeps_a_request_from_its_batch(way: Way, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        agent = waiting_agent(model_for(RESPONSES, fake), way.batching(clock))
        with pytest.raises(UsageLimitExceeded):
            await agent.run('hello', usage_limits=UsageLimits(request_limit=0))
        assert fake.calls == []


# Wrappers


class Sees(AbstractCapability[Any]):
    """Wraps the model, and notes the state of each response that goes through its wrapper."""

    def __init__(self) -> None:
        self.states: list[str] = []

    def get_wrapper_model(self, model: Model) -> Model:
        states = self.states

        class Seeing(WrapperModel):
            async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
                response = await super().request(*args, **kwargs)
                states.append(response.state)
                return response

            @asynccontextmanager
            async def request_stream(self, *args: Any, **kwargs: Any) -> AsyncGenerator[Any]:
                async with super().request_stream(*args, **kwargs) as stream:
                    yield stream
                    states.append(stream.get().state)

        return Seeing(model)


async def test_a_wrapper_inside_of_us_is_asked_for_nothing(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        inside = Sees()
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock), inside)
        assert (await clock.run(agent.run('hello'))).output == 'answer to hello'
        assert inside.states == []
        assert scene.harness.fake(fake).count('live') == 0


async def test_a_wrapper_outside_of_us_sees_the_submission_and_each_pass_until_the_answer(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        outside = Sees()
        model = model_for(scene.harness, fake)
        agent = waiting_agent(model, outside, scene.way.batching(clock))
        assert (await clock.run(agent.run('hello'))).output == 'answer to hello'
        assert outside.states == ['suspended', 'complete']
        outside.states.clear()
        (history,) = await left_pending(model, scene.way.batching(clock))
        resuming = pending_agent(model, outside, scene.way.batching(clock))
        await resuming.run(message_history=history)
        assert outside.states == ['suspended']


async def test_a_wrapper_outside_of_us_sees_two_passes_however_long_the_batch_takes(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    """With the built-in capability, it sees one for each check."""
    with providers(clock, processing=timedelta(hours=20)) as fake:
        outside = Sees()
        agent = waiting_agent(model_for(harness, fake), outside, OURS.batching(clock))
        await clock.run(agent.run('hello'))
        assert outside.states == ['suspended', 'complete']
        assert harness.fake(fake).count('status') > 50


@ways
async def test_a_wrapper_outside_of_us_sees_a_stream_in_the_same_passes(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        outside = Sees()
        agent = waiting_agent(model_for(RESPONSES, fake), outside, way.batching(clock))

        async def stream() -> str:
            async with agent.run_stream('hello') as streamed:
                return await streamed.get_output()

        assert await clock.run(stream()) == 'answer to hello'
        assert outside.states == ['suspended', 'complete']


# Hooks


class Counts(AbstractCapability[Any]):
    """Counts the hooks of a request, and which responses it sees."""

    def __init__(self) -> None:
        self.before = 0
        self.wrapped: list[str] = []
        self.after: list[str] = []

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        self.before += 1
        return request_context

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
        response = await handler(request_context)
        self.wrapped.append(response.state)
        return response

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        self.after.append(response.state)
        return response


@pytest.mark.parametrize('listed', ['before', 'after'])
async def test_hooks_run_once_for_each_request_wherever_they_are_listed(
    listed: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        scene.harness.fake(fake).inject('batch', 'expire', seconds=60)
        counts, batching = Counts(), scene.way.batching(clock, max_requests=2)
        capabilities = [counts, batching] if listed == 'before' else [batching, counts]
        agent = waiting_agent(model_for(scene.harness, fake), *capabilities)
        # Submitted twice, and checked at least as often.
        await clock.run(asyncio.gather(agent.run('a'), agent.run('b')))
        assert scene.harness.fake(fake).count('create') == 2
        assert counts.before == 2
        assert counts.wrapped == counts.after == ['complete', 'complete']


@pytest.mark.parametrize('listed', ['before', 'after'])
@ways
async def test_hooks_run_once_for_each_run_of_a_cycle(way: Way, listed: str, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        counts, model = Counts(), model_for(RESPONSES, fake)

        def agent() -> Agent[None, str | PendingModelResponse]:
            batching = way.batching(clock)
            return pending_agent(model, *([counts, batching] if listed == 'before' else [batching, counts]))

        history = stored((await agent().run('hello')).all_messages())
        history = stored((await agent().run(message_history=history)).all_messages())
        await clock.advance(HOUR)
        await agent().run(message_history=history)
        assert counts.before == 3
        assert counts.wrapped == counts.after == ['suspended', 'suspended', 'complete']


# Settings that mean something to OpenAI alone


def sent(fake: FakeProviders) -> list[dict[str, Any]]:
    """The bodies of all requests that were run, without the word that a live one is not streamed."""
    return [{name: value for name, value in row.body.items() if name != 'stream'} for row in fake.openai.billed]


@pytest.mark.parametrize('store', [True, False])
@pytest.mark.parametrize('previous', ['resp_0', 'auto', None])
async def test_a_request_says_what_to_go_on_from_and_whether_to_store_as_a_live_one_does(
    store: bool, previous: str | None, model_for: ModelFor, clock: ManualClock
):
    settings = OpenAIResponsesModelSettings(openai_store=store)
    if previous is not None:
        settings['openai_previous_response_id'] = previous
    with providers(clock) as fake:
        model = model_for(RESPONSES, fake)
        live, batched = Agent(model), waiting_agent(model, OURS.batching(clock))
        first = await live.run('one', model_settings=settings)
        history = stored(first.all_messages())
        await live.run('two', message_history=history, model_settings=settings)
        await clock.run(batched.run('one', model_settings=settings))
        await clock.run(batched.run('two', message_history=history, model_settings=settings))
        live_one, live_two, batched_one, batched_two = sent(fake)
        assert (batched_one, batched_two) == (live_one, live_two)
        assert batched_one['store'] is store
        assert batched_one.get('previous_response_id') == (None if previous == 'auto' else previous)
        # What goes on from an answer leaves out what came before it.
        assert len(batched_two['input']) == (1 if previous else 3)


@pytest.mark.parametrize('store', [True, False])
async def test_a_chat_request_says_whether_to_store_as_a_live_one_does(store: bool, clock: ManualClock):
    with providers(clock) as fake:
        async with fake.openai.client(max_retries=0) as client:
            model = OpenAIChatModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
            settings: Any = {'openai_store': store}
            await Agent(model).run('one', model_settings=settings)
            await clock.run(waiting_agent(model, OURS.batching(clock)).run('one', model_settings=settings))
        live, batched = sent(fake)
        assert live == batched
        assert live['store'] is store
