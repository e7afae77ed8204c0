"""Shows what is queued and how each batch comes along, in the terminal."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pydantic_ai.exceptions import UserError

from .clock import SYSTEM_CLOCK, Clock, utc
from .compat import counted
from .events import BatchEvent, BatchTally, Listener, Tally
from .lanes.base import UNKNOWN_TIME
from .pricing import dollars
from .wording import counted as number_of

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

Progress = bool | Callable[[BatchEvent], None]
"""`True` for a display in the terminal, `False` for none, or a callable that gets the events."""

_SHOWN = 12
"""How many batches are shown at the most."""

_REFRESHES = 1
"""How often a second the display is drawn: what it shows changes every half minute, and only the times in between."""

_BAR, _SHORT_BAR = 24, 8
"""How wide a bar is where there is room, and below which width there is none."""

_GAP = 2
"""How far the columns are apart."""

_SHORT_ID, _LONG_STATUS = 20, 24
"""How much of an ID is shown before the bar gets its room, and from which width on a status may be cut too."""


def listener_of(progress: Progress, clock: Clock = SYSTEM_CLOCK) -> Listener | None:
    """The listener that a `progress` setting asks for. A display reads its times from `clock`.

    Raises:
        UserError: It is something else than a setting can be, such as an async function.
    """
    if callable(progress):
        if _is_not_plain(progress):
            raise UserError(
                '`progress` is called with each event and not awaited or iterated, so an async function or a generator '
                'function would do nothing: pass a plain function. It may put the events into a queue, or start a task.'
            )
        return progress
    if progress not in (True, False):
        raise UserError(f'`progress` must be `True`, `False` or a callable, not {progress!r}.')
    return TerminalProgress(clock=clock) if progress else None


def _is_not_plain(called: Callable[..., object]) -> bool:
    """Whether a call only makes a coroutine or a generator, and runs nothing."""
    while isinstance(called, functools.partial):
        called = called.func
    return any(
        is_kind(function)
        for function in (called, called.__call__)
        for is_kind in (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    )


@dataclass
class _Times:
    """Since when a batch is there, and how long it took once it is done."""

    since: datetime
    took: timedelta | None = None


class TerminalProgress:
    """A display that is there while something is under way, and leaves its last state behind when all is done.

    On a terminal it is drawn in place, on standard error. What it left behind is not drawn again: when more comes, as
    with the next turn of an agent, it goes on below with the new batches. Elsewhere, as in a log, a line is written
    when a batch is submitted and when its requests have come back.
    """

    def __init__(self, console: Console | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        from rich.console import Console

        self.tally = Tally()
        """What it shows: of the batches, those that it has not left behind."""
        self.console = console or Console(stderr=True)
        self.clock = clock
        self._times: dict[str, _Times] = {}
        self._live: Live | None = None

    def __call__(self, event: BatchEvent) -> None:
        """Take an event in, and draw."""
        was_done, was_there = self._done_batch(event), self._batch_of(event) is not None
        self.take(event)
        if not self.console.is_terminal:
            self._write(event, was_done, was_there)
        elif self.idle:
            self.stop()
        else:
            self._draw()

    def take(self, event: BatchEvent) -> None:
        """Take an event in, and draw nothing."""
        self.tally(event)
        if event.batch is None or (batch := self.tally.batches.get(event.batch.id)) is None:
            return
        now, times = utc(self.clock), self._times.get(event.batch.id)
        if times is None:
            created = event.batch.created_at
            # A provider may not tell when, or go by a clock that is ahead of this one.
            known = created.tzinfo is not None and UNKNOWN_TIME < created <= now
            times = self._times[event.batch.id] = _Times(created if known else now)
        if not batch.done:
            times.took = None
        elif times.took is None:
            times.took = now - times.since

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and every batch has come back."""
        return self.tally.queued == 0 and all(batch.done for batch in self.tally.batches.values())

    def stop(self) -> None:
        """Leave the last state behind."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            # They stand in the terminal for good, and would stand there twice if they were drawn again.
            self.tally.batches = {name: batch for name, batch in self.tally.batches.items() if not batch.done}
            self._times = {name: times for name, times in self._times.items() if name in self.tally.batches}

    def _draw(self) -> None:
        if self._live is None:
            from rich.live import Live

            # What the program prints goes where it is meant to, unless that is the terminal the display is drawn on.
            to_terminal = sys.stdout.isatty()
            self._live = Live(
                console=self.console,
                get_renderable=self.render,
                refresh_per_second=_REFRESHES,
                redirect_stdout=to_terminal,
            )
            self._live.start(refresh=True)

    def render(self) -> RenderableType:
        """The counts, and a line for each batch."""
        from rich.console import Group
        from rich.text import Text

        tally = self.tally
        counts: list[tuple[str, object, str]] = [
            ('queued', tally.queued, 'yellow'),
            ('submitted', tally.submitted, 'cyan'),
        ]
        counts += [('answered', tally.answered, 'green'), ('failed', tally.failed, 'red')]
        if tally.stored:
            counts.append(('from the journal', tally.stored, 'green'))
        if tally.resubmitted:
            counts.append(('resubmitted', tally.resubmitted, 'yellow'))
        if tally.cost:
            counts.append(('cost', dollars(tally.cost), 'green'))
        head = Text('  ').join([Text.assemble(f'{name} ', (str(count), style)) for name, count, style in counts])
        shown, left_out = self._shown()
        return Group(head, self._table(shown), *([_more(left_out)] if left_out else []))

    def _table(self, batches: Sequence[BatchTally]) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        rows = [
            (
                batch.batch.id,
                batch.batch.model_name,
                f'{_processed(batch)}/{batch.submitted}',
                self._age(batch),
                _status(batch),
            )
            for batch in batches
        ]
        ids, *others = [max(map(len, texts)) for texts in zip(*rows, strict=True)] or [0]
        # Every batch has one line: first the bar gives way, then IDs and model names are cut.
        room = self.console.width - min(ids, _SHORT_ID) - sum(others) - _GAP * (len(others) + 1)
        table = Table.grid(padding=(0, _GAP))
        table.add_column(style='dim')
        table.add_column()
        if bar := min(_BAR, room) if room >= _SHORT_BAR else 0:
            table.add_column(width=bar)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, style='dim')
        table.add_column(no_wrap=not others or others[-1] <= _LONG_STATUS)
        for batch, texts in zip(batches, rows, strict=True):
            cells: list[RenderableType] = [Text(text, overflow='ellipsis', no_wrap=True) for text in texts]
            if bar:
                total, completed = max(1, batch.submitted), _processed(batch)
                cells.insert(2, ProgressBar(total=total, completed=completed, width=bar))
            table.add_row(*cells)
        return table

    def _shown(self) -> tuple[list[BatchTally], list[BatchTally]]:
        """The batches that there is room for, and the others.

        Where there are too many, those with failures come first, then those that are under way, then the last ones
        that are done.
        """
        batches = list(self.tally.batches.values())
        # The counts above them may take two lines, and there is one for what was left out, and one for the cursor.
        room = max(1, min(_SHOWN, self.console.height - 4))
        if len(batches) <= room:
            return batches, []
        failed = [batch for batch in batches if batch.failed]
        under_way = [batch for batch in batches if not batch.failed and not batch.done]
        done = [batch for batch in reversed(batches) if not batch.failed and batch.done]
        ranked = [*failed, *under_way, *done]
        return ranked[:room], ranked[room:]

    def _age(self, batch: BatchTally) -> str:
        times = self._times.get(batch.batch.id)
        if times is None:
            return ''
        age = times.took if times.took is not None else utc(self.clock) - times.since
        minutes, seconds = divmod(max(0, int(age.total_seconds())), 60)
        return f'{minutes // 60}:{minutes % 60:02}:{seconds:02}'

    def _batch_of(self, event: BatchEvent) -> BatchTally | None:
        return self.tally.batches.get(event.batch.id) if event.batch is not None else None

    def _done_batch(self, event: BatchEvent) -> bool:
        batch = self._batch_of(event)
        return batch is not None and batch.done

    def _write(self, event: BatchEvent, was_done: bool, was_there: bool) -> None:
        batch = self._batch_of(event)
        if batch is None:
            return
        if event.kind == 'submitted':
            self._line(batch, f'{number_of(event.count, "request")} of {batch.batch.model_name} submitted')
        elif event.kind == 'taken_over':
            # They come one by one, from a batch of which nobody knows how many of its requests are wanted.
            if not was_there:
                self._line(batch, f'requests of {batch.batch.model_name} are taken over from the journal')
        elif batch.done and not was_done:
            self._line(
                batch,
                f'{batch.answered} answered, {batch.failed} failed, {batch.resubmitted} resubmitted'
                + (f', {batch.held} waiting for room in the queue' if batch.held else '')
                + (f', {batch.left} not waited for' if batch.left else ''),
            )

    def _line(self, batch: BatchTally, text: str) -> None:
        self.console.print(f'batch {batch.batch.id}: {text}', highlight=False, markup=False, soft_wrap=True)


def _more(batches: Sequence[BatchTally]) -> RenderableType:
    """How many batches are not shown, and what they are."""
    from rich.text import Text

    done = sum(batch.done for batch in batches)
    kinds = [(len(batches) - done, 'under way'), (done, 'done')]
    said = ', '.join(f'{count} {kind}' for count, kind in kinds if count)
    return Text(f'… and {len(batches)} more: {said}', style='dim', overflow='ellipsis', no_wrap=True)


def _processed(batch: BatchTally) -> int:
    """How many requests have come back, or, before any has, how many the provider says it is done with."""
    return min(batch.submitted, max(batch.back, counted(batch.batch)))


def _status(batch: BatchTally) -> str:
    if not batch.done:
        return str((batch.batch.provider_details or {}).get('status') or batch.batch.status)
    outcomes = [
        (batch.failed, 'failed'),
        (batch.resubmitted, 'resubmitted'),
        (batch.held, 'waiting for room'),
        (batch.left, 'not waited for'),
    ]
    # A batch that was left goes on at the provider, and of one whose requests are all queued again nothing is done.
    done = (batch.answered or batch.failed) and not batch.left
    return ', '.join([*(['done'] if done else []), *(f'{count} {what}' for count, what in outcomes if count)])
