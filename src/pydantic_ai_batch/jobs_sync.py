"""The calls of [`jobs`][pydantic_ai_batch.jobs] for code without an event loop.

Ctrl-C ends a wait and leaves the batches as they are; while they are submitted, it cancels them. A second one leaves at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, overload

from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.models.batch import BatchRequest

from .batch_job import BatchJob
from .clock import SYSTEM_CLOCK, Clock
from .jobs import cancel_batch, check_batch, collect_batch, submit_batch, wait_batch
from .journal import JournalLike
from .list_call import Outcome
from .settings import DEFAULT_MAX_POLL_INTERVAL, DEFAULT_POLL_INTERVAL
from .sync import run_sync


def submit_batch_sync(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Do what [`submit_batch`][pydantic_ai_batch.submit_batch] does, in code without an event loop.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ.
        max_requests: The most requests in a batch.
        max_bytes: The most bytes in a batch, as encoded.
        window: How long the provider has for a batch.
        journal: A file, or a `Journal`, in which everything is recorded.
        clock: What time is read from and slept on.

    Raises:
        UserError: Something is wrong with the call, or an event loop is running on this thread.
    """
    call = submit_batch(
        model,
        requests,
        max_requests=max_requests,
        max_bytes=max_bytes,
        window=window,
        journal=journal,
        clock=clock,
    )
    return run_sync(call, instead='submit_batch(...)')


def check_batch_sync(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Do what [`check_batch`][pydantic_ai_batch.check_batch] does, in code without an event loop.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name.
        journal: The journal that it was submitted with.
        clock: What time is read from.

    Raises:
        UserError: The model cannot look at the job, or an event loop is running on this thread.
        ModelAPIError: A batch could not be checked.
    """
    return run_sync(check_batch(job, model, journal=journal, clock=clock), instead='check_batch(...)')


def wait_batch_sync(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    timeout: timedelta | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Do what [`wait_batch`][pydantic_ai_batch.wait_batch] does, in code without an event loop.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name.
        journal: The journal that it was submitted with.
        poll_interval: How long after the first check the second one is made.
        max_poll_interval: The longest interval between checks.
        timeout: How long to wait at the most.
        clock: What time is read from and slept on.

    Raises:
        BatchNotReady: The time was up. Nothing is cancelled.
        UserError: The model cannot look at the job, or an event loop is running on this thread.
        ModelAPIError: A batch could not be checked.
    """
    call = wait_batch(
        job,
        model,
        journal=journal,
        poll_interval=poll_interval,
        max_poll_interval=max_poll_interval,
        timeout=timeout,
        clock=clock,
    )
    return run_sync(call, instead='wait_batch(...)')


@overload
def collect_batch_sync(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: Literal[False] = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]: ...


@overload
def collect_batch_sync(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: bool,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome | None]: ...


def collect_batch_sync(
    job: BatchJob | str,
    requests: Sequence[BatchRequest] | None = None,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    partial: bool = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome] | list[Outcome | None]:
    """Do what [`collect_batch`][pydantic_ai_batch.collect_batch] does, in code without an event loop.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        requests: The requests that it was submitted with, which can be left out with a journal.
        model: The model that it was submitted with, or its name.
        journal: The journal that it was submitted with.
        partial: Whether to read what there is while batches are not over.
        clock: What time is read from and slept on.

    Raises:
        BatchNotReady: A batch is not over, and `partial` is not set.
        UserError: The requests are not the job's, or an event loop is running on this thread.
    """
    call = collect_batch(job, requests, model, journal=journal, partial=partial, clock=clock)
    return run_sync(call, instead='collect_batch(...)')


def cancel_batch_sync(
    job: BatchJob | str,
    model: Model | KnownModelName | str | None = None,
    *,
    journal: JournalLike | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> BatchJob:
    """Do what [`cancel_batch`][pydantic_ai_batch.cancel_batch] does, in code without an event loop.

    Args:
        job: The job, or its ID if it was submitted with a journal.
        model: The model that it was submitted with, or its name.
        journal: The journal that it was submitted with.
        clock: What time is read from.

    Raises:
        BatchNotCancellable: There is nothing to stop, or the provider cannot.
        UserError: The model cannot look at the job, or an event loop is running on this thread.
        ModelAPIError: The provider could not be asked.
    """
    return run_sync(cancel_batch(job, model, journal=journal, clock=clock), instead='cancel_batch(...)')
