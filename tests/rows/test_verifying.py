"""A sample of rows brings a token back: its own, or the run stops."""

from __future__ import annotations

import re
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from lanes.harness import EVERY, Harness, close, harness_of
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch import RowResult, plan_batch, run_rows
from pydantic_ai_batch.exceptions import RunStopped
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock

from .scenes import all_of, asked, echo

ROWS = [{'id': f'row {n}', 'input': f'text {n}'} for n in range(30)]
TOKEN = re.compile(r'\[\[row-[0-9a-f]{12}\]\]')


@pytest.fixture(params=[harness.name for harness in EVERY])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return harness_of(request.param, monkeypatch)


def obeying(request: FakeRequest) -> str:
    """Answers with the first line of the prompt, and the token if there is one."""
    token = TOKEN.search(request.text)
    first = request.text.split('\n', 1)[0]
    return f'about {first}\n{token[0]}' if token else f'about {first}'


class Mixing:
    """Answers each request with the answer to the one before it."""

    def __init__(self) -> None:
        self.before = 'about nothing'

    def __call__(self, request: FakeRequest) -> str:
        self.before, answer = obeying(request), self.before
        return answer


async def test_answers_come_without_their_tokens_on_every_lane(harness: Harness, clock: ManualClock):
    if harness.lane == 'openai-compatible':
        pytest.skip('Rows have no setting by which that lane is chosen.')
    with FakeProviders(obeying, clock=clock) as fake:
        model, client = harness.make(fake, 'test')
        results = await all_of(clock, ROWS, model=model, verify=5, ordered=True)
        await close(client)
    assert [result.output for result in results] == [f'about text {n}' for n in range(30)]


async def test_the_sample_is_spread_over_the_rows_and_the_same_each_time(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(obeying, clock=clock) as fake:
        for _ in range(2):
            await all_of(clock, ROWS, model=model_of(fake), verify=3)
        prompts = asked(fake)
    with_tokens = {prompt.split('\n', 1)[0] for prompt in prompts if TOKEN.search(prompt)}
    assert with_tokens == {'text 0', 'text 10', 'text 20'}
    assert sorted(prompts[:30]) == sorted(prompts[30:])


async def test_the_answer_to_another_row_stops_the_run(harness: Harness, clock: ManualClock):
    if harness.lane == 'openai-compatible':
        pytest.skip('Rows have no setting by which that lane is chosen.')
    results: list[RowResult[Any]] = []

    async def run(model: Any) -> None:
        async with aclosing(run_rows(ROWS, model=model, verify=10, clock=clock)) as rows:
            async for result in rows:
                # One by one, as the last step raises.
                results.append(result)  # noqa: PERF401

    with FakeProviders(Mixing(), clock=clock) as fake:
        model, client = harness.make(fake, 'test')
        with pytest.raises(RunStopped, match=r"The run was stopped: row '.*' was given the answer to another row"):
            await clock.run(run(model))
        await close(client)
    assert [result.error_class for result in results if not result.ok] == ['RowMismatch']
    assert len(results) < 30


async def test_a_run_that_was_stopped_for_a_mismatch_is_not_gone_on_with(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    settings = {'verify': 10, 'journal': tmp_path / 'run.db', 'max_requests': 10}
    with FakeProviders(Mixing(), clock=clock) as fake:
        for _ in range(2):
            with pytest.raises(RunStopped, match='was given the answer to another row'):
                await all_of(clock, ROWS, model=model_of(fake), **settings)
        # All of them were under way when the first answer came.
        assert fake.openai.count('create') == 3


async def test_a_model_that_forgets_the_token_proves_nothing_and_stops_nothing(clock: ManualClock, model_of: ModelOf):
    def forgetful(request: FakeRequest) -> str:
        return obeying(request).split('\n', 1)[0]

    with FakeProviders(forgetful, clock=clock) as fake:
        results = await all_of(clock, ROWS, model=model_of(fake), verify=10, ordered=True)
    assert [result.output for result in results] == [f'about text {n}' for n in range(30)]


async def test_a_row_that_is_about_tokens_is_no_mismatch(clock: ManualClock, model_of: ModelOf):
    rows = [{'input': 'What is [[row-0123456789ab]]?'}, {'input': 'b'}]
    with FakeProviders(echo, clock=clock) as fake:
        results = await all_of(clock, rows, model=model_of(fake), verify=1, ordered=True)
    assert [result.status for result in results] == ['ok', 'ok']


@pytest.mark.parametrize(('settings', 'says'), [({'verify': 0}, 'at least 1'), ({'output_type': int}, 'have a type')])
async def test_what_cannot_be_verified_is_refused(
    fake: FakeProviders, clock: ManualClock, model_of: ModelOf, settings: dict[str, Any], says: str
):
    with pytest.raises(UserError, match=says):
        await all_of(clock, ROWS, model=model_of(fake), **{'verify': 2, **settings})
    assert fake.calls == []


async def test_a_plan_counts_the_tokens_in(fake: FakeProviders, model_of: ModelOf):
    with_tokens, without = (plan_batch(model_of(fake), ROWS, verify=count) for count in (30, None))
    assert with_tokens.chunks[0].bytes > without.chunks[0].bytes
