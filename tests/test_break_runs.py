"""Attacks on runs: cancelled, closed, timed out, hooked into, in several loops and threads."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from conftest import ModelOf
from gate import Gate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelMessagesTypeAdapter,
    PendingModelResponse,
    UsageLimits,
    capabilities,
    exceptions,
)
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import ModelAPIError, SuspendedResponseExpired, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.exceptions import batch_of
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock


def echo(request: FakeRequest) -> str:
    return f'about {request.text}'


def batched(clock: ManualClock, **settings: Any) -> BatchModelRequests:
    return BatchModelRequests(clock=clock, **settings)


GATES = {
    'uploading': ('POST', '/files'),
    'creating': ('POST', '/batches'),
    'checking': ('GET', ''),
    'reading': ('GET', '/content'),
}


async def all_quiet() -> list[asyncio.Task[Any]]:
    """The tasks that are left, other than the test's own, when everything had time to end."""

    def rest() -> list[asyncio.Task[Any]]:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return [task for task in tasks if task is not None and 'anyio' not in repr(task)]

    for _ in range(100):
        if rest():
            await asyncio.sleep(0.005)
    return rest()


@pytest.fixture(autouse=True)
def nothing_unretrieved(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No task or future is dropped with an exception that nobody saw."""
    with caplog.at_level(logging.ERROR, logger='asyncio'):
        yield
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == 'asyncio'] == []


@pytest.mark.parametrize('moment', GATES)
async def test_a_run_cancelled_at_any_moment_costs_the_other_nothing(
    moment: str, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        gate = Gate(model, *GATES[moment])
        agent = Agent(model, capabilities=[batched(clock, max_requests=2)])
        goes, stays = asyncio.ensure_future(agent.run('goes')), asyncio.ensure_future(agent.run('stays'))
        both = asyncio.ensure_future(clock.run(asyncio.gather(goes, stays, return_exceptions=True)))
        await gate.reached.wait()
        goes.cancel()
        await asyncio.wait((goes,))
        gate.open()
        await both
        assert goes.cancelled()
        assert stays.result().output == 'about stays'
        assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 0)
        assert await all_quiet() == []
        assert clock.sleeping == 0


@pytest.mark.parametrize('moment', GATES)
async def test_a_lone_run_cancelled_at_any_moment_leaves_nothing_running(
    moment: str, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        gate = Gate(model, *GATES[moment])
        agent = Agent(model, capabilities=[batched(clock, max_requests=1)])
        run = asyncio.ensure_future(agent.run('x'))
        moving = asyncio.ensure_future(clock.run(asyncio.gather(run, return_exceptions=True)))
        await gate.reached.wait()
        run.cancel()
        gate.open()
        await moving
        assert run.cancelled()
        assert await all_quiet() == []
        assert clock.sleeping == 0
        running = [batch for batch in fake.openai.batches.values() if not batch.ended]
        assert len(running) <= fake.openai.count('cancel')


@pytest.mark.parametrize('moment', ['uploading', 'creating', 'checking', 'reading'])
async def test_a_block_left_at_any_moment_ends_every_run_and_every_task(
    moment: str, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        gate = Gate(model, *GATES[moment])
        batching = batched(clock, max_requests=2)
        agent = Agent(model, capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
            moving = asyncio.ensure_future(clock.run(asyncio.gather(*runs, return_exceptions=True)))
            await gate.reached.wait()
        gate.open()
        results = await moving
        assert all(isinstance(result, UserError) for result in results)
        assert fake.openai.count('cancel') == 0
        assert await all_quiet() == []
        assert clock.sleeping == 0
        if moment in ('checking', 'reading'):
            assert all(batch_of(result) for result in results if isinstance(result, BaseException))


async def test_a_block_left_while_runs_are_parked_lets_them_wait_on_and_be_answered(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        batching = batched(clock, max_requests=2)
        agent = Agent(model_of(fake), capabilities=[batching])
        with Agent.using_sleep(clock.sleep):
            async with batching:
                runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
                await clock.until_asleep()
            results = await clock.run(asyncio.gather(*runs))
        assert [result.output for result in results] == ['about 0', 'about 1']
        assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 0)


async def test_a_cancellation_that_the_provider_refuses_is_still_a_cancellation(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('cancel', 'http', status=500)
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)])
        run = asyncio.ensure_future(agent.run('x'))
        await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert fake.openai.count('cancel') == 1


async def test_request_timeout_gives_up_a_queued_request_before_it_is_sent(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = Agent(model, capabilities=[batched(clock)], model_settings=ModelSettings(request_timeout=0.05))
    with pytest.raises(ModelAPIError, match=r'(?i)time'):
        await agent.run('x')
    assert fake.calls == []
    assert clock.sleeping == 1  # The queue's timer, which finds nothing to send.
    await clock.advance(60)
    assert fake.calls == []
    assert clock.sleeping == 0


async def test_request_timeout_withdraws_a_submitted_request(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        settings = ModelSettings(request_timeout=0.3)
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)], model_settings=settings)
        with pytest.raises(ModelAPIError, match=r'(?i)time'):
            await agent.run('x')
        assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 1)
        assert fake.openai.count('live') == 0
        assert clock.sleeping == 0


# Streams


async def test_a_stream_cancelled_while_it_waits_withdraws_its_request(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)])

        async def stream() -> str:
            async with agent.run_stream('x') as streamed:
                return await streamed.get_output()

        run = asyncio.ensure_future(stream())
        await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert fake.openai.count('cancel') == 1
        assert fake.openai.count('live') == 0
        assert await all_quiet() == []


async def test_a_stream_that_is_left_half_read_leaves_nothing_behind(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: 'word ' * 50, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)])

        async def stream() -> None:
            async with agent.run_stream('x') as streamed:
                async for _ in streamed.stream_text(delta=True):
                    break

        await clock.run(stream())
        assert fake.openai.count('create') == 1
        assert fake.openai.count('live') == 0
        assert await all_quiet() == []


async def test_iterating_over_the_graph_sees_one_request_and_its_answer(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)])

        async def nodes() -> tuple[list[str], str | None]:
            async with agent.iter('x') as run:
                names = [type(node).__name__ async for node in run]
                return names, run.result and run.result.output

        names, output = await clock.run(nodes())
        assert names == ['UserPromptNode', 'ModelRequestNode', 'CallToolsNode', 'End']
        assert output == 'about x'
        assert fake.openai.count('create') == 1


async def test_a_tool_call_that_needs_approval_ends_the_run_and_goes_on_in_another_batch(
    clock: ManualClock, model_of: ModelOf
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return 'deleted' if request.tool_results else FakeToolCall('delete', {'name': 'a'})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(
            model_of(fake),
            output_type=[str, DeferredToolRequests],
            capabilities=[batched(clock, max_requests=1)],
        )

        @agent.tool_plain(requires_approval=True)
        def delete(name: str) -> str:
            return f'{name} is gone'

        first = await clock.run(agent.run('delete a'))
        assert isinstance(first.output, DeferredToolRequests)
        approvals = DeferredToolResults(approvals={call.tool_call_id: True for call in first.output.approvals})
        history = ModelMessagesTypeAdapter.validate_json(first.all_messages_json())
        second = await clock.run(agent.run(message_history=history, deferred_tool_results=approvals))
        assert second.output == 'deleted'
        assert fake.openai.count('create') == 2
        assert fake.openai.count('live') == 0


# Hooks, limits and wrappers


class ReplacesPending(AbstractCapability[Any]):
    async def after_model_request(self, ctx: Any, *, request_context: Any, response: ModelResponse) -> ModelResponse:
        return ModelResponse(parts=[TextPart('made up')]) if response.state == 'suspended' else response


async def test_a_pending_response_that_a_hook_replaces_is_withdrawn(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(clock=clock) as fake:
        agent = Agent(
            model_of(fake),
            output_type=[str, PendingModelResponse],
            capabilities=[ReplacesPending(), batched(clock, max_requests=1)],
        )
        result = await clock.run(agent.run('x'))
        assert result.output == 'made up'
        assert fake.openai.count('cancel') == 1


retries_requests = pytest.mark.skipif(
    not hasattr(exceptions, 'RetryModelRequest'), reason='this version of pydantic-ai has no `RetryModelRequest`'
)


class RetriesOnce(AbstractCapability[Any]):
    def __init__(self) -> None:
        self.retried = 0

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
        if self.retried:
            raise error
        self.retried += 1
        raise exceptions.RetryModelRequest


@retries_requests
async def test_a_hook_that_retries_a_failed_request_sends_it_in_another_batch(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.attempt == 0 else 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        retries = RetriesOnce()
        agent = Agent(model_of(fake), capabilities=[retries, batched(clock, max_requests=1)])
        result = await clock.run(agent.run('x'))
        assert result.output == 'fine'
        assert retries.retried == 1
        assert fake.openai.count('create') == 2
        assert (fake.openai.count('live'), fake.openai.count('cancel')) == (0, 0)


@retries_requests
async def test_a_fallback_model_is_asked_in_a_batch_of_its_own(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(503, None, 'no') if request.body['model'] == 'gpt-5-mini' else 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        fallback = capabilities.ModelFallback(model_of(fake, 'gpt-5-nano'))
        agent = Agent(model_of(fake), capabilities=[fallback, batched(clock, max_requests=1, max_resubmissions=0)])
        result = await clock.run(agent.run('x'))
        assert result.output == 'fine'
        assert [batch.model for batch in fake.openai.batches.values()] == ['gpt-5-mini', 'gpt-5-nano']
        assert fake.openai.count('live') == 0


async def test_a_request_limit_counts_a_batched_request_once(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=20)) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1)])
        result = await clock.run(agent.run('x', usage_limits=UsageLimits(request_limit=1)))
        assert result.output == 'about x'
        assert result.usage.requests == 1
        assert fake.openai.count('status') > 50


class Through(WrapperModel):
    """A user's own wrapper, such as one that logs."""


async def test_models_wrapped_by_others_inside_and_outside_are_batched_once(clock: ManualClock, model_of: ModelOf):
    class Wraps(AbstractCapability[Any]):
        def get_wrapper_model(self, model: Model) -> Model:
            return Through(model)

    with FakeProviders(echo, clock=clock) as fake:
        batching = batched(clock, max_requests=1)
        agent = Agent(Through(Through(model_of(fake))), capabilities=[batching, Wraps(), batching])
        result = await clock.run(agent.run('x'))
        assert result.output == 'about x'
        assert fake.openai.count('create') == 1
        assert fake.openai.count('live') == 0


@pytest.mark.parametrize('outside', [True, False])
async def test_an_instrumented_run_is_one_chat_span_with_its_tokens_once(
    outside: bool, clock: ManualClock, model_of: ModelOf
):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentation = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
    with FakeProviders(echo, clock=clock) as fake:
        batching = batched(clock, max_requests=3)
        capabilities = [instrumentation, batching] if outside else [batching, instrumentation]
        agent = Agent(model_of(fake), capabilities=capabilities)
        results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(3)]))
    chats = [span for span in exporter.get_finished_spans() if span.name.startswith('chat')]
    assert len(chats) == 3
    tokens = Counter(int(attribute(span, 'gen_ai.usage.input_tokens')) for span in chats)
    assert tokens == Counter(result.usage.input_tokens for result in results)


def attribute(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes[name]


async def test_the_pools_own_calls_are_in_no_runs_trace(clock: ManualClock, model_of: ModelOf):
    from opentelemetry import trace

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentation = Instrumentation(settings=InstrumentationSettings(tracer_provider=provider))
    with FakeProviders(echo, clock=clock) as fake:
        model, seen = model_of(fake), list[int]()

        async def look(request: httpx2.Request) -> None:
            seen.append(trace.get_current_span().get_span_context().trace_id)

        model.client._client.event_hooks = {'request': [look]}
        await clock.run(Agent(model, capabilities=[instrumentation, batched(clock, max_requests=1)]).run('x'))
        assert len(seen) == len(fake.calls) > 3
        runs = [span.context for span in exporter.get_finished_spans() if span.name.startswith(('chat', 'invoke'))]
        assert len(runs) == 2
        assert set(seen).isdisjoint(context.trace_id for context in runs if context)


# Clocks


@pytest.mark.parametrize('jump', [-10 * 365 * 86400, -3600, 3600])
async def test_a_wall_clock_that_jumps_costs_no_answer(jump: int, clock: ManualClock, model_of: ModelOf):
    theirs = ManualClock()
    with FakeProviders(echo, clock=theirs, processing=timedelta(hours=1)) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_requests=1, max_resubmissions=0)])
        run = asyncio.ensure_future(agent.run('x'))
        await clock.until_asleep()
        clock.set_wall(jump)
        await theirs.advance(timedelta(hours=2))
        result = await clock.run(run)
        assert result.output == 'about x'
        assert fake.openai.count('create') == 1


async def test_a_queue_is_submitted_though_the_wall_clock_was_set_back(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock, max_wait=timedelta(seconds=30))])
        run = asyncio.ensure_future(agent.run('x'))
        await clock.until_asleep()
        clock.set_wall(-86400 * 365)
        await clock.advance(31)
        await clock.until_asleep()
        assert fake.openai.count('create') == 1
        run.cancel()
        await asyncio.wait((run,))


# Loops and threads


def test_one_instance_serves_one_event_loop_after_another():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = BatchModelRequests(max_requests=3, poll_interval=timedelta(seconds=0.05))

        async def once(name: str) -> list[str]:
            async with fake.openai.client(max_retries=0) as client:
                model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
                agent = Agent(model, capabilities=[batching])
                results = await asyncio.gather(*[agent.run(f'{name} {n}') for n in range(3)])
                return [result.output for result in results]

        assert asyncio.run(once('first')) == [f'about first {n}' for n in range(3)]
        assert asyncio.run(once('second')) == [f'about second {n}' for n in range(3)]
        assert fake.openai.count('create') == 2


def test_a_loop_that_was_left_with_runs_in_the_queue_does_not_disturb_the_next():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = BatchModelRequests(max_requests=2, poll_interval=timedelta(seconds=0.05))

        async def use(work: Callable[[Agent], Awaitable[Any]]) -> Any:
            async with fake.openai.client(max_retries=0) as client:
                model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
                return await work(Agent(model, capabilities=[batching]))

        async def leave(agent: Agent) -> None:
            asyncio.ensure_future(agent.run('left'))  # noqa: RUF006
            for _ in range(1_000):
                if batching.stats().queued:
                    break
                await asyncio.sleep(0.01)

        asyncio.run(use(leave))
        results = asyncio.run(use(lambda agent: asyncio.gather(agent.run('a'), agent.run('b'))))
        assert [result.output for result in results] == ['about a', 'about b']
        assert sorted(row.text for row in fake.openai.billed) == ['a', 'b']


def test_one_instance_serves_threads_with_loops_of_their_own():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = BatchModelRequests(max_requests=4, poll_interval=timedelta(seconds=0.05))
        outputs: dict[int, list[str]] = {}

        async def work(number: int) -> list[str]:
            async with fake.openai.client(max_retries=0) as client:
                model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
                agent = Agent(model, capabilities=[batching])
                return [r.output for r in await asyncio.gather(*[agent.run(f'{number}/{n}') for n in range(8)])]

        threads = [
            threading.Thread(target=lambda number=number: outputs.update({number: asyncio.run(work(number))}))
            for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outputs == {number: [f'about {number}/{n}' for n in range(8)] for number in range(6)}
        assert fake.openai.count('create') == 12
        assert max(Counter(row.text for row in fake.openai.billed).values()) == 1


# What a caller may put into a history


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def pending_history(clock: ManualClock, model: Model) -> list[ModelMessage]:
    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batched(clock, max_requests=1)])
    return stored((await clock.run(agent.run('x'))).all_messages())


def with_ticket(history: list[ModelMessage], change: Callable[[dict[str, Any]], None]) -> list[ModelMessage]:
    response = stored(history)[-1]
    assert isinstance(response, ModelResponse)
    assert response.provider_details is not None
    ticket = response.provider_details['batch']
    change(ticket)
    response_id = f'batch:{ticket["batch"]["id"]}:{ticket["custom_id"]}'
    return [*history[:-1], replace(response, provider_response_id=response_id)]


def naive_check(ticket: dict[str, Any]) -> None:
    ticket['pydantic_ai_batch']['checked_at'] = '2029-12-31T00:00:00'


def naive_creation(ticket: dict[str, Any]) -> None:
    ticket['batch']['created_at'] = '2030-01-01T00:00:00'


def naive_sight(ticket: dict[str, Any]) -> None:
    ticket['pydantic_ai_batch']['last_seen'] = '2029-12-31T00:00:00'


def negative_polls(ticket: dict[str, Any]) -> None:
    ticket['polls'] = -(10**6)


@pytest.mark.parametrize('change', [naive_check, naive_creation, naive_sight, negative_polls])
async def test_odd_values_in_a_stored_ticket_do_not_keep_its_answer_away(
    change: Callable[[dict[str, Any]], None], clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        history = with_ticket(await pending_history(clock, model), change)
        fake.openai.inject('status', 'http', status=404)

        async def resume(batching: BatchModelRequests) -> Any:
            agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])
            return await agent.run(message_history=stored(history))

        first = batched(clock)
        await resume(first)
        await resume(first)
        await clock.advance(timedelta(hours=1))
        result = await resume(batched(clock))
        assert result.output == 'about x'
        assert fake.openai.count('create') == 1


@pytest.mark.parametrize('batch_id', ['', '.', '..', '../files', 'a/b', '?after=x', '%2e%2e', 'x' * 300, '\n'])
async def test_a_made_up_batch_id_in_a_history_is_an_error_of_the_framework_and_touches_nothing(
    batch_id: str, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        history = with_ticket(await pending_history(clock, model), lambda ticket: ticket['batch'].update(id=batch_id))
        before = len(fake.calls)
        agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batched(clock)])
        await clock.advance(timedelta(days=1))
        try:
            for _ in range(5):
                history = stored((await agent.run(message_history=history)).all_messages())
        except (ModelAPIError, UserError, SuspendedResponseExpired):
            pass
        assert {call.operation for call in fake.calls[before:]} <= {'status', 'unknown'}
        assert fake.openai.count('live') == 0


async def test_one_stored_history_that_is_checked_again_and_again_is_answered_in_the_end(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        history = await pending_history(clock, model)
        agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batched(clock)])
        first = await agent.run(message_history=history)
        assert isinstance(first.output, PendingModelResponse)
        await clock.advance(timedelta(hours=23))
        second = await agent.run(message_history=history)
        assert second.output == 'about x'


async def test_a_history_of_the_built_in_capability_is_not_sent_again_after_a_check_found_it_running(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        theirs = Agent(model, output_type=[str, PendingModelResponse], capabilities=[BuiltIn(max_requests=1)])
        history = stored((await theirs.run('x')).all_messages())
        ours = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batched(clock, max_requests=1)])
        checked = await clock.run(ours.run(message_history=history))
        assert isinstance(checked.output, PendingModelResponse)
        await clock.advance(timedelta(hours=1))
        result = await clock.run(ours.run(message_history=stored(checked.all_messages())))
        assert fake.openai.count('create') == 1
        assert result.output == 'about x'


async def test_a_run_that_waits_for_a_history_of_the_built_in_capability_does_not_send_it_again(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        model = model_of(fake)
        theirs = Agent(model, output_type=[str, PendingModelResponse], capabilities=[BuiltIn(max_requests=1)])
        history = stored((await theirs.run('x')).all_messages())
        with Agent.using_sleep(lambda delay: asyncio.sleep(0)):
            agent = Agent(model, capabilities=[batched(clock, max_requests=1)])
            result = await clock.run(agent.run(message_history=history))
        assert fake.openai.count('create') == 1
        assert result.output == 'about x'
