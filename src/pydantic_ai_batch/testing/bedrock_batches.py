"""Model invocation jobs of the fake Bedrock: what they are described as, and the lines of their results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.bedrock_bodies import row_error, usage_tokens
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase

WORDS: Mapping[Phase, str] = {
    Phase.VALIDATING: 'Validating',
    Phase.RUNNING: 'InProgress',
    Phase.FINALIZING: 'InProgress',
    Phase.CANCELLING: 'Stopping',
    Phase.COMPLETED: 'Completed',
    Phase.FAILED: 'Failed',
    Phase.EXPIRED: 'Expired',
    Phase.CANCELLED: 'Stopped',
}


@dataclass(frozen=True)
class Order:
    """What a job was ordered with."""

    name: str
    token: str | None
    role: str
    input_uri: str
    output_uri: str
    hours: int


class FakeBedrockBatch(FakeBatch):
    """A job on the fake Bedrock."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        order: Order,
        words: Mapping[Phase, str],
        execute: Callable[[FakeRow], RowResult],
    ) -> None:
        window = order.hours * 3600.0
        super().__init__(submission, scene, number=number, window=window, words=words, execute=execute)
        self.order = order
        """What it was ordered with."""
        self.settled = False
        """Whether its results were written."""

    def to_json(self) -> dict[str, Any]:
        """The provider's job, as of now."""
        entered, counts, order = self.entered, self.counts, self.order
        described: dict[str, Any] = {
            'jobArn': self.id,
            'jobName': order.name,
            'modelId': self.model,
            'roleArn': order.role,
            'status': self.status,
            'submitTime': iso(self.created_at),
            'lastModifiedTime': iso(max(entered.values())),
            'inputDataConfig': {'s3InputDataConfig': {'s3InputFormat': 'JSONL', 's3Uri': order.input_uri}},
            'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': order.output_uri}},
            'timeoutDurationInHours': order.hours,
            'jobExpirationTime': iso(self.created_at + order.hours * 3600.0),
            'modelInvocationType': 'Converse',
            'totalRecordCount': counts['total'],
            'processedRecordCount': counts['completed'] + counts['failed'],
            'successRecordCount': counts['completed'],
            'errorRecordCount': counts['failed'],
        }
        if order.token is not None:
            described['clientRequestToken'] = order.token
        if self.ended:
            described['endTime'] = iso(entered[self.phase])
        if Phase.FAILED in entered:
            described['message'] = '; '.join(str(error.get('message')) for error in self.errors)
        return described

    def lines(self) -> list[ResultLine]:
        """The lines of its results by now. A row that was not run has none."""
        lines: list[ResultLine] = []
        for result in self.results:
            if result.answer is None:
                continue
            value: dict[str, Any] = {'recordId': result.row.custom_id, 'modelInput': result.row.body}
            if isinstance(result.answer, FakeError):
                value['error'] = row_error(result.answer)
            else:
                value['modelOutput'] = result.answer
            lines.append(ResultLine(result.row.index, result.request, value, 'output'))
        return lines

    def manifest(self) -> bytes:
        """What stands beside the results: how many there are, and what they took."""
        counts = self.counts
        used = [usage_tokens(result.answer) for result in self.results if isinstance(result.answer, dict)]
        return json.dumps(
            {
                'totalRecordCount': counts['total'],
                'processedRecordCount': counts['completed'] + counts['failed'],
                'successRecordCount': counts['completed'],
                'errorRecordCount': counts['failed'],
                'inputTokenCount': sum(spent for spent, _ in used),
                'outputTokenCount': sum(made for _, made in used),
            }
        ).encode()


def read_rows(content: bytes) -> tuple[list[FakeRow], list[dict[str, Any]]]:
    """The rows of an input file, and what is wrong with it. What is asked in a row is not looked at."""
    rows: list[FakeRow] = []
    for number, line in enumerate(content.split(b'\n'), start=1):
        if not line.strip():
            continue
        try:
            value: Any = json.loads(line)
        except ValueError:
            value = None
        item = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
        body = item.get('modelInput')
        if not isinstance(body, dict):
            return [], [{'message': f'Record {number} of the input is no JSON object with a `modelInput`.'}]
        record_id = str(item.get('recordId') or f'CALL{number:07}')
        rows.append(FakeRow(len(rows), record_id, cast('dict[str, Any]', body), len(line)))
    return rows, []


def iso(at: float) -> str:
    """A time as it stands in a reply."""
    return datetime.fromtimestamp(at, UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
