"""`batching.stats()` says what is queued, what is in flight, and what it has come to."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from decimal import Decimal

from conftest import ModelOf
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.test import TestModel

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

ROWS = [f'row {n}' for n in range(4)]


async def test_requests_are_counted_from_the_queue_to_the_answer(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    batching = BatchModelRequests(max_wait=timedelta(seconds=10), clock=clock)
    agent = Agent(model, capabilities=[batching])
    assert batching.stats().queued == 0
    runs = asyncio.gather(*[agent.run(row) for row in ROWS])
    await clock.until_asleep()
    assert batching.stats().queued == 4
    assert batching.stats().batches == ()
    await clock.advance(10)
    await batching.flush()
    await clock.until_asleep()
    [flight] = batching.stats().batches
    assert (batching.stats().queued, flight.requests, flight.waiting) == (0, 4, 4)
    assert flight.batch.id in fake.openai.batches
    results = await clock.run(runs)
    stats = batching.stats()
    assert (stats.answered, stats.failed, stats.resubmitted, stats.left, stats.batches) == (4, 0, 0, 0, ())
    prices = [result.response.cost().total_price for result in results]
    assert stats.cost == sum(prices, Decimal())
    assert stats.cost > 0
    assert stats.unpriced == 0


async def test_a_flight_shows_the_providers_counts_and_its_age(model_of: ModelOf, clock: ManualClock):
    with FakeProviders(clock=clock, processing=timedelta(minutes=20)) as fake:
        batching = BatchModelRequests(max_requests=4, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        runs = asyncio.gather(*[agent.run(row) for row in ROWS])
        await clock.until_asleep()
        for _ in range(4):
            await clock.advance(timedelta(minutes=3))
            await clock.until_asleep()
        [flight] = batching.stats().batches
        assert flight.counts['total'] == 4
        assert flight.age == timedelta(minutes=12)
        await clock.run(runs)


async def test_what_failed_was_resubmitted_and_left_is_counted(model_of: ModelOf, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeError:
        if request.text == 'row 0':
            return FakeError(400, 'bad', 'No.')
        if request.text == 'row 1' and not request.attempt:
            return FakeError(500, 'oops', 'Again.')
        return 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(max_requests=4, max_wait=timedelta(seconds=5), clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS], return_exceptions=True))
        pending = Agent(model_of(fake), output_type=[str, PendingModelResponse], capabilities=[batching])
        await clock.run(pending.run('later'))
        stats = batching.stats()
        assert (stats.answered, stats.failed, stats.resubmitted, stats.left) == (3, 1, 1, 1)
        assert stats.batches == ()


async def test_an_answer_without_a_price_is_counted_as_such(clock: ManualClock):
    batching = BatchModelRequests(max_requests=1, clock=clock)
    agent = Agent(TestModel(), capabilities=[batching])
    await clock.run(agent.run('free'))
    stats = batching.stats()
    assert (stats.answered, stats.cost, stats.unpriced) == (1, Decimal(), 1)
