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
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.models import KnownModelName, Model, check_allow_model_requests, infer_model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from . import compat, lifecycle
from .batch_job import BatchJob, JobBatch, Refused
from .chunks import Chunk, Row, as_model_error, check_requests, fill, listed
from .clock import SYSTEM_CLOCK, Clock, sleep_until_due, utc
from .exceptions import BatchNotCancellable, BatchNotReady, ResultsGone, copy_of, with_batch
from .lanes import Lane, lane_for
from .lanes.base import NotRun, new_tag
from .list_call import Outcome
from .policy import full_queue, not_found, overdue, poll_delay
from .settings import DEFAULT_MAX_POLL_INTERVAL, DEFAULT_POLL_INTERVAL, BatchSettings
from .sync import running_loop

_log = logging.getLogger('pydantic_ai_batch')

T = TypeVar('T')


async def submit_batch(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Submit requests through the model's batch API, and return as soon as the provider has them.

    Store the job, as with [`to_json`][pydantic_ai_batch.BatchJob.to_json], before anything else: only with it are the
    answers found. Cancelling this call cancels the batches that it has made.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ; they never go on the wire.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit, which caps any number.
        clock: What time is read from and slept on. Tests pass one that they move by hand.

    Returns:
        The job, with every batch that could be created. Requests that cannot be encoded, or whose batch the provider
        refused, as when its queue is full, are in [`refused`][pydantic_ai_batch.BatchJob.refused] with the error.

    Raises:
        UserError: Something is wrong with the call, as in `model_request_batch`. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
    """
    settings = BatchSettings(max_requests=max_requests, max_bytes=max_bytes)
    running_loop('`submit_batch`')
    check_allow_model_requests()
    lane = lane_for(infer_model(model))
    check_requests(lane.model, requests)
    refused: list[Refused] = []
    created: list[tuple[Chunk, asyncio.Task[Batch]]] = []

    def refuse(row: Row, error: ModelAPIError) -> None:
        refused.append(Refused.of(error, [requests[row.place].custom_id]))

    async with lane.model:
        await lane.identity()
        rows = [Row(place) for place in range(len(requests))]
        chunks = fill(lane, settings, requests, rows, refused=refuse)
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    task = asyncio.get_running_loop().create_task(_create(lane, chunk, clock))
                    created.append((chunk, task))
            if created:
                await asyncio.wait([task for _, task in created])
        except BaseException:
            await _withdraw(lane, [task for _, task in created])
            raise
    batches: list[JobBatch] = []
    for chunk, task in created:
        request_ids = tuple(requests[row.place].custom_id for row in chunk.rows.values())
        if (error := task.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            refused.append(Refused.of(as_model_error(lane.model, error), request_ids))
            continue
        batch = task.result()
        status = lane.job_status(batch)
        batches.append(
            JobBatch(batch=batch, lane=lane.info.name, status=status, tag=chunk.payload.tag, request_ids=request_ids)
        )
    return BatchJob(
        id=new_tag(),
        model=lane.model_reference,
        lane=lane.info.name,
        created_at=utc(clock),
        batches=tuple(batches),
        refused=tuple(refused),
    )


async def _create(lane: Lane, chunk: Chunk, clock: Clock) -> Batch:
    with chunk.payload as payload:
        try:
            return await lifecycle.submit_owned(lane, payload, clock)
        except ModelAPIError as error:
            if full_queue(error) is not None:
                await lifecycle.discard(lane, payload)
            raise


async def _withdraw(lane: Lane, tasks: Sequence[asyncio.Task[Batch]]) -> None:
    """Cancel the batches of a submission that is broken off, as nobody will ever know of them."""

    async def withdraw(task: asyncio.Task[Batch]) -> None:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await lifecycle.give_up(lane, task.result())

    # Each for itself: one that is made must not run on while the reply to another is looked for.
    await asyncio.gather(*(withdraw(task) for task in tasks))


async def check_batch(
    job: BatchJob, model: Model | KnownModelName | str | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> BatchJob:
    """The job as it is now. Takes one status request for each batch that is not over.

    A check that fails in a way that says nothing about the batch leaves it as it was last read; after three in a row
    the next one raises.

    Args:
        job: The job.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        clock: What time is read from.

    Raises:
        UserError: The model cannot look at the job.
        ModelAPIError: A batch could not be checked.
    """
    async with _lane_of(job, model) as lane:
        return await _checked(lane, job, clock)


async def wait_batch(
    job: BatchJob,
    model: Model | KnownModelName | str | None = None,
    *,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    timeout: timedelta | None = None,  # noqa: ASYNC109 - it ends by a clock that tests move
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Check the job, at growing intervals, until all its batches are over, and return it as it is then.

    Args:
        job: The job.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        poll_interval: How long after the first check the second one is made. It grows by half each time.
        max_poll_interval: The longest interval between checks.
        timeout: How long to wait at the most. `None` waits as long as it takes.
        clock: What time is read from and slept on.

    Raises:
        BatchNotReady: The time was up, or no batch that is left has ended a quarter past its window. The error carries
            the job as it was last read; nothing is cancelled.
        UserError: The model cannot look at the job, or an interval is out of range.
        ModelAPIError: A batch could not be checked.
    """
    BatchSettings(poll_interval=poll_interval, max_poll_interval=max_poll_interval)
    if timeout is not None and not (isinstance(timeout, timedelta) and timeout >= timedelta(0)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f'`timeout` must be a `timedelta` that is not negative, not {timeout!r}.')
    deadline = None if timeout is None else clock.monotonic() + timeout.total_seconds()
    async with _lane_of(job, model) as lane:
        for polls in itertools.count():
            job = await _checked(lane, job, clock)
            if job.done:
                break
            stuck = [batch for batch in job.batches if not batch.done]
            if all(overdue(batch.batch.created_at, lane.window, utc(clock)) for batch in stuck):
                raise BatchNotReady(lane.model.model_name, _still(job, 'long after its window'), job)
            asked = max((batch.retry_after for batch in job.batches), default=0.0)
            delay = max(poll_delay(polls, poll_interval, max_poll_interval), asked)
            if deadline is not None:
                if clock.monotonic() >= deadline:
                    raise BatchNotReady(lane.model.model_name, _still(job, 'and the time to wait for it is up'), job)
                delay = min(delay, deadline - clock.monotonic())
            await sleep_until_due(clock, delay)
    return job


@overload
async def collect_batch(
    job: BatchJob,
    requests: Sequence[BatchRequest],
    model: Model | KnownModelName | str | None = None,
    *,
    partial: Literal[False] = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]: ...


@overload
async def collect_batch(
    job: BatchJob,
    requests: Sequence[BatchRequest],
    model: Model | KnownModelName | str | None = None,
    *,
    partial: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome | None]: ...


async def collect_batch(
    job: BatchJob,
    requests: Sequence[BatchRequest],
    model: Model | KnownModelName | str | None = None,
    *,
    partial: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome] | list[Outcome | None]:
    """Read the answers of a job. It can be collected as often as the provider keeps its results.

    Args:
        job: The job, however old what it says of its batches is: they are checked.
        requests: The requests that it was submitted with, by which the answers are read.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        partial: Whether to read what there is while batches are not over.
        clock: What time is read from and slept on.

    Returns:
        For each request, in their order, its response or the error it failed with, as `model_request_batch` returns
        them; `None`, with `partial`, for one whose batch is not over.

    Raises:
        BatchNotReady: A batch is not over, and `partial` is not set. The error carries the job as it is now.
        UserError: The requests are not the job's, or the model cannot look at it.
        ModelAPIError: A batch could not be checked, and `partial` is not set.
    """
    _check_job(job)
    by_id = {request.custom_id: request for request in requests}
    _check_same(job, requests)
    outcomes: dict[str, Outcome] = {}
    async with _lane_of(job, model) as lane:
        read = await _all(_read(lane, batch, by_id, outcomes, clock, partial=partial) for batch in job.batches)
    job = replace(job, batches=tuple(batch for batch, _ in read))
    if not partial and not all(over for _, over in read):
        raise BatchNotReady(lane.model.model_name, _still(job, 'so not all answers are there'), job)
    for refused in job.refused:
        outcomes.update((request_id, refused.error()) for request_id in refused.request_ids)
    return [outcomes.get(request.custom_id) for request in requests]


async def cancel_batch(
    job: BatchJob, model: Model | KnownModelName | str | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> BatchJob:
    """Ask the provider to stop the batches of a job that are not over, and return it as it is then.

    Each batch is asked to stop once and then checked. What was finished by then can be collected, and may be billed.

    Args:
        job: The job.
        model: The model that it was submitted with, or its name; `None` goes by the name that the job has.
        clock: What time is read from.

    Raises:
        BatchNotCancellable: There is nothing to stop, or the provider cannot. The error carries the job as it is now.
        UserError: The model cannot look at the job.
        ModelAPIError: The provider could not be asked.
    """
    async with _lane_of(job, model) as lane:
        if not lane.info.cancellable:
            raise BatchNotCancellable(lane.model.model_name, f'{lane.info.title} cannot cancel a batch.', job)
        failures: dict[str, ModelAPIError] = {}
        unended = [batch for batch in job.batches if not batch.done]
        for batch in unended:
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
                lane.model.model_name, f'Job {job.id!r} is over ({job.status}), so there is nothing to cancel.', job
            )
    return job


# Parts of them


@asynccontextmanager
async def _lane_of(job: BatchJob, model: Model | KnownModelName | str | None) -> AsyncGenerator[Lane]:
    """The lane of the model that looks at a job, with the model's client open.

    Raises:
        UserError: It is another model's job, or at another endpoint.
    """
    running_loop('A batch job')
    _check_job(job)
    check_allow_model_requests()
    lane = lane_for(infer_model(model or job.model))
    async with lane.model:
        identity = await lane.identity()
        same = lane.info.name == job.lane and all(
            batch.batch.provider_name == lane.model.system and compat.same_group(batch.batch.group, identity)
            for batch in job.batches
        )
        if not same:
            raise UserError(
                f'Job {job.id!r} was submitted with {job.model!r}, and {lane.model_reference!r}, as it is here, cannot '
                'look at it: it is another model, or has another base URL. Pass `model=` with the model and client '
                'that it was submitted with.'
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
    if known.done:
        return known
    try:
        batch = await lane.status(known.batch)
    except ModelAPIError as error:
        history = known.history
        if not history.tolerates(error, created_at=known.batch.created_at, now=utc(clock)):
            raise with_batch(error, known.batch) from error.__cause__
        _log.info('A check of batch %s failed, and says nothing about it: %s', known.batch.id, error)
        return known.checked(history)
    return _seen(lane, known, batch, clock)


def _seen(lane: Lane, known: JobBatch, batch: Batch, clock: Clock) -> JobBatch:
    status = lane.job_status(batch)
    return replace(
        known, batch=batch, status=status, checked_at=utc(clock), failed_checks=0, not_found=0, retry_after=0.0
    )


async def _read(
    lane: Lane,
    known: JobBatch,
    requests: dict[str, BatchRequest],
    outcomes: dict[str, Outcome],
    clock: Clock,
    *,
    partial: bool,
) -> tuple[JobBatch, bool]:
    """Check a batch once and, if it is over, read its results into `outcomes`.

    Results that cannot be read for good, or a batch that is gone, give its requests that error. What only says that the
    batch could not be checked is raised, as it may well have answers: an error for a row must not invite to pay again.

    Returns:
        The batch as it is now, and whether each of its requests has its outcome.
    """
    open_requests = {wire_id: requests[request_id] for wire_id, request_id in known.requests}
    names = dict(known.requests)

    async def settle(result: BatchResult | NotRun, request: BatchRequest) -> None:
        try:
            outcomes[request.custom_id] = await lane.outcome(result, request)
        except Exception as error:
            outcomes[request.custom_id] = with_batch(as_model_error(lane.model, error), known.batch)

    async def deliver(result: BatchResult) -> None:
        await settle(result, open_requests.pop(result.custom_id))

    watch = lifecycle.BatchWatch(lane, known.batch, BatchSettings(), clock, deliver, is_known=names.__contains__)
    try:
        while not await watch.look():
            faults = watch.history.failed or watch.history.not_found
            if watch.batch.status != 'ended' and not faults:
                return _seen(lane, known, watch.batch, clock), False
            await sleep_until_due(clock, watch.delay)
    except Exception as error:
        failure = as_model_error(lane.model, error)
        gone = not_found(failure)
        if watch.batch.status != 'ended' and not gone:
            late = overdue(known.batch.created_at, lane.window, utc(clock))
            if partial or (late and not isinstance(error, ModelHTTPError | ModelConnectionError)):
                _log.warning('Batch %s is not collected: %s', known.batch.id, error)
                return (_seen(lane, known, watch.batch, clock) if late else known.checked(watch.history)), False
            raise with_batch(failure, known.batch) from error
        if gone:
            failure = ResultsGone(
                lane.model.model_name,
                f'{lane.info.title} no longer has batch {known.batch.id!r} or its results: they are kept for a limited '
                'time, and only for the project that made them. To run the requests again, submit them again.',
            )
            failure.__cause__ = error
        for request in open_requests.values():
            outcomes[request.custom_id] = with_batch(copy_of(failure), known.batch)
        return (known if gone else _seen(lane, known, watch.batch, clock)), True
    for wire_id, request in open_requests.items():
        result = watch.missing(wire_id)
        if isinstance(result, NotRun) and result.culprit in names:
            result = result.because_of(names[result.culprit])
        await settle(result, request)
    return _seen(lane, known, watch.batch, clock), True


def _check_job(job: object) -> None:
    if not isinstance(job, BatchJob):
        raise UserError(
            f'A `BatchJob` comes first, and not a `{type(job).__name__}`: load a stored one with `BatchJob.from_json`.'
        )


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
        'the provider. Wait for it with `wait_batch`, or collect what there is with `partial=True`.'
    )
