"""One run over the rows of an input: sends them, keeps what comes of each, and hands it out in the order asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.events import BatchEvent, Listener, Tally
from pydantic_ai_batch.exceptions import RunStopped
from pydantic_ai_batch.journal import Journal, ledger_of
from pydantic_ai_batch.lanes.base import Lane, LaneInfo, NotRun
from pydantic_ai_batch.list_call import ListCall, Outcome
from pydantic_ai_batch.settings import BatchSettings

from .guards import Guards, Watch
from .kept_results import KeptResults
from .outcomes import record_of
from .outputs import Outputs
from .preparing import Prepared
from .record_json import pack, unpack
from .records import RowResult, Status
from .row_requests import PromptRequests
from .verifying import Verification

Finish = Callable[[Lane, int, ModelResponse, RowResult[Any]], Awaitable[RowResult[Any]]]
"""Makes the record of a row of that by its first answer."""

_PAGE = 200
"""How many results are in memory at a time on their way out."""

_UNWRITTEN = 1000
"""How many results may wait to be written before no more are read."""


_OPEN, _ANSWERED, _FAILED = range(3)
"""How far a row is."""

_Part = tuple[Lane, Sequence[int]]
"""Rows that are sent together, and the lane that they go by."""


class RowRun:
    """A run over rows. What is settled already, by an earlier process, is not sent again."""

    def __init__(
        self,
        prepared: Prepared,
        kept: KeptResults,
        outputs: Outputs,
        settings: BatchSettings,
        clock: Clock,
        *,
        journal: Journal | None = None,
        listener: Listener | None = None,
        guards: Guards | None = None,
        finish: Finish | None = None,
    ) -> None:
        self.watch = Watch(guards or Guards(), len(prepared.source))
        self.stopped: str | None = None
        """Why not all rows were sent, if that is so."""
        self._prepared = prepared
        self._kept = kept
        self._outputs = outputs
        self._settings = settings
        self._clock = clock
        self._journal = journal
        self._tally = Tally()
        self._listener = listener
        self._calls: list[ListCall] = []
        self._all_begun = False
        """Whether nothing is to be sent after the calls that there are."""
        self._finish = finish
        self._done = bytearray(len(prepared.source))
        """Which rows have a result that is written."""
        self._marks = bytearray(len(prepared.source))
        """How far each row is, of which the result may not be written yet."""
        self._fresh: deque[int] = deque()
        """The rows that are done with and were not handed out."""
        self._unwritten: list[tuple[int, Status, bytes]] = []
        self._to_write = asyncio.Event()
        self._written = asyncio.Event()
        self._finishing: set[asyncio.Task[None]] = set()
        self._over = False
        self._failure: Exception | None = None
        """Why results cannot be kept, if that is so."""
        self._live: dict[int, Any] = {}
        """Outputs that were not handed out, and that JSON would not give back as they are."""

    async def load(self) -> None:
        """Know what was settled before."""
        # Their batches went on: what came of them is asked for again.
        await self._kept.forget(['pending'])
        for place, status in await self._kept.settled():
            self._marks[place] = _mark(status)
            self._done[place] = 1
            self._fresh.append(place)
        if self.watch.guards.any and self._fresh:
            async with aclosing(self._kept.all()) as all_kept:
                async for _, kept in all_kept:
                    self.watch.take(unpack(kept)[0])

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._done)

    @property
    def verification(self) -> Verification | None:
        """What is proven of its sample, if it has one."""
        requests = self._prepared.requests.requests
        return requests.verification if isinstance(requests, PromptRequests) else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input."""
        return self._prepared.source.columns

    @property
    def lanes(self) -> list[LaneInfo]:
        """The lanes that they go by."""
        return list({lane.info.name: lane.info for lane in self._prepared.targets.lanes}.values())

    @property
    def faults(self) -> list[str]:
        """The rows that cannot be sent, and why not."""
        return [problem.at(self._prepared.source) for problem in self._prepared.faults]

    @property
    def sent(self) -> bool:
        """Whether every row is in a batch, or done with."""
        return self._over or (self._all_begun and all(call.encoded for call in self._calls) and not self._tally.queued)

    def _heard(self, event: BatchEvent) -> None:
        self._tally(event)
        if self._listener is not None:
            self._listener(event)

    @property
    def settled(self) -> int:
        """How many rows are done with."""
        return sum(self._done)

    # Sending

    async def send(self) -> None:
        """Send every row that is not done with, and see each through."""
        writer = asyncio.ensure_future(self._write())
        try:
            async with AsyncExitStack() as stack:
                await self._send_all(stack)
        finally:
            # What was read is written, however this ends.
            self._over = True
            self._to_write.set()
            await _until_done(writer)

    async def _send_all(self, stack: AsyncExitStack) -> None:
        """Send the rows in as many parts as the guards ask for."""
        targets = self._prepared.targets
        places = {target: self._open(targets.places(target)) for target in range(len(targets.lanes))}
        places = {target: open_places for target, open_places in places.items() if open_places}
        for target in places:
            # What is wrong with a client shows before anything is sent.
            await stack.enter_async_context(targets.lanes[target].model)
            await targets.lanes[target].identity()
        if places:
            self.stopped = self.watch.stop()
        if (canary := self.watch.guards.canary) is not None:
            trials = {target: targets.places(target)[:canary] for target in places}
            await self._see_through([self._part(target, self._open(trial)) for target, trial in trials.items()])
            places = {target: self._open(open_places) for target, open_places in places.items()}
            if any(places.values()):
                self.stopped = self._trial_failed(trials)
        parts = [
            (target, part)
            for target, open_places in places.items()
            for part in self._parts(targets.lanes[target], open_places)
        ]
        if not self.watch.guards.watchful:
            await self._see_through([self._part(target, part) for target, part in parts], last=True)
            return
        for number, (target, part) in enumerate(parts, 1):
            self.stopped = self.stopped or self.watch.stop()
            await self._see_through([self._part(target, part)], last=number == len(parts))

    def _open(self, places: Sequence[int]) -> list[int]:
        return [place for place in places if self._marks[place] == _OPEN]

    def _parts(self, lane: Lane, places: Sequence[int]) -> Sequence[Sequence[int]]:
        """Rows of a lane, divided by how many a batch has if each batch may be the last."""
        if not places or not self.watch.guards.watchful:
            return [places] if places else []
        size = min(self._settings.max_requests or lane.max_requests, lane.max_requests)
        return [places[start : start + size] for start in range(0, len(places), size)]

    def _trial_failed(self, trials: Mapping[int, Sequence[int]]) -> str | None:
        """Why nothing is to be sent after the first rows of each lane, if that is so."""
        for trial in trials.values():
            failed = sum(self._marks[place] == _FAILED for place in trial)
            if (reason := self.watch.trial_failed(failed, len(trial))) is not None:
                return reason
        return None

    def _part(self, target: int, places: Sequence[int]) -> _Part:
        return self._prepared.targets.lanes[target], places

    async def _see_through(self, parts: Sequence[_Part], *, last: bool = False) -> None:
        """Send parts at the same time, and wait for all that comes of them."""
        if self.stopped is not None:
            return
        calls = [await self._call(lane, places) for lane, places in parts if places]
        self._calls += calls
        self._all_begun = last
        tasks = [asyncio.ensure_future(call.run()) for call in calls]
        try:
            await _first_error(tasks)
            while self._finishing:
                await _first_error(list(self._finishing))
        finally:
            for task in (*tasks, *self._finishing):
                task.cancel()
            await asyncio.gather(*tasks, *self._finishing, return_exceptions=True)

    async def _call(self, lane: Lane, places: Sequence[int]) -> ListCall:
        return ListCall(
            lane,
            self._settings,
            self._clock,
            self._prepared.requests,
            lambda place, outcome, result, batch: self._settle(lane, place, outcome, result, batch),
            self._heard,
            await ledger_of(self._journal, self._clock, lane),
            places,
        )

    def _settle(
        self, lane: Lane, place: int, outcome: Outcome, result: BatchResult | NotRun | None, batch: Batch | None
    ) -> Awaitable[None]:
        record = record_of(self._prepared.requests.custom_id(place), lane, outcome, result, batch)
        if self._finish is not None and isinstance(outcome, ModelResponse):
            task = asyncio.ensure_future(self._go_on(self._finish(lane, place, outcome, record), place))
            self._finishing.add(task)
            task.add_done_callback(self._finishing.discard)
            # It may wait for a batch of its own, which this one must not wait for.
            return asyncio.sleep(0)
        return self._keep(place, record)

    async def _go_on(self, finishing: Awaitable[RowResult[Any]], place: int) -> None:
        await self._keep(place, await finishing)

    # Keeping

    async def _keep(self, place: int, record: RowResult[Any]) -> None:
        if self.watch.mismatch is not None:
            # Nothing that comes now is known to be this row's.
            raise self._stopped_error()
        self.watch.take(record)
        self._marks[place] = _mark(record.status)
        output = self._outputs.dump(record.output)
        if self._outputs.is_lossy(record.output, output):
            self._live[place] = record.output
        self._unwritten.append((place, record.status, pack(record, output)))
        self._to_write.set()
        while len(self._unwritten) >= _UNWRITTEN and self._failure is None:
            self._written.clear()
            await self._written.wait()
        if self._failure is not None:
            raise self._failure
        if self.watch.mismatch is not None:
            self.stopped = self.watch.stop()
            raise self._stopped_error()

    def _stopped_error(self) -> RunStopped:
        return RunStopped(
            self._prepared.targets.names[0],
            f'The run was stopped: {self.stopped}. {self.settled:,} of {len(self._done):,} rows are done with.',
        )

    async def _write(self) -> None:
        """Write results as they come, all there are at a time."""
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            results, self._unwritten = self._unwritten, []
            if results:
                try:
                    await self._kept.write(results)
                except Exception as error:
                    # Answers that cannot be kept are not to be paid for any longer.
                    self._failure = error
                    self._written.set()
                    raise
                for place, _, _ in results:
                    self._done[place] = 1
                    self._fresh.append(place)
            self._written.set()
            if self._over and not self._unwritten:
                return

    # Handing out

    async def results(self, *, ordered: bool) -> AsyncGenerator[RowResult[Any]]:
        """The result of each row, as they come, or in the order of the rows.

        Raises:
            RunStopped: Not all rows were sent. What came of those that were was handed out before.
        """
        sending = asyncio.ensure_future(self.send())
        try:
            following = 0
            while True:
                over = sending.done()
                places, following = self._ready(following, ordered=ordered, over=over)
                if places:
                    for result in await self.read(places):
                        yield result
                elif over and following >= len(self._done):
                    break
                else:
                    await self._news(sending)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if self.stopped is not None:
            raise self._stopped_error()

    def _ready(self, following: int, *, ordered: bool, over: bool) -> tuple[list[int], int]:
        """The next few rows that can be handed out, and the first one that was not looked at yet."""
        if not ordered:
            places = [self._fresh.popleft() for _ in range(min(_PAGE, len(self._fresh)))]
            return places, following if places or not over else len(self._done)
        end = min(following + _PAGE, len(self._done))
        if over:
            # Nothing comes any more for those that are not done with.
            return [place for place in range(following, end) if self._done[place]], end
        gap = self._done.find(0, following, end)
        end = end if gap < 0 else gap
        return list(range(following, end)), end

    async def _news(self, sending: asyncio.Future[None]) -> None:
        self._written.clear()
        news = asyncio.ensure_future(self._written.wait())
        try:
            await asyncio.wait((sending, news), return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()

    async def read(self, places: Sequence[int]) -> list[RowResult[Any]]:
        """The results of rows that are done with, each with its row."""
        kept = await self._kept.read(places)
        return [self._result(place, kept[place]) for place in places]

    async def so_far(self, places: Sequence[int]) -> list[RowResult[Any]]:
        """What came of rows so far, each with its row: `pending` is one that is not done with."""
        kept = await self._kept.read(places)
        return [
            self._result(place, kept[place])
            if place in kept
            else RowResult(
                id=self._prepared.requests.custom_id(place),
                status='pending',
                error='It was not sent, or its batch goes on.',
                row=self._prepared.source[place].fields,
            )
            for place in places
        ]

    def _result(self, place: int, kept: bytes) -> RowResult[Any]:
        record, is_text = unpack(kept)
        if place in self._live:
            output = self._live.pop(place)
        else:
            output = record.output if is_text else self._outputs.load(record.output)
        return replace(record, output=output, row=self._prepared.source[place].fields)


def _mark(status: Status) -> int:
    return _ANSWERED if status == 'ok' else _FAILED


async def _until_done(task: asyncio.Future[None]) -> None:
    """Wait for a task that is not to be cancelled, also if this is."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def _first_error(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all, or raise the first error."""
    if tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
