"""What lanes really send is what the providers' published specs say that they take."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import pytest
from lanes.harness import HARNESSES, Harness, close, harness_of
from pydantic import BaseModel
from pydantic_ai import Agent, BinaryContent, ModelRequest, NativeOutput
from pydantic_ai.models import Model

from pydantic_ai_batch import LANES, BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.testing import Call, FakeProviders, FakeRequest, FakeToolCall, ManualClock, auto_answer
from pydantic_ai_batch.testing.multipart import read_form

from . import schemas
from .schemas import SPECS, endpoints, schema, validator

pytestmark = pytest.mark.skipif(not SPECS.is_dir(), reason='the published specs are not on this machine')

PIXEL = b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')


class Label(BaseModel):
    name: str
    score: int


def answer(request: FakeRequest) -> Any:
    """Calls a tool once where the question asks for it, and answers anything else by itself."""
    if request.text == 'look it up' and not request.tool_results:
        return FakeToolCall('look_up', {'name': 'x'})
    return auto_answer(request)


@dataclass
class Traffic:
    """Every call that came of using a lane in all the ways that tests can think of."""

    harness: Harness
    calls: list[Call]

    def of(self, operation: str) -> list[Call]:
        calls = [call for call in self.calls if call.operation == operation]
        assert calls
        return calls

    def json(self, operation: str) -> list[dict[str, Any]]:
        return [json.loads(call.body) for call in self.of(operation)]

    def files(self) -> list[list[dict[str, Any]]]:
        """The lines of each file that was uploaded."""
        if self.harness.lane == 'google':
            contents = [call.body for call in self.of('upload_bytes')]
        elif self.harness.lane == 'vertex':
            contents = [call.body for call in self.of('upload')]
        else:
            contents = [
                read_form(call.headers['content-type'], call.body)['file'].content for call in self.of('upload')
            ]
        return [[json.loads(line) for line in content.split(b'\n') if line] for content in contents]

    def requests(self) -> list[dict[str, Any]]:
        """The body of each request that went into a batch."""
        if self.harness.lane in ('openai', 'together'):
            return [line['body'] for file in self.files() for line in file]
        if self.harness.name == 'google-file':
            return [line['request'] for file in self.files() for line in file]
        if self.harness.lane == 'google':
            batches = [create['batch'] for create in self.json('create')]
            return [item['request'] for batch in batches for item in batch['inputConfig']['requests']['requests']]
        return [item['params'] for create in self.json('create') for item in create['requests']]


async def all_of_it(fake: FakeProviders, clock: ManualClock, harness: Harness, model: Model) -> None:
    """Agents with tools, pictures, typed answers and settings; lists that are looked for, split and cancelled."""
    batching = BatchModelRequests(clock=clock)
    agent = Agent(model, instructions='Be terse.', capabilities=[batching])

    @agent.tool_plain
    def look_up(name: str) -> str:
        """Look it up.

        Args:
            name: What to look up.
        """
        return f'{name} was found'

    typed = Agent(model, output_type=Label, capabilities=[batching])
    native = Agent(model, output_type=NativeOutput(Label), capabilities=[batching])
    await clock.run(
        asyncio.gather(
            agent.run('look it up'),
            agent.run(['What is it?', BinaryContent(PIXEL, media_type='image/png')]),
            agent.run('Think.', model_settings={'max_tokens': 4_000, 'thinking': 'low'}),
            typed.run('Label it.'),
            native.run('Label it.'),
        )
    )

    def rows() -> list[BatchRequest]:
        return [
            BatchRequest(custom_id=f'{n}/é', messages=[ModelRequest.user_text_prompt(f'row {n} \u2028')])
            for n in range(3)
        ]

    harness.fake(fake).inject('create', 'lose_reply')
    await clock.run(model_request_batch(model, rows(), max_requests=2, clock=clock))
    cancelled = asyncio.ensure_future(model_request_batch(model, rows(), clock=clock))
    await clock.until_asleep()
    cancelled.cancel()
    with suppress(asyncio.CancelledError):
        await cancelled


@pytest.fixture
def observe(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Awaitable[Traffic]]:
    async def observe(name: str) -> Traffic:
        harness = harness_of(name, monkeypatch)
        with FakeProviders(answer, clock=clock) as fake:
            model, client = harness.make(fake, 'test')
            await all_of_it(fake, clock, harness, model)
            await close(client)
            return Traffic(harness, harness.fake(fake).calls)

    return observe


Observe = Callable[[str], Awaitable[Traffic]]

# Control calls


@pytest.mark.parametrize('name', [*(harness.name for harness in HARNESSES), 'together'])
async def test_every_call_is_one_of_the_spec(name: str, observe: Observe) -> None:
    traffic = await observe(name)
    described = {
        'openai': lambda: endpoints(schemas.openai_control(), '/openai/v1'),
        'anthropic': lambda: endpoints(schemas.anthropic(), '/anthropic'),
        'google': lambda: endpoints(schemas.gemini(), '/google'),
        'together': lambda: endpoints(schemas.together(), '/together/v1'),
    }[traffic.harness.lane]()
    operations = {call.operation for call in traffic.calls}
    assert operations >= {'create', 'status', 'list', 'cancel', traffic.harness.download}
    for call in traffic.calls:
        path, query = call.path, dict(call.query)
        if call.operation == 'upload_bytes':
            # Google names the address when an upload begins.
            continue
        if call.operation == 'upload' and traffic.harness.lane == 'google':
            path = path.replace('/upload/', '/')
        if traffic.harness.lane == 'anthropic':
            # The framework goes through the beta resources, which the spec leaves out.
            assert query.pop('beta') == 'true'
        (endpoint,) = [each for each in described if each.method == call.method and each.path.fullmatch(path)]
        assert endpoint.refuses(query) == []


@pytest.mark.parametrize('name', ['responses', 'chat'])
async def test_openai_batches_are_created_as_the_spec_says(name: str, observe: Observe) -> None:
    traffic = await observe(name)
    for create in traffic.json('create'):
        schema('CreateBatchRequest').validate(create)
    for call in traffic.of('upload'):
        form = read_form(call.headers['content-type'], call.body)
        schema('CreateFileRequest').validate({field: part.content.decode() for field, part in form.items()})
        assert str(form['file'].filename).endswith('.jsonl')
    (endpoint,) = {create['endpoint'] for create in traffic.json('create')}
    for file in traffic.files():
        for line in file:
            schema('BatchRequestInput').validate(line)
        assert {line['url'] for line in file} == {endpoint}
        assert len({line['custom_id'] for line in file}) == len(file)


async def test_together_batches_are_created_as_the_spec_says(observe: Observe) -> None:
    traffic = await observe('together')
    for create in traffic.json('create'):
        validator(schemas.together(), 'CreateBatchRequest').validate(create)
    for file in traffic.files():
        assert all(line.keys() == {'custom_id', 'body'} for line in file)


@pytest.mark.parametrize('name', ['xai-chat', 'xai-responses'])
async def test_xai_batches_are_filled_and_asked_for_in_the_words_of_its_protocol(name: str, observe: Observe) -> None:
    words = schemas.xai()
    traffic = await observe(name)
    for create in traffic.json('create'):
        assert create.keys() == {'name'} <= words['CreateBatchRequest']
    for add in traffic.json('add'):
        assert add.keys() == {'batch_requests'} <= words['AddBatchRequestsRequest']
        for item in add['batch_requests']:
            # Over HTTP a request stands in a field of its own, as was recorded; the protocol has it beside the ID.
            assert item.keys() - {'batch_request'} == {'batch_request_id'} <= words['BatchRequest']
    for call in traffic.of('list'):
        assert call.query.keys() <= words['ListBatchesRequest']
    for call in traffic.of('download'):
        assert call.query.keys() <= words['ListBatchResultsRequest']


async def test_the_fake_of_xai_describes_batches_in_the_words_of_its_protocol(clock: ManualClock) -> None:
    words = schemas.xai()
    with FakeProviders(clock=clock) as fake:
        async with fake.xai.client(api_key='test') as client:
            batch = await client.post('/batches', cast_to=object, body={'name': 'a'})
            assert isinstance(batch, dict)
            assert batch.keys() <= words['Batch']
            assert batch['state'].keys() <= words['BatchState']
            page = await client.get('/batches', cast_to=object)
            assert isinstance(page, dict)
            assert page.keys() <= words['ListBatchesResponse']


async def test_vertex_jobs_are_created_and_described_as_the_spec_says(observe: Observe) -> None:
    traffic = await observe('vertex')
    job = validator(schemas.vertex(), 'BatchPredictionJob')
    for create in traffic.json('create'):
        job.validate(create)
        assert {'displayName', 'model', 'inputConfig', 'outputConfig'} <= create.keys()
        assert all(re.fullmatch('[a-z0-9_-]{1,63}', text) for label in create['labels'].items() for text in label)
    for call in traffic.of('list'):
        assert call.query.keys() <= {'pageSize', 'pageToken', 'filter', 'readMask'}
    for file in traffic.files():
        for line in file:
            assert line.keys() == {'request'}
            assert all(re.fullmatch('[a-z0-9_-]{1,63}', text) for text in line['request']['labels'].values())


@pytest.mark.parametrize(
    ('name', 'sdk', 'replies'),
    [
        ('groq', 'groq', {'create': 'BatchCreateResponse', 'status': 'BatchCreateResponse'}),
        ('together', 'together', {'create': 'BatchCreateResponse', 'status': 'BatchJob'}),
    ],
)
async def test_the_fakes_reply_as_the_models_of_the_providers_sdk_say(
    name: str, sdk: str, replies: dict[str, str], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_of(name, monkeypatch)
    seen: dict[str, list[Any]] = {}
    with FakeProviders(answer, clock=clock) as fake:
        model, client = harness.make(fake, 'test')

        async def note(response: Any) -> None:
            await response.aread()
            operation = 'create' if response.request.method == 'POST' else 'status'
            if ('/batches' in response.request.url.path and not response.request.url.path.endswith('/batches')) or (
                operation == 'create' and response.request.url.path.endswith('/batches')
            ):
                seen.setdefault(operation, []).append(response.json())

        client._client.event_hooks = {'response': [note]}
        await clock.run(
            model_request_batch(
                model, [BatchRequest(custom_id='1', messages=[ModelRequest.user_text_prompt('row')])], clock=clock
            )
        )
        await close(client)
    for operation, of in replies.items():
        assert seen[operation]
        for reply in seen[operation]:
            schemas.sdk_model(sdk, of).validate(reply)


async def test_anthropic_batches_are_created_as_the_spec_says(observe: Observe) -> None:
    for create in (await observe('anthropic')).json('create'):
        schema('CreateMessageBatchParams').validate(create)
        assert len({item['custom_id'] for item in create['requests']}) == len(create['requests'])


@pytest.mark.parametrize('name', ['google-inline', 'google-file'])
async def test_gemini_batches_are_created_as_the_spec_says(name: str, observe: Observe) -> None:
    traffic = await observe(name)
    for create in traffic.json('create'):
        schema('BatchGenerateContentRequest').validate(create)
        (source,) = create['batch']['inputConfig']
        assert source == ('requests' if name == 'google-inline' else 'fileName')
    if name == 'google-file':
        for start in traffic.json('upload'):
            schemas.google_file().validate(start)
        for file in traffic.files():
            assert all(line.keys() == {'key', 'request'} for line in file)
            assert len({line['key'] for line in file}) == len(file)


# The requests in the batches


@pytest.mark.parametrize(
    ('name', 'body'),
    [
        ('responses', 'CreateResponse'),
        ('chat', 'CreateChatCompletionRequest'),
        ('anthropic', 'CreateMessageParams'),
        ('google-inline', 'GenerateContentRequest'),
        ('google-file', 'GenerateContentRequest'),
    ],
)
async def test_every_request_in_a_batch_is_a_live_one_of_the_spec(name: str, body: str, observe: Observe) -> None:
    requests = (await observe(name)).requests()
    for request in requests:
        schema(body).validate(request)
        assert not request.keys() & {'stream', 'stream_options', 'background'}
    sent = json.dumps(requests)
    for part in ('Be terse.', 'look_up', 'x was found', 'image/png', 'Label', 'row 2'):
        assert part in sent, 'All that was asked went through the validator.'


# The validators


RIGHT: dict[str, dict[str, Any]] = {
    'CreateBatchRequest': {'input_file_id': 'file-1', 'endpoint': '/v1/responses', 'completion_window': '24h'},
    'BatchRequestInput': {'custom_id': 'a', 'method': 'POST', 'url': '/v1/responses', 'body': {}},
    'CreateFileRequest': {'purpose': 'batch', 'file': '{}'},
    'CreateResponse': {'model': 'm', 'input': 'hi'},
    'CreateChatCompletionRequest': {'model': 'm', 'messages': [{'role': 'user', 'content': 'hi'}]},
    'CreateMessageParams': {'model': 'm', 'max_tokens': 9, 'messages': [{'role': 'user', 'content': 'hi'}]},
    'CreateMessageBatchParams': {
        'requests': [{'custom_id': 'a', 'params': {'model': 'm', 'max_tokens': 9, 'messages': []}}]
    },
    'GenerateContentRequest': {'contents': [{'role': 'user', 'parts': [{'text': 'hi'}]}]},
    'BatchGenerateContentRequest': {'batch': {'displayName': 'a', 'inputConfig': {'fileName': 'files/1'}}},
}


@pytest.mark.parametrize(
    ('name', 'wrong'),
    [
        ('CreateBatchRequest', {'endpoint': '/v1/elsewhere'}),
        ('CreateBatchRequest', {'completion_window': '25h'}),
        ('CreateBatchRequest', {'window': '24h'}),
        ('CreateBatchRequest', {'metadata': {'a': 1}}),
        ('BatchRequestInput', {'method': 'GET'}),
        ('BatchRequestInput', {'params': {}}),
        ('CreateFileRequest', {'purpose': 'batches'}),
        ('CreateResponse', {'temperature': 9}),
        ('CreateResponse', {'messages': []}),
        ('CreateResponse', {'tools': [{'type': 'function'}]}),
        ('CreateChatCompletionRequest', {'messages': [{'role': 'nobody', 'content': 'hi'}]}),
        ('CreateChatCompletionRequest', {'input': 'hi'}),
        ('CreateMessageParams', {'betas': []}),
        ('CreateMessageParams', {'output_config': {'format': {'type': 'xml', 'schema': {}}}}),
        ('CreateMessageBatchParams', {'requests': []}),
        ('CreateMessageBatchParams', {'requests': [{'custom_id': 'a/b', 'params': {}}]}),
        ('GenerateContentRequest', {'contents': [{'role': 'user', 'parts': [{'words': 'hi'}]}]}),
        ('GenerateContentRequest', {'toolConfig': {'functionCallingConfig': {'mode': 'MAYBE'}}}),
        ('BatchGenerateContentRequest', {'batch': {'inputConfig': {'fileName': 'files/1'}}}),
        ('BatchGenerateContentRequest', {'batch': {'displayName': 'a', 'inputConfig': {'file': 'files/1'}}}),
    ],
)
def test_what_is_wrong_is_refused(name: str, wrong: dict[str, Any]) -> None:
    schema(name).validate(RIGHT[name])
    with pytest.raises(jsonschema_rs.ValidationError):
        schema(name).validate({**RIGHT[name], **wrong})


@pytest.mark.parametrize(
    ('method', 'path', 'query'),
    [('GET', '/v1/batches', {'limits': '9'}), ('GET', '/v1/batches', {'limit': 'all'}), ('POST', '/v1/batch', {})],
)
def test_calls_that_are_not_in_a_spec_are_refused(method: str, path: str, query: dict[str, str]) -> None:
    described = endpoints(schemas.openai_control(), '/v1')
    matching = [each for each in described if each.method == method and each.path.fullmatch(path)]
    assert not any(each.refuses(query) == [] for each in matching)


def test_the_spec_of_anthropic_is_older_than_its_limit_and_its_structured_outputs() -> None:
    """When it is not any more, what `schemas` adds to it can go."""
    published = schemas.read('anthropic_message_batches.openapi.json')['components']['schemas']
    most = published['CreateMessageBatchParams']['properties']['requests']['maxItems']
    assert most == 10_000 < (LANES['anthropic'].max_requests or 0)
    assert 'output_config' not in published['CreateMessageParams']['properties']
