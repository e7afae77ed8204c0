"""Lists of requests without an agent: submitted straight away in as few batches as they fit in, and waited for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pydantic_ai.models import KnownModelName, Model, check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from .chunks import Listed, check_requests
from .clock import SYSTEM_CLOCK, Clock
from .journal import JournalLike, journal_of, ledger_of
from .lanes.base import NotRun
from .list_call import ListCall, Outcome
from .named_model import lane_of_model
from .progress import Progress, TerminalProgress, listener_of
from .settings import (
    DEFAULT_MAX_POLL_INTERVAL,
    DEFAULT_MAX_RESUBMISSIONS,
    DEFAULT_POLL_INTERVAL,
    BatchSettings,
)
from .sync import run_sync, running_loop


async def model_request_batch(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Send requests through the model's batch API, and wait for all of their answers.

    Everything is submitted at once, in as few batches as count and bytes allow. Batches take minutes, and up to a day.
    Cancelling the call, as `asyncio.timeout` does, cancels the batches that have not ended. With a journal they go on,
    and the same call, made again, finds them.

    One request's trouble is its own: a row that cannot be encoded, a batch that cannot be created, checked or read,
    an answer that cannot be understood give just their rows an error, and the rest go on. An error of a batch that
    exists carries its handle ([`batch_of`][pydantic_ai_batch.exceptions.batch_of]); the batch is not cancelled.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ; they never go on the wire.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit, which caps any number.
        max_resubmissions: How many times a request that expired, is missing from the results or failed in a way that
            passes is submitted again.
        poll_interval: How long after its submission a batch is first checked. The interval grows by half each time.
        max_poll_interval: The longest interval between checks.
        window: How long the provider has for a batch, of the windows that its lane takes. `None` is the lane's own.
        journal: A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded, so that the same
            call in a process started later takes over what this one left, and pays for nothing twice.
        progress: `True` shows how the batches come along, in the terminal. A callable gets plain events instead.
        clock: What time is read from and slept on. Tests pass one that they move by hand.

    Returns:
        For each request, in their order, its response or the error it failed with.

    Raises:
        UserError: Something is wrong with the call: a setting out of range, a repeated `custom_id`, a setting that a
            batch cannot honour, messages that end in a pending response. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
        JournalError: The journal cannot be used. Nothing was sent.
    """
    settings = BatchSettings(
        max_requests=max_requests,
        max_bytes=max_bytes,
        max_resubmissions=max_resubmissions,
        poll_interval=poll_interval,
        max_poll_interval=max_poll_interval,
        window=window,
    )
    running_loop('`model_request_batch`')
    check_allow_model_requests()
    lane = lane_of_model(model).ask(window)
    check_requests(lane.model, requests)
    ledger = await ledger_of(journal_of(journal), clock, lane)
    listener = listener_of(progress, clock)
    outcomes: list[Outcome | None] = [None] * len(requests)

    def settled(place: int, outcome: Outcome, result: BatchResult | NotRun | None, batch: Batch | None) -> None:
        outcomes[place] = outcome

    call = ListCall(lane, settings, clock, Listed(requests), settled, listener, ledger)
    try:
        async with lane.model:
            # What is wrong with the client, such as a credential that may change from call to call, shows here.
            await lane.identity()
            await call.run()
    finally:
        # A call that was given up leaves requests that never come back.
        if isinstance(listener, TerminalProgress):
            listener.stop()
    came = [outcome for outcome in outcomes if outcome is not None]
    # A row without an outcome would give each one after it another row's answer.
    assert len(came) == len(requests)
    return came


def model_request_batch_sync(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Do what [`model_request_batch`][pydantic_ai_batch.model_request_batch] does, in code without an event loop.

    Ctrl-C cancels the batches that have not ended, and waits for the provider's answer; a second one leaves at once.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ.
        max_requests: The most requests in a batch.
        max_bytes: The most bytes in a batch, as encoded.
        max_resubmissions: How many times a request that failed in a way that passes is submitted again.
        poll_interval: How long after its submission a batch is first checked.
        max_poll_interval: The longest interval between checks.
        window: How long the provider has for a batch, of the windows that its lane takes. `None` is the lane's own.
        journal: A file, or a `Journal`, in which everything is recorded.
        progress: `True` shows how the batches come along; a callable gets plain events instead.
        clock: What time is read from and slept on.

    Returns:
        For each request, in their order, its response or the error it failed with.

    Raises:
        UserError: Something is wrong with the call, or an event loop is running on this thread.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    return run_sync(
        model_request_batch(
            model,
            requests,
            max_requests=max_requests,
            max_bytes=max_bytes,
            max_resubmissions=max_resubmissions,
            poll_interval=poll_interval,
            max_poll_interval=max_poll_interval,
            window=window,
            journal=journal,
            progress=progress,
            clock=clock,
        ),
        instead='model_request_batch(...)',
    )
