"""Batches over rows, from Python: a table in, results out, whatever its length."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch.clock import SYSTEM_CLOCK, Clock
from pydantic_ai_batch.exceptions import RowFailed
from pydantic_ai_batch.journal import JournalLike, journal_of
from pydantic_ai_batch.progress import Progress, TerminalProgress, listener_of
from pydantic_ai_batch.settings import (
    DEFAULT_MAX_POLL_INTERVAL,
    DEFAULT_MAX_RESUBMISSIONS,
    DEFAULT_POLL_INTERVAL,
    BatchSettings,
)
from pydantic_ai_batch.sync import run_sync, running_loop

from .formats import Format
from .guards import Guards
from .job import ModelLike, RowJob
from .records import RowResult
from .running import opened_run
from .source import open_rows

Rows = str | os.PathLike[str] | Iterable[Mapping[str, Any] | str]
"""A file, or the rows themselves."""


async def run_rows(
    rows: Rows,
    *,
    model: ModelLike | None = None,
    prompt: str | None = None,
    instructions: str | None = None,
    output_type: Any = str,
    id_column: str | None = None,
    input_column: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    model_settings: ModelSettings | None = None,
    ordered: bool = False,
    format: Format | None = None,
    delimiter: str | None = None,
    canary: int | None = None,
    verify: int | None = None,
    max_failures: float | int | None = None,
    max_cost: Decimal | float | None = None,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> AsyncGenerator[RowResult[Any]]:
    """Send a request for each row through the batch API of its model, and yield each row beside what came of it.

    Everything is looked at before anything is sent. Memory does not grow with the length of the rows or of the answers.
    With a journal, the same call in a process started later goes on where this one ended, and pays for nothing twice;
    rows that failed stay failed. Leaving the loop, or cancelling it, cancels the batches that have not ended, unless a
    journal keeps them.

    Args:
        rows: A CSV, JSONL or Parquet file, or mappings, or texts. Rows that have `url` and `body` are requests as the
            provider takes them.
        model: The model, its name, or an agent, whose runs the rows are then. `None` if each row has a `model`.
        prompt: The template of the prompts, with columns in double braces: `Summarise: {{ text }}`.
        instructions: The instructions of every row.
        output_type: What an answer has to be, as an agent takes it. What is not valid is asked for again.
        id_column: The column of the IDs; by default `id`, or the number of the row where there is none.
        input_column: The column of the prompts, without a template; by default `input`. It has texts or lists of
            messages.
        temperature: The temperature of the answers.
        max_tokens: The most tokens of an answer.
        model_settings: Other settings. A row may have its own in a column `settings`.
        ordered: Whether to yield the results in the order of the rows, and not as they come.
        format: The format of the file, if it is not that of its suffix.
        delimiter: The character between two fields of a CSV file.
        canary: How many rows are sent first. The others follow if enough of those are answered.
        verify: How many rows, spread over all, have a token in their prompt, which is taken out of their answers again.
            An answer with the token of another row stops the run.
        max_failures: How many rows, or which share of them, may fail before no further batch is sent. Batches go one
            after the other then.
        max_cost: How much the answers may cost, in US dollars, before no further batch is sent.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit, which caps any number.
        max_resubmissions: How many times a request that failed in a way that passes is submitted again.
        poll_interval: How long after its submission a batch is first checked. It grows by half with every check.
        max_poll_interval: The longest interval between checks.
        window: How long the provider has for a batch, of the windows that its lane takes. `None` is the lane's own.
        journal: A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded.
        progress: `True` shows how the batches come along, in the terminal. A callable gets plain events instead.
        clock: What time is read from and slept on. Tests pass one that they move by hand.

    Yields:
        For each row, its [`RowResult`][pydantic_ai_batch.RowResult].

    Raises:
        InputProblems: Something is wrong with rows; all of it is listed. Nothing was sent.
        ParameterConflict: A parameter has different values in two places. Nothing was sent.
        RunChanged: The journal has a run of other rows, or with other settings. Nothing was sent.
        RunStopped: `canary`, `max_failures`, `max_cost` or `verify` stopped it. The results that there are were yielded
            before.
        UserError: Something else is wrong with the call. Nothing was sent.
        NoBatchLane: A model cannot be batched. Nothing was sent.
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
    running_loop('`run_rows`')
    check_allow_model_requests()
    job = RowJob(
        model=model,
        prompt=prompt,
        instructions=instructions,
        output_type=output_type,
        id_column=id_column,
        input_column=input_column,
        temperature=temperature,
        max_tokens=max_tokens,
        model_settings=model_settings,
        verify=verify,
    )
    guards = Guards(
        canary=canary,
        max_failures=max_failures,
        max_cost=None if max_cost is None else _dollars(max_cost),
        verify=verify,
    )
    listener = listener_of(progress, clock)
    with open_rows(rows, format=format, delimiter=delimiter) as source:
        try:
            opened = opened_run(job, source, settings, clock, journal_of(journal), listener, guards)
            async with opened as run, aclosing(run.results(ordered=ordered)) as results:
                async for result in results:
                    yield result
        finally:
            if isinstance(listener, TerminalProgress):
                listener.stop()


def _dollars(amount: Decimal | float) -> Decimal:
    try:
        return Decimal(str(amount))
    except InvalidOperation:
        raise UserError(f'`max_cost` must be a sum in US dollars above 0, not {amount!r}.') from None


async def batch_map(
    model: ModelLike,
    items: Iterable[Any],
    *,
    prompt: str | None = None,
    instructions: str | None = None,
    output_type: Any = str,
    errors: Literal['none', 'return', 'raise'] = 'none',
    temperature: float | None = None,
    max_tokens: int | None = None,
    model_settings: ModelSettings | None = None,
    canary: int | None = None,
    verify: int | None = None,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Any]:
    """Ask a model, or an agent, about each of some items in batches, and return the answers in their order.

    Args:
        model: The model, its name, or an agent, whose runs the items are then, tools included.
        items: Texts, which are the prompts, or mappings that `prompt` is filled in with.
        prompt: The template of the prompts, with keys in double braces. Texts are its `{{ input }}`.
        instructions: The instructions of every item.
        output_type: What an answer has to be, as an agent takes it. What is not valid is asked for again, as an agent
            does.
        errors: What stands for an item that failed: `'none'` is `None`, `'return'` its error. `'raise'` raises the
            first one, when all items are done with.
        temperature: The temperature of the answers.
        max_tokens: The most tokens of an answer.
        model_settings: Other settings.
        canary: How many items are sent first. The others follow if enough of those are answered.
        verify: How many items, spread over all, have a token in their prompt, which is taken out of their answers
            again. An answer with the token of another item stops the run.
        max_requests: The most requests in a batch. `None` is the lane's own limit.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit.
        max_resubmissions: How many times a request that failed in a way that passes is submitted again.
        poll_interval: How long after its submission a batch is first checked. It grows by half with every check.
        max_poll_interval: The longest interval between checks.
        window: How long the provider has for a batch. `None` is the lane's own window.
        journal: A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded.
        progress: `True` shows how the batches come along, in the terminal. A callable gets plain events instead.
        clock: What time is read from and slept on.

    Returns:
        For each item, its answer, in the order of the items.

    Raises:
        RowFailed: An item failed, and `errors` is `'raise'`.
        RunStopped: The trial of `canary` failed, or an answer had the token of another item.
        UserError: Something is wrong with the call. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
    """
    if errors not in ('none', 'return', 'raise'):
        raise UserError(f"`errors` must be 'none', 'return' or 'raise', not {errors!r}.")
    if isinstance(items, str | bytes | Mapping) or not hasattr(items, '__iter__'):
        raise UserError(
            f'`items` must be an iterable of texts or mappings, not one {type(cast("Any", items)).__name__}.'
        )
    rows = items
    if not isinstance(items, Sequence) and not hasattr(items, 'columns'):
        rows = list(items)
    if isinstance(rows, Sequence) and not rows:
        return []
    answers: list[Any] = []
    results = run_rows(
        rows,
        model=model,
        prompt=prompt,
        instructions=instructions,
        output_type=output_type,
        temperature=temperature,
        max_tokens=max_tokens,
        model_settings=model_settings,
        ordered=True,
        canary=canary,
        verify=verify,
        max_requests=max_requests,
        max_bytes=max_bytes,
        max_resubmissions=max_resubmissions,
        poll_interval=poll_interval,
        max_poll_interval=max_poll_interval,
        window=window,
        journal=journal,
        progress=progress,
        clock=clock,
    )
    first: ModelAPIError | None = None
    async with aclosing(results):
        async for result in results:
            failure = None if result.ok else RowFailed.of(result)
            first = first or failure
            answers.append(result.output if failure is None else failure if errors == 'return' else None)
    if first is not None and errors == 'raise':
        raise first
    return answers


def batch_map_sync(
    model: ModelLike,
    items: Iterable[Any],
    *,
    prompt: str | None = None,
    instructions: str | None = None,
    output_type: Any = str,
    errors: Literal['none', 'return', 'raise'] = 'none',
    temperature: float | None = None,
    max_tokens: int | None = None,
    model_settings: ModelSettings | None = None,
    canary: int | None = None,
    verify: int | None = None,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    window: timedelta | None = None,
    journal: JournalLike | None = None,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Any]:
    """Do what [`batch_map`][pydantic_ai_batch.batch_map] does, in code without an event loop.

    Args:
        model: The model, its name, or an agent, whose runs the items are then, tools included.
        items: Texts, which are the prompts, or mappings that `prompt` is filled in with.
        prompt: The template of the prompts, with keys in double braces. Texts are its `{{ input }}`.
        instructions: The instructions of every item.
        output_type: What an answer has to be, as an agent takes it. What is not valid is asked for again, as an agent
            does.
        errors: What stands for an item that failed: `'none'` is `None`, `'return'` its error. `'raise'` raises the
            first one, when all items are done with.
        temperature: The temperature of the answers.
        max_tokens: The most tokens of an answer.
        model_settings: Other settings.
        canary: How many items are sent first. The others follow if enough of those are answered.
        verify: How many items, spread over all, have a token in their prompt, which is taken out of their answers
            again. An answer with the token of another item stops the run.
        max_requests: The most requests in a batch. `None` is the lane's own limit.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit.
        max_resubmissions: How many times a request that failed in a way that passes is submitted again.
        poll_interval: How long after its submission a batch is first checked. It grows by half with every check.
        max_poll_interval: The longest interval between checks.
        window: How long the provider has for a batch. `None` is the lane's own window.
        journal: A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded.
        progress: `True` shows how the batches come along, in the terminal. A callable gets plain events instead.
        clock: What time is read from and slept on.

    Returns:
        For each item, its answer, in the order of the items.

    Raises:
        RowFailed: An item failed, and `errors` is `'raise'`.
        RunStopped: The trial of `canary` failed, or an answer had the token of another item.
        UserError: Something is wrong with the call, or an event loop is running on this thread. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
    """
    return run_sync(
        batch_map(
            model,
            items,
            prompt=prompt,
            instructions=instructions,
            output_type=output_type,
            errors=errors,
            temperature=temperature,
            max_tokens=max_tokens,
            model_settings=model_settings,
            canary=canary,
            verify=verify,
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
        instead='batch_map(...)',
    )
