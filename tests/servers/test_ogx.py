"""Chat batches and Message Batches at OGX, which really runs their requests, live at the upstream.

Its OpenAI batches have manners that OpenAI's have not: an answer's body is JSON in a string, the line of a failed
request has no response and an error without a code or a status, and an error file that holds nothing has an ID all the
same.
Its Message Batches have the error of a request without the envelope that Anthropic has around it.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import anyio.to_thread
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import (
    cancel_batch,
    collect_batch,
    lane_for,
    list_batches,
    submit_batch,
    wait_batch,
    with_batch_api,
)
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest

from .calls import POLLS, ROWS, requests_of, run_agents, run_list, texts

NAME = 'upstream/gpt-5-mini'
"""What OGX calls the upstream's model."""

LANES = ['openai', 'openai-compatible', 'anthropic']


@pytest.fixture(params=LANES)
async def model(request: pytest.FixtureRequest, ogx: str) -> AsyncIterator[Model]:
    async with AsyncExitStack() as clients:
        if request.param == 'anthropic':
            anthropic = await clients.enter_async_context(AsyncAnthropic(api_key='test', base_url=ogx))
            model = AnthropicModel(NAME, provider=AnthropicProvider(anthropic_client=anthropic))
        else:
            openai = await clients.enter_async_context(AsyncOpenAI(api_key='test', base_url=f'{ogx}/v1'))
            model = OpenAIChatModel(NAME, provider=OpenAIProvider(openai_client=openai))
            model = model if request.param == 'openai' else with_batch_api(model, lane='openai-compatible')
        assert lane_for(model).info.name == request.param
        yield model


async def test_runs_of_an_agent_are_answered_each_with_its_own_answer(model: Model, upstream: FakeProviders) -> None:
    upstream.answer = lambda request: f'answer to {request.text}'
    assert await run_agents(model) == [f'answer to {row}' for row in ROWS]
    assert Counter(row.text for row in upstream.openai.billed) == Counter(ROWS)


async def test_a_list_of_requests_is_answered_and_billed_once(model: Model, upstream: FakeProviders) -> None:
    upstream.answer = lambda request: f'answer to {request.text}'
    responses = await run_list(model)
    assert texts(responses) == [f'answer to {row}' for row in ROWS]
    for response in responses:
        assert isinstance(response, ModelResponse)
        assert response.usage.input_tokens > 0
        assert response.finish_reason == 'stop'
    assert Counter(row.text for row in upstream.openai.billed) == Counter(ROWS)


async def test_a_row_that_fails_has_its_error_and_the_others_their_answers(
    model: Model, upstream: FakeProviders
) -> None:
    """No more of it is known than that it failed, so it is sent again, alone, `max_resubmissions` times."""

    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'odd', 'This is odd.') if request.text == ROWS[3] else f'answer to {request.text}'

    upstream.answer = answer
    outcomes = await run_list(model, max_resubmissions=1)
    error = outcomes.pop(3)
    assert isinstance(error, ModelHTTPError)
    assert error.status_code == 500
    assert 'This is odd.' in str(error)
    assert 'It was submitted 2 times' in ' '.join(error.__notes__)
    assert texts(outcomes) == [f'answer to {row}' for row in ROWS if row != ROWS[3]]
    assert Counter(call.body.count(ROWS[3].encode()) for call in upstream.openai.calls)[1] == 2
    assert Counter(row.text for row in upstream.openai.billed) == Counter(set(ROWS) - {ROWS[3]})


async def test_a_batch_in_which_every_row_fails_is_an_error_for_each(model: Model, upstream: FakeProviders) -> None:
    upstream.answer = lambda request: FakeError(400, 'odd', f'{request.text} is odd.')
    outcomes = await run_list(model, max_resubmissions=0)
    assert [f'{row} is odd.' in str(outcome) for row, outcome in zip(ROWS, outcomes, strict=True)] == [True] * 5


async def test_a_job_is_listed_and_collected_later(model: Model, upstream: FakeProviders) -> None:
    upstream.answer = lambda request: f'answer to {request.text}'
    job = await submit_batch(model, requests_of(ROWS))
    (batch,) = job.batches
    assert batch.batch.id in [batch.id async for batch in list_batches(model)]
    await wait_batch(job, model, **POLLS)
    assert texts(await collect_batch(job, requests_of(ROWS), model)) == [f'answer to {row}' for row in ROWS]


async def test_a_job_that_is_cancelled_while_it_runs_has_a_result_for_each_row(
    model: Model, upstream: FakeProviders
) -> None:
    asked, released = threading.Event(), threading.Event()

    def answer(request: FakeRequest) -> str:
        asked.set()
        released.wait(30)
        return 'too late'

    upstream.answer = answer
    try:
        job = await submit_batch(model, requests_of(ROWS))
        assert await anyio.to_thread.run_sync(asked.wait, 30)
        job = await cancel_batch(job, model)
        job = await wait_batch(job, model, **POLLS)
        assert job.status == 'canceled'
        outcomes = await collect_batch(job, requests_of(ROWS), model)
    finally:
        released.set()
    assert all(isinstance(outcome, ModelAPIError) and 'canceled' in str(outcome) for outcome in outcomes)


async def test_a_batch_that_fails_its_validation_is_an_error_for_each_row_of_its_own(
    ogx: str, upstream: FakeProviders
) -> None:
    """OGX names the line of each, and asks the upstream nothing."""
    async with AsyncOpenAI(api_key='test', base_url=f'{ogx}/v1') as client:
        model = OpenAIChatModel('upstream/nothing', provider=OpenAIProvider(openai_client=client))
        outcomes = await run_list(model)
        assert len([batch async for batch in list_batches(model) if batch.model_name == 'upstream/nothing']) > 0
    assert all(isinstance(outcome, ModelHTTPError) and outcome.status_code == 400 for outcome in outcomes)
    assert all('model_not_found' in str(outcome) for outcome in outcomes)
    assert upstream.openai.count('live') == 0


async def test_what_is_odd_about_the_lines_is_there_to_be_read(ogx: str, upstream: FakeProviders) -> None:
    """Or the tests above would hold for a server like any other."""
    upstream.answer = lambda request: FakeError(400, 'odd', 'No.') if request.text == ROWS[0] else 'yes'
    async with AsyncOpenAI(api_key='test', base_url=f'{ogx}/v1') as client:
        model = OpenAIChatModel(NAME, provider=OpenAIProvider(openai_client=client))
        job = await wait_batch(await submit_batch(model, requests_of(ROWS[:2])), model, **POLLS)
        details = job.batches[0].batch.provider_details or {}
        answered = json.loads((await client.files.content(details['output_file_id'])).text)
        failed = json.loads((await client.files.content(details['error_file_id'])).text)
    assert isinstance(answered['response']['body'], str)
    assert 'error' not in answered
    assert 'response' not in failed
    assert failed['error'].keys() == {'type', 'message'}
