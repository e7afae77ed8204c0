"""What is the same of Gemini in both of its batch APIs, the Gemini API's and Google Cloud's."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch.exceptions import ResultUnreadable
from pydantic_ai_batch.statuses import JobStatus

from .base import NotRun, failed_unnamed, sent_back
from .lines import parse_object

STATES: Mapping[str, JobStatus] = {
    'UNSPECIFIED': 'submitted',
    'QUEUED': 'submitted',
    'PENDING': 'submitted',
    'RUNNING': 'in_progress',
    'PAUSED': 'in_progress',
    'UPDATING': 'in_progress',
    'CANCELLING': 'canceling',
    'SUCCEEDED': 'ended',
    'PARTIALLY_SUCCEEDED': 'ended',
    'FAILED': 'failed',
    'CANCELLED': 'canceled',
    'EXPIRED': 'expired',
}
"""What the states of a job mean, by what comes after `_STATE_` in their names."""

_INVALID_CODES = (3, 400)
"""The codes of a job that failed for what is in it, as gRPC's INVALID_ARGUMENT or as its HTTP status."""

_FULL_QUEUE_CODES = (8, 429)
"""The codes of a job that its project has no room for now, as gRPC's RESOURCE_EXHAUSTED or as its HTTP status."""


def state_of(word: str) -> str:
    """The last part of the name of a state, which is `BATCH_STATE_…` in one place and `JOB_STATE_…` in another."""
    return word.partition('_STATE_')[2] or word


def check_answer(model_name: str, result: BatchResult) -> None:
    """Refuse a success that holds no answer, which would be read as an empty one.

    Raises:
        ResultUnreadable: It holds neither an answer nor a reason why there is none.
    """
    if result.status != 'succeeded' or result.body is None:
        return
    answer = parse_object(result.body.encode('utf-8', 'surrogatepass'))
    if answer is None or not ({'candidates', 'promptFeedback'} & answer.keys()):
        raise ResultUnreadable(
            model_name,
            'The provider returned a success with neither an answer nor a reason why there is none.',
            body=result.body,
        )


def because_of(code: object, batch: Batch, failed: BatchResult) -> BatchResult | NotRun:
    """What a job that failed with a code means for a request in it, whose own failure would be `failed`."""
    if code in _FULL_QUEUE_CODES:
        return sent_back(batch, failed)
    return failed_unnamed(batch, failed) if code in _INVALID_CODES and batch.request_count > 1 else failed
