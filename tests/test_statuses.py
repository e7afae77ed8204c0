"""What a job of several batches says of itself, and what a stored one is read as."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.models.batch import Batch

from pydantic_ai_batch import BatchJob
from pydantic_ai_batch.batch_job import VERSION, JobBatch, Refused
from pydantic_ai_batch.statuses import FRAMEWORK, TERMINAL, JobStatus, combined

CREATED = datetime(2030, 1, 1, tzinfo=UTC)


def part(status: JobStatus, *, checked: float | None = None) -> JobBatch:
    """A batch with that status, checked that many minutes after it was created."""
    return JobBatch(
        batch=Batch(
            id='batch_1',
            model_name='gpt-5-mini',
            provider_name='openai',
            group='{}',
            status=FRAMEWORK[status],
            created_at=CREATED,
            request_count=1,
        ),
        lane='openai',
        status=status,
        tag='t' * 20,
        request_ids=('row',),
        checked_at=None if checked is None else CREATED + timedelta(minutes=checked),
    )


def job_of(*batches: JobBatch, refused: tuple[Refused, ...] = ()) -> BatchJob:
    return BatchJob(id='a job', model='gpt-5-mini', lane='openai', created_at=CREATED, batches=batches, refused=refused)


REFUSED = Refused(request_ids=('row',), kind='ModelAPIError', model_name='gpt-5-mini', message='No.')


# Where it is


@pytest.mark.parametrize('status', FRAMEWORK)
def test_batches_that_agree_speak_for_the_job(status: JobStatus):
    job = job_of(part(status), part(status))
    assert job.status == status
    assert job.done == (status in TERMINAL)


@pytest.mark.parametrize(
    ('statuses', 'status'),
    [
        (['canceled', 'ended'], 'ended'),
        (['expired', 'ended'], 'ended'),
        (['failed', 'ended'], 'ended'),
        (['gone', 'ended'], 'ended'),
        (['gone', 'in_progress'], 'in_progress'),
        (['canceled', 'expired', 'failed'], 'ended'),
        (['submitted', 'in_progress'], 'in_progress'),
        (['submitted', 'ended'], 'in_progress'),
        (['in_progress', 'ended'], 'in_progress'),
        (['in_progress', 'failed', 'expired'], 'in_progress'),
        (['canceling', 'ended'], 'canceling'),
        (['canceling', 'canceled'], 'canceling'),
        (['canceling', 'in_progress'], 'canceling'),
        (['canceling', 'submitted', 'failed'], 'canceling'),
    ],
)
def test_a_job_is_over_when_all_its_batches_are_and_else_says_how_far_it_is(
    statuses: Sequence[JobStatus], status: JobStatus
):
    assert combined(statuses) == combined(reversed(statuses)) == status
    job = job_of(*map(part, statuses))
    assert job.status == status
    assert job.done == (set(statuses) <= TERMINAL)


def test_a_job_of_which_everything_was_refused_failed_and_one_without_requests_ended():
    assert (job_of(refused=(REFUSED,)).status, job_of(refused=(REFUSED,)).done) == ('failed', True)
    assert (job_of().status, job_of().done) == ('ended', True)


def test_what_was_refused_says_nothing_about_the_batches_that_were_made():
    assert job_of(part('in_progress'), refused=(REFUSED,)).status == 'in_progress'
    assert job_of(part('ended'), refused=(REFUSED,)).status == 'ended'


# How old that is


def test_a_job_is_as_old_as_the_oldest_status_of_its_batches():
    assert job_of(part('in_progress', checked=7), part('submitted', checked=3)).checked_at == CREATED + timedelta(
        minutes=3
    )
    assert job_of(part('ended', checked=9), part('failed', checked=5)).checked_at == CREATED + timedelta(minutes=5)


def test_what_is_over_does_not_make_the_others_look_older_than_they_are():
    job = job_of(part('ended', checked=1), part('in_progress', checked=8), part('submitted', checked=6))
    assert job.checked_at == CREATED + timedelta(minutes=6)


def test_a_job_with_a_batch_that_nobody_looked_at_was_not_checked():
    assert job_of(part('in_progress', checked=7), part('submitted')).checked_at is None
    assert job_of().checked_at is None


# Stored

STORED_V1 = """{
  "id": "gotutinrosz3v7ymucjx", "model": "openai-responses:gpt-5-mini", "lane": "openai",
  "created_at": "2030-01-01T00:00:00Z",
  "batches": [{
    "batch": {
      "id": "batch_2ac22e9f", "model_name": "gpt-5-mini", "provider_name": "openai",
      "group": "{\\"credential\\": \\"31af\\", \\"endpoint\\": \\"bab8\\", \\"model\\": \\"gpt-5-mini\\"}",
      "status": "ended", "created_at": "2030-01-01T00:00:00Z", "request_count": 2,
      "provider_details": {
        "status": "completed", "input_file_id": "file-14c8", "output_file_id": "file-c944",
        "request_counts": {"total": 2, "completed": 2, "failed": 0}
      }
    },
    "lane": "openai", "status": "ended", "tag": "rq4jzutnrvlxxich2v5x", "request_ids": ["row 0", "row 1"],
    "checked_at": "2030-01-01T00:02:22.500000Z", "failed_checks": 0, "not_found": 0, "retry_after": 0.0
  }],
  "refused": [{
    "request_ids": ["row 2"], "kind": "ModelRateLimitError", "model_name": "gpt-5-mini",
    "message": "Too many batches.", "status_code": 429, "body": {"message": "Too many batches.", "code": null}
  }],
  "version": 1
}"""
"""A job as the first release wrote it. What somebody stored is read as long as it is of any use: do not change it."""


def test_a_job_that_the_first_release_stored_is_read():
    job = BatchJob.from_json(STORED_V1)
    assert (job.id, job.model, job.lane, job.created_at) == (
        'gotutinrosz3v7ymucjx',
        'openai-responses:gpt-5-mini',
        'openai',
        CREATED,
    )
    assert (job.status, job.done, job.request_ids) == ('ended', True, ('row 0', 'row 1', 'row 2'))
    assert job.checked_at == CREATED + timedelta(minutes=2, seconds=22.5)
    assert job.counts == {'total': 2, 'completed': 2, 'failed': 0}
    [batch] = job.batches
    assert (batch.batch.id, batch.result_files) == ('batch_2ac22e9f', {'output_file_id': 'file-c944'})
    assert list(batch.requests) == [('rq4jzutnrvlxxich2v5x-0', 'row 0'), ('rq4jzutnrvlxxich2v5x-1', 'row 1')]
    [refused] = job.refused
    error = refused.error()
    assert isinstance(error, ModelHTTPError)
    assert (error.status_code, 'Too many batches.' in str(error)) == (429, True)
    assert BatchJob.from_json(job.to_json()) == job


def test_a_job_that_lacks_what_later_versions_added_is_read():
    data = json.loads(STORED_V1)
    for name in ('checked_at', 'failed_checks', 'not_found', 'retry_after'):
        del data['batches'][0][name]
    del data['refused']
    job = BatchJob.from_json(json.dumps(data))
    assert (job.done, job.checked_at, job.refused) == (True, None, ())


@pytest.mark.parametrize('later', [1, 2, 7])
def test_a_job_of_an_older_version_is_of_this_one_once_it_is_read(later: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('pydantic_ai_batch.batch_job.VERSION', later)
    job = BatchJob.from_json(STORED_V1)
    assert job.version == later
    assert json.loads(job.to_json())['version'] == later


def test_a_job_of_a_newer_version_is_refused_with_what_to_do():
    newer = json.dumps({**json.loads(STORED_V1), 'version': VERSION + 1})
    with pytest.raises(UserError, match=f'format {VERSION + 1}, this one reads up to {VERSION}.*upgrade the package'):
        BatchJob.from_json(newer)


def test_a_job_stays_what_it_is_when_it_is_stored():
    job = job_of(part('in_progress', checked=3), replace(part('failed'), not_found=2), refused=(REFUSED,))
    assert BatchJob.from_json(job.to_json()) == job
