"""How long the provider has for a batch, where that can be asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import (
    BatchModelRequests,
    collect_batch,
    lane_for,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .harness import Harness, echo, harness_of, requests_of

LaneModel = Callable[..., Model]
WEEK = timedelta(days=7)


@pytest.fixture(params=['groq', 'bedrock'])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Lanes that take more than one window."""
    return harness_of(request.param, monkeypatch)


def windows(harness: Harness, fake: FakeProviders) -> list[int]:
    """The hours that batches were created with."""
    orders = [json.loads(call.body) for call in harness.fake(fake).calls if call.operation == 'create']
    if harness.lane == 'bedrock':
        return [order['timeoutDurationInHours'] for order in orders]
    return [int(order['completion_window'].removesuffix('h')) for order in orders]


async def test_a_batch_is_created_with_the_window_that_is_asked_for(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(window=WEEK, clock=clock)])
        assert (await clock.run(agent.run('hello'))).output == 'answer to hello'
        await clock.run(
            model_request_batch(lane_model(fake), requests_of(['a']), window=timedelta(hours=48), clock=clock)
        )
        await clock.run(submit_batch(lane_model(fake), requests_of(['b']), clock=clock))
        assert windows(harness, fake) == [168, 48, 24]


async def test_a_batch_is_waited_for_as_long_as_its_window_is(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(days=6)) as fake:
        [answer] = await clock.run(model_request_batch(lane_model(fake), requests_of(['a']), window=WEEK, clock=clock))
        assert isinstance(answer, ModelResponse)
        assert answer.text == 'answer to a'


async def test_requests_of_different_windows_share_no_batch(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        calls = [model_request_batch(model, requests_of(['a']), window=window, clock=clock) for window in (None, WEEK)]
        await clock.run(asyncio.gather(*calls))
        assert sorted(windows(harness, fake)) == [24, 168]


async def test_a_job_is_collected_without_saying_its_window_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(days=3)) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests_of(['a']), window=WEEK, clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        [answer] = await clock.run(collect_batch(job, requests_of(['a']), model, clock=clock))
        assert isinstance(answer, ModelResponse)


async def test_a_journal_finds_what_was_sent_with_another_window(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, tmp_path: Path
):
    path = tmp_path / 'journal.db'
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        await clock.run(submit_batch(model, requests_of(['a']), window=WEEK, journal=path, clock=clock))
        from pydantic_ai_batch.journal import store

        store.close_all()
        await clock.run(model_request_batch(model, requests_of(['a']), journal=path, clock=clock))
        store.close_all()
        assert windows(harness, fake) == [168]


@pytest.mark.parametrize('window', [timedelta(hours=1), timedelta(days=8), timedelta(hours=30, minutes=1)])
async def test_a_window_that_the_lane_does_not_take_is_refused_before_anything_is_sent(
    window: timedelta, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        with pytest.raises(UserError, match='must be a whole number of hours from 24 to 168 for'):
            await submit_batch(lane_model(fake), requests_of(['a']), window=window, clock=clock)
        with pytest.raises(UserError, match='must be a whole number of hours from 24 to 168 for'):
            await Agent(lane_model(fake), capabilities=[BatchModelRequests(window=window, clock=clock)]).run('a')
        assert fake.calls == []


@pytest.mark.parametrize('name', ['responses', 'anthropic', 'google-inline', 'native'])
async def test_a_lane_of_one_window_takes_that_alone(name: str, monkeypatch: pytest.MonkeyPatch, clock: ManualClock):
    harness = harness_of(name, monkeypatch)
    with FakeProviders(echo, clock=clock) as fake:
        model, _ = harness.make(fake, 'test')
        lane = lane_for(model)
        for window in lane.info.windows:
            assert lane.ask(window).asked_window is None
        with pytest.raises(UserError, match='`window`'):
            lane.ask(timedelta(hours=30))


@pytest.mark.parametrize('window', [3600, '24h'])
def test_a_window_is_a_timedelta(window: Any):
    with pytest.raises(UserError, match='`window` must be a `timedelta`'):
        BatchModelRequests(window=window)
