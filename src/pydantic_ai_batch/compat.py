"""The one place that knows what pydantic-ai leaves undocumented: the formats of its own batch support.

These are the group keys of encoded requests, the bodies of `BatchResult`s, the `provider_details` of a `Batch`, and
the ticket that a pending response carries in the message history. Ours are the framework's, with keys of our own
beside them, so that a history left pending by one of the two capabilities is collected by the other, and so that the
framework's guard against resuming a pending history at full price protects ours.

Everything here is tested on the lowest and the newest supported version of pydantic-ai.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NotRequired, TypeGuard, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.batch import Batch, BatchResult
from pydantic_core import PydanticSerializationError
from typing_extensions import TypedDict

from .policy import MAX_RETRY_AFTER

TICKET_KEY = 'batch'
"""The key of a pending response's `provider_details` under which the framework, too, keeps its ticket."""

PROCESSING_KEY = 'processing'
"""The key of `provider_details` that prices go by; `genai-prices` knows the value `batch`."""


class _TicketDict(TypedDict):
    custom_id: str
    batch: Batch
    polls: int
    failed_checks: NotRequired[int]
    resubmissions: NotRequired[int]
    continued_response_id: NotRequired[str]
    trace_context: NotRequired[Any]
    pydantic_ai_batch: NotRequired[dict[str, Any]]
    """What this package adds, under a key of its own."""


_TICKETS = TypeAdapter(_TicketDict)
_BATCHES = TypeAdapter(Batch)


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """What a pending response records about its request: which batch holds it, and what checks came to so far."""

    custom_id: str
    """The request's ID on the wire."""

    batch: Batch
    """The batch as it was last read."""

    lane: str | None = None
    """The lane that submitted it, or `None` if the framework's own capability did."""

    checked_at: datetime | None = None
    """When that was, by the clock of the process that did it; `None` if it was not checked since it was created."""

    polls: int = 0
    """How many checks the request has seen."""

    failed_checks: int = 0
    """How many checks in a row failed in a passing way."""

    not_found: int = 0
    """How many checks in a row answered 404."""

    last_seen: datetime | None = None
    """When a check last answered."""

    incomplete: int = 0
    """How many checks found fewer results than there may be."""

    incomplete_since: datetime | None = None
    """When the first of those was made."""

    resubmissions: int = 0
    """How many times the request was submitted again."""

    retry_after: float = 0.0
    """Seconds that the provider asked to wait before the next check, when it refused the last one."""

    held_since: datetime | None = None
    """When a full queue first sent the request back, by our clock; `None` if none did."""

    continued_response_id: str | None = None
    """The ID of the suspended response, such as an Anthropic `pause_turn`, that the request continues."""

    trace_context: Mapping[str, str] | None = None
    """The trace of the batch's submission, which checks join, if that was traced."""

    @property
    def response_id(self) -> str:
        """The `provider_response_id` of the pending response that carries this ticket."""
        return f'batch:{self.batch.id}:{self.custom_id}'


def read_ticket(message: ModelMessage | None) -> Ticket | None:
    """The ticket of a response that still waits for its batch, ours or the framework's, or `None`."""
    if not (isinstance(message, ModelResponse) and message.state == 'suspended' and message.provider_details):
        return None
    try:
        stored = _TICKETS.validate_python(message.provider_details.get(TICKET_KEY))
    except ValidationError:
        return None
    # Of what is ours, anything odd counts as absent: it only makes checks cheaper, and a ticket that is taken for none
    # would have its request sent again.
    own = stored.get('pydantic_ai_batch', {})
    lane, not_found, retry_after = own.get('lane'), own.get('not_found'), own.get('retry_after')
    batch = stored['batch']
    ticket = Ticket(
        custom_id=stored['custom_id'],
        batch=replace(batch, created_at=aware(batch.created_at)),
        lane=lane if isinstance(lane, str) else None,
        checked_at=_time(own.get('checked_at')),
        polls=stored['polls'],
        failed_checks=stored.get('failed_checks', 0),
        not_found=not_found if isinstance(not_found, int) else 0,
        incomplete=incomplete if isinstance(incomplete := own.get('incomplete'), int) else 0,
        incomplete_since=_time(own.get('incomplete_since')),
        last_seen=_time(own.get('last_seen')),
        retry_after=min(retry_after, MAX_RETRY_AFTER)
        if isinstance(retry_after, float | int) and retry_after > 0
        else 0.0,
        held_since=_time(own.get('held_since')),
        resubmissions=stored.get('resubmissions', 0),
        continued_response_id=stored.get('continued_response_id'),
        trace_context=_headers(stored.get('trace_context')),
    )
    # A turn that was merged from several responses can carry the ticket of a batch it no longer waits for.
    return ticket if message.provider_response_id == ticket.response_id else None


def aware(time: datetime) -> datetime:
    """`time`, taken for UTC if it has no zone."""
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _time(value: object) -> datetime | None:
    with suppress(ValueError):
        return aware(datetime.fromisoformat(value)) if isinstance(value, str) else None
    return None


def _headers(value: object) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    items = cast('dict[Any, Any]', value).items()
    return {key: text for key, text in items if isinstance(key, str) and isinstance(text, str)} or None


def write_ticket(ticket: Ticket) -> dict[str, Any]:
    """`ticket` as plain JSON data for `provider_details`, in the framework's shape with our keys beside it.

    Raises:
        ModelAPIError: A model of the user's made a handle that is none of the framework's type.
    """
    own: dict[str, Any] = {}
    if ticket.lane is not None:
        own['lane'] = ticket.lane
    if ticket.checked_at is not None:
        own['checked_at'] = ticket.checked_at.isoformat()
    if ticket.not_found:
        own['not_found'] = ticket.not_found
    if ticket.incomplete:
        own['incomplete'] = ticket.incomplete
    if ticket.incomplete_since is not None:
        own['incomplete_since'] = ticket.incomplete_since.isoformat()
    if ticket.last_seen is not None:
        own['last_seen'] = ticket.last_seen.isoformat()
    if ticket.retry_after:
        own['retry_after'] = ticket.retry_after
    if ticket.held_since is not None:
        own['held_since'] = ticket.held_since.isoformat()
    try:
        batch = _BATCHES.dump_python(ticket.batch, mode='json', warnings=False)
        _BATCHES.validate_python(batch)
    except (PydanticSerializationError, ValueError) as error:
        # A ticket that cannot be read is none, and its request would be sent again.
        raise ModelAPIError(
            ticket.batch.model_name, f'The handle of batch {ticket.batch.id!r} cannot be stored: {error}'
        ) from error
    stored: dict[str, Any] = {
        'custom_id': ticket.custom_id,
        'batch': batch,
        'polls': ticket.polls,
        'pydantic_ai_batch': own,
    }
    if ticket.failed_checks:
        stored['failed_checks'] = ticket.failed_checks
    if ticket.resubmissions:
        stored['resubmissions'] = ticket.resubmissions
    if ticket.continued_response_id is not None:
        stored['continued_response_id'] = ticket.continued_response_id
    if ticket.trace_context is not None:
        stored['trace_context'] = dict(ticket.trace_context)
    return {TICKET_KEY: stored}


def dump_batch(batch: Batch) -> str:
    """A batch's handle as JSON."""
    # What a provider says may hold half a character, which only this writer takes.
    return json.dumps(_BATCHES.dump_python(batch, mode='json', warnings=False))


def load_batch(text: str) -> Batch:
    """The handle that `dump_batch` wrote."""
    return _BATCHES.validate_json(text)


def settle_details(response: ModelResponse, ticket: Ticket) -> ModelResponse:
    """The answered `response` with what stays of `ticket` in the history: where the answer came from.

    The key must be overwritten, as merging it into the pending response would carry the whole ticket over.
    """
    settled: dict[str, Any] = {'id': ticket.batch.id, 'custom_id': ticket.custom_id}
    if ticket.resubmissions:
        settled['resubmissions'] = ticket.resubmissions
    return replace(response, provider_details={**(response.provider_details or {}), TICKET_KEY: settled})


def answer_id(response: ModelResponse) -> str | None:
    """What tells an answer from all others: where it came from, if its history says so."""
    settled: Any = (response.provider_details or {}).get(TICKET_KEY)
    if not isinstance(settled, dict):
        return None
    batch_id, custom_id = (cast('dict[str, Any]', settled).get(key) for key in ('id', 'custom_id'))
    return f'{batch_id}/{custom_id}' if batch_id and custom_id else None


def without_ticket(pending: ModelResponse, ticket: Ticket) -> ModelResponse:
    """The turn that `pending` accumulated before the batch, to be continued by another request."""
    details = {key: value for key, value in (pending.provider_details or {}).items() if key != TICKET_KEY}
    return replace(pending, provider_response_id=ticket.continued_response_id, provider_details=details or None)


def group_of(group: str) -> dict[str, Any]:
    """The parts of a group key: for the framework's models, digests of endpoint and credential, and the model."""
    try:
        parts = json.loads(group)
    except ValueError:
        parts = None
    if not isinstance(parts, dict):
        raise UserError(f'The batch has a group key that this version cannot read: {group!r}.')
    return cast('dict[str, Any]', parts)


def with_credential(group: str, more: str) -> str:
    """The group key with `more` in the digest of its credential, which alone may change while a batch runs."""
    parts = group_of(group)
    credential = hashlib.sha256(f'{parts.get("credential")} {more}'.encode()).hexdigest()
    return json.dumps({**parts, 'credential': credential}, sort_keys=True)


def with_window(group: str, hours: int) -> str:
    """The group key of requests whose batch is to end within `hours`, which those of another window do not share."""
    return json.dumps({**group_of(group), 'window': hours}, sort_keys=True)


def window_of(group: str) -> int | None:
    """The hours that the batch of a group is to end in; `None` where none was asked for."""
    try:
        hours = group_of(group).get('window')
    except UserError:
        # A model's own format, which no window was put into.
        return None
    return hours if isinstance(hours, int) else None


def with_model_id(group: str, model_id: str | None) -> str:
    """The group key of requests that name another model ID than their model has, which those of it do not share."""
    parts = group_of(group)
    parts.pop('model_id', None)
    if model_id not in (None, parts.get('model')):
        parts['model_id'] = model_id
    return json.dumps(parts, sort_keys=True)


def model_id_of(group: str) -> str | None:
    """The model ID that the requests of a group name; `None` if it is that of their model."""
    model_id = group_of(group).get('model_id')
    return model_id if isinstance(model_id, str) else None


def betas_of(group: str) -> list[str]:
    """The beta flags that all requests of an Anthropic batch share, which travel in a header of its create call.

    Raises:
        UserError: The group does not say. Sent without them, the requests would be others than the live ones.
    """
    betas = group_of(group).get('betas')
    if not isinstance(betas, list):
        raise UserError(f'The group key of an Anthropic request has no `betas` that this version can read: {group!r}.')
    return [str(beta) for beta in cast('list[Any]', betas)]


def same_group(submitted: str, asking: str) -> bool:
    """Whether a client whose requests have the group `asking` may look at a batch of the group `submitted`.

    The credential may differ: a project's key is rotated while its batches run, and the provider decides who may see
    them. So may the beta flags, the window and the model ID, which are a request's and not a client's. Endpoint and
    model may not.
    """

    def without_credential(group: str) -> Mapping[str, Any]:
        return {**group_of(group), 'credential': None, 'betas': None, 'window': None, 'model_id': None}

    if submitted == asking:
        return True
    try:
        return without_credential(submitted) == without_credential(asking)
    except UserError:
        # A model's own format, which only it can compare.
        return False


def same_credential(one: str, other: str) -> bool:
    """Whether two groups are of one credential."""
    return one == other or group_of(one).get('credential') == group_of(other).get('credential')


def http_answer(model_name: str, result: BatchResult) -> tuple[int, bytes]:
    """The status and body that a live request with this result would have been answered with.

    Raises:
        ModelAPIError: The provider ended the request without running it.
        ValueError: The result holds no such thing.
    """
    if result.status in ('expired', 'canceled'):
        raise ModelAPIError(model_name, f'The request was {result.status} in its batch before the model ran it.')
    if result.status == 'succeeded':
        body = (result.body or '').encode('utf-8', 'surrogatepass')
        json.loads(body)
        return 200, body
    answer = json.loads(result.body or '')
    body: Any = answer['body']
    if isinstance(body, dict) and (errors := cast('dict[str, Any]', body).get('errors')):
        # A file that failed validation: the first of its errors stands for the request.
        body = {'error': errors[0]}
    return int(answer['status_code']), json.dumps(body).encode()


def error_body(status_code: int, body: Any) -> str:
    """The body of an `errored` result of an OpenAI model: the HTTP answer that the request got."""
    return json.dumps({'status_code': status_code, 'body': body})


def provider_body(result: BatchResult) -> Any:
    """The body that the provider returned for a request, as JSON has it; text that is no JSON as it is."""
    if result.body is None:
        return None
    try:
        body: Any = json.loads(result.body)
    except (ValueError, RecursionError):
        return result.body
    if result.status == 'errored' and isinstance(body, dict) and {'status_code', 'body'} == cast('Any', body).keys():
        return cast('dict[str, Any]', body)['body']
    return cast('Any', body)


def counts_of(batch: Batch) -> dict[str, int]:
    """The provider's counts of a batch's requests, `total`, `completed` and `failed`; empty where it tells none."""
    # A model of the user's keeps what it likes there, and need not keep to a `dict`.
    details = batch.provider_details
    found: Any = details.get('request_counts') if isinstance(details, dict) else None
    if not isinstance(found, dict):
        return {}
    return {name: count for name, count in cast('dict[str, Any]', found).items() if is_count(count)}


def is_count(value: Any) -> TypeGuard[int]:
    """Whether something is a number of requests."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_counted(batch: Batch) -> bool:
    """Whether the provider says how many requests a batch is done with. Zeros for all it has, too, say nothing.

    A count of half of them says nothing of the others.
    """
    counts = counts_of(batch)
    return any(counts.values()) and {'completed', 'failed'} <= counts.keys()


def counted(batch: Batch) -> int:
    """How many requests the provider says that a batch is done with; 0 where it does not say."""
    counts = counts_of(batch)
    return int(counts.get('completed', 0)) + int(counts.get('failed', 0))
