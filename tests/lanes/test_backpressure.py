"""A queue that is full is waited for, and a batch that fails for rows nobody names is searched for them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.exceptions import ModelAPIError, ModelRateLimitError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchModelRequests, model_request_batch
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .harness import Harness, echo, requests_of

LaneModel = Callable[..., Model]

ROWS = [f'row {n}' for n in range(12)]
ANSWERS = [f'answer to {row}' for row in ROWS]


async def by_list(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    requests = requests_of(rows)
    outcomes = await clock.run(model_request_batch(model, requests, clock=clock, **settings))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


async def by_agents(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    settings = {'max_requests': len(rows), 'max_wait': None, **settings}
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, **settings)])
    outcomes = await clock.run(asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True))
    return [outcome if isinstance(outcome, BaseException) else outcome.output for outcome in outcomes]


Send = Callable[..., Any]
both_ways = pytest.mark.parametrize('send', [by_list, by_agents])
with_queues = pytest.mark.parametrize('harness', ['responses', 'chat', 'google-inline', 'google-file'], indirect=True)
"""The lanes whose queues are limited by tokens, and whose batches can fail as a whole."""

over_http = pytest.mark.parametrize(
    'harness', ['responses', 'chat', 'anthropic', 'google-inline', 'google-file'], indirect=True
)


def size_of_queue(harness: Harness, fake: FakeProviders, tokens: int) -> None:
    harness.fake(fake).enqueued_token_limit = tokens


def per_row(harness: Harness, fake: FakeProviders) -> int:
    """Tokens that a row takes in the queue, by the fake's own count, at the most."""
    batch = next(iter(harness.fake(fake).batches.values()))
    return max(row.size for row in batch.requests) // 4 + 2


@pytest.fixture
async def row_tokens(harness: Harness, lane_model: LaneModel, clock: ManualClock) -> int:
    with FakeProviders(echo, clock=clock) as fake:
        await by_list(clock, lane_model(fake), ROWS[:1])
        return per_row(harness, fake)


@with_queues
@both_ways
async def test_a_full_queue_is_waited_for(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock, row_tokens: int
):
    with FakeProviders(echo, clock=clock) as fake:
        # Room for two batches of three rows, of four.
        size_of_queue(harness, fake, row_tokens * 7)
        assert await send(clock, lane_model(fake), max_requests=3, max_resubmissions=0) == ANSWERS
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)
        assert harness.fake(fake).count('create') <= 8


@with_queues
@both_ways
async def test_a_batch_that_is_larger_than_the_queue_is_halved(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock, row_tokens: int
):
    with FakeProviders(echo, clock=clock) as fake:
        size_of_queue(harness, fake, row_tokens * 7)
        assert await send(clock, lane_model(fake), max_resubmissions=0) == ANSWERS
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)
        assert harness.fake(fake).count('create') <= 5


@with_queues
@both_ways
async def test_a_queue_that_stays_full_gives_the_providers_error_after_the_window_and_does_not_spin(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        size_of_queue(harness, fake, 1)
        started = clock.now()
        [outcome] = await send(clock, lane_model(fake), ROWS[:1])
        assert isinstance(outcome, ModelRateLimitError), outcome
        assert 'enqueued tokens' in str(outcome)
        assert 24 <= (clock.now() - started) / 3600 < 26
        # The delay between attempts grows to half an hour.
        assert harness.fake(fake).count('create') < 70
        assert harness.fake(fake).billed == []


@over_http
@both_ways
async def test_too_many_batches_are_sent_as_others_end(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', times=2, after=1, status=429, message='Too many batches.')
        assert await send(clock, lane_model(fake), max_requests=4, max_resubmissions=0) == ANSWERS
        assert harness.fake(fake).count('create') == 5


@over_http
async def test_retry_after_is_obeyed_by_a_create(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', status=429, message='Later.', headers={'retry-after': '500'})
        assert await by_list(clock, lane_model(fake)) == ANSWERS
        first, second = (call.at for call in harness.fake(fake).calls if call.operation == 'create')
        assert second - first >= 500


@pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
async def test_an_account_without_quota_is_not_waited_for(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', status=429, code='insufficient_quota', message='Pay first.')
        outcomes = await by_list(clock, lane_model(fake))
        assert all('Pay first' in str(outcome) for outcome in outcomes)
        assert harness.fake(fake).count('create') == 1


@over_http
async def test_cancelling_a_call_that_waits_for_room_ends_it_at_once(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', times=None, status=429, message='Too many batches.')
        call = asyncio.ensure_future(by_list(clock, lane_model(fake)))
        while not harness.fake(fake).count('create'):
            await clock.until_asleep()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not harness.fake(fake).batches


@over_http
async def test_a_short_refusal_of_many_batches_is_one(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', times=12, status=429, message='Slow down.')
        started = clock.now()
        assert await by_list(clock, lane_model(fake), max_requests=1) == ANSWERS
        assert clock.now() - started < 3_600


@over_http
async def test_a_limit_of_tokens_a_minute_is_waited_for_and_not_halved(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        message = 'Limit of 40,000 input tokens per minute.'
        harness.fake(fake).inject('create', 'http', status=429, message=message, headers={'retry-after': '50'})
        assert await by_list(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 2


@over_http
async def test_retry_after_of_days_does_not_hold_a_batch_longer_than_a_day(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        headers = {'retry-after': '864000'}
        harness.fake(fake).inject('create', 'http', times=None, status=429, message='Later.', headers=headers)
        started = clock.now()
        outcomes = await by_list(clock, lane_model(fake))
        assert all('Later.' in str(outcome) for outcome in outcomes)
        assert clock.now() - started < 25 * 3_600


@over_http
async def test_a_request_that_waited_a_day_for_others_is_held_as_long_as_any(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', status=429, message='Later.')
        outcomes = await by_agents(clock, lane_model(fake), max_requests=100, max_wait=timedelta(hours=25))
        assert outcomes == ANSWERS


@pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
@pytest.mark.parametrize(('code', 'creates'), [('rate_limit_exceeded', 2), ('organization_not_verified', 1)])
async def test_a_batch_that_fails_as_a_whole_is_judged_as_a_row_is(
    code: str, creates: int, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'fail', errors=[{'code': code, 'message': 'No.'}])
        outcomes = await by_list(clock, lane_model(fake))
        assert (outcomes == ANSWERS) == (creates == 2)
        assert harness.fake(fake).count('create') == creates


# Rows that nobody names


def invalid(harness: Harness, fake: FakeProviders, *bad: str) -> None:
    code = {'code': 3} if harness.provider == 'google' else {'code': 'invalid_request'}
    harness.fake(fake).inject(
        'batch',
        'fail',
        times=None,
        errors=[{**code, 'message': 'A request is wrong.'}],
        rows=lambda request: request.text in bad,
    )


@with_queues
@both_ways
@pytest.mark.parametrize('bad', [(), ('row 0',), ('row 7',), ('row 3', 'row 11')])
async def test_rows_that_are_not_named_are_found_by_halves(
    bad: tuple[str, ...], send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        invalid(harness, fake, *bad)
        outcomes = await send(clock, lane_model(fake))
        for row, outcome in zip(ROWS, outcomes, strict=True):
            if row in bad:
                assert isinstance(outcome, ModelAPIError)
                assert 'A request is wrong.' in str(outcome)
            else:
                assert outcome == f'answer to {row}'
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(row for row in ROWS if row not in bad)
        assert harness.fake(fake).count('create') <= 1 + 2 * 4 * len(bad)


@with_queues
@both_ways
async def test_without_resubmission_nothing_is_searched(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        invalid(harness, fake, 'row 3')
        outcomes = await send(clock, lane_model(fake), max_resubmissions=0)
        assert all('A request is wrong.' in str(outcome) for outcome in outcomes)
        assert harness.fake(fake).count('create') == 1


@pytest.mark.parametrize('harness', ['responses', 'google-inline'], indirect=True)
@both_ways
async def test_the_search_ends_where_every_request_is_wrong(
    send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai_batch.policy.MAX_FAILED_PARTS', 12)
    rows = [f'row {n}' for n in range(40)]
    with FakeProviders(echo, clock=clock) as fake:
        invalid(harness, fake, *rows)
        outcomes = await send(clock, lane_model(fake), rows)
        assert all('A request is wrong.' in str(outcome) for outcome in outcomes)
        assert harness.fake(fake).count('create') <= 1 + 2 * 13 + 6


@with_queues
async def test_stored_histories_of_a_failed_batch_are_searched_too(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        invalid(harness, fake, 'row 2')
        model, rows = lane_model(fake), ROWS[:4]
        batching = BatchModelRequests(max_requests=4, max_wait=None, clock=clock)
        agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])
        runs = await clock.run(asyncio.gather(*[agent.run(row) for row in rows]))
        outcomes: dict[str, str] = {}
        histories = {row: run.all_messages_json() for row, run in zip(rows, runs, strict=True)}
        for _ in range(12):
            await clock.advance(timedelta(minutes=5))
            for row, stored in list(histories.items()):
                history = ModelMessagesTypeAdapter.validate_json(stored)
                try:
                    result = await clock.run(agent.run(message_history=history))
                except ModelAPIError as error:
                    outcomes[row] = str(error)
                    del histories[row]
                else:
                    histories[row] = result.all_messages_json()
                    if not isinstance(result.output, PendingModelResponse):
                        outcomes[row] = result.output
                        del histories[row]
        assert not histories
        assert 'A request is wrong.' in outcomes.pop('row 2')
        assert outcomes == {row: f'answer to {row}' for row in rows if row != 'row 2'}


@pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
async def test_errors_of_a_validation_name_the_users_rows(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    error = {'code': 'missing_required_parameter', 'message': 'Missing it.', 'param': 'body.model', 'line': 2}
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'fail', errors=[error], after=1)
        outcomes = await by_list(clock, lane_model(fake), max_requests=6, max_resubmissions=0)
        failed = {
            row: str(outcome) for row, outcome in zip(ROWS, outcomes, strict=True) if isinstance(outcome, Exception)
        }
        # Which of the two batches was created second is the network's affair.
        assert sorted(failed) in (sorted(ROWS[:6]), sorted(ROWS[6:]))
        bad = ROWS[1] if ROWS[0] in failed else ROWS[7]
        own = failed.pop(bad)
        assert all(word in own for word in ('missing_required_parameter', 'Missing it.', 'body.model'))
        assert all(f'The other request is {bad!r}.' in error for error in failed.values())
        assert f'failed because of requests {bad!r}' in caplog.text
        assert "'line'" not in str(outcomes)


# Checks


@over_http
@both_ways
async def test_retry_after_is_obeyed_by_checks(send: Send, harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        server = harness.fake(fake)
        server.inject('status', 'http', status=503, headers={'retry-after': '500'})
        assert await send(clock, lane_model(fake)) == ANSWERS
        first, second = [call.at for call in server.calls if call.operation == 'status'][:2]
        assert second - first >= 500


@over_http
async def test_retry_after_is_obeyed_by_a_history_that_waits(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        server, model = harness.fake(fake), lane_model(fake)

        def batching() -> BatchModelRequests:
            return BatchModelRequests(max_requests=1, clock=clock)

        agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching()])
        pending = await clock.run(agent.run('row 0'))
        server.inject('status', 'http', status=503, headers={'retry-after': '500'})
        pending = await clock.run(
            Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching()]).run(
                message_history=pending.all_messages()
            )
        )
        assert isinstance(pending.output, PendingModelResponse)
        delays: list[float] = []

        async def sleep(seconds: float) -> None:
            delays.append(seconds)
            await clock.sleep(seconds)

        waiting = Agent(model, capabilities=[batching()])
        with waiting.using_sleep(sleep):
            await clock.run(waiting.run(message_history=pending.all_messages()))
        assert delays[0] >= 500
