"""One run over the rows of an input: sends them, keeps what comes of each, and hands it out in the order asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
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

from .guards import Guards, Watch, legs
from .kept_results import KeptResults
from .outcomes import record_of
from .outputs import Outputs
from .preparing import Prepared
from .record_json import pack, unpack
from .records import RowResult, Status

Finish = Callable[[Lane, int, ModelResponse, RowResult[Any]], Awaitable[RowResult[Any]]]
"""Makes the record of a row of that by its first answer."""

_PAGE = 200
"""How many results are in memory at a time on their way out."""

_UNWRITTEN = 1000
"""How many results may wait to be written before no more are read."""


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
        self._finish = finish
        self._done = bytearray(len(prepared.source))
        self._fresh: deque[int] = deque()
        """The rows that are done with and were not handed out."""
        self._unwritten: list[tuple[int, Status, bytes]] = []
        self._to_write = asyncio.Event()
        self._written = asyncio.Event()
        self._finishing: set[asyncio.Task[None]] = set()
        self._over = False

    async def load(self) -> None:
        """Know what was settled before."""
        for place, _ in await self._kept.settled():
            self._done[place] = 1
            self._fresh.append(place)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._done)

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
        begun = len(self._calls) == len(self._prepared.targets.lanes)
        return self._over or (begun and all(call.encoded for call in self._calls) and not self._tally.queued)

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
            targets = self._prepared.targets
            calls = [
                asyncio.ensure_future(self._send_to(lane, targets.places(target)))
                for target, lane in enumerate(targets.lanes)
            ]
            try:
                await _first_error(calls)
                while self._finishing:
                    await _first_error(list(self._finishing))
            finally:
                for task in (*calls, *self._finishing):
                    task.cancel()
                await asyncio.gather(*calls, *self._finishing, return_exceptions=True)
        finally:
            # What was read is written, however this ends.
            self._over = True
            self._to_write.set()
            await writer

    async def _send_to(self, lane: Lane, places: Sequence[int]) -> None:
        """Send the rows that are for one lane, in as many parts as the guards ask for."""
        open_places = [place for place in places if not self._done[place]]
        if not open_places:
            return
        size = min(self._settings.max_requests or lane.max_requests, lane.max_requests)
        ledger = await ledger_of(self._journal, self._clock, lane)
        async with lane.model:
            await lane.identity()
            for part, trial in legs(open_places, self.watch.guards, size):
                if self.stopped is None and self.watch.guards.watchful:
                    self.stopped = self.watch.stop()
                if self.stopped is not None:
                    return
                failed = self.watch.failed
                call = ListCall(
                    lane,
                    self._settings,
                    self._clock,
                    self._prepared.requests,
                    lambda place, outcome, result, batch: self._settle(lane, place, outcome, result, batch),
                    self._heard,
                    ledger,
                    part,
                )
                self._calls.append(call)
                await call.run()
                while self._finishing:
                    await _first_error(list(self._finishing))
                if trial and failed == 0:
                    self.stopped = self.watch.trial_failed(len(part))

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
        self.watch.take(record)
        self._unwritten.append((place, record.status, pack(record, self._outputs.dump(record.output))))
        self._to_write.set()
        while len(self._unwritten) >= _UNWRITTEN:
            self._written.clear()
            await self._written.wait()

    async def _write(self) -> None:
        """Write results as they come, all there are at a time."""
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            results, self._unwritten = self._unwritten, []
            if results:
                await self._kept.write(results)
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
                places, following = self._ready(following, ordered=ordered)
                if places:
                    for result in await self.read(places):
                        yield result
                elif over:
                    break
                else:
                    await self._news(sending)
            await sending
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        if self.stopped is not None:
            raise RunStopped(
                self._prepared.targets.names[0],
                f'The run was stopped: {self.stopped}. {self.settled:,} of {len(self._done):,} rows are done with.',
            )

    def _ready(self, following: int, *, ordered: bool) -> tuple[list[int], int]:
        """The next few rows that can be handed out, and the first one after them."""
        if not ordered:
            return [self._fresh.popleft() for _ in range(min(_PAGE, len(self._fresh)))], following
        end = self._done.find(0, following, following + _PAGE)
        end = min(following + _PAGE, len(self._done)) if end < 0 else end
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
        output = record.output if is_text else self._outputs.load(record.output)
        return replace(record, output=output, row=self._prepared.source[place].fields)


async def _first_error(tasks: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all, or raise the first error."""
    if tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
