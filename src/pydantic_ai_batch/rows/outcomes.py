"""Turns what came of a request into the record of its row."""

from __future__ import annotations

from typing import Any

from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch import compat
from pydantic_ai_batch.exceptions import ResultIntegrityError, is_gone
from pydantic_ai_batch.lanes.base import Lane, NotRun
from pydantic_ai_batch.lanes.errors import error_object
from pydantic_ai_batch.list_call import Outcome
from pydantic_ai_batch.pricing import price_of
from pydantic_ai_batch.wording import listed

from .records import RowResult, Status

_FINISHES: dict[str, Status] = {'length': 'truncated', 'content_filter': 'refused'}
"""What came of a row whose model stopped for another reason than that it was done."""

_UNRUN: dict[str, Status] = {'expired': 'expired', 'canceled': 'cancelled'}


def record_of(
    row_id: str, lane: Lane, outcome: Outcome, result: BatchResult | NotRun | None, batch: Batch | None
) -> RowResult[Any]:
    """The record of a row, whose output is the text of its answer.

    Args:
        row_id: The ID of the row.
        lane: The lane that it went by.
        outcome: What came of its request for good.
        result: What that was read from.
        batch: The batch that it was in.
    """
    said = result.result if isinstance(result, NotRun) else result
    raw = compat.provider_body(said) if said is not None else None
    batch_id = batch.id if batch is not None else None
    if isinstance(outcome, ModelResponse):
        price = price_of(outcome, lane.info)
        status = status_of_answer(outcome.finish_reason)
        error = unfinished(status, outcome)
        if status == 'ok' and not outcome.text and (called := _called(outcome)):
            # A row that is a run of an agent goes on from here, and has its error taken back.
            status, error = 'error', f'The model called {called}, which the row has not, and said nothing.'
        return RowResult(
            id=row_id,
            status=status,
            output=(outcome.text or '') if status == 'ok' else None,
            text=outcome.text,
            usage=outcome.usage,
            model=outcome.model_name,
            cost=price and price.batch,
            live_cost=price and price.live,
            finish_reason=outcome.finish_reason,
            error=error,
            batch_id=batch_id,
            raw=raw,
        )
    return RowResult(
        id=row_id,
        status=_status_of(outcome, result, batch),
        error_class=type(outcome).__name__,
        error=words_of(outcome),
        batch_id=batch_id,
        raw=raw,
    )


def _called(response: ModelResponse) -> str:
    """The tools that an answer calls, in words."""
    return listed([f'`{name}`' for name in dict.fromkeys(call.tool_name for call in response.tool_calls)])


def words_of(error: Exception) -> str:
    """An error in words: what a provider said of a request, where that is all there is to it."""
    if isinstance(error, ModelHTTPError):
        said = error_object(error.body).get('message')
        if isinstance(said, str) and said and str(error).endswith(f'body: {error.body}'):
            return f'{said} (status {error.status_code})'
    return str(error)


def _status_of(error: ModelAPIError, result: BatchResult | NotRun | None, batch: Batch | None) -> Status:
    if isinstance(error, ContentFilterError):
        return 'refused'
    if result is None:
        # A batch that could not be checked, or read, goes on, and may well have an answer.
        return 'error' if batch is None or is_gone(error) else 'pending'
    if isinstance(result, BatchResult):
        return _UNRUN.get(result.status, 'error')
    if result.result is not None:
        return _UNRUN.get(result.result.status, 'error')
    return 'error' if isinstance(error, ResultIntegrityError) else 'missing'


def status_of_answer(finish_reason: str | None) -> Status:
    """What came of a row whose model stopped for that reason."""
    return _FINISHES.get(finish_reason or '', 'ok')


def unfinished(status: Status, response: ModelResponse | None = None) -> str | None:
    """What is wrong with an answer of that status; `None` if nothing is."""
    if status == 'truncated':
        return 'The answer ends where its tokens did: give it more (`max_tokens`).'
    if status == 'refused':
        details = (response.provider_details if response is not None else None) or {}
        reason = details.get('refusal') or details.get('block_reason') or details.get('finish_reason')
        return f'The model would not answer{f": {reason}" if reason else "."}'
    return None
