"""What the lane of Bedrock sends, and what the fake answers, is what AWS's own description of the service says."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from lanes.harness import harness_of, requests_of

from pydantic_ai_batch import cancel_batch, list_batches, model_request_batch, submit_batch
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .aws_shapes import operation, validator
from .schemas import SPECS

pytestmark = pytest.mark.skipif(not SPECS.is_dir(), reason='the published specs are not on this machine')

OPERATIONS = {
    'create': 'CreateModelInvocationJob',
    'status': 'GetModelInvocationJob',
    'list': 'ListModelInvocationJobs',
    'cancel': 'StopModelInvocationJob',
}


async def test_every_call_and_every_job_is_one_of_the_spec(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    harness = harness_of('bedrock', monkeypatch)
    with FakeProviders(clock=clock) as fake:
        model, _ = harness.make(fake, 'test')
        fake.bedrock.inject('create', 'lose_reply')
        fake.bedrock.inject('batch', 'expire', after=1, done=1)
        fake.bedrock.inject('batch', 'fail', after=2)
        rows = requests_of(['a', 'é\u2028'])
        for _ in range(3):
            await clock.run(model_request_batch(model, rows, max_resubmissions=0, clock=clock))
        job = await clock.run(submit_batch(model, rows, clock=clock))
        await clock.run(cancel_batch(job, model, clock=clock))
        assert len([batch async for batch in list_batches(model)]) == 4
    for name, of in OPERATIONS.items():
        described = operation(of, '/bedrock')
        calls = [call for call in fake.bedrock.calls if call.operation == name]
        assert calls
        for call in calls:
            assert call.method == described.method
            assert described.path.fullmatch(call.path)
            assert described.refuses(call.query) == []
            validator(described.input).validate(json.loads(call.body or b'{}'))
    for batch in fake.bedrock.batches.values():
        for shape in ('GetModelInvocationJobResponse', 'ModelInvocationJobSummary'):
            validator(shape).validate(batch.to_json())
        validator('CreateModelInvocationJobResponse').validate({'jobArn': batch.id})


RIGHT: dict[str, Any] = {
    'jobName': 'a',
    'roleArn': 'arn:aws:iam::123456789012:role/r',
    'modelId': 'us.amazon.nova-lite-v1:0',
    'inputDataConfig': {'s3InputDataConfig': {'s3Uri': 's3://bucket/key'}},
    'outputDataConfig': {'s3OutputDataConfig': {'s3Uri': 's3://bucket/'}},
}


@pytest.mark.parametrize(
    'wrong',
    [
        {'jobName': 'a b'},
        {'clientRequestToken': 'a_b'},
        {'timeoutDurationInHours': 23},
        {'modelInvocationType': 'Chat'},
        {'inputDataConfig': {}},
        {'inputDataConfig': {'s3InputDataConfig': {'s3Uri': 'https://bucket/key'}}},
        {'metadata': {}},
        {'roleArn': 'r'},
    ],
)
def test_what_is_wrong_is_refused(wrong: dict[str, Any]):
    create = validator('CreateModelInvocationJobRequest')
    create.validate(RIGHT)
    with pytest.raises(jsonschema_rs.ValidationError):
        create.validate({**RIGHT, **wrong})
    assert operation('ListModelInvocationJobs', '').refuses({'maxResults': '1001'}) == ['maxResults=1001']
    assert operation('ListModelInvocationJobs', '').refuses({'limit': '1'}) == ['limit']
