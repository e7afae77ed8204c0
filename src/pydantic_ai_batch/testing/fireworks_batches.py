"""Jobs and datasets of the fake Fireworks: what they are described as, and the lines of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic_ai_batch.testing.answers import FakeError, FakeRequest
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    Phase.VALIDATING: 'JOB_STATE_VALIDATING',
    Phase.RUNNING: 'JOB_STATE_RUNNING',
    Phase.FINALIZING: 'JOB_STATE_WRITING_RESULTS',
    Phase.CANCELLING: 'JOB_STATE_CANCELLING',
    Phase.COMPLETED: 'JOB_STATE_COMPLETED',
    Phase.FAILED: 'JOB_STATE_FAILED',
    Phase.EXPIRED: 'JOB_STATE_EXPIRED',
    Phase.CANCELLED: 'JOB_STATE_CANCELLED',
}

GRPC: Mapping[int, int] = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 500: 13, 501: 12, 503: 14, 504: 4}
"""gRPC's code of an error, by its HTTP status."""


@dataclass
class FakeDataset:
    """A dataset on the fake Fireworks."""

    id: str
    project: str
    """The account's key that can see it."""
    created_at: float
    """In seconds since the epoch."""
    files: dict[str, bytes]
    """Its files by their names. None before the upload."""
    ready_at: float | None = None
    """When it can be used, in seconds since the epoch; `None` before the upload."""

    def to_json(self, account: str, now: float) -> dict[str, Any]:
        """The provider's dataset, as of `now`."""
        ready = self.ready_at is not None and now >= self.ready_at
        return {
            'name': f'accounts/{account}/datasets/{self.id}',
            'displayName': '',
            'createTime': _time(self.created_at),
            'state': 'READY' if ready else 'UPLOADING',
            'status': {'code': 'OK', 'message': ''},
            'exampleCount': str(sum(content.count(b'\n') for content in self.files.values())),
            'userUploaded': {},
            'format': 'CHAT',
        }


class FakeFireworksBatch(FakeOpenAIBatch):
    """A job on the fake Fireworks."""

    account = ''
    """The account that it is of."""
    display_name = ''
    output_id = ''
    """The ID of the dataset that its results are written to."""
    wrapped = False
    """Whether an answer stands in a `body`."""

    def to_json(self) -> dict[str, Any]:
        """The provider's job, as of now."""
        entered, counts = self.entered, self.counts
        done = counts['completed'] + counts['failed']
        status = {'code': 'OK', 'message': ''}
        if Phase.FAILED in entered:
            code = self.errors[0].get('code')
            status = {
                'code': code if isinstance(code, str) and code.isupper() else 'INVALID_ARGUMENT',
                'message': '; '.join(str(error.get('message')) for error in self.errors),
            }
        return {
            'name': f'accounts/{self.account}/batchInferenceJobs/{self.id}',
            'displayName': self.display_name,
            'createTime': _time(self.created_at),
            'createdBy': 'somebody@example.com',
            'state': self.status,
            'status': status,
            'model': self.model,
            'inputDatasetId': f'accounts/{self.account}/datasets/{self.input_file_id}',
            'outputDatasetId': f'accounts/{self.account}/datasets/{self.output_id}',
            'updateTime': _time(max(entered.values())),
            'precision': 'PRECISION_UNSPECIFIED',
            'jobProgress': {
                'percent': 100 * done // (counts['total'] or 1),
                'totalInputRequests': counts['total'],
                'totalProcessedRequests': done,
                'successfullyProcessedRequests': counts['completed'],
                'failedRequests': counts['failed'],
            },
        }

    def lines(self, ask: Callable[..., FakeRequest]) -> list[ResultLine]:
        """Its result lines when it is over. A row that was not run has none."""
        lines: list[ResultLine] = []
        for result in self.results:
            answer, value = result.answer, {'custom_id': result.row.custom_id}
            if isinstance(answer, FakeError):
                error = {'code': answer.status, 'message': answer.message}
                lines.append(ResultLine(result.row.index, result.request, {**value, 'error': error}, 'error'))
            elif answer is not None:
                response = {'status_code': 200, 'body': answer} if self.wrapped else answer
                lines.append(ResultLine(result.row.index, result.request, {**value, 'response': response}, 'output'))
        return lines


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace('+00:00', 'Z')
