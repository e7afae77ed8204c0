"""The fake Together: OpenAI's shape with Together's manners."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from pydantic_ai_batch.testing.batches import FakeRow
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch
from pydantic_ai_batch.testing.openai_bodies import CHAT
from pydantic_ai_batch.testing.openai_files import FakeFile
from pydantic_ai_batch.testing.openai_input import Input, read_input
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.timetable import Phase
from pydantic_ai_batch.testing.wire import json_reply

WORDS = {
    Phase.VALIDATING: 'VALIDATING',
    Phase.RUNNING: 'IN_PROGRESS',
    Phase.FINALIZING: 'IN_PROGRESS',
    Phase.CANCELLING: 'IN_PROGRESS',
    Phase.COMPLETED: 'COMPLETED',
    Phase.FAILED: 'FAILED',
    Phase.EXPIRED: 'EXPIRED',
    Phase.CANCELLED: 'CANCELLED',
}

_CODES = {401: 'unauthorized', 403: 'forbidden', 404: 'invalid_model', 429: 'rate_limit_exceeded', 503: 'overloaded'}


class FakeTogetherBatch(FakeOpenAIBatch):
    """A batch on the fake Together."""

    def to_json(self) -> dict[str, Any]:
        """The provider's job, as of now."""
        entered = {phase: datetime.fromtimestamp(at, UTC).isoformat() for phase, at in self.entered.items()}
        done = len(self.results)
        described: dict[str, Any] = {
            'id': self.id,
            'user_id': 'user_1',
            'input_file_id': self.input_file_id,
            'file_size_bytes': sum(row.size for row in self.requests),
            'status': self.status,
            'progress': 100 * done / (len(self.requests) or 1),
            'model_id': self.model,
            'endpoint': self.endpoint,
            'output_file_id': self.output_file_id or '',
            'error_file_id': self.error_file_id or '',
            'created_at': datetime.fromtimestamp(self.created_at, UTC).isoformat(),
            'job_deadline': datetime.fromtimestamp(self.expires_at, UTC).isoformat(),
            'completed_at': entered.get(Phase.COMPLETED),
        }
        if Phase.FAILED in entered:
            described['error'] = '; '.join(f'line {error["line"]}: {error["message"]}' for error in self.errors)
        return described

    def line_value(self, row: FakeRow, response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
        """A line of a result file."""
        if response is None or response['status_code'] != 200:
            failure: dict[str, Any] = response['body']['error'] if response else error or {}
            code = _CODES.get(response['status_code'] if response else 0, failure['code'] or failure.get('type'))
            return {'custom_id': row.custom_id, 'error': {'message': failure['message'], 'code': code}}
        return {'custom_id': row.custom_id, 'response': {'status_code': 200, 'body': response['body']}}


class FakeTogether(FakeOpenAI):
    """Together's Files and Batch APIs, and its Chat Completions endpoint.

    Its manners: files are uploaded at a path of their own, a batch comes wrapped in the reply to its creation and has
    no metadata, the listing is a bare list of all, words for states come in capitals, lines name no URL, and errors of
    calls are a text.
    """

    name = 'together'
    prefix = '/together/v1'
    endpoints = (CHAT,)
    words = WORDS
    batch_class = FakeTogetherBatch
    purpose = 'batch-api'
    upload_path = '/files/upload'

    @property
    def environment(self) -> dict[str, str]:
        """The key. There is no variable for the address."""
        return {'TOGETHER_API_KEY': 'test'}

    def new_id(self) -> str:
        """The ID of a batch."""
        return str(uuid.uuid4())

    def read_input(self, content: bytes, endpoint: str) -> Input:
        """The rows of an input file, or what is wrong with it."""
        return read_input(content, endpoint=endpoint, max_requests=self.max_requests, addressed=False)

    def _create(self, call: Incoming) -> Response:
        response = super()._create(call)
        if response.status_code != 200:
            return response
        batch = [*self._batches.values()][-1]
        return json_reply({'job': self.describe(batch), 'warning': ''}, 201)

    def _list_files(self, call: Incoming) -> Response:
        files = self._files.of(self._project(call), self._now)
        return json_reply({'data': [self.describe_file(file) for file in files]})

    def describe_file(self, file: FakeFile) -> dict[str, Any]:
        """The provider's File object, as of now."""
        described = file.to_json()
        del described['status'], described['status_details'], described['expires_at']
        return described | {'FileType': 'jsonl', 'Processed': True}

    def _listed(self, call: Incoming, batches: Sequence[FakeOpenAIBatch]) -> Response:
        return json_reply([self.describe(batch) for batch in batches])

    def error(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
        """An error reply of the batch API."""
        return json_reply({'error': message}, status)
