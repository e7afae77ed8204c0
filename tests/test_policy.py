"""The decisions, one rule at a time."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import ModelRequest
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelTimeoutError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import BatchResult

from pydantic_ai_batch import BatchRequest, model_request_batch
from pydantic_ai_batch.policy import CheckHistory, create_outcome, overdue, poll_delay, resubmits, transient
from pydantic_ai_batch.testing import FakeProviders, ManualClock

CREATED = datetime(2030, 1, 1, tzinfo=UTC)


def http(status: int) -> ModelHTTPError:
    return ModelHTTPError(status, 'm')


def test_the_poll_interval_grows_by_half_up_to_the_longest():
    delays = [poll_delay(polls, timedelta(seconds=30), timedelta(minutes=10)) for polls in range(12)]
    assert delays[:4] == [30, 45, 67.5, 101.25]
    assert delays[-1] == 600
    assert all(earlier <= later for earlier, later in itertools.pairwise(delays))


def test_the_interval_of_a_batch_checked_for_years_does_not_overflow():
    assert poll_delay(10**9, timedelta(seconds=1), timedelta(hours=1)) == 3600


def test_equal_intervals_never_grow():
    assert [poll_delay(polls, timedelta(seconds=5), timedelta(seconds=5)) for polls in (0, 1, 50)] == [5, 5, 5]


@pytest.mark.parametrize(
    ('error', 'outcome'),
    [
        (ModelConnectionError('m', 'no route', phase='connect'), 'never_sent'),
        (ModelConnectionError('m', 'no connection free', phase='pool'), 'never_sent'),
        (ModelTimeoutError('m', 'slow', phase='read'), 'unknown'),
        (ModelConnectionError('m', 'reset', phase='read'), 'unknown'),
        (ModelConnectionError('m', 'broken pipe', phase='write'), 'unknown'),
        (ModelConnectionError('m', 'nobody knows'), 'unknown'),
        (http(400), 'refused'),
        (http(401), 'refused'),
        (http(409), 'refused'),
        (http(429), 'refused'),
        (http(408), 'unknown'),
        (http(500), 'unknown'),
        (http(503), 'unknown'),
        (ModelAPIError('m', 'a reply that is no batch'), 'unknown'),
    ],
)
def test_only_a_refusal_or_an_unopened_connection_proves_that_no_batch_was_made(error: ModelAPIError, outcome: str):
    assert create_outcome(error) == outcome


@pytest.mark.parametrize(
    ('error', 'passes'),
    [
        (ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name='m'), True),
        (ModelHTTPError.for_category(ModelOverloadedError, status_code=529, model_name='m'), True),
        (ModelHTTPError.for_category(ModelServerError, status_code=500, model_name='m'), True),
        (http(408), True),
        (http(409), True),
        (ModelConnectionError('m', 'reset'), True),
        (http(400), False),
        (http(404), False),
        (ModelHTTPError.for_category(ModelQuotaExceededError, status_code=429, model_name='m'), False),
        (ModelHTTPError.for_category(ModelContextWindowExceededError, status_code=400, model_name='m'), False),
        (ModelAPIError('m', 'something else'), False),
    ],
)
def test_what_a_live_request_is_retried_on_passes_and_nothing_else(error: ModelAPIError, passes: bool):
    assert transient(error) is passes


def test_expired_requests_are_worth_another_batch_and_cancelled_ones_are_not():
    unrun = ModelAPIError('m', 'not run')
    assert resubmits(BatchResult(custom_id='1', status='expired'), unrun)
    assert not resubmits(BatchResult(custom_id='1', status='canceled'), unrun)
    assert resubmits(BatchResult(custom_id='1', status='errored', body='{}'), http(500))
    assert not resubmits(BatchResult(custom_id='1', status='errored', body='{}'), http(400))


def test_an_answer_that_cannot_be_read_is_not_paid_for_again():
    assert not resubmits(BatchResult(custom_id='1', status='succeeded', body='{'), http(500))


def test_three_passing_faults_in_a_row_are_put_up_with_and_the_fourth_is_not():
    history = CheckHistory()
    verdicts = [history.tolerates(http(502), created_at=CREATED, now=CREATED) for _ in range(4)]
    assert verdicts == [True, True, True, False]


def test_a_check_that_is_answered_starts_the_count_of_faults_anew():
    history = CheckHistory()
    for _ in range(3):
        assert history.tolerates(http(502), created_at=CREATED, now=CREATED)
    history.answered(CREATED)
    assert history.tolerates(http(502), created_at=CREATED, now=CREATED)


def test_a_refused_check_is_not_made_again():
    assert not CheckHistory().tolerates(http(401), created_at=CREATED, now=CREATED)


def test_a_404_soon_after_the_create_or_after_a_good_check_is_a_fault():
    history = CheckHistory()
    soon = CREATED + timedelta(minutes=4)
    assert all(history.tolerates(http(404), created_at=CREATED, now=soon) for _ in range(10))
    history.answered(CREATED + timedelta(hours=5))
    assert all(
        history.tolerates(http(404), created_at=CREATED, now=CREATED + timedelta(hours=5, minutes=4)) for _ in range(10)
    )


def test_a_404_that_lasts_is_believed():
    history = CheckHistory()
    late = CREATED + timedelta(hours=30)
    assert [history.tolerates(http(404), created_at=CREATED, now=late) for _ in range(4)] == [True, True, True, False]


def test_a_batch_is_overdue_a_quarter_past_its_window_and_never_without_one():
    day = timedelta(hours=24)
    assert not overdue(CREATED, day, CREATED + timedelta(hours=30))
    assert overdue(CREATED, day, CREATED + timedelta(hours=30, seconds=1))
    assert not overdue(CREATED, None, CREATED + timedelta(days=400))


# What the code of a batch that failed as a whole means

ROWS = [f'row {n}' for n in range(4)]


async def failing(code: str, clock: ManualClock, fake: FakeProviders, model_of: ModelOf, **settings: Any) -> list[Any]:
    """What four rows come to whose first batch fails with that code."""
    fake.openai.inject('batch', 'fail', errors=[{'code': code, 'message': 'It failed.'}])
    requests = [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in ROWS]
    return await clock.run(model_request_batch(model_of(fake), requests, clock=clock, **settings))


@pytest.mark.parametrize(
    ('code', 'status'),
    [
        ('conflict', 409),
        ('rate_limit_exceeded', 429),
        ('timeout', 408),
        ('overloaded', 503),
        ('service_unavailable', 503),
        ('server_error', 500),
        ('internal_error', 500),
    ],
)
async def test_a_batch_that_failed_in_a_way_that_passes_is_sent_again_whole(
    code: str, status: int, clock: ManualClock, fake: FakeProviders, model_of: ModelOf
):
    outcomes = await failing(code, clock, fake, model_of)
    assert all(isinstance(outcome, ModelResponse) for outcome in outcomes)
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [4, 4]
    errors = await failing(code, clock, fake, model_of, max_resubmissions=0)
    assert [error.status_code for error in errors] == [status] * 4


@pytest.mark.parametrize(
    'code',
    [
        'invalid_api_key',
        'invalid_project',
        'invalid_organization',
        'missing_scope',
        'missing_permissions',
        'insufficient_permissions',
        'unsupported_country_region_territory',
        'invalid_authentication',
        'account_deactivated',
        'invalid_endpoint',
        'model_not_found',
    ],
)
async def test_a_batch_that_failed_for_who_asked_is_neither_searched_nor_sent_again(
    code: str, clock: ManualClock, fake: FakeProviders, model_of: ModelOf
):
    outcomes = await failing(code, clock, fake, model_of)
    assert all(isinstance(outcome, ModelHTTPError) and 'It failed.' in str(outcome.body) for outcome in outcomes)
    assert fake.openai.count('create') == 1


@pytest.mark.parametrize(
    'code', ['invalid_request', 'invalid_value', 'missing_required_parameter', 'unsupported_parameter', 'duplicate_id']
)
async def test_a_batch_that_failed_for_a_request_that_is_not_named_is_searched_by_halves(
    code: str, clock: ManualClock, fake: FakeProviders, model_of: ModelOf
):
    outcomes = await failing(code, clock, fake, model_of)
    assert all(isinstance(outcome, ModelResponse) for outcome in outcomes)
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [4, 2, 2]


async def test_a_batch_that_failed_with_a_code_nobody_knows_is_final(
    clock: ManualClock, fake: FakeProviders, model_of: ModelOf
):
    outcomes = await failing('something_new', clock, fake, model_of)
    assert [outcome.status_code for outcome in outcomes] == [400] * 4
    assert fake.openai.count('create') == 1
