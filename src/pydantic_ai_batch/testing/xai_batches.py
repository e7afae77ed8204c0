"""Batches of the fake xAI: filled after they were created, described by counts, with results that come as they run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.faults import Fault
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase, timetable

WORDS: Mapping[Phase, str] = {phase: phase.value for phase in Phase}
"""There are no words on the wire: these are for tests to read."""

WINDOW = 30 * 24 * 3600.0
"""How long after its creation a batch is gone, in seconds."""

_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 409: 10, 429: 8, 503: 14, 504: 4}
"""gRPC's codes of failed rows; of any other status, 13."""


class FakeXAIBatch(FakeBatch):
    """A batch on the fake xAI."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        name: str,
        key_id: str,
        execute: Callable[[FakeRow], RowResult],
    ) -> None:
        super().__init__(submission, scene, number=number, window=WINDOW, words=WORDS, execute=execute)
        self.name = name
        """The name it was created with."""
        self.key_id = key_id
        """The ID of the key it was created with."""
        self.endpoints: list[str] = []
        """The endpoint of each of its rows."""
        self.cancelled_at: float | None = None
        """When somebody cancelled it, in seconds since the epoch."""
        self._rows: list[FakeRow] = []
        self.requests = self._rows
        self._counted_at: list[float] = []
        self._order: list[int] = []
        self._faults = submission.faults
        self._shuffle = None if scene.ordered else random.Random(f'{scene.seed}:{number}')

    def add(self, rows: Sequence[tuple[str, FakeRow]], faults: Sequence[Fault], *, lag: float) -> None:
        """Put rows into it, which start to run with the others.

        Args:
            rows: Each with its endpoint.
            faults: Those that hit the batch with these rows in it.
            lag: How long the counts do not show them, in seconds.
        """
        with self._scene.lock:
            self.run()
            places = list(range(len(self._rows), len(self._rows) + len(rows)))
            self._rows += [row for _, row in rows]
            self.endpoints += [endpoint for endpoint, _ in rows]
            self._counted_at += [self._scene.clock.now() + lag for _ in rows]
            self._timetable = timetable(
                len(self._rows),
                created_at=self._scene.clock.now(),
                processing=self._scene.processing.total_seconds(),
                window=WINDOW,
                invalid=False,
                faults=faults,
            )
            # Where it ends early, the finished rows are the first of the input.
            done = max(0, self._timetable.done - len(self._order))
            first, rest = places[:done], places[done:]
            if self._shuffle is not None:
                self._shuffle.shuffle(first)
                self._shuffle.shuffle(rest)
            self._order += first + rest

    def faults_with(self, hits: Callable[[Fault], bool]) -> list[Fault]:
        """The faults of the batch that hit it with the rows that it is given."""
        return [fault for fault in self._faults if hits(fault)]

    @property
    def ended(self) -> bool:
        """Whether nothing is pending in it any more."""
        return bool(self._rows) and self.state['num_pending'] == 0

    @property
    def stopped_at(self) -> float | None:
        """When it was cancelled, by whomever, in seconds since the epoch."""
        entered = self.entered if self._rows else {}
        stopped = entered.get(Phase.CANCELLING, entered.get(Phase.FAILED))
        return stopped if stopped is not None else self.cancelled_at

    @property
    def state(self) -> dict[str, int]:
        """The counts of its rows, as of now."""
        counted = sum(at <= self._scene.clock.now() for at in self._counted_at)
        results = [result for result in self.results if result.row.index < counted]
        failed = sum(isinstance(result.answer, FakeError) for result in results)
        left = counted - len(results)
        stopped = bool(self._rows) and self.phase in (Phase.CANCELLED, Phase.FAILED)
        return {
            'num_requests': counted,
            'num_pending': 0 if stopped else left,
            'num_success': len(results) - failed,
            'num_error': failed,
            'num_cancelled': left if stopped else 0,
        }

    def cancel(self) -> None:
        """Stop it: no further row runs. One that is over or empty only says from now on that it was cancelled."""
        with self._scene.lock:
            if self.stopped_at is None:
                self.cancelled_at = self._scene.clock.now()
            if self._rows:
                super().cancel()

    def to_json(self) -> dict[str, Any]:
        """The provider's Batch object, as of now."""
        stopped = self.stopped_at
        message = None
        if self._rows and self.phase is Phase.FAILED:
            (fault,) = [fault for fault in self._faults if fault.name == 'fail']
            message = '; '.join(str(error.get('message')) for error in fault['errors'] or [{'message': 'It failed.'}])
        return {
            'batch_id': self.id,
            'name': self.name,
            'create_time': _date(self.created_at),
            'expire_time': _date(self.expires_at),
            'create_api_key_id': self.key_id,
            'cancel_time': None if stopped is None else _date(stopped),
            'cancel_by_xai_message': message,
            'state': self.state,
        }

    def lines(self) -> list[ResultLine]:
        """The results that are there by now."""
        return [_line(result) for result in self.results if result.answer is not None]


def _line(result: RowResult) -> ResultLine:
    answer = result.answer
    if isinstance(answer, FakeError):
        outcome: dict[str, Any] = {'error': {'code': _CODES.get(answer.status, 13), 'message': answer.message}}
    else:
        outcome = {'response': {'chat_get_completion': answer}}
    value = {'batch_request_id': result.row.custom_id, 'batch_result': outcome}
    return ResultLine(result.row.index, result.request, value, 'output')


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).date().isoformat()
