"""What a provider holds, whoever made it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import Model
from rich.console import Console

from pydantic_ai_batch import Batch, lane_for, list_batches, submit_batch
from pydantic_ai_batch.cli.files.adopting import write_results
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .harness import EVERY, Harness, echo, harness_of, requests_of

LaneModel = Callable[..., Model]


@pytest.fixture(params=[harness.name for harness in EVERY if harness.lane != 'native'])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Every lane in turn."""
    return harness_of(request.param, monkeypatch)


async def listed(model: Model | str) -> list[Batch]:
    return [batch async for batch in list_batches(model)]


async def test_every_batch_of_the_credential_is_listed_and_no_other(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake, 'mine')
        jobs = []
        for n in range(25):
            jobs.append(await clock.run(submit_batch(model, requests_of([f'row {n}']), clock=clock)))
            await clock.advance(timedelta(minutes=1))
        await clock.run(submit_batch(lane_model(fake, 'theirs'), requests_of(['row']), clock=clock))
        batches = await listed(model)
        assert {batch.id for batch in batches} == {batch.batch.id for job in jobs for batch in job.batches}
        assert {batch.provider_name for batch in batches} == {model.system}


async def test_the_status_of_a_batch_is_told_as_a_check_tells_it(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        await clock.run(submit_batch(model, requests_of(['row']), clock=clock))
        assert [batch.status for batch in await listed(model)] == ['in_progress']
        await clock.advance(timedelta(hours=1))
        assert [batch.status for batch in await listed(model)] == ['ended']


async def test_the_results_of_a_batch_are_written_by_its_id_alone(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, tmp_path: Path
):
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests_of(['one', 'two']), clock=clock))
        await clock.advance(timedelta(hours=1))
        [known] = job.batches
        calls = Counter(call.operation for call in harness.fake(fake).calls)
        path, console = tmp_path / 'out.jsonl', Console(stderr=True)
        # A lane that another process has, which knows nothing of the batch.
        lane = lane_for(lane_model(fake))
        adopted = write_results(
            known.batch.id, lane, harness.lane, str(path), console, clock, wait=None, settings=BatchSettings()
        )
        assert await clock.run(adopted) == 0
        rows = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
        assert {row['id']: (row['status'], row['text']) for row in rows} == {
            wire_id: ('ok', f'answer to {request_id}') for wire_id, request_id in known.requests
        }
        assert all(row['raw'] for row in rows)
        made = Counter(call.operation for call in harness.fake(fake).calls) - calls
        assert not made.keys() & {'create', 'cancel', harness.delete}


async def test_a_listing_that_breaks_off_raises(harness: Harness, lane_model: LaneModel, fake_down: FakeProviders):
    with pytest.raises(ModelAPIError):
        await listed(lane_model(fake_down))


@pytest.fixture
def fake_down(harness: Harness, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('list', 'http', status=500, times=None)
        yield fake


@pytest.mark.parametrize('harness', ['responses'], indirect=True)
async def test_a_lane_is_enough_where_the_key_is_in_the_environment(
    harness: Harness, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    with FakeProviders(echo, clock=clock) as fake:
        for name, value in fake.openai.environment.items():
            monkeypatch.setenv(name, value)
        await clock.run(submit_batch('openai-responses:gpt-5-mini', requests_of(['row']), clock=clock))
        assert len(await listed('gpt')) == len(await listed('openai')) == 1
        for name in fake.openai.environment:
            monkeypatch.delenv(name)
        with pytest.raises(UserError, match='OPENAI_API_KEY'):
            await listed('openai')


@pytest.mark.parametrize('harness', ['responses'], indirect=True)
async def test_a_lane_that_no_name_makes_a_model_of_says_so(harness: Harness):
    with pytest.raises(UserError, match='takes a model'):
        await listed('openai-compatible')
