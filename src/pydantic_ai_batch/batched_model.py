"""The model wrapper that sends an agent's requests through a pool, by the framework's rules for suspended responses.

A wrapper lives for one attempt at one model request. The first pass through it submits the request and returns a
pending response; the framework comes back with that response, at once, and the second pass waits for the answer. A
pending response that a wrapper did not return itself, because it comes from a stored history or through a durable
engine, is checked once and answered, and the framework decides whether to wait.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, SuspendedResponseExpired, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.batch import BatchRequest, BatchResult
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from . import compat, engines, tracing
from .clock import utc
from .compat import Ticket
from .exceptions import ResultsGone, batch_of, is_gone, submitted_times, with_batch, with_pending
from .flights import FlightKey
from .journal.digests import depth_of, fingerprint
from .journal.ledger import Claim, Place
from .journal.run_answers import answered
from .lanes import lane_for
from .lanes.base import NotRun, line_number
from .lifecycle import sent_again
from .policy import CheckHistory, Search, poll_delay
from .pool import Pool
from .pool_state import Submitted, flight_key
from .pricing import priced
from .queueing import Part
from .waiting import LetGo, Looked
from .warn import warn_max_retries_once


class Unbatched(WrapperModel):
    """A model whose requests are not to be batched, as somebody else sees to them."""


class BatchedModel(WrapperModel):
    """A model whose requests go through its provider's batch API, in a pool's batches."""

    def __init__(self, wrapped: Model, pool: Pool) -> None:
        super().__init__(wrapped)
        self.pool = pool
        self.lane = lane_for(wrapped).ask(pool.settings.window)
        self._parkable: str | None = None
        """The ID of the pending response that this wrapper returned last, and may wait on."""
        self._submitted: set[str] = set()
        """The batches that it submitted the request in, whose keys it need not ask for."""
        self._let_go: tuple[str, float] | None = None
        """The ID of the pending response that the pool let go of, and the seconds to its next check."""
        self._places: dict[str, Place | None] = {}
        """By the ID of the pending response, what the journal says of requests that an earlier process submitted."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Submit the request, or wait for or check on the one that the messages end in."""
        if self._ends_in_a_job_of_its_own(messages):
            return await self.wrapped.request(messages, model_settings, model_request_parameters)
        last = messages[-1] if messages else None
        ticket = compat.read_ticket(last)
        if ticket is None or not isinstance(last, ModelResponse):
            _refuse_an_unreadable_ticket(last)
            request = self._batch_request('', messages, model_settings, model_request_parameters)
            return await self._submit(request, resubmissions=0)
        request = self._batch_request(ticket.custom_id, messages[:-1], model_settings, model_request_parameters)
        if self._parkable == last.provider_response_id and ticket.batch.id in self._submitted:
            return await self._wait(request, last, ticket, self._own_key(ticket))
        key = await self._key(ticket)
        if self._parkable == last.provider_response_id:
            return await self._wait(request, last, ticket, key)
        return await self._check(request, last, ticket, key)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Wait as `request` does, and then stream each part of the answer as one event: it arrives all at once."""
        if self._ends_in_a_job_of_its_own(messages):
            async with self.wrapped.request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as stream:
                yield stream
            return
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

    def continuation_delay(self, response: ModelResponse) -> float | None:
        """No delay for a pending response that this wrapper waits on itself; for any other, the time to its check."""
        if (ticket := compat.read_ticket(response)) is None:
            return self.wrapped.continuation_delay(response)
        if self._parkable == response.provider_response_id:
            return 0.0
        if self._let_go is not None and self._let_go[0] == response.provider_response_id:
            return self._let_go[1]
        settings = self.pool.settings
        delay = poll_delay(ticket.polls, settings.poll_interval, settings.max_poll_interval)
        return max(delay, ticket.retry_after)

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        """Withdraw the request, and cancel its batch if this process made it and no other request waits on it.

        The framework calls this after a request's own final error too, when there is nothing left to withdraw.
        """
        if (ticket := compat.read_ticket(response)) is None:
            await self.wrapped.cancel_suspended_response(response)
        else:
            if self._let_go is not None and self._let_go[0] == ticket.response_id:
                self.pool.report('left', self.lane, batch=ticket.batch)
            await self.pool.withdraw(self.lane, self._own_key(ticket), ticket.custom_id)

    # The framework looks these three up by name on the serving model. They are private there, so nothing of them is
    # imported; tests hold what each of them is for.

    def _limits_polls(self, response: ModelResponse) -> bool:
        """Whether the framework gives up on a response after a fixed number of polls: not for a batch, which ends."""
        return compat.read_ticket(response) is None and super()._limits_polls(response)

    def _release_suspended_response(self, response: ModelResponse) -> None:
        """Called when a run ends with a pending response that a later run is to collect."""
        if (ticket := compat.read_ticket(response)) is None:
            super()._release_suspended_response(response)
        else:
            self.pool.leave(self.lane, self._own_key(ticket), ticket.custom_id)

    def _withdraws_rejected_suspended_response(self, response: ModelResponse) -> bool:
        """Whether a pending response that a hook rejects is withdrawn: nobody else would ever collect it."""
        return compat.read_ticket(response) is not None or super()._withdraws_rejected_suspended_response(response)

    def _ends_in_a_job_of_its_own(self, messages: list[ModelMessage]) -> bool:
        """Whether the messages end in a pending response that the model itself checks on, as in background mode.

        A turn that is paused, as by Anthropic's `pause_turn`, is none: it is continued by a request, which is batched.
        """
        last = messages[-1] if messages else None
        return (
            isinstance(last, ModelResponse)
            and last.state == 'suspended'
            and compat.read_ticket(last) is None
            and self.wrapped.continuation_delay(last) is not None
        )

    # The passes of a request

    async def _submit(
        self,
        request: BatchRequest,
        *,
        resubmissions: int,
        part: Part | None = None,
        held_since: datetime | None = None,
        claim: Claim | None = None,
        again: bool = False,
    ) -> ModelResponse:
        """Queue the request, wait until it is in a batch, and return the pending response."""
        engines.refuse_wait(self.pool.settings.max_wait)
        try:
            warn_max_retries_once(self.wrapped, request.model_settings, self.pool)
            encoded = await self.lane.encode(request)
            body = encoded.body.encode('utf-8', 'surrogatepass')
            here = self.pool.here()
            takeovers = await here.takeovers(self.lane)
        except BaseException:
            self._let_go_of(claim)
            raise
        if takeovers is not None:
            if claim is None:
                await takeovers.tidy(self.lane, encoded.group)
                printed = fingerprint(self.lane.scope, encoded.group, body, depth_of(request.messages))
                claim = await takeovers.claim(self.lane, printed)
            resubmissions = max(resubmissions, claim.resubmissions)
            if claim.held_since is not None and held_since is None:
                held_since = datetime.fromtimestamp(claim.held_since, UTC)
        if claim is not None and claim.place is not None:
            placed = self._take_over(claim.place, encoded.group)
            if takeovers is not None:
                takeovers.tell(claim.place)
        else:
            try:
                placed = await here.queues.place(
                    self.lane,
                    encoded.group,
                    body,
                    again=again or resubmissions > 0 or held_since is not None,
                    part=part,
                    since=held_since.timestamp() if held_since else None,
                    entry=claim.entry if claim is not None else None,
                )
            except BaseException:
                self._let_go_of(claim)
                raise
        if placed.held_since is not None:
            held_since = datetime.fromtimestamp(placed.held_since, UTC)
        tracing.link(placed.batch, placed.trace_context)
        continued = request.messages[-1]
        ticket = Ticket(
            custom_id=placed.custom_id,
            batch=placed.batch,
            lane=self.lane.info.name,
            resubmissions=resubmissions,
            held_since=held_since,
            continued_response_id=continued.provider_response_id
            if isinstance(continued, ModelResponse) and continued.state == 'suspended'
            else None,
            trace_context=placed.trace_context,
            retry_after=placed.place.history.retry_after if placed.place is not None else 0.0,
            polls=placed.place.history.polls if placed.place is not None else 0,
        )
        self._places[ticket.response_id] = placed.place
        self._parkable = ticket.response_id
        self._submitted.add(placed.batch.id)
        # No model name: an answer may name a dated model, and two names would make the framework take the answer for
        # another model's and drop what this turn accumulated before it.
        return ModelResponse(
            parts=[],
            provider_name=self.wrapped.system,
            provider_url=self.wrapped.base_url,
            provider_response_id=ticket.response_id,
            provider_details=self._written(ticket),
            state='suspended',
        )

    def _let_go_of(self, claim: Claim | None) -> None:
        """Let go of a request that is not sent after all."""
        if claim is not None and self.pool.ledger is not None:
            self.pool.ledger.withdraw(claim.entry)

    def _take_over(self, place: Place, group: str) -> Submitted:
        """The request where an earlier process left it, as this model's credential sees it."""
        batch = replace(place.batch, group=group)
        self.pool.flights.taken_over(flight_key(self.lane, group, batch), batch, place.custom_id)
        self.pool.report('queued', self.lane)
        self.pool.report('taken_over', self.lane, batch=batch)
        return Submitted(batch, place.custom_id, place=place)

    async def _wait(
        self, request: BatchRequest, pending: ModelResponse, ticket: Ticket, key: FlightKey
    ) -> ModelResponse:
        """Wait for the batch that this wrapper submitted the request in."""
        place = self._places.get(ticket.response_id)
        try:
            submitted = Submitted(ticket.batch, ticket.custom_id, ticket.trace_context, place=place)
            result: BatchResult | NotRun | None = None
            if place is not None and place.answered and self.pool.ledger is not None:
                result = await self.pool.ledger.result(ticket.custom_id)
            stored = result is not None
            if result is None:
                result = await self.pool.here().waits.wait(self.lane, key, submitted, history=_history(ticket))
        except LetGo as let_go:
            # The run goes on without the pool: the framework waits, and its next pass is a check like any other.
            self._parkable = None
            self._let_go = ticket.response_id, let_go.delay
            self.pool.leave(self.lane, key, ticket.custom_id, goes_on=True)
            return self._still_pending(pending, _checked(ticket, let_go.looked))
        except Exception as error:
            if self._sends_lost(error):
                return await self._resubmit(request, pending, ticket, resubmissions=ticket.resubmissions)
            raise self._left_running(error, ticket, pending) from error.__cause__
        return await self._settle(request, pending, ticket, key, result, stored=stored)

    async def _check(
        self, request: BatchRequest, pending: ModelResponse, ticket: Ticket, key: FlightKey
    ) -> ModelResponse:
        """Check once on a batch that a history left pending."""
        tracing.link(ticket.batch, ticket.trace_context)
        takeovers = await self.pool.here().takeovers(self.lane)
        if takeovers is not None and (stored := await takeovers.ledger.result(ticket.custom_id, group=key[1])):
            return await self._settle(request, pending, ticket, key, stored, stored=True)
        try:
            looked = await self.pool.here().waits.look(
                self.lane,
                key,
                Submitted(ticket.batch, ticket.custom_id, ticket.trace_context),
                checked_at=ticket.checked_at,
                history=_history(ticket),
            )
        except Exception as error:
            if self._sends_lost(error):
                return await self._resubmit(request, pending, ticket, resubmissions=ticket.resubmissions)
            raise self._left_running(error, ticket, pending) from error.__cause__
        ticket = _checked(ticket, looked)
        if looked.result is not None:
            return await self._settle(request, pending, ticket, key, looked.result)
        self._parkable, self._let_go = ticket.response_id, None
        return self._still_pending(pending, ticket)

    async def _settle(
        self,
        request: BatchRequest,
        pending: ModelResponse,
        ticket: Ticket,
        key: FlightKey,
        result: BatchResult | NotRun,
        *,
        stored: bool = False,
    ) -> ModelResponse:
        """Return the answer, submit the request again, or raise its error."""
        self.pool.flights.collected(key, ticket.custom_id)
        if isinstance(result, NotRun) and (again := await self._send_back(request, pending, ticket, key, result)):
            return again
        if not isinstance(result, NotRun):
            self.pool.searches.was_run(key)
        try:
            response = priced(await self.lane.outcome(result, request), self.lane.info)
        except ModelAPIError as error:
            if isinstance(result, BatchResult) and result.status == 'canceled' and self._places.get(ticket.response_id):
                # An earlier process cancelled it, and this one makes it again.
                self.pool.report('resubmitted', self.lane, batch=ticket.batch)
                return await self._resubmit(request, pending, ticket, resubmissions=ticket.resubmissions)
            again = sent_again(result, error)
            if again and ticket.resubmissions < self.pool.settings.max_resubmissions:
                self.pool.report('resubmitted', self.lane, batch=ticket.batch)
                return await self._resubmit(request, pending, ticket, resubmissions=ticket.resubmissions + 1)
            self.pool.report('failed', self.lane, batch=ticket.batch)
            if self.pool.ledger is not None:
                self.pool.ledger.failed([ticket.custom_id], error)
            with_batch(error, ticket.batch)
            if again and ticket.resubmissions:
                error.add_note(submitted_times(ticket.resubmissions, ticket.batch))
            raise
        except Exception as error:
            # A model with batch methods of its own may raise what it likes, as it does live.
            self.pool.report('failed', self.lane, batch=ticket.batch)
            if self.pool.ledger is not None:
                self.pool.ledger.failed([ticket.custom_id], error)
            raise
        self.pool.report('answered', self.lane, batch=ticket.batch, response=response, stored=stored)
        if self.pool.ledger is not None:
            answered(self.pool.ledger, ticket.custom_id)
        return compat.settle_details(response, ticket)

    async def _send_back(
        self, request: BatchRequest, pending: ModelResponse, ticket: Ticket, key: FlightKey, result: NotRun
    ) -> ModelResponse | None:
        """Submit the request again if its batch failed for no fault that the provider lays to it; else `None`.

        What a full queue sent back waits for room, a batch with a wrong request in it that is not named is sent again
        in halves, and one with a wrong request that is named without that. None of it counts as a resubmission.
        """
        part: Part | None = None
        held_since: datetime | None = None
        if result.cause == 'full_queue':
            now, gate = utc(self.pool.clock), self.pool.here().gates.of(self.lane, ticket.batch.group)
            held_since = min(ticket.held_since or now, now)
            if (now - held_since).total_seconds() > gate.window:
                return None
            gate.sent_back(ticket.batch.id)
            if gate.empty and ticket.held_since is not None:
                part = _half(ticket, None)
        elif result.cause == 'invalid' and self.pool.settings.max_resubmissions:
            search = self.pool.searches.of(key)
            if not search.goes_on(ticket.batch.id):
                return None
            part = _half(ticket, search)
        elif not (result.again and self.pool.settings.max_resubmissions and _is_in(result.culprit, ticket)):
            return None
        self.pool.report('held' if held_since else 'resubmitted', self.lane, batch=ticket.batch)
        return await self._resubmit(
            request, pending, ticket, resubmissions=ticket.resubmissions, part=part, held_since=held_since
        )

    async def _resubmit(
        self,
        request: BatchRequest,
        pending: ModelResponse,
        ticket: Ticket,
        *,
        resubmissions: int,
        part: Part | None = None,
        held_since: datetime | None = None,
    ) -> ModelResponse:
        messages = request.messages
        if pending.parts:
            # The pending response holds what the provider generated before it paused, as Anthropic's `pause_turn`
            # does; the request was sent to continue that, and is again.
            messages = [*messages, compat.without_ticket(pending, ticket)]
        claim: Claim | None = None
        if (takeovers := await self.pool.here().takeovers(self.lane)) is not None:
            held = held_since.timestamp() if held_since else None
            counted = resubmissions > ticket.resubmissions
            claim = await takeovers.requeue(self.lane, ticket.custom_id, held_since=held, counted=counted)
        return await self._submit(
            replace(request, messages=messages),
            resubmissions=resubmissions,
            part=part,
            held_since=held_since,
            claim=claim,
            again=True,
        )

    def _sends_lost(self, error: Exception) -> bool:
        """Whether a request is sent again whose batch is gone, as the journal says."""
        return self.pool.ledger is not None and self.pool.ledger.resend_lost and is_gone(error)

    def _left_running(self, error: Exception, ticket: Ticket, pending: ModelResponse | None) -> Exception:
        """The error for a check that failed for good, after which the batch stays as it is and can be collected.

        The framework cancels the job of a request that raises, which must not happen to a batch that was paid for.
        """
        self.pool.leave(self.lane, self._own_key(ticket), ticket.custom_id, failed=True)
        if self.pool.ledger is not None:
            self.pool.ledger.release(ticket.custom_id)
        if isinstance(error, ResultsGone):
            expired = SuspendedResponseExpired(
                f'{error.message} The request was probably run and billed, so it is not sent again by itself. To run '
                'it again, run with this message history without its last response.'
            )
            return with_batch(expired, ticket.batch)
        if is_gone(error):
            expired = SuspendedResponseExpired(
                f'{self.lane.info.title} no longer has batch {ticket.batch.id!r} or its results: they are kept for a '
                "limited time, and only for the project that made them, so another project's key gets the same answer. "
                'To run the request again, run with this message history without its last response.'
            )
            return with_batch(expired, ticket.batch)
        batch = batch_of(error) or ticket.batch
        if pending is not None and not isinstance(error, UserError):
            with_pending(error, pending, batch)
        return with_batch(error, batch)

    def _still_pending(self, pending: ModelResponse, ticket: Ticket) -> ModelResponse:
        """The pending response with another ticket.

        Under the same ID it replaces the one before as a whole, so it must keep what the turn accumulated before the
        batch.
        """
        return replace(pending, provider_details={**(pending.provider_details or {}), **self._written(ticket)})

    def _written(self, ticket: Ticket) -> dict[str, Any]:
        try:
            return compat.write_ticket(ticket)
        except ModelAPIError as error:
            raise self._left_running(error, ticket, None) from error.__cause__

    def _own_key(self, ticket: Ticket) -> FlightKey:
        """The key of the ticket's batch if this pool submitted it, as only then there is anything to give up."""
        return flight_key(self.lane, ticket.batch.group, ticket.batch)

    async def _key(self, ticket: Ticket) -> FlightKey:
        """The key of the ticket's batch for this model's credential, if the model may look at it."""
        if ticket.batch.provider_name != self.wrapped.system or ticket.lane not in (None, self.lane.info.name):
            raise cannot_collect(ticket, self.wrapped, 'cannot see it')
        identity = await self.lane.identity()
        if not compat.same_group(ticket.batch.group, identity):
            raise cannot_collect(ticket, self.wrapped, 'is at another endpoint or has another name')
        return flight_key(self.lane, identity, ticket.batch)

    @staticmethod
    def _batch_request(
        custom_id: str,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> BatchRequest:
        return BatchRequest(
            custom_id=custom_id,
            messages=messages,
            model_settings=model_settings,
            model_request_parameters=model_request_parameters,
        )


def _is_in(culprit: str | None, ticket: Ticket) -> bool:
    """Whether another request of the ticket's batch is the one that it failed for, which is not sent again with it."""
    tag, _, _ = ticket.custom_id.rpartition('-')
    place = line_number(culprit or '')
    return culprit == f'{tag}-{place}' and place is not None and place < ticket.batch.request_count


def _half(ticket: Ticket, search: Search | None) -> Part | None:
    """The half of its batch that a request is in, or `None` if it was alone there."""
    count, place = ticket.batch.request_count, line_number(ticket.custom_id)
    if count < 2 or place is None:
        return None
    middle = (count + 1) // 2
    first = place < middle
    return Part(f'{ticket.batch.id}/{1 if first else 2}', middle if first else count - middle, search)


def _history(ticket: Ticket) -> CheckHistory:
    """What the checks of a ticket's batch came to so far."""
    return CheckHistory(
        polls=ticket.polls,
        failed=ticket.failed_checks,
        not_found=ticket.not_found,
        last_seen=ticket.last_seen,
        incomplete=ticket.incomplete,
        incomplete_since=ticket.incomplete_since,
        retry_after=ticket.retry_after,
    )


def _checked(ticket: Ticket, looked: Looked) -> Ticket:
    """The ticket after a check."""
    return replace(
        ticket,
        batch=looked.batch,
        checked_at=looked.read_at,
        polls=looked.history.polls,
        failed_checks=looked.history.failed,
        not_found=looked.history.not_found,
        last_seen=looked.history.last_seen,
        incomplete=looked.history.incomplete,
        incomplete_since=looked.history.incomplete_since,
        retry_after=looked.history.retry_after,
    )


def _refuse_an_unreadable_ticket(last: ModelMessage | None) -> None:
    """Refuse a history that waits for a batch and does not say so in a way that is known: it would be paid for twice.

    Raises:
        UserError: It does.
    """
    if not isinstance(last, ModelResponse) or last.state != 'suspended':
        return
    response_id = last.provider_response_id or ''
    if response_id.startswith('batch:') and compat.TICKET_KEY in (last.provider_details or {}):
        raise UserError(
            f'The message history waits for {response_id!r}, with a ticket that this version cannot read: collect it '
            'with the version that submitted it.'
        )


def cannot_collect(ticket: Ticket, model: Model, why: str) -> UserError:
    """The error for a history that waits for the batch of another model than the one that is to serve the run."""
    batch = ticket.batch
    return UserError(
        f'The message history waits for batch {batch.id!r}, which model {batch.model_name!r} of '
        f'{batch.provider_name!r} submitted. The model of this run, {model.model_id!r}, {why}: pass `model=` with the '
        'one that it was submitted with.'
    )
