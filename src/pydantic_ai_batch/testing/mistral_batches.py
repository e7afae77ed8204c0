"""Batches and files of the fake Mistral: the job, the lines of its results, and the objects of its files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic_ai_batch.testing.answers import FakeError, FakeRequest
from pydantic_ai_batch.testing.batches import FakeRow
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.mistral_bodies import error_body
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch
from pydantic_ai_batch.testing.openai_files import FakeFile, FileStore
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    Phase.VALIDATING: 'QUEUED',
    Phase.RUNNING: 'RUNNING',
    Phase.FINALIZING: 'RUNNING',
    Phase.CANCELLING: 'CANCELLATION_REQUESTED',
    Phase.COMPLETED: 'SUCCESS',
    Phase.FAILED: 'FAILED',
    Phase.EXPIRED: 'TIMEOUT_EXCEEDED',
    Phase.CANCELLED: 'CANCELLED',
}

RESULT_RETENTION = 24 * 3600.0
"""How long results can be downloaded, in seconds: the shorter of the two times that the documentation gives."""

_SAMPLES = {'batch': 'batch_request', 'batch_output': 'batch_result', 'batch_error': 'batch_error'}


class FakeMistralBatch(FakeOpenAIBatch):
    """A batch on the fake Mistral."""

    inline = False
    """Whether its requests came inside the create call, so that its answers are in the job."""

    def to_json(self) -> dict[str, Any]:
        """The provider's job, as of now, without the answers that may be in it."""
        entered, counts = self.entered, self.counts
        return {
            'id': self.id,
            'object': 'batch',
            'input_files': [self.input_file_id],
            'metadata': self.metadata,
            'endpoint': self.endpoint,
            'model': self.model,
            'agent_id': None,
            'output_file': self.output_file_id,
            'error_file': self.error_file_id,
            'errors': self.errors if Phase.FAILED in entered else [],
            'outputs': None,
            'status': self.status,
            'created_at': int(self.created_at),
            'total_requests': counts['total'],
            'completed_requests': counts['completed'] + counts['failed'],
            'succeeded_requests': counts['completed'],
            'failed_requests': counts['failed'],
            'started_at': int(entered[Phase.RUNNING]) if Phase.RUNNING in entered else None,
            'completed_at': int(entered[self.phase]) if self.ended else None,
        }

    def lines(self, ask: Callable[[FakeRow], FakeRequest]) -> list[ResultLine]:
        """Its result lines when it is over. A row that was not run has none."""
        return [
            ResultLine(
                result.row.index,
                result.request,
                self._value(result.row, result.answer),
                'error' if isinstance(result.answer, FakeError) else 'output',
            )
            for result in self.results
            if result.answer is not None
        ]

    def _value(self, row: FakeRow, answer: dict[str, Any] | FakeError) -> dict[str, Any]:
        failed = isinstance(answer, FakeError)
        return {
            'id': f'batch-{self.id[:8]}-{self.input_file_id[:8]}-{row.index}',
            'custom_id': row.custom_id or None,
            'response': {
                'status_code': answer.status if failed else 200,
                'body': error_body(answer) if failed else answer,
            },
            'error': None,
        }


class MistralFiles(FileStore):
    """Files with the IDs that Mistral gives them."""

    def add(
        self, project: str, *, purpose: str, filename: str, content: bytes, created_at: float, lifetime: float | None
    ) -> FakeFile:
        """Keep a file."""
        id = str(uuid.uuid4())
        self._files[id] = file = FakeFile(id, project, purpose, filename, content, created_at, lifetime)
        return file


def describe_file(file: FakeFile) -> dict[str, Any]:
    """The provider's File object."""
    uploaded = file.purpose == 'batch'
    return {
        'id': file.id,
        'object': 'file',
        'bytes': len(file.content),
        'created_at': int(file.created_at),
        'filename': file.filename,
        'purpose': 'batch' if file.purpose in _SAMPLES else file.purpose,
        'sample_type': _SAMPLES.get(file.purpose, 'instruct'),
        'num_lines': file.content.count(b'\n'),
        'mimetype': 'application/jsonl',
        'source': 'upload' if uploaded else 'mistral',
        'signature': None,
        'expires_at': None if file.expires_at is None else int(file.expires_at),
    }


def outputs_of(file: FakeFile) -> list[Any]:
    """The lines of a file as they stand in the list of a job, where what is no JSON can only be a string."""
    return [_item(line) for line in file.content.split(b'\n')[:-1]]


def _item(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return line.decode('utf-8', 'replace')


def metadata_problem(metadata: Any) -> str | None:
    """Why a batch cannot be created with `metadata`."""
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        return 'The metadata must be an object.'
    for key, value in cast('dict[str, Any]', metadata).items():
        if not 1 <= len(key) <= 32 or not isinstance(value, str) or not 1 <= len(value) <= 512:
            return f'Metadata {key!r}: a key has from 1 to 32 characters, a value is a string of 1 to 512.'
    return None
