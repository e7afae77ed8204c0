"""The lane of Amazon Bedrock: what it sends, that a job is made once whatever gets lost, and how its files are read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.session import Session
from journal.scenes import Way, all_over, each_way
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    ModelMessagesTypeAdapter,
    ModelRequest,
    NativeOutput,
    PendingModelResponse,
    PromptedOutput,
)
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelRequestRejectedError,
    ModelTimeoutError,
    UserError,
)
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from pydantic_ai.models.bedrock import BedrockConverseModel, BedrockModelSettings
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.providers.bedrock import BedrockProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, Lane, compat, lane_for, list_batches, model_request_batch
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.lanes import aws, base, bedrock
from pydantic_ai_batch.lanes.base import ListingIncomplete, NotCreated, NotRun, Payload, Sought, Stray
from pydantic_ai_batch.testing import FakeError, FakeProviders, ManualClock

from .harness import echo, requests_of

BEDROCK_VARIABLES = (
    'AWS_ENDPOINT_URL_BEDROCK_RUNTIME',
    'AWS_ENDPOINT_URL_BEDROCK',
    'AWS_ENDPOINT_URL_S3',
    'AWS_ACCESS_KEY_ID',
    'AWS_SECRET_ACCESS_KEY',
    'AWS_DEFAULT_REGION',
    'AWS_BEDROCK_BATCH_ROLE_ARN',
    'AWS_BEDROCK_BATCH_S3_URI',
)
"""What the environment tells of Bedrock."""

CREATED = datetime(2030, 1, 1, tzinfo=UTC)
NOVA = 'us.amazon.nova-lite-v1:0'
CLAUDE = 'us.anthropic.claude-sonnet-4-5-20250929-v1:0'
PROFILE = 'arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123'
TAG = 't' * 20
NAME = f'pab-{TAG}'
ARN = 'arn:aws:bedrock:us-east-1:123456789012:model-invocation-job/abcdefghijkl'
ROLE = 'arn:aws:iam::123456789012:role/batches'
GROUP = json.dumps({'model': NOVA})
ROWS = [f'row {n}' for n in range(6)]
ANSWERS = [f'answer to {row}' for row in ROWS]
VARIABLES = ['AWS_BEDROCK_BATCH_ROLE_ARN', 'AWS_BEDROCK_BATCH_S3_URI']


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (*BEDROCK_VARIABLES, 'AWS_BEARER_TOKEN_BEDROCK', 'AWS_PROFILE', 'AWS_SESSION_TOKEN'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('AWS_EC2_METADATA_DISABLED', 'true')
    monkeypatch.setenv('AWS_SHARED_CREDENTIALS_FILE', '/nonexistent')
    monkeypatch.setenv('AWS_CONFIG_FILE', '/nonexistent')
    monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
    monkeypatch.setenv('AWS_BEDROCK_BATCH_ROLE_ARN', ROLE)
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', 's3://test-batches/batches')
    yield
    all_over()


@pytest.fixture
def fake(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProviders]:
    with FakeProviders(echo, clock=clock) as fake:
        for name, value in fake.bedrock.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def model_over(client: Any, name: str = NOVA, **settings: Any) -> BedrockConverseModel:
    return BedrockConverseModel(name, provider=BedrockProvider(bedrock_client=client), **settings)


@pytest.fixture
def model(fake: FakeProviders) -> BedrockConverseModel:
    return model_over(fake.bedrock.client())


class Replies:
    """Services that answer whatever a test says, below the SDK's own clients."""

    def __init__(self, services: aws.Services) -> None:
        self.calls: list[Any] = []
        self.waiting: list[Any] = []
        for client in (services.bedrock, services.s3):
            client.meta.events.register('before-send', self._answer)

    def say(self, *replies: Any) -> None:
        """Answer one after another, with the last over and over. An exception is raised."""
        self.waiting = list(replies)

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        self.calls.append(request)
        reply = self.waiting.pop(0) if len(self.waiting) > 1 else self.waiting[0]
        if isinstance(reply, Exception):
            raise reply
        status, content = reply if isinstance(reply, tuple) else (200, reply)
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        return AWSResponse(request.url, status, {}, Content(content))


class Content:
    """A body, as the SDK gets it from its HTTP client."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self.read()

    def read(self, amount: int | None = None, *_: Any, **__: Any) -> bytes:
        amount = len(self._left) if amount is None else amount
        part, self._left = self._left[:amount], self._left[amount:]
        return part

    def close(self) -> None:
        return


@pytest.fixture
async def lane() -> Lane:
    session = boto3.Session(aws_access_key_id='AKIA', aws_secret_access_key='s', region_name='us-east-1')
    return lane_for(model_over(session.client('bedrock-runtime')))


@pytest.fixture
async def replies(lane: Lane) -> Replies:
    return Replies(await aws.services_of(lane.model))


def job_object(**changes: Any) -> dict[str, Any]:
    return {
        'jobArn': ARN,
        'jobName': NAME,
        'modelId': NOVA,
        'roleArn': ROLE,
        'status': 'InProgress',
        'submitTime': '2030-01-01T00:00:00Z',
        'inputDataConfig': {'s3InputDataConfig': {'s3Uri': f's3://test-batches/batches/{NAME}.jsonl'}},
        'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': 's3://test-batches/batches/'}},
        'totalRecordCount': 3,
        'processedRecordCount': 1,
        'successRecordCount': 1,
        'errorRecordCount': 0,
        **changes,
    }


def handle(**details: Any) -> Batch:
    return Batch(
        id=ARN,
        model_name=NOVA,
        provider_name='bedrock',
        group=GROUP,
        status='ended',
        created_at=CREATED,
        request_count=3,
        provider_details={'status': 'Completed', 'output': 's3://test-batches/batches/', **details},
    )


def filled(lane: Lane, *bodies: bytes) -> Payload:
    payload = Payload(lane, GROUP, tag=TAG)
    for body in bodies:
        payload.add(body)
    return payload


def listing(*keys: str) -> bytes:
    contents = ''.join(f'<Contents><Key>{key}</Key></Contents>' for key in keys)
    return f'<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>'.encode()


async def read(lane: Lane, replies: Replies, *lines: Any) -> list[BatchResult | Stray]:
    content = b''.join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b'\n' for line in lines)
    replies.say(listing(f'batches/abcdefghijkl/{NAME}.jsonl.out'), content)
    return [result async for result in lane.results(handle())]


async def run(clock: ManualClock, model: Any, rows: list[str] = ROWS, **options: Any) -> list[Any]:
    outcomes = await clock.run(model_request_batch(model, requests_of(rows), clock=clock, **options))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def billed(fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in fake.bedrock.billed)


def orders(fake: FakeProviders) -> list[dict[str, Any]]:
    """What jobs were ordered with."""
    return [json.loads(call.body) for call in fake.bedrock.calls if call.operation == 'create']


# What the environment says


@pytest.mark.parametrize(
    ('variable', 'value'),
    [
        *((name, value) for name in VARIABLES for value in (None, '', 'x')),
        ('AWS_BEDROCK_BATCH_ROLE_ARN', 'arn:aws:iam::1:role/x'),
        ('AWS_BEDROCK_BATCH_S3_URI', 's3://'),
        ('AWS_BEDROCK_BATCH_S3_URI', 'https://bucket/batches'),
        ('AWS_BEDROCK_BATCH_S3_URI', 's3://bucket/a b'),
        ('AWS_BEDROCK_BATCH_S3_URI', 's3://BUCKET/batches'),
    ],
)
async def test_without_a_role_and_a_place_nothing_is_sent_and_the_error_names_the_variable(
    variable: str,
    value: str | None,
    fake: FakeProviders,
    model: Any,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
):
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=variable):
        await Agent(model, capabilities=[BatchModelRequests(clock=clock)]).run('hello')
    with pytest.raises(UserError, match=variable):
        await clock.run(model_request_batch(model, requests_of(['row']), clock=clock))
    with pytest.raises(UserError, match=variable):
        [batch async for batch in list_batches(model)]
    assert fake.calls == []


@pytest.mark.parametrize(
    ('place', 'uri', 'key'),
    [
        ('s3://test-batches', 's3://test-batches/', f'{NAME}.jsonl'),
        ('s3://test-batches/', 's3://test-batches/', f'{NAME}.jsonl'),
        (' s3://test-batches/a/b/ ', 's3://test-batches/a/b/', f'a/b/{NAME}.jsonl'),
    ],
)
async def test_a_place_may_be_a_bucket_or_something_in_it(
    place: str, uri: str, key: str, fake: FakeProviders, model: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', place)
    lane = lane_for(model)
    with Payload(lane, GROUP, tag=TAG) as payload:
        payload.add(b'{"messages":[]}')
        batch = await lane.create(payload)
        assert list(fake.bedrock.objects) == [key]
        await clock.advance(timedelta(hours=1))
        [result] = [result async for result in lane.results(await lane.status(batch))]
    assert isinstance(result, BatchResult)
    assert result.status == 'succeeded'
    [order] = orders(fake)
    assert order['outputDataConfig']['s3OutputDataConfig']['s3Uri'] == uri


# Whose batches they are


def client_of(**credentials: Any) -> Any:
    given: dict[str, Any] = {'aws_access_key_id': 'AKIA', 'aws_secret_access_key': 's', **credentials}
    return boto3.Session(region_name=given.pop('region_name', 'us-east-1'), **given).client('bedrock-runtime')


async def group_of(client: Any, name: str = NOVA) -> str:
    return await lane_for(model_over(client, name)).identity()


async def test_requests_of_others_share_no_batch(monkeypatch: pytest.MonkeyPatch):
    first = await group_of(client_of())
    assert await group_of(client_of()) == first
    assert await group_of(client_of(aws_secret_access_key='another')) == first
    others = [
        await group_of(client_of(aws_access_key_id='AKIB')),
        await group_of(client_of(region_name='eu-west-1')),
        await group_of(client_of(), CLAUDE),
    ]
    monkeypatch.setenv('AWS_BEDROCK_BATCH_ROLE_ARN', f'{ROLE}-2')
    others.append(await group_of(client_of()))
    monkeypatch.setenv('AWS_BEDROCK_BATCH_ROLE_ARN', ROLE)
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', 's3://test-batches/elsewhere')
    others.append(await group_of(client_of()))
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', 's3://test-batches/batches')
    monkeypatch.setenv('AWS_ENDPOINT_URL_BEDROCK', 'http://127.0.0.1:9')
    others.append(await group_of(client_of()))
    assert len({first, *others}) == 7
    told = ('AKIA', ROLE, 'test-batches', '127.0.0.1')
    assert not any(text in group for group in (first, *others) for text in told)


def refreshed(key: str) -> Any:
    """A client with credentials that are made anew by themselves, as those of a role are."""

    def refresh() -> dict[str, str]:
        raise AssertionError('nothing is asked of them')

    session = Session()
    session._credentials = RefreshableCredentials(
        key, 's', 't', datetime(2100, 1, 1, tzinfo=UTC), refresh, 'assume-role'
    )
    return session.create_client('bedrock-runtime', region_name='us-east-1')


async def test_temporary_credentials_may_be_others_while_a_batch_runs():
    groups = {await group_of(client_of(aws_access_key_id=key, aws_session_token=key)) for key in ('ASIA1', 'ASIA2')}
    groups |= {await group_of(refreshed(key)) for key in ('ASIA3', 'ASIA4')}
    assert len(groups) == 1


async def test_a_batch_is_collected_with_another_hours_credentials(fake: FakeProviders, clock: ManualClock):
    fake.bedrock.projects = {'ASIA1': 'mine', 'ASIA2': 'mine'}
    models = [
        model_over(fake.bedrock.client(aws_access_key_id=key, aws_session_token='t')) for key in fake.bedrock.projects
    ]
    capabilities = [BatchModelRequests(clock=clock)]
    agent = Agent(output_type=[str, PendingModelResponse], capabilities=capabilities)
    pending = await clock.run(agent.run('hello', model=models[0]))
    await clock.advance(timedelta(hours=2))
    history = ModelMessagesTypeAdapter.validate_json(pending.all_messages_json())
    later = Agent(output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])
    assert (await later.run(message_history=history, model=models[1])).output == 'answer to hello'


async def test_an_api_key_is_no_credential_for_s3(fake: FakeProviders, clock: ManualClock, monkeypatch: Any):
    for name in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'):
        monkeypatch.delenv(name)
    provider = BedrockProvider(api_key='bedrock-api-key', region_name='us-east-1', base_url=fake.bedrock.base_url)
    model = BedrockConverseModel(NOVA, provider=provider)
    with pytest.raises(UserError, match='AWS_ACCESS_KEY_ID'):
        await run(clock, model)
    assert fake.calls == []


async def test_with_an_api_key_s3_is_asked_with_the_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'AKIA')
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 's')
    groups: list[str] = []
    for key in ('bedrock-api-key', 'another'):
        model = BedrockConverseModel(NOVA, provider=BedrockProvider(api_key=key, region_name='us-east-1'))
        lane = lane_for(model)
        groups.append(await lane.identity())
        replies = Replies(await aws.services_of(model))
        replies.say(b'', {'jobArn': ARN})
        with filled(lane, b'{}') as payload:
            await lane.create(payload)
        upload, create = (call.headers['Authorization'] for call in replies.calls)
        assert b'Credential=AKIA/' in upload
        assert create == f'Bearer {key}'.encode()
    assert groups[0] != groups[1]
    assert not any(key in group for group in groups for key in ('bedrock-api-key', 'another', 'AKIA'))


async def test_an_api_key_in_the_environment_is_not_used_where_the_client_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv('AWS_BEARER_TOKEN_BEDROCK', 'bedrock-api-key')
    groups: list[str] = []
    for config, expected in ((Config(signature_version='v4'), 'Credential=AKIA/'), (Config(), 'bedrock-api-key')):
        session = boto3.Session(aws_access_key_id='AKIA', aws_secret_access_key='s', region_name='us-east-1')
        model = model_over(session.client('bedrock-runtime', config=config))
        replies = Replies(await aws.services_of(model))
        replies.say(job_object())
        await lane_for(model).status(handle())
        assert expected in str(replies.calls[0].headers['Authorization'])
        groups.append(await lane_for(model).identity())
    assert groups[0] != groups[1]


async def test_other_clients_have_the_settings_of_the_users():
    config = Config(
        connect_timeout=7,
        read_timeout=11,
        proxies={'https': 'http://proxy.test:1'},
        user_agent_extra='mine/1',
        retries={'total_max_attempts': 9},
    )
    client = boto3.Session(aws_access_key_id='AKIA', aws_secret_access_key='s', region_name='eu-west-1').client(
        'bedrock-runtime', config=config, verify='/certificates.pem'
    )
    services = await aws.services_of(model_over(client))
    for made, service in ((services.bedrock, 'bedrock'), (services.s3, 's3')):
        assert made.meta.service_model.service_name == service
        assert made.meta.region_name == 'eu-west-1'
        taken = made.meta.config
        assert (taken.connect_timeout, taken.read_timeout, taken.proxies) == (7, 11, {'https': 'http://proxy.test:1'})
        assert taken.retries['total_max_attempts'] == 1
        assert taken.user_agent_extra.startswith('mine/1 pydantic-ai/')
        assert made._endpoint.http_session._verify == '/certificates.pem'
        assert made._request_signer._credentials is client._request_signer._credentials


async def test_clients_are_made_once_and_anew_for_another_client():
    first, second = client_of(), client_of()
    model = model_over(first)
    made = await asyncio.gather(*[aws.services_of(model) for _ in range(5)])
    assert all(services is made[0] for services in made)
    assert await aws.services_of(InstrumentedModel(model)) is made[0]
    model.client = second
    assert await aws.services_of(model) is not made[0]


# What it sends


async def test_a_batch_is_a_file_and_a_job_with_our_tag(lane: Any, replies: Replies):
    replies.say(b'', {'jobArn': ARN})
    with filled(lane, b'{"n":1.0}', b'{"n":2}') as payload:
        batch = await lane.create(payload)
    upload, create = replies.calls
    assert (upload.method, upload.url) == (
        'PUT',
        f'https://test-batches.s3.amazonaws.com/batches/{NAME}.jsonl',
    )
    assert (create.method, create.url) == ('POST', 'https://bedrock.us-east-1.amazonaws.com/model-invocation-job')
    assert json.loads(create.body) == {
        'jobName': NAME,
        'clientRequestToken': TAG,
        'roleArn': ROLE,
        'modelId': NOVA,
        'modelInvocationType': 'Converse',
        'inputDataConfig': {
            's3InputDataConfig': {'s3InputFormat': 'JSONL', 's3Uri': f's3://test-batches/batches/{NAME}.jsonl'}
        },
        'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': 's3://test-batches/batches/'}},
        'timeoutDurationInHours': 24,
    }
    assert all(b'Credential=AKIA/' in call.headers['Authorization'] for call in replies.calls)
    assert (batch.id, batch.status, batch.group, batch.request_count) == (ARN, 'in_progress', GROUP, 2)
    assert batch.provider_details == {
        'status': 'Submitted',
        'input': f's3://test-batches/batches/{NAME}.jsonl',
    }


async def test_requests_that_are_kept_in_a_file_go_up_as_they_are(
    fake: FakeProviders, model: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(base, '_SPOOL_BYTES', 100)
    with filled(lane_for(model), *[b'{"n":%d}' % n for n in range(1_000)]) as payload:
        fake.bedrock.inject('upload', 'lose_reply')
        with pytest.raises(NotCreated):
            await lane_for(model).create(payload)
        await lane_for(model).create(payload)
        assert list(fake.bedrock.objects.values()) == [payload.open().read()]
        [job] = fake.bedrock.batches.values()
        assert len(job.requests) == 1_000


async def test_a_line_is_the_live_body_under_our_id(fake: FakeProviders, model: Any, clock: ManualClock):
    settings = BedrockModelSettings(temperature=0.5, bedrock_request_metadata={'team': 'x'})
    [request] = requests_of(['é\u2028'])
    request = replace(request, model_settings=settings)
    await clock.run(model_request_batch(model, [request], clock=clock))
    await model.request([ModelRequest.user_text_prompt('é\u2028')], settings, ModelRequestParameters())
    [upload] = [call for call in fake.bedrock.calls if call.operation == 'upload']
    [live] = [call for call in fake.bedrock.calls if call.operation == 'live']
    [line] = [json.loads(line) for line in upload.body.split(b'\n') if line]
    assert line.keys() == {'recordId', 'modelInput'}
    assert line['modelInput'] == json.loads(live.body)
    assert line['recordId'] == f'{orders(fake)[0]["clientRequestToken"]}-0'


async def test_what_a_claude_model_has_streamed_behind_the_scenes_is_batched_whole(
    fake: FakeProviders, clock: ManualClock
):
    model = model_over(fake.bedrock.client(), CLAUDE)
    most = model.profile.get('anthropic_max_output_tokens')
    assert await run(clock, model) == ANSWERS
    assert {row.body['inferenceConfig']['maxTokens'] for row in fake.bedrock.billed} == {most}
    with_its_own = [replace(requests_of(['row'])[0], model_settings=ModelSettings(max_tokens=7))]
    await clock.run(model_request_batch(model, with_its_own, clock=clock))
    assert fake.bedrock.billed[-1].body['inferenceConfig']['maxTokens'] == 7


async def test_an_answer_is_read_as_a_live_one_and_marked(fake: FakeProviders, model: Any, clock: ManualClock):
    result = await clock.run(Agent(model, capabilities=[BatchModelRequests(clock=clock)]).run('hello'))
    response = result.all_messages()[-1]
    assert isinstance(response, ModelResponse)
    assert response.provider_details == {
        'finish_reason': 'end_turn',
        'processing': 'batch',
        'batch': {'id': next(iter(fake.bedrock.batches)), 'custom_id': fake.bedrock.billed[0].custom_id},
    }
    assert (response.model_name, response.provider_name, response.finish_reason) == (NOVA, 'bedrock', 'stop')
    assert response.usage.output_tokens == 3


class Label(BaseModel):
    name: str
    score: int


async def test_tools_are_refused_before_anything_is_sent(fake: FakeProviders, model: Any, clock: ManualClock):
    capabilities = [BatchModelRequests(clock=clock)]
    agent = Agent(model, capabilities=capabilities)

    @agent.tool_plain
    def look_up(name: str) -> str:
        return name

    with pytest.raises(UserError, match='`look_up`'):
        await clock.run(agent.run('hello'))
    with pytest.raises(UserError, match='`NativeOutput`'):
        await clock.run(Agent(model, output_type=Label, capabilities=capabilities).run('hello'))
    assert fake.calls == []


async def test_a_word_that_is_no_tool_is_none(fake: FakeProviders, model: Any, clock: ManualClock):
    assert await run(clock, model, ['a "toolConfig" of mine']) == ['answer to a "toolConfig" of mine']


@pytest.mark.parametrize(('output', 'name'), [(NativeOutput, CLAUDE), (PromptedOutput, NOVA)])
async def test_typed_answers_without_tools_are_batched(output: Any, name: str, clock: ManualClock, fake: FakeProviders):
    fake.answer = lambda request: '{"name": "x", "score": 7}'
    model = model_over(fake.bedrock.client(), name)
    agent = Agent(model, output_type=output(Label), capabilities=[BatchModelRequests(clock=clock)])
    assert (await clock.run(agent.run('hello'))).output == Label(name='x', score=7)
    [row] = fake.bedrock.billed
    assert ('outputConfig' in row.body) is (output is NativeOutput)


async def test_a_row_with_tools_fails_at_the_fake_as_at_bedrock(fake: FakeProviders, model: Any, clock: ManualClock):
    lane = lane_for(model)
    with filled(lane, b'{"messages":[],"toolConfig":{"tools":[]}}', b'{"messages":[]}') as payload:
        batch = await lane.create(payload)
    await clock.advance(timedelta(hours=1))
    results = [result async for result in lane.results(await lane.status(batch))]
    assert sorted(result.status for result in results if isinstance(result, BatchResult)) == ['errored', 'succeeded']


async def test_what_no_batch_can_do_is_refused(model: Any):
    for settings in (ModelSettings(timeout=3), ModelSettings(extra_headers={'x': 'y'})):
        [request] = requests_of(['row'])
        with pytest.raises(UserError, match='cannot be used in a batch'):
            await lane_for(model).encode(replace(request, model_settings=settings))


async def test_a_job_is_of_the_inference_profile_that_its_requests_ask_for(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    plain, profiled = requests_of(['plain', 'profiled'])
    settings = BedrockModelSettings(bedrock_inference_profile=PROFILE)
    rows = [plain, replace(profiled, model_settings=settings)]
    outcomes = await clock.run(model_request_batch(model, rows, clock=clock))
    assert [outcome.text for outcome in outcomes if isinstance(outcome, ModelResponse)] == [
        'answer to plain',
        'answer to profiled',
    ]
    assert sorted(order['modelId'] for order in orders(fake)) == [PROFILE, NOVA]


async def test_a_model_whose_own_profile_is_another_is_batched_under_that(fake: FakeProviders, clock: ManualClock):
    settings = BedrockModelSettings(bedrock_inference_profile=PROFILE)
    model = model_over(fake.bedrock.client(), settings=settings)
    lane = lane_for(model)
    back = BedrockModelSettings(bedrock_inference_profile=NOVA)
    [request] = requests_of(['row'])
    assert compat.model_id_of(await lane.identity()) == PROFILE
    assert (await lane.encode(request)).group == await lane.identity()
    assert compat.model_id_of((await lane.encode(replace(request, model_settings=back))).group) is None
    await run(clock, model)
    assert [order['modelId'] for order in orders(fake)] == [PROFILE]


async def test_a_history_of_a_profile_is_collected_without_naming_it_again(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    settings = BedrockModelSettings(bedrock_inference_profile=PROFILE)
    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])
    pending = await clock.run(agent.run('hello', model_settings=settings))
    await clock.advance(timedelta(hours=1))
    assert (await agent.run(message_history=pending.all_messages())).output == 'answer to hello'


@pytest.mark.parametrize('call', ['create', 'status', 'results', 'cancel', 'find', 'listing', 'discard', 'clean_up'])
@pytest.mark.parametrize('status', [408, 429, 500, 503])
async def test_every_call_is_sent_once(call: str, status: int, lane: Any, replies: Replies):
    replies.say((status, b''))
    with filled(lane, b'{}') as payload:
        payload.group = await lane.identity()
        if call in ('discard', 'clean_up'):
            await _called(call, lane, payload)
        else:
            with pytest.raises(NotCreated if call == 'create' else ModelHTTPError):
                await _called(call, lane, payload)
    assert len(replies.calls) == 1


async def _called(call: str, lane: Lane, payload: Payload) -> None:
    if call == 'create':
        await lane.create(payload)
    elif call in ('status', 'cancel'):
        await getattr(lane, call)(handle())
    elif call == 'find':
        await lane.find(payload, since=CREATED)
    elif call == 'discard':
        await lane.recall(payload, since=CREATED)
        await lane.discard(payload)
    elif call == 'clean_up':
        await lane.clean_up(handle(input='s3://test-batches/x'), handle())
    else:
        [item async for item in (lane.listing() if call == 'listing' else lane.results(handle()))]


# Created once


async def test_a_create_that_is_sent_again_makes_one_job(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.bedrock.inject('create', 'http', status=500, done=True)
    # All looks find nothing, so that it is sent again, which the token keeps from making a second one.
    fake.bedrock.inject('batch', 'hide', seconds=3600)
    assert await run(clock, model) == ANSWERS
    assert fake.bedrock.count('create') == 2
    assert len({order['clientRequestToken'] for order in orders(fake)}) == 1
    assert len(fake.bedrock.batches) == 1
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize('made', [True, False])
async def test_where_no_listing_can_be_read_the_token_makes_one_job_of_a_create_that_is_sent_again(
    made: bool, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.inject('create', 'http', status=500, done=made)
    fake.bedrock.inject('list', 'http', status=403, times=None)
    assert await run(clock, model) == ANSWERS
    first, second = orders(fake)
    assert first == second
    assert len(fake.bedrock.batches) == 1
    assert billed(fake) == Counter(ROWS)


@pytest.mark.parametrize('fault', [{'status': 400, 'code': 'ConflictException'}, {'status': 403}, {'status': 429}])
async def test_what_a_create_that_is_sent_again_is_refused_with_says_nothing_of_the_first(
    fault: dict[str, Any], fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.inject('create', 'lose_reply')
    fake.bedrock.inject('create', 'http', **fault)
    fake.bedrock.inject('list', 'http', status=403, times=4)
    assert await run(clock, model) == ANSWERS
    assert (fake.bedrock.count('create'), len(fake.bedrock.batches)) == (2, 1)
    assert billed(fake) == Counter(ROWS)


async def test_a_create_is_sent_again_by_its_token_once_and_its_file_is_left(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.inject('create', 'lose_reply', times=None)
    fake.bedrock.inject('list', 'http', status=403, times=None)
    assert {type(outcome) for outcome in await run(clock, model)} == {CreateUnsettled}
    assert (fake.bedrock.count('create'), len(fake.bedrock.batches)) == (2, 1)
    assert fake.bedrock.count('delete') == 0


@pytest.mark.parametrize('change', ['role', 'time'])
async def test_a_create_is_not_sent_again_by_its_token_for_another_role_or_after_a_long_time(
    change: str, fake: FakeProviders, model: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    fake.bedrock.inject('create', 'lose_reply')
    fake.bedrock.inject('list', 'http', status=403, times=None)
    bedrock_client = (await aws.services_of(model)).bedrock

    def meanwhile(**_: Any) -> None:
        if change == 'role':
            monkeypatch.setenv('AWS_BEDROCK_BATCH_ROLE_ARN', f'{ROLE}-2')
        else:
            clock.set_wall(3600)

    bedrock_client.meta.events.register('before-send.bedrock.ListModelInvocationJobs', meanwhile)
    assert {type(outcome) for outcome in await run(clock, model)} == {CreateUnsettled}
    assert fake.bedrock.count('create') == 1


@pytest.mark.parametrize('fault', ['lose_reply', 'reset'])
async def test_an_upload_that_is_lost_is_made_again(fault: str, fake: FakeProviders, model: Any, clock: ManualClock):
    fake.bedrock.inject('upload', fault)
    assert await run(clock, model) == ANSWERS
    assert (fake.bedrock.count('upload'), fake.bedrock.count('create')) == (2, 1)


async def test_a_file_that_is_there_is_not_written_again(lane: Lane, replies: Replies):
    replies.say(b'', (500, b''), {'jobArn': ARN})
    with filled(lane, b'{}') as payload:
        with pytest.raises(ModelHTTPError):
            await lane.create(payload)
        await lane.create(payload)
    assert [call.method for call in replies.calls] == ['PUT', 'POST', 'POST']


async def test_where_nothing_listens_nothing_was_sent(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('AWS_ENDPOINT_URL_S3', 'http://127.0.0.1:9')
    monkeypatch.setenv('AWS_ENDPOINT_URL_BEDROCK', 'http://127.0.0.1:9')
    lane = lane_for(model_over(client_of()))
    with filled(lane, b'{}') as payload:
        with pytest.raises(NotCreated) as upload:
            await lane.create(payload)
        payload.receipt['input'] = 's3://test-batches/x.jsonl'
        with pytest.raises(ModelConnectionError) as create:
            await lane.create(payload)
    assert isinstance(upload.value.__cause__, ModelConnectionError)
    assert upload.value.__cause__.phase == create.value.phase == 'connect'


def errors() -> list[tuple[Exception, str | None, type[Exception]]]:
    from botocore import exceptions

    at: dict[str, Any] = {'endpoint_url': 'https://x', 'error': 'e'}
    return [
        (exceptions.ConnectTimeoutError(**at), 'connect', ModelTimeoutError),
        (exceptions.EndpointConnectionError(**at), 'connect', ModelConnectionError),
        (exceptions.ReadTimeoutError(**at), 'read', ModelTimeoutError),
        (exceptions.ConnectionClosedError(**at), 'read', ModelConnectionError),
        (exceptions.NoCredentialsError(), 'connect', ModelConnectionError),
        (exceptions.HTTPClientError(error='e'), None, ModelConnectionError),
        (OSError('e'), None, ModelConnectionError),
    ]


@pytest.mark.parametrize(('error', 'phase', 'kind'), errors())
async def test_a_transports_fault_tells_its_phase(
    error: Exception, phase: str | None, kind: type[Exception], lane: Lane, replies: Replies
):
    replies.say(error)
    with pytest.raises(kind) as raised:
        await lane.status(handle())
    assert isinstance(raised.value, ModelConnectionError)
    assert raised.value.phase == phase


async def test_an_sdk_that_is_too_old_for_the_call_says_so(lane: Lane, replies: Replies):
    service = (await aws.services_of(lane.model)).bedrock.meta.service_model
    service.operation_model('CreateModelInvocationJob').input_shape.members.pop('modelInvocationType')
    with filled(lane, b'{}') as payload:
        payload.receipt['input'] = 's3://test-batches/x.jsonl'
        with pytest.raises(UserError, match='boto3'):
            await lane.create(payload)
    assert replies.calls == []


@pytest.mark.parametrize('reply', [{}, {'jobArn': ''}, {'jobArn': 'arn:aws:x'}, b'<html>'])
async def test_a_reply_that_is_no_job_says_nothing_of_what_was_made(reply: Any, lane: Lane, replies: Replies):
    replies.say(reply)
    with filled(lane, b'{}') as payload:
        payload.receipt['input'] = 's3://test-batches/x.jsonl'
        with pytest.raises(ModelConnectionError):
            await lane.create(payload)
    with pytest.raises(ModelConnectionError):
        await lane.status(handle())


async def test_an_endpoint_that_the_sdk_does_not_take_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('AWS_ACCESS_KEY_ID', 'AKIA')
    monkeypatch.setenv('AWS_SECRET_ACCESS_KEY', 's')
    monkeypatch.setenv('AWS_ENDPOINT_URL_BEDROCK', 'http://127.0.0.1:9')
    model = BedrockConverseModel(NOVA, provider=BedrockProvider(api_key='key', region_name='us-east-1'))
    with pytest.raises(UserError, match='HTTPS'):
        await lane_for(model).status(handle())


async def test_the_file_of_a_refused_job_is_deleted(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.bedrock.inject('create', 'http', status=400)
    assert all(isinstance(outcome, ModelHTTPError) for outcome in await run(clock, model))
    assert fake.bedrock.objects == {}


async def test_the_input_is_deleted_and_the_results_are_left(fake: FakeProviders, model: Any, clock: ManualClock):
    await run(clock, model)
    [batch] = fake.bedrock.batches.values()
    below = f'batches/{batch.id.rpartition("/")[2]}'
    assert sorted(fake.bedrock.objects) == [f'{below}/manifest.json.out', f'{below}/{batch.order.name}.jsonl.out']


async def test_only_the_file_that_was_written_here_is_deleted(lane: Lane, replies: Replies):
    replies.say((204, b''))
    for created in (handle(), handle(input=7), handle(input='https://x/y')):
        await lane.clean_up(created, handle())
    await lane.clean_up(handle(input='s3://test-batches/x'), handle(status='Stopped'))
    assert replies.calls == []
    await lane.clean_up(handle(input='s3://test-batches/x'), handle(input='s3://test-batches/y'))
    assert [call.url.rpartition('/')[2] for call in replies.calls] == ['x']


@each_way
async def test_a_job_of_a_process_that_ended_is_found_by_the_next(
    way: Way, fake: FakeProviders, model: Any, clock: ManualClock, tmp_path: Path
):
    path = tmp_path / 'journal.db'
    # And so is that of the one that is sent again by its token.
    fake.bedrock.inject('create', 'lose_reply', times=2)
    fake.bedrock.inject('list', 'http', status=503, times=8)
    await clock.run(way(model, ROWS, path, clock))
    all_over()
    assert await clock.run(way(model, ROWS, path, clock)) == ANSWERS
    assert fake.bedrock.count('create') == 2
    assert billed(fake) == Counter(ROWS)


async def test_a_file_is_known_again_only_by_the_place_that_it_went_to(
    lane: Lane, replies: Replies, monkeypatch: pytest.MonkeyPatch
):
    group, source = await lane.identity(), f's3://test-batches/batches/{NAME}.jsonl'
    same = Sought(TAG, group)
    await lane.recall(same, since=CREATED)
    assert same.receipt == {'input': source}
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', 's3://others-batches')
    moved = Sought(TAG, group)
    await lane.recall(moved, since=CREATED)
    await lane.discard(moved)
    assert (moved.receipt, replies.calls) == ({}, [])
    replies.say({'invocationJobSummaries': [job_object()]})
    [batch] = await lane.find(moved, since=CREATED)
    assert (batch.provider_details or {})['input'] == source


async def test_a_file_that_was_not_written_for_the_job_alone_is_not_deleted(lane: Lane, replies: Replies):
    shared = {'s3InputDataConfig': {'s3Uri': 's3://test-batches/everyones.jsonl'}}
    replies.say({'invocationJobSummaries': [job_object(inputDataConfig=shared)]})
    [batch] = await lane.find(Sought(TAG, GROUP), since=CREATED)
    assert 'input' not in (batch.provider_details or {})


async def test_a_create_whose_call_is_given_up_meanwhile_is_seen_through_and_its_job_stopped(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    reached, going_on = threading.Event(), threading.Event()

    def hold(**_: Any) -> None:
        reached.set()
        going_on.wait(30)

    services = await aws.services_of(model)
    services.bedrock.meta.events.register('before-send.bedrock.CreateModelInvocationJob', hold)
    call = asyncio.ensure_future(model_request_batch(model, requests_of(ROWS), clock=clock))
    assert await asyncio.to_thread(reached.wait, 30)
    call.cancel()
    await asyncio.sleep(0)
    going_on.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (fake.bedrock.count('create'), fake.bedrock.count('cancel')) == (1, 1)
    assert fake.bedrock.billed == []


@pytest.mark.parametrize('status', [403, 404])
async def test_a_bucket_that_is_not_there_or_not_allowed_is_named_with_its_variable(
    status: int, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.inject('upload', 'http', status=status)
    [error] = await run(clock, model, ['row'])
    fake.bedrock.inject('download', 'http', status=status, times=None)
    [unread] = await run(clock, model, ['row'])
    for raised in (error, unread):
        assert isinstance(raised, ModelHTTPError)
        assert not isinstance(raised, ModelNotFoundError)
        assert "'test-batches'" in str(raised)
        assert '`AWS_BEDROCK_BATCH_S3_URI`' in str(raised)


# Quotas


async def test_a_job_of_too_few_requests_fails_and_the_error_says_what_to_do(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.min_records = 100
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelRequestRejectedError) for outcome in outcomes)
    assert 'minimum of 100 records' in str(outcomes[0])
    assert str(outcomes[0]).count('`max_wait`') == 1
    assert fake.bedrock.count('create') == 1
    many = [f'row {n}' for n in range(100)]
    assert await run(clock, model, many) == [f'answer to {row}' for row in many]


async def test_a_create_that_is_refused_for_too_few_requests_says_what_to_do(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    message = 'The number of records in the batch is fewer than the minimum.'
    fake.bedrock.inject('create', 'http', status=400, message=message)
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) and str(outcome).count('`max_wait`') == 1 for outcome in outcomes)


async def test_a_job_beyond_those_that_may_run_at_a_time_is_ordered_later(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    message = 'The account has reached the quota of batch inference jobs in progress.'
    fake.bedrock.inject('create', 'http', status=400, code='ServiceQuotaExceededException', message=message, times=2)
    assert await run(clock, model) == ANSWERS
    assert fake.bedrock.count('create') == 3


async def test_a_quota_of_the_file_is_not_waited_for(fake: FakeProviders, model: Any, clock: ManualClock):
    message = 'The input file is larger than the quota allows.'
    fake.bedrock.inject('create', 'http', status=400, code='ServiceQuotaExceededException', message=message)
    outcomes = await run(clock, model)
    assert all(isinstance(outcome, ModelHTTPError) for outcome in outcomes)
    assert fake.bedrock.count('create') == 1


# How it reads a job


@pytest.mark.parametrize(
    ('word', 'status', 'of_job'),
    [
        ('Submitted', 'in_progress', 'submitted'),
        ('Validating', 'in_progress', 'submitted'),
        ('Scheduled', 'in_progress', 'submitted'),
        ('InProgress', 'in_progress', 'in_progress'),
        ('Stopping', 'canceling', 'canceling'),
        ('Completed', 'ended', 'ended'),
        ('PartiallyCompleted', 'ended', 'ended'),
        ('Failed', 'ended', 'failed'),
        ('Expired', 'ended', 'expired'),
        ('Stopped', 'ended', 'canceled'),
        ('Pondering', 'in_progress', 'in_progress'),
        (None, 'in_progress', 'in_progress'),
    ],
)
async def test_words_for_where_a_job_is(word: str | None, status: str, of_job: str, lane: Lane, replies: Replies):
    replies.say(job_object(status=word))
    batch = await lane.status(handle())
    assert (batch.status, lane.job_status(batch)) == (status, of_job)


async def test_a_job_with_an_unknown_status_that_has_an_end_has_ended(lane: Lane, replies: Replies):
    replies.say(job_object(status='Pondered', endTime='2030-01-01T01:00:00Z'))
    assert (await lane.status(handle())).status == 'ended'


async def test_what_a_job_counts(lane: Lane, replies: Replies):
    counts = {'totalRecordCount': 7, 'successRecordCount': 4, 'errorRecordCount': 1}
    for word, readable in (('Stopped', 5), ('Completed', 7), ('PartiallyCompleted', 5), ('Failed', 0)):
        replies.say(job_object(status=word, **counts))
        batch = await lane.status(handle())
        assert (batch.request_count, lane.readable(batch)) == (7, readable)
    replies.say(job_object(totalRecordCount=None, successRecordCount=None, errorRecordCount=None))
    batch = await lane.status(handle())
    assert batch.provider_details == {'status': 'InProgress', 'output': 's3://test-batches/batches/'}


@pytest.mark.parametrize('made_up', ['../secrets', 'abcdefghijkl', '', f'{ARN}/stop', ARN.replace('bedrock', 's3')])
async def test_an_id_that_a_history_made_up_is_asked_for_nowhere(made_up: str, lane: Lane, replies: Replies):
    batch = replace(handle(), id=made_up)
    for call in (lane.status, lane.cancel):
        with pytest.raises(UserError, match='no ARN'):
            await call(batch)
    with pytest.raises(UserError, match='no ARN'):
        [result async for result in lane.results(batch)]
    assert replies.calls == []


async def test_results_are_where_the_job_says_and_not_where_a_history_does(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])
    pending = await clock.run(agent.run('hello'))
    history = pending.all_messages_json().decode().replace('s3://test-batches', 's3://somebody-elses')
    await clock.advance(timedelta(hours=1))
    messages = ModelMessagesTypeAdapter.validate_json(history)
    assert (await agent.run(message_history=messages)).output == 'answer to hello'
    assert 'somebody-elses' not in ''.join(call.path for call in fake.calls)


async def test_a_job_is_stopped(fake: FakeProviders, model: Any, clock: ManualClock):
    lane = lane_for(model)
    with filled(lane, b'{}') as payload:
        batch = await lane.create(payload)
    stopped = await lane.cancel(batch)
    assert (stopped.status, lane.job_status(stopped)) == ('canceling', 'canceling')
    await clock.advance(timedelta(hours=1))
    assert lane.job_status(await lane.status(batch)) == 'canceled'
    with pytest.raises(ModelHTTPError, match='cannot be stopped'):
        await lane.cancel(batch)


@pytest.mark.parametrize(
    ('details', 'expected'),
    [
        ({'status': 'Expired'}, 'expired'),
        ({'status': 'PartiallyCompleted'}, 'expired'),
        ({'status': 'Stopped'}, 'canceled'),
        ({'status': 'Completed'}, 'again'),
        ({'status': 'Failed'}, 'again'),
        ({'status': 'Failed', 'message': 'The role may not read the file.'}, 400),
        ({'status': 'Failed', 'message': 'An internal server error occurred. Retry your request.'}, 500),
        ({'status': 'Failed', 'message': 'ThrottlingException: Rate exceeded'}, 429),
        ({'status': 'Failed', 'message': "The service isn't currently available."}, 503),
        ({'status': 'Failed', 'message': 'The internal model id is wrong.'}, 400),
        ({'status': 'Failed', 'message': 'Unexpected token in record 3.'}, 400),
        ({'status': 'Failed', 'message': 'The object is unavailable to the role. Try again with another.'}, 400),
    ],
)
async def test_a_request_without_a_result(details: dict[str, Any], expected: Any, lane: Lane):
    outcome = lane.unlisted(handle(**details), 'a-0')
    if isinstance(outcome, NotRun):
        assert (expected, outcome.again) == ('again', True)
    elif outcome.status == 'errored':
        assert json.loads(outcome.body or '')['status_code'] == expected
    else:
        assert outcome.status == expected


async def test_what_a_job_had_no_time_for_is_sent_again(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.bedrock.inject('batch', 'expire', done=4)
    fake.bedrock.inject('batch', 'status_word', word='PartiallyCompleted', when='Expired')
    assert await run(clock, model) == ANSWERS
    assert billed(fake) == Counter(ROWS)
    assert fake.bedrock.count('create') == 2


# How it finds and lists jobs


async def test_only_a_job_of_exactly_that_name_is_found(lane: Lane, replies: Replies):
    other = job_object(jobName=f'{NAME}-2', jobArn=ARN.replace('abc', 'xyz'))
    older = job_object(jobArn=ARN.replace('abc', 'old'), submitTime='2029-12-31T23:59:00Z')
    replies.say(
        {'invocationJobSummaries': [job_object(), other], 'nextToken': 'n'}, {'invocationJobSummaries': [older]}
    )
    sought = Sought(TAG, GROUP, 3)
    found = await lane.find(sought, since=CREATED)
    assert [batch.id for batch in found] == [older['jobArn'], ARN]
    assert found[1].created_at == CREATED
    first, second = replies.calls
    assert f'nameContains={NAME}' in first.url
    assert 'submitTimeAfter=2030-01-01T00%3A00%3A00Z' in first.url
    assert 'nextToken=n' in second.url
    assert NAME in lane.where_to_look(sought)


@pytest.mark.parametrize('page', [{}, {'invocationJobSummaries': None}, b'<html>'])
async def test_a_page_that_says_nothing_proves_nothing(page: Any, lane: Lane, replies: Replies):
    replies.say(page)
    with pytest.raises(ListingIncomplete):
        await lane.find(Sought(TAG, GROUP), since=CREATED)
    replies.say({'invocationJobSummaries': []})
    assert await lane.find(Sought(TAG, GROUP), since=CREATED) == []


async def test_a_job_that_shows_no_name_may_be_the_one(lane: Lane, replies: Replies):
    nameless = job_object(jobArn=ARN.replace('abc', 'xyz'))
    del nameless['jobName']
    replies.say({'invocationJobSummaries': [nameless]})
    with pytest.raises(ListingIncomplete, match='without names'):
        await lane.find(Sought(TAG, GROUP), since=CREATED)
    replies.say({'invocationJobSummaries': [nameless], 'nextToken': 'n'}, {'invocationJobSummaries': [job_object()]})
    assert [batch.id for batch in await lane.find(Sought(TAG, GROUP), since=CREATED)] == [ARN]


async def test_a_listing_without_end_proves_nothing(lane: Lane, replies: Replies, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bedrock, '_MAX_PAGES', 3)
    replies.say({'invocationJobSummaries': [], 'nextToken': 'again'})
    with pytest.raises(ListingIncomplete):
        await lane.find(Sought(TAG, GROUP), since=CREATED)
    assert len(replies.calls) == 3


async def test_all_pages_are_listed_with_the_models_that_jobs_are_of(
    fake: FakeProviders, clock: ManualClock, model: Any
):
    fake.bedrock.page_size = 2
    claude = model_over(fake.bedrock.client(), CLAUDE)
    for name, of in enumerate([model, claude, model, claude, model]):
        await run(clock, of, [str(name)])
    batches = [batch async for batch in list_batches(model)]
    assert [batch.model_name for batch in batches] == [NOVA, CLAUDE, NOVA, CLAUDE, NOVA]
    assert fake.bedrock.count('list') == 3


# How it reads results


@pytest.mark.parametrize('page_size', [1, 1000])
async def test_all_files_of_results_are_read_and_the_manifest_is_not(
    page_size: int, fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.output_files = 2
    fake.bedrock.page_size = page_size
    assert await run(clock, model, max_resubmissions=0) == ANSWERS
    read = [call.path.rpartition('/')[2] for call in fake.bedrock.calls if call.operation == 'download']
    assert len(read) == 2
    assert all(name.endswith('.jsonl.out') for name in read)
    assert any(key.endswith('manifest.json.out') for key in fake.bedrock.objects)


async def test_a_download_that_breaks_off_is_a_transport_fault(fake: FakeProviders, model: Any, clock: ManualClock):
    lane = lane_for(model)
    with filled(lane, *[b'{"n":%d}' % n for n in range(9)]) as payload:
        batch = await lane.create(payload)
    await clock.advance(timedelta(hours=1))
    batch = await lane.status(batch)
    fake.bedrock.inject('download', 'cut', fraction=0.5)
    with pytest.raises(ModelConnectionError) as broken:
        [result async for result in lane.results(batch)]
    assert broken.value.phase == 'read'
    assert len([result async for result in lane.results(batch)]) == 9


async def test_a_file_is_read_in_pieces_and_closed_when_it_is_left(
    fake: FakeProviders, model: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(aws, '_CHUNK', 64)
    lane = lane_for(model)
    with filled(lane, *[b'{"n":%d}' % n for n in range(50)]) as payload:
        batch = await lane.create(payload)
    await clock.advance(timedelta(hours=1))
    results = lane.results(await lane.status(batch))
    first = await anext(results)
    assert isinstance(first, BatchResult)
    await results.aclose()
    assert len([result async for result in lane.results(await lane.status(batch))]) == 50


@pytest.mark.parametrize(
    ('error', 'status', 'name'),
    [
        ({'errorCode': 400, 'errorMessage': 'bad'}, 400, 'ValidationException'),
        ({'errorCode': '429', 'errorMessage': 'slow'}, 429, 'ThrottlingException'),
        ({'errorCode': 403, 'errorMessage': 'no'}, 403, 'AccessDeniedException'),
        ({'errorCode': 'ThrottlingException', 'errorMessage': 'slow'}, 429, 'ThrottlingException'),
        ({'errorCode': 'Odd', 'errorMessage': 'odd'}, 500, 'InternalServerException'),
        ({'errorCode': 200, 'errorMessage': 'odd'}, 500, 'InternalServerException'),
        ({'message': 'odd'}, 500, 'InternalServerException'),
        ('odd', 500, 'InternalServerException'),
    ],
)
async def test_the_error_of_a_request(error: Any, status: int, name: str, lane: Lane, replies: Replies):
    [result] = await read(lane, replies, {'recordId': 'a-0', 'modelInput': {}, 'error': error})
    assert isinstance(result, BatchResult)
    assert result.status == 'errored'
    answer = json.loads(result.body or '')
    assert (answer['status_code'], answer['body']['__type']) == (status, name)
    assert answer['body']['message'] in ('bad', 'slow', 'no', 'odd')


async def test_a_line_without_anything_is_an_error_of_its_request(lane: Lane, replies: Replies):
    [result] = await read(lane, replies, {'recordId': 'a-0'})
    assert isinstance(result, BatchResult)
    assert (result.status, json.loads(result.body or '')['status_code']) == ('errored', 500)


async def test_odd_lines_are_set_aside(lane: Lane, replies: Replies):
    answer: dict[str, Any] = {'output': {}}
    results = await read(
        lane,
        replies,
        {'recordId': 'a-0', 'modelOutput': answer},
        {'modelOutput': answer},
        {'recordId': None},
        [],
        None,
        b'',
        b'{"recordId":"a-1","modelOutput":{"output',
    )
    assert [getattr(result, 'custom_id', None) for result in results] == ['a-0', None, None, None, None, 'a-1']
    assert [result.keyless for result in results if isinstance(result, Stray)] == [True, False, False, False, False]


async def test_a_job_that_says_not_where_its_results_are_is_a_fault(lane: Lane, replies: Replies):
    for output in (None, 's3:/x', 7):
        with pytest.raises(ModelConnectionError, match='output'):
            [result async for result in lane.results(handle(output=output))]
    assert replies.calls == []


async def test_a_listing_of_files_without_end_is_an_error(
    lane: Lane, replies: Replies, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(aws, '_MAX_PAGES', 2)
    token = '<NextContinuationToken>n</NextContinuationToken>'
    for more, said in ((token, '2 pages'), ('', 'does not say where')):
        replies.say(f'<ListBucketResult><IsTruncated>true</IsTruncated>{more}</ListBucketResult>'.encode())
        with pytest.raises(ModelAPIError, match=said):
            [result async for result in lane.results(handle())]


async def test_results_that_somebody_deleted_are_said_to_be_gone_and_are_not_sent_again(
    fake: FakeProviders, model: Any, clock: ManualClock
):
    fake.bedrock.rewrite_results = lambda lines, kind: []
    outcomes = await run(clock, model)
    assert all(
        isinstance(outcome, ModelAPIError) and 'none of which can be read' in str(outcome) for outcome in outcomes
    )
    assert fake.bedrock.count('create') == 1


# Errors as live


async def test_an_input_that_is_too_long_is_told_as_it_is_live(fake: FakeProviders, model: Any, clock: ManualClock):
    fake.answer = lambda request: FakeError(400, None, 'Input is too long for requested model.')
    [error] = await run(clock, model, ['row'])
    assert isinstance(error, ModelContextWindowExceededError)


async def test_an_answer_that_is_none_is_the_error_of_its_request(lane: Lane):
    for body in ('{}', '[]', '{"output":{"message":7}}', '{"output":{}}'):
        result = BatchResult(custom_id='a-0', status='succeeded', body=body)
        with pytest.raises(ModelAPIError):
            await lane.decode(result, BatchRequest(custom_id='a', messages=[]))


async def test_many_requests_are_encoded_at_once_without_being_mixed_up(model: Any):
    lane = lane_for(model)
    encoded = await asyncio.gather(*[lane.encode(request) for request in requests_of(f'row {n}' for n in range(50))])
    for n, each in enumerate(encoded):
        assert json.loads(each.body)['messages'][0]['content'][0]['text'] == f'row {n}'
