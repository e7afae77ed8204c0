"""Pending responses of another kind: a job that the model itself checks on, and a turn that is paused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider
from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.wire import json_reply

from .ways import (
    ANTHROPIC,
    OURS,
    ModelFor,
    Way,
    all_quiet,
    pending_agent,
    pending_response,
    providers,
    stored,
    waiting_agent,
    ways,
)

pytestmark = pytest.mark.usefixtures('nothing_unretrieved')


Json = dict[str, Any]


class BackgroundOpenAI(FakeOpenAI):
    """OpenAI with responses in background mode, which are done when they were asked for a number of times."""

    operations = FakeOpenAI.operations | {'retrieve', 'cancel_response'}
    checks = 3

    @property
    def routes(self) -> list[Route]:
        return [
            self.route('GET', '/responses/{id}', 'retrieve', self._retrieve),
            self.route('POST', '/responses/{id}/cancel', 'cancel_response', self._cancel_response),
            *super().routes,
        ]

    def _retrieve(self, call: Incoming) -> Response:
        done = self.count('retrieve') + 1 >= self.checks
        return json_reply(in_background('completed' if done else 'in_progress', call.path['id'], self.output))

    def _cancel_response(self, call: Incoming) -> Response:
        return json_reply(in_background('cancelled', call.path['id'], []))

    output: list[Json] = []  # noqa: RUF012
    """What the response comes to."""


def in_background(status: str, id: str, output: list[Json]) -> Json:
    return {
        'id': id,
        'object': 'response',
        'created_at': 1,
        'status': status,
        'background': True,
        'model': 'gpt-5-mini',
        'output': output if status == 'completed' else [],
        'parallel_tool_calls': True,
        'tool_choice': 'auto',
        'tools': [],
        'usage': {
            'input_tokens': 5,
            'input_tokens_details': {'cached_tokens': 0},
            'output_tokens': 5,
            'output_tokens_details': {'reasoning_tokens': 0},
            'total_tokens': 10,
        },
    }


SAYS_DONE: Json = {
    'id': 'msg_1',
    'type': 'message',
    'status': 'completed',
    'role': 'assistant',
    'content': [{'type': 'output_text', 'annotations': [], 'text': 'done in the background'}],
}
CALLS_A_TOOL: Json = {
    'id': 'fc_1',
    'type': 'function_call',
    'status': 'completed',
    'call_id': 'call_1',
    'name': 'temperature',
    'arguments': '{"city": "Oslo"}',
}


def answer(request: FakeRequest) -> str | Json:
    """A live request in background mode is queued; any other is answered."""
    if request.body.get('background'):
        return in_background('queued', f'resp_{uuid.uuid4().hex}', [])
    return f'answer to {request.text}'


@contextmanager
def in_background_mode(clock: ManualClock, *output: Json) -> Generator[tuple[FakeProviders, BackgroundOpenAI]]:
    fake = FakeProviders(answer, clock=clock)
    fake.openai = fake.providers['openai'] = openai = BackgroundOpenAI(fake._scene)
    openai.output = list(output)
    with Agent.using_sleep(clock.sleep), fake:
        yield fake, openai


MakesModel = Callable[[FakeOpenAI], Model]


@pytest.fixture
async def responses() -> AsyncIterator[MakesModel]:
    clients: list[AsyncOpenAI] = []

    def make(openai: FakeOpenAI) -> Model:
        clients.append(openai.client(max_retries=0))
        return OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=clients[-1]))

    yield make
    for client in clients:
        await client.close()


async def queued_in_background(model: Model) -> list[ModelMessage]:
    """The history of a live run that ended while OpenAI worked on its response."""
    agent: Agent[None, Any] = Agent(model, output_type=[str, PendingModelResponse])
    result = await agent.run('hello', model_settings=OpenAIResponsesModelSettings(openai_background=True))
    history = stored(result.all_messages())
    assert pending_response(history).provider_details is not None
    return history


# Background mode


@pytest.mark.parametrize('streamed', [False, True], ids=['run', 'stream'])
async def test_a_background_response_is_checked_on_by_its_model_and_never_sent_again(
    streamed: bool, responses: MakesModel, clock: ManualClock
):
    """The built-in capability sends the request again here, in a batch."""
    with in_background_mode(clock, SAYS_DONE) as (fake, openai):
        model = responses(openai)
        history = await queued_in_background(model)
        agent = waiting_agent(model, OURS.batching(clock))

        async def run() -> str:
            if not streamed:
                return (await agent.run(message_history=history)).output
            async with agent.run_stream(message_history=history) as stream:
                return await stream.get_output()

        before = clock.now()
        assert await clock.run(run()) == 'done in the background'
        assert [call.operation for call in fake.calls] == ['live', 'retrieve', 'retrieve', 'retrieve']
        # The model's own delay, and not a batch's.
        delay = model.continuation_delay(pending_response(history))
        assert delay is not None
        assert clock.now() - before == pytest.approx(3 * delay)
        assert await all_quiet() == []


async def test_a_run_that_may_end_pending_does_with_a_background_response_and_leaves_it_running(
    responses: MakesModel, clock: ManualClock
):
    with in_background_mode(clock, SAYS_DONE) as (fake, openai):
        model = responses(openai)
        history = await queued_in_background(model)
        agent = pending_agent(model, OURS.batching(clock))
        for checks in (1, 2):
            result = await agent.run(message_history=history)
            assert isinstance(result.output, PendingModelResponse)
            assert openai.count('retrieve') == checks
            again = pending_response(result.all_messages())
            assert again.provider_response_id == pending_response(history).provider_response_id
            assert again.provider_details is not None
            assert again.provider_details['finish_reason'] == 'in_progress'
            assert 'batch' not in again.provider_details
            history = stored(result.all_messages())
        assert (await agent.run(message_history=history)).output == 'done in the background'
        assert {call.operation for call in fake.calls} == {'live', 'retrieve'}


@ways
async def test_a_run_that_is_cancelled_while_it_waits_for_a_background_response_cancels_that(
    way: Way, responses: MakesModel, clock: ManualClock
):
    with in_background_mode(clock, SAYS_DONE) as (_, openai):
        model = responses(openai)
        history = await queued_in_background(model)
        run = asyncio.ensure_future(waiting_agent(model, way.batching(clock)).run(message_history=history))
        await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (openai.count('cancel_response'), openai.count('cancel')) == (1, 0)
        assert openai.count('create') == 0


async def test_requests_after_a_background_response_are_batched(responses: MakesModel, clock: ManualClock):
    with in_background_mode(clock, CALLS_A_TOOL) as (_, openai):
        model = responses(openai)
        history = await queued_in_background(model)
        agent = waiting_agent(model, OURS.batching(clock))

        @agent.tool_plain
        async def temperature(city: str) -> int:
            return 21

        result = await clock.run(agent.run(message_history=history))
        assert result.output == 'answer to hello'
        assert (openai.count('retrieve'), openai.count('create'), openai.count('live')) == (3, 1, 1)


# Jobs of any other model


class Jobs(TestModel):
    """A model that checks on jobs of its own, which are done at the second check."""

    def __init__(self) -> None:
        super().__init__()
        self.checks: list[str | None] = []
        self.told: list[str] = []

    async def request(self, messages: list[ModelMessage], *args: Any, **kwargs: Any) -> ModelResponse:
        last = messages[-1]
        assert isinstance(last, ModelResponse)
        self.checks.append(last.provider_response_id)
        if len(self.checks) < 2:
            return last
        return ModelResponse(parts=[TextPart('done')], provider_response_id=last.provider_response_id)

    def request_stream(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    def continuation_delay(self, response: ModelResponse) -> float | None:
        return 7.0 if response.state == 'suspended' else None

    async def cancel_suspended_response(self, response: ModelResponse) -> None:
        self.told.append('cancel')

    def _release_suspended_response(self, response: ModelResponse) -> None:
        self.told.append('release')


JOB: list[ModelMessage] = [
    ModelRequest.user_text_prompt('hello'),
    ModelResponse(parts=[], state='suspended', provider_response_id='job_1'),
]


async def test_the_job_of_any_model_is_its_own_to_delay_check_and_release(clock: ManualClock):
    with providers(clock):
        model, batching = Jobs(), OURS.batching(clock)
        result = await pending_agent(model, batching).run(message_history=JOB)
        assert isinstance(result.output, PendingModelResponse)
        assert (model.checks, model.told) == (['job_1'], ['release'])
        before = clock.now()
        result = await clock.run(waiting_agent(model, batching).run(message_history=result.all_messages()))
        assert result.output == 'done'
        assert model.checks == ['job_1', 'job_1']
        assert clock.now() - before == 7.0


async def test_the_job_of_any_model_is_its_own_to_cancel(clock: ManualClock):
    with providers(clock):
        model = Jobs()
        run = asyncio.ensure_future(waiting_agent(model, OURS.batching(clock)).run(message_history=JOB))
        await clock.until_asleep()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert model.told == ['cancel']


# Paused turns


def continued(request: FakeRequest) -> str:
    return 'second' if request.body['messages'][-1]['role'] == 'assistant' else 'the turn is lost'


PAUSED: list[ModelMessage] = [
    ModelRequest.user_text_prompt('hello'),
    ModelResponse(
        parts=[TextPart('first')],
        state='suspended',
        provider_name='anthropic',
        provider_response_id='msg_first',
        model_name='claude-haiku-4-5',
        provider_details={'finish_reason': 'pause_turn'},
    ),
]


@ways
async def test_a_paused_turn_goes_to_the_model_as_it_is_and_is_continued_in_a_batch(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, continued) as fake:
        model = model_for(ANTHROPIC, fake)
        result = await clock.run(waiting_agent(model, way.batching(clock)).run(message_history=PAUSED))
        assert [part.content for part in result.all_messages()[-1].parts if isinstance(part, TextPart)] == [
            'first',
            'second',
        ]
        assert (fake.anthropic.count('create'), fake.anthropic.count('live')) == (1, 0)
        (batch,) = fake.anthropic.batches.values()
        await Agent(model).run(message_history=PAUSED)
        (live,) = [row.body for row in fake.anthropic.billed if row.batch_id is None]
        assert batch.requests[0].body['messages'] == live['messages']


@ways
async def test_a_paused_turn_that_may_end_pending_does_with_what_it_held(
    way: Way, model_for: ModelFor, clock: ManualClock
):
    with providers(clock, continued) as fake:
        model, batching = model_for(ANTHROPIC, fake), way.batching(clock)
        result = await pending_agent(model, batching).run(message_history=PAUSED)
        assert isinstance(result.output, PendingModelResponse)
        assert [part.content for part in result.output.response.parts if isinstance(part, TextPart)] == ['first']
        assert fake.anthropic.count('cancel') == 0
