from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from anthropic import (
    APIConnectionError,
    APIStatusError,
    AsyncAnthropic,
    InternalServerError,
    NotFoundError,
    OverloadedError,
    RateLimitError,
)

from pydantic_ai_batch.testing import FakeError, FakeProviders, ManualClock

from .test_fake_anthropic_batches import counts, raw_results, results, submit


@pytest.fixture
async def anthropic(fake: FakeProviders) -> AsyncIterator[AsyncAnthropic]:
    async with fake.anthropic.client(max_retries=0) as client:
        yield client


async def test_a_lost_create_reply_leaves_a_batch_that_nothing_names(
    fake: FakeProviders, anthropic: AsyncAnthropic
) -> None:
    fake.anthropic.inject('create', 'lose_reply')
    with pytest.raises(APIConnectionError) as caught:
        await submit(anthropic, 'a', 'b')
    assert isinstance(caught.value.__cause__, httpx2.RemoteProtocolError)
    [batch] = (await anthropic.messages.batches.list()).data
    assert batch.request_counts.processing == 2
    assert fake.anthropic.count('create') == 1


async def test_a_reset_leaves_nothing(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    fake.anthropic.inject('create', 'reset')
    with pytest.raises(APIConnectionError) as caught:
        await submit(anthropic, 'a')
    assert isinstance(caught.value.__cause__, httpx2.ReadError)
    assert fake.anthropic.batches == {}


async def test_a_fault_of_one_provider_is_none_of_another(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    fake.openai.inject('create', 'reset')
    await submit(anthropic, 'a')


@pytest.mark.parametrize(
    ('status', 'type'),
    [
        (400, 'invalid_request_error'),
        (401, 'authentication_error'),
        (402, 'billing_error'),
        (403, 'permission_error'),
        (404, 'not_found_error'),
        (413, 'request_too_large'),
        (418, 'invalid_request_error'),
        (429, 'rate_limit_error'),
        (500, 'api_error'),
        (502, 'api_error'),
        (504, 'timeout_error'),
        (529, 'overloaded_error'),
    ],
)
async def test_an_http_fault_has_the_error_type_of_its_status(
    fake: FakeProviders, anthropic: AsyncAnthropic, status: int, type: str
) -> None:
    fake.anthropic.inject('list', 'http', status=status, message='No.')
    with pytest.raises(APIStatusError) as caught:
        await anthropic.messages.batches.list()
    error = caught.value
    assert (error.status_code, error.api_message) == (status, 'No.')
    assert error.response.json() == {
        'type': 'error',
        'error': {'type': type, 'message': 'No.'},
        'request_id': error.request_id,
    }


async def test_an_error_may_have_a_code_and_a_type_of_its_own(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    fake.anthropic.inject('list', 'http', status=429, code='ramp_limit_exceeded', headers={'retry-after': '7'})
    with pytest.raises(RateLimitError) as limited:
        await anthropic.messages.batches.list()
    assert (limited.value.error_code, limited.value.response.headers['retry-after']) == ('ramp_limit_exceeded', '7')
    fake.answer = lambda request: FakeError(400, None, 'Pay first.', type='billing_error')
    with pytest.raises(APIStatusError) as unpaid:
        await anthropic.messages.create(model='m', max_tokens=1, messages=[{'role': 'user', 'content': 'hi'}])
    assert (unpaid.value.status_code, unpaid.value.type) == (400, 'billing_error')


async def test_an_http_fault_may_come_after_the_call_took_effect(
    fake: FakeProviders, anthropic: AsyncAnthropic
) -> None:
    fake.anthropic.inject('create', 'http', status=529, done=True)
    with pytest.raises(OverloadedError):
        await submit(anthropic, 'a')
    assert len(fake.anthropic.batches) == 1


async def test_a_batch_may_be_unknown_for_a_while(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    batch = await submit(anthropic, 'a')
    fake.anthropic.inject('status', 'http', status=404)
    with pytest.raises(NotFoundError):
        await anthropic.messages.batches.retrieve(batch.id)
    await anthropic.messages.batches.retrieve(batch.id)


async def test_garbage_is_answered_with_status_200(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    batch = await submit(anthropic, 'a')
    fake.anthropic.inject('status', 'garbage', body=b'<p>')
    reply = await anthropic.messages.batches.with_raw_response.retrieve(batch.id)
    assert (reply.http_response.status_code, reply.http_response.content) == (200, b'<p>')


async def test_cut_results_end_short_of_their_last_chunk(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, 'a', 'b')
    await clock.advance(100)
    whole = await raw_results(anthropic, batch.id)
    fake.anthropic.inject('download', 'cut', fraction=0.3)
    received = bytearray()

    async def receive(pieces: AsyncIterator[bytes]) -> None:
        async for piece in pieces:
            received.extend(piece)

    reply = await anthropic.messages.batches.with_raw_response.results(batch.id)
    assert 'content-length' not in reply.headers
    with pytest.raises(httpx2.RemoteProtocolError, match='incomplete chunked read'):
        await receive(reply.http_response.aiter_bytes())
    assert received == whole[: int(len(whole) * 0.3)]
    assert fake.anthropic.calls[-1].status is None


async def test_cut_results_may_look_whole(fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, 'a', 'b')
    await clock.advance(100)
    whole = await raw_results(anthropic, batch.id)
    fake.anthropic.inject('download', 'cut', fraction=0.3, announced=False)
    assert await raw_results(anthropic, batch.id) == whole[: int(len(whole) * 0.3)]
    assert fake.anthropic.calls[-1].status == 200


async def test_a_batch_can_expire_with_some_rows_done(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'expire', done=2, seconds=500)
    batch = await submit(anthropic, 'a', 'b', 'c')
    assert batch.expires_at == batch.created_at + timedelta(seconds=500)
    await clock.advance(499)
    assert (await anthropic.messages.batches.retrieve(batch.id)).processing_status == 'in_progress'
    await clock.advance(1)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'succeeded': 2, 'expired': 1})
    types = {id: result['type'] for id, result in (await results(anthropic, batch.id)).items()}
    assert types == {'r1': 'succeeded', 'r2': 'succeeded', 'r3': 'expired'}


async def test_a_batch_can_be_cancelled_by_somebody_else(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'cancel', done=1)
    batch = await submit(anthropic, 'a', 'b')
    await clock.advance(90)
    assert (await anthropic.messages.batches.retrieve(batch.id)).processing_status == 'canceling'
    await clock.advance(10)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'succeeded': 1, 'canceled': 1})
    assert batch.cancel_initiated_at == batch.created_at + timedelta(seconds=90)
    assert (await results(anthropic, batch.id))['r2'] == {'type': 'canceled'}
    assert fake.anthropic.count('cancel') == 0


async def test_a_stuck_batch_ends_only_when_it_is_cancelled(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'stick', done=1)
    batch = await submit(anthropic, 'a', 'b')
    await clock.advance(timedelta(days=40))
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('in_progress', {'processing': 2})
    assert batch.archived_at is None
    assert len(fake.anthropic.billed) == 1
    await anthropic.messages.batches.cancel(batch.id)
    await clock.advance(10)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'succeeded': 1, 'canceled': 1})
    # Its results are past their time from the first.
    assert batch.archived_at == batch.ended_at


async def test_a_hidden_batch_can_be_had_by_its_id_and_is_listed_later(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'hide', seconds=20)
    batch = await submit(anthropic, 'a')
    assert (await anthropic.messages.batches.list()).data == []
    await anthropic.messages.batches.retrieve(batch.id)
    await clock.advance(20)
    assert [listed.id for listed in (await anthropic.messages.batches.list()).data] == [batch.id]


async def test_a_status_can_be_a_word_that_nobody_knows(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('batch', 'status_word', word='pondering')
    fake.anthropic.inject('batch', 'status_word', word='done', when='ended', after=1)
    first, second = await submit(anthropic, 'a'), await submit(anthropic, 'a')
    for expected in ('pondering', 'in_progress'), ('ended', 'done'):
        statuses = [
            str((await anthropic.messages.batches.retrieve(batch.id)).processing_status) for batch in (first, second)
        ]
        assert tuple(statuses) == expected
        await clock.advance(100)
    second = await anthropic.messages.batches.retrieve(second.id)
    assert (counts(second), bool(second.results_url), bool(second.ended_at)) == ({'succeeded': 1}, True, True)


DAMAGED = {
    'truncate': 'not JSON',
    'not_json': 'not JSON',
    'null_id': 'no id',
    'list': 'no object',
    'blank': 'blank',
    'bad_utf8': 'not UTF-8',
}


def read(line: bytes) -> str:
    """What is wrong with a line; the id of its row if nothing is."""
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError:
        return 'not UTF-8'
    except ValueError:
        return 'not JSON' if line else 'blank'
    return (value['custom_id'] or 'no id') if isinstance(value, dict) else 'no object'


@pytest.mark.parametrize(('how', 'expected'), DAMAGED.items())
async def test_damage_is_of_one_line_only(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock, how: str, expected: str
) -> None:
    fake.anthropic.inject('lines', 'damage', how=how)
    batch = await submit(anthropic, 'a', 'b', 'c')
    await clock.advance(100)
    lines = [read(line) for line in (await raw_results(anthropic, batch.id)).removesuffix(b'\n').split(b'\n')]
    good = ['r1', 'r2', 'r3'] if how == 'blank' else ['r2', 'r3']
    assert Counter(lines) == Counter([expected, *good])


async def test_lines_can_be_missing_repeated_and_of_nobody(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.inject('lines', 'drop', rows=lambda request: request.text == 'b')
    fake.anthropic.inject('lines', 'duplicate', rows=1)
    fake.anthropic.inject('lines', 'unknown_id', rows=lambda request: request.custom_id == 'r3')
    batch = await submit(anthropic, 'a', 'b', 'c')
    await clock.advance(100)
    lines = (await raw_results(anthropic, batch.id)).splitlines()
    assert sorted(json.loads(line)['custom_id'] for line in lines) == ['r1', 'r1', 'r3', 'unknown-2']
    assert len(fake.anthropic.billed) == 3
    assert counts(await anthropic.messages.batches.retrieve(batch.id)) == {'succeeded': 3}


async def test_the_one_file_of_results_can_be_rewritten_at_will(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    kinds: list[str] = []

    def rewrite(lines: list[bytes], kind: str) -> list[bytes]:
        kinds.append(kind)
        return [b'mine', *lines]

    fake.anthropic.rewrite_results = rewrite
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    first, _ = (await raw_results(anthropic, batch.id)).splitlines()
    assert (first, kinds) == (b'mine', ['output'])


@pytest.mark.parametrize(
    ('operation', 'fault', 'options', 'said'),
    [
        ('batch', 'fail', {}, 'never fails as a whole'),
        ('lines', 'string_body', {}, 'no HTTP response'),
        ('lines', 'error_in_output', {}, 'one file'),
        ('upload', 'http', {}, 'download'),
        ('batch', 'status_word', {'when': 'completed'}, 'canceling'),
    ],
)
async def test_a_fault_that_anthropic_cannot_have_is_refused(
    fake: FakeProviders, operation: str, fault: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fake.anthropic.inject(operation, fault, **options)


async def test_what_a_function_of_the_test_raises_is_raised_when_the_fakes_stop(clock: ManualClock) -> None:
    fake = FakeProviders(clock=clock, processing=timedelta(0))
    fake.start()
    fake.anthropic.inject('lines', 'drop', rows=lambda request: bool(1 / 0))
    async with fake.anthropic.client(max_retries=0) as client:
        with pytest.raises(InternalServerError, match='division by zero') as caught:
            await submit(client, 'a')
    assert caught.value.type == 'api_error'
    with pytest.raises(ZeroDivisionError):
        fake.stop()
