"""Batches of the fake Anthropic: the object, and the lines of its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_ai_batch.testing.answers import FakeError, FakeRequest
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    **dict.fromkeys(Phase, 'ended'),
    **dict.fromkeys((Phase.VALIDATING, Phase.RUNNING, Phase.FINALIZING), 'in_progress'),
    Phase.CANCELLING: 'canceling',
}
WINDOW = 24 * 3600.0
"""How long after its creation a batch expires, in seconds."""

RETENTION = 29 * 24 * 3600.0
"""How long after the batch's creation its results are kept, in seconds."""

_UNFINISHED = {Phase.EXPIRED: 'expired', Phase.CANCELLED: 'canceled'}
"""What became of the rows that a batch which ended early did not run."""

_ERROR_TYPES = {
    401: 'authentication_error',
    402: 'billing_error',
    403: 'permission_error',
    404: 'not_found_error',
    409: 'conflict_error',
    413: 'request_too_large',
    429: 'rate_limit_error',
    504: 'timeout_error',
    529: 'overloaded_error',
}


class FakeAnthropicBatch(FakeBatch):
    """A batch on the fake Anthropic."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        execute: Callable[[FakeRow], RowResult],
        betas: tuple[str, ...],
    ) -> None:
        super().__init__(submission, scene, number=number, window=WINDOW, words=WORDS, execute=execute)
        self.betas = betas
        """The beta features that it was created with, which hold for every row."""
        self.deleted = False
        """Whether it was deleted."""
        self.content: bytes | None = None
        """Its results, from when it is over."""

    @property
    def ended_at(self) -> float | None:
        """When it ended, in seconds since the epoch; `None` if it has not."""
        return self.entered[self.phase] if self.ended else None

    @property
    def archived_at(self) -> float | None:
        """Since when its results are gone, in seconds since the epoch; `None` if they are not."""
        if self.ended_at is None:
            return None
        archived_at = max(self.created_at + RETENTION, self.ended_at)
        return archived_at if self._scene.clock.now() >= archived_at else None

    @property
    def available(self) -> bool:
        """Whether its results can be had."""
        return self.ended and self.archived_at is None

    @property
    def request_counts(self) -> dict[str, int]:
        """How its rows came out; before it is over, every one of them is `processing`."""
        counts = dict.fromkeys(('processing', 'succeeded', 'errored', 'canceled', 'expired'), 0)
        if not self.ended:
            return counts | {'processing': len(self.requests)}
        kinds = Counter('errored' if isinstance(result.answer, FakeError) else 'succeeded' for result in self.results)
        if reason := _UNFINISHED.get(self.phase):
            kinds[reason] = len(self.unfinished)
        return counts | kinds

    def to_json(self, results_url: str) -> dict[str, Any]:
        """The provider's MessageBatch object, as of now; `results_url` is where its results can be had, if they can."""
        return {
            'id': self.id,
            'type': 'message_batch',
            'processing_status': self.status,
            'request_counts': self.request_counts,
            'ended_at': _time(self.ended_at),
            'created_at': _time(self.created_at),
            'expires_at': _time(self.expires_at),
            'archived_at': _time(self.archived_at),
            'cancel_initiated_at': _time(self.entered.get(Phase.CANCELLING)),
            'results_url': results_url if self.available else None,
        }

    def lines(self, ask: Callable[[FakeRow], FakeRequest]) -> list[ResultLine]:
        """Its result lines when it is over.

        Args:
            ask: Makes the request of a row that was not run.
        """
        lines = [
            _line(result.row, result.request, _result(result.answer))
            for result in self.results
            if result.answer is not None
        ]
        if reason := _UNFINISHED.get(self.phase):
            lines += [_line(row, ask(row), {'type': reason}) for row in self.unfinished]
        return lines


def error_body(error: FakeError, request_id: str | None) -> dict[str, Any]:
    """The body of an error reply, or of a failed row, which has no `request_id`."""
    fallback = 'api_error' if error.status >= 500 else 'invalid_request_error'
    details: dict[str, Any] = {'type': error.type or _ERROR_TYPES.get(error.status, fallback), 'message': error.message}
    if error.code is not None:
        details['details'] = {'error_code': error.code}
    return {'type': 'error', 'error': details, 'request_id': request_id}


def _line(row: FakeRow, request: FakeRequest, result: dict[str, Any]) -> ResultLine:
    return ResultLine(row.index, request, {'custom_id': row.custom_id, 'result': result}, 'output')


def _result(answer: dict[str, Any] | FakeError) -> dict[str, Any]:
    if isinstance(answer, FakeError):
        return {'type': 'errored', 'error': error_body(answer, None)}
    return {'type': 'succeeded', 'message': answer}


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec='microseconds')
