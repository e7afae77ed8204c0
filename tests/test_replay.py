"""Capture and replay: a batched request, its answer and its error are what the same model's live request has."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import logfire
import pytest
from anthropic import AsyncAnthropic
from conftest import ModelOf
from logfire.testing import CaptureLogfire
from openai import AsyncOpenAI
from opentelemetry import context as otel
from pydantic_ai import Agent, RunContext
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    UserError,
)
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    ImageUrl,
    InstructionPart,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryFeedbackPart,
    RetryInfo,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
    VideoUrl,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.batch import BatchRequest, BatchResult
from pydantic_ai.models.google import GoogleModel, GoogleModelSettings
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch import BatchModelRequests, lane_for, model_request_batch
from pydantic_ai_batch.compat import error_body
from pydantic_ai_batch.exceptions import RequestNotSendable, ResultUnreadable
from pydantic_ai_batch.lanes import Lane
from pydantic_ai_batch.replay import capture, replay
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock, auto_answer
from pydantic_ai_batch.testing import google_json as google_answers
from pydantic_ai_batch.testing.anthropic_batches import error_body as anthropic_error
from pydantic_ai_batch.testing.loopback import LoopbackServer
from pydantic_ai_batch.testing.openai_batches import error_body as openai_error
from pydantic_ai_batch.testing.openai_bodies import write_answer

PIXEL = bytes.fromhex(
    '89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63f8cfc0f01f00050001'
    '010c5c9d3d0000000049454e44ae426082'
)
WEATHER = ToolDefinition(
    name='weather',
    description='The weather in a city.',
    parameters_json_schema={
        'type': 'object',
        'properties': {'city': {'type': 'string'}, 'stream': {'type': 'boolean'}},
        'required': ['city', 'stream'],
        'additionalProperties': False,
    },
)
ANSWER = ToolDefinition(
    name='final_result',
    parameters_json_schema={
        'type': 'object',
        'properties': {'score': {'type': 'integer'}},
        'required': ['score'],
        'additionalProperties': False,
    },
    kind='output',
)


def asked(*messages: ModelMessage | str, **changes: Any) -> BatchRequest:
    return BatchRequest(
        custom_id='a',
        messages=[
            ModelRequest.user_text_prompt(message) if isinstance(message, str) else message for message in messages
        ],
        **changes,
    )


def prepared(model: Model, request: BatchRequest) -> BatchRequest:
    """The request as an agent, or a list call, hands it to the model."""
    messages = model.prepare_messages(list(request.messages), request.model_request_parameters)
    return replace(request, messages=messages)


def parameters(**changes: Any) -> ModelRequestParameters:
    return ModelRequestParameters(**changes)


CALLED = ModelResponse(
    parts=[TextPart('Let me look.'), ToolCallPart('weather', {'city': 'Rome', 'stream': True}, 'call_1')]
)
REQUESTS: dict[str, BatchRequest] = {
    'text': asked('hello'),
    'text with every kind of character': asked('"stream": true \\ \u2028 \x85 ü € 🙂 \x00'),
    'system prompt': asked(ModelRequest(parts=[SystemPromptPart('Be brief.'), UserPromptPart('hello')])),
    'instructions': asked(
        ModelRequest(parts=[UserPromptPart('hello')], instructions='Be brief.'),
        model_request_parameters=parameters(instruction_parts=[InstructionPart(content='Be brief.')]),
    ),
    'conversation': asked('hello', ModelResponse(parts=[TextPart('hi')]), 'and now?'),
    'tools': asked('hello', model_request_parameters=parameters(function_tools=[WEATHER])),
    'output tool': asked(
        'hello',
        model_request_parameters=parameters(
            function_tools=[WEATHER], output_mode='tool', output_tools=[ANSWER], allow_text_output=False
        ),
    ),
    'native output': asked(
        'hello',
        model_request_parameters=parameters(
            output_mode='native',
            output_object=OutputObjectDefinition(
                name='Answer', description='The answer.', json_schema=ANSWER.parameters_json_schema
            ),
        ),
    ),
    'tool return': asked(
        'hello',
        CALLED,
        ModelRequest(parts=[ToolReturnPart('weather', {'sunny': [True, None, 1.5]}, 'call_1')]),
        model_request_parameters=parameters(function_tools=[WEATHER]),
    ),
    'tool retry': asked(
        'hello',
        CALLED,
        ModelRequest(parts=[ToolReturnPart('weather', 'no such city', 'call_1', outcome='retried')]),
        model_request_parameters=parameters(function_tools=[WEATHER]),
    ),
    'output retry': asked(
        'hello',
        ModelResponse(parts=[TextPart('no')]),
        ModelRequest(parts=[RetryFeedbackPart('Say yes.', retry=RetryInfo('validation_error'))]),
    ),
    'image': asked(
        ModelRequest(parts=[UserPromptPart(['What is this?', BinaryContent(PIXEL, media_type='image/png')])])
    ),
    'document': asked(
        ModelRequest(parts=[UserPromptPart([BinaryContent(b'%PDF-1.4', media_type='application/pdf'), 'Read it.'])])
    ),
    'image by its address': asked(
        ModelRequest(parts=[UserPromptPart(['Look.', ImageUrl('https://images.test/a.png')])])
    ),
    'general settings': asked(
        'hello',
        model_settings=ModelSettings(temperature=0.5, top_p=0.9, max_tokens=100, parallel_tool_calls=False),
        model_request_parameters=parameters(function_tools=[WEATHER]),
    ),
    'tool choice': asked(
        'hello',
        model_settings=ModelSettings(tool_choice=['weather']),
        model_request_parameters=parameters(function_tools=[WEATHER]),
    ),
    'thinking': asked('hello', model_settings=ModelSettings(thinking='low', max_tokens=20_000)),
    'extra body': asked('hello', model_settings=ModelSettings(extra_body={'metadata': {'user_id': 'somebody'}})),
}


@pytest.fixture
async def make(fake: FakeProviders) -> AsyncIterator[Callable[..., Any]]:
    """Makes a model by its class, with a real SDK client that talks to the fakes and retries, as clients do."""
    closes: list[Callable[[], Any]] = []

    def make(cls: type[Model], name: str | None = None, *, max_retries: int = 5, **settings: Any) -> Model:
        if cls is GoogleModel:
            google = fake.google.client(http_options={'retry_options': {'attempts': max_retries + 1}})
            closes.append(google.aio.aclose)
            return GoogleModel(name or 'gemini-2.5-flash', provider=GoogleProvider(client=google), **settings)
        if cls is AnthropicModel:
            anthropic = fake.anthropic.client(max_retries=max_retries)
            closes.append(anthropic.close)
            provider = AnthropicProvider(anthropic_client=anthropic)
            return AnthropicModel(name or 'claude-haiku-4-5', provider=provider, **settings)
        openai = fake.openai.client(max_retries=max_retries)
        closes.append(openai.close)
        made: Any = cls
        return made(name or 'gpt-4.1-mini', provider=OpenAIProvider(openai_client=openai), **settings)

    yield make
    for close in closes:
        await close()


Make = Callable[..., Any]


def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the requests that any SDK makes from now on, one for each attempt."""
    paths: list[str] = []
    build = httpx2.AsyncClient.build_request

    def build_request(self: httpx2.AsyncClient, *args: Any, **kwargs: Any) -> httpx2.Request:
        request = build(self, *args, **kwargs)
        paths.append(request.url.path)
        return request

    monkeypatch.setattr(httpx2.AsyncClient, 'build_request', build_request)
    return paths


# What is captured


@pytest.mark.parametrize('name', REQUESTS)
@pytest.mark.parametrize('cls', [OpenAIResponsesModel, AnthropicModel, GoogleModel])
async def test_what_is_captured_is_what_the_framework_encodes(
    cls: type[Model], name: str, make: Make, fake: FakeProviders
):
    model: Model = make(cls, 'gpt-5-mini' if name == 'thinking' and cls is OpenAIResponsesModel else None)
    request = REQUESTS[name]
    if cls is GoogleModel and name == 'extra body':
        request = replace(request, model_settings=GoogleModelSettings(google_labels={'team': 'a'}))
    if cls is GoogleModel and name == 'image by its address':
        request = asked(ModelRequest(parts=[UserPromptPart([VideoUrl('https://youtu.be/lCdaVNyHtjU'), 'Watch it.'])]))
    if cls is GoogleModel and name == 'general settings':
        request = replace(request, model_settings=ModelSettings(temperature=0.5, top_p=0.9, top_k=3, max_tokens=100))
    request = prepared(model, request)
    path, body = await capture(model, request)
    assert json.loads(body) == json.loads((await model.batch_encode(request)).body)
    ending = {GoogleModel: ':generateContent', AnthropicModel: '/v1/messages', OpenAIResponsesModel: '/responses'}[cls]
    assert path.endswith(ending)
    assert fake.calls == []


@pytest.mark.parametrize(
    ('cls', 'name', 'settings'),
    [
        (
            OpenAIResponsesModel,
            'gpt-5-mini',
            OpenAIResponsesModelSettings(
                openai_reasoning_effort='high',
                openai_reasoning_summary='detailed',
                openai_text_verbosity='low',
                openai_store=False,
                openai_user='somebody',
            ),
        ),
        (
            AnthropicModel,
            'claude-haiku-4-5',
            AnthropicModelSettings(
                anthropic_thinking={'type': 'enabled', 'budget_tokens': 2048},
                anthropic_metadata={'user_id': 'somebody'},
                anthropic_cache_instructions=True,
                max_tokens=4096,
            ),
        ),
        (AnthropicModel, 'claude-haiku-4-5', AnthropicModelSettings(max_tokens=100, stop_sequences=['END'])),
        (
            GoogleModel,
            'gemini-2.5-flash',
            GoogleModelSettings(
                google_thinking_config={'thinking_budget': 1024, 'include_thoughts': True},
                seed=7,
                stop_sequences=['END'],
                presence_penalty=0.5,
            ),
        ),
    ],
    ids=['responses', 'anthropic', 'anthropic without a stream', 'google'],
)
async def test_what_is_captured_has_the_settings_that_only_one_provider_knows(
    cls: type[Model], name: str, settings: ModelSettings, make: Make
):
    request = replace(REQUESTS['instructions'], model_settings=settings)
    _, body = await capture(make(cls, name), request)
    encoded = json.loads((await make(cls, name).batch_encode(request)).body)
    assert json.loads(body) == encoded
    assert encoded != json.loads((await make(cls, name).batch_encode(REQUESTS['instructions'])).body)


async def test_a_live_anthropic_request_streams_and_a_captured_one_does_not(make: Make, fake: FakeProviders):
    model = make(AnthropicModel)
    await model.request(REQUESTS['text'].messages, None, parameters())
    live = json.loads(fake.calls[0].body)
    _, body = await capture(model, REQUESTS['text'])
    assert live.pop('stream') is True
    assert json.loads(body) == live


async def test_a_captured_chat_request_is_the_live_one(make: Make, fake: FakeProviders):
    model = make(OpenAIChatModel)
    for name, request in REQUESTS.items():
        if name == 'thinking':
            continue
        request = prepared(model, request)
        encoded = await lane_for(model).encode(request)
        await model.request(request.messages, request.model_settings, request.model_request_parameters)
        live = json.loads(fake.calls[-1].body)
        assert live.pop('stream') is False
        assert json.loads(encoded.body) == live
        assert encoded.custom_id == request.custom_id
    assert len(fake.calls) == len(REQUESTS) - 1


async def test_a_models_own_settings_are_in_what_is_captured(make: Make):
    model = make(OpenAIChatModel, settings=ModelSettings(temperature=0.25, max_tokens=7))
    body = json.loads((await lane_for(model).encode(asked('x', model_settings={'max_tokens': 9}))).body)
    assert (body['temperature'], body['max_completion_tokens']) == (0.25, 9)


# What is replayed: errors

OPENAI_ERRORS = {
    'bad request': FakeError(400, 'invalid_prompt', 'no'),
    'context overflow': FakeError(400, 'context_length_exceeded', "This model's maximum context length is 9 tokens."),
    'bad key': FakeError(401, 'invalid_api_key', 'who?'),
    'forbidden': FakeError(403, 'unsupported_country', 'not there'),
    'timeout': FakeError(408, None, 'too slow'),
    'conflict': FakeError(409, None, 'in use'),
    'rate limit': FakeError(429, 'rate_limit_exceeded', 'slow down'),
    'quota': FakeError(429, 'insufficient_quota', 'pay first', type='insufficient_quota'),
    'server error': FakeError(500, 'server_error', 'oh no'),
    'unavailable': FakeError(503, None, 'later'),
    'overloaded': FakeError(529, None, 'too many'),
}
ANTHROPIC_ERRORS = {
    **{name: replace(error, code=None, type=None) for name, error in OPENAI_ERRORS.items()},
    'context overflow': FakeError(400, None, 'prompt is too long: 9 tokens > 8 maximum'),
    'quota': FakeError(402, None, 'pay first', type='billing_error'),
}
GOOGLE_ERRORS = {
    **{name: replace(error, code=None, type=None) for name, error in OPENAI_ERRORS.items() if name != 'quota'},
    'context overflow': FakeError(
        400, None, 'The input token count (9) exceeds the maximum number of tokens allowed (8).'
    ),
}


def anthropic_body(error: FakeError) -> dict[str, Any]:
    return anthropic_error(error, 'req_1')


ERRORS = [
    *[(OpenAIChatModel, error, openai_error, name) for name, error in OPENAI_ERRORS.items()],
    *[(OpenAIResponsesModel, error, openai_error, name) for name, error in OPENAI_ERRORS.items()],
    *[(AnthropicModel, error, anthropic_body, name) for name, error in ANTHROPIC_ERRORS.items()],
    *[(GoogleModel, error, google_answers.error_body, name) for name, error in GOOGLE_ERRORS.items()],
]


def told(error: ModelHTTPError) -> tuple[object, ...]:
    """All that a program can go by."""
    return (
        type(error),
        error.status_code,
        error.provider_error_code,
        error.provider_error_type,
        error.model_name,
    )


@pytest.mark.parametrize(
    ('cls', 'error', 'body'),
    [case[:3] for case in ERRORS],
    ids=[f'{cls.__name__}-{name}' for cls, _, _, name in ERRORS],
)
async def test_a_replayed_error_is_the_live_one_and_sent_once(
    cls: type[Model],
    error: FakeError,
    body: Callable[[FakeError], dict[str, Any]],
    make: Make,
    fake: FakeProviders,
    monkeypatch: pytest.MonkeyPatch,
):
    fake.answer = lambda request: error
    model: Model = make(cls)
    with pytest.raises(ModelHTTPError) as live:
        # Its own client would send it again and again.
        await make(cls, max_retries=0).request(REQUESTS['text'].messages, None, parameters())
    assert len(fake.calls) == 1
    paths = built(monkeypatch)
    with pytest.raises(ModelHTTPError) as replayed:
        await replay(model, REQUESTS['text'], error.status, json.dumps(body(error)).encode())
    assert told(replayed.value) == told(live.value)
    assert error.message in str(replayed.value)
    assert len(paths) == 1
    assert len(fake.calls) == 1


async def test_the_errors_of_a_chat_batch_are_the_live_ones(make: Make, fake: FakeProviders, clock: ManualClock):
    fake.answer = lambda request: OPENAI_ERRORS[request.text]
    model = make(OpenAIChatModel)
    requests = [replace(asked(name), custom_id=name) for name in OPENAI_ERRORS]
    outcomes = await clock.run(model_request_batch(model, requests, max_resubmissions=0, clock=clock))
    assert fake.openai.count('live') == 0
    once = make(OpenAIChatModel, max_retries=0)
    for name, outcome in zip(OPENAI_ERRORS, outcomes, strict=True):
        with pytest.raises(ModelHTTPError) as live:
            await once.request(asked(name).messages, None, parameters())
        assert isinstance(outcome, ModelHTTPError)
        assert told(outcome) == told(live.value)
        assert outcome.body == live.value.body
        assert str(outcome) == str(live.value)
    by_name = dict(zip(OPENAI_ERRORS, outcomes, strict=True))
    assert isinstance(by_name['context overflow'], ModelContextWindowExceededError)
    assert isinstance(by_name['forbidden'], ModelAuthenticationError)
    assert isinstance(by_name['rate limit'], ModelRateLimitError)
    assert isinstance(by_name['quota'], ModelQuotaExceededError)
    assert not isinstance(by_name['rate limit'], ModelQuotaExceededError)


async def test_retries_that_a_request_asks_for_are_not_made(make: Make, monkeypatch: pytest.MonkeyPatch):
    model = make(OpenAIChatModel)
    lane = lane_for(model)
    request = asked('hello', model_settings={'max_retries': 5})
    paths = built(monkeypatch)
    encoded = await lane.encode(request)
    assert 'max_retries' not in encoded.body
    for status in (408, 409, 429, 500, 503, 529):
        result = BatchResult(custom_id='a', status='errored', body=error_body(status, {'error': {'message': 'm'}}))
        with pytest.raises(ModelHTTPError):
            await lane.decode(result, request)
    assert paths == ['/openai/v1/chat/completions'] * 7


@pytest.mark.parametrize('status', ['expired', 'canceled'])
async def test_a_request_that_was_not_run_is_an_error_without_a_replay(
    status: Any, make: Make, monkeypatch: pytest.MonkeyPatch
):
    paths = built(monkeypatch)
    with pytest.raises(ModelAPIError, match=status) as raised:
        await lane_for(make(OpenAIChatModel)).decode(BatchResult(custom_id='a', status=status), asked('x'))
    assert not isinstance(raised.value, ResultUnreadable | ModelHTTPError)
    assert paths == []


# What is replayed: answers


def completion(text: str, **changes: Any) -> dict[str, Any]:
    return {
        'id': 'chatcmpl-1',
        'object': 'chat.completion',
        'created': 1_900_000_000,
        'model': 'gpt-4.1-mini-2025-04-14',
        'choices': [
            {
                'index': 0,
                'message': {'role': 'assistant', 'content': text, 'refusal': None},
                'finish_reason': 'stop',
                'logprobs': None,
            }
        ],
        'usage': {'prompt_tokens': 11, 'completion_tokens': 7, 'total_tokens': 18},
        **changes,
    }


def answered(text: str, **changes: Any) -> BatchResult:
    return BatchResult(custom_id='a', status='succeeded', body=json.dumps(completion(text, **changes)))


@pytest.mark.parametrize('name', ['text', 'tools', 'output tool', 'native output', 'tool return'])
async def test_a_replayed_answer_is_the_live_one_at_the_batch_price(name: str, make: Make, fake: FakeProviders):
    model, request = make(OpenAIChatModel), REQUESTS[name]
    bodies: list[dict[str, Any]] = []

    def answer(asking: FakeRequest) -> Any:
        given: Any = auto_answer(asking)
        bodies.append(write_answer(asking, given, 100, now=1_900_000_000))
        return bodies[-1]

    fake.answer = answer
    live = await model.request(request.messages, request.model_settings, request.model_request_parameters)
    result = BatchResult(custom_id='a', status='succeeded', body=json.dumps(bodies[0]))
    batched = await lane_for(model).decode(result, request)
    details = {**(live.provider_details or {}), 'processing': 'batch'}
    assert replace(batched, timestamp=live.timestamp) == replace(live, provider_details=details)
    assert batched.usage.input_tokens > 0
    assert batched.finish_reason in ('stop', 'tool_call')


# Threads and loops


async def _through(lane: Lane, texts: list[str]) -> list[str | None]:
    """Each text's way through the codec, all at once; every third is an error that quotes it."""

    async def one(number: int, text: str) -> str | None:
        request = asked(f'question {text}')
        assert f'question {text}"' in (await lane.encode(request)).body
        if number % 3:
            return (await lane.decode(answered(text), request)).text
        error = BatchResult(custom_id='a', status='errored', body=error_body(400, {'error': {'message': f'<{text}>'}}))
        with pytest.raises(ModelHTTPError) as raised:
            await lane.decode(error, request)
        return str(raised.value).partition('<')[2].partition('>')[0]

    return await asyncio.gather(*[one(number, text) for number, text in enumerate(texts)])


def test_answers_are_not_mixed_up_between_threads_and_event_loops(fake: FakeProviders):
    client = fake.openai.client()
    model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=client))
    texts = {thread: [f'{thread}-{number}' for number in range(30)] for thread in range(4)}
    got: dict[int, list[str | None]] = {}
    together = threading.Barrier(len(texts))

    def work(thread: int) -> None:
        together.wait()
        # A lane of its own, as each call makes one, of the one model.
        got[thread] = asyncio.run(_through(lane_for(model), texts[thread]))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == texts


def test_a_model_serves_one_event_loop_after_another(fake: FakeProviders):
    client = fake.openai.client()
    model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=client))
    lane = lane_for(model)
    for run in ('first', 'second', 'third'):
        assert asyncio.run(_through(lane, [f'{run}-{number}' for number in range(4)])) == [
            f'{run}-{number}' for number in range(4)
        ]


# The user's model and client


@pytest.mark.parametrize('cls', [OpenAIChatModel, OpenAIResponsesModel, AnthropicModel, GoogleModel])
async def test_the_model_and_its_client_are_left_as_they_were(cls: type[Model], make: Make, fake: FakeProviders):
    model = make(cls)
    client, kind, state, provider = model.client, type(model), dict(vars(model)), model.provider
    settings = dict(vars(client))
    await capture(model, REQUESTS['tools'])
    with pytest.raises(ModelHTTPError):
        await replay(model, REQUESTS['tools'], 500, b'{"error":{"message":"no"}}')
    assert model.client is client
    assert type(model) is kind
    assert model.provider is provider
    assert vars(model) == state
    assert vars(client).keys() == settings.keys()
    assert all(vars(client)[name] is value for name, value in settings.items())
    assert fake.calls == []
    response = await model.request(REQUESTS['text'].messages, None, parameters())
    assert response.text == 'Answer to: hello'
    assert len(fake.calls) == 1


async def test_a_subclass_of_a_model_captures_with_its_own_mapping(fake: FakeProviders, model_of: ModelOf):
    class Shouting(OpenAIChatModel):
        def prepare_messages(self, messages: list[ModelMessage], *args: Any, **kwargs: Any) -> list[ModelMessage]:
            return super().prepare_messages(messages, *args, **kwargs)

        async def request(self, messages: list[ModelMessage], *args: Any, **kwargs: Any) -> ModelResponse:
            response = await super().request(messages, *args, **kwargs)
            return replace(response, parts=[TextPart((response.text or '').upper())])

    model = Shouting('gpt-4.1-mini', provider=OpenAIProvider(openai_client=model_of(fake).client))
    lane = lane_for(model)
    assert (await lane.decode(answered('quiet'), asked('x'))).text == 'QUIET'


async def test_shadows_are_dropped_with_their_model(fake: FakeProviders, model_of: ModelOf):
    copies: list[weakref.ref[Any]] = []

    class Client(AsyncOpenAI):
        """Tells of the copies that are made of it."""

        def copied(self, **options: Any) -> AsyncOpenAI:
            made = AsyncOpenAI.copy(self, **options)
            copies.append(weakref.ref(made))
            return made

        copy: Any = copied
        with_options: Any = copied

    client = Client(api_key='test', base_url=fake.openai.base_url, max_retries=0)
    model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=client))
    alive = weakref.ref(model)
    await capture(model, asked('x'))
    await capture(model, asked('y'))
    assert [made() is not None for made in copies] == [True]
    del model
    gc.collect()
    assert alive() is None
    assert [made() for made in copies] == [None]
    await client.close()


async def test_a_shadow_is_renewed_when_the_client_is_exchanged(fake: FakeProviders, model_of: ModelOf):
    """As by a provider that is pointed elsewhere, or is given another client, while the program runs."""
    provider = OpenAIProvider(openai_client=model_of(fake).client)
    model = OpenAIChatModel('gpt-4.1-mini', provider=provider)
    assert (await capture(model, asked('x')))[0] == '/openai/v1/chat/completions'
    elsewhere = AsyncOpenAI(api_key='test', base_url='http://elsewhere.test/other')
    provider._client = elsewhere
    assert model.client is elsewhere
    path, _ = await capture(model, asked('x'))
    assert path == '/other/chat/completions'
    await elsewhere.close()


# Instrumentation


class Observed(AsyncOpenAI):
    """A client that notes whether an instrumentation of it, or of what is below it, would be silent."""

    def __init__(self, seen: list[tuple[str, bool]], **settings: Any) -> None:
        super().__init__(**settings)
        self.seen = seen

    def copied(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI.copy(self, **options, _extra_kwargs={'seen': self.seen})

    copy: Any = copied
    with_options: Any = copied

    async def _prepare_request(self, request: httpx2.Request) -> None:
        self.seen.append((request.url.path, bool(otel.get_value('suppress_instrumentation'))))


async def test_instrumentation_is_suppressed_while_capturing_and_replaying_and_only_then(fake: FakeProviders):
    seen: list[tuple[str, bool]] = []
    client = Observed(seen, api_key='test', base_url=fake.openai.base_url, max_retries=0)
    model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=client))
    lane = lane_for(model)
    await lane.encode(asked('x'))
    await lane.decode(answered('y'), asked('x'))
    assert not otel.get_value('suppress_instrumentation')
    with pytest.raises(ModelHTTPError):
        await lane.decode(
            BatchResult(custom_id='a', status='errored', body=error_body(500, {'error': {'message': 'no'}})), asked('x')
        )
    assert not otel.get_value('suppress_instrumentation')
    await model.request(asked('x').messages, None, parameters())
    path = '/openai/v1/chat/completions'
    assert seen == [(path, True), (path, True), (path, True), (path, False)]
    await client.close()


@contextmanager
def instrumented() -> Generator[None]:
    with logfire.instrument_openai(AsyncOpenAI), logfire.instrument_anthropic(AsyncAnthropic):
        yield


def spent(capfire: CaptureLogfire) -> int:
    """The output tokens that all spans together say were spent."""
    spans = capfire.exporter.exported_spans_as_dict()
    return sum(span['attributes'].get('gen_ai.usage.output_tokens', 0) for span in spans)


async def test_an_instrumented_sdk_counts_no_usage_of_what_is_replayed(
    fake: FakeProviders, model_of: ModelOf, capfire: CaptureLogfire
):
    with instrumented():
        model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=model_of(fake).client))
        live = await model.request(asked('x').messages, None, parameters())
        assert spent(capfire) == live.usage.output_tokens
        capfire.exporter.clear()
        lane = lane_for(model)
        await lane.encode(asked('x'))
        assert (await lane.decode(answered('y'), asked('x'))).usage.output_tokens == 7
        assert capfire.exporter.exported_spans_as_dict() == []


async def test_a_batched_run_counts_its_usage_once(
    fake: FakeProviders, model_of: ModelOf, clock: ManualClock, capfire: CaptureLogfire
):
    with instrumented():
        model = OpenAIChatModel('gpt-4.1-mini', provider=OpenAIProvider(openai_client=model_of(fake).client))
        agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
        agent.instrument = InstrumentationSettings()
        result = await clock.run(agent.run('hello'))
    spans = capfire.exporter.exported_spans_as_dict()
    chats = [span for span in spans if span['name'].startswith('chat')]
    assert (
        sum(span['attributes'].get('gen_ai.usage.output_tokens', 0) for span in chats) == result.usage.output_tokens > 0
    )
    assert [span['name'] for span in spans if 'Chat Completion' in span['name']] == []


# The stub history


@pytest.fixture
def images() -> Iterator[tuple[str, list[str]]]:
    """A server of one image, and the requests it got."""
    got: list[str] = []

    def show(request: Any) -> Response:
        got.append(request.url.path)
        return Response(PIXEL, media_type='image/png')

    server = LoopbackServer(Starlette(routes=[Route('/{name}', show)]))
    server.start()
    yield f'http://127.0.0.1:{server.port}/a.png', got
    server.stop()


async def test_what_a_history_links_to_is_downloaded_once(make: Make, images: tuple[str, list[str]]):
    address, got = images
    request = asked(
        ModelRequest(parts=[UserPromptPart(['Look.', ImageUrl(address, force_download='allow-local')])]),
    )
    lane = lane_for(make(OpenAIChatModel))
    body = json.loads((await lane.encode(request)).body)
    assert body['messages'][0]['content'][1]['image_url']['url'].startswith('data:image/png;base64,')
    assert got == ['/a.png']
    assert (await lane.decode(answered('a pixel'), request)).text == 'a pixel'
    assert got == ['/a.png']


async def test_an_answer_is_read_whatever_the_history_holds(make: Make):
    request = asked(ModelRequest(parts=[UserPromptPart([AudioUrl('https://gone.test/a.mp3')])]))
    assert (await lane_for(make(OpenAIChatModel)).decode(answered('y'), request)).text == 'y'


async def test_tools_and_output_of_the_real_request_shape_how_its_answer_is_read(make: Make):
    call = {'id': 'call_9', 'type': 'function', 'function': {'name': 'final_result', 'arguments': '{"score":3}'}}
    choice = {'index': 0, 'message': {'role': 'assistant', 'tool_calls': [call]}, 'finish_reason': 'tool_calls'}
    request = REQUESTS['output tool']
    response = await lane_for(make(OpenAIChatModel)).decode(answered('', choices=[choice]), request)
    (part,) = [part for part in response.parts if isinstance(part, ToolCallPart)]
    assert (part.tool_name, part.tool_call_id, part.args_as_dict()) == ('final_result', 'call_9', {'score': 3})


# What cannot be read or written


@pytest.mark.parametrize(
    ('status', 'body'),
    [
        ('succeeded', 'not json'),
        ('succeeded', ''),
        ('succeeded', None),
        ('succeeded', '[]'),
        ('succeeded', 'null'),
        ('succeeded', '7'),
        ('succeeded', '{}'),
        ('succeeded', '{"choices":[]}'),
        ('succeeded', json.dumps(completion('x', choices=None))),
        ('succeeded', json.dumps(completion('x', choices=[{'message': None}]))),
        ('succeeded', json.dumps(completion('x', choices='many'))),
        ('succeeded', '{"choices":[{"message":{"content":"\\ud800"'),
        ('errored', None),
        ('errored', ''),
        ('errored', 'not json'),
        ('errored', '[]'),
        ('errored', '{}'),
        ('errored', '{"status_code":"many","body":{}}'),
    ],
)
async def test_an_odd_body_is_unreadable_and_kept(status: Any, body: str | None, make: Make):
    result = BatchResult(custom_id='a', status=status, body=body)
    with pytest.raises(ResultUnreadable) as raised:
        await lane_for(make(OpenAIChatModel)).decode(result, asked('x'))
    assert raised.value.body == body
    assert raised.value.model_name == 'gpt-4.1-mini'


async def test_a_lone_surrogate_in_an_answer_is_read(make: Make):
    body = json.dumps(completion('half')).replace('"half"', '"\\ud800"')
    result = BatchResult(custom_id='a', status='succeeded', body=body)
    assert (await lane_for(make(OpenAIChatModel)).decode(result, asked('x'))).text == '\ud800'


@pytest.mark.parametrize('body', ['Bad gateway', '', None, [], {}, {'error': None}, {'error': 'words'}, 7])
async def test_an_error_body_of_any_shape_is_an_error_of_its_status(body: Any, make: Make):
    result = BatchResult(custom_id='a', status='errored', body=error_body(502, body))
    with pytest.raises(ModelHTTPError) as raised:
        await lane_for(make(OpenAIChatModel)).decode(result, asked('x'))
    assert raised.value.status_code == 502


@pytest.mark.parametrize('cls', [OpenAIChatModel, OpenAIResponsesModel, AnthropicModel, GoogleModel])
async def test_a_lone_surrogate_cannot_be_sent_and_says_so(cls: type[Model], make: Make, fake: FakeProviders):
    with pytest.raises(RequestNotSendable) as raised:
        await lane_for(make(cls)).encode(asked('half a pair: \ud800'))
    assert raised.value.model_name
    assert fake.calls == []


@pytest.mark.parametrize('setting', [{'timeout': 5}, {'extra_headers': {'x-team': 'a'}}, {'extra_body': {'stream': 1}}])
async def test_settings_that_a_batch_cannot_honour_are_refused_by_name(setting: Any, make: Make, fake: FakeProviders):
    for model in (make(OpenAIChatModel), make(OpenAIChatModel, settings=setting)):
        with pytest.raises(UserError, match=next(iter(setting)).replace('extra_body', 'stream')):
            await lane_for(model).encode(asked('x', model_settings=setting if model.settings is None else None))
    assert fake.calls == []


async def test_what_the_mapping_cannot_write_is_not_sendable_for_the_live_reason(make: Make, fake: FakeProviders):
    request = asked(ModelRequest(parts=[UserPromptPart(['Watch.', VideoUrl('https://videos.test/a.mp4')])]))
    model = make(OpenAIChatModel)
    with pytest.raises(NotImplementedError) as live:
        await model.request(request.messages, None, parameters())
    with pytest.raises(RequestNotSendable, match='VideoUrl') as captured:
        await lane_for(model).encode(request)
    assert isinstance(captured.value.__cause__, NotImplementedError)
    assert str(captured.value.__cause__) == str(live.value)
    assert fake.calls == []


async def test_a_user_error_of_the_mapping_passes_through(make: Make, fake: FakeProviders):
    model, request = make(OpenAIChatModel), REQUESTS['output retry']
    with pytest.raises(UserError, match='prepare_messages') as live:
        await model.request(request.messages, None, parameters())
    with pytest.raises(UserError) as captured:
        await lane_for(model).encode(request)
    assert type(captured.value) is UserError
    assert str(captured.value) == str(live.value)
    assert fake.calls == []


# Wrapped models


class Tagged(WrapperModel):
    """A wrapper of somebody else's, which does nothing."""


@pytest.mark.parametrize(
    'wrap',
    [
        lambda model: InstrumentedModel(model, InstrumentationSettings()),
        Tagged,
        lambda model: Tagged(InstrumentedModel(Tagged(model), InstrumentationSettings())),
    ],
    ids=['instrumented', 'wrapped', 'both'],
)
async def test_a_wrapped_model_is_captured_and_replayed_as_the_model_in_it(
    wrap: Callable[[Model], Model], make: Make, clock: ManualClock, fake: FakeProviders
):
    model = make(OpenAIChatModel)
    wrapped = wrap(model)
    plain, through = lane_for(model), lane_for(wrapped)
    assert await through.encode(REQUESTS['tools']) == await plain.encode(REQUESTS['tools'])
    assert (await through.decode(answered('y'), asked('x'))).text == 'y'
    (outcome,) = await clock.run(model_request_batch(wrapped, [asked('hello')], clock=clock))
    assert isinstance(outcome, ModelResponse)
    assert outcome.text == 'Answer to: hello'
    assert (fake.openai.count('create'), fake.openai.count('live')) == (1, 0)


async def test_an_agents_dependencies_and_tools_go_through_a_replayed_model(
    make: Make, fake: FakeProviders, clock: ManualClock
):
    seen: list[object] = []
    agent = Agent(make(OpenAIChatModel), deps_type=str, capabilities=[BatchModelRequests(clock=clock)])

    @agent.tool
    def lookup(ctx: RunContext[str], name: str) -> str:
        seen.append((ctx.deps, bool(otel.get_value('suppress_instrumentation'))))
        return f'{name} is known'

    result = await clock.run(agent.run('hello', deps='dependency'))
    assert result.output == 'Answer to: hello'
    assert seen == [('dependency', False)]
    assert fake.openai.count('live') == 0
