"""Attacks on checks and results: refused for months, not found for a moment, without a key, with a row missing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import Harness, echo, requests_of
from paced import LaneModel, PacedClock, clock, harness, lane_model
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import (
    BatchJob,
    BatchModelRequests,
    check_batch,
    collect_batch,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.exceptions import ResultIntegrityError
from pydantic_ai_batch.testing import FakeProviders, ManualClock

__all__ = ('clock', 'harness', 'lane_model')

ROWS = ['row 0', 'row 1', 'row 2']
ANSWERS = [f'answer to {row}' for row in ROWS]
HOUR = 3_600
MONTHS = 60 * 24 * HOUR

over_http = pytest.mark.parametrize(
    'harness', ['responses', 'chat', 'anthropic', 'google-inline', 'google-file'], indirect=True
)
of_google = pytest.mark.parametrize('harness', ['google-inline', 'google-file'], indirect=True)


def texts(outcomes: Any) -> list[Any]:
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


def batching_of(clock: ManualClock, rows: list[str] = ROWS) -> BatchModelRequests:
    return BatchModelRequests(max_requests=len(rows), max_wait=None, clock=clock)


def pending_agent(model: Model, batching: BatchModelRequests) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])


async def left_pending(
    clock: ManualClock, model: Model, batching: BatchModelRequests, rows: list[str] = ROWS
) -> list[list[ModelMessage]]:
    """The histories of runs that ended when their requests were in one batch."""
    runs = await clock.run(asyncio.gather(*[pending_agent(model, batching).run(row) for row in rows]))
    return [stored(run.all_messages()) for run in runs]


async def by_list(clock: ManualClock, model: Model, rows: list[str] = ROWS) -> list[Any]:
    return texts(await model_request_batch(model, requests_of(rows), clock=clock))


async def by_agents(clock: ManualClock, model: Model, rows: list[str] = ROWS) -> list[Any]:
    agent = Agent(model, capabilities=[batching_of(clock, rows)])
    outcomes = await asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else outcome.output for outcome in outcomes]


async def by_a_job_that_is_waited_for(clock: ManualClock, model: Model, rows: list[str] = ROWS) -> list[Any]:
    job = await submit_batch(model, requests_of(rows), clock=clock)
    job = await wait_batch(job, model, clock=clock)
    assert job.done
    return texts(await collect_batch(job, requests_of(rows), model, clock=clock))


async def by_a_job_that_is_collected(clock: ManualClock, model: Model, rows: list[str] = ROWS) -> list[Any]:
    job = await submit_batch(model, requests_of(rows), clock=clock)
    await clock.sleep(HOUR)
    return texts(await collect_batch(job, requests_of(rows), model, clock=clock))


Send = Callable[..., Coroutine[Any, Any, list[Any]]]
both_ways = pytest.mark.parametrize('send', [by_list, by_agents])
all_ways = pytest.mark.parametrize(
    'send', [by_list, by_agents, by_a_job_that_is_waited_for, by_a_job_that_is_collected]
)


# Results without keys


@of_google
@pytest.mark.parametrize('keyless', [1, 2])
async def test_histories_of_results_without_keys_that_are_resumed_one_by_one_pay_for_nothing_again(
    keyless: int, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('lines', 'damage', rows=keyless, how='null_id')
        model, batching = lane_model(fake), batching_of(clock)
        histories = await left_pending(clock, model, batching)
        await clock.advance(timedelta(hours=1))
        for _ in range(2):
            for place, history in enumerate(histories):
                resumed = clock.run(pending_agent(model, batching).run(message_history=history))
                if place < keyless:
                    with pytest.raises(ResultIntegrityError, match='do not say whose they are'):
                        await resumed
                else:
                    assert (await resumed).output == ANSWERS[place]
        assert fake.google.count('create') == 1
        assert Counter(row.text for row in fake.google.billed) == Counter(ROWS)


@of_google
@pytest.mark.parametrize('keyless', [1, 2])
@all_ways
async def test_every_row_that_may_be_that_of_a_result_without_a_key_fails_and_is_not_sent_again(
    keyless: int, send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.google.inject('lines', 'damage', rows=keyless, how='null_id')
        outcomes = await clock.run(send(clock, lane_model(fake)))
        assert [type(outcome) for outcome in outcomes[:keyless]] == [ResultIntegrityError] * keyless
        assert outcomes[keyless:] == ANSWERS[keyless:]
        assert fake.google.count('create') == 1


# Retry-After


def come_back_in(harness: Harness, fake: FakeProviders, seconds: float) -> None:
    headers = {'retry-after': str(int(seconds))}
    harness.fake(fake).inject('status', 'http', status=503, headers=headers)


@over_http
@all_ways
async def test_a_check_that_is_put_off_for_months_is_made_within_the_hour(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        come_back_in(harness, fake, MONTHS)
        assert await clock.run(send(clock, lane_model(fake))) == ANSWERS
        first, second = [call.at for call in harness.fake(fake).calls if call.operation == 'status'][:2]
        assert second - first == HOUR


async def test_a_history_that_says_months_is_checked_within_the_hour(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        model = lane_model(fake)
        [history] = await left_pending(clock, model, batching_of(clock, ['row 0']), ['row 0'])
        # Checked once, so that the wait for the next check goes by what the history says.
        checked = await clock.run(pending_agent(model, batching_of(clock)).run(message_history=history))
        history = stored(checked.all_messages())
        assert isinstance(history[-1], ModelResponse)
        assert history[-1].provider_details is not None
        history[-1].provider_details['batch']['pydantic_ai_batch']['retry_after'] = MONTHS
        started = clock.now()
        result = await clock.run(Agent(model, capabilities=[batching_of(clock)]).run(message_history=history))
        assert result.output == ANSWERS[0]
        assert clock.now() - started <= 2 * HOUR


async def test_a_job_that_says_months_is_checked_within_the_hour(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=1)) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests_of(ROWS), clock=clock))
        put_off = [replace(batch, retry_after=float(MONTHS)) for batch in job.batches]
        # A check that fails too, and says nothing of when to come back.
        harness.fake(fake).inject('status', 'http', status=404)
        job = BatchJob.from_json(replace(job, batches=tuple(put_off)).to_json())
        started = clock.now()
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert job.done
        assert clock.now() - started <= 2 * HOUR
        assert texts(await clock.run(collect_batch(job, requests_of(ROWS), model, clock=clock))) == ANSWERS


@over_http
async def test_a_run_that_resumes_comes_back_when_its_first_check_was_told_to(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=1)) as fake, Agent.using_sleep(clock.sleep):
        model = lane_model(fake)
        [history] = await left_pending(clock, model, batching_of(clock, ['row 0']), ['row 0'])
        await clock.advance(timedelta(minutes=10))
        come_back_in(harness, fake, 500)
        result = await clock.run(Agent(model, capabilities=[batching_of(clock)]).run(message_history=history))
        assert result.output == ANSWERS[0]
        first, second = [call.at for call in harness.fake(fake).calls if call.operation == 'status'][:2]
        assert second - first == 500


# Batches that cannot be found for a moment


@pytest.mark.parametrize('partial', [False, True])
async def test_a_batch_that_a_check_has_just_seen_is_looked_for_when_it_is_collected(
    partial: bool, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=2)) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests_of(ROWS), clock=clock))
        await clock.advance(timedelta(minutes=119))
        job = await clock.run(check_batch(job, model, clock=clock))
        assert not job.done
        await clock.advance(65)
        harness.fake(fake).inject('status', 'http', status=404, times=4)
        job = BatchJob.from_json(job.to_json())
        outcomes = await clock.run(collect_batch(job, requests_of(ROWS), model, partial=partial, clock=clock))
        assert texts(outcomes) == ANSWERS


# Results that are read again


@over_http
@both_ways
@pytest.mark.parametrize('after', [2, 3, 4, 5])
async def test_a_row_that_is_missing_and_checks_that_fail_do_not_add_up(
    after: int, send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server = harness.fake(fake)
        server.inject('lines', 'drop', rows=1)
        server.inject('status', 'http', status=503, after=after, times=2)
        # With one resubmission for the row that is missing, and none for what the checks come to.
        assert await clock.run(send(clock, lane_model(fake))) == ANSWERS
        assert server.count('create') == 2
        assert Counter(row.text for row in server.billed) == Counter([*ROWS, ROWS[0]])


@pytest.mark.parametrize('harness', ['responses', 'chat', 'anthropic'], indirect=True)
@both_ways
@pytest.mark.parametrize('count', [1, 2])
async def test_a_batch_of_which_no_line_has_an_id_is_sent_again(
    count: int, send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('lines', 'damage', rows=count, how='null_id')
        assert await clock.run(send(clock, lane_model(fake), ROWS[:count])) == ANSWERS[:count]
        assert harness.fake(fake).count('create') == 2
