"""The files of Bedrock's batches in moto's S3. Its Bedrock has no batches, so that what plays that is our fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError, ModelNotFoundError
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockProvider

from pydantic_ai_batch import lane_for
from pydantic_ai_batch.lanes import bedrock
from pydantic_ai_batch.lanes.aws import AWS, S3Place, services_of
from pydantic_ai_batch.lanes.base import NotCreated, Payload
from pydantic_ai_batch.testing import FakeProviders

BUCKET = 'our-batches'


@pytest.fixture
def model(moto: str, upstream: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> BedrockConverseModel:
    """A model whose files are in moto, and whose jobs the fake makes."""
    for name, value in upstream.bedrock.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('AWS_ENDPOINT_URL_S3', moto)
    monkeypatch.setenv('AWS_BEDROCK_BATCH_S3_URI', f's3://{BUCKET}/batches')
    return BedrockConverseModel(
        'us.amazon.nova-lite-v1:0', provider=BedrockProvider(bedrock_client=upstream.bedrock.client())
    )


@pytest.fixture
async def aws(model: BedrockConverseModel) -> AWS:
    return AWS(await services_of(model), model.model_name, bedrock.PLACE_VARIABLE)


@pytest.fixture
def bucket(aws: AWS) -> Iterator[Any]:
    s3 = aws.services.s3
    s3.create_bucket(Bucket=BUCKET)
    yield s3
    for page in s3.get_paginator('list_objects_v2').paginate(Bucket=BUCKET):
        for item in page.get('Contents', []):
            s3.delete_object(Bucket=BUCKET, Key=item['Key'])
    s3.delete_bucket(Bucket=BUCKET)


async def test_the_input_of_a_batch_arrives_whole_and_is_deleted(model: BedrockConverseModel, bucket: Any) -> None:
    lane = lane_for(model)
    bodies = [
        json.dumps({'messages': [{'role': 'user', 'content': [{'text': 'é' * 5_000}]}], 'n': n}) for n in range(800)
    ]
    with Payload(lane, await lane.identity()) as payload:
        ids = [payload.add(body.encode()) for body in bodies]
        batch = await lane.create(payload)
        assert (batch.provider_details or {})['input'] == f's3://{BUCKET}/batches/pab-{payload.tag}.jsonl'
        key = f'batches/pab-{payload.tag}.jsonl'
        content: bytes = bucket.get_object(Bucket=BUCKET, Key=key)['Body'].read()
        assert len(content) == payload.size
        lines = [json.loads(line) for line in content.splitlines()]
        assert [line['recordId'] for line in lines] == ids
        assert [json.dumps(line['modelInput']) for line in lines] == [json.dumps(json.loads(body)) for body in bodies]
        await lane.discard(payload)
    assert 'Contents' not in bucket.list_objects_v2(Bucket=BUCKET)


async def test_a_bucket_that_is_not_there_is_said_and_no_job_is_ordered(
    model: BedrockConverseModel, upstream: FakeProviders
) -> None:
    lane = lane_for(model)
    with Payload(lane, await lane.identity()) as payload:
        payload.add(b'{}')
        with pytest.raises(NotCreated) as raised:
            await lane.create(payload)
    # It is no model that is not there.
    error = raised.value.__cause__
    assert isinstance(error, ModelHTTPError)
    assert not isinstance(error, ModelNotFoundError)
    assert error.status_code == 404
    assert 'NoSuchBucket' in str(error)
    assert '`AWS_BEDROCK_BATCH_S3_URI`' in str(error)
    assert upstream.bedrock.count('create') == 0


async def test_every_file_below_a_place_is_found_over_all_pages_of_the_listing(aws: AWS, bucket: Any) -> None:
    for n in range(1_005):
        bucket.put_object(Bucket=BUCKET, Key=f'batches/job/{n:04}.jsonl.out', Body=b'')
    bucket.put_object(Bucket=BUCKET, Key='batches/job-of-another/0.jsonl.out', Body=b'')
    found = await aws.below(S3Place(BUCKET, 'batches/job/'))
    assert [place.key for place in found] == [f'batches/job/{n:04}.jsonl.out' for n in range(1_005)]


async def test_lines_are_streamed_as_they_are_in_the_file(aws: AWS, bucket: Any) -> None:
    # Longer than what is read at a time, with what only some take for the end of a line.
    text = 'x\u2028' * 20_000
    lines = [json.dumps({'n': n, 'text': text}, ensure_ascii=False).encode() for n in range(60)]
    bucket.put_object(Bucket=BUCKET, Key='batches/out', Body=b'\n'.join(lines))
    assert [line async for line in aws.lines(S3Place(BUCKET, 'batches/out'))] == lines
    with pytest.raises(ModelHTTPError, match='NoSuchKey'):
        [line async for line in aws.lines(S3Place(BUCKET, 'batches/none'))]
