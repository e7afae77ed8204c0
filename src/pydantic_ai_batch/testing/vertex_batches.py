"""Batches of the fake Vertex AI: the job, the lines of its input file, and those of its predictions.

What makes the service refuse a line, or fail a job for it, is documented only in part. Where nothing is known, the fake
guesses: a line that is no JSON object with an object `request` fails the whole job once it is looked at, and so does a
file without a request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.google_json import Json, error_body, object_in, rpc_status, timestamp
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    Phase.VALIDATING: 'JOB_STATE_PENDING',
    Phase.RUNNING: 'JOB_STATE_RUNNING',
    Phase.FINALIZING: 'JOB_STATE_RUNNING',
    Phase.CANCELLING: 'JOB_STATE_CANCELLING',
    Phase.COMPLETED: 'JOB_STATE_SUCCEEDED',
    Phase.FAILED: 'JOB_STATE_FAILED',
    Phase.EXPIRED: 'JOB_STATE_EXPIRED',
    Phase.CANCELLED: 'JOB_STATE_CANCELLED',
}

WINDOW = 96 * 3600.0
"""How long after its creation a job expires, in seconds."""

_REASONS = {400: 'Bad Request', 429: 'Resource exhausted', 500: 'Internal', 503: 'Service Unavailable'}


class FakeVertexBatch(FakeBatch):
    """A batch prediction job on the fake Vertex AI."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        execute: Callable[[FakeRow], RowResult],
        order: Json,
        input_file: str,
        output_prefix: str,
    ) -> None:
        super().__init__(submission, scene, number=number, window=WINDOW, words=WORDS, execute=execute)
        self.order = order
        """The job as it was ordered."""
        self.input_file = input_file
        """Where in Cloud Storage its requests were read."""
        self.output_prefix = output_prefix
        """Below what its files of predictions come."""
        self.deleted = False
        """Whether somebody deleted it."""
        self.settled = False
        """Whether its files were written."""
        self.output_directory: str | None = None
        """Where they are, from when it is over."""

    @property
    def display_name(self) -> str:
        """The name that it was created with."""
        return str(self.order['displayName'])

    def to_json(self) -> Json:
        """The provider's BatchPredictionJob, as of now."""
        entered, ended = self.entered, self.ended
        shown: Json = {
            'name': self.id,
            **{key: self.order[key] for key in ('displayName', 'model', 'inputConfig', 'outputConfig')},
            'state': self.status,
            'createTime': timestamp(self.created_at),
            'updateTime': timestamp(max(entered.values(), default=self.created_at)),
        }
        if labels := self.order.get('labels'):
            shown['labels'] = labels
        if Phase.RUNNING in entered:
            shown['startTime'] = timestamp(entered[Phase.RUNNING])
        if not ended:
            return shown
        shown['endTime'] = timestamp(entered[self.phase])
        if self.phase is Phase.FAILED:
            shown['error'] = self.errors[0]
            return shown
        counts = self.counts
        stats = {
            'successfulCount': counts['completed'],
            'failedCount': counts['failed'],
            'incompleteCount': counts['total'] - counts['completed'] - counts['failed'],
        }
        shown['completionStats'] = {name: str(count) for name, count in stats.items() if count}
        if self.output_directory is not None:
            shown['outputInfo'] = {'gcsOutputDirectory': self.output_directory}
        return shown

    def lines(self) -> list[ResultLine]:
        """The lines of its predictions when it is over. A row that was not run has none."""
        return [
            ResultLine(result.row.index, result.request, self._value(result.row, result.answer), 'output')
            for result in self.results
            if result.answer is not None
        ]

    def _value(self, row: FakeRow, answer: Json | FakeError) -> Json:
        failed = isinstance(answer, FakeError)
        status = f'{_REASONS.get(answer.status, "Error")}: {json.dumps(error_body(answer))}' if failed else ''
        return {
            'status': status,
            'processed_time': timestamp(self.created_at),
            'request': row.body,
            'response': {} if failed else answer,
        }


def read_input(content: bytes) -> tuple[list[FakeRow], list[Json]]:
    """The rows of an input file, and what is wrong with it, each a `google.rpc.Status`."""
    rows: list[FakeRow] = []
    errors: list[Json] = []
    for number, line in enumerate(content.split(b'\n'), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            value = None
        body = cast('Json', value).get('request') if isinstance(value, dict) else None
        if not isinstance(body, dict):
            errors.append(_error(f'Line {number} of the input is no JSON object with an object `request`.'))
            continue
        given = cast('Json', body)
        rows.append(FakeRow(len(rows), id_of(given), given, len(line)))
    if not rows and not errors:
        errors.append(_error('The input has no requests.'))
    return ([] if errors else rows), errors


def id_of(body: Json) -> str:
    """What a row is known by to whoever sent it: the first of the labels of its request, if it has one."""
    return next((value for value in object_in(body, 'labels').values() if isinstance(value, str)), '')


def with_id(value: Json, id: str | None) -> Json:
    """A line of predictions with another ID in the first label of its request, or with none."""
    request = object_in(value, 'request')
    labels = dict(object_in(request, 'labels'))
    if name := next(iter(labels), None):
        labels |= {name: id}
        if id is None:
            del labels[name]
    return {**value, 'request': {**request, 'labels': labels}}


def without_id(body: Json) -> Json:
    """A row's body as it would be without an ID."""
    labels = dict([*object_in(body, 'labels').items()][1:])
    rest = {name: value for name, value in body.items() if name != 'labels'}
    return {**rest, 'labels': labels} if labels else rest


def failure(errors: Sequence[Json] | None) -> list[Json]:
    """The error of a job that fails, of what `inject('batch', 'fail', errors=…)` was given."""
    given = (errors or [{}])[0]
    code: Any = given.get('code', 13)
    message = given.get('message') or 'The job failed.'
    return [{'code': code, 'message': message} if isinstance(code, int) else rpc_status(FakeError(500, code, message))]


def _error(message: str) -> Json:
    return rpc_status(FakeError(400, None, message))
