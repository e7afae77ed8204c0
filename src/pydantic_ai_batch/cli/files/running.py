"""Runs the rows of a file: sends them, waits or leaves, and writes the answers beside the rows."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic_ai.exceptions import UserError
from rich.console import Console

from pydantic_ai_batch.clock import SYSTEM_CLOCK, Clock
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.exceptions import RunStopped
from pydantic_ai_batch.journal import Journal
from pydantic_ai_batch.progress import TerminalProgress
from pydantic_ai_batch.rows.base import RowSource
from pydantic_ai_batch.rows.formats import format_of
from pydantic_ai_batch.rows.guards import Guards
from pydantic_ai_batch.rows.plan import caveats_of
from pydantic_ai_batch.rows.records import RowResult
from pydantic_ai_batch.rows.row_run import RowRun
from pydantic_ai_batch.rows.running import opened_run
from pydantic_ai_batch.rows.sink import open_output
from pydantic_ai_batch.rows.source import open_rows
from pydantic_ai_batch.rows.verifying import Verification
from pydantic_ai_batch.wording import counted

from .cancelling import cancel_open
from .options import RunOptions
from .piped import keep, rows_beside
from .summary import Summary
from .table import Columns

OnInterrupt = Literal['ask', 'cancel', 'leave']

OK, FAILED, LEFT, STOPPED, INTERRUPTED = 0, 1, 3, 4, 130
"""The exit codes of a run. 2 is that nothing was sent, as something is wrong with the command or the input."""

_LOOKS = 0.2
"""Seconds between looks at whether everything was sent."""

_PAGE = 200


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How a run is waited for."""

    detach: bool = False
    """Whether to leave when everything is sent."""

    wait: float | None = None
    """Seconds after which to leave."""

    on_interrupt: OnInterrupt = 'ask'
    """What Ctrl-C does to the batches."""

    again: bool = False
    """Whether the run was begun before, so that what is to be known of its lanes was told."""

    quiet: bool = False
    """Whether to show neither progress nor a summary."""

    as_json: bool = False
    """Whether the summary is JSON, on standard output."""


async def run_file(
    options: RunOptions,
    journal: Path | None,
    guards: Guards,
    manner: Manner,
    clock: Clock = SYSTEM_CLOCK,
    piped: BinaryIO | None = None,
) -> int:
    """Run the rows of a file, and return the exit code.

    Args:
        options: What is asked of the run.
        journal: Where it is recorded.
        guards: What may stop it.
        manner: How it is waited for.
        clock: What time is read from and slept on.
        piped: What standard input held, if the rows came from there.

    Raises:
        UserError: Something is wrong. Nothing was sent.
    """
    console = Console(stderr=True)
    guards = replace(guards, verify=options.verify)
    _refuse_one_file(options, journal)
    job = options.job()
    display = _Display(None if manner.quiet else TerminalProgress(console, clock=clock))
    kept_in = Journal(journal) if journal is not None else None
    with open_rows(options.rows, format=options.format, delimiter=options.delimiter, stdin=piped) as source:
        opened = opened_run(job, source, options.batches, clock, kept_in, display, guards, command=options.kept())
        async with opened as run:
            columns = Columns.of(source, job.outputs.output_type)
            # Whether it can be written shows before anything is paid for.
            _open(options, source, columns, stdout=BytesIO()).discard()
            if piped is not None and journal is not None and not (manner.again and rows_beside(journal).exists()):
                await asyncio.to_thread(keep, piped, journal)
            if not manner.quiet:
                _tell(console, run, options, journal, manner)
            end = await _send(run, manner, console, kept_in, display)
            display.close()
            if end == 'left' and journal is not None:
                if not manner.quiet:
                    _say_how_to_go_on(console, run, journal)
                return LEFT
            if end == 'cancelled':
                if journal is not None:
                    await cancel_open(journal, console)
                return INTERRUPTED
            summary = await _write(run, options, source, columns)
    if manner.as_json:
        Console(file=sys.stdout).print_json(data={**summary.to_json(), 'output': options.to})
    elif not manner.quiet:
        summary.show(console)
        if run.verification is not None:
            _say_what_is_proven(console, run.verification)
        if options.to != '-':
            console.print(f'Written to {_near(options.to)}', highlight=False)
        if summary.failed and journal is not None:
            console.print(f'To send what failed again: pydantic-ai-batch retry {journal}', highlight=False)
    if run.stopped is not None:
        console.print(f'[red]The run was stopped: {run.stopped}.[/red]', highlight=False)
        return STOPPED
    return FAILED if summary.failed else OK


def _refuse_one_file(options: RunOptions, journal: Path | None) -> None:
    """Refuse an output that is the journal, which it would take the place of."""
    if journal is not None and options.to != '-' and journal.resolve() == Path(options.to).resolve():
        raise UserError(f'The output {options.to} is the journal as well: give one of them another name.')


def _open(options: RunOptions, source: RowSource, columns: Columns, stdout: BinaryIO | None = None) -> Any:
    format, delimiter = options.output_format, options.delimiter
    if options.to == '-' and format is None:
        # It has no suffix to go by.
        how = format_of(options.rows, format=options.format, delimiter=delimiter)
        format, delimiter = how.format, how.delimiter if how.format == 'csv' else None
    return open_output(options.to, columns.all, format=format, delimiter=delimiter, stdout=stdout, like=source)


def _tell(console: Console, run: RowRun, options: RunOptions, journal: Path | None, manner: Manner) -> None:
    """Print what is to be known before anything is sent."""
    if run.settled:
        console.print(f'{run.settled:,} of {counted(run.rows, "row")} are in {journal} already.', highlight=False)
    if run.settled == run.rows or manner.again:
        return
    for caveat in caveats_of(run.lanes, window=options.batches.window, columns=run.columns):
        console.print(f'[dim]· {caveat}[/dim]', highlight=False)
    for problem in run.faults:
        console.print(f'[yellow]Not sent: {problem}[/yellow]', highlight=False)


def _say_what_is_proven(console: Console, verification: Verification) -> None:
    proven, silent = verification.proven, verification.silent
    if proven or silent:
        more = f'; {silent:,} had none, which proves nothing' if silent else ''
        console.print(f'{proven:,} of the sampled rows brought their own token back{more}', highlight=False)


def _say_how_to_go_on(console: Console, run: RowRun, journal: Path) -> None:
    left = run.rows - run.settled
    console.print(
        f'{left:,} of {counted(run.rows, "row")} are on their way. To collect them, or to see how far they are:\n'
        f'  pydantic-ai-batch collect {journal}\n  pydantic-ai-batch status {journal}',
        highlight=False,
    )


def _near(path: str) -> str:
    """A path as it is from here, if it is below."""
    from_here = os.path.relpath(path)
    return path if from_here.startswith(os.pardir) else from_here


class _Display:
    """The progress display, until it is closed."""

    def __init__(self, shown: TerminalProgress | None) -> None:
        self._shown = shown

    def __call__(self, event: BatchEvent) -> None:
        if self._shown is not None:
            self._shown(event)

    def close(self) -> None:
        """Leave its last state behind."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


# Waiting


async def _send(
    run: RowRun, manner: Manner, console: Console, journal: Journal | None, display: _Display
) -> Literal['done', 'left', 'cancelled']:
    """Send the rows, and wait until they are done with, or there is a reason to leave them."""
    sending = asyncio.ensure_future(run.send())
    interrupted = asyncio.Event()
    restore = _on_interrupt(interrupted)
    loop = asyncio.get_running_loop()
    deadline = None if manner.wait is None else loop.time() + manner.wait
    try:
        while not sending.done():
            left = None if deadline is None else deadline - loop.time()
            if interrupted.is_set():
                # What is drawn would be drawn over the question.
                display.close()
                keep = journal is not None and await _keeps(manner.on_interrupt, console)
                return 'left' if keep else 'cancelled'
            if (left is not None and left <= 0) or (manner.detach and run.sent):
                return 'left'
            waits = {asyncio.ensure_future(interrupted.wait())}
            limits = [limit for limit in (left, _LOOKS if manner.detach else None) if limit is not None]
            await asyncio.wait({sending, *waits}, timeout=min(limits, default=None), return_when='FIRST_COMPLETED')
            for wait in waits:
                wait.cancel()
        with suppress(RunStopped):
            await sending
        return 'done'
    finally:
        with _without_warnings():
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        restore()


@contextmanager
def _without_warnings() -> Generator[None]:
    """Leave out what the log says of batches that are left, as the command says it itself."""
    log = logging.getLogger('pydantic_ai_batch')
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _on_interrupt(interrupted: asyncio.Event) -> Callable[[], None]:
    """Note Ctrl-C, the second of which leaves at once, as it does without this."""
    loop = asyncio.get_running_loop()

    def note() -> None:
        interrupted.set()
        loop.remove_signal_handler(signal.SIGINT)

    try:
        loop.add_signal_handler(signal.SIGINT, note)
    except (NotImplementedError, RuntimeError, ValueError):
        # No such thing on Windows, or not on the main thread.
        return lambda: None

    def restore() -> None:
        loop.remove_signal_handler(signal.SIGINT)

    return restore


async def _keeps(on_interrupt: OnInterrupt, console: Console) -> bool:
    """Whether batches are left running after Ctrl-C."""
    if on_interrupt != 'ask' or not sys.stdin.isatty():
        return on_interrupt != 'cancel'
    console.print('\nCancel the batches, or leave them running? What is finished is billed in either case.')
    console.print('Type c to cancel them, or anything else to leave them: ', end='')
    answer = await asyncio.to_thread(sys.stdin.readline)
    return not answer.strip().lower().startswith('c')


# Writing


async def _write(run: RowRun, options: RunOptions, source: RowSource, columns: Columns) -> Summary:
    """Write every row with what came of it, in their order."""
    summary = Summary()
    with _open(options, source, columns) as sink:
        async for result in _all(run):
            summary.take(result)
            sink.write(columns.row(result))
    return summary


async def _all(run: RowRun) -> AsyncGenerator[RowResult[Any]]:
    for start in range(0, run.rows, _PAGE):
        for result in await run.so_far(range(start, min(start + _PAGE, run.rows))):
            yield result
