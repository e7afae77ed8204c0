"""Batches of the fake OpenAI: the object, and the lines of its result files."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, cast

from pydantic_ai_batch.testing.answers import FakeError, FakeRequest
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.openai_bodies import usage_tokens
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {phase: 'in_progress' if phase is Phase.RUNNING else phase.value for phase in Phase}
WINDOW = 24 * 3600.0
"""How long after its creation a batch expires, in seconds."""

_UNFINISHED = {
    Phase.EXPIRED: ('batch_expired', 'The window of the batch ended before this request was run.'),
    Phase.CANCELLED: ('batch_cancelled', 'The batch was cancelled before this request was run.'),
}
"""Code and message of the rows that a batch which ended early did not run."""

_ERROR_TYPES = {401: 'authentication_error', 403: 'permission_error', 429: 'rate_limit_error'}


class FakeOpenAIBatch(FakeBatch):
    """A batch on the fake OpenAI."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        window: float,
        words: Mapping[Phase, str],
        execute: Callable[[FakeRow], RowResult],
        input_file_id: str,
        output_lifetime: float | None,
    ) -> None:
        super().__init__(submission, scene, number=number, window=window, words=words, execute=execute)
        self.input_file_id = input_file_id
        """The file that it was created from."""
        self.output_lifetime = output_lifetime
        """How long its result files are kept, in seconds."""
        self.output_file_id: str | None = None
        """The file of answers, from when it is over; `None` if no row succeeded."""
        self.error_file_id: str | None = None
        """The file of failures, from when it is over; `None` if there are none."""
        self.settled = False
        """Whether its result files were made."""

    def to_json(self) -> dict[str, Any]:
        """The provider's Batch object, as of now."""
        entered = {phase: int(at) for phase, at in self.entered.items()}
        spent, made = self._tokens() if self.settled else (0, 0)
        return {
            'id': self.id,
            'object': 'batch',
            'endpoint': self.endpoint,
            'model': self.model if Phase.RUNNING in entered else None,
            'errors': {'object': 'list', 'data': self.errors} if Phase.FAILED in entered else None,
            'input_file_id': self.input_file_id,
            'completion_window': '24h',
            'status': self.status,
            'output_file_id': self.output_file_id,
            'error_file_id': self.error_file_id,
            'created_at': int(self.created_at),
            'in_progress_at': entered.get(Phase.RUNNING),
            'expires_at': int(self.expires_at) if isfinite(self.expires_at) else None,
            'finalizing_at': entered.get(Phase.FINALIZING),
            'completed_at': entered.get(Phase.COMPLETED),
            'failed_at': entered.get(Phase.FAILED),
            'expired_at': entered.get(Phase.EXPIRED),
            'cancelling_at': entered.get(Phase.CANCELLING),
            'cancelled_at': entered.get(Phase.CANCELLED),
            'request_counts': self.counts,
            'usage': {
                'input_tokens': spent,
                'output_tokens': made,
                'total_tokens': spent + made,
                'input_tokens_details': {'cached_tokens': 0},
                'output_tokens_details': {'reasoning_tokens': 0},
            },
            'metadata': self.metadata,
        }

    def _tokens(self) -> tuple[int, int]:
        used = [usage_tokens(result.answer) for result in self.results if isinstance(result.answer, dict)]
        return sum(spent for spent, _ in used), sum(made for _, made in used)

    def lines(self, ask: Callable[[FakeRow], FakeRequest]) -> list[ResultLine]:
        """Its result lines when it is over.

        Args:
            ask: Makes the request of a row that was not run.
        """
        lines = [self._line(result) for result in self.results if result.answer is not None]
        if reason := _UNFINISHED.get(self.phase):
            error = {'code': reason[0], 'message': reason[1]}
            lines += [
                ResultLine(row.index, ask(row), self.line_value(row, None, error), 'error') for row in self.unfinished
            ]
        return lines

    def _line(self, result: RowResult) -> ResultLine:
        """The line of a row that was run."""
        answer, file, status, body = result.answer, 'output', 200, result.answer
        if isinstance(answer, FakeError):
            file, status, body = 'error', answer.status, error_body(answer)
        response = {'status_code': status, 'request_id': str(uuid.uuid4()), 'body': body}
        return ResultLine(result.row.index, result.request, self.line_value(result.row, response, None), file)

    def line_value(self, row: FakeRow, response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
        """A line of a result file."""
        return {
            'id': f'batch_req_{uuid.uuid4().hex}',
            'custom_id': row.custom_id,
            'response': response,
            'error': error,
        }


def error_body(error: FakeError) -> dict[str, Any]:
    """The body of an error reply, or of a failed row."""
    fallback = 'server_error' if error.status >= 500 else 'invalid_request_error'
    type = error.type or _ERROR_TYPES.get(error.status, fallback)
    return {'error': {'message': error.message, 'type': type, 'param': error.param, 'code': error.code}}


def metadata_problem(metadata: Any) -> str | None:
    """Why a batch cannot be created with `metadata`."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        return 'The metadata must be an object.'
    pairs = cast('dict[str, Any]', metadata)
    if len(pairs) > 16:
        return 'The metadata may have at most 16 pairs.'
    for key, value in pairs.items():
        if not isinstance(value, str) or len(value) > 512 or len(key) > 64:
            return f'Metadata {key!r}: a key has at most 64 characters, a value is a string of at most 512.'
    return None
