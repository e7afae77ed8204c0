from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Literal

import pytest
from google.genai.client import AsyncClient
from google.genai.errors import APIError
from google.genai.types import HttpOptions
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.providers.google import GoogleProvider

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock
from pydantic_ai_batch.testing.google_bodies import read_request

from .test_fake_google_batches import MODEL, call, request_of, submit_file


class Ticket(BaseModel):
    title: str = Field(max_length=20)
    priority: Literal['low', 'high']
    tags: list[str] = Field(min_length=1)
    parent: Ticket | None = None


@pytest.fixture
async def google(fake: FakeProviders) -> AsyncIterator[AsyncClient]:
    async with fake.google.client().aio as client:
        yield client


@pytest.fixture
async def model(fake: FakeProviders) -> AsyncIterator[GoogleModel]:
    client = fake.google.client()
    async with client.aio:
        yield GoogleModel(MODEL, provider=GoogleProvider(client=client))


def asked(body: dict[str, Any]) -> Any:
    return read_request(request_of('hello') | body)


def tool(name: str, **schema: Any) -> dict[str, Any]:
    return {'functionDeclarations': [{'name': name, **schema}]}


@pytest.mark.parametrize('output', [Ticket, NativeOutput(Ticket), ToolOutput(Ticket), str])
async def test_an_agent_gets_the_output_that_it_asks_for(model: GoogleModel, output: Any) -> None:
    agent = Agent(model, output_type=output)
    result = await agent.run('A broken lamp')
    assert result.output == 'Answer to: A broken lamp' if output is str else isinstance(result.output, Ticket)
    assert result.output == (await agent.run('A broken lamp')).output
    assert result.usage.input_tokens
    assert result.usage.output_tokens


async def test_an_agent_goes_through_one_round_of_its_tools(fake: FakeProviders, model: GoogleModel) -> None:
    agent = Agent(model, output_type=Ticket)

    @agent.tool_plain
    def look_up(number: int) -> str:
        return f'row {number}'

    result = await agent.run('A broken lamp')
    calls = [part for message in result.all_messages() for part in message.parts if isinstance(part, ToolCallPart)]
    assert [call.tool_name for call in calls] == ['look_up', 'final_result']
    assert fake.google.count('live') == 2


async def test_a_call_has_no_id(fake: FakeProviders) -> None:
    fake.answer = lambda request: FakeToolCall('look_up', {'number': 1})
    reply = (await call(fake, f'/v1beta/models/{MODEL}:generateContent', request_of('a'))).json()
    part = reply['candidates'][0]['content']['parts'][0]
    assert part == {'functionCall': {'name': 'look_up', 'args': {'number': 1}}}
    assert reply['candidates'][0]['finishReason'] == 'STOP'
    assert reply['modelVersion'] == MODEL


async def test_json_without_a_schema_is_json(google: AsyncClient, model: GoogleModel) -> None:
    reply = await google.models.generate_content(
        model=MODEL, contents='hello', config={'response_mime_type': 'application/json'}
    )
    assert isinstance(json.loads(reply.text or ''), dict)

    class Anything(BaseModel):
        note: str | None = None

    assert isinstance((await Agent(model, output_type=PromptedOutput(Anything)).run('a')).output, Anything)


async def test_a_schema_of_googles_own_kind_is_satisfied_too(google: AsyncClient) -> None:
    class Row(BaseModel):
        name: str = Field(max_length=3)
        numbers: list[int] = Field(min_length=2)
        kind: Literal['a', 'b'] | None

    reply = await google.models.generate_content(
        model=MODEL,
        contents='hello',
        config={'response_mime_type': 'application/json', 'response_schema': Row},
    )
    Row.model_validate_json(reply.text or '')


def test_what_a_body_asks_for_is_read_in_either_spelling() -> None:
    schema = {
        'type': 'OBJECT',
        'properties': {
            'type': {'type': 'STRING', 'nullable': True, 'max_length': '5'},
            'items': {'type': 'ARRAY', 'minItems': '1', 'items': {'anyOf': [{'type': 'INTEGER'}, {'type': 'NUMBER'}]}},
        },
        'required': ['type', 'items'],
    }
    read = {
        'type': 'object',
        'properties': {
            'type': {'anyOf': [{'type': 'string', 'maxLength': 5}, {'type': 'null'}]},
            'items': {'type': 'array', 'minItems': 1, 'items': {'anyOf': [{'type': 'integer'}, {'type': 'number'}]}},
        },
        'required': ['type', 'items'],
    }
    assert asked({'generationConfig': {'responseSchema': schema}}).output_schema == read
    assert asked({'generation_config': {'response_schema': schema}}).output_schema == read
    assert asked({'generation_config': {'response_json_schema': read}}).output_schema == read
    snake = {'function_declarations': [{'name': 'a', 'parameters_json_schema': read}]}
    for tools in tool('a', parameters=schema), tool('a', parametersJsonSchema=read), snake:
        assert [(each.name, each.parameters) for each in asked({'tools': [tools]}).tools] == [('a', read)]
    assert asked({'tools': [tool('a'), {'googleSearch': {}}]}).tools[0].parameters == {}


def test_tools_are_forced_forbidden_or_picked_by_their_mode() -> None:
    tools = {'tools': [tool('a'), tool('b')]}

    def config(mode: str, *names: str) -> Any:
        return asked(tools | {'toolConfig': {'functionCallingConfig': {'mode': mode, 'allowedFunctionNames': names}}})

    for mode, names, left, forced in (
        ('AUTO', [], ['a', 'b'], None),
        ('NONE', [], [], None),
        ('ANY', [], ['a', 'b'], '*'),
        ('ANY', ['b'], ['b'], 'b'),
        ('VALIDATED', ['b'], ['b'], None),
    ):
        read = config(mode, *names)
        assert ([each.name for each in read.tools], read.forced_tool) == (left, forced)


def test_the_text_is_the_last_that_a_user_says() -> None:
    function = {'functionResponse': {'name': 'a', 'response': {}}}
    contents = [
        {'parts': [{'text': 'first'}]},
        {'role': 'user', 'parts': [{'text': 'second'}, {'inlineData': {'data': ''}}, {'text': 'third'}]},
        {'role': 'model', 'parts': [{'text': 'I think'}, {'functionCall': {'name': 'a'}}]},
        {'role': 'user', 'parts': [function, function]},
    ]
    read = read_request({'contents': contents})
    assert (read.text, read.tool_results) == ('third', 2)
    assert read_request({}).text == ''


async def test_the_answer_function_sees_what_was_asked_and_where(
    fake: FakeProviders, google: AsyncClient, clock: ManualClock
) -> None:
    seen: list[FakeRequest] = []

    def answer(request: FakeRequest) -> str:
        seen.append(request)
        return 'ok'

    fake.answer = answer
    await google.models.generate_content(model=MODEL, contents='live')
    await submit_file(google, 'batched')
    await clock.advance(100)
    assert [row.text for row in fake.google.billed] == ['live', 'batched']
    assert [(request.provider, request.custom_id, request.model) for request in seen] == [
        ('google', None, MODEL),
        ('google', 'r1', MODEL),
    ]
    assert {request.endpoint for request in seen} == {f'/v1beta/models/{MODEL}:generateContent'}


@pytest.mark.parametrize('output', [Ticket, str])
async def test_answers_can_be_streamed(model: GoogleModel, output: Any) -> None:
    agent = Agent(model, output_type=output)
    async with agent.run_stream('hello') as stream:
        streamed = await stream.get_output()
    assert streamed == (await agent.run('hello')).output


async def test_a_stream_without_events_is_a_list(fake: FakeProviders) -> None:
    reply = await call(fake, f'/v1/models/{MODEL}:streamGenerateContent', request_of('a'))
    assert reply.json()[0]['candidates'][0]['content']['parts'] == [{'text': 'Answer to: a'}]


@pytest.mark.parametrize(
    ('error', 'status'),
    [
        (FakeError(400, None, 'No.'), 'INVALID_ARGUMENT'),
        (FakeError(400, 'FAILED_PRECONDITION', 'No.'), 'FAILED_PRECONDITION'),
        (FakeError(418, 'unknown', 'No.'), 'INVALID_ARGUMENT'),
        (FakeError(429, None, 'No.'), 'RESOURCE_EXHAUSTED'),
        (FakeError(503, None, 'No.'), 'UNAVAILABLE'),
        (FakeError(529, None, 'No.'), 'INTERNAL'),
    ],
)
async def test_errors_have_googles_shape(
    fake: FakeProviders, google: AsyncClient, model: GoogleModel, error: FakeError, status: str
) -> None:
    fake.answer = lambda request: error
    with pytest.raises(APIError) as caught:
        await google.models.generate_content(model=MODEL, contents='a')
    assert (caught.value.code, caught.value.status, caught.value.message) == (error.status, status, 'No.')
    with pytest.raises(ModelHTTPError):
        await Agent(model).run('a')


async def test_a_live_request_without_an_answer_or_without_contents_fails(fake: FakeProviders) -> None:
    path = f'/v1beta/models/{MODEL}:generateContent'
    fake.answer = lambda request: None
    assert (await call(fake, path, request_of('a'))).status_code == 500
    assert (await call(fake, path, {})).status_code == 400
    assert (await call(fake, path, [])).status_code == 400
    assert (await call(fake, '/v1beta/nothing')).json()['error']['status'] == 'NOT_FOUND'


async def test_the_client_reaches_the_fake_past_a_proxy_and_in_either_version(
    fake: FakeProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in 'HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'all_proxy':
        monkeypatch.setenv(variable, 'http://127.0.0.1:9')
    for library in 'httpx', 'httpx2':
        monkeypatch.setenv('GOOGLE_GENAI_HTTP_CLIENT', library)
        with fake.google.client(http_options={'api_version': 'v1'}) as client:
            assert client.models.generate_content(model=MODEL, contents='a').text == 'Answer to: a'
        async with fake.google.client(api_key='mine', http_options=HttpOptions(api_version='v1')).aio as client:
            assert (await client.models.generate_content(model=MODEL, contents='a')).text == 'Answer to: a'
    assert {call.path.split('/')[2] for call in fake.google.calls} == {'v1'}
    assert len({call.headers['x-goog-api-key'] for call in fake.google.calls}) == 2


async def test_the_environment_points_the_sdk_at_the_fake(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('NO_PROXY', '127.0.0.1')
    for variable, value in fake.google.environment.items():
        monkeypatch.setenv(variable, value)
    async with GoogleProvider() as provider:
        assert (await Agent(GoogleModel(MODEL, provider=provider)).run('a')).output == 'Answer to: a'


async def test_the_frameworks_own_batches_work_on_it(
    fake: FakeProviders, model: GoogleModel, clock: ManualClock
) -> None:
    if not hasattr(model, 'batch_create'):
        pytest.skip('this pydantic-ai has no batches')
    from pydantic_ai.messages import ModelRequest
    from pydantic_ai.models.batch import BatchRequest

    fake.processing = timedelta(seconds=10)
    request = BatchRequest(custom_id='r1', messages=[ModelRequest.user_text_prompt('hello')])
    batch = await model.batch_create([await model.batch_encode(request)])
    await clock.advance(10)
    batch = await model.batch_status(batch)
    [result] = await model.batch_results(batch)
    assert model.batch_decode(result, request).text == 'Answer to: hello'
