"""Jobs and pending histories with a journal: the job's ID is enough, and answers come from the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cases.test_cases import COSTS, Case, answers, as_row, model_of, play
from lanes.harness import Harness, echo
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from pydantic_ai_batch import (
    BatchJob,
    BatchModelRequests,
    BatchRequest,
    cancel_batch,
    check_batch,
    collect_batch,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.exceptions import BatchNotCancellable, BatchNotReady
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import (
    ANSWERS,
    ROWS,
    LaneModel,
    by_agents,
    by_list,
    counts,
    ended,
    forgotten,
    outcome_of,
    query,
    requests_of,
)

# The cases, as their own tests play them.
__all__ = ('play',)

one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)


def texts(outcomes: Any) -> list[Any]:
    return [outcome_of(outcome) for outcome in outcomes]


async def test_the_id_of_a_job_is_enough_to_check_wait_for_and_collect_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), max_requests=4, journal=path, clock=clock))
    ended()
    checked = await clock.run(check_batch(job.id, model, journal=path, clock=clock))
    assert (checked.id, checked.done, checked.request_ids) == (job.id, False, job.request_ids)
    with pytest.raises(BatchNotReady) as raised:
        await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert raised.value.job.id == job.id
    ended()
    waited = await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
    assert waited.done
    ended()
    outcomes = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert texts(outcomes) == ANSWERS
    # What it says of itself is kept, so that nothing is asked about a batch that is over.
    ended()
    before = counts(harness, fake, 'status')
    assert await clock.run(check_batch(job.id, model, journal=path, clock=clock)) == waited
    assert counts(harness, fake, 'status') == before


async def test_what_was_collected_once_comes_from_the_disk(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
    first = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    ended()
    forgotten(harness, fake)
    calls = len(fake.calls)
    again = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert texts(again) == texts(first) == ANSWERS
    given = await clock.run(collect_batch(job, requests_of(ROWS), model, journal=path, clock=clock))
    assert texts(given) == ANSWERS
    assert len(fake.calls) == calls


async def test_a_job_can_be_cancelled_by_its_id_and_is_not_cancelled_again(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    ended()
    await clock.run(cancel_batch(job.id, model, journal=path, clock=clock))
    ended()
    cancelled = await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
    assert cancelled.status in ('canceled', 'ended')
    ended()
    with pytest.raises(BatchNotCancellable):
        await clock.run(cancel_batch(job.id, model, journal=path, clock=clock))
    assert counts(harness, fake, 'cancel') == [1]
    outcomes = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert any(isinstance(outcome, Exception) for outcome in outcomes)


LOOK_UP = ToolDefinition(
    name='look_up',
    description='Look a number up.',
    parameters_json_schema={'type': 'object', 'properties': {'number': {'type': 'integer'}}, 'required': ['number']},
)


async def test_parts_of_text_and_tool_calls_are_equal_with_the_id_alone_and_with_the_requests(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        return FakeToolCall('look_up', {'number': 7}) if request.text in ROWS[:3] else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        requests = [
            BatchRequest(
                custom_id=request.custom_id,
                messages=request.messages,
                model_request_parameters=ModelRequestParameters(function_tools=[LOOK_UP]),
            )
            for request in requests_of(ROWS)
        ]
        job = await clock.run(submit_batch(model, requests, journal=path, clock=clock))
        await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
        alone = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
        given = await clock.run(collect_batch(job.id, requests, model, journal=path, clock=clock))
        for ours, theirs in zip(alone, given, strict=True):
            assert isinstance(ours, ModelResponse)
            assert isinstance(theirs, ModelResponse)
            assert [_plain(part) for part in ours.parts] == [_plain(part) for part in theirs.parts]
            assert ours.usage == theirs.usage
        responses = [response for response in alone if isinstance(response, ModelResponse)]
        calls = [part for response in responses for part in response.parts if isinstance(part, ToolCallPart)]
        assert [(call.tool_name, call.args_as_dict()) for call in calls] == [('look_up', {'number': 7})] * 3


def _plain(part: Any) -> Any:
    # Where the provider gives a call no ID, the framework makes one up each time.
    made_up = isinstance(part, ToolCallPart) and part.tool_call_id.startswith('pyd_ai_')
    return (part.tool_name, part.args_as_dict()) if made_up else part


@one_lane
async def test_a_job_that_the_journal_does_not_have_is_said(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    for call in (check_batch, wait_batch, cancel_batch):
        # A path that was mistyped makes no file.
        with pytest.raises(UserError, match=f'There is no journal {path}'):
            await clock.run(call('unknown', model, journal=path, clock=clock))
    assert not path.exists()
    await clock.run(by_list(model, ROWS, path, clock))
    for call in (check_batch, wait_batch, cancel_batch):
        with pytest.raises(UserError, match='has no job'):
            await clock.run(call('unknown', model, journal=path, clock=clock))
        with pytest.raises(UserError, match='journal='):
            await clock.run(call('unknown', model, clock=clock))
    job = await clock.run(submit_batch(model, requests_of(ROWS), clock=clock))
    with pytest.raises(UserError, match='journal='):
        await clock.run(collect_batch(job, model=model, clock=clock))


async def test_a_job_takes_over_what_an_earlier_call_left_and_holds_no_other_rows(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    model = lane_model(fake)
    rows = [ROWS[4], 'new', ROWS[1]]
    job = await clock.run(submit_batch(model, requests_of(rows), journal=path, clock=clock))
    assert len(job.batches) == 2
    assert sorted(job.request_ids) == sorted(request.custom_id for request in requests_of(rows))
    assert BatchJob.from_json(job.to_json()) == job
    await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
    outcomes = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert texts(outcomes) == [ANSWERS[4], 'answer to new', ANSWERS[1]]
    assert counts(harness, fake, 'create') == [2]


async def test_results_of_a_job_that_was_collected_without_the_journal_are_still_taken_over(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    job = await clock.run(wait_batch(job, model, clock=clock))
    assert texts(await clock.run(collect_batch(job, requests_of(ROWS), model, clock=clock))) == ANSWERS
    ended()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


async def test_a_job_outlives_its_journals_process_and_its_requests_are_no_secret_of_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    [(stored,)] = query(path, 'SELECT job FROM jobs WHERE id = ?', job.id)
    assert BatchJob.from_json(stored) == job


# Pending histories


Pending = Agent[None, str | PendingModelResponse]


def pending_agent(model: Any, batching: BatchModelRequests) -> Pending:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])


async def histories(model: Any, path: Path, clock: ManualClock) -> list[bytes]:
    """The stored histories of runs that ended pending."""
    batching = BatchModelRequests(journal=path, max_requests=len(ROWS), max_wait=None, clock=clock)
    agent = pending_agent(model, batching)
    runs = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
    assert all(isinstance(run.output, PendingModelResponse) for run in runs)
    return [run.all_messages_json() for run in runs]


async def collected(model: Any, stored: list[bytes], journal: Path | None, clock: ManualClock) -> list[Any]:
    batching = BatchModelRequests(journal=journal, clock=clock)
    agent = pending_agent(model, batching)
    runs = [agent.run(message_history=ModelMessagesTypeAdapter.validate_json(history)) for history in stored]
    results = await clock.run(asyncio.gather(*runs, return_exceptions=True))
    return [result if isinstance(result, BaseException) else result.output for result in results]


async def test_a_history_can_be_collected_without_the_journal(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    stored = await histories(lane_model(fake), path, clock)
    ended()
    await clock.advance(timedelta(hours=1))
    assert await collected(lane_model(fake), stored, None, clock) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


async def test_a_history_is_collected_from_the_disk_long_after_the_provider_has_dropped_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    stored = await histories(lane_model(fake), path, clock)
    ended()
    await clock.advance(timedelta(hours=1))
    # Collecting the first one reads them all.
    assert await collected(lane_model(fake), stored[:1], path, clock) == ANSWERS[:1]
    ended()
    forgotten(harness, fake)
    await clock.advance(timedelta(days=60))
    calls = len(fake.calls)
    assert await collected(lane_model(fake), stored, path, clock) == ANSWERS
    ended()
    assert await collected(lane_model(fake), stored, path, clock) == ANSWERS
    assert len(fake.calls) == calls


async def test_a_history_under_another_credential_gets_nothing_from_the_disk(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    stored = await histories(lane_model(fake, 'one'), path, clock)
    ended()
    await clock.advance(timedelta(hours=1))
    assert await collected(lane_model(fake, 'one'), stored, path, clock) == ANSWERS
    ended()
    asked = counts(harness, fake, 'status')
    outcomes = await collected(lane_model(fake, 'two'), stored, path, clock)
    assert counts(harness, fake, 'status') > asked
    assert not set(map(str, outcomes)) & set(ANSWERS)


async def test_runs_that_ended_pending_are_taken_over_by_runs_that_wait(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    stored = await histories(lane_model(fake), path, clock)
    ended()
    assert await clock.run(by_agents(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert await collected(lane_model(fake), stored, path, clock) == ANSWERS


async def test_a_program_that_ends_pending_and_is_started_again_pays_once(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for _ in range(3):
        await histories(lane_model(fake), path, clock)
        ended()
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


# Cases

OPENAI = pytest.mark.parametrize('model', ['responses', 'chat'])
Play = Callable[[str, str], Case]


@pytest.mark.parametrize(
    ('name', 'model'),
    [
        ('h16-create-answer-lost', 'responses'),
        ('h16-create-answer-lost', 'chat'),
        ('h11-expired-with-paid-results', 'responses'),
        ('h11-expired-with-paid-results', 'chat'),
        ('h25-cost-cached-and-collected-twice', 'responses'),
    ],
)
async def test_cases_come_to_what_they_expect_with_a_journal(name: str, model: str, play: Play, path: Path):
    case = play(name, model)
    outcomes = await answers(case, model, journal=path)
    ids = [row['id'] for row in case.rows()]
    case.check(*[as_row(id, outcome) for id, outcome in zip(ids, outcomes, strict=True)])


async def test_a_list_that_is_started_three_times_costs_the_same_each_time(play: Play, path: Path):
    case = play('h25-cost-cached-and-collected-twice', 'responses')
    clock = ManualClock()
    requests = [
        BatchRequest(custom_id=row['id'], messages=request.messages)
        for row, request in zip(case.rows(), requests_of([row['input'] for row in case.rows()]), strict=True)
    ]
    outcomes: list[Any] = []
    async with model_of(case, 'responses') as model:
        for _ in range(3):
            outcomes = await clock.run(model_request_batch(model, requests, journal=path, clock=clock))
            responses = [outcome for outcome in outcomes if isinstance(outcome, ModelResponse)]
            assert [response.cost().total_price for response in responses] == COSTS
            ended()
    case.check(*[as_row(row['id'], outcome) for row, outcome in zip(case.rows(), outcomes, strict=True)])
