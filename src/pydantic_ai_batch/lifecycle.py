"""The life of a batch that exists: checked until it ends, read to the last line, or cancelled.

Agents, list calls and jobs all watch their batches through here, so that what must never go wrong, an answer dropped,
is decided in one place. Time comes in through a `Clock`, and what to conclude from an error is
[`policy`][pydantic_ai_batch.policy]'s to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.batch import Batch, BatchResult

from .clock import Clock, sleep_until_due, utc
from .compat import counts_of
from .exceptions import ResultsGone, brief, with_batch
from .journal.ledger import Ledger, Place
from .lanes.base import Lane, NotRun, Stray, is_run
from .policy import CheckHistory, overdue, poll_delay, resubmits
from .settings import BatchSettings
from .wording import counted

_log = logging.getLogger('pydantic_ai_batch')

_MAX_READS = 3
"""How many times results that are damaged, or fewer than the provider counts, are read before that is believed."""

_WRITTEN_AT_ONCE, _WRITTEN_BYTES = 256, 4 * 1024 * 1024
"""How many results, and how many characters of them, are in memory before they are written into the journal."""

_CLEAN_UP_SECONDS = 10
"""How long, in real seconds, deleting an input file may hold up the last answer of its batch."""


async def give_up(lane: Lane, batch: Batch) -> None:
    """Cancel a batch with the call that it belongs to, and say what came of that."""
    try:
        after = batch if batch.status == 'ended' else await cancel(lane, batch)
    except ModelAPIError as error:
        # One that has ended meanwhile is refused, in words that differ by provider.
        try:
            after = await lane.status(batch)
        except ModelAPIError:
            after = batch
        if after.status != 'ended':
            _log.warning('Batch %s could not be cancelled, and goes on: %s', batch.id, brief(error))
            return
    if after.status == 'ended' and lane.job_status(after) != 'canceled':
        _log.warning('Batch %s had ended when the call was cancelled: it is billed, and can be collected.', batch.id)
    else:
        _log.warning('Batch %s was cancelled with the call; what it had finished may be billed.', batch.id)


def sent_again(result: BatchResult | NotRun, error: ModelAPIError) -> bool:
    """Whether a request that came to `result`, which is `error`, is worth another batch."""
    return result.again if isinstance(result, NotRun) else resubmits(result, error)


async def cancel(lane: Lane, batch: Batch) -> Batch:
    """Cancel a batch, and see that through when this is cancelled meanwhile, as every task is when a program ends.

    Asking twice does no harm.
    """
    try:
        return await lane.cancel(batch)
    except asyncio.CancelledError:
        await lane.cancel(batch)
        raise


async def clean_up(lane: Lane, created: Batch | None, ended: Batch, ledger: Ledger | None = None) -> None:
    """Delete the input of a batch that was read, without letting that delay anyone's answer for long.

    Args:
        lane: Its lane.
        created: The batch as this process created it, or `None` if it did not.
        ended: The batch as it is now.
        ledger: The journal, if there is one, which knows it as it was created by any process.
    """
    created = created if ledger is None else await ledger.uncleaned(ended.id)
    if created is None:
        return
    with suppress(ModelAPIError, TimeoutError):
        async with asyncio.timeout(_CLEAN_UP_SECONDS):
            await lane.clean_up(created, ended)
            if ledger is not None:
                ledger.cleaned(ended.id)


def left_of(delay: float, place: Place, clock: Clock) -> float:
    """What is left of the seconds to the next check of a batch that an earlier process looked at last."""
    since = place.looked_at if place.looked_at is not None else place.batch.created_at.timestamp()
    return min(delay, max(0.0, delay - (clock.now() - since)))


def _word(lane: Lane, batch: Batch) -> str:
    counts = ', '.join(f'{count} {name}' for name, count in counts_of(batch).items())
    return f'{lane.job_status(batch)}; {counts}' if counts else lane.job_status(batch)


def missing(lane: Lane, batch: Batch, custom_id: str, *, keyless: bool) -> BatchResult | NotRun:
    """What the end of a batch means for a request that none of its results is of.

    Args:
        lane: Its lane.
        batch: The batch as it ended.
        custom_id: The ID of the request in it.
        keyless: Whether it has results that do not say whose they are.
    """
    if keyless:
        return NotRun(
            f'Batch {batch.id!r} has results that do not say whose they are, and this request has none. It was '
            'probably answered, and is not sent again by itself.',
            again=False,
        )
    return lane.unlisted(batch, custom_id)


@dataclass
class BatchWatch:
    """Checks on one batch until it has ended, and hands over each result as it is read.

    A watch goes by the checks that were made before it, in this process or another, and can be left at any time: the
    batch goes on without it.
    """

    lane: Lane
    batch: Batch
    settings: BatchSettings
    clock: Clock
    deliver: Callable[[BatchResult], Awaitable[None]]
    """Called once for each request's result, a success as soon as its line is read."""

    checked: Callable[[Batch], None] = lambda batch: None
    """Called with each status that the provider answers."""

    failed: Callable[[ModelAPIError], None] = lambda error: None
    """Called with each failure that is put up with."""

    history: CheckHistory = field(default_factory=CheckHistory)

    ledger: Ledger | None = None
    """The journal, in which results are written down before they are handed over."""

    first_due: float | None = None
    """Seconds until the first look is due, where that is not what the history says."""

    is_known: Callable[[str], bool] = lambda custom_id: True
    """Whether the batch has a request of an ID, where that can be told: results of others are set aside."""

    unknown: set[str] = field(default_factory=set[str])
    """IDs in the results that are no request's."""

    strays: list[Stray] = field(default_factory=list[Stray])
    """Lines of the results that are no request's, kept for the report."""

    _delivered: set[str] = field(default_factory=set[str])
    _run: int = 0
    """How many of those were run."""
    _unwritten: list[BatchResult] = field(default_factory=list[BatchResult])
    """Results that are to be written down together, and then handed over."""
    _unwritten_size: int = 0

    @property
    def delay(self) -> float:
        """Seconds until the next check is due."""
        due = poll_delay(self.history.polls, self.settings.poll_interval, self.settings.max_poll_interval)
        return max(due, self.history.retry_after)

    @property
    def due_in(self) -> float:
        """Seconds until the next look is due: none if the batch is known to have ended and was not looked at since."""
        if self.first_due is not None:
            return self.first_due
        return self.delay if self.batch.status != 'ended' or self.history.polls else 0.0

    async def until_read(self) -> None:
        """Check, at growing intervals, until the batch has ended and every result in it was handed over.

        Raises:
            ModelAPIError: A check or a download failed for good, as with a 404 that lasts. The batch is left as it is,
                and the error carries its handle.
        """
        while True:
            await sleep_until_due(self.clock, self.due_in)
            if await self.look():
                return

    async def look(self) -> bool:
        """Check once, and read the results if the batch has ended. Returns whether all of them were handed over.

        Failures that say nothing about the batch are put up with, as far as policy goes: they count as a check that
        found it running.
        """
        self.first_due = None
        done = await self._look()
        if self.ledger is not None:
            if done:
                await self.ledger.ended(self.batch)
            else:
                self.ledger.checked(self.batch, self.history)
        return done

    async def _look(self) -> bool:
        self.history.polls += 1
        try:
            was = self.batch.status
            self.batch = await self.lane.status(self.batch)
            now = utc(self.clock)
            self.checked(self.batch)
            ended = self.batch.status == 'ended'
            late = not ended and overdue(self.batch.created_at, self.lane.window_of(self.batch.group), now)
            if not ended and not late:
                self.history.answered(now)
                return False
            if was != 'ended':
                # From here on only downloads are tried again, which need not wait as long as the batch may have.
                self.history.polls = 0
            try:
                for reads in range(1, _MAX_READS + 1):
                    if await self._read(last=reads == _MAX_READS):
                        break
            except ModelAPIError:
                # A batch that has not ended need not have results.
                if not late:
                    raise
            readable = self.lane.readable(self.batch)
            keyless = sum(stray.keyless for stray in self.strays)
            results, run = len(self._delivered) + keyless, self._run + keyless
            if ended and self.lane.lacks_results(self.batch, results, run):
                # Its end can be seen before its results are there, or before all of them are.
                if self.history.came_short(now):
                    _log.warning(
                        'Batch %s has ended with %s, of which %d can be read so far: they are read again.',
                        self.batch.id,
                        counted(readable, 'result') if readable else 'results that it does not count',
                        run,
                    )
                    return False
                if readable and not (self._delivered or self.strays or self.unknown):
                    raise ResultsGone(
                        self.lane.model.model_name,
                        f'Batch {self.batch.id!r} has {counted(readable, "result")}, none of which can be read.',
                    )
        except ModelAPIError as error:
            if self.history.tolerates(error, created_at=self.batch.created_at, now=utc(self.clock)):
                _log.info('A check of batch %s failed and is made again: %s', self.batch.id, brief(error))
                self.failed(error)
                return False
            with_batch(error, self.batch)
            raise
        self.history.answered(now)
        if late:
            raise with_batch(
                ModelAPIError(
                    self.lane.model.model_name,
                    f'Batch {self.batch.id!r} has not ended long after its window of '
                    f'{self.lane.window_of(self.batch.group)}. It is left as it is, and can still be collected should '
                    'it end.',
                ),
                self.batch,
            )
        self._report_strays()
        _log.info('Batch %s is over (%s), and its results were read.', self.batch.id, _word(self.lane, self.batch))
        return True

    async def _read(self, *, last: bool) -> bool:
        """Read all results once, and return whether they need no further reading.

        Damaged lines, and fewer than the provider counts, may be the download's fault, unless it is the last one.
        """
        self.strays.clear()
        errors: dict[str, BatchResult] = {}
        damaged: dict[str, str] = {}
        lines = run = 0
        try:
            async with aclosing(self.lane.results(self.batch)) as results:
                async for result in results:
                    if isinstance(result, Stray):
                        if result.custom_id is None or not self.is_known(result.custom_id):
                            self.strays.append(result)
                        else:
                            damaged.setdefault(result.custom_id, result.line)
                        continue
                    if not self.is_known(result.custom_id):
                        self.unknown.add(result.custom_id)
                        continue
                    lines += 1
                    run += is_run(result)
                    if result.custom_id in self._delivered:
                        continue
                    if result.status == 'succeeded':
                        # At once, so that results need not stand in memory together. The first success of an ID counts.
                        await self._hand_over(result)
                    else:
                        # Not yet, as a success for the same request beats it.
                        errors.setdefault(result.custom_id, result)
            for custom_id, error in errors.items():
                if custom_id not in self._delivered:
                    await self._hand_over(error)
        finally:
            # What was read before a download broke off counts.
            await self._write()
        damaged = {custom_id: line for custom_id, line in damaged.items() if custom_id not in self._delivered}
        cut = run < self.lane.readable(self.batch) and self.lane.lacks_results(self.batch, lines, run)
        if not last and (damaged or self.strays or cut):
            return False
        for custom_id, line in damaged.items():
            # The answer was paid for and cannot be read, which decoding it will say.
            await self._hand_over(BatchResult(custom_id=custom_id, status='succeeded', body=line))
        await self._write()
        return True

    async def _hand_over(self, result: BatchResult) -> None:
        self.written(result)
        if self.ledger is None:
            await self.deliver(result)
            return
        self._unwritten.append(result)
        self._unwritten_size += len(result.body or '')
        if len(self._unwritten) >= _WRITTEN_AT_ONCE or self._unwritten_size >= _WRITTEN_BYTES:
            await self._write()

    async def _write(self) -> None:
        """Write results down, and hand them over."""
        results, self._unwritten, self._unwritten_size = self._unwritten, [], 0
        if results and self.ledger is not None:
            await self.ledger.read(results)
        for result in results:
            await self.deliver(result)

    def take_over(self, place: Place) -> None:
        """Go on from the checks that an earlier process made."""
        self.history = replace(place.history)
        self.first_due = left_of(self.due_in, place, self.clock)

    def written(self, result: BatchResult) -> None:
        """Note that a result is here, as it is if it comes from the journal."""
        self._delivered.add(result.custom_id)
        self._run += is_run(result)

    def delivered(self, custom_id: str) -> bool:
        """Whether the request's result was handed over."""
        return custom_id in self._delivered

    def missing(self, custom_id: str) -> BatchResult | NotRun:
        """What the end of the batch means for a request that no result was handed over for."""
        return missing(self.lane, self.batch, custom_id, keyless=self.keyless)

    @property
    def keyless(self) -> bool:
        """Whether the batch has results that do not say whose they are."""
        return any(stray.keyless for stray in self.strays)

    def _report_strays(self) -> None:
        if self.unknown:
            _log.warning(
                'Batch %s has results with %s not in it, which were set aside; one is %r.',
                self.batch.id,
                counted(len(self.unknown), 'ID'),
                min(self.unknown),
            )
        if self.strays:
            _log.warning(
                'Batch %s has %s of no request in it, which were set aside; the first: %s',
                self.batch.id,
                counted(len(self.strays), 'result line'),
                self.strays[0].reason,
            )
