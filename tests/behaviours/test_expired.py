"""Batches and results that the provider no longer has."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import Harness
from pydantic_ai import PendingModelResponse
from pydantic_ai.exceptions import SuspendedResponseExpired
from pydantic_ai.messages import ModelMessage

from pydantic_ai_batch import lane_for
from pydantic_ai_batch.exceptions import batch_of
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .ways import (
    ANTHROPIC,
    OURS,
    ModelFor,
    Scene,
    left_pending,
    pending_agent,
    providers,
    stored,
    waiting_agent,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')


async def expires(clock: ManualClock, agent: Any, history: list[ModelMessage]) -> SuspendedResponseExpired:
    """The error that a history comes to which is resumed every ten minutes."""

    async def resume() -> None:
        messages = history
        for _ in range(10):
            result = await clock.run(agent.run(message_history=messages))
            assert isinstance(result.output, PendingModelResponse)
            messages = stored(result.all_messages())
            await clock.advance(timedelta(minutes=10))

    with pytest.raises(SuspendedResponseExpired) as raised:
        await resume()
    return raised.value


def left_alone(harness: Harness, fake: FakeProviders) -> bool:
    """Whether the batch was neither made again nor cancelled, nor its request sent live."""
    provider = harness.fake(fake)
    return [provider.count(operation) for operation in ('create', 'cancel', 'live')] == [1, 0, 0]


@pytest.mark.parametrize('gone', ['check', 'results'])
async def test_a_history_whose_batch_is_gone_says_so_and_is_never_submitted_again(
    gone: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    operation = 'status' if gone == 'check' else scene.harness.download
    if gone == 'results' and operation == 'status':
        pytest.skip('its results come with its status')
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        (history,) = await left_pending(model, scene.way.batching(clock))
        await clock.advance(timedelta(hours=1))
        scene.harness.fake(fake).inject(operation, 'http', status=404, times=None)
        await expires(clock, pending_agent(model, scene.way.batching(clock)), history)
        assert left_alone(scene.harness, fake)


@pytest.mark.parametrize('gone', ['check', 'results'])
async def test_a_run_that_waits_for_a_batch_that_is_gone_says_so_as_well(
    gone: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    operation = 'status' if gone == 'check' else scene.harness.download
    if gone == 'results' and operation == 'status':
        pytest.skip('its results come with its status')
    with providers(clock) as fake:
        scene.harness.fake(fake).inject(operation, 'http', status=404, times=None)
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))
        with pytest.raises(SuspendedResponseExpired):
            await clock.run(agent.run('hello'))
        if scene.way is OURS:
            # The built-in capability cancels a batch whose check answered 404.
            assert left_alone(scene.harness, fake)


async def test_what_it_says_is_what_may_be_wrong_and_what_to_do(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        await clock.advance(timedelta(hours=1))
        harness.fake(fake).inject('status', 'http', status=404, times=4)
        error = await expires(clock, pending_agent(model, batching), history)
        (batch_id,) = harness.fake(fake).batches
        said = str(error)
        assert batch_id in said
        assert "another project's key gets the same answer" in said
        assert 'run with this message history without its last response' in said
        handle = batch_of(error)
        assert handle is not None
        assert handle.id == batch_id
        # What it says to do runs the request again.
        result = await clock.run(waiting_agent(model, batching).run(message_history=history[:-1]))
        assert result.output == 'answer to hello'
        assert harness.fake(fake).count('create') == 2


async def test_results_that_anthropic_archived_are_gone_while_it_still_shows_the_batch(
    model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(ANTHROPIC, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        kept = lane_for(model).info.results_kept
        assert kept is not None
        await clock.advance(kept + timedelta(days=1))
        said = str(await expires(clock, pending_agent(model, batching), history))
        assert 'without its last response' in said
        answered = [call for call in fake.anthropic.calls if call.operation == 'status']
        assert {call.status for call in answered} == {200}
        assert fake.anthropic.count('download') == 0
        assert left_alone(ANTHROPIC, fake)


# A 404 that may pass


async def test_a_404_right_after_the_create_is_not_yet_an_answer(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        harness.fake(fake).inject('status', 'http', status=404, times=6)
        agent = pending_agent(model, batching)
        for _ in range(6):
            await clock.advance(timedelta(seconds=40))
            result = await agent.run(message_history=history)
            assert isinstance(result.output, PendingModelResponse)
            history = stored(result.all_messages())
        assert (await agent.run(message_history=history)).output == 'answer to hello'
        assert left_alone(harness, fake)


async def test_a_404_after_a_good_check_is_not_yet_an_answer(harness: Harness, model_for: ModelFor, clock: ManualClock):
    with providers(clock, processing=timedelta(hours=5)) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        await clock.advance(timedelta(hours=4))
        agent = pending_agent(model, batching)
        history = stored((await agent.run(message_history=history)).all_messages())
        harness.fake(fake).inject('status', 'http', status=404, times=6)
        for _ in range(6):
            await clock.advance(timedelta(seconds=40))
            result = await agent.run(message_history=history)
            assert isinstance(result.output, PendingModelResponse)
            history = stored(result.all_messages())
        await clock.advance(timedelta(hours=4))
        assert (await agent.run(message_history=history)).output == 'answer to hello'
        assert left_alone(harness, fake)


async def test_a_run_that_waits_outlives_a_404_that_passes(harness: Harness, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        harness.fake(fake).inject('status', 'http', status=404, times=2)
        if harness.download != 'status':
            harness.fake(fake).inject(harness.download, 'http', status=404, times=2)
        agent = waiting_agent(model_for(harness, fake), OURS.batching(clock, poll_interval=timedelta(minutes=1)))
        assert (await clock.run(agent.run('hello'))).output == 'answer to hello'
        assert left_alone(harness, fake)
