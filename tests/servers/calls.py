"""How the tests call our package: on the machine's clock, which these servers go by, in intervals that suit them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent, ModelRequest
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch

POLLS: Any = {'poll_interval': timedelta(seconds=0.2), 'max_poll_interval': timedelta(seconds=0.5)}
ROWS = [f'row {number}' for number in range(5)]


def requests_of(rows: Iterable[str]) -> list[BatchRequest]:
    return [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in rows]


async def run_list(model: Model, rows: Iterable[str] = ROWS, **settings: Any) -> list[ModelResponse | ModelAPIError]:
    return await model_request_batch(model, requests_of(rows), **POLLS, **settings)


async def run_agents(model: Model, rows: Iterable[str] = ROWS, **settings: Any) -> list[str | BaseException]:
    """A run of an agent for each row, all at the same time; what it said, or what it raised."""
    async with BatchModelRequests(max_wait=timedelta(seconds=0.5), **POLLS, **settings) as batching:
        agent = Agent(model, capabilities=[batching])
        results = await asyncio.gather(*[agent.run(row) for row in rows], return_exceptions=True)
    return [result if isinstance(result, BaseException) else result.output for result in results]


def texts(outcomes: Sequence[ModelResponse | ModelAPIError | None]) -> list[str]:
    """What the responses say; an error fails the test with its own words."""
    for outcome in outcomes:
        if isinstance(outcome, ModelAPIError):
            raise outcome
    return [outcome.text or '' for outcome in outcomes if isinstance(outcome, ModelResponse)]
