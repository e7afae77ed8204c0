"""The fake Bedrock, as AWS's own SDK sees it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock
from pydantic_ai_batch.testing.s3_objects import sent

ROLE = 'arn:aws:iam::123456789012:role/batches'


def answer(request: FakeRequest) -> str | FakeError:
    if request.text == 'wrong':
        return FakeError(400, None, 'It is wrong.')
    return f'answer to {request.text} of {request.model}'


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    with FakeProviders(answer, clock=clock, ordered=True) as fake:
        yield fake


def client(fake: FakeProviders, service: str, key: str = 'test') -> Any:
    endpoint = fake.bedrock.base_url + ('/s3' if service == 's3' else '')
    config = Config(proxies={}, retries={'total_max_attempts': 1})
    session = boto3.Session(aws_access_key_id=key, aws_secret_access_key='s', region_name='us-east-1')
    return session.client(service, endpoint_url=endpoint, config=config)


def body(text: str) -> dict[str, Any]:
    return {'messages': [{'role': 'user', 'content': [{'text': text}]}]}


def order(fake: FakeProviders, *texts: str, **changes: Any) -> str:
    lines = [json.dumps({'recordId': f'r{n}', 'modelInput': body(text)}) for n, text in enumerate(texts)]
    client(fake, 's3').put_object(Bucket='test-batches', Key='in/x.jsonl', Body='\n'.join(lines).encode())
    asked: dict[str, Any] = {
        'jobName': 'a-job',
        'roleArn': ROLE,
        'modelId': 'amazon.nova-lite-v1:0',
        'modelInvocationType': 'Converse',
        'inputDataConfig': {'s3InputDataConfig': {'s3Uri': 's3://test-batches/in/x.jsonl'}},
        'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': 's3://test-batches/out/'}},
        **changes,
    }
    return client(fake, 'bedrock').create_model_invocation_job(**asked)['jobArn']


def code_of(error: pytest.ExceptionInfo[ClientError]) -> tuple[str, int]:
    reply: Any = error.value.response
    return reply['Error']['Code'], reply['ResponseMetadata']['HTTPStatusCode']


async def test_a_job_runs_and_writes_its_results_beside_a_manifest(fake: FakeProviders, clock: ManualClock):
    arn = order(fake, 'one', 'wrong', clientRequestToken='t')
    bedrock, s3 = client(fake, 'bedrock'), client(fake, 's3')
    assert bedrock.get_model_invocation_job(jobIdentifier=arn)['status'] == 'Validating'
    assert order(fake, 'one', 'wrong', clientRequestToken='t') == arn
    await clock.advance(600)
    job = bedrock.get_model_invocation_job(jobIdentifier=arn.rpartition('/')[2])
    assert (job['status'], job['totalRecordCount'], job['successRecordCount'], job['errorRecordCount']) == (
        'Completed',
        2,
        1,
        1,
    )
    assert job['submitTime'] < job['endTime']
    below = f'out/{arn.rpartition("/")[2]}/'
    keys = [item['Key'] for item in s3.list_objects_v2(Bucket='test-batches', Prefix=below)['Contents']]
    assert keys == [f'{below}manifest.json.out', f'{below}x.jsonl.out']
    manifest, results = (s3.get_object(Bucket='test-batches', Key=key)['Body'].read() for key in keys)
    assert json.loads(manifest)['successRecordCount'] == 1
    right, wrong = (json.loads(line) for line in results.splitlines())
    assert (right['recordId'], right['modelInput']) == ('r0', body('one'))
    assert right['modelOutput']['output']['message']['content'] == [{'text': 'answer to one of amazon.nova-lite-v1:0'}]
    assert (wrong['error']['errorCode'], wrong['error']['errorMessage']) == (400, 'It is wrong.')


def test_it_answers_live_requests_and_fails_as_the_service_does(fake: FakeProviders):
    runtime = fake.bedrock.client()
    reply = runtime.converse(modelId='amazon.nova-lite-v1:0', **body('one'))
    assert reply['output']['message']['content'] == [{'text': 'answer to one of amazon.nova-lite-v1:0'}]
    with pytest.raises(runtime.exceptions.ValidationException) as refused:
        runtime.converse(modelId='amazon.nova-lite-v1:0', **body('wrong'))
    assert code_of(refused) == ('ValidationException', 400)


@pytest.mark.parametrize(
    'changes',
    [
        {'roleArn': 'arn:aws:iam::123456789012:user/x'},
        {'modelInvocationType': 'InvokeModel'},
        {'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': 'test-batches/out'}}},
        {'timeoutDurationInHours': 169},
        {'jobName': 'a job'},
    ],
)
def test_an_order_that_is_wrong_is_refused(changes: dict[str, Any], fake: FakeProviders):
    with pytest.raises(ClientError) as refused:
        order(fake, 'one', **changes)
    # What the SDK does not refuse by itself.
    assert code_of(refused) == ('ValidationException', 400)


@pytest.mark.parametrize(
    ('texts', 'changes', 'message'),
    [
        (['one'], {'inputDataConfig': {'s3InputDataConfig': {'s3Uri': 's3://test-batches/in/y.jsonl'}}}, 'no object'),
        ([], {}, 'minimum of 1'),
        (['one'] * 4, {}, 'more than the 3'),
    ],
)
async def test_an_input_that_is_wrong_fails_the_job_later(
    texts: list[str], changes: dict[str, Any], message: str, fake: FakeProviders, clock: ManualClock
):
    fake.bedrock.max_records = 3
    arn = order(fake, *texts, **changes)
    await clock.advance(600)
    job = client(fake, 'bedrock').get_model_invocation_job(jobIdentifier=arn)
    assert job['status'] == 'Failed'
    assert message in job['message']
    assert list(fake.bedrock.objects) == ['in/x.jsonl']


def test_each_account_sees_its_own_alone(fake: FakeProviders):
    arn = order(fake, 'one')
    with pytest.raises(ClientError) as hidden:
        client(fake, 'bedrock', 'other').get_model_invocation_job(jobIdentifier=arn)
    assert code_of(hidden) == ('ResourceNotFoundException', 404)
    assert client(fake, 'bedrock', 'other').list_model_invocation_jobs()['invocationJobSummaries'] == []
    s3 = client(fake, 's3', 'other')
    with pytest.raises(ClientError) as missing:
        s3.get_object(Bucket='test-batches', Key='in/x.jsonl')
    assert code_of(missing) == ('NoSuchKey', 404)
    assert 'Contents' not in s3.list_objects_v2(Bucket='test-batches')
    s3.delete_object(Bucket='test-batches', Key='in/x.jsonl')
    assert list(fake.bedrock.objects) == ['in/x.jsonl']


def test_the_listing_is_filtered_and_comes_in_pages(fake: FakeProviders):
    for name in ('a-1', 'b-1', 'a-2'):
        order(fake, 'one', jobName=name)
    bedrock = client(fake, 'bedrock')
    pages = bedrock.get_paginator('list_model_invocation_jobs').paginate(
        nameContains='a-', sortBy='CreationTime', sortOrder='Descending', PaginationConfig={'PageSize': 1}
    )
    assert [[job['jobName'] for job in page['invocationJobSummaries']] for page in pages] == [['a-2'], ['a-1']]


def test_objects_are_written_read_listed_and_deleted(fake: FakeProviders):
    s3 = client(fake, 's3')
    for key in ('a/1', 'a/2', 'b/ü'):
        s3.put_object(Bucket='test-batches', Key=key, Body=io.BytesIO(key.encode()))
    assert s3.get_object(Bucket='test-batches', Key='b/ü')['Body'].read() == 'b/ü'.encode()
    assert s3.head_object(Bucket='test-batches', Key='a/1')['ContentLength'] == 3
    pages = s3.get_paginator('list_objects_v2').paginate(
        Bucket='test-batches', Prefix='a/', PaginationConfig={'PageSize': 1}
    )
    assert [[item['Key'] for item in page['Contents']] for page in pages] == [['a/1'], ['a/2']]
    s3.delete_object(Bucket='test-batches', Key='a/1')
    s3.delete_object(Bucket='test-batches', Key='a/1')
    assert sorted(fake.bedrock.objects) == ['a/2', 'b/ü']
    with pytest.raises(ClientError) as missing:
        s3.put_object(Bucket='elsewhere', Key='a', Body=b'')
    assert code_of(missing) == ('NoSuchBucket', 404)


@pytest.mark.parametrize('operation', ['upload', 'download', 'objects', 'delete', 'create', 'status', 'list', 'cancel'])
def test_a_fault_is_in_the_words_of_the_service(operation: str, fake: FakeProviders):
    arn = order(fake, 'one')
    s3, bedrock = client(fake, 's3'), client(fake, 'bedrock')
    place: dict[str, Any] = {'Bucket': 'test-batches', 'Key': 'in/x.jsonl'}
    calls = {
        'upload': lambda: s3.put_object(**place, Body=b''),
        'download': lambda: s3.get_object(**place),
        'objects': lambda: s3.list_objects_v2(Bucket='test-batches'),
        'delete': lambda: s3.delete_object(**place),
        'create': lambda: order(fake, 'one'),
        'status': lambda: bedrock.get_model_invocation_job(jobIdentifier=arn),
        'list': lambda: bedrock.list_model_invocation_jobs(),
        'cancel': lambda: bedrock.stop_model_invocation_job(jobIdentifier=arn),
    }
    fake.bedrock.inject(operation, 'http', status=503, message='later')
    with pytest.raises(ClientError, match='later') as failed:
        calls[operation]()
    of_s3 = operation in ('upload', 'download', 'objects', 'delete')
    assert code_of(failed) == ('SlowDown' if of_s3 else 'ServiceUnavailableException', 503)


def test_an_upload_in_chunks_is_put_together():
    headers = {'x-amz-content-sha256': 'STREAMING-UNSIGNED-PAYLOAD-TRAILER'}
    whole = b'5\r\nhello\r\n6;chunk-signature=0\r\n world\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n'
    assert sent(headers, whole) == b'hello world'
    assert sent({'x-amz-content-sha256': 'UNSIGNED-PAYLOAD'}, whole) == whole
    for cut in (whole[:6], whole[:20], b''):
        with pytest.raises(ValueError, match=r'chunk|int'):
            sent(headers, cut)
