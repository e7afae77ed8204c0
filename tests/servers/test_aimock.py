"""OpenAI batches at aimock, for the Responses API and for Chat Completions, with each outcome that a batch can have.

It runs nothing: every request of a batch that it completes is answered with the same words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import (
    Journal,
    cancel_batch,
    check_batch,
    collect_batch,
    lane_for,
    list_batches,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.exceptions import BatchNotCancellable, batch_of

from .calls import POLLS, ROWS, requests_of, run_agents, run_list, texts
from .conftest import Aimock

ModelWith = Callable[[str], OpenAIChatModel | OpenAIResponsesModel]

ANSWER = 'Mock batch completion'


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatModel])
async def model_with(request: pytest.FixtureRequest, aimock: Aimock) -> AsyncIterator[ModelWith]:
    """Makes models whose batches have the outcome that is named."""
    async with AsyncExitStack() as clients:

        def make(outcome: str) -> OpenAIChatModel | OpenAIResponsesModel:
            client = AsyncOpenAI(
                api_key='test', base_url=aimock.base_url, default_headers={'X-AIMock-Batch-Outcome': outcome}
            )
            clients.push_async_callback(client.close)
            return request.param('gpt-5-mini', provider=OpenAIProvider(openai_client=client))

        yield make


async def test_runs_of_an_agent_share_a_batch_and_are_answered(aimock: Aimock, model_with: ModelWith) -> None:
    before = aimock.created
    model = model_with('completed')
    assert lane_for(model).info.name == 'openai'
    assert await run_agents(model) == [ANSWER] * 5
    assert aimock.created == before + 1


async def test_a_list_of_requests_is_one_batch_and_its_input_is_deleted(aimock: Aimock, model_with: ModelWith) -> None:
    before = aimock.created
    responses = await run_list(model_with('completed'))
    assert texts(responses) == [ANSWER] * 5
    assert {response.finish_reason for response in responses if not isinstance(response, ModelAPIError)} == {'stop'}
    assert aimock.created == before + 1


@pytest.mark.parametrize(
    ('outcome', 'said', 'batches'),
    [('failed', 'Mock batch failure', 3), ('expired', 'expired', 3), ('cancelled', 'canceled', 1)],
)
async def test_what_a_batch_ended_as_is_an_error_of_each_row_that_names_the_batch(
    outcome: str, said: str, batches: int, aimock: Aimock, model_with: ModelWith
) -> None:
    """What fails and what expires is sent again, `max_resubmissions` times; what somebody cancelled is not."""
    before = aimock.created
    model = model_with(outcome)
    errors = [error for error in await run_list(model) if isinstance(error, ModelAPIError)]
    assert len(errors) == 5
    assert all(said in str(error) for error in errors)
    assert aimock.created == before + batches
    last = await newest(model)
    assert {(batch and batch.id) for batch in map(batch_of, errors)} == {last}
    assert all(last in ' '.join(error.__notes__) for error in errors)


@pytest.mark.parametrize('outcome', ['failed', 'expired', 'cancelled'])
async def test_without_resubmissions_a_run_has_the_error_of_its_only_batch(
    outcome: str, aimock: Aimock, model_with: ModelWith
) -> None:
    before = aimock.created
    model = model_with(outcome)
    errors = [error for error in await run_agents(model, max_resubmissions=0) if isinstance(error, ModelAPIError)]
    assert len(errors) == 5
    assert aimock.created == before + 1
    last = await newest(model)
    assert all(last in ' '.join(error.__notes__) for error in errors)


async def newest(model: OpenAIChatModel | OpenAIResponsesModel) -> str:
    async for batch in list_batches(model):
        return batch.id
    raise AssertionError('The listing is empty.')


async def test_a_job_is_submitted_listed_waited_for_and_collected(model_with: ModelWith) -> None:
    model = model_with('completed')
    job = await submit_batch(model, requests_of(ROWS), max_requests=2)
    assert len(job.batches) == 3
    listed = [batch.id async for batch in list_batches(model)]
    assert set(listed[:3]) == {batch.batch.id for batch in job.batches}
    assert not (await check_batch(job, model)).done
    done = await wait_batch(job, model, **POLLS)
    assert {batch.status for batch in done.batches} == {'ended'}
    assert texts(await collect_batch(job, requests_of(ROWS), model)) == [ANSWER] * 5


async def test_a_job_that_is_cancelled_has_an_error_for_each_row_and_is_not_cancelled_twice(
    aimock: Aimock, model_with: ModelWith
) -> None:
    before = aimock.created
    model = model_with('completed')
    job = await submit_batch(model, requests_of(ROWS))
    job = await cancel_batch(job, model)
    job = await wait_batch(job, model, **POLLS)
    assert job.status == 'canceled'
    outcomes = await collect_batch(job, requests_of(ROWS), model)
    assert all(isinstance(outcome, ModelAPIError) and 'canceled' in str(outcome) for outcome in outcomes)
    with pytest.raises(BatchNotCancellable):
        await cancel_batch(job, model)
    assert aimock.created == before + 1


async def test_a_program_that_is_run_again_with_its_journal_sends_nothing_twice(
    aimock: Aimock, model_with: ModelWith, tmp_path: Path
) -> None:
    """By closing the journal, which makes this process one that begins anew."""
    journal = Journal(tmp_path / 'list.journal')
    model = model_with('completed')
    before = aimock.created, aimock.count('POST', '/v1/files')
    first = texts(await run_list(model, journal=journal))
    journal.close()
    again = texts(await run_list(model, journal=journal))
    assert again == first == [ANSWER] * 5
    assert (aimock.created, aimock.count('POST', '/v1/files')) == (before[0] + 1, before[1] + 1)


async def test_a_job_that_is_submitted_again_with_its_journal_is_the_batch_that_runs(
    aimock: Aimock, model_with: ModelWith, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / 'job.journal')
    model = model_with('completed')
    before = aimock.created
    first = await submit_batch(model, requests_of(ROWS), journal=journal)
    journal.close()
    again = await submit_batch(model, requests_of(ROWS), journal=journal)
    assert [batch.batch.id for batch in again.batches] == [batch.batch.id for batch in first.batches]
    await wait_batch(again.id, model, journal=journal, **POLLS)
    assert texts(await collect_batch(again.id, None, model, journal=journal)) == [ANSWER] * 5
    assert aimock.created == before + 1
