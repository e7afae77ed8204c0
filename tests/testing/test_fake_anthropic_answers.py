from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Literal

import pytest
from anthropic import Anthropic, AsyncAnthropic, InternalServerError, RateLimitError
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .test_fake_anthropic_batches import raw_results, requests_of, results, submit


class Ticket(BaseModel):
    topic: Literal['billing', 'bug']
    urgency: int = Field(ge=1, le=3)
    tags: list[str]


HI: list[Any] = [{'role': 'user', 'content': 'hi'}]


@pytest.fixture
async def anthropic(fake: FakeProviders) -> AsyncIterator[AsyncAnthropic]:
    async with fake.anthropic.client(max_retries=0) as client:
        yield client


@pytest.fixture(params=[False, True], ids=['whole', 'streamed'])
def model(request: pytest.FixtureRequest, fake: FakeProviders, anthropic: AsyncAnthropic) -> Iterator[AnthropicModel]:
    """The framework streams behind the scenes where an answer may become long."""
    yield AnthropicModel(
        'claude-haiku-4-5',
        provider=AnthropicProvider(anthropic_client=anthropic),
        settings=None if request.param else {'max_tokens': 1000},
    )
    assert set(streamed(fake)) == {request.param}


def streamed(fake: FakeProviders) -> list[bool]:
    return [bool(json.loads(call.body).get('stream')) for call in fake.anthropic.calls]


@pytest.mark.parametrize('output', [Ticket, NativeOutput(Ticket), ToolOutput(Ticket, name='file_ticket')])
async def test_an_agent_gets_the_output_it_asks_for(model: AnthropicModel, output: Any) -> None:
    agent = Agent(model, output_type=output)
    first, again = await agent.run('My invoice is wrong'), await agent.run('My invoice is wrong')
    assert isinstance(first.output, Ticket)
    assert first.output == again.output
    assert first.usage.input_tokens > 0
    assert first.usage.output_tokens > 1


async def test_an_agent_goes_through_one_round_of_its_tools(model: AnthropicModel) -> None:
    called: list[int] = []
    agent = Agent(model, output_type=Ticket)

    @agent.tool_plain
    def orders_of(customer: int) -> str:
        called.append(customer)
        return 'none'

    result = await agent.run('Where is my order?')
    assert isinstance(result.output, Ticket)
    assert len(called) == 1


async def test_an_agent_gets_the_same_streamed_or_whole(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    fake.answer = lambda request: f'A long answer with odd characters, \u2028 and \udcb2, to: {request.text}'
    provider = AnthropicProvider(anthropic_client=anthropic)
    whole = await Agent(AnthropicModel('m', provider=provider, settings={'max_tokens': 1000})).run('What is up?')
    behind = await Agent(AnthropicModel('claude-haiku-4-5', provider=provider)).run('What is up?')
    async with Agent(AnthropicModel('m', provider=provider)).run_stream('What is up?') as result:
        openly = await result.get_output()
    assert whole.output == 'A long answer with odd characters, \u2028 and \udcb2, to: What is up?'
    assert whole.output == behind.output == openly
    assert streamed(fake) == [False, True, True]
    assert whole.usage.output_tokens == behind.usage.output_tokens == result.usage.output_tokens
    assert whole.response.finish_reason == behind.response.finish_reason == 'stop'


async def test_a_stream_has_the_events_of_the_api(anthropic: AsyncAnthropic) -> None:
    stream = await anthropic.messages.create(model='m', max_tokens=10, messages=HI, stream=True)
    assert stream.response.headers['content-type'].startswith('text/event-stream')
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    deltas = kinds.count('content_block_delta')
    assert kinds == [
        'message_start',
        'content_block_start',
        *['content_block_delta'] * deltas,
        'content_block_stop',
        'message_delta',
        'message_stop',
    ]
    assert events[0].type == 'message_start'
    assert (events[0].message.content, events[0].message.stop_reason) == ([], None)
    assert events[-2].type == 'message_delta'
    assert events[-2].delta.stop_reason == 'end_turn'
    assert events[-2].usage.output_tokens > 1


async def test_a_stream_adds_up_to_the_message(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    content: list[dict[str, Any]] = [
        {'type': 'thinking', 'thinking': 'Let me think about that.', 'signature': 'c2ln'},
        {'type': 'text', 'text': 'I will look it up for you.'},
        {'type': 'tool_use', 'id': 'toolu_1', 'name': 'look_up', 'input': {'name': 'ünï', 'deep': [{'a': 1}]}},
        {'type': 'tool_use', 'id': 'toolu_2', 'name': 'now', 'input': {}},
        {'type': 'redacted_thinking', 'data': 'xyz'},
    ]
    message = {
        'id': 'msg_1',
        'type': 'message',
        'role': 'assistant',
        'model': 'm',
        'content': content,
        'stop_reason': 'stop_sequence',
        'stop_sequence': 'END',
        'usage': {'input_tokens': 7, 'output_tokens': 42},
    }
    fake.answer = lambda request: message
    async with anthropic.messages.stream(model='m', max_tokens=10, messages=HI) as stream:
        final = await stream.get_final_message()
    whole = await anthropic.messages.create(model='m', max_tokens=10, messages=HI)
    assert final.model_dump(exclude_none=True, warnings=False) == whole.model_dump(exclude_none=True, warnings=False)
    assert [block.model_dump(exclude_none=True) for block in final.content] == content
    assert (final.stop_sequence, final.usage.output_tokens) == ('END', 42)


async def test_a_request_is_told_in_words_that_fit_every_provider(fake: FakeProviders, model: AnthropicModel) -> None:
    requests: list[FakeRequest] = []

    def answer(request: FakeRequest) -> FakeToolCall:
        requests.append(request)
        return FakeToolCall('final_result', {'topic': 'bug', 'urgency': 2, 'tags': []})

    fake.answer = answer
    agent = Agent(model, output_type=Ticket, instructions='Be quick.')
    for _ in range(2):
        assert (await agent.run(['first', 'It crashes'])).output == Ticket(topic='bug', urgency=2, tags=[])
    first, again = requests
    assert (first.provider, first.endpoint, first.model) == ('anthropic', '/v1/messages', 'claude-haiku-4-5')
    assert (first.custom_id, first.text) == (None, 'It crashes')
    assert [tool.name for tool in first.tools] == ['final_result']
    assert set(first.tools[0].parameters['properties']) == {'topic', 'urgency', 'tags'}
    assert (first.forced_tool, first.tool_results, first.output_schema) == ('*', 0, None)
    assert (first.attempt, again.attempt) == (0, 1)


TOOLS = [{'name': name, 'input_schema': {'type': 'object'}} for name in ('look_up', 'final_result')]


@pytest.mark.parametrize(
    ('tool_choice', 'called'),
    [
        ({'type': 'auto'}, 'look_up'),
        ({'type': 'any'}, 'look_up'),
        ({'type': 'tool', 'name': 'final_result'}, 'final_result'),
        ({'type': 'none'}, None),
    ],
)
async def test_the_tool_that_is_called_is_the_one_that_must_be(
    anthropic: AsyncAnthropic, tool_choice: Any, called: str | None
) -> None:
    tools: Any = TOOLS
    message = await anthropic.messages.create(
        model='m', max_tokens=10, messages=HI, tools=tools, tool_choice=tool_choice
    )
    [block] = message.content
    assert (block.name if block.type == 'tool_use' else None) == called
    assert message.stop_reason == ('tool_use' if called else 'end_turn')


async def test_tools_that_anthropic_runs_itself_are_not_called(anthropic: AsyncAnthropic) -> None:
    tools: Any = [{'type': 'web_search_20250305', 'name': 'web_search'}]
    message = await anthropic.messages.create(model='m', max_tokens=10, messages=HI, tools=tools)
    assert message.content[0].type == 'text'


@pytest.mark.parametrize('place', ['output_config', 'output_format'])
async def test_a_schema_of_the_text_is_satisfied_wherever_it_stands(anthropic: AsyncAnthropic, place: str) -> None:
    schema = {'type': 'object', 'properties': {'n': {'type': 'integer'}}, 'required': ['n']}
    output_format = {'type': 'json_schema', 'schema': schema}
    extra = {place: {'format': output_format} if place == 'output_config' else output_format}
    message = await anthropic.messages.create(model='m', max_tokens=10, messages=HI, extra_body=extra)
    assert message.content[0].type == 'text'
    assert list(json.loads(message.content[0].text)) == ['n']


async def test_live_requests_are_recorded_and_billed(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    message = await anthropic.messages.create(model='m', max_tokens=10, messages=HI)
    assert message.usage.service_tier == 'standard'
    assert fake.anthropic.count('live') == 1
    [row] = fake.anthropic.billed
    assert (row.batch_id, row.custom_id, row.text) == (None, None, 'hi')


@pytest.mark.parametrize('stream', [False, True])
async def test_a_live_request_can_fail(fake: FakeProviders, anthropic: AsyncAnthropic, stream: bool) -> None:
    fake.answer = lambda request: FakeError(429, None, 'Slow.')
    with pytest.raises(RateLimitError, match=r'Slow\.'):
        await anthropic.messages.create(model='m', max_tokens=10, messages=HI, stream=stream)
    fake.answer = lambda request: None
    with pytest.raises(InternalServerError):
        await anthropic.messages.create(model='m', max_tokens=10, messages=HI, stream=stream)


async def test_a_live_connection_can_break(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    for fault in 'reset', 'lose_reply':
        fake.anthropic.inject('live', fault)
        with pytest.raises(Exception, match='Connection error'):
            await anthropic.messages.create(model='m', max_tokens=10, messages=HI)
    assert len(fake.anthropic.billed) == 1


async def test_an_answer_can_call_a_tool_be_the_whole_body_or_missing(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    answers = {'a': {'odd': [1]}, 'b': None, 'c': FakeToolCall('look_up', {'name': 'x'})}
    fake.answer = lambda request: answers[request.text]
    batch = await submit(anthropic, *answers)
    await clock.advance(100)
    answered = await results(anthropic, batch.id)
    assert answered.keys() == {'r1', 'r3'}
    assert answered['r1'] == {'type': 'succeeded', 'message': {'odd': [1]}}
    [block] = answered['r3']['message']['content']
    assert (block['type'], block['name'], block['input']) == ('tool_use', 'look_up', {'name': 'x'})
    assert len(fake.anthropic.billed) == 3


async def test_odd_characters_arrive_as_they_are(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    texts = {'a': 'line\u2028separator\u0085', 'b': 'lone \udcb2 surrogate'}
    fake.answer = lambda request: texts[request.text]
    batch = await submit(anthropic, *texts)
    await clock.advance(100)
    raw = await raw_results(anthropic, batch.id)
    assert '\u2028'.encode() in raw
    answers = [json.loads(line)['result']['message'] for line in raw.split(b'\n') if line]
    assert {answer['content'][0]['text'] for answer in answers} == set(texts.values())


async def test_the_texts_of_tool_results_are_not_what_the_user_says(
    fake: FakeProviders, anthropic: AsyncAnthropic
) -> None:
    seen: list[FakeRequest] = []
    fake.answer = lambda request: seen.append(request) or 'ok'
    result = {'type': 'tool_result', 'tool_use_id': 'toolu_1', 'content': [{'type': 'text', 'text': 'found'}]}
    messages: Any = [
        *HI,
        {'role': 'assistant', 'content': [{'type': 'tool_use', 'id': 'toolu_1', 'name': 'look_up', 'input': {}}]},
        {'role': 'user', 'content': [result]},
    ]
    await anthropic.messages.create(model='m', max_tokens=10, messages=messages)
    assert [(request.text, request.tool_results) for request in seen] == [('hi', 1)]


async def test_a_proxy_of_the_environment_is_not_asked(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in 'HTTP_PROXY', 'http_proxy', 'ALL_PROXY', 'all_proxy':
        monkeypatch.setenv(name, 'http://127.0.0.1:1')
    for name in 'NO_PROXY', 'no_proxy':
        monkeypatch.delenv(name, raising=False)
    async with fake.anthropic.client(max_retries=0) as client:
        assert (await client.messages.batches.list()).data == []
    async with fake.openai.client(max_retries=0) as client:
        assert (await client.batches.list()).data == []


async def test_the_environment_is_enough_for_the_sdk(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('ANTHROPIC_AUTH_TOKEN', raising=False)
    for name, value in fake.anthropic.environment.items():
        monkeypatch.setenv(name, value)
    with Anthropic() as client:
        created = client.messages.batches.create(requests=requests_of(['a']))
        assert [batch.id for batch in client.messages.batches.list()] == [created.id]
