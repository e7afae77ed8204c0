"""Rows that are runs of an agent: what it asks first goes with all the others, and the rest is a run of its own.

The first request of each run is taken down instead of being sent. Its answer is handed to a run that goes on from
there: it validates the answer, calls tools, and asks again, as the agent does live, what a batch of its own answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai import Agent
from pydantic_ai.exceptions import AgentRunError, ContentFilterError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.batched_model import Unbatched
from pydantic_ai_batch.capability import BatchModelRequests
from pydantic_ai_batch.lanes.base import Lane, LaneInfo
from pydantic_ai_batch.pricing import price_of

from .base import InputRow
from .identity import id_of
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
class AgentRequests(RowRequests):
    """The first requests of runs of an agent, one for each row."""

    prompting: Prompting
    agent: Agent[Any, Any]
    batching: BatchModelRequests
    """What later requests of the runs are sent with."""

    alike: bool = False
    """Whether the requests of all rows differ in their messages alone, as those of an agent without anything of the
    user's but its instructions and its output."""

    _parameters: dict[int, ModelRequestParameters] = field(default_factory=dict[int, ModelRequestParameters])

    def check(self, row: InputRow) -> None:
        """Refuse a row without a prompt."""
        self.prompting.messages(row)

    async def request(self, lane: Lane, place: int) -> BatchRequest:
        """What the run of a row asks first."""
        row = self.source[place]
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
        try:
            await self.agent.run(message_history=messages, model=_TakingDown(model), model_settings=settings)
        except _TakenDown as taken:
            return taken
        raise UserError('The agent answers without asking its model, so that there is nothing to send.')

    async def finish(self, lane: Lane, place: int, response: ModelResponse, record: RowResult[Any]) -> RowResult[Any]:
        """Let the run of a row go on from the answer to its first request.

        Args:
            lane: The lane of the row.
            place: The place of the row.
            response: The answer.
            record: The record of the row by that answer alone.

        Returns:
            Its record by what the run came to.
        """
        request = await self.request(lane, place)
        row_settings = self.resolved(self.source[place], record.id).settings
        try:
            run = await self.agent.run(
                message_history=[*request.messages, response],
                model=lane.model,
                model_settings=cast('ModelSettings | None', row_settings),
                capabilities=[self.batching],
            )
        except (AgentRunError, UserError) as error:
            status: Status = 'refused' if isinstance(error, ContentFilterError) else 'error'
            status = record.status if record.status != 'ok' else status
            return replace(record, status=status, output=None, error_class=type(error).__name__, error=str(error))
        later = [message for message in run.new_messages() if isinstance(message, ModelResponse)]
        return replace(
            _with_prices(record, later, lane.info),
            status='ok',
            output=run.output,
            error=None,
            text=later[-1].text if later else record.text,
            usage=_sum(record.usage, later),
            finish_reason=later[-1].finish_reason if later else record.finish_reason,
        )


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
