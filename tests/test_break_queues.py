"""Attacks on full queues: batches that nobody wants, that are lost, that come back late, all at once or for a day."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import Harness, echo, requests_of
from paced import LaneModel, PacedClock, clock, harness, lane_model
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelRateLimitError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.test import TestModel

from pydantic_ai_batch import BatchModelRequests, model_request_batch
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.testing import FakeProviders, ManualClock

__all__ = ('clock', 'harness', 'lane_model')

MINUTE, HOUR, DAY = 60, 3_600, 86_400
HALF_HOUR = 30 * MINUTE

over_http = pytest.mark.parametrize(
    'harness', ['responses', 'chat', 'anthropic', 'google-inline', 'google-file'], indirect=True
)
told_at_once = pytest.mark.parametrize('harness', ['google-inline', 'google-file'], indirect=True)
"""The lanes whose provider refuses a batch that its queue has too many tokens for."""

told_late = pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
"""The lanes whose provider says that a queue is full some time after it made the batch."""


async def by_list(clock: ManualClock, model: Model, rows: list[str], **settings: Any) -> list[Any]:
    outcomes = await model_request_batch(model, requests_of(rows), clock=clock, **settings)
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


async def by_agents(clock: ManualClock, model: Model, rows: list[str], **settings: Any) -> list[Any]:
    settings = {'max_requests': len(rows), 'max_wait': None, **settings}
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, **settings)])
    outcomes = await asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else outcome.output for outcome in outcomes]


Send = Callable[..., Coroutine[Any, Any, list[Any]]]
both_ways = pytest.mark.parametrize('send', [by_list, by_agents])


def rows_of(count: int, name: str = 'row') -> list[str]:
    return [f'{name} {n}' for n in range(count)]


def answers_to(rows: list[str]) -> list[str]:
    return [f'answer to {row}' for row in rows]


def full(harness: Harness, fake: FakeProviders, times: int | None = None, **fault: Any) -> None:
    """Let the queue of the provider have no room for so many batches; `None` for none from now on."""
    harness.fake(fake).inject('create', 'http', times=times, status=429, message='Too many batches.', **fault)


def creates(harness: Harness, fake: FakeProviders) -> list[float]:
    """When each batch was asked for, in seconds."""
    return [call.at for call in harness.fake(fake).calls if call.operation == 'create']


def sizes(harness: Harness, fake: FakeProviders) -> list[int]:
    return [len(batch.requests) for batch in harness.fake(fake).batches.values()]


def room_for(rows: int, harness: Harness, fake: FakeProviders) -> None:
    """Let the queue hold that many rows like those of the first batch, and no more."""
    first = next(iter(harness.fake(fake).batches.values()))
    harness.fake(fake).enqueued_token_limit = rows * (max(row.size for row in first.requests) // 4 + 2)


async def passes(clock: ManualClock, seconds: float) -> None:
    """Let time go by, with all that happens in it."""
    await clock.run(clock.sleep(seconds))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the network, while the clock stands still."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


# What is held


@over_http
@both_ways
async def test_a_reply_that_is_lost_while_the_queue_is_full_holds_up_no_other_batch(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = rows_of(3)
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=2)) as fake:
        full(harness, fake)
        call = asyncio.ensure_future(send(clock, lane_model(fake), rows, max_requests=1))
        await passes(clock, 30)
        before = harness.fake(fake).count('create')
        harness.fake(fake).clear_faults()
        harness.fake(fake).inject('create', 'lose_reply')
        # Nor is it in a listing for as long as one may be read for it.
        harness.fake(fake).inject('batch', 'hide', seconds=100.0)
        assert await clock.run(call) == answers_to(rows)
        asked = creates(harness, fake)[before:]
        # The one whose reply is lost, and those after it.
        assert len(asked) == 3
        assert asked[2] - asked[0] <= 2 * MINUTE
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(rows)


async def test_batches_that_nobody_waits_for_any_more_hold_up_no_other(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    if harness.name == 'chat':
        pytest.skip('its first request is taken down in a thread, which the clock does not wait for')
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake)
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(max_requests=1, max_wait=None, clock=clock)])
        runs = [asyncio.ensure_future(agent.run(row)) for row in rows_of(12)]
        await passes(clock, 6 * HOUR)
        # By now each is asked for half an hour after the one before it.
        assert creates(harness, fake)[-1] - creates(harness, fake)[-2] == HALF_HOUR
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        harness.fake(fake).clear_faults()
        before, started = harness.fake(fake).count('create'), clock.now()
        result = await clock.run(agent.run('new'))
        assert result.output == 'answer to new'
        assert creates(harness, fake)[before] - started <= HALF_HOUR
        assert harness.fake(fake).count('create') == before + 1


@told_late
@both_ways
async def test_many_batches_that_come_back_together_count_as_one_refusal(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = rows_of(12)
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=5)) as fake:
        held: list[float] = []

        def listen(event: BatchEvent) -> None:
            if event.kind == 'held':
                held.append(clock.now())
                if len(held) == len(rows):
                    server.enqueued_token_limit = None

        server = harness.fake(fake)
        server.enqueued_token_limit = 1
        sent = send(clock, lane_model(fake), rows, max_requests=1, progress=listen, max_resubmissions=0)
        assert await clock.run(sent) == answers_to(rows)
        assert len(held) == len(rows)
        # As after a first refusal, and not as after a twelfth, when each would be half an hour after the one before.
        assert creates(harness, fake)[-1] - held[-1] <= HALF_HOUR


# What room is counted on


@told_at_once
async def test_a_batch_that_one_of_its_runs_left_still_makes_room_when_it_ends(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    first, second = rows_of(8, 'first'), rows_of(8, 'second')
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=6)) as fake:
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(max_requests=8, max_wait=None, clock=clock)])
        runs = [asyncio.ensure_future(agent.run(row)) for row in first]
        await clock.until_asleep()
        room_for(10, harness, fake)
        runs.pop().cancel()
        others = asyncio.gather(*[agent.run(row) for row in second])
        results = await clock.run(asyncio.gather(others, *runs))
        assert [result.output for result in results[0]] == answers_to(second)
        assert all(result.output in answers_to(first) for result in results[1:])
        # One that nobody waits for here would make the next one look too large.
        assert set(sizes(harness, fake)) == {8}
        assert len(harness.fake(fake).billed) == 16


Two = Callable[[ManualClock, Model], list[Coroutine[Any, Any, list[Any]]]]


def two_lists(clock: ManualClock, model: Model) -> list[Coroutine[Any, Any, list[Any]]]:
    return [by_list(clock, model, rows_of(8, 'a')), by_list(clock, model, rows_of(8, 'b'))]


def two_instances(clock: ManualClock, model: Model) -> list[Coroutine[Any, Any, list[Any]]]:
    return [by_agents(clock, model, rows_of(8, 'a')), by_agents(clock, model, rows_of(8, 'b'))]


def a_list_and_agents(clock: ManualClock, model: Model) -> list[Coroutine[Any, Any, list[Any]]]:
    return [by_list(clock, model, rows_of(8, 'a')), by_agents(clock, model, rows_of(8, 'b'))]


@told_at_once
@pytest.mark.parametrize('two', [two_lists, two_instances, a_list_and_agents])
async def test_what_shares_a_queue_of_the_provider_waits_for_room_together(
    two: Two, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=6)) as fake:
        model = lane_model(fake)
        await clock.run(by_list(clock, model, rows_of(8, 'a')))
        room_for(10, harness, fake)
        first, second = await clock.run(asyncio.gather(*two(clock, model)))
        assert (first, second) == (answers_to(rows_of(8, 'a')), answers_to(rows_of(8, 'b')))
        assert set(sizes(harness, fake)) == {8}
        assert len(harness.fake(fake).billed) == 24


# A day


@told_late
async def test_a_request_that_was_held_for_a_day_fails_alone(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server, late = harness.fake(fake), list[asyncio.Future[Any]]()
        started = clock.now()

        def listen(event: BatchEvent) -> None:
            if event.kind == 'queued' and clock.now() - started > 22.9 * HOUR and not late:
                # One more joins the queue in which the old one waits for its next batch.
                late.append(asyncio.ensure_future(agent.run('late')))
                server.enqueued_token_limit = None
                full(harness, fake)
            if event.kind == 'refused':
                server.clear_faults()

        batching = BatchModelRequests(max_requests=100, max_wait=timedelta(minutes=10), clock=clock, progress=listen)
        agent = Agent(lane_model(fake), capabilities=[batching])
        server.enqueued_token_limit = 1
        with pytest.raises(ModelRateLimitError, match='Too many batches') as raised:
            await clock.run(agent.run('old'))
        assert 'no room for it for a day' in ''.join(raised.value.__notes__)
        assert 24 <= (clock.now() - started) / HOUR < 25
        assert (await clock.run(late[0])).output == 'answer to late'
        stats = batching.stats()
        assert (stats.queued, stats.answered, stats.failed) == (0, 1, 1)


@told_late
@both_ways
async def test_what_is_refused_at_once_and_then_late_is_held_for_one_day_in_all(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake)
        started = clock.monotonic()
        call = asyncio.ensure_future(send(clock, lane_model(fake), ['row']))
        await clock.until_asleep()
        await passes(clock, 23.4 * HOUR)
        harness.fake(fake).clear_faults()
        harness.fake(fake).enqueued_token_limit = 1
        [outcome] = await clock.run(call)
        assert isinstance(outcome, ModelRateLimitError)
        assert 24 <= (clock.monotonic() - started) / HOUR < 25


@over_http
@both_ways
async def test_a_clock_that_is_set_back_holds_nothing_longer_than_a_day(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake)
        call = asyncio.ensure_future(send(clock, lane_model(fake), ['row']))
        await clock.until_asleep()
        await passes(clock, 2 * MINUTE)
        clock.set_wall(-10 * DAY)
        [outcome] = await clock.run(call)
        assert isinstance(outcome, ModelRateLimitError)
        assert clock.monotonic() / HOUR < 25


# What is counted, and what is tidied up


async def test_held_requests_whose_runs_are_cancelled_are_queued_no_more(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = rows_of(3)
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake, times=1)
        batching = BatchModelRequests(max_requests=3, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        runs = [asyncio.ensure_future(agent.run(row)) for row in rows]
        await clock.until_asleep()
        assert batching.stats().queued == 3
        runs[0].cancel()
        results = await clock.run(asyncio.gather(*runs[1:]))
        assert [result.output for result in results] == answers_to(rows[1:])
        assert (batching.stats().queued, batching.stats().answered) == (0, 2)


async def test_a_held_batch_whose_runs_are_all_cancelled_leaves_nothing_queued(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake)
        batching = BatchModelRequests(max_requests=3, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        runs = [asyncio.ensure_future(agent.run(row)) for row in rows_of(3)]
        await clock.until_asleep()
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        await until(lambda: batching.stats().queued == 0)
        assert clock.sleeping == 0
        assert harness.fake(fake).count('create') == 1


async def test_a_flush_returns_when_a_full_queue_holds_the_batch_back(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        full(harness, fake, times=2)
        batching = BatchModelRequests(max_wait=None, clock=clock)
        run = asyncio.ensure_future(Agent(lane_model(fake), capabilities=[batching]).run('row'))
        await until(lambda: batching.stats().queued == 1)
        await asyncio.wait_for(batching.flush(), 20)
        assert clock.monotonic() == 0
        assert harness.fake(fake).count('create') == 1
        assert (await clock.run(run)).output == 'answer to row'


@told_late
@both_ways
async def test_the_input_of_a_batch_that_comes_back_late_is_deleted(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server, events = harness.fake(fake), list[str]()

        def listen(event: BatchEvent) -> None:
            events.append(event.kind)
            if events.count('held') == 3:
                server.enqueued_token_limit = None

        server.enqueued_token_limit = 1
        assert await clock.run(send(clock, lane_model(fake), ['row'], progress=listen)) == ['answer to row']
        assert (server.count('create'), server.count('upload')) == (4, 4)
        assert server.count('delete') == 4


@told_late
async def test_the_input_of_a_batch_that_comes_back_late_after_the_block_is_deleted(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        server = harness.fake(fake)
        server.enqueued_token_limit = 1
        batching = BatchModelRequests(max_requests=2, max_wait=timedelta(minutes=1), clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(row)) for row in rows_of(2)]
            await until(lambda: bool(server.batches) and clock.sleeping > 0)
        server.enqueued_token_limit = None
        results = await clock.run(asyncio.gather(*runs))
        assert [result.output for result in results] == answers_to(rows_of(2))
        assert server.count('create') == 2
        assert server.count('delete') == server.count('upload') == 2


async def test_runs_that_a_closed_block_lets_go_are_counted_once(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = rows_of(4)
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        batching = BatchModelRequests(max_requests=4, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(row)) for row in rows]
            await clock.until_asleep()
        assert batching.stats().left == 0
        results = await clock.run(asyncio.gather(*runs))
        assert [result.output for result in results] == answers_to(rows)
        stats = batching.stats()
        assert (stats.left, stats.answered, stats.failed, stats.batches) == (0, 4, 0, ())


async def test_a_run_that_was_let_go_and_is_then_cancelled_counts_as_left(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = rows_of(4)
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        batching = BatchModelRequests(max_requests=4, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(row)) for row in rows]
            await clock.until_asleep()
        # Each sleeps by itself now.
        await clock.until_asleep(4)
        runs[0].cancel()
        await asyncio.wait(runs[:1])
        assert batching.stats().left == 1
        results = await clock.run(asyncio.gather(*runs[1:]))
        assert [result.output for result in results] == answers_to(rows[1:])
        stats = batching.stats()
        assert (stats.left, stats.answered, stats.batches) == (1, 3, ())
        assert harness.fake(fake).count('cancel') == 0


def test_runs_in_the_queue_of_a_loop_that_was_closed_are_queued_no_more():
    batching = BatchModelRequests(max_wait=None)

    async def begin(prompts: list[str]) -> list[asyncio.Future[Any]]:
        agent = Agent(TestModel(), capabilities=[batching])
        runs: list[asyncio.Future[Any]] = [asyncio.ensure_future(agent.run(prompt)) for prompt in prompts]
        await until(lambda: batching.stats().queued == len(prompts))
        return runs

    async def end(prompts: list[str]) -> None:
        for run in await begin(prompts):
            run.cancel()

    loop = asyncio.new_event_loop()
    # What is lost with the loop is nobody's business, as the program gave it up.
    loop.set_exception_handler(lambda loop, context: None)
    loop.run_until_complete(begin(['a', 'b', 'c']))
    loop.close()
    # The next loop knows of nothing that the first one had queued.
    asyncio.run(end(['d']))
    assert batching.stats().queued == 0
