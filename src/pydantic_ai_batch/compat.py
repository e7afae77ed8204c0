"""The one place that knows what pydantic-ai leaves undocumented: the formats of its own batch support.

These are the group keys of encoded requests, the bodies of `BatchResult`s, the `provider_details` of a `Batch`, and
the ticket that a pending response carries in the message history. Ours are the framework's, with keys of our own
beside them, so that a history left pending by one of the two capabilities is collected by the other, and so that the
framework's guard against resuming a pending history at full price protects ours.

Everything here is tested on the lowest and the newest supported version of pydantic-ai.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NotRequired, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.batch import Batch
from typing_extensions import TypedDict

TICKET_KEY = 'batch'
"""The key of a pending response's `provider_details` under which the framework, too, keeps its ticket."""

PROCESSING_KEY = 'processing'
"""The key of `provider_details` that prices go by; `genai-prices` knows the value `batch`."""


class _OwnTicket(TypedDict, total=False):
    """What this package adds to the framework's ticket, under a key of its own."""

    lane: str
    checked_at: datetime
    not_found: int
    last_seen: datetime


class _TicketDict(TypedDict):
    custom_id: str
    batch: Batch
    polls: int
    failed_checks: NotRequired[int]
    resubmissions: NotRequired[int]
    continued_response_id: NotRequired[str]
    pydantic_ai_batch: NotRequired[_OwnTicket]


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

    resubmissions: int = 0
    """How many times the request was submitted again."""

    continued_response_id: str | None = None
    """The ID of the suspended response, such as an Anthropic `pause_turn`, that the request continues."""

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
    own = stored.get('pydantic_ai_batch', _OwnTicket())
    ticket = Ticket(
        custom_id=stored['custom_id'],
        batch=stored['batch'],
        lane=own.get('lane'),
        checked_at=own.get('checked_at'),
        polls=stored['polls'],
        failed_checks=stored.get('failed_checks', 0),
        not_found=own.get('not_found', 0),
        last_seen=own.get('last_seen'),
        resubmissions=stored.get('resubmissions', 0),
        continued_response_id=stored.get('continued_response_id'),
    )
    # A turn that was merged from several responses can carry the ticket of a batch it no longer waits for.
    return ticket if message.provider_response_id == ticket.response_id else None


def write_ticket(ticket: Ticket) -> dict[str, Any]:
    """`ticket` as plain JSON data for `provider_details`, in the framework's shape with our keys beside it."""
    own: dict[str, Any] = {'lane': ticket.lane}
    if ticket.checked_at is not None:
        own['checked_at'] = ticket.checked_at.isoformat()
    if ticket.not_found:
        own['not_found'] = ticket.not_found
    if ticket.last_seen is not None:
        own['last_seen'] = ticket.last_seen.isoformat()
    stored: dict[str, Any] = {
        'custom_id': ticket.custom_id,
        'batch': _BATCHES.dump_python(ticket.batch, mode='json'),
        'polls': ticket.polls,
        'pydantic_ai_batch': own,
    }
    if ticket.failed_checks:
        stored['failed_checks'] = ticket.failed_checks
    if ticket.resubmissions:
        stored['resubmissions'] = ticket.resubmissions
    if ticket.continued_response_id is not None:
        stored['continued_response_id'] = ticket.continued_response_id
    return {TICKET_KEY: stored}


def settle_details(response: ModelResponse, ticket: Ticket) -> ModelResponse:
    """The answered `response` with what stays of `ticket` in the history: where the answer came from.

    The key must be overwritten, as merging it into the pending response would carry the whole ticket over.
    """
    settled: dict[str, Any] = {'id': ticket.batch.id, 'custom_id': ticket.custom_id}
    if ticket.resubmissions:
        settled['resubmissions'] = ticket.resubmissions
    return replace(response, provider_details={**(response.provider_details or {}), TICKET_KEY: settled})


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


def same_group(submitted: str, asking: str) -> bool:
    """Whether a client whose requests have the group `asking` may look at a batch of the group `submitted`.

    The credential may differ: a project's key is rotated while its batches run, and the provider decides who may see
    them. Endpoint and model may not.
    """

    def without_credential(group: str) -> Mapping[str, Any]:
        return {**group_of(group), 'credential': None}

    return submitted == asking or without_credential(submitted) == without_credential(asking)


def error_body(status_code: int, body: Any) -> str:
    """The body of an `errored` result of an OpenAI model: the HTTP answer that the request got."""
    return json.dumps({'status_code': status_code, 'body': body})


def counted(batch: Batch) -> int:
    """How many requests the provider says that a batch is done with; 0 where it does not say."""
    counts: dict[str, Any] = (batch.provider_details or {}).get('request_counts') or {}
    return int(counts.get('completed', 0)) + int(counts.get('failed', 0))
