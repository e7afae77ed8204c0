"""When a batch is sent again that a full queue sent back: as soon as there is room, and else ever more rarely."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock

ROWS = ['row 0', 'row 1']
ANSWERS = [f'answer to {row}' for row in ROWS]
MINUTE, HALF_HOUR = 60, 30 * 60


def echo(request: FakeRequest) -> str:
    return f'answer to {request.text}'


async def by_list(clock: ManualClock, model: Model, **settings: Any) -> list[Any]:
    requests = [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in ROWS]
    outcomes = await model_request_batch(model, requests, clock=clock, **settings)
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


async def by_agents(clock: ManualClock, model: Model, **settings: Any) -> list[Any]:
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, max_wait=None, **settings)])
    outcomes = await asyncio.gather(*[agent.run(row) for row in ROWS], return_exceptions=True)
    return [outcome if isinstance(outcome, BaseException) else outcome.output for outcome in outcomes]


Send = Callable[..., Coroutine[Any, Any, list[Any]]]
both_ways = pytest.mark.parametrize('send', [by_list, by_agents])
SOON = {'poll_interval': timedelta(seconds=5), 'max_poll_interval': timedelta(seconds=5)}


def creates(fake: FakeProviders) -> list[float]:
    """When each batch was asked for, in seconds."""
    return [call.at for call in fake.openai.calls if call.operation == 'create']


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the network, while the clock stands still."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


async def until_sent_again(fake: FakeProviders, clock: ManualClock, *, within: float) -> None:
    """Move the clock, in steps that the network keeps up with, until a third batch was asked for.

    A clock that moves by itself would come to the end of the delay while the first batch is being read.
    """
    for _ in range(int(within / 5)):
        # One batch is checked, and the other is checked too or waits for room.
        await until(lambda: (len(creates(fake)) >= 2 and clock.sleeping >= 2) or len(creates(fake)) == 3)
        if len(creates(fake)) == 3:
            break
        await clock.advance(5)


@both_ways
async def test_a_batch_that_was_refused_is_sent_again_as_soon_as_an_earlier_one_ends(
    send: Send, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock, processing=timedelta(seconds=20)) as fake:
        fake.openai.inject('create', 'http', after=1, status=429, message='Too many batches.')
        call = asyncio.ensure_future(send(clock, model_of(fake), max_requests=1, **SOON))
        await until_sent_again(fake, clock, within=55)
        assert await clock.run(call) == ANSWERS
        _, refused, again = creates(fake)
        # The first one ended after 20 seconds, which the next look at it showed. Alone it would have been a minute.
        assert 20 <= again - refused <= 30


@both_ways
async def test_a_batch_that_failed_for_lack_of_room_is_sent_again_as_soon_as_an_earlier_one_ends(
    send: Send, clock: ManualClock, model_of: ModelOf
):
    full = {'code': 'token_limit_exceeded', 'message': 'Enqueued token limit reached.', 'line': None}
    with FakeProviders(echo, clock=clock, processing=timedelta(seconds=40)) as fake:
        fake.openai.inject('batch', 'fail', after=1, errors=[full])
        call = asyncio.ensure_future(send(clock, model_of(fake), max_requests=1, max_resubmissions=0, **SOON))
        await until_sent_again(fake, clock, within=60)
        assert await clock.run(call) == ANSWERS
        _, second, again = creates(fake)
        # It failed after 4 seconds, and a minute after that was seen is later than the end of the first one.
        assert 40 <= again - second <= 50


@both_ways
async def test_with_nothing_to_wait_for_the_delay_grows_from_a_minute_to_half_an_hour(
    send: Send, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('create', 'http', times=12, status=429, message='Too many batches.')
        assert await clock.run(send(clock, model_of(fake), max_requests=2)) == ANSWERS
        delays = [later - earlier for earlier, later in itertools.pairwise(creates(fake))]
        assert delays[:3] == pytest.approx([60, 90, 135])
        assert delays == pytest.approx([min(MINUTE * 1.5**n, HALF_HOUR) for n in range(12)])
        assert delays[-1] == pytest.approx(HALF_HOUR)


@both_ways
async def test_the_delay_begins_at_a_minute_again_once_a_batch_has_ended(
    send: Send, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=10)) as fake:
        fake.openai.inject('create', 'http', times=6, after=1, status=429, message='Too many batches.')
        # The first look at the earlier batch shows that it has ended.
        looks = {'poll_interval': timedelta(minutes=11), 'max_poll_interval': timedelta(minutes=11)}
        call = asyncio.ensure_future(send(clock, model_of(fake), max_requests=1, **looks))
        times = [0, 60, 150, 285, 487.5, 660]
        for count, (at, following) in enumerate(itertools.pairwise(times), start=2):
            await until(lambda count=count: len(creates(fake)) == count and clock.sleeping == 2)
            assert creates(fake)[-1] - creates(fake)[0] == pytest.approx(at)
            await clock.advance(following - at)
        await until(lambda: len(creates(fake)) == 7 and clock.sleeping >= 1)
        assert creates(fake)[-1] - creates(fake)[0] == pytest.approx(660)
        assert await clock.run(call) == ANSWERS
        assert creates(fake)[7] - creates(fake)[6] == pytest.approx(MINUTE)
