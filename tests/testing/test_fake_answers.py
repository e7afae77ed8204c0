from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError, RateLimitError
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .fake_openai_jobs import Results, Submit


class Ticket(BaseModel):
    topic: Literal['billing', 'bug']
    urgency: int = Field(ge=1, le=3)
    tags: list[str]


@pytest.fixture(params=[OpenAIResponsesModel, OpenAIChatModel])
def model(request: pytest.FixtureRequest, openai: AsyncOpenAI) -> Model:
    return request.param('gpt-5-nano', provider=OpenAIProvider(openai_client=openai))


@pytest.mark.parametrize('output', [Ticket, NativeOutput(Ticket), ToolOutput(Ticket, name='file_ticket')])
async def test_an_agent_gets_the_output_it_asks_for(model: Model, output: Any) -> None:
    agent = Agent(model, output_type=output)
    first, again = await agent.run('My invoice is wrong'), await agent.run('My invoice is wrong')
    assert isinstance(first.output, Ticket)
    assert first.output == again.output
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 0


async def test_an_agent_gets_text_that_names_its_question(model: Model) -> None:
    assert (await Agent(model).run('What is up?')).output == 'Answer to: What is up?'


async def test_an_agent_goes_through_one_round_of_its_tools(model: Model) -> None:
    called: list[int] = []
    agent = Agent(model, output_type=Ticket)

    @agent.tool_plain
    def orders_of(customer: int) -> str:
        called.append(customer)
        return 'none'

    result = await agent.run('Where is my order?')
    assert isinstance(result.output, Ticket)
    assert len(called) == 1


async def test_a_request_is_told_in_words_that_fit_every_endpoint(fake: FakeProviders, model: Model) -> None:
    requests: list[FakeRequest] = []

    def answer(request: FakeRequest) -> FakeToolCall:
        requests.append(request)
        return FakeToolCall('final_result', {'topic': 'bug', 'urgency': 2, 'tags': []})

    fake.answer = answer
    agent = Agent(model, output_type=Ticket, instructions='Be quick.')
    for _ in range(2):
        assert (await agent.run(['first', 'It crashes'])).output == Ticket(topic='bug', urgency=2, tags=[])
    first, again = requests
    assert (first.provider, first.model, first.custom_id) == ('openai', 'gpt-5-nano', None)
    assert first.endpoint in ('/v1/responses', '/v1/chat/completions')
    assert first.text == 'It crashes'
    assert [tool.name for tool in first.tools] == ['final_result']
    assert set(first.tools[0].parameters['properties']) == {'topic', 'urgency', 'tags'}
    assert (first.forced_tool, first.tool_results, first.output_schema) == ('*', 0, None)
    assert (first.attempt, again.attempt) == (0, 1)


TOOLS = [{'type': 'function', 'name': name, 'parameters': {'type': 'object'}} for name in ('look_up', 'final_result')]


@pytest.mark.parametrize(
    ('tool_choice', 'called'),
    [
        ('auto', 'look_up'),
        ('required', 'look_up'),
        ({'type': 'function', 'name': 'final_result'}, 'final_result'),
        ({'type': 'allowed_tools', 'mode': 'required', 'tools': TOOLS}, 'look_up'),
        ('none', None),
    ],
)
async def test_the_tool_that_is_called_is_the_one_that_must_be(
    openai: AsyncOpenAI, tool_choice: Any, called: str | None
) -> None:
    tools: Any = TOOLS
    response = await openai.responses.create(model='m', input=[], tools=tools, tool_choice=tool_choice)
    [item] = response.output
    assert (item.name if item.type == 'function_call' else None) == called


async def test_live_requests_are_recorded_and_billed(fake: FakeProviders, model: Model) -> None:
    await Agent(model).run('hello')
    assert fake.openai.count('live') == 1
    [row] = fake.openai.billed
    assert (row.batch_id, row.custom_id, row.text) == (None, None, 'hello')


async def test_a_live_request_can_fail(fake: FakeProviders, openai: AsyncOpenAI) -> None:
    fake.answer = lambda request: FakeError(429, 'slow', 'Slow.') if request.text == 'a' else None
    with pytest.raises(RateLimitError) as caught:
        await openai.responses.create(model='m', input='a')
    assert (caught.value.code, caught.value.type) == ('slow', 'rate_limit_error')
    with pytest.raises(InternalServerError):
        await openai.responses.create(model='m', input='b')


@pytest.mark.parametrize('endpoint', ['/v1/responses', '/v1/chat/completions', '/v1/embeddings'])
async def test_a_batch_answers_every_endpoint(
    clock: ManualClock, submit: Submit, results: Results, endpoint: str
) -> None:
    body = {
        '/v1/responses': {'input': [{'role': 'user', 'content': [{'type': 'input_text', 'text': 'hi'}]}]},
        '/v1/chat/completions': {'messages': [{'role': 'user', 'content': 'hi'}]},
        '/v1/embeddings': {'input': ['hi', 'there'], 'dimensions': 4},
    }[endpoint]
    line = {'custom_id': 'r1', 'method': 'POST', 'url': endpoint, 'body': {'model': 'm'} | body}
    batch = await submit(content=json.dumps(line).encode(), endpoint=endpoint)
    await clock.advance(100)
    [answered], _ = await results(batch)
    reply = answered['response']['body']
    assert reply['model'] == 'm'
    if endpoint == '/v1/embeddings':
        assert [len(each['embedding']) for each in reply['data']] == [4, 4]
    else:
        assert reply['service_tier'] == 'default'
        assert 'Answer to: hi' in json.dumps(reply)


async def test_an_embedding_depends_on_its_text_alone(openai: AsyncOpenAI) -> None:
    one = await openai.embeddings.create(model='m', input=['a', 'b'])
    two = await openai.embeddings.create(model='m', input='b', encoding_format='float')
    assert one.data[1].embedding == pytest.approx(two.data[0].embedding)
    assert one.data[0].embedding != one.data[1].embedding


async def test_an_answer_can_be_the_whole_body_or_missing(
    fake: FakeProviders, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.answer = lambda request: {'odd': [1]} if request.text == 'a' else None
    batch = await submit('a', 'b')
    await clock.advance(100)
    [line], errors = await results(batch)
    assert (line['custom_id'], line['response']['body']) == ('r1', {'odd': [1]})
    assert errors == []
    assert len(fake.openai.billed) == 2


async def test_odd_characters_arrive_as_they_are(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    texts = {'a': 'line\u2028separator\u0085', 'b': 'lone \udcb2 surrogate'}
    fake.answer = lambda request: texts[request.text]
    batch = await submit('a', 'b')
    await clock.advance(100)
    file_id = (await openai.batches.retrieve(batch.id)).output_file_id or ''
    raw = (await openai.files.content(file_id)).content
    assert '\u2028'.encode() in raw
    answers = [json.loads(line) for line in raw.split(b'\n') if line]
    assert {line['response']['body']['output'][0]['content'][0]['text'] for line in answers} == set(texts.values())


async def test_what_the_answer_function_raises_is_raised_when_the_fakes_stop(clock: ManualClock) -> None:
    def broken(request: FakeRequest) -> str:
        raise KeyError(request.text)

    fake = FakeProviders(broken, clock=clock)
    fake.start()
    async with fake.openai.client(max_retries=0) as client:
        with pytest.raises(InternalServerError, match='answer function'):
            await client.responses.create(model='m', input='hello')
    with pytest.raises(KeyError, match='hello'):
        fake.stop()
    fake.stop()


async def test_an_error_of_the_test_is_not_hidden_by_one_of_the_answer_function() -> None:
    def broken(request: FakeRequest) -> str:
        raise KeyError(request.text)

    async def fails_by_itself() -> None:
        async with FakeProviders(broken) as fake, fake.openai.client(max_retries=0) as client:
            with pytest.raises(InternalServerError):
                await client.responses.create(model='m', input='hello')
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fails_by_itself()


async def test_the_fake_does_not_stream(openai: AsyncOpenAI) -> None:
    with pytest.raises(BadRequestError, match='stream'):
        await openai.responses.create(model='m', input='a', stream=True)
    with pytest.raises(BadRequestError, match='model'):
        await openai.post('/responses', cast_to=object, body={'input': 'a'})
