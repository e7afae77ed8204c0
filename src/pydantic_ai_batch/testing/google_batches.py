"""Batches of the fake Gemini API: the long-running operation, and the results in it or in its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.google_files import OUTPUT_RETENTION
from pydantic_ai_batch.testing.google_input import GoogleRow
from pydantic_ai_batch.testing.google_json import Json, rpc_status, timestamp
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    Phase.VALIDATING: 'BATCH_STATE_PENDING',
    Phase.RUNNING: 'BATCH_STATE_RUNNING',
    # There are no words for these two: nothing else tells that a job is being cancelled.
    Phase.FINALIZING: 'BATCH_STATE_RUNNING',
    Phase.CANCELLING: 'BATCH_STATE_RUNNING',
    Phase.COMPLETED: 'BATCH_STATE_SUCCEEDED',
    Phase.FAILED: 'BATCH_STATE_FAILED',
    Phase.EXPIRED: 'BATCH_STATE_EXPIRED',
    Phase.CANCELLED: 'BATCH_STATE_CANCELLED',
}

WINDOW = 48 * 3600.0
"""How long after its creation a batch expires, in seconds."""

OutputPlace = Literal['both', 'metadata', 'response']
"""Where an operation holds its output: in `metadata.output`, in `response`, or, as recorded, in both."""

_TYPE = 'type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch'

_ENDED_EARLY: Mapping[Phase, FakeError] = {
    Phase.CANCELLED: FakeError(499, None, 'The batch was cancelled.'),
    # That an expired job has an error, and this one, is a guess: an operation that is done without a response has one.
    Phase.EXPIRED: FakeError(504, None, 'The batch expired before it was finished.'),
}


@dataclass(frozen=True, kw_only=True)
class Manners:
    """What differs from report to report in how results are written."""

    inline: bool
    """In the operation, and not in a file."""
    ordered: bool
    """In the order of the input."""
    error_key: Literal['error', 'status']
    key_in: Literal['key', 'metadata']
    echo: bool
    """Inline results repeat the metadata of their requests."""
    partial: bool
    """What was finished in a job that was cancelled or expired is among the results."""


class FakeGoogleBatch(FakeBatch):
    """A batch on the fake Gemini API."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        execute: Callable[[FakeRow], RowResult],
        rows: Sequence[GoogleRow],
        display_name: str,
        input_file: str | None,
    ) -> None:
        super().__init__(submission, scene, number=number, window=WINDOW, words=WORDS, execute=execute)
        self.display_name = display_name
        """The name that it was created with."""
        self.input_file = input_file
        """Name of the file that it was created from; `None` if its requests were inline."""
        self.deleted = False
        """Whether somebody deleted it: it can then not be seen, and its results are lost."""
        self.output: Json | None = None
        """Its output object, from when it is over; `None` if it has none."""
        self.settled = False
        """Whether its output was made."""
        self._rows = rows

    @property
    def stats(self) -> dict[str, str]:
        """Its counts as of now, as strings; those that are 0 are left out."""
        counts, total = self.counts, len(self.requests)
        stats = {
            'requestCount': total,
            'successfulRequestCount': counts['completed'],
            'failedRequestCount': counts['failed'],
            'pendingRequestCount': total - counts['completed'] - counts['failed'],
        }
        return {name: str(count) for name, count in stats.items() if count}

    def to_json(self, *, now: float, place: OutputPlace, delay: float, listed: bool = False) -> Json:
        """The provider's Operation object.

        Args:
            now: What time it is, in seconds since the epoch.
            place: Where it holds its output.
            delay: How long after the job is over its `responsesFile` is filled in, in seconds.
            listed: It is in a listing, which leaves out inline results.
        """
        ended_at = self.entered[self.phase] if self.ended else None
        metadata: Json = {'@type': _TYPE, 'model': f'models/{self.model}', 'displayName': self.display_name}
        shown: Json = {'name': self.id, 'metadata': metadata}
        if ended_at is not None:
            shown['done'] = True
            if error := self._error():
                shown['error'] = error
            output = self.output or {}
            there = now >= ended_at + delay if 'responsesFile' in output else not listed
            if output and there and now < ended_at + OUTPUT_RETENTION:
                if place != 'response':
                    metadata['output'] = output
                if place != 'metadata':
                    shown['response'] = {'@type': f'{_TYPE}Output', **output}
        metadata['createTime'] = timestamp(self.created_at)
        if ended_at is not None:
            metadata['endTime'] = timestamp(ended_at)
        metadata |= {
            'updateTime': timestamp(self.created_at if ended_at is None else ended_at),
            'batchStats': self.stats,
            'state': self.status,
            'name': self.id,
        }
        return shown

    def _error(self) -> Json | None:
        if self.phase is Phase.FAILED:
            return self.errors[0]
        early = _ENDED_EARLY.get(self.phase)
        return rpc_status(early) if early and self.output is None else None

    def lines(self, manners: Manners) -> list[ResultLine]:
        """Its results when it is over, each as a line: of its file, or of the list in its output."""
        if self.phase is not Phase.COMPLETED and not manners.partial:
            return []
        results = sorted(self.results, key=lambda result: result.row.index) if manners.ordered else self.results
        return [
            ResultLine(result.row.index, result.request, self._line(result, result.answer, manners), 'output')
            for result in results
            if result.answer is not None
        ]

    def _line(self, result: RowResult, answer: Json | FakeError, manners: Manners) -> Json:
        echo = self._rows[result.row.index].echo
        if 'key' in echo and (manners.inline or manners.key_in == 'metadata'):
            echo = {'metadata': echo}
        if manners.inline and not manners.echo:
            echo = {}
        if isinstance(answer, FakeError):
            return {**echo, manners.error_key: rpc_status(answer)}
        return {**echo, 'response': answer}


def with_id(value: Json, id: str | None) -> Json:
    """A result with another id in the place where it has its own."""
    if isinstance(given := value.get('metadata'), dict):
        metadata = cast('Json', given)
        name = 'key' if 'key' in metadata or len(metadata) != 1 else next(iter(metadata))
        return {**value, 'metadata': {**metadata, name: id}}
    return {**value, 'key': id}


def failure(errors: Any) -> list[Json]:
    """The error of a job that fails, of what `inject('batch', 'fail', errors=…)` was given."""
    given = cast('list[Json]', errors or [{}])[0]
    code = given.get('code', 13)
    message = given.get('message') or 'The batch failed.'
    return [{'code': code, 'message': message} if isinstance(code, int) else rpc_status(FakeError(500, code, message))]
