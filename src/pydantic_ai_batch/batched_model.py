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
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, SuspendedResponseExpired, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import CompletedStreamedResponse, Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.batch import BatchRequest, BatchResult
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext

from . import compat
from .compat import Ticket
from .exceptions import ResultsGone, batch_of, with_batch
from .flights import FlightKey
from .lanes import lane_for
from .lanes.base import NotRun, not_run
from .policy import CheckHistory, poll_delay, resubmits
from .pool import Pool
from .pool_state import PoolClosed, Submitted, flight_key
from .warn import warn_max_retries


class BatchedModel(WrapperModel):
    """A model whose requests go through its provider's batch API, in a pool's batches."""

    def __init__(self, wrapped: Model, pool: Pool) -> None:
        super().__init__(wrapped)
        self.pool = pool
        self.lane = lane_for(wrapped)
        self._parkable: str | None = None
        """The ID of the pending response that this wrapper returned last, and may wait on."""
        self._submitted: set[str] = set()
        """The batches that it submitted the request in, whose keys it need not ask for."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Submit the request, or wait for or check on the one that the messages end in."""
        last = messages[-1] if messages else None
        ticket = compat.read_ticket(last)
        if ticket is None or not isinstance(last, ModelResponse):
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
        response = await self.request(messages, model_settings, model_request_parameters)
        yield CompletedStreamedResponse(response, model_request_parameters=model_request_parameters, replay_events=True)

    def continuation_delay(self, response: ModelResponse) -> float | None:
        """No delay for a pending response that this wrapper waits on itself; for any other, the time to its check."""
        if (ticket := compat.read_ticket(response)) is None:
            return self.wrapped.continuation_delay(response)
        if self._parkable == response.provider_response_id:
            return 0.0
        settings = self.pool.settings
        return poll_delay(ticket.polls, settings.poll_interval, settings.max_poll_interval)

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        """Withdraw the request, and cancel its batch if this process made it and no other request waits on it.

        The framework calls this after a request's own final error too, when there is nothing left to withdraw.
        """
        if (ticket := compat.read_ticket(response)) is None:
            await self.wrapped.cancel_suspended_response(response)
        else:
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

    # The passes of a request

    async def _submit(self, request: BatchRequest, *, resubmissions: int) -> ModelResponse:
        """Queue the request, wait until it is in a batch, and return the pending response."""
        warn_max_retries(self.wrapped, request.model_settings, self.pool)
        encoded = await self.lane.encode(request)
        placed = await self.pool.here().queues.place(
            self.lane, encoded.group, encoded.body.encode('utf-8', 'surrogatepass')
        )
        continued = request.messages[-1]
        ticket = Ticket(
            custom_id=placed.custom_id,
            batch=placed.batch,
            lane=self.lane.info.name,
            resubmissions=resubmissions,
            continued_response_id=continued.provider_response_id
            if isinstance(continued, ModelResponse) and continued.state == 'suspended'
            else None,
        )
        self._parkable = ticket.response_id
        self._submitted.add(placed.batch.id)
        # No model name: an answer may name a dated model, and two names would make the framework take the answer for
        # another model's and drop what this turn accumulated before it.
        return ModelResponse(
            parts=[],
            provider_name=self.wrapped.system,
            provider_url=self.wrapped.base_url,
            provider_response_id=ticket.response_id,
            provider_details=compat.write_ticket(ticket),
            state='suspended',
        )

    async def _wait(
        self, request: BatchRequest, pending: ModelResponse, ticket: Ticket, key: FlightKey
    ) -> ModelResponse:
        """Wait for the batch that this wrapper submitted the request in."""
        try:
            result = await self.pool.here().waits.wait(self.lane, key, Submitted(ticket.batch, ticket.custom_id))
        except PoolClosed:
            # The run goes on without the pool: the framework waits, and its next pass is a check like any other.
            self._parkable = None
            self.pool.leave(self.lane, key, ticket.custom_id)
            return pending
        except Exception as error:
            raise self._left_running(error, ticket) from error.__cause__
        return await self._settle(request, pending, ticket, key, result)

    async def _check(
        self, request: BatchRequest, pending: ModelResponse, ticket: Ticket, key: FlightKey
    ) -> ModelResponse:
        """Check once on a batch that a history left pending."""
        history = CheckHistory(
            polls=ticket.polls, failed=ticket.failed_checks, not_found=ticket.not_found, last_seen=ticket.last_seen
        )
        try:
            looked = await self.pool.here().waits.look(
                self.lane,
                key,
                Submitted(ticket.batch, ticket.custom_id),
                checked_at=ticket.checked_at,
                history=history,
            )
        except Exception as error:
            raise self._left_running(error, ticket) from error.__cause__
        ticket = replace(
            ticket,
            batch=looked.batch,
            checked_at=looked.read_at,
            polls=looked.history.polls,
            failed_checks=looked.history.failed,
            not_found=looked.history.not_found,
            last_seen=looked.history.last_seen,
        )
        if looked.result is not None:
            return await self._settle(request, pending, ticket, key, looked.result)
        self._parkable = ticket.response_id
        # The same response with another ticket: under the same ID it replaces the pending one as a whole, so it must
        # keep what the turn accumulated before the batch.
        return replace(pending, provider_details={**(pending.provider_details or {}), **compat.write_ticket(ticket)})

    async def _settle(
        self,
        request: BatchRequest,
        pending: ModelResponse,
        ticket: Ticket,
        key: FlightKey,
        result: BatchResult | NotRun,
    ) -> ModelResponse:
        """Return the answer, submit the request again, or raise its error."""
        self.pool.flights.collected(key, ticket.custom_id)
        try:
            if isinstance(result, NotRun):
                raise not_run(self.wrapped, result)
            response = await self.lane.decode(result, request)
        except ModelAPIError as error:
            again = result.again if isinstance(result, NotRun) else resubmits(result, error)
            if again and ticket.resubmissions < self.pool.settings.max_resubmissions:
                self.pool.report('resubmitted', self.lane, batch=ticket.batch)
                return await self._resubmit(request, pending, ticket)
            self.pool.report('failed', self.lane, batch=ticket.batch)
            with_batch(error, ticket.batch)
            if again and ticket.resubmissions:
                error.add_note(f'It was submitted {ticket.resubmissions + 1} times, the last in {ticket.batch.id!r}.')
            raise
        except Exception:
            # A model with batch methods of its own may raise what it likes, as it does live.
            self.pool.report('failed', self.lane, batch=ticket.batch)
            raise
        self.pool.report('answered', self.lane, batch=ticket.batch)
        return compat.settle_details(response, ticket)

    async def _resubmit(self, request: BatchRequest, pending: ModelResponse, ticket: Ticket) -> ModelResponse:
        messages = request.messages
        if pending.parts:
            # The pending response holds what the provider generated before it paused, as Anthropic's `pause_turn`
            # does; the request was sent to continue that, and is again.
            messages = [*messages, compat.without_ticket(pending, ticket)]
        return await self._submit(replace(request, messages=messages), resubmissions=ticket.resubmissions + 1)

    def _left_running(self, error: Exception, ticket: Ticket) -> Exception:
        """The error for a check that failed for good, after which the batch stays as it is and can be collected.

        The framework cancels the job of a request that raises, which must not happen to a batch that was paid for.
        """
        self.pool.leave(self.lane, self._own_key(ticket), ticket.custom_id, failed=True)
        gone = isinstance(error, ModelHTTPError) and error.status_code == 404
        if gone or isinstance(error, ResultsGone):
            expired = SuspendedResponseExpired(
                f'{self.lane.info.title} no longer has batch {ticket.batch.id!r} or its results: they are kept for a '
                "limited time, and only for the project that made them, so another project's key gets the same answer. "
                'To run the request again, run with this message history without its last response.'
            )
            return with_batch(expired, ticket.batch)
        return with_batch(error, batch_of(error) or ticket.batch)

    def _own_key(self, ticket: Ticket) -> FlightKey:
        """The key of the ticket's batch if this pool submitted it, as only then there is anything to give up."""
        return flight_key(self.lane, ticket.batch.group, ticket.batch)

    async def _key(self, ticket: Ticket) -> FlightKey:
        """The key of the ticket's batch for this model's credential, if the model may look at it."""
        if ticket.batch.provider_name != self.wrapped.system or ticket.lane not in (None, self.lane.info.name):
            raise UserError(
                f'The message history waits for batch {ticket.batch.id!r}, which model '
                f'{ticket.batch.model_name!r} of {ticket.batch.provider_name!r} submitted and the model of this run, '
                f'{self.wrapped.model_id!r}, cannot collect: pass `model=` with that one.'
            )
        identity = await self.lane.identity()
        if not compat.same_group(ticket.batch.group, identity):
            raise UserError(
                f'The message history waits for batch {ticket.batch.id!r}, which model '
                f'{ticket.batch.model_name!r} submitted at another endpoint or under another name than '
                f'{self.wrapped.model_id!r}: pass `model=` with the model and client that it was submitted with.'
            )
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
