"""Lists of requests that are submitted now and collected later, in this process or another.

What `model_request_batch` does in one call is here in its steps: submit, check, wait, collect, cancel. Between them
nothing runs, and all there is to keep is a [`BatchJob`][pydantic_ai_batch.BatchJob]. Nothing is submitted again by
itself: a row that failed has its error, and can be handed to another `submit_batch`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import KnownModelName, Model, check_allow_model_requests
from pydantic_ai.models.batch import BatchRequest

from . import compat
from .batch_job import BatchJob, JobBatch
from .chunks import Listed, check_requests
from .clock import SYSTEM_CLOCK, Clock, sleep_until_due, utc
from .exceptions import BatchNotCancellable, BatchNotReady, brief, with_batch
from .job_reading import Reading, seen
from .job_submission import JobSubmission
from .journal import JournalLike, journal_of, ledger_of
from .journal.ledger import Ledger
from .lanes import Lane
from .lanes.errors import shown_url
from .list_call import Outcome
from .named_model import lane_of_job, lane_of_model
from .policy import MAX_RETRY_AFTER, not_found, overdue, poll_delay
from .settings import DEFAULT_MAX_POLL_INTERVAL, DEFAULT_POLL_INTERVAL, BatchSettings
from .sync import running_loop
from .wording import listed

_log = logging.getLogger('pydantic_ai_batch')

T = TypeVar('T')


async def submit_batch(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Submit requests through the model's batch API, and return as soon as the provider has them.

    Store the job, as with [`to_json`][pydantic_ai_batch.BatchJob.to_json], before anything else: only with it are the
    answers found. Cancelling this call cancels the batches that it has made. With a journal, the job is in that, and
    the batches go on: the same call, made by a process started later, finds them.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ; they never go on the wire.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit, which caps any number.
        window: How long the provider has for a batch, of the windows that its lane takes. `None` is the lane's own.
        journal: A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded.
        clock: What time is read from and slept on. Tests pass one that they move by hand.

    Returns:
        The job, with every batch that could be created. Requests that cannot be encoded, or whose batch the provider
        refused, as when its queue is full, are in [`refused`][pydantic_ai_batch.BatchJob.refused] with the error.

    Raises:
        UserError: Something is wrong with the call, as in `model_request_batch`. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
        JournalError: The journal cannot be used. Nothing was sent.
    """
    settings = BatchSettings(max_requests=max_requests, max_bytes=max_bytes, window=window)
    running_loop('`submit_batch`')
    check_allow_model_requests()
    lane = lane_of_model(model).ask(window)
    check_requests(lane.model, requests)
    ledger = await ledger_of(journal_of(journal), clock, lane)
    submission = JobSubmission(lane, settings, Listed(requests), clock, ledger)
    async with lane.model:
        await lane.identity()
        await submission.run()
    job = BatchJob.of(
        lane, submission.batches, utc(clock), submission.refused, [request.custom_id for request in requests]
    )
    if ledger is not None:
        try:
            await ledger.keep_job(job.id, job.to_json())
        except BaseException:
            # Nobody gets the job: the same call, made again, finds its batches.
            submission.let_go()
            raise
    return job


async def check_batch(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """The job as it is now. Takes one status request for each batch that is not over.

    A check that fails in a way that says nothing about the batch leaves it as it was last read; after three in a row
    the next one raises. A batch that the provider says, several times, it does not have is `gone`, and its requests
    have that for an error when the job is collected.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        journal: The journal that it was submitted with.
        clock: What time is read from.

    Raises:
        UserError: The model cannot look at the job, or the journal does not have it.
        JournalError: The journal cannot be used.
        ModelAPIError: A batch could not be checked.
    """
    job, ledger = await _loaded(job, journal, clock)
    async with _lane_of(job, model) as lane:
        job = await _checked(lane, job, clock)
    return await _kept(job, ledger)


async def wait_batch(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    timeout: timedelta | None = None,  # noqa: ASYNC109 - it ends by a clock that tests move
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Check the job, at growing intervals, until all its batches are over, and return it as it is then.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        journal: The journal that it was submitted with.
        poll_interval: How long after the first check the second one is made. It grows by half each time.
        max_poll_interval: The longest interval between checks.
        timeout: How long to wait at the most. `None` waits as long as it takes.
        clock: What time is read from and slept on.

    Raises:
        BatchNotReady: The time was up, or no batch that is left has ended a quarter past its window. The error carries
            the job as it was last read; nothing is cancelled.
        UserError: The model cannot look at the job, the journal does not have it, or an interval is out of range.
        JournalError: The journal cannot be used.
        ModelAPIError: A batch could not be checked.
    """
    BatchSettings(poll_interval=poll_interval, max_poll_interval=max_poll_interval)
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout >= timedelta(0)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(
            f'`timeout` must be a `timedelta` that is not negative, such as `timedelta(minutes=10)`, not {timeout!r}.'
        )
    deadline = None if timeout is None else clock.monotonic() + timeout.total_seconds()
    job, ledger = await _loaded(job, journal, clock)
    async with _lane_of(job, model) as lane:
        for polls in itertools.count():
            job = await _checked(lane, job, clock)
            if job.done:
                break
            stuck = [batch for batch in job.batches if not batch.done]
            if all(overdue(batch.batch.created_at, lane.window_of(batch.batch.group), utc(clock)) for batch in stuck):
                raise BatchNotReady(lane.model.model_name, _still(job, 'long after its window'), job)
            # A stored job may say anything.
            asked = min(max((batch.retry_after for batch in job.batches), default=0.0), MAX_RETRY_AFTER)
            delay = max(poll_delay(polls, poll_interval, max_poll_interval), asked)
            if deadline is not None:
                if clock.monotonic() >= deadline:
                    raise BatchNotReady(lane.model.model_name, _still(job, 'and the time to wait for it is up'), job)
                delay = min(delay, deadline - clock.monotonic())
            await sleep_until_due(clock, delay)
    return await _kept(job, ledger)


@overload
async def collect_batch(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: Literal[False] = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]: ...


@overload
async def collect_batch(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome | None]: ...


async def collect_batch(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome] | list[Outcome | None]:
    """Read the answers of a job. It can be collected as often as the provider keeps its results.

    Args:
        job: The job, or its ID if it was submitted with a journal, however old what it says of its batches is: they
            are checked.
        requests: The requests that it was submitted with, by which the answers are read. With a journal they can be
            left out: text and tool calls are then read as they would be with default request parameters.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        journal: The journal that it was submitted with. Answers that are in it come from there.
        partial: Whether to read what there is while batches are not over.
        clock: What time is read from and slept on.

    Returns:
        For each request, in their order, its response or the error it failed with, as `model_request_batch` returns
        them; `None`, with `partial`, for one whose batch is not over.

    Raises:
        BatchNotReady: A batch is not over, and `partial` is not set. The error carries the job as it is now.
        UserError: The requests are not the job's, the model cannot look at it, or the journal does not have it.
        JournalError: The journal cannot be used.
        ModelAPIError: A batch could not be checked, and `partial` is not set.
    """
    job, ledger = await _loaded(job, journal, clock)
    if requests is None:
        if ledger is None:
            raise UserError('`collect_batch` takes the requests that the job was submitted with, or its `journal=`.')
        requests = [BatchRequest(custom_id=request_id, messages=[]) for request_id in job.order or job.request_ids]
    by_id = {request.custom_id: request for request in requests}
    _check_same(job, requests)
    outcomes: dict[str, Outcome] = {}
    async with _lane_of(job, model) as lane:
        readings = [Reading(lane, batch, by_id, outcomes, clock, ledger, partial) for batch in job.batches]
        read = await _all(reading.run() for reading in readings)
    job = replace(job, batches=tuple(batch for batch, _ in read))
    if not partial and not all(over for _, over in read):
        raise BatchNotReady(lane.model.model_name, _still(job, 'so not all answers are there'), job)
    for refused in job.refused:
        outcomes.update((request_id, refused.error()) for request_id in refused.request_ids)
    return [outcomes.get(request.custom_id) for request in requests]


async def cancel_batch(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Ask the provider to stop the batches of a job that are not over, and return it as it is then.

    Each batch is asked to stop once and then checked. What was finished by then can be collected, and may be billed.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        journal: The journal that it was submitted with.
        clock: What time is read from.

    Raises:
        BatchNotCancellable: There is nothing to stop, or the provider cannot. The error carries the job as it is now.
        UserError: The model cannot look at the job, or the journal does not have it.
        JournalError: The journal cannot be used.
        ModelAPIError: The provider could not be asked.
    """
    job, ledger = await _loaded(job, journal, clock)
    async with _lane_of(job, model) as lane:
        if not lane.info.cancellable:
            raise BatchNotCancellable(lane.model.model_name, f'{lane.info.title} cannot cancel a batch.', job)
        failures: dict[str, ModelAPIError] = {}
        unended = [batch for batch in job.batches if not batch.done or batch.status == 'gone']
        for batch in list(unended):
            if ledger is not None and await ledger.wanted_elsewhere(batch.batch.id):
                _log.warning('Batch %s is not cancelled, as another process waits for it.', batch.batch.id)
                unended.remove(batch)
                continue
            try:
                await lane.cancel(batch.batch)
            except ModelAPIError as error:
                # A batch that is over by now is refused with a 4xx, and a reply may be lost: the check makes it plain.
                failures[batch.batch.id] = error
        job = await _checked(lane, job, clock)
        for batch in job.batches:
            if batch.batch.id in failures and not batch.done and batch.status != 'canceling':
                raise with_batch(failures[batch.batch.id], batch.batch)
        stopping = {batch.batch.id for batch in job.batches if batch.status in ('canceling', 'canceled')}
        if not any(batch.batch.id not in failures or batch.batch.id in stopping for batch in unended):
            raise BatchNotCancellable(
                lane.model.model_name,
                f'Job {job.id!r} is over ({job.status}), so there is nothing to cancel.'
                if job.done
                else f'Another process waits for what is left of job {job.id!r} ({job.status}).',
                job,
            )
    return await _kept(job, ledger)


# Parts of them


@asynccontextmanager
async def _lane_of(job: BatchJob, model: Model | KnownModelName | str | None) -> AsyncGenerator[Lane]:
    """The lane of the model that looks at a job, with the model's client open.

    Raises:
        UserError: It is another model's job, or at another endpoint.
    """
    check_allow_model_requests()
    lane = lane_of_model(model) if model is not None else lane_of_job(job.model, job.id)
    async with lane.model:
        identity = await lane.identity()
        same = lane.info.name == job.lane and all(
            batch.batch.provider_name == lane.model.system and compat.same_group(batch.batch.group, identity)
            for batch in job.batches
        )
        if not same:
            other = (
                f'a client of another base URL than {shown_url(lane.model.base_url)}'
                if (job.model, job.lane) == (lane.model_reference, lane.info.name)
                else f'{job.model!r}, and not with {lane.model_reference!r}'
            )
            raise UserError(
                f'Job {job.id!r} was submitted with {other}: pass `model=` with the model and client that it was '
                'submitted with.'
            )
        yield lane


async def _checked(lane: Lane, job: BatchJob, clock: Clock) -> BatchJob:
    """The job after one check of each batch that is not over."""
    return replace(job, batches=tuple(await _all(_check(lane, batch, clock) for batch in job.batches)))


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What the calls for all batches come to. All of them end before an error of one is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


async def _check(lane: Lane, known: JobBatch, clock: Clock) -> JobBatch:
    if known.done and known.status != 'gone':
        return known
    try:
        batch = await lane.status(known.batch)
    except ModelAPIError as error:
        history = known.history
        if not history.tolerates(error, created_at=known.batch.created_at, now=utc(clock)):
            if not_found(error):
                # Others of the job go on, and this one may be there for another key.
                _log.warning('%s does not have batch %s.', lane.info.title, known.batch.id)
                return replace(known.checked(history), status='gone', checked_at=utc(clock))
            raise with_batch(error, known.batch) from error.__cause__
        _log.info('A check of batch %s failed, and says nothing about it: %s', known.batch.id, brief(error))
        return known.checked(history)
    return seen(lane, known, batch, clock)


async def _loaded(job: BatchJob | str, journal: JournalLike | None, clock: Clock) -> tuple[BatchJob, Ledger | None]:
    """The job, from the journal if it is given by its ID, and the journal, if there is one."""
    running_loop('A batch job')
    given = journal_of(journal)
    if isinstance(job, str) and given is not None and not given.exists:
        raise UserError(f'There is no journal {given.path} to find job {job!r} in.')
    ledger = await ledger_of(given, clock)
    if isinstance(job, str):
        if ledger is None:
            raise UserError(
                f'The ID of a job alone, {job!r}, is not enough: pass the `journal=` that it was submitted with, or '
                'the job itself, loaded with `BatchJob.from_json`.'
            )
        if (stored := await ledger.job(job)) is None:
            raise UserError(f'The journal {ledger.store.path} has no job {job!r}.')
        return BatchJob.from_json(stored), ledger
    if not isinstance(job, BatchJob):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(
            f'A `BatchJob` comes first, and not a `{type(job).__name__}`: load a stored one with `BatchJob.from_json`.'
        )
    return job, ledger


async def _kept(job: BatchJob, ledger: Ledger | None) -> BatchJob:
    """The job, which is as it is now in the journal too."""
    if ledger is not None:
        await ledger.keep_job(job.id, job.to_json())
    return job


def _check_same(job: BatchJob, requests: Sequence[BatchRequest]) -> None:
    given = [request.custom_id for request in requests]
    if len(set(given)) != len(given):
        raise UserError('Each request needs a `custom_id` of its own, as in the call that submitted them.')
    submitted = set(job.request_ids)
    missing, unknown = submitted - set(given), [request_id for request_id in given if request_id not in submitted]
    if missing or unknown:
        parts = [f'missing: {listed(sorted(map(repr, missing)))}'] if missing else []
        parts += [f'not in the job: {listed([repr(request_id) for request_id in unknown])}'] if unknown else []
        raise UserError(f'Collecting job {job.id!r} takes the requests that it was submitted with; {"; ".join(parts)}.')


def _still(job: BatchJob, so: str) -> str:
    """What is not over in a job."""
    unended = [batch for batch in job.batches if not batch.done]
    return (
        f'Job {job.id!r} is {job.status}, {so}: {len(unended)} of {len(job.batches)} batches not over. It goes on at '
        'the provider: wait for it with `wait_batch`, or collect what there is with `partial=True`. The `job` of this '
        'error is as it is now.'
    )
