"""Lists of requests that are submitted now and collected later, on every lane."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import (
    BatchJob,
    BatchRequest,
    cancel_batch,
    cancel_batch_sync,
    check_batch,
    check_batch_sync,
    collect_batch,
    collect_batch_sync,
    model_request_batch,
    submit_batch,
    submit_batch_sync,
    wait_batch,
    wait_batch_sync,
)
from pydantic_ai_batch.batch_job import VERSION
from pydantic_ai_batch.exceptions import (
    BatchNotCancellable,
    BatchNotReady,
    RequestNotSendable,
    ResultsGone,
    batch_of,
)
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

from .harness import Harness, echo, requests_of

LaneModel = Callable[..., Model]
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]

over_http = pytest.mark.parametrize(
    'harness', ['responses', 'chat', 'anthropic', 'google-inline', 'google-file'], indirect=True
)


def requests(rows: list[str] = ROWS) -> list[BatchRequest]:
    return requests_of(rows)


def texts(outcomes: Any) -> list[Any]:
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def stored(job: BatchJob) -> BatchJob:
    """The job as another process reads it."""
    return BatchJob.from_json(job.to_json())


async def test_a_job_is_submitted_stored_waited_for_and_collected(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, ordered=False) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests(), max_requests=4, clock=clock))
        assert not job.done
        assert job.checked_at is None
        assert [len(batch.request_ids) for batch in job.batches] == [4, 2]
        job = await clock.run(wait_batch(stored(job), lane_model(fake), clock=clock))
        assert (job.status, job.done) == ('ended', True)
        assert job.checked_at is not None
        # Another model object, as in another process, and the requests in another order.
        again = requests(ROWS[::-1])
        outcomes = await clock.run(collect_batch(stored(job), again, lane_model(fake), clock=clock))
        assert texts(outcomes) == ANSWERS[::-1]
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)


async def test_a_job_gives_what_a_call_that_waits_gives(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'bad', 'No.') if request.text in ROWS[:2] else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        collected = await clock.run(collect_batch(job, requests(), model, clock=clock))
        waited = await clock.run(model_request_batch(model, requests(), clock=clock))
        assert [type(outcome) for outcome in collected] == [type(outcome) for outcome in waited]
        assert [outcome for outcome in texts(collected) if isinstance(outcome, str)] == ANSWERS[2:]


async def test_a_check_takes_one_request_for_each_batch_that_is_not_over(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), max_requests=3, clock=clock))
        before = server.count('status')
        job = await clock.run(check_batch(job, model, clock=clock))
        assert server.count('status') - before == 2
        assert not job.done
        await clock.advance(timedelta(days=1))
        job = await clock.run(check_batch(job, model, clock=clock))
        assert job.done
        before = server.count('status')
        assert await clock.run(check_batch(job, model, clock=clock)) == job
        assert server.count('status') == before


async def test_loading_a_job_makes_no_request_and_it_holds_no_key_and_no_payload(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake, 'secret-key-of-mine'), requests(), clock=clock))
        calls = len(harness.fake(fake).calls)
        text = job.to_json()
        assert BatchJob.from_json(text) == job
        assert pickle.loads(pickle.dumps(job)) == job
        assert len(harness.fake(fake).calls) == calls
        assert 'secret-key-of-mine' not in text
        assert 'content' not in text


async def test_a_job_is_not_collected_before_its_end_unless_in_part(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        with pytest.raises(BatchNotReady, match='not over') as raised:
            await clock.run(collect_batch(job, requests(), model, clock=clock))
        assert raised.value.job.checked_at is not None
        assert pickle.loads(pickle.dumps(raised.value)).job == raised.value.job
        assert await clock.run(collect_batch(job, requests(), model, partial=True, clock=clock)) == [None] * 6
        assert harness.fake(fake).count('cancel') == 0


async def test_in_part_gives_the_batches_that_are_over(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    if harness.provider == 'native':
        pytest.skip('its batches all take the same time')
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('batch', 'stick', after=1)
        job = await clock.run(submit_batch(model, requests(), max_requests=3, clock=clock))
        await clock.advance(timedelta(hours=2))
        outcomes = texts(await clock.run(collect_batch(job, requests(), model, partial=True, clock=clock)))
        # Which of the two was created first is the network's affair.
        assert outcomes in ([*ANSWERS[:3], None, None, None], [None, None, None, *ANSWERS[3:]])


async def test_a_wait_that_times_out_raises_with_the_fresh_job_and_cancels_nothing(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        started = clock.now()
        with pytest.raises(BatchNotReady) as raised:
            await clock.run(wait_batch(job, model, timeout=timedelta(seconds=50), clock=clock))
        assert clock.now() - started == pytest.approx(50)
        assert raised.value.job.checked_at is not None
        assert harness.fake(fake).count('cancel') == 0
        job = await clock.run(wait_batch(raised.value.job, model, clock=clock))
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


async def test_a_cancelled_job_says_so_and_is_still_read(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(cancel_batch(job, model, clock=clock))
        assert harness.fake(fake).count('cancel') == 1
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert job.status in ('canceled', 'ended')
        outcomes = await clock.run(collect_batch(job, requests(), model, clock=clock))
        assert all(isinstance(outcome, ModelAPIError) for outcome in outcomes)
        with pytest.raises(BatchNotCancellable, match='nothing to cancel'):
            await clock.run(cancel_batch(job, model, clock=clock))
        assert harness.fake(fake).count('cancel') == 1


@over_http
async def test_a_job_that_is_cancelled_gives_the_answers_that_were_there_by_then(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    # Two rows are done and the others never will be, until it is cancelled.
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('batch', 'stick', done=2)
        if harness.provider == 'google':
            # As documented, it loses what was done. If it ever gives it, that is not to be dropped.
            fake.google.partial_results = True
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        await clock.advance(timedelta(hours=2))
        job = await clock.run(cancel_batch(job, model, clock=clock))
        job = await clock.run(wait_batch(stored(job), model, clock=clock))
        assert (job.status, job.done) == ('canceled', True)
        outcomes = texts(await clock.run(collect_batch(job, requests(), model, clock=clock)))
        assert outcomes[:2] == ANSWERS[:2]
        assert all(isinstance(outcome, ModelAPIError) and 'cancel' in str(outcome) for outcome in outcomes[2:])
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS[:2])
        assert harness.fake(fake).count('create') == 1


async def test_a_job_that_is_over_by_now_is_not_cancellable(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        old = await clock.run(submit_batch(model, requests(), clock=clock))
        await clock.run(wait_batch(old, model, clock=clock))
        try:
            job = await clock.run(cancel_batch(old, model, clock=clock))
        except BatchNotCancellable as error:
            job = error.job
        assert job.status == 'ended'
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


@over_http
async def test_an_expired_job_is_read_and_gives_what_was_run(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('batch', 'expire', done=2)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert job.status == 'expired'
        outcomes = texts(await clock.run(collect_batch(job, requests(), model, clock=clock)))
        # Google keeps no results of a batch that expired.
        assert [outcome for outcome in outcomes if isinstance(outcome, str)] in (ANSWERS[:2], [])
        assert all('expired' in str(outcome) for outcome in outcomes[2:])
        assert all(batch_of(outcome) == job.batches[0].batch for outcome in outcomes[2:])


@over_http
async def test_a_batch_that_is_refused_is_in_the_job_with_its_error_beside_the_others(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('create', 'http', status=429, message='Too many batches.', after=1)
        job = await clock.run(submit_batch(model, requests(), max_requests=2, clock=clock))
        assert harness.fake(fake).count('create') == 3
        assert len(job.batches) == 2
        [refused] = job.refused
        job = await clock.run(wait_batch(stored(job), model, clock=clock))
        outcomes = texts(await clock.run(collect_batch(job, requests(), model, clock=clock)))
        failed = {row: outcome for row, outcome in zip(ROWS, outcomes, strict=True) if not isinstance(outcome, str)}
        assert set(failed) == set(refused.request_ids)
        assert all(isinstance(error, ModelHTTPError) and error.status_code == 429 for error in failed.values())
        assert 'Too many batches.' in str(next(iter(failed.values())))


async def test_a_row_that_cannot_be_sent_has_its_error(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    rows = ['x' * 5_000, 'row']
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(rows), max_bytes=4_000, clock=clock))
        job = await clock.run(wait_batch(stored(job), model, clock=clock))
        large, answer = texts(await clock.run(collect_batch(job, requests(rows), model, clock=clock)))
        assert isinstance(large, RequestNotSendable)
        assert answer == 'answer to row'


async def test_other_requests_than_the_jobs_are_refused(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        calls = len(harness.fake(fake).calls)
        with pytest.raises(UserError, match="missing: 'row 5'; not in the job: 'other'"):
            await clock.run(collect_batch(job, requests([*ROWS[:5], 'other']), model, clock=clock))
        with pytest.raises(UserError, match='of its own'):
            await clock.run(collect_batch(job, requests([*ROWS, 'row 0']), model, clock=clock))
        assert len(harness.fake(fake).calls) == calls


async def test_a_check_that_fails_in_passing_leaves_the_job_as_it_was(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        harness.fake(fake).inject('status', 'http', times=3, status=503)
        for _ in range(3):
            job = await clock.run(check_batch(stored(job), model, clock=clock))
            assert not job.done
        harness.fake(fake).inject('status', 'http', status=503)
        with pytest.raises(ModelHTTPError):
            await clock.run(check_batch(job, model, clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


@over_http
async def test_results_that_break_off_are_read_again(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        harness.fake(fake).inject(harness.download, 'reset', times=2)
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


@pytest.mark.parametrize('harness', ['responses', 'chat', 'google-inline', 'google-file'], indirect=True)
async def test_cancelling_a_submission_cancels_what_it_has_made(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        # The second create waits for its next attempt when the call is given up.
        server.inject('create', 'lose_reply', after=1)
        server.inject('batch', 'hide', after=1, seconds=20.0)
        call = asyncio.ensure_future(submit_batch(model, requests(), max_requests=3, clock=clock))
        await clock.until_asleep()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await clock.run(call)
        await clock.advance(timedelta(hours=2))
        assert len(server.batches) == 2
        assert server.count('cancel') == 2
        assert server.billed == []


@pytest.mark.parametrize('harness', ['anthropic'], indirect=True)
async def test_a_submission_that_is_cancelled_does_not_wait_for_the_end_of_a_batch(
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    # Real seconds, as nothing moves the clock.
    monkeypatch.setattr('pydantic_ai_batch.creation._SEEN_THROUGH_SECONDS', 0.2)
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=20)) as fake:
        harness.fake(fake).inject('create', 'lose_reply')
        call = asyncio.ensure_future(submit_batch(lane_model(fake), requests(), clock=clock))
        await clock.until_asleep()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # Whether it exists cannot be known yet, so that is said.
        assert 'a batch may exist' in caplog.text


async def test_a_model_of_another_lane_or_endpoint_is_refused(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake, FakeProviders(echo, clock=clock) as other:
        job = await clock.run(submit_batch(lane_model(fake), requests(), clock=clock))
        with pytest.raises(UserError, match=r'(?i)pass `model='):
            await clock.run(check_batch(replace(job, lane='another'), lane_model(fake), clock=clock))
        if harness.provider != 'native':
            with pytest.raises(UserError, match=r'(?i)pass `model='):
                await clock.run(check_batch(job, lane_model(other), clock=clock))


@over_http
async def test_a_rotated_key_of_the_project_collects(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).projects = {'old': 'ours', 'new': 'ours'}
        job = await clock.run(submit_batch(lane_model(fake, 'old'), requests(), clock=clock))
        model = lane_model(fake, 'new')
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


async def test_later_formats_are_refused_and_nonsense_is_too(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests(), clock=clock))
        data = json.loads(job.to_json())
        with pytest.raises(UserError, match='later version'):
            BatchJob.from_json(json.dumps({**data, 'version': VERSION + 1, 'new': 1}))
        for text in ('', '[]', '{"version": 1}', json.dumps({**data, 'batches': 5})):
            with pytest.raises(UserError, match='no `BatchJob`'):
                BatchJob.from_json(text)


async def test_a_wait_looks_at_intervals_that_grow_by_half(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=30)) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        await clock.run(wait_batch(job, model, clock=clock))
        looks = [call.at for call in server.calls if call.operation == 'status']
        delays = [later - earlier for earlier, later in itertools.pairwise(looks)]
        assert delays[:4] == pytest.approx([30, 45, 67.5, 101.25])
        assert delays == pytest.approx([min(30 * 1.5**n, 600) for n in range(len(delays))])


async def test_a_wait_looks_at_the_intervals_that_it_is_given(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=10)) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        intervals: dict[str, Any] = {
            'poll_interval': timedelta(seconds=100),
            'max_poll_interval': timedelta(seconds=200),
        }
        await clock.run(wait_batch(job, model, clock=clock, **intervals))
        looks = [call.at for call in server.calls if call.operation == 'status']
        delays = [later - earlier for earlier, later in itertools.pairwise(looks)]
        assert delays == pytest.approx([100, 150, 200, 200])


@over_http
async def test_a_wait_obeys_retry_after(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        server.inject('status', 'http', status=429, headers={'retry-after': '500'})
        await clock.run(wait_batch(job, model, clock=clock))
        first, second = [call.at for call in server.calls if call.operation == 'status'][:2]
        assert second - first >= 500


@pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
async def test_a_batch_that_failed_for_a_row_says_so_by_the_users_own_id(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    error = {'code': 'missing_required_parameter', 'message': 'Missing it.', 'param': 'body.model', 'line': 2}
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('batch', 'fail', errors=[error])
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(stored(job), model, clock=clock))
        assert job.status == 'failed'
        outcomes = await clock.run(collect_batch(stored(job), requests(), model, clock=clock))
        [bad, *others] = [str(outcomes.pop(1)), *map(str, outcomes)]
        assert 'Missing it.' in bad
        assert 'The other request is' not in bad
        assert all("The other request is 'row 1'." in other for other in others)
        assert not any(job.batches[0].tag in said for said in (bad, *others))


@pytest.mark.parametrize('harness', ['responses', 'chat', 'anthropic', 'google-file'], indirect=True)
async def test_a_batch_whose_download_keeps_failing_stays_collectable(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        server.inject('download', 'http', times=None, status=503)
        outcomes = await clock.run(collect_batch(job, requests(), model, clock=clock))
        [batch] = job.batches
        assert all(isinstance(outcome, ModelHTTPError) and outcome.status_code == 503 for outcome in outcomes)
        for outcome in outcomes:
            assert isinstance(outcome, ModelHTTPError)
            assert batch_of(outcome) == batch.batch
            assert any(batch.batch.id in note for note in outcome.__notes__)
        server.clear_faults()
        assert texts(await clock.run(collect_batch(stored(job), requests(), model, clock=clock))) == ANSWERS
        assert server.count('create') == 1


RESULT_FILES = {'responses': ['output_file_id'], 'chat': ['output_file_id'], 'google-file': ['responses_file']}


async def test_a_batch_says_in_which_files_its_results_are(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        assert job.batches[0].result_files == {}
        job = await clock.run(wait_batch(job, model, clock=clock))
        [batch] = stored(job).batches
        # Of the others, the results are in no file.
        assert list(batch.result_files) == RESULT_FILES.get(harness.name, [])
        await clock.run(collect_batch(job, requests(), model, clock=clock))
        downloads = [call.path for call in fake.calls if call.operation == 'download']
        assert all(any(name in path for path in downloads) for name in batch.result_files.values())


@pytest.mark.parametrize('harness', ['responses', 'chat'], indirect=True)
async def test_rows_that_failed_are_in_a_file_of_their_own(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'bad', 'No.') if request.text in ROWS[:2] else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert list(job.batches[0].result_files) == ['output_file_id', 'error_file_id']


# Without an event loop


@pytest.mark.parametrize('harness', ['responses', 'google-file'], indirect=True)
def test_the_calls_do_the_same_in_code_without_an_event_loop(harness: Harness):
    with FakeProviders(echo, processing=timedelta(seconds=3)) as fake:
        script = """
            import sys
            from datetime import timedelta

            from pydantic_ai import ModelRequest
            from pydantic_ai_batch import (
                BatchJob, BatchRequest, cancel_batch_sync, check_batch_sync, collect_batch_sync, submit_batch_sync,
                wait_batch_sync,
            )
            from pydantic_ai_batch.exceptions import BatchNotReady
            from pydantic_ai_batch.lanes import google

            model, google.INLINE_BYTES = sys.argv[1], int(sys.argv[2])
            rows = [BatchRequest(custom_id=n, messages=[ModelRequest.user_text_prompt(f'row {n}')]) for n in '01']
            brief = timedelta(milliseconds=20)
            job = submit_batch_sync(model, rows, max_requests=1)
            print(len(job.batches), job.done)
            job = check_batch_sync(BatchJob.from_json(job.to_json()))
            print(job.checked_at is not None, job.done)
            job = wait_batch_sync(job, poll_interval=brief, max_poll_interval=brief)
            print(job.status, [outcome.text for outcome in collect_batch_sync(job, rows)])
            job = submit_batch_sync(model, rows)
            print(collect_batch_sync(job, rows, partial=True))
            try:
                wait_batch_sync(job, timeout=timedelta(0))
            except BatchNotReady as error:
                job = cancel_batch_sync(error.job)
            job = wait_batch_sync(job, poll_interval=brief, max_poll_interval=brief)
            print(job.status)
        """
        name = 'google:gemini-2.5-flash' if harness.lane == 'google' else 'openai-responses:gpt-5-mini'
        environment = {**os.environ, **harness.fake(fake).environment}
        done = subprocess.run(
            [sys.executable, '-c', textwrap.dedent(script), name, str(google.INLINE_BYTES)],
            capture_output=True,
            text=True,
            timeout=100,
            env=environment,
        )
        assert done.stdout.splitlines() == [
            '2 False',
            'True False',
            "ended ['answer to row 0', 'answer to row 1']",
            '[None, None]',
            'canceled',
        ], done.stderr
        assert harness.fake(fake).count('cancel') == 1


@pytest.mark.parametrize(
    ('name', 'twin'),
    [
        ('submit_batch', lambda job, model: submit_batch_sync(model, requests())),
        ('check_batch', check_batch_sync),
        ('wait_batch', wait_batch_sync),
        ('collect_batch', lambda job, model: collect_batch_sync(job, requests(), model)),
        ('cancel_batch', cancel_batch_sync),
    ],
)
@pytest.mark.parametrize('harness', ['responses'], indirect=True)
async def test_in_code_with_an_event_loop_each_names_the_call_to_await(
    name: str, twin: Callable[[BatchJob, Model], Any], harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        calls = len(fake.calls)
        with pytest.raises(UserError, match=rf'use `await {name}\('):
            twin(job, model)
        assert len(fake.calls) == calls


# What an attack found


@over_http
async def test_a_batch_that_could_not_be_checked_is_no_answer_and_the_job_heals(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        server.inject('status', 'http', status=401)
        with pytest.raises(ModelHTTPError):
            await clock.run(collect_batch(job, requests(), model, clock=clock))
        server.inject('status', 'http', status=401)
        assert await clock.run(collect_batch(job, requests(), model, partial=True, clock=clock)) == [None] * 6
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert texts(await clock.run(collect_batch(job, requests(), model, clock=clock))) == ANSWERS


@over_http
async def test_a_batch_without_an_end_is_not_waited_for_without_an_end(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        harness.fake(fake).inject('batch', 'stick')
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        started = clock.now()
        with pytest.raises(BatchNotReady, match='long after its window') as raised:
            await clock.run(wait_batch(job, model, clock=clock))
        assert clock.now() - started < 3 * 86_400
        with pytest.raises(BatchNotReady):
            await clock.run(collect_batch(raised.value.job, requests(), model, clock=clock))
        assert harness.fake(fake).count('cancel') == 0


# Google's word for a batch that is being cancelled is that of one that runs.
@pytest.mark.parametrize('harness', ['responses', 'chat', 'anthropic'], indirect=True)
async def test_cancelling_is_not_refused_for_one_batch_that_is_over_or_a_reply_that_is_lost(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model, server = lane_model(fake), harness.fake(fake)
        server.inject('batch', 'stick')
        job = await clock.run(submit_batch(model, requests(), max_requests=3, clock=clock))
        await clock.advance(timedelta(hours=2))
        server.inject('cancel', 'lose_reply')
        job = await clock.run(cancel_batch(job, model, clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        assert sorted(batch.status for batch in job.batches) == ['canceled', 'ended']


@over_http
async def test_results_that_are_gone_say_so(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        other = lane_model(fake, 'of another project')
        await clock.advance(timedelta(hours=1))
        outcomes = await clock.run(collect_batch(job, requests(), other, clock=clock))
        assert all(isinstance(outcome, ResultsGone) for outcome in outcomes)
        assert 'only for the project that made them' in str(outcomes[0])


async def test_ids_of_half_characters_are_kept_and_those_that_are_no_strings_refused(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        rows = requests()
        # As a file name may be that is not in the file system's encoding.
        rows[0].custom_id = 'caf\udce9'
        job = await clock.run(submit_batch(model, rows, clock=clock))
        job = await clock.run(wait_batch(stored(job), model, clock=clock))
        assert texts(await clock.run(collect_batch(stored(job), rows, model, clock=clock))) == ANSWERS
        odd: Any = 7
        rows[0].custom_id = odd
        with pytest.raises(UserError, match='must be a string'):
            await clock.run(submit_batch(model, rows, clock=clock))
        assert harness.fake(fake).count('create') == 1


async def test_a_job_can_be_stored_whatever_the_provider_said(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests(), clock=clock))
        [part] = job.batches
        odd = replace(part, batch=replace(part.batch, provider_details={'errors': [{'message': 'half \ud800'}]}))
        assert stored(replace(job, batches=(odd,))).batches[0].batch.provider_details == odd.batch.provider_details
        naive = json.loads(job.to_json())
        naive['batches'][0]['checked_at'] = '2030-01-01T00:00:00'
        assert BatchJob.from_json(json.dumps(naive)).checked_at is not None


async def test_what_is_no_job_is_named(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests(), clock=clock))
        text: Any = job.to_json()
        with pytest.raises(UserError, match=r'BatchJob\.from_json'):
            await clock.run(check_batch(text, model, clock=clock))
        seconds: Any = 5
        with pytest.raises(UserError, match='must be a `timedelta`'):
            await clock.run(wait_batch(job, model, timeout=seconds, clock=clock))
        with pytest.raises(UserError, match='no version'):
            BatchJob.from_json(json.dumps({**json.loads(text), 'version': '9'}))
