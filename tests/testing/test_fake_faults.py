from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from openai import APIConnectionError, AsyncOpenAI, InternalServerError, NotFoundError, RateLimitError

from pydantic_ai_batch.testing import FakeError, FakeProviders, ManualClock
from pydantic_ai_batch.testing.faults import DEFAULTS

from .fake_openai_jobs import Results, Submit, input_file


async def test_a_reset_is_an_error_of_the_socket_and_nothing_was_done(fake: FakeProviders, openai: AsyncOpenAI) -> None:
    file = await openai.files.create(file=input_file(['a']), purpose='batch')
    fake.openai.inject('create', 'reset')
    with pytest.raises(APIConnectionError) as caught:
        await openai.batches.create(input_file_id=file.id, endpoint='/v1/responses', completion_window='24h')
    assert isinstance(caught.value.__cause__, httpx2.ReadError)
    assert fake.openai.batches == {}
    assert fake.openai.calls[-1].status is None


async def test_a_lost_reply_leaves_what_was_done(fake: FakeProviders, openai: AsyncOpenAI, submit: Submit) -> None:
    fake.openai.inject('create', 'lose_reply')
    with pytest.raises(APIConnectionError) as caught:
        await submit('a', metadata={'tag': 'x'})
    assert isinstance(caught.value.__cause__, httpx2.RemoteProtocolError)
    assert [batch.metadata for batch in (await openai.batches.list()).data] == [{'tag': 'x'}]
    assert fake.openai.count('create') == 1
    assert [call.status for call in fake.openai.calls if call.operation == 'create'] == [None]


async def test_an_http_fault_has_status_code_message_and_headers(fake: FakeProviders, openai: AsyncOpenAI) -> None:
    fake.openai.inject('list', 'http', status=429, code='slow_down', message='Wait.', headers={'retry-after': '7'})
    with pytest.raises(RateLimitError, match='Wait') as caught:
        await openai.batches.list()
    assert caught.value.code == 'slow_down'
    assert caught.value.response.headers['retry-after'] == '7'
    await openai.batches.list()
    assert [call.status for call in fake.openai.calls] == [429, 200]


async def test_an_http_fault_may_come_after_the_call_took_effect(fake: FakeProviders, submit: Submit) -> None:
    fake.openai.inject('create', 'http', status=502, done=True)
    with pytest.raises(InternalServerError):
        await submit('a')
    assert len(fake.openai.batches) == 1


async def test_garbage_is_answered_with_status_200(fake: FakeProviders, openai: AsyncOpenAI, submit: Submit) -> None:
    batch = await submit('a')
    fake.openai.inject('status', 'garbage', body=b'<p>')
    reply = await openai.batches.with_raw_response.retrieve(batch.id)
    assert (reply.http_response.status_code, reply.http_response.content) == (200, b'<p>')


async def test_a_fault_hits_as_often_and_as_late_as_it_was_asked_to(
    fake: FakeProviders, openai: AsyncOpenAI, submit: Submit
) -> None:
    batch = await submit('a')
    fake.openai.inject('status', 'http', status=404, times=2, after=1)
    fake.openai.inject('status', 'http', status=500)
    for error in InternalServerError, NotFoundError, NotFoundError, None:
        if error is None:
            await openai.batches.retrieve(batch.id)
        else:
            with pytest.raises(error):
                await openai.batches.retrieve(batch.id)
    fake.openai.inject('status', 'http', times=None)
    for _ in range(3):
        with pytest.raises(InternalServerError):
            await openai.batches.retrieve(batch.id)
    fake.openai.clear_faults()
    await openai.batches.retrieve(batch.id)


async def test_a_cut_download_ends_short_of_its_length(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit('a', 'b')
    await clock.advance(100)
    file_id = (await openai.batches.retrieve(batch.id)).output_file_id or ''
    whole = (await openai.files.content(file_id)).content
    fake.openai.inject('download', 'cut', fraction=0.3)
    received = bytearray()

    async def receive(pieces: AsyncIterator[bytes]) -> None:
        async for piece in pieces:
            received.extend(piece)

    async with openai.files.with_streaming_response.content(file_id) as reply:
        assert int(reply.headers['content-length']) == len(whole)
        with pytest.raises(httpx2.RemoteProtocolError, match='peer closed'):
            await receive(reply.iter_bytes())
    assert received == whole[: int(len(whole) * 0.3)]


async def test_a_cut_download_may_look_whole(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit('a', 'b')
    await clock.advance(100)
    file_id = (await openai.batches.retrieve(batch.id)).output_file_id or ''
    whole = (await openai.files.content(file_id)).content
    fake.openai.inject('download', 'cut', fraction=0.3, announced=False)
    reply = await openai.files.content(file_id)
    assert 'content-length' not in reply.response.headers
    assert reply.content == whole[: int(len(whole) * 0.3)]
    assert fake.openai.calls[-1].status == 200


async def test_the_client_of_a_broken_connection_goes_on_with_the_next(
    fake: FakeProviders, openai: AsyncOpenAI
) -> None:
    for fault in ['reset', 'lose_reply'] * 3:
        await openai.batches.list()
        fake.openai.inject('list', fault)
        with pytest.raises(APIConnectionError):
            await openai.batches.list()


async def test_a_batch_can_expire_with_some_rows_done(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.openai.inject('batch', 'expire', done=2, seconds=500)
    batch = await submit('a', 'b', 'c')
    assert batch.expires_at == batch.created_at + 500
    await clock.advance(499)
    assert (await openai.batches.retrieve(batch.id)).status == 'in_progress'
    await clock.advance(1)
    assert (await openai.batches.retrieve(batch.id)).status == 'expired'
    output, errors = await results(batch)
    assert {line['custom_id'] for line in output} == {'r1', 'r2'}
    assert [line['custom_id'] for line in errors] == ['r3']
    assert (await submit('a')).expires_at == int(clock.now()) + 86_400


async def test_a_batch_can_be_cancelled_by_somebody_else(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.openai.inject('batch', 'cancel', done=1)
    batch = await submit('a', 'b')
    await clock.advance(90)
    assert (await openai.batches.retrieve(batch.id)).status == 'cancelling'
    await clock.advance(10)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.finalizing_at) == ('cancelled', None)
    output, errors = await results(batch)
    assert [line['custom_id'] for line in output] == ['r1']
    assert [line['error']['code'] for line in errors] == ['batch_cancelled']
    assert fake.openai.count('cancel') == 0


async def test_a_batch_can_fail(fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit) -> None:
    fake.openai.inject('batch', 'fail')
    fake.openai.inject('batch', 'fail', after=1, errors=[{'code': 'odd', 'message': 'Odd.', 'line': 7}])
    batches = [await submit('a'), await submit('a')]
    await clock.advance(10)
    errors: list[Any] = []
    for batch in batches:
        batch = await openai.batches.retrieve(batch.id)
        assert batch.status == 'failed'
        assert batch.errors
        errors += batch.errors.data or []
    assert [(error.code, error.line) for error in errors] == [('server_error', None), ('odd', 7)]


async def test_a_stuck_batch_ends_only_when_it_is_cancelled(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.inject('batch', 'stick', done=1)
    batch = await submit('a', 'b')
    await clock.advance(1_000_000)
    batch = await openai.batches.retrieve(batch.id)
    assert batch.request_counts is not None
    assert (batch.status, batch.request_counts.completed) == ('in_progress', 1)
    await openai.batches.cancel(batch.id)
    await clock.advance(10)
    assert (await openai.batches.retrieve(batch.id)).status == 'cancelled'


async def test_a_status_can_be_a_word_that_nobody_knows(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.inject('batch', 'status_word', word='pondering')
    fake.openai.inject('batch', 'status_word', word='done', when='completed', after=1)
    first, second = await submit('a'), await submit('a')
    await clock.advance(50)
    assert (await openai.batches.retrieve(first.id)).status == 'pondering'
    assert (await openai.batches.retrieve(second.id)).status == 'in_progress'
    await clock.advance(50)
    assert (await openai.batches.retrieve(first.id)).status == 'completed'
    batch = await openai.batches.retrieve(second.id)
    assert batch.status == 'done'
    assert batch.output_file_id
    assert batch.completed_at


async def test_a_hidden_batch_can_be_had_by_its_id_and_is_listed_later(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.inject('batch', 'hide', seconds=20)
    batch = await submit('a')
    assert (await openai.batches.list()).data == []
    await openai.batches.retrieve(batch.id)
    await clock.advance(20)
    assert [listed.id for listed in (await openai.batches.list()).data] == [batch.id]


DAMAGED = {
    'truncate': 'not JSON',
    'not_json': 'not JSON',
    'null_id': 'no id',
    'list': 'no object',
    'blank': 'whole',
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
    if not isinstance(value, dict):
        return 'no object'
    return value['custom_id'] or 'no id'


@pytest.mark.parametrize(('how', 'expected'), DAMAGED.items())
async def test_damage_is_of_one_line_only(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, how: str, expected: str
) -> None:
    fake.openai.inject('lines', 'damage', how=how)
    batch = await submit('a', 'b', 'c')
    await clock.advance(100)
    file_id = (await openai.batches.retrieve(batch.id)).output_file_id or ''
    lines = [read(line) for line in (await openai.files.content(file_id)).content.removesuffix(b'\n').split(b'\n')]
    good = ['r1', 'r2', 'r3'] if expected == 'whole' else ['r2', 'r3']
    assert sorted(line for line in lines if line.startswith('r')) == good
    assert [line for line in lines if not line.startswith('r')] == ['blank' if expected == 'whole' else expected]


async def test_lines_can_be_missing_repeated_and_of_nobody(
    fake: FakeProviders, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.openai.inject('lines', 'drop', rows=lambda request: request.text == 'b')
    fake.openai.inject('lines', 'duplicate', rows=1)
    fake.openai.inject('lines', 'unknown_id', rows=lambda request: request.custom_id == 'r3')
    batch = await submit('a', 'b', 'c')
    await clock.advance(100)
    output, _ = await results(batch)
    assert sorted(line['custom_id'] for line in output) == ['r1', 'r1', 'r3', 'unknown-2']
    assert len(fake.openai.billed) == 3


async def test_error_lines_can_stand_among_the_answers(
    fake: FakeProviders, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.answer = lambda request: FakeError(400, 'no', 'No.') if request.text == 'b' else 'ok'
    fake.openai.inject('lines', 'error_in_output')
    batch = await submit('a', 'b')
    await clock.advance(100)
    output, errors = await results(batch)
    assert sorted(line['response']['status_code'] for line in output) == [200, 400]
    assert errors == []


async def test_a_body_can_be_json_in_a_string(
    fake: FakeProviders, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.openai.inject('batch', 'expire', done=1, seconds=50)
    fake.openai.inject('lines', 'string_body')
    batch = await submit('a', 'b')
    await clock.advance(100)
    output, errors = await results(batch)
    assert json.loads(output[0]['response']['body'])['object'] == 'response'
    assert errors[0]['response'] is None


async def test_results_can_be_rewritten_at_will(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    kinds: list[str] = []

    def rewrite(lines: list[bytes], kind: str) -> list[bytes]:
        kinds.append(kind)
        return [b'mine'] if lines else []

    fake.openai.rewrite_results = rewrite
    batch = await submit('a')
    await clock.advance(100)
    batch = await openai.batches.retrieve(batch.id)
    assert (await openai.files.content(batch.output_file_id or '')).content == b'mine\n'
    assert batch.error_file_id is None
    assert kinds == ['output', 'error']


async def test_what_a_function_of_the_test_raises_is_raised_when_the_fakes_stop(clock: ManualClock) -> None:
    fake = FakeProviders(clock=clock, processing=timedelta(0))
    fake.start()
    fake.openai.inject('lines', 'drop', rows=lambda request: bool(1 / 0))
    async with fake.openai.client(max_retries=0) as client:
        file = await client.files.create(file=input_file(['a']), purpose='batch')
        with pytest.raises(InternalServerError, match='division by zero'):
            await client.batches.create(input_file_id=file.id, endpoint='/v1/responses', completion_window='24h')
    with pytest.raises(ZeroDivisionError):
        fake.stop()


async def test_faults_of_a_batch_wait_for_one_that_is_created(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.inject('batch', 'fail')
    fake.openai.inject('create', 'reset')
    with pytest.raises(APIConnectionError):
        await submit('a')
    batch = await submit('a')
    await clock.advance(10)
    assert (await openai.batches.retrieve(batch.id)).status == 'failed'


@pytest.mark.parametrize(
    ('operation', 'fault', 'options', 'said'),
    [
        ('creat', 'http', {}, 'create'),
        ('create', 'htttp', {}, 'http, lose_reply, reset'),
        ('create', 'cut', {}, 'garbage'),
        ('batch', 'drop', {}, 'expire'),
        ('lines', 'expire', {}, 'damage'),
        ('create', 'http', {'state': 404}, 'status'),
        ('create', 'reset', {'status': 404}, 'no options'),
        ('lines', 'damage', {'how': 'badly'}, 'truncate'),
        ('batch', 'status_word', {'when': 'running'}, 'in_progress'),
        ('create', 'reset', {'times': 0}, 'at least 1'),
        ('create', 'reset', {'after': -1}, 'negative'),
    ],
)
async def test_a_fault_that_does_not_exist_is_refused_with_those_that_do(
    fake: FakeProviders, operation: str, fault: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fake.openai.inject(operation, fault, **options)


async def test_counting_what_does_not_exist_is_refused(fake: FakeProviders) -> None:
    assert fake.openai.count('create') == fake.openai.count('unknown') == 0
    with pytest.raises(ValueError, match='create'):
        fake.openai.count('creates')


@pytest.mark.parametrize(
    ('operation', 'fault', 'options', 'said'),
    [
        ('create', 'http', {'status': '404'}, "an HTTP status from 200 to 599, not '404'"),
        ('create', 'http', {'status': 1000}, 'an HTTP status'),
        ('create', 'http', {'code': 7}, 'a string or `None`, not 7'),
        ('create', 'http', {'message': None}, 'a string, not None'),
        ('create', 'http', {'headers': {'retry-after': 7}}, 'a mapping of strings to strings'),
        ('create', 'http', {'headers': [('retry-after', '7')]}, 'a mapping of strings to strings'),
        ('create', 'http', {'done': 1}, 'true or false, not 1'),
        ('create', 'garbage', {'body': {}}, 'bytes or a string'),
        ('download', 'cut', {'fraction': 30}, 'a number from 0 to 1, not 30'),
        ('download', 'cut', {'announced': 'no'}, 'true or false'),
        ('batch', 'expire', {'seconds': '60'}, 'a number of seconds'),
        ('batch', 'expire', {'seconds': float('nan')}, 'a number of seconds'),
        ('batch', 'hide', {'seconds': -1}, 'a number of seconds'),
        ('batch', 'cancel', {'done': 1.5}, 'a number of rows'),
        ('batch', 'stick', {'done': True}, 'a number of rows'),
        ('batch', 'fail', {'errors': {'code': 'x'}}, 'a list of mappings'),
        ('batch', 'fail', {'errors': ['x']}, 'a list of mappings'),
        ('batch', 'fail', {'rows': 1}, 'a function from `FakeRequest`'),
        ('batch', 'status_word', {'word': None}, 'a string'),
        ('batch', 'status_word', {'when': ['in_progress']}, 'in_progress'),
        ('lines', 'drop', {'rows': '1'}, "or, in Python, a function from `FakeRequest`, not '1'"),
        ('lines', 'duplicate', {'rows': -1}, 'the number of the first rows'),
        ('lines', 'string_body', {'rows': True}, 'the number of the first rows'),
        ('lines', 'damage', {'how': 3}, 'truncate'),
        ('create', 'reset', {'times': '2'}, 'at least 1'),
        ('create', 'reset', {'times': 1.5}, 'at least 1'),
        ('create', 'reset', {'after': None}, 'not negative'),
    ],
)
async def test_a_value_that_an_option_does_not_take_is_refused_when_it_is_injected(
    fake: FakeProviders, operation: str, fault: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        fake.openai.inject(operation, fault, **options)


@pytest.mark.parametrize(
    ('operation', 'fault'), [(operation, fault) for operation, faults in DEFAULTS.items() for fault in faults]
)
async def test_every_option_takes_its_own_default(fake: FakeProviders, operation: str, fault: str) -> None:
    fake.openai.inject(operation, fault, **DEFAULTS[operation][fault])
