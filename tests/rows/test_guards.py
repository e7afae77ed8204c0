"""What stops a run before all of it is paid for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.together import TogetherProvider

from pydantic_ai_batch import Journal, RowResult, run_rows
from pydantic_ai_batch.exceptions import RunStopped
from pydantic_ai_batch.testing import Answer, FakeError, FakeProviders, FakeRequest, ManualClock

from .scenes import asked, echo, sizes

ROWS = [{'id': f'row-{n}', 'input': f'text {n}'} for n in range(20)]


def failing(*numbers: int, reason: str = 'no batches of this model') -> Callable[[FakeRequest], Answer]:
    """Answers all rows but some."""
    texts = {f'text {n}' for n in numbers}
    return lambda request: FakeError(400, 'invalid', reason) if request.text in texts else echo(request)


async def stopped(
    clock: ManualClock, rows: Any = ROWS, **settings: Any
) -> tuple[list[RowResult[Any]], RunStopped | None]:
    """The results of a run, and why it was stopped."""
    found: list[RowResult[Any]] = []

    async def run() -> RunStopped | None:
        try:
            async with aclosing(run_rows(rows, clock=clock, **settings)) as results:
                async for result in results:
                    found.append(result)  # noqa: PERF401 - those before an error are wanted too
        except RunStopped as error:
            return error
        return None

    error = await clock.run(run())
    return found, error


async def test_a_trial_that_is_answered_is_followed_by_the_rest(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), canary=5)
        assert sizes(fake) == [5, 15]
        assert sorted(asked(fake)[:5]) == [f'text {n}' for n in range(5)]
    assert error is None
    assert len(results) == 20


async def test_a_trial_may_lose_one_row_in_five(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(3), clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), canary=5)
    assert error is None
    assert len(results) == 20


async def test_a_trial_that_fails_stops_the_run_and_says_the_commonest_reason(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(1, 2, 3, 7), clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), canary=5)
        assert sizes(fake) == [5]
    assert sorted(result.id for result in results) == [f'row-{n}' for n in range(5)]
    assert '3 of the first 5 rows failed' in str(error)
    assert '3 of them with' in str(error)
    assert 'no batches of this model' in str(error)
    assert '5 of 20 rows are done with' in str(error)


async def test_a_batch_api_that_refuses_the_trial_stops_the_run(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('create', 'http', status=400, message='not for batches', times=None)
        _, error = await stopped(clock, model=model_of(fake), canary=5)
        assert fake.openai.count('create') == 1
    assert 'not for batches' in str(error)


async def test_a_trial_of_all_there_is_stops_nothing(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(0, 1, 2), clock=clock) as fake:
        results, error = await stopped(clock, ROWS[:3], model=model_of(fake), canary=5)
    assert error is None
    assert len(results) == 3


async def test_answers_that_are_not_valid_fail_the_trial(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: 'no number', clock=clock) as fake:
        _, error = await stopped(clock, model=model_of(fake), canary=4, output_type=int)
        assert all(size <= 4 for size in sizes(fake))
    assert '4 of the first 4 rows failed' in str(error)


async def test_a_stopped_trial_is_not_made_again_with_other_rows(clock: ManualClock, model_of: ModelOf, tmp_path: Path):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(failing(*range(20)), clock=clock) as fake:
        for _ in range(2):
            _, error = await stopped(clock, model=model_of(fake), canary=5, journal=journal)
            assert '5 of the first 5 rows failed' in str(error)
            journal.close()
        assert sizes(fake) == [5]
        # Without the guard it goes on.
        results, error = await stopped(clock, model=model_of(fake), journal=journal)
        assert error is None
        assert len(results) == 20
        assert sizes(fake) == [5, 15]


async def test_each_model_of_the_rows_has_its_trial_before_anything_else(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    def answer(request: FakeRequest) -> Answer:
        return FakeError(400, 'invalid', 'no') if request.model == 'gpt-5' else echo(request)

    rows = [{**row, 'model': 'openai:gpt-5' if n % 2 else 'openai:gpt-5-mini'} for n, row in enumerate(ROWS)]
    with FakeProviders(answer, clock=clock) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        _, error = await stopped(clock, rows, canary=3)
        assert sizes(fake) == [3, 3]
    assert '3 of the first 3 rows failed' in str(error)


async def test_batches_go_one_after_the_other_until_too_many_rows_failed(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(1, 2, 6, 11), clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), max_requests=5, max_failures=2)
        assert sizes(fake) == [5, 5]
        created = [batch.created_at for batch in fake.openai.batches.values()]
        assert created[1] > created[0] + 60
    assert len(results) == 10
    assert '3 rows failed, and 2 may' in str(error)


async def test_as_many_rows_as_are_allowed_may_fail(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(1, 2), clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), max_requests=5, max_failures=2)
    assert error is None
    assert len(results) == 20


async def test_a_share_of_the_rows_may_fail(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(failing(1, 2, 3), clock=clock) as fake:
        _, error = await stopped(clock, model=model_of(fake), max_requests=5, max_failures=0.1)
        assert sizes(fake) == [5]
    assert '3 rows failed, and 0.1 of 20 may' in str(error)


async def test_answers_that_cost_more_than_they_may_stop_the_run(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        results, error = await stopped(clock, model=model_of(fake), max_requests=5, max_cost=0.000001)
        assert sizes(fake) == [5]
    assert len(results) == 5
    assert all(result.cost for result in results)
    assert 'may be spent' in str(error)


async def test_what_was_spent_before_counts_when_the_run_is_made_again(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(echo, clock=clock) as fake:
        for _ in range(2):
            _, error = await stopped(clock, model=model_of(fake), max_requests=5, max_cost=0.000001, journal=journal)
            assert 'may be spent' in str(error)
            journal.close()
        assert sizes(fake) == [5]


async def test_rows_that_failed_before_count_when_the_run_is_made_again(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(failing(1, 2, 3), clock=clock) as fake:
        for _ in range(2):
            _, error = await stopped(clock, model=model_of(fake), max_requests=5, max_failures=2, journal=journal)
            assert '3 rows failed, and 2 may' in str(error)
            journal.close()
        assert sizes(fake) == [5]


async def test_a_limit_on_what_has_no_price_is_refused(clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        async with fake.together.client() as client:
            model = OpenAIChatModel('Qwen/Qwen3.5-9B', provider=TogetherProvider(openai_client=client))
            with pytest.raises(UserError, match='no batch price is known'):
                await stopped(clock, model=model, max_cost=5)
        assert fake.calls == []


@pytest.mark.parametrize('ordered', [False, True])
async def test_a_run_that_is_stopped_hands_out_all_there_is(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, ordered: bool
):
    rows = [{**row, 'model': 'openai:gpt-5' if n == 0 else 'openai:gpt-5-mini'} for n, row in enumerate(ROWS)]
    rows = [{**rows[1]}, *rows[2:10], rows[0], *rows[10:]]
    with FakeProviders(failing(1, 2, 3), clock=clock) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        results, error = await stopped(clock, rows, canary=3, ordered=ordered)
    assert error is not None
    assert sorted(result.id for result in results) == ['row-0', 'row-1', 'row-2', 'row-3']
