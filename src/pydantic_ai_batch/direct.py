"""Lists of requests without an agent: submitted straight away in as few batches as they fit in, and waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import InstructionPart, ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.models import KnownModelName, Model, check_allow_model_requests, infer_model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from pydantic_ai.settings import merge_model_settings

from . import compat, job
from .clock import SYSTEM_CLOCK, Clock
from .codec import refuse_settings
from .events import EventKind, Listener, Reporter
from .exceptions import RequestNotSendable, copy_of, with_batch
from .lanes import Lane, lane_for
from .lanes.base import NotRun, Payload, not_run
from .policy import resubmits
from .progress import Progress, listener_of
from .queueing import too_large
from .settings import (
    DEFAULT_MAX_POLL_INTERVAL,
    DEFAULT_MAX_RESUBMISSIONS,
    DEFAULT_POLL_INTERVAL,
    BatchSettings,
)
from .sync import run_sync
from .warn import warn_max_retries

_log = logging.getLogger('pydantic_ai_batch')

_TURN = 200
"""How many requests are encoded before other tasks, such as the checks of earlier batches, get their turn."""

_NAMED = 5
"""How many rows an error names at the most."""

Outcome = ModelResponse | ModelAPIError


async def model_request_batch(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Send requests through the model's batch API, and wait for all of their answers.

    Everything is submitted at once, in as few batches as count and bytes allow. Batches take minutes, and up to a day.
    Cancelling the call, as `asyncio.timeout` does, cancels the batches that have not ended.

    One request's trouble is its own: a row that cannot be encoded, a batch that cannot be created, checked or read,
    an answer that cannot be understood give just their rows an error, and the rest go on. An error of a batch that
    exists carries its handle ([`batch_of`][pydantic_ai_batch.exceptions.batch_of]); the batch is not cancelled.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ; they never go on the wire.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded. `None` is the lane's own limit, which caps any number.
        max_resubmissions: How many times a request that expired, is missing from the results or failed in a way that
            passes is submitted again.
        poll_interval: How long after its submission a batch is first checked. The interval grows by half each time.
        max_poll_interval: The longest interval between checks.
        progress: `True` shows how the batches come along, in the terminal. A callable gets plain events instead.
        clock: What time is read from and slept on. Tests pass one that they move by hand.

    Returns:
        For each request, in their order, its response or the error it failed with.

    Raises:
        UserError: Something is wrong with the call: a setting out of range, a repeated `custom_id`, a setting that a
            batch cannot honour, messages that end in a pending response. Nothing was sent.
        NoBatchLane: The model cannot be batched. Nothing was sent.
    """
    settings = BatchSettings(
        max_requests=max_requests,
        max_bytes=max_bytes,
        max_resubmissions=max_resubmissions,
        poll_interval=poll_interval,
        max_poll_interval=max_poll_interval,
    )
    check_allow_model_requests()
    lane = lane_for(infer_model(model))
    _check_call(lane.model, requests)
    call = _ListCall(lane, settings, clock, requests, listener_of(progress))
    async with lane.model:
        # What is wrong with the client, such as a credential that may change from call to call, shows here.
        await lane.identity()
        await call.run()
    return call.outcomes


def model_request_batch_sync(
    model: Model | KnownModelName | str,
    requests: Sequence[BatchRequest],
    *,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
    poll_interval: timedelta = DEFAULT_POLL_INTERVAL,
    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL,
    progress: Progress = False,
    clock: Clock = SYSTEM_CLOCK,
) -> list[Outcome]:
    """Do what [`model_request_batch`][pydantic_ai_batch.model_request_batch] does, in code without an event loop.

    Ctrl-C cancels the batches that have not ended, and waits for the provider's answer; a second one leaves at once.

    Args:
        model: The model, or its name.
        requests: The requests. Their `custom_id`s must differ.
        max_requests: The most requests in a batch.
        max_bytes: The most bytes in a batch, as encoded.
        max_resubmissions: How many times a request that failed in a way that passes is submitted again.
        poll_interval: How long after its submission a batch is first checked.
        max_poll_interval: The longest interval between checks.
        progress: `True` shows how the batches come along; a callable gets plain events instead.
        clock: What time is read from and slept on.

    Returns:
        For each request, in their order, its response or the error it failed with.

    Raises:
        UserError: Something is wrong with the call, or an event loop is running on this thread.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    return run_sync(
        model_request_batch(
            model,
            requests,
            max_requests=max_requests,
            max_bytes=max_bytes,
            max_resubmissions=max_resubmissions,
            poll_interval=poll_interval,
            max_poll_interval=max_poll_interval,
            progress=progress,
            clock=clock,
        ),
        instead='model_request_batch(...)',
    )


def _check_call(model: Model, requests: Sequence[BatchRequest]) -> None:
    """Refuse a call that cannot be right before any of it is sent."""
    for place, request in enumerate(cast('Sequence[object]', requests), start=1):
        if not isinstance(request, BatchRequest) or isinstance(request.messages, str):
            raise UserError(
                f'Request {place} is none: it takes `BatchRequest(custom_id=..., messages=[...])`, with messages such '
                'as `ModelRequest.user_text_prompt(...)`.'
            )
    _refuse_repeated_ids(requests)
    refused: dict[str, list[str]] = {}
    own_settings = model.settings
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
    if refused:
        raise UserError(' '.join(f'{reason} Rows: {_listed(rows)}.' for reason, rows in refused.items()))


def _refuse_repeated_ids(requests: Sequence[BatchRequest]) -> None:
    if len({request.custom_id for request in requests}) == len(requests):
        return
    places: dict[str, list[int]] = {}
    for place, request in enumerate(requests, start=1):
        places.setdefault(request.custom_id, []).append(place)
    repeated = [f'{custom_id!r} (requests {_listed(at)})' for custom_id, at in places.items() if len(at) > 1]
    raise UserError(f'Each request needs a `custom_id` of its own; repeated: {_listed(repeated)}.')


def _refuse_settings(model: Model, request: BatchRequest) -> None:
    refuse_settings(model, request.model_settings)
    if 'request_timeout' in (merge_model_settings(model.settings, request.model_settings) or {}):
        raise UserError(
            'The setting `request_timeout` cannot be used in a list call, as one row of a batch cannot time out: limit '
            'the wait for the whole call with `asyncio.timeout`.'
        )


def _listed(things: Sequence[object]) -> str:
    more = f' and {len(things) - _NAMED} more' if len(things) > _NAMED else ''
    return ', '.join(str(thing) for thing in things[:_NAMED]) + more


def _prepared(model: Model, request: BatchRequest) -> BatchRequest:
    """The request as an agent would hand it to the model: messages prepared, instructions where models look."""
    parameters = request.model_request_parameters
    if parameters.instruction_parts is None and (instructions := _instructions(request.messages)) is not None:
        parameters = replace(parameters, instruction_parts=[InstructionPart(content=instructions)])
    if not _is_plain(model, request.messages):
        messages = model.prepare_messages(list(request.messages), parameters)
        return replace(request, messages=messages, model_request_parameters=parameters)
    if parameters is not request.model_request_parameters:
        return replace(request, model_request_parameters=parameters)
    return request


def _is_plain(model: Model, messages: Sequence[ModelMessage]) -> bool:
    """Whether messages are a single prompt in text, which preparing would return as it is, for a third of all the work.

    Only a profile that guards against special tokens in a prompt changes one.
    """
    if len(messages) != 1 or not isinstance(message := messages[0], ModelRequest) or len(message.parts) != 1:
        return False
    part = message.parts[0]
    guarded = cast('dict[str, Any]', model.profile).get('may_tokenize_special_tokens_in_content', False)
    return type(part) is UserPromptPart and isinstance(part.content, str) and not guarded


def _instructions(messages: Sequence[ModelMessage]) -> str | None:
    for message in reversed(messages):
        if isinstance(message, ModelRequest) and message.instructions is not None:
            return message.instructions
    return None


@dataclass
class _Row:
    place: int
    """Where the request stands in the call."""
    resubmissions: int = 0


@dataclass
class _Chunk:
    payload: Payload
    rows: dict[str, _Row] = field(default_factory=dict[str, _Row])
    """The rows by their ID on the wire."""
    size: int = 0


class _ListCall:
    """One call of `model_request_batch`: its rows, the batches they went in, and what came of them."""

    def __init__(
        self,
        lane: Lane,
        settings: BatchSettings,
        clock: Clock,
        requests: Sequence[BatchRequest],
        listener: Listener | None,
    ) -> None:
        self.lane = lane
        self.settings = settings
        self.clock = clock
        self.requests = requests
        self._reporter = Reporter(listener)
        self._outcomes: list[Outcome | None] = [None] * len(requests)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def outcomes(self) -> list[Outcome]:
        """What came of each request."""
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        # A row without an outcome would give each one after it another row's answer.
        assert len(outcomes) == len(self._outcomes)
        return outcomes

    async def run(self) -> None:
        """Send every row and wait for every answer; if that is cancelled, cancel the batches that have not ended."""
        try:
            await self._send([_Row(place) for place in range(len(self.requests))])
            while self._tasks:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                self._tasks -= done
                for task in done:
                    task.result()
        except BaseException:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            raise

    async def _send(self, rows: Sequence[_Row]) -> None:
        """Encode rows into batches, and start each as soon as it is full."""
        max_requests = min(self.lane.max_requests, self.settings.max_requests or self.lane.max_requests)
        max_bytes = min(self.lane.max_bytes, self.settings.max_bytes or self.lane.max_bytes)
        self._report('queued', len(rows))
        own_settings = self.lane.model.settings
        chunks: dict[str, _Chunk] = {}
        with ExitStack() as unsent:
            for number, row in enumerate(rows, start=1):
                if number % _TURN == 0:
                    await asyncio.sleep(0)
                request = self.requests[row.place]
                if request.model_settings or own_settings:
                    warn_max_retries(self.lane.model, request.model_settings, self)
                try:
                    encoded = await self.lane.encode(_prepared(self.lane.model, request))
                    body = encoded.body.encode('utf-8', 'surrogatepass')
                    size = self.lane.request_size(body)
                    if size > max_bytes:
                        raise too_large(self.lane, size, max_bytes)
                except (UserError, ModelAPIError) as error:
                    self._report('refused')
                    self._outcomes[row.place] = _row_error(self.lane.model, error)
                    continue
                chunk = chunks.get(encoded.group)
                if chunk is not None and (len(chunk.rows) >= max_requests or chunk.size + size > max_bytes):
                    self._start(chunks.pop(encoded.group))
                    chunk = None
                if chunk is None:
                    chunk = chunks[encoded.group] = _Chunk(Payload(self.lane, encoded.group))
                    unsent.enter_context(chunk.payload)
                chunk.rows[chunk.payload.add(body)] = row
                chunk.size += size
            unsent.pop_all()
        for chunk in chunks.values():
            self._start(chunk)

    def _start(self, chunk: _Chunk) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(self._carry(chunk)))

    async def _carry(self, chunk: _Chunk) -> None:
        """Take one batch from its creation to its last row's outcome, whatever goes wrong with it."""
        try:
            batch = await self._create(chunk)
        except Exception as error:
            self._report('refused', len(chunk.rows))
            self._fail(chunk.rows.values(), error)
            return
        again: list[_Row] = []
        open_rows = dict(chunk.rows)

        async def deliver(result: BatchResult) -> None:
            row = open_rows.pop(result.custom_id, None)
            if row is None:
                _log.warning('Batch %s has a result with an ID that is not in it, which is set aside.', batch.id)
            elif await self._settle(row, result, batch):
                again.append(row)

        watch = job.BatchWatch(
            self.lane, batch, self.settings, self.clock, deliver, lambda now: self._report('checked', batch=now)
        )
        try:
            await watch.until_read()
        except Exception as error:
            self._report('failed', len(open_rows), batch)
            self._fail(open_rows.values(), error)
        except BaseException:
            if watch.batch.status != 'ended':
                await self._cancel(watch.batch)
            raise
        else:
            for wire_id, row in list(open_rows.items()):
                if await self._settle(row, watch.missing(wire_id), batch):
                    again.append(row)
            await job.clean_up(self.lane, batch, watch.batch)
        if again:
            await self._send(again)

    async def _create(self, chunk: _Chunk) -> Batch:
        """Create the chunk's batch, and see a creation that is under way through if the call is cancelled meanwhile."""
        with chunk.payload as payload:
            creation = asyncio.ensure_future(job.submit(self.lane, payload, self.clock))
            try:
                batch = await asyncio.shield(creation)
            except asyncio.CancelledError:
                try:
                    batch = await creation
                except Exception:
                    raise asyncio.CancelledError from None
                await self._cancel(batch)
                raise
        _log.info('Batch %s of %d requests was submitted to %s.', batch.id, len(chunk.rows), self.lane.info.name)
        self._report('submitted', len(chunk.rows), batch)
        return batch

    async def _cancel(self, batch: Batch) -> None:
        try:
            await job.cancel(self.lane, batch)
        except ModelAPIError as error:
            _log.warning('Batch %s could not be cancelled, and goes on: %s', batch.id, error)
        else:
            _log.warning('Batch %s was cancelled with the call; what it had finished may be billed.', batch.id)

    async def _settle(self, row: _Row, result: BatchResult | NotRun, batch: Batch) -> bool:
        """Record a row's outcome, or return that it is to be submitted again."""
        request = self.requests[row.place]
        try:
            if isinstance(result, NotRun):
                raise not_run(self.lane.model, result)
            self._outcomes[row.place] = await self.lane.decode(result, request)
        except Exception as failure:
            error = as_model_error(self.lane.model, failure)
            again = result.again if isinstance(result, NotRun) else resubmits(result, error)
            if again and row.resubmissions < self.settings.max_resubmissions:
                row.resubmissions += 1
                self._report('resubmitted', batch=batch)
                return True
            self._outcomes[row.place] = with_batch(error, batch)
            self._report('failed', batch=batch)
        else:
            self._report('answered', batch=batch)
        return False

    def _fail(self, rows: Iterable[_Row], error: Exception) -> None:
        for row in rows:
            self._outcomes[row.place] = copy_of(as_model_error(self.lane.model, error))

    def _report(self, kind: EventKind, count: int = 1, batch: Batch | None = None) -> None:
        if self._reporter.listener is None:
            return
        self._reporter(kind, lane=self.lane.info.name, model_name=self.lane.model.model_name, count=count, batch=batch)


def as_model_error(model: Model, error: Exception) -> ModelAPIError:
    """An error that stands for rows in a list, whose type is `ModelAPIError`."""
    if isinstance(error, ModelAPIError):
        return error
    model_error = ModelAPIError(model.model_name, f'{type(error).__name__}: {error}')
    model_error.__cause__ = error
    return model_error


def _row_error(model: Model, error: UserError | ModelAPIError) -> ModelAPIError:
    """The error of a row that cannot be encoded: what an agent would raise as a `UserError` is this row's own here."""
    if isinstance(error, ModelAPIError):
        return error
    row_error = RequestNotSendable(model.model_name, str(error))
    row_error.__cause__ = error
    return row_error
