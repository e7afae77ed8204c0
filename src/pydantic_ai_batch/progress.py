"""Shows what is queued and how each batch comes along, in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING

from pydantic_ai.exceptions import UserError

from .compat import counted
from .events import BatchEvent, BatchTally, Listener, Tally

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Progress = bool | Callable[[BatchEvent], None]
"""`True` for a display in the terminal, `False` for none, or a callable that gets the events."""

_SHOWN = 12
"""How many batches are shown at the most; of more, those that are not done, the newest first."""


def listener_of(progress: Progress) -> Listener | None:
    """The listener that a `progress` setting asks for."""
    if callable(progress):
        return progress
    if progress not in (True, False):
        raise UserError(f'`progress` must be `True`, `False` or a callable, not {progress!r}.')
    return TerminalProgress() if progress else None


class TerminalProgress:
    """A display that is there while something is under way, and leaves its last state behind when all is done.

    On a terminal it is drawn in place, on standard error. Elsewhere, as in a log, a line is written when a batch is
    submitted and when its requests have come back.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        self.tally = Tally()
        self.console = console or Console(stderr=True)
        self._live: Live | None = None

    def __call__(self, event: BatchEvent) -> None:
        """Take an event in, and draw."""
        was_done = self._done_batch(event)
        self.tally(event)
        if not self.console.is_terminal:
            self._write(event, was_done)
        elif self.idle:
            self.stop()
        else:
            self._draw()

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and every batch has come back."""
        return self.tally.queued == 0 and all(batch.done for batch in self.tally.batches.values())

    def stop(self) -> None:
        """Leave the last state behind."""
        if self._live is not None:
            self._live.update(self.render())
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is None:
            from rich.live import Live

            # What the program prints goes where it is meant to, unless that is the terminal the display is drawn on.
            to_terminal = sys.stdout.isatty()
            self._live = Live(
                console=self.console, get_renderable=self.render, refresh_per_second=8, redirect_stdout=to_terminal
            )
            self._live.start()

    def render(self) -> RenderableType:
        """The counts, and a line for each batch."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        tally = self.tally
        counts: list[tuple[str, object, str]] = [
            ('queued', tally.queued, 'yellow'),
            ('submitted', tally.submitted, 'cyan'),
        ]
        counts += [('answered', tally.answered, 'green'), ('failed', tally.failed, 'red')]
        if tally.resubmitted:
            counts.append(('resubmitted', tally.resubmitted, 'yellow'))
        if tally.cost:
            cost = f'${tally.cost:.4f}' if tally.cost >= Decimal('0.0001') else 'under $0.0001'
            counts.append(('cost', cost, 'green'))
        head = Text('  ').join([Text.assemble(f'{name} ', (str(count), style)) for name, count, style in counts])
        table = Table.grid(padding=(0, 2))
        for batch in self._shown():
            table.add_row(
                Text(batch.batch.id, style='dim', overflow='ellipsis', no_wrap=True),
                Text(batch.batch.model_name),
                ProgressBar(total=max(1, batch.submitted), completed=_processed(batch), width=24),
                f'{_processed(batch)}/{batch.submitted}',
                Text(_status(batch)),
            )
        return Group(head, table)

    def _shown(self) -> list[BatchTally]:
        batches = list(self.tally.batches.values())
        if len(batches) <= _SHOWN:
            return batches
        return ([batch for batch in batches if not batch.done] or batches)[-_SHOWN:]

    def _done_batch(self, event: BatchEvent) -> bool:
        batch = self.tally.batches.get(event.batch.id) if event.batch is not None else None
        return batch is not None and batch.done

    def _write(self, event: BatchEvent, was_done: bool) -> None:
        if event.batch is None:
            return
        batch = self.tally.batches.get(event.batch.id)
        if batch is not None and event.kind == 'submitted':
            requests = 'request' if batch.submitted == 1 else 'requests'
            self.console.print(
                f'batch {batch.batch.id}: {batch.submitted} {requests} of {batch.batch.model_name} submitted',
                highlight=False,
                markup=False,
                soft_wrap=True,
            )
        elif batch is not None and batch.done and not was_done:
            self.console.print(
                f'batch {batch.batch.id}: {batch.answered} answered, {batch.failed} failed, '
                f'{batch.resubmitted} resubmitted'
                + (f', {batch.held} waiting for room in the queue' if batch.held else '')
                + (f', {batch.left} not waited for' if batch.left else ''),
                highlight=False,
                markup=False,
                soft_wrap=True,
            )


def _processed(batch: BatchTally) -> int:
    """How many requests have come back, or, before any has, how many the provider says it is done with."""
    return min(batch.submitted, max(batch.back, counted(batch.batch)))


def _status(batch: BatchTally) -> str:
    if batch.left and batch.done:
        return f'{batch.left} not waited for'
    if batch.done:
        return 'done' if not batch.failed else f'done, {batch.failed} failed'
    return str((batch.batch.provider_details or {}).get('status') or batch.batch.status)
