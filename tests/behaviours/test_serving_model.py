"""The model that serves a request is the one that is batched, however it came to serve it; some are refused by name."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest
from lanes.harness import Harness, echo
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability, Hooks, SelectModel
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, ModelRequestContext, infer_model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles.anthropic import AnthropicModelProfile
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.cerebras import CerebrasProvider
from pydantic_ai.providers.gateway import gateway_provider

from pydantic_ai_batch import BatchModelRequests, lane_for, model_request_batch, model_request_batch_sync
from pydantic_ai_batch.exceptions import LaneNotBuilt, NoBatchLane
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import AT_ONCE, BOTH, Batching, LaneModel, Make, batched, can_batch, full_batches, rows, sent_live

# Ways for another model to serve than the agent's


@dataclass
class BeforeRequest(AbstractCapability[Any]):
    """Swaps the model once for each request."""

    to: Callable[[], Model]

    async def before_model_request(self, ctx: Any, request_context: ModelRequestContext) -> ModelRequestContext:
        return dataclasses.replace(request_context, model=self.to())


@dataclass
class BeforeAttempt(AbstractCapability[Any]):
    """Swaps the model once for each attempt at a request."""

    to: Callable[[], Model]

    async def prepare_model_request(self, ctx: Any, request_context: ModelRequestContext) -> ModelRequestContext:
        request_context.model = self.to()
        return request_context


@dataclass
class AroundRequest(AbstractCapability[Any]):
    """Swaps the model around all else that happens to a request."""

    to: Callable[[], Model]

    async def wrap_model_request(self, ctx: Any, *, request_context: ModelRequestContext, handler: Any) -> Any:
        request_context.model = self.to()
        return await handler(request_context)


def hooks(to: Callable[[], Model]) -> AbstractCapability[Any]:
    swapping = Hooks[Any]()

    @swapping.on.before_model_request
    async def swap(ctx: Any, request_context: ModelRequestContext) -> ModelRequestContext:
        request_context.model = to()
        return request_context

    return swapping


def selected(to: Callable[[], Model]) -> AbstractCapability[Any]:
    return SelectModel(lambda ctx: to())


SWAPS = [BeforeRequest, BeforeAttempt, AroundRequest, hooks, selected]
if not hasattr(AbstractCapability, 'prepare_model_request'):  # pragma: no cover
    SWAPS.remove(BeforeAttempt)
SWAPPED = pytest.mark.parametrize('swap', SWAPS, ids=lambda swap: swap.__name__)
OURS_FIRST = pytest.mark.parametrize('ours_first', [True, False], ids=['batching first', 'batching last'])

Swap = Callable[[Callable[[], Model]], AbstractCapability[Any]]


def in_order(batching: Any, other: AbstractCapability[Any], ours_first: bool) -> list[Any]:
    return [batching, other] if ours_first else [other, batching]


# Which model counts


@BOTH
async def test_the_agents_model_serves(capability: type[Batching], harness: Harness, lane_model: LaneModel):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(lane_model(fake), capabilities=[full_batches(capability, 1)])
        assert (await agent.run('x')).output == 'answer to x'
        assert batched(harness.fake(fake)) == [['x']]
        assert sent_live(fake) == 0


@BOTH
async def test_the_runs_model_serves_in_place_of_the_agents(
    capability: type[Batching], harness: Harness, lane_model: LaneModel
):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        model = lane_model(fake)
        agent = Agent(TestModel(), capabilities=[full_batches(capability, 1)])
        assert (await agent.run('x', model=model)).output == 'answer to x'
        with agent.override(model=model):
            assert (await agent.run('y')).output == 'answer to y'
        assert batched(harness.fake(fake)) == [['x'], ['y']]
        assert sent_live(fake) == 0


@BOTH
@OURS_FIRST
@SWAPPED
async def test_a_model_that_is_swapped_in_serves_whatever_the_order(
    swap: Swap, ours_first: bool, capability: type[Batching], make: Make
):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        model = make('anthropic', fake)
        capabilities = in_order(full_batches(capability, 1), swap(lambda: model), ours_first)
        # The agent's own model could not be batched, and is not asked.
        agent = Agent(Plain(), capabilities=capabilities)
        assert (await agent.run('x')).output == 'answer to x'
        assert batched(fake.anthropic) == [['x']]
        assert sent_live(fake) == 0


@BOTH
async def test_a_model_that_is_selected_by_its_name_serves(capability: type[Batching], monkeypatch: pytest.MonkeyPatch):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        for name, value in fake.openai.environment.items():
            monkeypatch.setenv(name, value)
        selecting = SelectModel[Any](lambda ctx: 'openai-responses:gpt-5-nano')
        agent = Agent(Plain(), capabilities=[full_batches(capability, 1), selecting])
        async with agent:
            assert (await agent.run('x')).output == 'answer to x'
        assert [batch.model for batch in fake.openai.batches.values()] == ['gpt-5-nano']


# A switch to a model without a lane


class Plain(TestModel):
    """A model whose provider has no batch API."""

    @property
    def batch_max_requests(self) -> None:
        return None


def asks_twice(request: FakeRequest) -> str | FakeToolCall:
    return 'done' if request.tool_results else FakeToolCall('look', {})


@BOTH
@OURS_FIRST
@SWAPPED
async def test_a_switch_to_a_model_without_a_lane_raises_at_that_request(
    swap: Swap, ours_first: bool, capability: type[Batching], make: Make
):
    with FakeProviders(asks_twice, processing=AT_ONCE) as fake:
        model, looked = make('responses', fake), []
        swapping = swap(lambda: Plain() if looked else model)
        agent = Agent(model, capabilities=in_order(full_batches(capability, 1), swapping, ours_first))

        @agent.tool_plain
        def look() -> str:
            looked.append(True)
            return 'seen'

        with pytest.raises(UserError, match='has no batch API'):
            await agent.run('x')
        # The first request was batched and answered, and the second is nobody's.
        assert looked == [True]
        assert len(fake.openai.batches) == 1
        assert fake.openai.count('cancel') == 0
        assert sent_live(fake) == 0


@OURS_FIRST
@pytest.mark.parametrize('swap', [hooks, selected], ids=lambda swap: swap.__name__)
async def test_a_switch_between_two_lanes_goes_on(
    swap: Swap, ours_first: bool, harness: Harness, lane_model: LaneModel, make: Make
):
    with FakeProviders(asks_twice, processing=AT_ONCE) as fake:
        models, looked = [make('responses', fake, 'gpt-5-nano'), lane_model(fake)], []
        swapping = swap(lambda: models[len(looked)])
        agent = Agent(Plain(), capabilities=in_order(full_batches(BatchModelRequests, 1), swapping, ours_first))

        @agent.tool_plain
        def look() -> str:
            looked.append(True)
            return 'seen'

        assert (await agent.run('x')).output == 'done'
        batches = [batch for provider in fake.providers.values() for batch in provider.batches.values()]
        assert len(batches) == 2
        assert sent_live(fake) == 0


# Refused by name


async def refusals(model: Model, clock: ManualClock) -> list[str]:
    """What an agent says to the model, in every way that it may come to serve, and a list call, and the lookup."""
    batching = BatchModelRequests(max_requests=1, clock=clock)
    agent = Agent(TestModel(), capabilities=[batching])
    tries: list[Any] = [
        Agent(model, capabilities=[batching]).run('x'),
        agent.run('x', model=model),
        Agent(TestModel(), capabilities=[batching, SelectModel(lambda ctx: model)]).run('x'),
        Agent(TestModel(), capabilities=[hooks(lambda: model), batching]).run('x'),
        model_request_batch(model, rows('x'), clock=clock),
    ]
    said: list[str] = []
    for attempt in tries:
        with pytest.raises(NoBatchLane) as refused:
            await clock.run(attempt)
        said.append(str(refused.value))
    with pytest.raises(NoBatchLane) as refused:
        lane_for(model)
    return [*said, str(refused.value)]


class Through(WrapperModel):
    """A user's own wrapper, such as one that logs."""


@pytest.mark.parametrize(
    'wrap',
    [lambda model: model, Through, InstrumentedModel, lambda model: FallbackModel(model)],
    ids=['bare', 'wrapped', 'instrumented', 'in another'],
)
async def test_a_fallback_model_is_refused_by_name(
    wrap: Callable[[Model], Model], fake: FakeProviders, make: Make, clock: ManualClock
):
    model = wrap(FallbackModel(make('responses', fake), make('anthropic', fake)))
    for said in await refusals(model, clock):
        assert 'A `FallbackModel` cannot be batched' in said
        assert 'use one of them' in said
    assert fake.calls == []


def test_a_fallback_model_is_refused_in_a_sync_list_call():
    # The call leaves the loop open that it runs on, so that another one finds it.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with pytest.raises(NoBatchLane, match='FallbackModel'):
            model_request_batch_sync(FallbackModel(TestModel(), TestModel()), rows('x'))
    finally:
        asyncio.set_event_loop(None)
        loop.close()


SDK: Any = anthropic
CLOUDS: list[Callable[[], Any]] = [
    lambda: SDK.AsyncAnthropicBedrock(aws_region='us-east-1', aws_access_key='a', aws_secret_key='b'),
    lambda: SDK.AsyncAnthropicBedrockMantle(aws_region='us-east-1', aws_access_key='a', aws_secret_key='b'),
    lambda: SDK.AsyncAnthropicVertex(region='us-east5', project_id='p', access_token='t'),
    lambda: SDK.AsyncAnthropicFoundry(api_key='k', base_url='http://127.0.0.1:9/anthropic/'),
]


@pytest.mark.parametrize('opted_in', [False, True], ids=['by default', 'with the flag on'])
@pytest.mark.parametrize('client', CLOUDS, ids=['Bedrock', 'BedrockMantle', 'Vertex', 'Foundry'])
async def test_anthropic_models_on_clouds_are_refused_by_name(
    client: Callable[[], Any], opted_in: bool, clock: ManualClock
):
    cloud = client()
    profile = AnthropicModelProfile(anthropic_supports_message_batches=True) if opted_in else None
    model = AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=cloud), profile=profile)
    for said in await refusals(model, clock):
        assert f'not to an `{type(cloud).__name__}`' in said
    await cloud.close()


async def test_a_model_whose_profile_has_batches_off_is_told_so(fake: FakeProviders, make: Make, clock: ManualClock):
    provider: Any = make('anthropic', fake).provider
    profile = AnthropicModelProfile(anthropic_supports_message_batches=False)
    model = AnthropicModel('claude-haiku-4-5', provider=provider, profile=profile)
    for said in await refusals(model, clock):
        assert '`anthropic_supports_message_batches` off' in said


GATEWAY: Any = {'api_key': 'pylf_v1_us_key', 'base_url': 'http://127.0.0.1:9/proxy'}


@pytest.mark.parametrize('opted_in', [False, True], ids=['by default', 'with the flag on'])
@pytest.mark.parametrize('model_class', [OpenAIResponsesModel, OpenAIChatModel])
async def test_openai_models_through_the_gateway_are_refused_by_name(
    model_class: Any, opted_in: bool, clock: ManualClock
):
    profile = OpenAIModelProfile(openai_supports_batch_api=True) if opted_in else None
    model = model_class('gpt-5-mini', provider=gateway_provider('openai', **GATEWAY), profile=profile)
    for said in await refusals(model, clock):
        assert 'Pydantic AI Gateway' in said


@pytest.mark.parametrize('name', ['anthropic:claude-haiku-4-5', 'google:gemini-2.5-flash', 'openai:gpt-5-mini'])
async def test_models_that_are_named_with_the_gateway_are_refused_by_name(
    name: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('PYDANTIC_AI_GATEWAY_API_KEY', GATEWAY['api_key'])
    monkeypatch.setenv('PYDANTIC_AI_GATEWAY_BASE_URL', GATEWAY['base_url'])
    model = infer_model(f'gateway/{name}')
    for said in await refusals(model, clock):
        assert 'Pydantic AI Gateway' in said
    with pytest.raises(NoBatchLane, match='Pydantic AI Gateway'):
        await clock.run(model_request_batch(f'gateway/{name}', rows('x'), clock=clock))


async def test_a_batch_api_that_is_not_served_yet_is_refused_as_that(clock: ManualClock):
    model = OpenAIChatModel('llama', provider=CerebrasProvider(api_key='k'))
    with pytest.raises(LaneNotBuilt, match='Cerebras is a private preview'):
        await clock.run(model_request_batch(model, rows('x'), clock=clock))
