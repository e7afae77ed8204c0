"""Batches through LiteLLM's proxy, which hands files and batches on to the provider behind it: here, our fake."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import anyio
import pytest
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import cancel_batch, collect_batch, lane_for, list_batches, submit_batch, wait_batch
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest

from .calls import POLLS, ROWS, requests_of, run_agents, run_list, texts
from .conftest import LITELLM_KEY

ANSWERS = [f'Answer to: {row}' for row in ROWS]


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
async def model(request: pytest.FixtureRequest, litellm: str) -> AsyncIterator[OpenAIChatModel | OpenAIResponsesModel]:
    async with AsyncOpenAI(api_key=LITELLM_KEY, base_url=f'{litellm}/v1') as client:
        model = request.param('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
        assert lane_for(model).info.name == 'openai'
        yield model


def billed_once(upstream: FakeProviders) -> bool:
    return Counter(row.text for row in upstream.openai.billed) == Counter(ROWS)


async def test_runs_of_an_agent_share_a_batch_and_are_billed_once(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    assert await run_agents(model) == ANSWERS
    assert len(upstream.openai.batches) == 1
    assert billed_once(upstream)
    assert upstream.openai.count('live') == 0


async def test_a_list_of_requests_is_one_batch_whose_input_is_deleted(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    assert texts(await run_list(model)) == ANSWERS
    assert upstream.openai.count('create') == 1
    assert upstream.openai.count('delete') == 1
    assert billed_once(upstream)


async def test_a_row_that_fails_has_its_error_and_the_others_their_answers(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'odd', 'This is odd.') if request.text == ROWS[3] else f'Answer to: {request.text}'

    upstream.answer = answer
    outcomes = await run_list(model)
    error = outcomes.pop(3)
    assert isinstance(error, ModelHTTPError)
    assert error.status_code == 400
    assert 'This is odd.' in str(error)
    assert texts(outcomes) == [text for text in ANSWERS if text != ANSWERS[3]]


async def test_a_job_is_listed_cancelled_and_collected(model: OpenAIChatModel, upstream: FakeProviders) -> None:
    upstream.openai.inject('batch', 'stick', done=2)
    job = await submit_batch(model, requests_of(ROWS))
    (batch,) = job.batches
    assert [batch.id async for batch in list_batches(model)] == [batch.batch.id]
    while len(upstream.openai.billed) < 2:  # noqa: ASYNC110 - the fake's rows come of the time that goes by
        await anyio.sleep(0.05)
    job = await wait_batch(await cancel_batch(job, model), model, **POLLS)
    assert job.status == 'canceled'
    outcomes = await collect_batch(job, requests_of(ROWS), model)
    assert texts(outcomes[:2]) == ANSWERS[:2]
    assert all('canceled' in str(outcome) for outcome in outcomes[2:])


async def test_a_refused_create_is_an_error_for_each_row_and_is_not_repeated(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    upstream.openai.inject('create', 'http', status=400, message='There is no room for you.')
    outcomes = await run_list(model)
    assert all(isinstance(outcome, ModelHTTPError) and outcome.status_code == 400 for outcome in outcomes)
    assert all('There is no room for you.' in str(outcome) for outcome in outcomes)
    assert upstream.openai.count('create') == 1
    assert upstream.openai.billed == []


async def test_a_batch_whose_reply_the_proxy_could_not_read_is_found_by_its_tag_and_billed_once(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    upstream.openai.inject('create', 'garbage')
    assert texts(await run_list(model)) == ANSWERS
    assert upstream.openai.count('create') == 1
    assert billed_once(upstream)


async def test_a_batch_that_the_proxy_made_twice_is_billed_once(
    model: OpenAIChatModel, upstream: FakeProviders
) -> None:
    """The proxy repeats a create whose reply it lost, and answers as if nothing had happened."""
    upstream.processing = timedelta(seconds=3)
    upstream.openai.inject('create', 'lose_reply')
    assert texts(await run_list(model)) == ANSWERS
    assert len(upstream.openai.batches) == 2
    assert upstream.openai.count('cancel') == 1
    assert billed_once(upstream)
