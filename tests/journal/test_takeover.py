"""What an earlier process left is taken over by the next one that makes the same requests, and paid for once."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from behaviours.scenes import Make
from ctrl_c import interrupted
from lanes.harness import Harness, echo
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, ModelRequestTimeout
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, Journal
from pydantic_ai_batch.events import BatchEvent, Tally
from pydantic_ai_batch.exceptions import JournalMiss, batch_of
from pydantic_ai_batch.journal.digests import fingerprint
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import (
    ANSWERS,
    ROWS,
    WAYS,
    LaneModel,
    Way,
    Wire,
    billed,
    by_agents,
    by_job,
    by_list,
    counts,
    each_way,
    ended,
    forgotten,
    given_up,
    killed,
    killed_at,
    killed_when,
    killed_while_waiting,
    query,
    runs_of,
    sent,
    settled,
    stepped_until,
    until_waiting,
)

lists_and_agents = pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)

# In flight, and answered


@each_way
async def test_rows_in_flight_are_taken_over_after_a_kill(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


@each_way
async def test_answers_that_were_read_come_from_the_disk_long_after_the_provider_has_dropped_them(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    ended()
    forgotten(harness, fake)
    await clock.advance(60 * 86_400)
    calls = len(fake.calls)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert len(fake.calls) == calls


@pytest.mark.parametrize(('first', 'second'), [('list', 'agents'), ('agents', 'job'), ('job', 'list')])
async def test_it_does_not_matter_how_a_request_was_made_and_is_made_again(
    first: str,
    second: str,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
):
    await killed_while_waiting(WAYS[first](lane_model(fake), ROWS, path, clock), clock)
    assert await clock.run(WAYS[second](lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


@each_way
async def test_only_what_is_new_is_sent(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS[:4], path, clock), clock)
    options = {'max_requests': 2} if way is by_agents else {}
    assert await clock.run(way(lane_model(fake), ROWS, path, clock, **options)) == ANSWERS
    assert counts(harness, fake, 'create') == [2]
    assert billed(harness, fake) == ROWS


@lists_and_agents
async def test_rows_of_one_batch_can_be_taken_over_by_two_calls(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    model = lane_model(fake)
    both = asyncio.gather(way(model, ROWS[:3], path, clock), way(model, ROWS[3:], path, clock))
    assert await clock.run(both) == [ANSWERS[:3], ANSWERS[3:]]
    assert counts(harness, fake, 'create') == [1]


async def test_agents_with_tools_take_over_both_of_their_turns(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return echo(request) if request.tool_results else FakeToolCall('look_up', {'number': 7})

    def look_up(number: int) -> str:
        """Look a number up."""
        return f'number {number}'

    with FakeProviders(answer, clock=clock) as fake:

        async def start() -> list[str]:
            batching = BatchModelRequests(journal=path, max_requests=len(ROWS), max_wait=None, clock=clock)
            agent = Agent(lane_model(fake), tools=[look_up], capabilities=[batching])
            results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
            return [result.output for result in results]

        first = await start()
        ended()
        forgotten(harness, fake)
        calls = len(fake.calls)
        assert await start() == first
        assert len(fake.calls) == calls
        assert counts(harness, fake, 'create') == [2]


# Claims


@each_way
async def test_equal_requests_of_one_process_are_two_requests_with_two_answers(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    number = itertools.count()
    with FakeProviders(lambda request: f'answer {next(number)}', clock=clock) as fake:
        first = await clock.run(way(lane_model(fake), ['same', 'same'], path, clock))
        assert sorted(first) == ['answer 0', 'answer 1']
        ended()
        assert sorted(await clock.run(way(lane_model(fake), ['same', 'same'], path, clock))) == sorted(first)
        assert counts(harness, fake, 'create') == [1]
        # Both are claimed by this process, so that the same request made once more is a third one.
        assert await clock.run(way(lane_model(fake), ['same'], path, clock)) == ['answer 2']
        assert counts(harness, fake, 'create') == [2]


@each_way
async def test_a_call_that_is_made_again_in_the_same_process_is_another_call(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for creates in (1, 2):
        assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
        assert counts(harness, fake, 'create') == [creates]


@each_way
async def test_each_later_process_may_claim_everything_again(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for end in (ended, killed, ended, killed):
        assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
        end()
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == ROWS


@each_way
async def test_a_request_that_failed_for_good_is_sent_anew_by_the_next_process(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeError:
        failing = request.text == ROWS[2] and not request.attempt
        return FakeError(400, 'bad', 'No.') if failing else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        first = await clock.run(way(lane_model(fake), ROWS, path, clock))
        assert isinstance(first[2], ModelHTTPError)
        assert first[:2] + first[3:] == ANSWERS[:2] + ANSWERS[3:]
        ended()
        options = {'max_requests': 1} if way is by_agents else {}
        assert await clock.run(way(lane_model(fake), ROWS, path, clock, **options)) == ANSWERS
        assert counts(harness, fake, 'create') == [2]
        ended()
        assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
        assert counts(harness, fake, 'create') == [2]
        assert billed(harness, fake) == ROWS


# Resubmissions, failed checks and the time of the next one


def always_down(request: FakeRequest) -> str | FakeError:
    return FakeError(500, 'server_error', 'Down.') if request.text == ROWS[0] else echo(request)


@lists_and_agents
async def test_resubmissions_are_counted_across_starts(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(always_down, clock=clock) as fake:
        options = {'max_resubmissions': 1}
        await killed_when(
            lambda: harness.fake(fake).count('create') == 2,
            way(lane_model(fake), ROWS, path, clock, **options),
            clock,
        )
        first, *others = await clock.run(way(lane_model(fake), ROWS, path, clock, **options))
        assert others == ANSWERS[1:]
        assert isinstance(first, ModelHTTPError)
        assert counts(harness, fake, 'create') == [2]


@lists_and_agents
async def test_a_resubmission_that_was_about_to_be_sent_is_sent_once_and_counted(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path, wire: Wire
):
    with FakeProviders(always_down, clock=clock) as fake:
        options = {'max_resubmissions': 1}
        reached, never = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            if query(path, "SELECT count(*) FROM batches WHERE state = 'intended'") == [(1,)] and query(
                path, 'SELECT count(*) FROM requests WHERE resubmissions = 1'
            ) == [(1,)]:
                reached.set()
                await never.wait()

        wire.before_any(hold)
        await killed_at(reached, way(lane_model(fake), ROWS, path, clock, **options), clock)
        wire.clear()
        first, *others = await clock.run(way(lane_model(fake), ROWS, path, clock, **options))
        assert others == ANSWERS[1:]
        assert isinstance(first, ModelHTTPError)
        assert counts(harness, fake, 'create') == [2]


HOUR = timedelta(hours=1)


@pytest.mark.parametrize('end', ['kill', 'Ctrl-C'])
async def test_a_request_that_waits_to_be_sent_again_keeps_its_count(
    end: str, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(always_down, clock=clock) as fake:
        options = {'max_resubmissions': 1, 'max_wait': HOUR}
        task = asyncio.ensure_future(by_agents(lane_model(fake), ROWS, path, clock, **options))
        waiting = 'SELECT count(*) FROM requests WHERE resubmissions = 1 AND tag IS NULL'
        await stepped_until(lambda: query(path, waiting) == [(1,)], task, clock)
        if end == 'kill':
            killed()
        await given_up(task)
        ended()
        first, *others = await clock.run(by_agents(lane_model(fake), ROWS, path, clock, **options))
        assert others == ANSWERS[1:]
        assert isinstance(first, ModelHTTPError)
        # The first one, and the one time that it may be sent again.
        assert counts(harness, fake, 'create') == [2]


@lists_and_agents
async def test_rows_that_expired_are_sent_again_once_across_starts(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    # Of a batch that expired, Google returns nothing.
    done = 0 if harness.provider == 'google' else 2
    harness.fake(fake).inject('batch', 'expire', done=done, seconds=600)
    await killed_when(
        lambda: harness.fake(fake).count('create') >= 2,
        way(lane_model(fake), ROWS, path, clock),
        clock,
        step=20,
    )
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    # How many batches the rows of agents are sent again in is the manual clock's affair.
    assert way is by_agents or counts(harness, fake, 'create') == [2]
    assert billed(harness, fake) == ROWS


@lists_and_agents
async def test_failed_checks_are_counted_across_starts(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    harness.fake(fake).inject('status', 'http', status=500, times=None)
    await killed_when(lambda: harness.fake(fake).count('status') == 2, way(lane_model(fake), ROWS, path, clock), clock)
    outcomes = await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert all(isinstance(outcome, ModelHTTPError) for outcome in outcomes)
    # The one after three that failed is believed, whichever process made them.
    assert counts(harness, fake, 'status', 'cancel') == [4, 0]


@lists_and_agents
async def test_the_next_check_comes_when_the_earlier_process_would_have_made_it(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path, tmp_path: Path
):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=20)) as fake:

        def checks_since(start: float, before: int) -> list[float]:
            calls = [call for call in harness.fake(fake).calls if call.operation == 'status']
            return [call.at - start for call in calls[before:]]

        start = clock.now()
        await clock.run(way(lane_model(fake), ROWS, tmp_path / 'other.db', clock))
        undisturbed = checks_since(start, 0)
        ended()
        start, before = clock.now(), harness.fake(fake).count('status')
        await killed_when(
            lambda: harness.fake(fake).count('status') - before == 3,
            way(lane_model(fake), ROWS, path, clock),
            clock,
            step=1,
        )
        await clock.run(way(lane_model(fake), ROWS, path, clock))
        # A check is due at a time, and the clock is moved by a second.
        assert checks_since(start, before) == pytest.approx(undisturbed, abs=2)


# What is the same request


def test_ids_that_the_framework_makes_up_do_not_count_and_which_are_the_same_does():
    one, two, three = (f'pyd_ai_{letter * 32}' for letter in 'abc')
    group = '{"credential":"k","endpoint":"e"}'

    def digest(*ids: str) -> bytes:
        return fingerprint('openai', group, ' '.join(ids).encode(), 0).digest

    assert digest(one, two, one) == digest(two, three, two)
    assert digest(one, two, one) != digest(one, one, two)
    # What only looks like one counts.
    assert digest('pyd_ai_short') != digest('pyd_ai_other')
    assert digest('call_' + 'a' * 32) != digest('call_' + 'b' * 32)


@each_way
async def test_another_key_of_the_same_project_makes_the_same_requests(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    harness.fake(fake).projects.update({'old': 'project', 'new': 'project'})
    await killed_while_waiting(way(lane_model(fake, 'old'), ROWS, path, clock), clock)
    assert await clock.run(way(lane_model(fake, 'new'), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


KINDS = {'responses': 'gpt-5', 'chat': 'gpt-5', 'anthropic': 'claude-sonnet-4-5', 'google': 'gemini-2.5-pro'}


@pytest.mark.parametrize('kind', KINDS)
async def test_another_model_makes_other_requests(
    kind: str, make: Make, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(make(kind, fake), ROWS, path, clock))
    ended()
    assert await clock.run(by_list(make(kind, fake, KINDS[kind]), ROWS, path, clock)) == ANSWERS
    assert sum(call.operation == 'create' for call in fake.calls) == 2


async def test_another_endpoint_of_the_same_provider_makes_other_requests(
    make: Make, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(make('responses', fake), ROWS, path, clock))
    ended()
    assert await clock.run(by_list(make('chat', fake), ROWS, path, clock)) == ANSWERS
    assert fake.openai.count('create') == 2


@pytest.mark.parametrize('kind', KINDS)
async def test_the_same_model_at_another_address_makes_other_requests(
    kind: str, make: Make, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(make(kind, fake), ROWS, path, clock))
    ended()
    with FakeProviders(echo, clock=clock) as other:
        assert await clock.run(by_list(make(kind, other), ROWS, path, clock)) == ANSWERS
        assert sum(call.operation == 'create' for call in other.calls) == 1


async def test_other_beta_flags_make_other_requests(make: Make, fake: FakeProviders, clock: ManualClock, path: Path):
    flags: Any = {'anthropic_betas': ['context-1m-2025-08-07']}
    for settings, creates in ((None, 1), (flags, 2), (None, 2), (flags, 2)):
        assert await clock.run(by_list(make('anthropic', fake, settings=settings), ROWS, path, clock)) == ANSWERS
        assert fake.anthropic.count('create') == creates
        ended()


@pytest.mark.parametrize('kind', KINDS)
async def test_other_settings_make_other_requests(
    kind: str, make: Make, fake: FakeProviders, clock: ManualClock, path: Path
):
    for tokens, creates in ((100, 1), (200, 2), (100, 2)):
        settings = ModelSettings(max_tokens=tokens)
        assert await clock.run(by_list(make(kind, fake, settings=settings), ROWS, path, clock)) == ANSWERS
        assert sum(call.operation == 'create' for call in fake.calls) == creates
        ended()


# A miss

OTHERS = [f'{row}, as of today' for row in ROWS]
OTHER_ANSWERS = [f'answer to {row}' for row in OTHERS]


def misses(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return [text for text in texts if 'nothing has matched' in text]


@each_way
async def test_requests_that_changed_since_the_last_run_are_warned_of_with_how_many_they_are(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert misses(caplog) == []
    ended()
    assert await clock.run(way(lane_model(fake), [*ROWS[:2], *OTHERS[:4]], path, clock, max_requests=4)) == [
        *ANSWERS[:2],
        *OTHER_ANSWERS[:4],
    ]
    [warning] = misses(caplog)
    assert re.match('4 (new )?requests', warning)
    assert 'has 4 of an earlier run' in warning
    assert 'strict=True' in warning
    assert counts(harness, fake, 'create') == [2]


@each_way
async def test_a_strict_journal_refuses_them_before_anything_is_sent(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
):
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    ended()
    calls = len(fake.calls)
    strict = Journal(path, strict=True)
    if way is by_agents:
        outcomes = await clock.run(way(lane_model(fake), OTHERS, strict, clock))
        assert [type(outcome) for outcome in outcomes] == [JournalMiss] * 6
    else:
        with pytest.raises(JournalMiss, match='Nothing was sent'):
            await clock.run(way(lane_model(fake), OTHERS, strict, clock))
    assert len(fake.calls) == calls
    # What was refused leaves nothing behind.
    assert await clock.run(way(lane_model(fake), ROWS, strict, clock)) == ANSWERS
    assert len(fake.calls) == calls
    assert query(path, 'SELECT count(*) FROM requests') == [(6,)]


@each_way
async def test_requests_that_are_added_to_those_of_the_last_run_are_no_miss(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    ended()
    # Though the new one comes first.
    rows, journal = [*OTHERS[:1], *ROWS], Journal(path, strict=True)
    options = {'max_wait': timedelta(minutes=1)} if way is by_agents else {}
    assert await clock.run(way(lane_model(fake), rows, journal, clock, **options)) == [*OTHER_ANSWERS[:1], *ANSWERS]
    assert misses(caplog) == []
    assert billed(harness, fake) == sorted([*ROWS, *OTHERS[:1]])


@pytest.mark.parametrize('way', [by_list, by_job], ids=['list', 'job'])
async def test_a_list_is_matched_as_a_whole_before_anything_counts_as_a_miss(
    way: Way, lane_model: LaneModel, harness: Harness, fake: FakeProviders, clock: ManualClock, path: Path
):
    rows = [f'row {n}' for n in range(300)]
    await clock.run(way(lane_model(fake), rows, path, clock))
    ended()
    outcomes = await clock.run(way(lane_model(fake), ['new', *rows], Journal(path, strict=True), clock))
    assert outcomes == [f'answer to {row}' for row in ['new', *rows]]
    assert len(billed(harness, fake)) == 301


async def test_what_comes_in_a_second_turn_is_no_miss_before_it_is_its_turn(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path, caplog: pytest.LogCaptureFixture
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return echo(request) if request.tool_results else FakeToolCall('look_up', {'number': 7})

    def look_up(number: int) -> str:
        """Look a number up."""
        return f'number {number}'

    with FakeProviders(answer, clock=clock) as fake:

        async def start(rows: list[str], max_requests: int) -> None:
            batching = BatchModelRequests(
                journal=Journal(path, strict=True), max_requests=max_requests, max_wait=None, clock=clock
            )
            agent = Agent(lane_model(fake), tools=[look_up], capabilities=[batching])
            await clock.run(asyncio.gather(*[agent.run(row) for row in rows]))

        await start(ROWS, 6)
        ended()
        await start([*ROWS, 'new'], 1)
        assert misses(caplog) == []
        assert counts(harness, fake, 'create') == [4]


# Ctrl-C, cancellations and time-outs


@lists_and_agents
async def test_a_call_that_is_cancelled_leaves_its_batch_to_the_next_start(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await given_up(await until_waiting(way(lane_model(fake), ROWS, path, clock), clock))
    assert counts(harness, fake, 'cancel') == [0]
    assert 'is cancelled' not in caplog.text
    ended()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


@lists_and_agents
async def test_what_a_cancelled_call_released_can_be_taken_over_in_the_same_process(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for _ in range(2):
        await given_up(await until_waiting(way(lane_model(fake), ROWS, path, clock), clock))
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


async def test_a_run_that_is_cancelled_in_its_second_turn_is_made_again_without_paying_for_the_first(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return echo(request) if request.tool_results else FakeToolCall('look_up', {'number': 7})

    slow, called = True, asyncio.Semaphore(0)

    async def look_up(number: int) -> str:
        """Look a number up."""
        called.release()
        if slow:
            await asyncio.Event().wait()
        return f'number {number}'

    async def both_called() -> None:
        for _ in range(2):
            await called.acquire()

    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(journal=path, max_requests=2, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), tools=[look_up], capabilities=[batching])

        async def asked(row: str) -> str:
            return (await agent.run(row)).output

        # Once in the tools that the first answers call, and once in the second turn.
        runs = asyncio.gather(*map(asked, ROWS[:2]))
        await clock.run(both_called())
        await given_up(runs)
        slow = False
        task = await until_waiting(asyncio.gather(*map(asked, ROWS[:2])), clock)
        await given_up(task)
        outputs = await clock.run(asyncio.gather(*map(asked, ROWS[:2])))
        assert outputs == ANSWERS[:2]
        assert counts(harness, fake, 'create', 'cancel') == [2, 0]
        # One that came to its end is made again as another one.
        await clock.run(asyncio.gather(*map(asked, ROWS[:2])))
        assert counts(harness, fake, 'create') == [4]


async def test_an_agent_inside_a_tool_of_a_run_that_is_cancelled_is_not_paid_for_again_either(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        asks = request.text == 'row 0' and not request.tool_results
        return FakeToolCall('ask', {'what': 'this'}) if asks else echo(request)

    slow, answers, answered = True, list[str](), asyncio.Event()
    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
        inner = Agent(lane_model(fake), capabilities=[batching])

        async def ask(what: str) -> str:
            """Ask somebody."""
            answers.append((await inner.run(what)).output)
            answered.set()
            if slow:
                await asyncio.Event().wait()
            return answers[-1]

        outer = Agent(lane_model(fake), tools=[ask], capabilities=[batching])
        run = asyncio.ensure_future(outer.run('row 0'))
        await clock.run(answered.wait())
        await given_up(run)
        slow = False
        assert (await clock.run(outer.run('row 0'))).output == 'answer to row 0'
        assert answers == ['answer to this'] * 2
        assert counts(harness, fake, 'create') == [3]


@lists_and_agents
async def test_equal_requests_that_were_released_are_taken_over_as_two(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    rows = ['same', 'same', 'same']
    await given_up(await until_waiting(way(lane_model(fake), rows, path, clock), clock))
    assert await clock.run(way(lane_model(fake), rows, path, clock)) == ['answer to same'] * 3
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == rows


@lists_and_agents
async def test_a_call_that_took_requests_over_releases_them_too(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    await given_up(await until_waiting(way(lane_model(fake), ROWS, path, clock), clock))
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


@lists_and_agents
async def test_on_cancel_cancels_the_batch_if_that_is_asked_for(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    journal = Journal(path, on_cancel='cancel')
    task = await until_waiting(way(lane_model(fake), ROWS, journal, clock), clock)
    await clock.run(given_up(task))
    assert counts(harness, fake, 'create', 'cancel') == [1, 1]
    ended()
    # The next start reads what was finished by then, and makes the rest again.
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    # Agents' requests come back one by one, and the clock that jumps may not wait for all of them.
    assert counts(harness, fake, 'cancel') == [1]
    assert way is by_agents or counts(harness, fake, 'create') == [2]
    assert billed(harness, fake) == ROWS


@lists_and_agents
@one_lane
async def test_a_call_that_is_cancelled_at_any_moment_releases_its_requests(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    model = lane_model(fake)
    options = {'max_wait': timedelta(minutes=1)} if way is by_agents else {}
    for turns in range(1, 60):
        task = asyncio.ensure_future(way(model, ROWS, path, clock, **options))
        for _ in range(turns):
            await asyncio.sleep(0)
        await given_up(task)
    await settled()
    assert await clock.run(way(model, ROWS, path, clock, **options)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


@lists_and_agents
async def test_a_batch_that_an_earlier_process_made_is_not_cancelled_by_one_that_takes_a_part_of_it_over(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    journal = Journal(path, on_cancel='cancel')
    task = await until_waiting(way(lane_model(fake), ROWS[:1], journal, clock), clock)
    await clock.run(given_up(task))
    assert await clock.run(way(lane_model(fake), ROWS, journal, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


async def test_a_run_that_times_out_releases_its_request_and_cancels_nothing(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    hurry: Callable[[float], None],
):
    batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
    agent = Agent(lane_model(fake), capabilities=[batching], model_settings=ModelSettings(request_timeout=60))
    run = await until_waiting(agent.run('row 0'), clock)
    hurry(60)
    with pytest.raises(ModelRequestTimeout):
        await run
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    again = await clock.run(Agent(lane_model(fake), capabilities=[batching]).run('row 0'))
    assert again.output == 'answer to row 0'
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


async def test_a_submission_that_is_cancelled_leaves_its_batch_to_the_next_start(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    reached, opened = wire.gate('after', 'POST', harness)
    task = asyncio.ensure_future(by_job(lane_model(fake), ROWS, path, clock))
    await reached.wait()
    task.cancel()
    opened.set()
    await asyncio.gather(task, return_exceptions=True)
    wire.clear()
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    ended()
    assert await clock.run(by_job(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


async def test_agents_that_are_cancelled_while_their_batch_is_created_leave_it_to_the_next_start(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    reached, opened = wire.gate('after', 'POST', harness)
    task = asyncio.ensure_future(by_agents(lane_model(fake), ROWS, path, clock))
    await reached.wait()
    await given_up(task)
    opened.set()
    wire.clear()
    assert await clock.run(by_agents(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


async def test_the_end_of_an_async_with_block_leaves_what_is_in_flight_to_the_next_start(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    batching = BatchModelRequests(journal=path, max_requests=6, max_wait=None, clock=clock)
    async with batching:
        task = await until_waiting(runs_of(lane_model(fake), ROWS, batching), clock)
    await given_up(task)
    assert await clock.run(by_agents(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


SCRIPT = """
    import asyncio
    import sys
    from datetime import timedelta
    from pydantic_ai import Agent, ModelRequest
    from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch_sync

    def told(event):
        if event.kind == 'submitted':
            print('submitted', flush=True)

    way, path, seconds = sys.argv[1:]
    often = {'poll_interval': timedelta(seconds=float(seconds)), 'max_poll_interval': timedelta(seconds=60)}
    name = 'openai-responses:gpt-5-mini'
    if way == 'list':
        rows = [BatchRequest(custom_id='0', messages=[ModelRequest.user_text_prompt('row 0')])]
        [answer] = model_request_batch_sync(name, rows, journal=path, progress=told, **often)
        print(answer.text, file=sys.stderr)
    else:
        batching = BatchModelRequests(journal=path, max_requests=1, progress=told, **often)
        print(Agent(name, capabilities=[batching]).run_sync('row 0').output, file=sys.stderr)
"""


@pytest.mark.parametrize('way', ['list', 'agents'])
def test_ctrl_c_in_a_program_leaves_its_batch_to_the_next_start(way: str, path: Path):
    with FakeProviders(echo, processing=timedelta(seconds=0.5)) as fake:
        errors = interrupted(SCRIPT, way, str(path), '30', environment=fake.openai.environment)
        assert 'KeyboardInterrupt' in errors
        assert 'row 0' not in errors
        again = subprocess.run(
            [sys.executable, '-c', textwrap.dedent(SCRIPT), way, str(path), '0.1'],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **fake.openai.environment},
        )
        assert 'answer to row 0' in again.stderr
        assert [fake.openai.count(operation) for operation in ('create', 'cancel')] == [1, 0]


# Counts


@lists_and_agents
async def test_the_counts_of_progress_add_up_with_rows_that_are_taken_over(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS[:4], path, clock), clock)
    tally, events = Tally(), list[BatchEvent]()

    def listen(event: BatchEvent) -> None:
        tally(event)
        events.append(event)
        assert tally.queued >= 0

    options = {'max_requests': 2} if way is by_agents else {}
    await clock.run(way(lane_model(fake), ROWS, path, clock, progress=listen, **options))
    assert (tally.queued, tally.submitted, tally.answered, tally.failed, tally.left) == (0, 6, 6, 0, 0)
    assert sorted((batch.submitted, batch.back) for batch in tally.batches.values()) == [(2, 2), (4, 4)]
    assert tally.unpriced == 0
    ended()
    tally, count = Tally(), len(fake.calls)
    await clock.run(way(lane_model(fake), ROWS, path, clock, progress=listen))
    assert (tally.queued, tally.submitted, tally.answered, tally.failed, tally.left) == (0, 6, 6, 0, 0)
    assert len(fake.calls) == count


async def test_stats_show_what_was_taken_over_and_add_up(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(by_agents(lane_model(fake), ROWS, path, clock), clock)
    batching = BatchModelRequests(journal=path, max_requests=6, max_wait=None, clock=clock)
    assert batching.stats().journal_bytes == Journal(path).size > 0
    task = await until_waiting(runs_of(lane_model(fake), ROWS, batching), clock)
    await clock.advance(0)
    stats = batching.stats()
    [batch] = stats.batches
    assert (stats.queued, batch.requests, batch.waiting, batch.lane) == (0, 6, 6, harness.lane)
    assert await clock.run(task) == ANSWERS
    stats = batching.stats()
    assert (stats.queued, stats.answered, stats.failed, stats.left, stats.batches) == (0, 6, 0, 0, ())
    assert stats.cost > 0
    assert BatchModelRequests(clock=clock).stats().journal_bytes is None


@lists_and_agents
async def test_an_error_of_a_row_that_was_taken_over_names_its_batch(
    way: Way, harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'bad', 'No.') if request.text == ROWS[0] else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
        first, *others = await clock.run(way(lane_model(fake), ROWS, path, clock))
        assert others == ANSWERS[1:]
        [batch] = harness.fake(fake).batches
        found = batch_of(first)
        assert found is not None
        assert found.id == batch


# Wherever it runs


@one_lane
async def test_nothing_of_it_is_done_on_the_event_loop(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    import threading

    from pydantic_ai_batch.journal import store as stores

    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    [store] = stores._stores.values()
    ident = await store.do(lambda connection: threading.get_ident())
    assert ident != threading.get_ident()


@one_lane
async def test_without_a_journal_nothing_is_taken_over(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, tmp_path: Path
):
    for creates in (1, 2):
        assert await clock.run(by_list(lane_model(fake), ROWS, None, clock)) == ANSWERS
        assert counts(harness, fake, 'create') == [creates]
        ended()
    assert list(tmp_path.iterdir()) == []
    assert len(sent(fake.calls)) == 4
