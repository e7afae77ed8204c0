"""Encodes a list of requests into as few batches as their number and bytes allow.

The requests need not all be in memory: they are asked for one by one, by their place in the list.

What is wrong with the list as a whole is refused here, before any of it is sent. What is wrong with one row is that
row's own error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.settings import merge_model_settings

from . import compat
from .codec import refuse_settings, sets_max_retries
from .exceptions import RequestNotSendable
from .journal.digests import depth_of
from .journal.ledger import Ledger
from .lanes.base import Lane, NotRun, Payload
from .policy import Search
from .queueing import too_large
from .settings import BatchSettings
from .warn import warn_max_retries
from .wording import listed

_TURN = 200
"""How many requests are encoded before other tasks, such as the checks of earlier batches, get their turn."""

_TURN_BYTES = 4 * 1024 * 1024
"""How many bytes of them there are before that, at the most."""


class Requests(Protocol):
    """The requests of a list, by their place in it, from 0."""

    def __len__(self) -> int: ...

    def custom_id(self, place: int) -> str:
        """The ID that the user gave a request."""
        ...

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """A request as the lane sends it, and how many answers its messages hold.

        Raises:
            UserError: It cannot be sent.
            ModelAPIError: It cannot either.
        """
        ...

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """The response to a request, or whatever error it failed with."""
        ...


@dataclass(frozen=True)
class Listed(Requests):
    """Requests that are all there."""

    requests: Sequence[BatchRequest]

    def __len__(self) -> int:
        return len(self.requests)

    def custom_id(self, place: int) -> str:
        """The ID that the user gave a request."""
        return self.requests[place].custom_id

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """A request as the lane sends it, and how many answers its messages hold."""
        request = self.requests[place]
        return await lane.encode(prepared(lane.model, request)), depth_of(request.messages)

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """The response to a request, or whatever error it failed with."""
        return await lane.outcome(result, self.requests[place])


@dataclass(slots=True)
class Row:
    """One request of a list, wherever it is on its way."""

    place: int
    """Where it stands in the list."""

    resubmissions: int = 0
    """How many times it was submitted again."""

    held_since: float | None = None
    """When a full queue first sent it back, by the clock."""

    entry: int | None = None
    """What it is in the journal, once it is written down there."""


@dataclass(frozen=True)
class Encoded:
    """A row as it stands in a batch."""

    row: Row
    group: str
    body: bytes
    size: int
    depth: int
    """How many answers its messages hold."""


Take = Callable[[Sequence[Encoded]], Awaitable[Sequence[Encoded]]]
"""Takes rows over that a journal has already, and returns those that are to be sent."""


@dataclass
class Chunk:
    """The rows of one batch, encoded."""

    payload: Payload
    search: Search | None = None
    """The search that the batch is a part of."""

    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    """The rows by their ID on the wire."""

    size: int = 0

    def drop(self, ledger: Ledger | None) -> None:
        """Forget a chunk that is not sent after all."""
        if ledger is not None:
            ledger.withdraw(*self.payload.entries)
        self.payload.close()


async def fill(
    lane: Lane,
    settings: BatchSettings,
    requests: Requests,
    rows: Iterable[Row],
    *,
    refused: Callable[[Row, ModelAPIError], None],
    at_most: int | None = None,
    search: Search | None = None,
    take: Take | None = None,
) -> AsyncGenerator[Chunk]:
    """Encode `rows` of `requests`, and yield each chunk as soon as it is full.

    Args:
        lane: The lane whose limits hold.
        settings: The limits of the call.
        requests: The requests of the list.
        rows: Those to encode.
        refused: Called with each row that cannot be encoded or is too large, and its error.
        at_most: How many rows a chunk may hold, where they are the rows of a batch that is divided.
        search: The search that the chunks are parts of.
        take: Called with the next few rows, encoded, and returns those that are to be sent.
    """
    max_requests = min(lane.max_requests, settings.max_requests or lane.max_requests, at_most or lane.max_requests)
    max_bytes = lane.room(settings.max_bytes)
    filling: dict[str, Chunk] = {}
    try:
        async with aclosing(_encoded(lane, requests, rows, max_bytes, refused)) as turns:
            async for turn in turns:
                for encoded in turn if take is None else await take(turn):
                    chunk = filling.get(encoded.group)
                    if chunk is not None and (len(chunk.rows) >= max_requests or chunk.size + encoded.size > max_bytes):
                        yield filling.pop(encoded.group)
                        chunk = None
                    if chunk is None:
                        chunk = filling[encoded.group] = Chunk(Payload(lane, encoded.group), search)
                    chunk.rows[chunk.payload.add(encoded.body, encoded.row.entry)] = encoded.row
                    chunk.size += encoded.size
        while filling:
            yield filling.pop(next(iter(filling)))
    finally:
        # Those that were handed out belong to whoever sends them.
        for chunk in filling.values():
            chunk.payload.close()


async def _encoded(
    lane: Lane,
    requests: Requests,
    rows: Iterable[Row],
    max_bytes: int,
    refused: Callable[[Row, ModelAPIError], None],
) -> AsyncGenerator[list[Encoded]]:
    """Encode rows, a few at a time."""
    turn: list[Encoded] = []
    turn_size = 0
    for row in rows:
        try:
            encoded, depth = await requests.encode(lane, row.place)
            body = encoded.body.encode('utf-8', 'surrogatepass')
            size = lane.request_size(body)
            if size > max_bytes:
                raise too_large(lane, size, max_bytes)
        except (UserError, ModelAPIError) as error:
            refused(row, _row_error(lane.model, error))
            continue
        turn.append(Encoded(row, encoded.group, body, size, depth))
        turn_size += size
        if len(turn) == _TURN or turn_size > _TURN_BYTES:
            yield turn
            turn, turn_size = [], 0
            await asyncio.sleep(0)
    if turn:
        yield turn


def check_requests(model: Model, requests: Sequence[BatchRequest]) -> None:
    """Refuse a list that cannot be right before any of it is sent.

    Raises:
        UserError: Something in it is no request, an ID is repeated, a setting cannot be honoured, or messages end in a
            response that waits for its batch.
    """
    if isinstance(requests, BatchRequest):
        raise UserError('A list of requests is needed, and not one `BatchRequest`: put it into a list.')
    for place, request in enumerate(cast('Sequence[object]', requests), start=1):
        if not isinstance(request, BatchRequest) or isinstance(request.messages, str):
            raise UserError(
                f'Request {place} is not a `BatchRequest` with a list of messages: it takes '
                '`BatchRequest(custom_id=..., messages=[...])`, with messages such as '
                '`ModelRequest.user_text_prompt(...)`.'
            )
        if not isinstance(cast('object', request.custom_id), str):
            raise UserError(f'The `custom_id` of request {place} must be a string, and not {request.custom_id!r}.')
    _refuse_repeated_ids(requests)
    if empty := [repr(request.custom_id) for request in requests if not request.messages]:
        raise UserError(f'These requests have no messages: {listed(empty)}.')
    refused: dict[str, list[str]] = {}
    own_settings = model.settings
    ignored = False
    for request in requests:
        if (ticket := compat.read_ticket(request.messages[-1] if request.messages else None)) is not None:
            raise UserError(
                f'The messages of request {request.custom_id!r} end in a response that waits for batch '
                f'{ticket.batch.id!r}, and sending them would pay for it again: resume them with an agent that has '
                '`BatchModelRequests`.'
            )
        if not own_settings and not request.model_settings:
            continue
        try:
            _refuse_settings(model, request)
        except UserError as error:
            refused.setdefault(str(error), []).append(repr(request.custom_id))
        ignored = ignored or sets_max_retries(model, request.model_settings)
    if refused:
        raise UserError(' '.join(f'{reason} Rows: {listed(rows)}.' for reason, rows in refused.items()))
    if ignored:
        warn_max_retries()


def _refuse_repeated_ids(requests: Sequence[BatchRequest]) -> None:
    if len({request.custom_id for request in requests}) == len(requests):
        return
    places: dict[str, list[int]] = {}
    for place, request in enumerate(requests, start=1):
        places.setdefault(request.custom_id, []).append(place)
    repeated = [f'{custom_id!r} (requests {listed(at)})' for custom_id, at in places.items() if len(at) > 1]
    raise UserError(f'Each request needs a `custom_id` of its own; repeated: {listed(repeated)}.')


def _refuse_settings(model: Model, request: BatchRequest) -> None:
    refuse_settings(model, request.model_settings)
    if 'request_timeout' in (merge_model_settings(model.settings, request.model_settings) or {}):
        raise UserError(
            'The setting `request_timeout` cannot be used in a list call, as one row of a batch cannot time out: limit '
            'the wait for the whole call with `asyncio.timeout`.'
        )


def prepared(model: Model, request: BatchRequest) -> BatchRequest:
    """The request as an agent would hand it to the model: messages prepared, instructions where models look."""
    parameters = request.model_request_parameters
    if parameters.instruction_parts is None and (instructions := _instructions(request.messages)) is not None:
        parameters = replace(parameters, instruction_parts=[InstructionPart(content=instructions)])
    if not is_plain(model, request.messages):
        messages = model.prepare_messages(list(request.messages), parameters)
        return replace(request, messages=messages, model_request_parameters=parameters)
    if parameters is not request.model_request_parameters:
        return replace(request, model_request_parameters=parameters)
    return request


def is_plain(model: Model, messages: Sequence[ModelMessage]) -> bool:
    """Whether messages are a single prompt in text, which preparing would return as it is, for a third of all the work.

    Only a profile that guards against special tokens in a prompt changes one.
    """
    if len(messages) != 1 or not isinstance(message := messages[0], ModelRequest) or len(message.parts) != 1:
        return False
    part = message.parts[0]
    if type(part) is not UserPromptPart or not isinstance(part.content, str):
        return False
    return not cast('dict[str, Any]', model.profile).get('may_tokenize_special_tokens_in_content', False)


def _instructions(messages: Sequence[ModelMessage]) -> str | None:
    for message in reversed(messages):
        if isinstance(message, ModelRequest) and message.instructions is not None:
            return message.instructions
    return None


def _row_error(model: Model, error: UserError | ModelAPIError) -> ModelAPIError:
    """The error of a row that cannot be encoded: what an agent would raise as a `UserError` is this row's own here."""
    if isinstance(error, ModelAPIError):
        return error
    row_error = RequestNotSendable(model.model_name, str(error))
    row_error.__cause__ = error
    return row_error


def as_model_error(model: Model, error: Exception) -> ModelAPIError:
    """An error that stands for rows in a list, whose type is `ModelAPIError`."""
    if isinstance(error, ModelAPIError):
        return error
    model_error = ModelAPIError(model.model_name, f'{type(error).__name__}: {error}')
    model_error.__cause__ = error
    return model_error
