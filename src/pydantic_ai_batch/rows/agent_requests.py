"""Rows that are runs of an agent: what it asks first goes with all the others, and the rest is a run of its own.

The first request of each run is taken down instead of being sent. Its answer is handed to a run that goes on from
there: it validates the answer, calls tools, and asks again, as the agent does live, what a batch of its own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from pydantic_ai import Agent, RunContext, capture_run_messages
from pydantic_ai.capabilities import AbstractCapability, WrapperCapability
from pydantic_ai.exceptions import ContentFilterError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.batched_model import Unbatched
from pydantic_ai_batch.capability import BatchModelRequests
from pydantic_ai_batch.exceptions import JournalError
from pydantic_ai_batch.journal import Journal, journal_of
from pydantic_ai_batch.lanes.base import Lane, LaneInfo
from pydantic_ai_batch.pricing import price_of

from .base import InputRow
from .identity import id_of
from .outcomes import status_of_answer, unfinished
from .prompting import Prompting
from .records import RowResult, Status
from .row_requests import RowRequests


class _TakenDown(Exception):
    """A run has asked what it asks first."""

    def __init__(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> None:
        super().__init__()
        self.messages = messages
        self.settings = settings
        self.parameters = parameters


class _TakingDown(Unbatched):
    """A model that takes the first request of a run down instead of sending it."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Take a request down.

        Raises:
            _TakenDown: Always.
        """
        raise _TakenDown(messages, model_settings, model_request_parameters)


@dataclass
class _Found(AbstractCapability[Any]):
    """Finds out whether an agent batches its requests itself."""

    own: BatchModelRequests | None = None
    """What it batches them with."""

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Look at the capabilities of a run."""
        for capability in ctx.capabilities.values():
            while isinstance(capability, WrapperCapability):
                capability = capability.wrapped
            if isinstance(capability, BatchModelRequests):
                self.own = capability


@dataclass
class AgentRequests(RowRequests):
    """The first requests of runs of an agent, one for each row."""

    prompting: Prompting
    agent: Agent[Any, Any]
    batching: BatchModelRequests
    """What later requests of the runs are sent with, unless the agent has one of its own."""

    alike: bool = False
    """Whether the requests of all rows differ in their messages alone, as those of an agent without anything of the
    user's but its instructions and its output."""

    _own: BatchModelRequests | None = None
    """What the agent batches its requests with itself."""

    _parameters: dict[int, ModelRequestParameters] = field(default_factory=dict[int, ModelRequestParameters])

    def check(self, row: InputRow) -> None:
        """Refuse a row without a prompt."""
        self.prompting.messages(row)

    async def request(self, lane: Lane, place: int) -> BatchRequest:
        """What the run of a row asks first."""
        row = self.row(place)
        row_id = id_of(row, self.id_column)
        settings = cast('ModelSettings | None', self.resolved(row, row_id).settings)
        messages = self.prompting.messages(row)
        if self.alike and (parameters := self._parameters.get(id(lane))) is not None:
            return BatchRequest(
                custom_id=row_id, messages=messages, model_settings=settings, model_request_parameters=parameters
            )
        taken = await self._asked(lane.model, messages, settings)
        if self.alike:
            self._parameters[id(lane)] = taken.parameters
            return BatchRequest(
                custom_id=row_id, messages=messages, model_settings=settings, model_request_parameters=taken.parameters
            )
        return BatchRequest(
            custom_id=row_id,
            messages=taken.messages,
            model_settings=taken.settings,
            model_request_parameters=taken.parameters,
        )

    async def _asked(
        self, model: Model, messages: Sequence[ModelMessage], settings: ModelSettings | None
    ) -> _TakenDown:
        found = _Found()
        try:
            await self.agent.run(
                message_history=messages, model=_TakingDown(model), model_settings=settings, capabilities=[found]
            )
        except _TakenDown as taken:
            self._own = found.own
            return taken
        raise UserError('The agent answers without asking its model, so that there is nothing to send.')

    async def begin(self, lane: Lane, place: int) -> None:
        """Find out how the agent batches its requests.

        Raises:
            UserError: It would write down in another journal, or in none, what is sent later.
        """
        with suppress(Exception):
            # What is wrong with the row itself is its own error, when it is sent.
            await self.request(lane, place)
        journal = journal_of(self.batching.journal)
        if self._own is not None and journal is not None and not _is_same(journal_of(self._own.journal), journal):
            raise UserError(
                'The agent has a `BatchModelRequests` of its own, without the journal of this run: remove that, as '
                'rows bring their own, or give it the same journal.'
            )

    async def finish(self, lane: Lane, place: int, response: ModelResponse, record: RowResult[Any]) -> RowResult[Any]:
        """Let the run of a row go on from the answer to its first request.

        Args:
            lane: The lane of the row.
            place: The place of the row.
            response: The answer.
            record: The record of the row by that answer alone.

        Returns:
            Its record by what the run came to. Whatever its tools raise is the row's own error.
        """
        with capture_run_messages() as said:
            try:
                request = await self.request(lane, place)
                said.clear()
                row_settings = self.resolved(self.row(place), record.id).settings
                run = await self.agent.run(
                    message_history=[*request.messages, response],
                    model=lane.model,
                    model_settings=cast('ModelSettings | None', row_settings),
                    capabilities=[self.batching] if self._own is None else None,
                )
            except JournalError:
                raise
            except Exception as error:
                status: Status = 'refused' if isinstance(error, ContentFilterError) else 'error'
                status = record.status if record.status != 'ok' else status
                return replace(
                    self._with_later(lane, record, response, said),
                    status=status,
                    output=None,
                    error_class=type(error).__name__,
                    error=str(error),
                )
        whole = self._with_later(lane, record, response, run.all_messages())
        if isinstance(run.output, str) and (status := status_of_answer(whole.finish_reason)) != 'ok':
            # A text is whatever was said before the model was stopped.
            return replace(whole, status=status, output=None, error=unfinished(status))
        return replace(whole, status='ok', output=run.output, error_class=None, error=None)

    def _with_later(
        self, lane: Lane, record: RowResult[Any], first: ModelResponse, messages: Sequence[ModelMessage]
    ) -> RowResult[Any]:
        """The record with the answers of a run that came after its first one."""
        answers = [message for message in messages if isinstance(message, ModelResponse)]
        place = next((n for n, answer in enumerate(answers, 1) if answer is first), None)
        if place is None or not (later := answers[place:]):
            return record
        return replace(
            _with_prices(record, later, lane.info),
            text=later[-1].text,
            usage=_sum(record.usage, later),
            finish_reason=later[-1].finish_reason,
        )


def _is_same(one: Journal | None, other: Journal) -> bool:
    return one is not None and Path(one.path).resolve() == Path(other.path).resolve()


def _sum(first: RequestUsage | None, later: Sequence[ModelResponse]) -> RequestUsage | None:
    total = first
    for response in later:
        total = response.usage if total is None else total + response.usage
    return total


def _with_prices(record: RowResult[Any], later: Sequence[ModelResponse], info: LaneInfo) -> RowResult[Any]:
    """The record with what its later answers cost too; of neither if the price of one is not known."""
    cost, live = record.cost, record.live_cost
    for response in later:
        price = price_of(response, info)
        cost = None if cost is None or price is None or price.batch is None else cost + price.batch
        live = None if live is None or price is None or price.live is None else live + price.live
    return replace(record, cost=cost, live_cost=live)
