"""Streamed runs: they wait for their batch, and then stream each part of the answer as one event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.messages import (
    FinalResultEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.run import AgentRunResultEvent
from pydantic_ai.ui.vercel_ai import VercelAIAdapter

from pydantic_ai_batch.testing import FakeRequest, FakeToolCall, ManualClock

from .ways import (
    ANTHROPIC,
    RESPONSES,
    ModelFor,
    Scene,
    Way,
    all_quiet,
    left_pending,
    message_of,
    pending_agent,
    providers,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')


def of_a_model(events: list[Any]) -> list[Any]:
    kinds = (PartStartEvent, PartDeltaEvent, PartEndEvent, FinalResultEvent)
    return [event for event in events if isinstance(event, kinds)]


async def events_of(agent: Agent[None, Any], prompt: str | None = 'hello', **settings: Any) -> list[Any]:
    async with agent.run_stream_events(prompt, **settings) as stream:
        return [event async for event in stream]


async def test_each_part_of_an_answer_is_one_event(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))
        events = await clock.run(events_of(agent))
        start, final, end = of_a_model(events)
        assert isinstance(start, PartStartEvent)
        assert isinstance(start.part, TextPart)
        assert start.part.content == 'answer to hello'
        assert isinstance(final, FinalResultEvent)
        assert isinstance(end, PartEndEvent)
        assert isinstance(events[-1], AgentRunResultEvent)
        assert events[-1].result.output == 'answer to hello'
        assert scene.harness.fake(fake).count('live') == 0


async def test_a_streamed_run_ends_with_what_a_plain_one_does(scene: Scene, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))

        async def stream() -> tuple[list[str], str, Any]:
            async with agent.run_stream('hello') as streamed:
                texts = [text async for text in streamed.stream_text()]
                return texts, await streamed.get_output(), streamed.usage

        texts, output, usage = await clock.run(stream())
        plain = await clock.run(agent.run('hello'))
        assert texts[-1] == output == plain.output == 'answer to hello'
        assert (usage.requests, usage.input_tokens) == (plain.usage.requests, plain.usage.input_tokens)
        assert await all_quiet() == []


async def test_a_handler_gets_the_events_of_each_turn(scene: Scene, model_for: ModelFor, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return 'it is 21 degrees' if request.tool_results else FakeToolCall('temperature', {'city': 'Oslo'})

    turns: list[list[Any]] = []

    async def handler(ctx: Any, stream: AsyncIterable[Any]) -> None:
        turns.append([event async for event in stream])

    with providers(clock, answer) as fake:
        agent = waiting_agent(model_for(scene.harness, fake), scene.way.batching(clock))

        @agent.tool_plain
        async def temperature(city: str) -> int:
            return 21

        result = await clock.run(agent.run('Oslo', event_stream_handler=handler))
        assert result.output == 'it is 21 degrees'
        parts = [[e.part for e in turn if isinstance(e, PartStartEvent)] for turn in turns]
        assert [[type(part) for part in of_turn] for of_turn in parts if of_turn] == [[ToolCallPart], [TextPart]]
        events = [event for turn in turns for event in turn]
        assert not [event for event in events if isinstance(event, PartDeltaEvent)]
        assert [type(e) for e in events if isinstance(e, FunctionToolCallEvent | FunctionToolResultEvent)] == [
            FunctionToolCallEvent,
            FunctionToolResultEvent,
        ]
        assert scene.harness.fake(fake).count('create') == 2
        assert scene.harness.fake(fake).count('live') == 0


@ways
async def test_an_answer_of_several_parts_is_an_event_for_each(way: Way, model_for: ModelFor, clock: ManualClock):
    def answer(request: FakeRequest) -> dict[str, Any]:
        return message_of('first', 'second', 'third')

    with providers(clock, answer) as fake:
        agent = waiting_agent(model_for(ANTHROPIC, fake), way.batching(clock))
        events = await clock.run(events_of(agent))
        starts = [event for event in events if isinstance(event, PartStartEvent)]
        assert [(event.index, event.part) for event in starts] == [
            (0, TextPart('first')),
            (1, TextPart('second')),
            (2, TextPart('third')),
        ]
        assert not [event for event in events if isinstance(event, PartDeltaEvent)]


@ways
async def test_a_ui_adapter_shows_the_answer_when_it_is_there(way: Way, model_for: ModelFor, clock: ManualClock):
    message = {'id': 'm', 'role': 'user', 'parts': [{'type': 'text', 'text': 'hello'}]}
    body = {'trigger': 'submit-message', 'id': 'chat', 'messages': [message]}
    with providers(clock) as fake:
        agent = waiting_agent(model_for(RESPONSES, fake), way.batching(clock))
        run_input = VercelAIAdapter.build_run_input(json.dumps(body).encode())
        adapter = VercelAIAdapter(agent, run_input)

        async def shown() -> list[Any]:
            return [event async for event in adapter.run_stream()]

        events = await clock.run(shown())
        texts = [event.delta for event in events if event.type == 'text-delta']
        assert texts == ['answer to hello']
        assert events[-1].type == 'done'
        assert fake.openai.count('create') == 1
        assert fake.openai.count('live') == 0


async def test_a_streamed_run_that_may_end_pending_does_and_is_collected_by_another(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        agent = pending_agent(model_for(scene.harness, fake), scene.way.batching(clock))
        events = await events_of(agent)
        assert of_a_model(events) == []
        result = events[-1].result
        assert isinstance(result.output, PendingModelResponse)
        await clock.advance(timedelta(hours=1))
        resumed = await events_of(agent, None, message_history=result.all_messages())
        assert [type(event) for event in of_a_model(resumed)] == [PartStartEvent, FinalResultEvent, PartEndEvent]
        assert resumed[-1].result.output == 'answer to hello'
        assert scene.harness.fake(fake).count('create') == 1


async def test_a_streamed_run_that_resumes_a_history_waits_for_its_answer(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock)
        (history,) = await left_pending(model, batching)

        async def stream() -> str:
            async with waiting_agent(model, batching).run_stream(message_history=history) as streamed:
                return await streamed.get_output()

        assert await clock.run(stream()) == 'answer to hello'
        assert scene.harness.fake(fake).count('create') == 1
        assert scene.harness.fake(fake).count('live') == 0
