"""How long a run waits, and what becomes of its request and its batch when it no longer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lanes.harness import HARNESSES, Harness
from pydantic_ai import Agent, PendingModelResponse, _agent_graph
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ModelRequestTimeout
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.testing import ManualClock

from .ways import (
    OURS,
    Gate,
    ModelFor,
    Scene,
    Way,
    all_quiet,
    billed,
    left_pending,
    pending_agent,
    pending_response,
    providers,
    stored,
    until,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')

Hurry = Callable[[float], None]

TIMEOUT = ModelSettings(request_timeout=60)

# `request_timeout`


async def test_a_request_that_times_out_in_the_queue_is_never_sent(
    harness: Harness, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        queued: list[Any] = []
        batching = BatchModelRequests(max_wait=None, clock=clock, progress=queued.append)
        agent = waiting_agent(model_for(harness, fake), batching, model_settings=TIMEOUT)
        run = asyncio.ensure_future(agent.run('hello'))
        await until(lambda: bool(queued))
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        await batching.flush()
        assert fake.calls == []
        assert await all_quiet() == []


async def test_a_request_that_times_out_while_its_batch_is_submitted_takes_the_batch_with_it(
    scene: Scene, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        provider = scene.harness.fake(fake)
        batching, model = scene.way.batching(clock), model_for(scene.harness, fake)
        gate = Gate(model)
        run = asyncio.ensure_future(waiting_agent(model, batching, model_settings=TIMEOUT).run('hello'))
        await gate.reached.wait()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        gate.open()
        await until(lambda: provider.count('cancel') == 1)
        assert provider.count('create') == 1
        assert billed(scene.harness, fake) == {}
        assert await all_quiet() == []


async def test_a_request_that_times_out_while_its_batch_runs_takes_the_batch_with_it(
    scene: Scene, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        provider = scene.harness.fake(fake)
        batching, model = scene.way.batching(clock), model_for(scene.harness, fake)
        run = asyncio.ensure_future(waiting_agent(model, batching, model_settings=TIMEOUT).run('hello'))
        await clock.until_asleep()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        assert (provider.count('create'), provider.count('cancel')) == (1, 1)
        assert clock.sleeping == 0
        assert await all_quiet() == []


async def test_a_request_that_times_out_leaves_the_others_of_its_batch_alone(
    scene: Scene, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        provider = scene.harness.fake(fake)
        batching, model = scene.way.batching(clock, max_requests=2), model_for(scene.harness, fake)
        goes = asyncio.ensure_future(waiting_agent(model, batching, model_settings=TIMEOUT).run('goes'))
        stays = asyncio.ensure_future(waiting_agent(model, batching).run('stays'))
        await clock.until_asleep()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await goes
        assert (await clock.run(stays)).output == 'answer to stays'
        assert (provider.count('create'), provider.count('cancel')) == (1, 0)


async def test_request_timeout_covers_resubmissions_too(
    harness: Harness, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        provider = harness.fake(fake)
        provider.inject('batch', 'expire', seconds=60)
        agent = waiting_agent(model_for(harness, fake), OURS.batching(clock), model_settings=TIMEOUT)
        run = asyncio.ensure_future(agent.run('hello'))
        await clock.until_asleep()
        hurry(40)
        while provider.count('create') == 1:
            await clock.advance(60)
            await until(lambda: clock.sleeping > 0)
        hurry(20)
        with pytest.raises(ModelRequestTimeout):
            await run
        await until(lambda: provider.count('cancel') == 1)
        assert provider.count('create') == 2


async def test_a_streamed_request_times_out_as_well(
    scene: Scene, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    with providers(clock) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock), model_settings=TIMEOUT)

        async def stream() -> str:
            async with agent.run_stream('hello') as streamed:
                return await streamed.get_output()

        run = asyncio.ensure_future(stream())
        await clock.until_asleep()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        assert scene.harness.fake(fake).count('cancel') == 1
        assert await all_quiet() == []


async def test_a_resumed_request_that_times_out_leaves_its_batch_to_be_collected(
    harness: Harness, model_for: ModelFor, clock: ManualClock, hurry: Hurry
):
    """The built-in capability cancels the batch here, if the request times out before its first check."""
    with providers(clock) as fake:
        batching, model = OURS.batching(clock), model_for(harness, fake)
        (history,) = await left_pending(model, batching)
        run = asyncio.ensure_future(waiting_agent(model, batching, model_settings=TIMEOUT).run(message_history=history))
        await clock.until_asleep()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        assert harness.fake(fake).count('cancel') == 0
        result = await clock.run(waiting_agent(model, batching).run(message_history=history))
        assert result.output == 'answer to hello'


# Cancelling


async def test_the_last_run_to_be_cancelled_takes_the_batch_with_it(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        provider = scene.harness.fake(fake)
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock, max_requests=3))
        runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(3)]
        # Of ours one task sleeps for all, of the other's each run.
        await clock.until_asleep(1 if scene.way is OURS else 3)
        for run in runs:
            assert provider.count('cancel') == 0
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        assert (provider.count('create'), provider.count('cancel')) == (1, 1)
        assert clock.sleeping == 0
        assert await all_quiet() == []


async def test_a_run_that_is_cancelled_when_its_batch_has_ended_cancels_nothing(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock, max_requests=2))
        first, second = asyncio.ensure_future(agent.run('a')), asyncio.ensure_future(agent.run('b'))
        first.add_done_callback(lambda _: second.cancel())
        await clock.run(asyncio.gather(first, second, return_exceptions=True))
        assert scene.harness.fake(fake).count('cancel') == 0


@pytest.mark.parametrize('resumed_by', ['a run that waits', 'a run that looks'])
async def test_a_batch_of_another_instance_is_left_running(
    resumed_by: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        history, other = await left_pending(model, scene.way.batching(clock, max_requests=2), 'a', 'b')
        elsewhere = scene.way.batching(clock)
        if resumed_by == 'a run that waits':
            run = asyncio.ensure_future(waiting_agent(model, elsewhere).run(message_history=history))
            await clock.until_asleep()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
        else:
            await pending_agent(model, elsewhere).run(message_history=history)
        wrapper = elsewhere.get_wrapper_model(model)
        assert wrapper is not None
        await wrapper.cancel_suspended_response(pending_response(history))
        await wrapper.cancel_suspended_response(pending_response(other))
        assert scene.harness.fake(fake).count('cancel') == 0


@pytest.mark.parametrize('agent_of', [waiting_agent, pending_agent])
async def test_a_request_that_was_left_for_later_is_never_cancelled_with_a_run_that_resumes_it(
    agent_of: Callable[..., Agent[None, Any]], harness: Harness, model_for: ModelFor, clock: ManualClock
):
    """The built-in capability cancels the batch here, if the run that waits is cancelled before its first check."""
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        run = asyncio.ensure_future(agent_of(model, batching).run(message_history=history))
        if agent_of is waiting_agent:
            await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert harness.fake(fake).count('cancel') == 0
        result = await clock.run(waiting_agent(model, batching).run(message_history=history))
        assert result.output == 'answer to hello'


async def test_a_request_that_was_left_for_later_is_not_cancelled_by_whoever_has_its_history(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    """The built-in capability cancels here: its caller may give a request up that no run has resumed."""
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        wrapper = batching.get_wrapper_model(model)
        assert wrapper is not None
        await wrapper.cancel_suspended_response(pending_response(history))
        assert harness.fake(fake).count('cancel') == 0


async def test_a_batch_with_a_request_left_for_later_outlives_all_others_of_it(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock, max_requests=3)
        left = asyncio.ensure_future(pending_agent(model, batching).run('left'))
        others = [asyncio.ensure_future(waiting_agent(model, batching).run(text)) for text in 'ab']
        history = stored((await left).all_messages())
        await clock.until_asleep(1 if scene.way is OURS else 2)
        for run in others:
            run.cancel()
        await asyncio.wait(others)
        assert scene.harness.fake(fake).count('cancel') == 0
        result = await clock.run(waiting_agent(model, batching).run(message_history=history))
        assert result.output == 'answer to left'


# Hooks that reject a pending response


class Raises(AbstractCapability[Any]):
    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        if response.state == 'suspended':
            raise RuntimeError('not this one')
        return response


class Replaces(AbstractCapability[Any]):
    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        return ModelResponse(parts=[TextPart('made up')]) if response.state == 'suspended' else response


class ReplacesTheOutput(AbstractCapability[Any]):
    async def after_run(self, ctx: Any, *, result: Any) -> Any:
        return replace(result, output='made up')


class Marks(AbstractCapability[Any]):
    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        return replace(response, metadata={'seen': True})


async def outcome_of(agent: Agent[None, Any], *, streamed: bool) -> Any:
    try:
        if not streamed:
            return (await agent.run('hello')).output
        async with agent.run_stream('hello') as stream:
            return await stream.get_output()
    except RuntimeError as error:
        return error


HOOKS = [(Raises, 1), (Replaces, 1), (ReplacesTheOutput, 1), (Marks, 0)]
"""Hooks, and how often a batch of one request is cancelled for what they do: once, unless they keep the response."""


async def cancellations(
    way: Way, harness: Harness, model_for: ModelFor, clock: ManualClock, hook: type[Any], *, streamed: bool = False
) -> int:
    """How often a run whose pending response a hook does not leave alone has a batch cancelled."""
    if hook is ReplacesTheOutput and not hasattr(_agent_graph, 'settle_accepted_pending'):
        pytest.skip('this version of pydantic-ai leaves a pending response for later before the run has ended')
    with providers(clock) as fake:
        agent = pending_agent(model_for(harness, fake), hook(), way.batching(clock))
        outcome = await outcome_of(agent, streamed=streamed)
        if hook is Marks:
            assert isinstance(outcome, PendingModelResponse)
            assert outcome.response.metadata == {'seen': True}
        else:
            assert isinstance(outcome, RuntimeError) if hook is Raises else outcome == 'made up'
        assert await all_quiet() == []
        return harness.fake(fake).count('cancel')


@pytest.mark.parametrize(('hook', 'cancelled'), HOOKS, ids=lambda value: getattr(value, '__name__', ''))
async def test_a_pending_response_that_a_hook_raises_on_or_replaces_is_withdrawn(
    hook: type[Any], cancelled: int, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    assert await cancellations(scene.way, scene.harness, model_for, clock, hook) == cancelled


@ways
@pytest.mark.parametrize(
    ('hook', 'cancelled'),
    # The output of a stream is out before a run ends.
    [pair for pair in HOOKS if pair[0] is not ReplacesTheOutput],
    ids=lambda value: getattr(value, '__name__', ''),
)
async def test_a_pending_response_of_a_stream_that_a_hook_raises_on_or_replaces_is_withdrawn(
    hook: type[Any], cancelled: int, way: Way, model_for: ModelFor, clock: ManualClock
):
    assert await cancellations(way, HARNESSES[0], model_for, clock, hook, streamed=True) == cancelled
