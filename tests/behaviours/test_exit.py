"""What the end of an `async with` block, of an event loop and of a thread leaves behind: nothing but batches."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, cast

import pytest
from lanes.harness import HARNESSES, Harness, close
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.test import TestModel

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.clock import SYSTEM_CLOCK
from pydantic_ai_batch.exceptions import batch_of
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .ways import (
    OURS,
    Gate,
    ModelFor,
    Scene,
    Way,
    all_quiet,
    echo,
    left_pending,
    pending_agent,
    providers,
    until,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')


# What is queued, submitted or checked


async def test_what_is_queued_when_the_block_ends_fails_and_is_never_sent(
    scene: Scene, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        batching = scene.way.batching(clock, max_requests=3)
        agent = waiting_agent(model_for(scene.harness, fake), batching)
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
            await all_quiet()
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert [type(result) for result in results] == [UserError, UserError]
        assert 'exited' in str(results[0])
        assert results[0] is not results[1]
        assert fake.calls == []
        assert clock.sleeping == 0
        assert await all_quiet() == []


async def test_a_queues_timer_ends_with_the_block(harness: Harness, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        batching = OURS.batching(clock, max_requests=2, max_wait=timedelta(minutes=1))
        async with batching:
            run = asyncio.ensure_future(waiting_agent(model_for(harness, fake), batching).run('x'))
            await clock.until_asleep()
        assert clock.sleeping == 0
        with pytest.raises(UserError, match='exited'):
            await run
        assert await all_quiet() == []


async def test_what_is_being_submitted_when_the_block_ends_fails(
    scene: Scene, model_for: ModelFor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock)
        gate = Gate(model)
        async with batching:
            run = asyncio.ensure_future(waiting_agent(model, batching).run('x'))
            await gate.reached.wait()
        with pytest.raises(UserError, match='exited'):
            await run
        assert scene.harness.fake(fake).count('cancel') == 0
        assert await all_quiet() == []
        if scene.way is OURS:
            assert 'a batch may exist' in caplog.text


async def test_what_is_being_checked_when_the_block_ends_fails_and_its_batch_is_left_running(
    harness: Harness, model_for: ModelFor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with providers(clock) as fake:
        model, batching = model_for(harness, fake), OURS.batching(clock)
        async with batching:
            run = asyncio.ensure_future(waiting_agent(model, batching).run('x'))
            await clock.until_asleep()
            gate = Gate(model)
            moving = asyncio.ensure_future(clock.run(gate.reached.wait()))
            await moving
        with pytest.raises(UserError, match='exited') as raised:
            await run
        (batch_id,) = harness.fake(fake).batches
        handle = batch_of(raised.value)
        assert handle is not None
        assert handle.id == batch_id
        assert harness.fake(fake).count('cancel') == 0
        assert _warned(caplog, batch_id)
        assert await all_quiet() == []


async def test_a_resumed_history_that_is_being_checked_when_the_block_ends_can_be_resumed_again(
    scene: Scene, model_for: ModelFor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with providers(clock) as fake:
        model, batching = model_for(scene.harness, fake), scene.way.batching(clock)
        (history,) = await left_pending(model, batching)
        gate = Gate(model)
        async with batching:
            run = asyncio.ensure_future(pending_agent(model, batching).run(message_history=history))
            await gate.reached.wait()
        with pytest.raises(UserError, match='exited'):
            await run
        gate.open()
        if scene.way is OURS:
            assert _warned(caplog, next(iter(scene.harness.fake(fake).batches)))
        await clock.advance(timedelta(hours=1))
        result = await pending_agent(model, batching).run(message_history=history)
        assert result.output == 'answer to hello'
        assert scene.harness.fake(fake).count('create') == 1


def _warned(caplog: pytest.LogCaptureFixture, batch_id: str) -> bool:
    """Whether there is one warning that the batch is in flight, and that says how to collect it."""
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    messages = [record.getMessage() for record in warnings if record.name == 'pydantic_ai_batch']
    return [batch_id in message and 'To collect it' in message for message in messages] == [True]


# Runs between two checks


async def test_a_run_between_two_checks_goes_on_and_makes_its_next_one_when_it_is_due(
    harness: Harness, model_for: ModelFor, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    with providers(clock, processing=timedelta(hours=2)) as fake:
        provider = harness.fake(fake)
        settings: dict[str, Any] = {'poll_interval': timedelta(minutes=10), 'max_poll_interval': timedelta(hours=10)}
        batching = OURS.batching(clock, max_requests=2, **settings)
        agent = waiting_agent(model_for(harness, fake), batching)
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
            await clock.until_asleep()
            created = clock.now()
            while provider.count('status') < 2:
                await clock.advance(60)
                await clock.until_asleep()
            await clock.advance(timedelta(minutes=7))
        assert _warned(caplog, next(iter(provider.batches)))
        # Each run now sleeps for itself, in the agent graph.
        await clock.until_asleep(2)
        results = await clock.run(asyncio.gather(*runs))
        assert [result.output for result in results] == ['answer to 0', 'answer to 1']
        minutes = [round((call.at - created) / 60) for call in provider.calls if call.operation == 'status']
        # After 10 minutes and half as much again each time, as if the block had not ended, and once for both runs.
        assert minutes[:4] == [10, 25, 48, 81]
        assert (provider.count('create'), provider.count('cancel')) == (1, 0)


@ways
async def test_a_run_between_two_checks_is_answered_after_the_block(way: Way, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        batching = way.batching(clock, max_requests=3)
        agent = waiting_agent(model_for(HARNESSES[0], fake), batching)
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(3)]
            await clock.until_asleep(1 if way is OURS else 3)
        results = await clock.run(asyncio.gather(*runs))
        assert [result.output for result in results] == [f'answer to {n}' for n in range(3)]
        assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 0)


@ways
async def test_a_streamed_run_between_two_checks_is_answered_after_the_block(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        batching = way.batching(clock)
        agent = waiting_agent(model_for(HARNESSES[0], fake), batching)

        async def stream() -> str:
            async with agent.run_stream('hello') as streamed:
                return await streamed.get_output()

        async with batching:
            run = asyncio.ensure_future(stream())
            await clock.until_asleep()
        assert await clock.run(run) == 'answer to hello'
        assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 0)


@ways
async def test_a_run_that_went_on_after_the_block_is_let_go_with_its_batch_when_it_is_cancelled(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        batching = way.batching(clock)
        async with batching:
            run = asyncio.ensure_future(waiting_agent(model_for(HARNESSES[0], fake), batching).run('x'))
            await clock.until_asleep()
        await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        # It was said to be left running, and is.
        assert fake.openai.count('cancel') == (0 if way is OURS else 1)
        assert await all_quiet() == []


# Blocks


@ways
async def test_only_the_end_of_the_outermost_block_counts(way: Way, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        batching = way.batching(clock, max_requests=2)
        agent = waiting_agent(model_for(HARNESSES[0], fake), batching)
        async with batching:
            first = asyncio.ensure_future(agent.run('a'))
            async with batching:
                await all_quiet()
            second = asyncio.ensure_future(agent.run('b'))
            results = await clock.run(asyncio.gather(first, second))
        assert [result.output for result in results] == ['answer to a', 'answer to b']


@ways
async def test_a_block_that_ends_with_an_error_fails_what_is_queued_and_raises_it(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock) as fake:
        batching = way.batching(clock, max_requests=2)
        runs: list[asyncio.Future[Any]] = []
        agent = waiting_agent(model_for(HARNESSES[0], fake), batching)

        async def block() -> None:
            async with batching:
                runs.append(asyncio.ensure_future(agent.run('x')))
                await all_quiet()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await block()
        with pytest.raises(UserError, match='exited'):
            await runs[0]


@ways
async def test_an_instance_is_as_good_after_a_block_as_before(way: Way, model_for: ModelFor, clock: ManualClock):
    with providers(clock) as fake:
        batching = way.batching(clock)
        agent = waiting_agent(model_for(HARNESSES[0], fake), batching)
        for _ in range(2):
            async with batching:
                assert (await clock.run(agent.run('in'))).output == 'answer to in'
            assert (await clock.run(agent.run('after'))).output == 'answer to after'


# Event loops and threads


def _batching(way: Way, *, max_requests: int) -> Any:
    """One that goes by the machine's clock, as event loops of their own do."""
    brief = timedelta(milliseconds=20)
    return way.batching(SYSTEM_CLOCK, max_requests=max_requests, poll_interval=brief, max_poll_interval=brief)


async def _with_agent(fake: FakeProviders, batching: Any, work: Callable[[Agent], Coroutine[Any, Any, Any]]) -> Any:
    model, client = HARNESSES[0].make(fake, 'test')
    try:
        return await work(Agent(model, capabilities=[batching]))
    finally:
        await close(client)


@ways
def test_one_instance_serves_one_event_loop_after_another_and_keeps_none_of_them(way: Way):
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = _batching(way, max_requests=2)

        async def both(agent: Agent) -> list[str]:
            loops.append(weakref.ref(asyncio.get_running_loop()))
            return [result.output for result in await asyncio.gather(agent.run('a'), agent.run('b'))]

        for _ in range(3):
            assert asyncio.run(_with_agent(fake, batching, both)) == ['answer to a', 'answer to b']
        assert fake.openai.count('create') == 3
        gc.collect()
        assert [loop() for loop in loops] == [None] * 3


def test_an_event_loop_that_was_closed_while_runs_waited_in_it_is_let_go():
    """As when a program that has a loop of its own gives up on it, and does not cancel what runs there first."""
    with FakeProviders(echo, processing=timedelta(hours=1)) as fake:
        batching = _batching(OURS, max_requests=1)
        runs: list[asyncio.Future[Any]] = []

        async def begin(agent: Agent) -> None:
            runs.append(asyncio.ensure_future(agent.run('left')))
            await until(lambda: fake.openai.count('status') > 0)

        async def another(agent: Agent) -> str:
            output = (await agent.run('a')).output
            assert list(batching._pool._loops) == [asyncio.get_running_loop()]
            return output

        loop = asyncio.new_event_loop()
        # What is told of its tasks when they are collected is not the capability's affair.
        loop.set_exception_handler(lambda loop, context: None)
        loop.run_until_complete(_with_agent(fake, batching, begin))
        loop.close()
        fake.processing = timedelta(0)
        assert asyncio.run(_with_agent(fake, batching, another)) == 'answer to a'
        assert fake.openai.count('cancel') == 0


@ways
def test_one_instance_serves_threads_at_the_same_time(way: Way):
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = _batching(way, max_requests=4)
        outputs: dict[int, list[str]] = {}

        def work(number: int) -> None:
            async def four(agent: Agent) -> list[str]:
                runs = [agent.run(f'{number}/{n}') for n in range(4)]
                return [result.output for result in await asyncio.gather(*runs)]

            outputs[number] = asyncio.run(_with_agent(fake, batching, four))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outputs == {number: [f'answer to {number}/{n}' for n in range(4)] for number in range(4)}
        assert fake.openai.count('create') == 4


def test_the_end_of_a_block_on_one_loop_is_nothing_to_another():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        batching = _batching(OURS, max_requests=2)
        queued, left = threading.Event(), threading.Event()
        outputs: list[str] = []

        async def stays(agent: Agent) -> None:
            first = asyncio.ensure_future(agent.run('a'))
            await all_quiet()
            queued.set()
            await asyncio.to_thread(left.wait)
            outputs.extend(result.output for result in await asyncio.gather(first, agent.run('b')))

        async def leaves(agent: Agent) -> None:
            async with batching:
                run = asyncio.ensure_future(agent.run('c'))
                await all_quiet()
            with pytest.raises(UserError, match='exited'):
                await run

        thread = threading.Thread(target=lambda: asyncio.run(_with_agent(fake, batching, stays)))
        thread.start()
        queued.wait()
        asyncio.run(_with_agent(fake, batching, leaves))
        left.set()
        thread.join()
        assert outputs == ['answer to a', 'answer to b']


# No event loop of asyncio


def _run_without_asyncio(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine as another library's event loop would, up to where it first waits."""
    try:
        work.send(None)
    except StopIteration:
        pass
    finally:
        work.close()


@pytest.mark.parametrize('call', ['run', 'block', 'flush'])
def test_under_another_librarys_event_loop_it_says_what_it_needs(call: str):
    batching = BatchModelRequests()
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        # The first of its hooks that a run calls.
        'run': lambda: batching.for_run(cast('Any', None)),
        'block': batching.__aenter__,
        'flush': batching.flush,
    }
    with pytest.raises(UserError, match='Trio is not supported'):
        _run_without_asyncio(calls[call]())


@pytest.mark.filterwarnings('ignore:coroutine .* was never awaited:RuntimeWarning')
def test_under_trio_a_run_says_what_it_needs():
    trio = pytest.importorskip('trio')
    with pytest.raises(UserError, match='Trio is not supported'):
        trio.run(Agent(TestModel(), capabilities=[BatchModelRequests()]).run, 'x')
