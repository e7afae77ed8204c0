"""Runs taken up again from a history that ends in a pending response."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import ALL, HARNESSES, NATIVE, Harness
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.capabilities import SelectModel
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.test import TestModel

from pydantic_ai_batch.exceptions import NoBatchLane
from pydantic_ai_batch.testing import FakeRequest, ManualClock

from .scenes import Make
from .ways import (
    ANTHROPIC,
    BUILT_IN,
    OURS,
    RESPONSES,
    ModelFor,
    Scene,
    Way,
    billed,
    left_pending,
    message_of,
    pending_agent,
    pending_response,
    providers,
    stored,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')

HOUR = timedelta(hours=1)


async def test_a_run_that_may_not_end_pending_waits_for_the_answer(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        (history,) = await left_pending(model, scene.way.batching(clock))
        result = await clock.run(waiting_agent(model, scene.way.batching(clock)).run(message_history=history))
        assert result.output == 'answer to hello'
        assert scene.harness.fake(fake).count('create') == 1
        assert scene.harness.fake(fake).count('live') == 0


async def test_a_run_that_finds_its_batch_running_ends_pending_again_with_a_newer_ticket(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        (history,) = await left_pending(model, scene.way.batching(clock))
        result = await pending_agent(model, scene.way.batching(clock)).run(message_history=history)
        assert isinstance(result.output, PendingModelResponse)
        before, after = pending_response(history), pending_response(result.all_messages())
        assert len(result.all_messages()) == len(history)
        assert after.provider_response_id == before.provider_response_id
        assert (polls_in(before), polls_in(after)) == (0, 1)
        assert scene.harness.fake(fake).count('status') == 1


def polls_in(response: ModelResponse) -> int:
    assert response.provider_details is not None
    return response.provider_details['batch']['polls']


async def test_checks_go_on_at_the_interval_that_they_had_grown_to(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, processing=timedelta(hours=3)) as fake:
        model, longest = model_for(harness, fake), timedelta(hours=10)
        (history,) = await left_pending(model, OURS.batching(clock, max_poll_interval=longest))
        history = await resumed(OURS, clock, model, history)
        agent = waiting_agent(model, OURS.batching(clock, max_poll_interval=longest))
        before = clock.now()
        await clock.run(agent.run(message_history=history))
        minutes = [round((call.at - before) / 60) for call in harness.fake(fake).calls if call.operation == 'status']
        # After 10 minutes and half as much again each time, of which one check was made at once.
        assert minutes[:4] == [0, 15, 38, 71]


@pytest.mark.parametrize('lacks', ['polls', 'custom_id', 'batch'])
async def test_a_ticket_that_cannot_be_read_is_refused_and_its_request_is_not_sent_again(
    lacks: str, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(RESPONSES, fake)
        (history,) = await left_pending(model, OURS.batching(clock))
        response = pending_response(history)
        assert response.provider_details is not None
        response.provider_details['batch'].pop(lacks)
        for agent in (pending_agent(model, OURS.batching(clock)), waiting_agent(model, OURS.batching(clock))):
            with pytest.raises(UserError, match='cannot read'):
                await clock.run(agent.run(message_history=history))
        assert fake.openai.count('create') == 1
        assert fake.openai.count('live') == 0


# Content from before the batch


def pauses_once(request: FakeRequest) -> str | dict[str, Any]:
    return (
        'second'
        if request.body['messages'][-1]['role'] == 'assistant'
        else message_of('first', stop_reason='pause_turn')
    )


def texts(message: ModelMessage) -> list[str]:
    return [part.content for part in message.parts if isinstance(part, TextPart)]


async def resumed(way: Way, clock: ManualClock, model: Any, history: list[ModelMessage]) -> list[ModelMessage]:
    result = await pending_agent(model, way.batching(clock)).run(message_history=history)
    return stored(result.all_messages())


@ways
async def test_what_a_turn_held_before_its_batch_is_kept_through_checks_and_resubmissions(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, pauses_once) as fake:
        model = model_for(ANTHROPIC, fake)
        (history,) = await left_pending(model, way.batching(clock))
        await clock.advance(HOUR)
        fake.anthropic.inject('batch', 'expire')
        # The batch ended with a turn that is paused, and that is continued by a request in another batch.
        history = await resumed(way, clock, model, history)
        assert texts(pending_response(history)) == ['first']
        # It is running.
        history = await resumed(way, clock, model, history)
        assert texts(pending_response(history)) == ['first']
        # It has expired, and the request is sent again with the turn in it.
        await clock.advance(timedelta(hours=25))
        history = await resumed(way, clock, model, history)
        assert texts(pending_response(history)) == ['first']
        await clock.advance(HOUR)
        history = await resumed(way, clock, model, history)
        assert texts(history[-1]) == ['first', 'second']
        assert fake.anthropic.count('create') == 3
        bodies = [batch.requests[0].body for batch in fake.anthropic.batches.values()]
        assert bodies[1]['messages'] == bodies[2]['messages']
        assert bodies[2]['messages'][-1]['content'][0]['text'] == 'first'
        assert fake.anthropic.count('live') == 0


@ways
async def test_a_run_that_waits_goes_through_a_paused_turn_in_batches(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, pauses_once) as fake:
        agent = waiting_agent(model_for(ANTHROPIC, fake), way.batching(clock))
        result = await clock.run(agent.run('hello'))
        assert texts(result.all_messages()[-1]) == ['first', 'second']
        assert (fake.anthropic.count('create'), fake.anthropic.count('live')) == (2, 0)


# Batches that came to nothing

FAILURES = {
    'expired': ('batch', 'expire', {}),
    'missing': ('lines', 'drop', {'rows': 1}),
    'failed': ('batch', 'fail', {'errors': [{'code': 'server_error', 'message': 'oh no', 'param': None}]}),
}


async def in_a_batch_that_comes_to_nothing(
    failure: str, way: Way, harness: Harness, fake: Any, clock: ManualClock, model: Any
) -> list[ModelMessage]:
    """A history whose request was in a batch of two, of which it came to nothing."""
    target, name, options = FAILURES[failure]
    if reason := harness.fake(fake).inapplicable.get(name):
        pytest.skip(reason)
    harness.fake(fake).inject(target, name, **options)
    history, _ = await left_pending(model, way.batching(clock, max_requests=2), 'a', 'b')
    await clock.advance(timedelta(hours=49))
    return history


@pytest.mark.parametrize('failure', FAILURES)
async def test_a_history_whose_batch_came_to_nothing_is_submitted_again(
    failure: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    if failure == 'failed' and scene.way is BUILT_IN and scene.harness.provider == 'openai':
        pytest.skip('it takes every job that failed for a request of its own fault')
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        history = await in_a_batch_that_comes_to_nothing(failure, scene.way, scene.harness, fake, clock, model)
        agent = pending_agent(model, scene.way.batching(clock, poll_interval=timedelta(microseconds=1)))
        for _ in range(5):
            if scene.harness.fake(fake).count('create') == 1:
                history = stored((await agent.run(message_history=history)).all_messages())
                # What is missing may come yet, for a while after the end.
                await clock.advance(timedelta(minutes=1))
        assert pending_response(history)
        await clock.advance(HOUR)
        assert (await agent.run(message_history=history)).output == 'answer to a'
        assert scene.harness.fake(fake).count('create') == 2


@pytest.mark.parametrize('failure', FAILURES)
async def test_a_history_that_may_not_be_submitted_again_raises_its_error(
    failure: str, scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(scene.harness, fake)
        history = await in_a_batch_that_comes_to_nothing(failure, scene.way, scene.harness, fake, clock, model)
        poll = timedelta(microseconds=1)
        agent = pending_agent(model, scene.way.batching(clock, max_resubmissions=0, poll_interval=poll))

        async def until_it_raises() -> None:
            messages = history
            for _ in range(5):
                messages = stored((await agent.run(message_history=messages)).all_messages())
                # What is missing may come yet, for a while after the end.
                await clock.advance(timedelta(minutes=1))

        with pytest.raises(ModelAPIError):
            await until_it_raises()
        assert scene.harness.fake(fake).count('create') == 1
        assert scene.harness.fake(fake).count('cancel') == 0


@ways
async def test_resubmissions_are_counted_from_one_run_to_the_next(way: Way, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        fake.openai.inject('batch', 'expire', times=None)
        model, batching = model_for(RESPONSES, fake), way.batching(clock, max_resubmissions=2)
        (history,) = await left_pending(model, batching)
        for _ in range(2):
            await clock.advance(timedelta(hours=25))
            result = await pending_agent(model, batching).run(message_history=history)
            assert isinstance(result.output, PendingModelResponse)
            history = stored(result.all_messages())
        await clock.advance(timedelta(hours=25))
        with pytest.raises(ModelAPIError):
            await pending_agent(model, batching).run(message_history=history)
        assert fake.openai.count('create') == 3


# The model and the key


OTHERS = {'responses': 'anthropic', 'chat': 'google-inline', 'anthropic': 'native', 'google-inline': 'responses'}
OTHERS |= {'google-file': 'anthropic', 'native': 'responses'}


async def test_a_model_of_another_provider_is_refused_and_told_whose_batch_it_is(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    other = next(other for other in ALL if other.name == OTHERS[harness.name])
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        (history,) = await left_pending(model, batching)
        before = len(fake.calls)
        for agent in (pending_agent(model_for(other, fake), batching), waiting_agent(TestModel(), batching)):
            with pytest.raises(UserError) as raised:
                await clock.run(agent.run(message_history=history))
            said = str(raised.value)
            assert repr(model.model_name) in said
            assert repr(model.system) in said
            assert 'pass `model=`' in said
        assert len(fake.calls) == before
        await clock.advance(HOUR)
        result = await pending_agent(model_for(other, fake), batching).run(message_history=history, model=model)
        assert result.output == 'answer to hello'


class Plain(TestModel):
    """A model whose provider has no batch API."""

    @property
    def batch_max_requests(self) -> None:
        return None


@pytest.mark.parametrize('agent_of', [pending_agent, waiting_agent])
async def test_a_model_without_a_batch_api_is_told_whose_batch_it_is(
    agent_of: Any, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        (history,) = await left_pending(model_for(RESPONSES, fake), OURS.batching(clock))
        with pytest.raises(UserError, match=r"'gpt-5-mini' of 'openai'.*pass `model=`") as raised:
            await clock.run(agent_of(Plain(), OURS.batching(clock)).run(message_history=history))
        assert isinstance(raised.value.__cause__, NoBatchLane)
        # Without such a history, the reason is all there is to say.
        with pytest.raises(NoBatchLane):
            await clock.run(agent_of(Plain(), OURS.batching(clock)).run('hello'))


@pytest.mark.parametrize('changed', ['name', 'endpoint'])
async def test_a_model_of_another_name_or_endpoint_is_told_whose_batch_it_is(
    changed: str, model_for: ModelFor, make: Make, clock: ManualClock
):
    with providers(clock) as fake, providers(clock) as elsewhere:
        (history,) = await left_pending(model_for(RESPONSES, fake), OURS.batching(clock))
        other = make('responses', fake, 'gpt-5-nano') if changed == 'name' else model_for(RESPONSES, elsewhere)
        with pytest.raises(UserError, match=r"'gpt-5-mini' of 'openai'.*pass `model=`"):
            await pending_agent(other, OURS.batching(clock)).run(message_history=history)
        assert fake.openai.count('status') == 0
        assert elsewhere.calls == []


@ways
async def test_a_model_that_is_yet_to_be_selected_has_to_be_passed(way: Way, model_for: ModelFor, clock: ManualClock):
    """The framework says so itself, before any capability is asked, so that this cannot say whose batch it is."""
    with providers(clock) as fake:
        model, batching = model_for(RESPONSES, fake), way.batching(clock)
        agent = Agent(output_type=[str, PendingModelResponse], capabilities=[SelectModel(lambda ctx: model), batching])
        history = stored((await agent.run('hello')).all_messages())
        before = len(fake.calls)
        with pytest.raises(UserError, match=r'model='):
            await agent.run(message_history=history)
        assert len(fake.calls) == before
        await clock.advance(HOUR)
        assert (await agent.run(message_history=history, model=model)).output == 'answer to hello'


async def test_a_rotated_key_of_the_same_project_collects(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        scene.harness.fake(fake).projects = {'old': 'project', 'new': 'project'}
        old, new = model_for(scene.harness, fake, 'old'), model_for(scene.harness, fake, 'new')
        batching = scene.way.batching(clock, max_requests=2)
        mine, other = await left_pending(old, batching, 'mine', 'other')
        await clock.advance(HOUR)
        # In the process that submitted, and in another.
        assert (await pending_agent(new, batching).run(message_history=mine)).output == 'answer to mine'
        elsewhere = pending_agent(new, scene.way.batching(clock))
        assert (await elsewhere.run(message_history=other)).output == 'answer to other'
        assert scene.harness.fake(fake).count('create') == 1


async def test_a_rotated_key_submits_again_what_expired(harness: Harness, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        provider = harness.fake(fake)
        provider.projects = {'old': 'project', 'new': 'project'}
        provider.inject('batch', 'expire')
        (history,) = await left_pending(model_for(harness, fake, 'old'), OURS.batching(clock))
        await clock.advance(timedelta(hours=49))
        agent = pending_agent(model_for(harness, fake, 'new'), OURS.batching(clock))
        result = await agent.run(message_history=history)
        await clock.advance(HOUR)
        result = await agent.run(message_history=stored(result.all_messages()))
        assert result.output == 'answer to hello'
        assert provider.count('create') == 2


# Histories of the built-in capability

BUILT_IN_LANES = [harness for harness in [*HARNESSES, NATIVE] if harness.name not in ('chat', 'google-file')]


@pytest.mark.parametrize('lane', BUILT_IN_LANES, ids=lambda lane: lane.name)
@pytest.mark.parametrize('agent_of', [pending_agent, waiting_agent])
async def test_a_history_that_the_built_in_capability_left_pending_is_collected(
    agent_of: Any, lane: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model = model_for(lane, fake)
        first, second = await left_pending(model, BUILT_IN.batching(clock, max_requests=2), 'one', 'two')
        ours = OURS.batching(clock)
        checked = await pending_agent(model, ours).run(message_history=first)
        assert isinstance(checked.output, PendingModelResponse)
        await clock.advance(HOUR)
        histories = [stored(checked.all_messages()), second]
        results = [await clock.run(agent_of(model, ours).run(message_history=history)) for history in histories]
        assert [result.output for result in results] == ['answer to one', 'answer to two']
        assert lane.fake(fake).count('create') == 1
        assert lane.fake(fake).count('live') == 0


@pytest.mark.parametrize('lane', BUILT_IN_LANES, ids=lambda lane: lane.name)
async def test_a_history_that_the_built_in_capability_left_pending_is_submitted_again_where_it_left_off(
    lane: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        lane.fake(fake).inject('batch', 'expire', times=3)
        model = model_for(lane, fake)
        (history,) = await left_pending(model, BUILT_IN.batching(clock))
        await clock.advance(timedelta(hours=49))
        history = await resumed(BUILT_IN, clock, model, history)
        await clock.advance(timedelta(hours=49))
        history = await resumed(OURS, clock, model, history)
        assert lane.fake(fake).count('create') == 3
        await clock.advance(timedelta(hours=49))
        # It was submitted again twice, once by either.
        with pytest.raises(ModelAPIError, match='expired'):
            await resumed(OURS, clock, model, history)


async def test_a_paused_turn_that_the_built_in_capability_left_pending_is_collected_with_what_it_held(
    model_for: ModelFor, clock: ManualClock
):
    with providers(clock, pauses_once) as fake:
        model = model_for(ANTHROPIC, fake)
        (history,) = await left_pending(model, BUILT_IN.batching(clock))
        await clock.advance(HOUR)
        history = await resumed(BUILT_IN, clock, model, history)
        await clock.advance(HOUR)
        history = await resumed(OURS, clock, model, history)
        assert texts(history[-1]) == ['first', 'second']
        assert fake.anthropic.count('create') == 2


# What was read is kept for other collectors


async def test_results_of_a_batch_are_kept_for_others_who_collect_from_it(
    harness: Harness, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        histories = await left_pending(model, OURS.batching(clock, max_requests=3), 'a', 'b', 'c')
        await clock.advance(HOUR)
        calls = 0
        for _ in range(2):
            results = [await pending_agent(model, batching).run(message_history=history) for history in histories]
            assert [result.output for result in results] == ['answer to a', 'answer to b', 'answer to c']
            assert calls in (0, len(fake.calls))
            calls = len(fake.calls)
        if harness.download != 'status':
            assert harness.fake(fake).count('download') == 1
        assert harness.fake(fake).count('status') == 1


async def test_results_of_the_last_32_batches_are_kept(model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        model, batching = model_for(RESPONSES, fake), OURS.batching(clock)
        histories = [(await left_pending(model, OURS.batching(clock), str(n)))[0] for n in range(33)]
        await clock.advance(HOUR)
        agent = pending_agent(model, batching)
        for history in [*histories, *histories[1:]]:
            await agent.run(message_history=history)
        assert fake.openai.count('download') == 33
        assert (await agent.run(message_history=histories[0])).output == 'answer to 0'
        assert fake.openai.count('download') == 34


async def test_large_results_are_kept_up_to_a_number_of_bytes(
    model_for: ModelFor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.flights._MAX_ENDED_BYTES', 100_000)
    # Two bytes for each of these in memory, and three on the wire.
    with providers(clock, lambda request: '語' * 20_000) as fake:
        fake.openai.rewrite_results = unescaped
        model, batching = model_for(RESPONSES, fake), OURS.batching(clock)
        histories = [(await left_pending(model, OURS.batching(clock), str(n)))[0] for n in range(3)]
        await clock.advance(HOUR)
        agent = pending_agent(model, batching)
        for history in [*histories, *histories[1:]]:
            await agent.run(message_history=history)
        assert fake.openai.count('download') == 3
        await agent.run(message_history=histories[0])
        assert fake.openai.count('download') == 4


def unescaped(lines: list[bytes], kind: Any) -> list[bytes]:
    import json

    return [json.dumps(json.loads(line), ensure_ascii=False).encode() for line in lines]


async def test_results_that_a_run_still_waits_for_are_kept_whatever_their_number(
    model_for: ModelFor, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.flights._MAX_ENDED', 1)
    with providers(clock) as fake:
        model, batching = model_for(RESPONSES, fake), OURS.batching(clock, max_requests=2)
        agent = waiting_agent(model, batching)
        results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(10)]))
        assert [result.output for result in results] == [f'answer to {n}' for n in range(10)]
        assert fake.openai.count('download') == 5


async def test_what_one_key_read_is_not_given_to_another(harness: Harness, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        batching = OURS.batching(clock)
        mine, theirs = model_for(harness, fake, 'mine'), model_for(harness, fake, 'theirs')
        (history,) = await left_pending(mine, batching, 'secret')
        await clock.advance(HOUR)
        assert (await pending_agent(mine, batching).run(message_history=history)).output == 'answer to secret'
        asked = harness.fake(fake).count('status')
        result = await pending_agent(theirs, batching).run(message_history=history)
        assert isinstance(result.output, PendingModelResponse)
        assert harness.fake(fake).count('status') == asked + 1
        assert billed(harness, fake) == {'secret': 1}
