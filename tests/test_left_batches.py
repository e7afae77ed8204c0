"""What an error says of a batch that goes on, how its answers are collected, and what is told in the log meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest
from lanes.harness import Harness, close, echo, requests_of
from paced import LaneModel, PacedClock, clock, harness, lane_model
from pydantic_ai import Agent, capture_run_messages
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import (
    BatchJob,
    BatchModelRequests,
    check_batch,
    collect_batch,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.exceptions import batch_of, job_of, pending_of
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

__all__ = ('clock', 'harness', 'lane_model')

ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]
SECRET = 'what the provider quotes'

over_http = pytest.mark.parametrize(
    'harness', ['responses', 'chat', 'anthropic', 'google-inline', 'google-file'], indirect=True
)
with_queues = pytest.mark.parametrize('harness', ['responses', 'chat', 'google-inline', 'google-file'], indirect=True)
"""The lanes whose batches can fail as a whole."""

of_openai = pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)


def texts(outcomes: Any) -> list[Any]:
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def notes(error: BaseException) -> str:
    return '\n'.join(getattr(error, '__notes__', ()))


async def by_list(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    return texts(await model_request_batch(model, requests_of(rows), clock=clock, **settings))


async def by_agents(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    batching = BatchModelRequests(max_requests=len(rows), max_wait=timedelta(minutes=1), clock=clock, **settings)
    agent = Agent(model, capabilities=[batching])
    outcomes = await asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else outcome.output for outcome in outcomes]


async def by_job(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    job = await submit_batch(model, requests_of(rows), clock=clock)
    await wait_batch(job, model, clock=clock)
    return texts(await collect_batch(job, requests_of(rows), model, clock=clock))


Send = Callable[..., Coroutine[Any, Any, list[Any]]]
both_ways = pytest.mark.parametrize('send', [by_list, by_agents])
all_ways = pytest.mark.parametrize('send', [by_list, by_agents, by_job])


# What goes on is collected


async def test_a_run_whose_check_failed_for_good_says_how_its_answer_is_collected(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server, model = harness.fake(fake), lane_model(fake)
        server.inject('status', 'http', status=401)
        batching = BatchModelRequests(max_requests=1, clock=clock)
        agent = Agent(model, capabilities=[batching])
        with capture_run_messages() as messages, pytest.raises(ModelHTTPError) as raised:
            await clock.run(agent.run('row 0'))
        (batch_id,) = server.batches
        assert batch_id in notes(raised.value)
        assert 'message_history=[*messages, pending_of(error)]' in notes(raised.value)
        pending = pending_of(raised.value)
        assert pending is not None
        with Agent.using_sleep(clock.sleep):
            # By another instance, as in another process.
            again = Agent(model, capabilities=[BatchModelRequests(max_requests=1, clock=clock)])
            result = await clock.run(again.run(message_history=[*messages, pending]))
        assert result.output == 'answer to row 0'
        assert (server.count('create'), server.count('cancel')) == (1, 0)
        assert [row.text for row in server.billed] == ['row 0']
        assert batching.stats().failed == 1


async def test_a_run_that_resumes_and_whose_check_fails_says_so_too(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        server, model = harness.fake(fake), lane_model(fake)
        agent = Agent(model, capabilities=[BatchModelRequests(max_requests=1, clock=clock)])
        server.inject('status', 'http', status=401, times=2)
        with capture_run_messages() as messages, pytest.raises(ModelHTTPError) as raised:
            await clock.run(agent.run('row 0'))
        pending = pending_of(raised.value)
        assert pending is not None
        history = [*messages, pending]
        with pytest.raises(ModelHTTPError) as raised:
            await clock.run(agent.run(message_history=history))
        pending = pending_of(raised.value)
        assert pending is not None
        result = await clock.run(agent.run(message_history=[*messages, pending]))
        assert result.output == 'answer to row 0'
        assert server.count('create') == 1


async def test_rows_of_a_batch_that_could_not_be_checked_carry_the_job_that_collects_them(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server, model = harness.fake(fake), lane_model(fake)
        server.inject('status', 'http', status=401)
        outcomes = await clock.run(model_request_batch(model, requests_of(ROWS), max_requests=3, clock=clock))
        errors = {row: error for row, error in zip(ROWS, outcomes, strict=True) if isinstance(error, ModelAPIError)}
        # Which of the two batches was checked first is the network's affair.
        assert list(errors) in (ROWS[:3], ROWS[3:])
        for error in errors.values():
            handle = batch_of(error)
            assert handle is not None
            assert handle.id in notes(error)
            assert 'job_of(error)' in notes(error)
            job = job_of(error)
            assert job is not None
            assert list(job.request_ids) == list(errors)
            job = BatchJob.from_json(job.to_json())
            job = await clock.run(wait_batch(job, model, clock=clock))
            collected = await clock.run(collect_batch(job, requests_of(errors), model, clock=clock))
            assert texts(collected) == [f'answer to {row}' for row in errors]
        assert (server.count('create'), server.count('cancel')) == (2, 0)


async def test_an_error_of_nothing_that_goes_on_has_nothing_to_collect(clock: PacedClock):
    error = ModelAPIError('m', 'wrong')
    assert pending_of(error) is None
    assert job_of(error) is None


# What an error names


def refuses_the_first(request: FakeRequest) -> str | FakeError:
    return FakeError(400, None, 'No.') if request.text == ROWS[0] else echo(request)


@all_ways
async def test_the_error_of_a_row_names_its_batch(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(refuses_the_first, clock=clock) as fake:
        outcomes = await clock.run(send(clock, lane_model(fake), max_resubmissions=0))
        (batch_id,) = harness.fake(fake).batches
        assert isinstance(outcomes[0], ModelAPIError)
        assert batch_id in str(outcomes[0]) + notes(outcomes[0])
        assert outcomes[1:] == ANSWERS[1:]
        # Nothing of it goes on.
        assert pending_of(outcomes[0]) is None
        assert job_of(outcomes[0]) is None


@both_ways
@pytest.mark.parametrize('resubmissions', [0, 1, 2])
async def test_the_error_of_a_row_that_was_sent_again_in_vain_says_how_often_it_was_submitted(
    resubmissions: int, send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(500, None, 'Oops.') if request.text == ROWS[0] else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        outcomes = await clock.run(send(clock, lane_model(fake), max_resubmissions=resubmissions))
        assert outcomes[1:] == ANSWERS[1:]
        *_, last = harness.fake(fake).batches
        assert len(harness.fake(fake).batches) == resubmissions + 1
        said = notes(outcomes[0])
        assert last in said
        assert (f'It was submitted {resubmissions + 1} times' in said) == (resubmissions > 0)


# Wrong rows


@of_openai
@both_ways
async def test_wrong_rows_that_are_named_one_batch_after_another_use_up_nothing_of_the_others(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        # Always the first row of those that are left.
        error = {'code': 'missing_required_parameter', 'message': 'Missing it.', 'param': 'body.model', 'line': 1}
        for batch in range(3):
            harness.fake(fake).inject('batch', 'fail', after=batch, errors=[error])
        outcomes = await clock.run(send(clock, lane_model(fake)))
        failed = [outcome for outcome in outcomes if isinstance(outcome, ModelAPIError)]
        assert len(failed) == 3
        assert all('Missing it.' in str(outcome) for outcome in failed)
        assert sum(outcome == answer for outcome, answer in zip(outcomes, ANSWERS, strict=True)) == 3
        assert harness.fake(fake).count('create') == 4
        assert len(harness.fake(fake).billed) == 3


def wrong(harness: Harness, fake: FakeProviders, is_wrong: Callable[[str], bool]) -> None:
    """Let batches fail in which a row is wrong, without a word on which."""
    code = {'code': 3} if harness.provider == 'google' else {'code': 'invalid_request'}
    harness.fake(fake).inject(
        'batch',
        'fail',
        times=None,
        errors=[{**code, 'message': 'A request is wrong.'}],
        rows=lambda request: is_wrong(request.text),
    )


async def finds(bad: set[str], rows: list[str], sent: Coroutine[Any, Any, list[Any]], clock: ManualClock) -> None:
    """Send rows, and see that those which are wrong fail, and no other."""
    for row, outcome in zip(rows, await clock.run(sent), strict=True):
        if row in bad:
            assert isinstance(outcome, ModelAPIError)
            assert 'A request is wrong.' in str(outcome)
        else:
            assert outcome == f'answer to {row}'


@with_queues
@both_ways
async def test_many_wrong_rows_are_found_and_no_other_row_fails_for_them(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.policy.MAX_FAILED_PARTS', 50)
    rows = [f'row {n}' for n in range(160)]
    bad = set(rows[::10])
    with FakeProviders(echo, clock=clock, processing=timedelta(seconds=20)) as fake:
        wrong(harness, fake, bad.__contains__)
        await finds(bad, rows, send(clock, lane_model(fake), rows), clock)
        # More failed than may where none is run.
        assert harness.fake(fake).count('create') > 140


# Fails: a part counts as run only when it has ended, and by then 128 others have failed, which is seen far sooner.
@pytest.mark.parametrize('harness', ['responses'], indirect=True)
async def test_one_wrong_row_of_six_is_found_in_a_batch_of_hundreds(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = [f'row {n}' for n in range(240)]
    bad = set(rows[::6])
    with FakeProviders(echo, clock=clock) as fake:
        wrong(harness, fake, bad.__contains__)
        await finds(bad, rows, by_list(clock, lane_model(fake), rows), clock)


@pytest.mark.parametrize('harness', ['responses'], indirect=True)
@both_ways
async def test_a_batch_of_which_every_row_is_wrong_is_not_divided_for_ever(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    rows = [f'row {n}' for n in range(300)]
    with FakeProviders(echo, clock=clock) as fake:
        wrong(harness, fake, lambda text: True)
        await finds(set(rows), rows, send(clock, lane_model(fake), rows), clock)
        # After 128 parts that failed, and those that were under way by then, of 599 that there could be.
        assert 128 <= harness.fake(fake).count('create') <= 300


# The log


@over_http
@all_ways
@pytest.mark.parametrize(('call', 'status'), [('create', 500), ('create', 429), ('status', 503), ('status', 404)])
async def test_no_line_of_the_log_holds_what_a_provider_quotes(
    call: str,
    status: int,
    send: Send,
    harness: Harness,
    lane_model: LaneModel,
    clock: PacedClock,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.DEBUG, 'pydantic_ai_batch')
    with FakeProviders(echo, clock=clock) as fake:
        message = f'Upstream failed for body {{"input": "{SECRET}"}}'
        harness.fake(fake).inject(call, 'http', status=status, message=message)
        await clock.run(send(clock, lane_model(fake)))
    lines = [record.getMessage() for record in caplog.records if record.name == 'pydantic_ai_batch']
    # A job whose creation is refused has the error, and says nothing.
    assert lines or (send is by_job and status == 429)
    assert not [line for line in lines if SECRET in line]


@all_ways
async def test_the_log_says_when_a_batch_is_over(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, 'pydantic_ai_batch')
    with FakeProviders(echo, clock=clock) as fake:
        assert await clock.run(send(clock, lane_model(fake))) == ANSWERS
        (batch_id,) = harness.fake(fake).batches
        assert len([line for line in informed(caplog) if line.startswith(f'Batch {batch_id} is over')]) == 1


# Fails for lists: what is sent again is logged for agents alone, where their pool reports it.
@both_ways
async def test_the_log_says_once_for_each_batch_that_requests_of_it_are_sent_again(
    send: Send, harness: Harness, lane_model: LaneModel, clock: PacedClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, 'pydantic_ai_batch')
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'expire', seconds=600)
        assert await clock.run(send(clock, lane_model(fake))) == ANSWERS
        first, _ = harness.fake(fake).batches
        again = [line for line in informed(caplog) if 'sent again' in line]
        assert len(again) == 1
        assert first in again[0]


def informed(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]


# What is wrong with a call


async def test_a_row_without_messages_is_refused_before_anything_is_sent(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        requests = [*requests_of(ROWS[:2]), replace(requests_of(ROWS[2:3])[0], messages=[])]
        for call in (model_request_batch, submit_batch):
            with pytest.raises(UserError, match=r"no messages: 'row 2'\."):
                await call(lane_model(fake), requests, clock=clock)
        assert harness.fake(fake).calls == []


async def test_one_request_that_is_in_no_list_is_refused(harness: Harness, lane_model: LaneModel, clock: PacedClock):
    with FakeProviders(echo, clock=clock) as fake:
        [request] = requests_of(ROWS[:1])
        for call in (model_request_batch, submit_batch):
            with pytest.raises(UserError, match='put it into a list'):
                await call(lane_model(fake), cast('Any', request), clock=clock)
        assert harness.fake(fake).calls == []


async def test_a_truth_value_is_no_number(harness: Harness, lane_model: LaneModel, clock: PacedClock):
    with FakeProviders(echo, clock=clock) as fake:
        for setting in ('max_requests', 'max_bytes'):
            with pytest.raises(UserError, match=f'`{setting}` must be a whole number, not True'):
                BatchModelRequests(**{setting: cast('Any', True)})
            for call in (model_request_batch, submit_batch):
                with pytest.raises(UserError, match=f'`{setting}` must be a whole number, not True'):
                    await call(lane_model(fake), requests_of(ROWS), **{setting: cast('Any', True)}, clock=clock)
        with pytest.raises(UserError, match='`max_resubmissions` must be a whole number, not True'):
            BatchModelRequests(max_resubmissions=True)
        assert harness.fake(fake).calls == []


async def test_a_list_where_the_model_belongs_is_refused_in_words():
    for call in (model_request_batch, submit_batch):
        with pytest.raises(UserError, match='A model, or its name, comes first, and not a `list`'):
            await call(cast('Any', requests_of(ROWS)), requests_of(ROWS))


async def test_a_job_whose_model_no_name_makes_says_what_to_pass(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests_of(ROWS), clock=clock))
        job = replace(job, model='mine:model-1')
        for call in (check_batch(job, clock=clock), collect_batch(job, requests_of(ROWS), clock=clock)):
            with pytest.raises(UserError, match=r'mine:model-1.*pass `model=`') as raised:
                await call
            assert job.id in str(raised.value)
        assert harness.fake(fake).count('status') == 0


async def test_a_job_at_another_base_url_says_so(clock: PacedClock):
    with FakeProviders(echo, clock=clock) as here, FakeProviders(echo, clock=clock) as there:
        clients = [fake.openai.client(api_key='test', max_retries=0) for fake in (here, there)]
        one, other = [
            OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client)) for client in clients
        ]
        job = await clock.run(submit_batch(one, requests_of(ROWS), clock=clock))
        with pytest.raises(UserError, match='another base URL') as raised:
            await clock.run(check_batch(job, other, clock=clock))
        assert there.openai.base_url.rstrip('/') in str(raised.value)
        assert 'pass `model=`' in str(raised.value)
        assert there.openai.calls == []
        for client in clients:
            await close(client)


# In part


@over_http
async def test_a_job_that_lacks_a_row_is_collected_in_part_at_once(
    harness: Harness, lane_model: LaneModel, clock: PacedClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('lines', 'drop', rows=1)
        job = await clock.run(submit_batch(model, requests_of(ROWS), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        started = clock.monotonic()
        outcomes = await clock.run(collect_batch(job, requests_of(ROWS), model, partial=True, clock=clock))
        assert texts(outcomes) == [None, *ANSWERS[1:]]
        assert clock.monotonic() == started
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)
