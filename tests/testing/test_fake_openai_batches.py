from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

from .fake_openai_jobs import Results, Submit, input_file

TEXTS = [f'text {n}' for n in range(1, 11)]


def ids(lines: list[dict[str, Any]]) -> list[str]:
    return [line['custom_id'] for line in lines]


async def test_a_batch_goes_through_every_status_as_the_clock_goes_by(
    openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit(*TEXTS, metadata={'tag': 'a'})
    seen: list[tuple[str, int, int]] = []
    for _ in range(11):
        batch = await openai.batches.retrieve(batch.id)
        assert batch.request_counts is not None
        seen.append((batch.status, batch.request_counts.total, batch.request_counts.completed))
        await clock.advance(10)
    assert seen == [
        ('validating', 0, 0),
        ('in_progress', 10, 0),
        ('in_progress', 10, 1),
        ('in_progress', 10, 2),
        ('in_progress', 10, 3),
        ('in_progress', 10, 5),
        ('in_progress', 10, 6),
        ('in_progress', 10, 7),
        ('in_progress', 10, 8),
        ('finalizing', 10, 10),
        ('completed', 10, 10),
    ]


async def test_what_a_batch_shows_follows_from_the_clock_whether_anyone_looked_or_not(
    openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit('hello', metadata={'tag': 'a'})
    created = batch.created_at
    await clock.advance(1000)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.in_progress_at, batch.finalizing_at, batch.completed_at) == (
        created + 10,
        created + 90,
        created + 100,
    )
    assert batch.expires_at == created + 86_400
    assert batch.metadata == {'tag': 'a'}


async def test_nothing_is_told_before_it_is_known(openai: AsyncOpenAI, clock: ManualClock, submit: Submit) -> None:
    batch = await submit('hello')
    assert (batch.status, batch.model, batch.output_file_id, batch.error_file_id) == ('validating', None, None, None)
    assert batch.usage is not None
    assert batch.usage.total_tokens == 0
    await clock.advance(95)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.model, batch.output_file_id) == ('finalizing', 'gpt-5-nano', None)
    await clock.advance(5)
    batch = await openai.batches.retrieve(batch.id)
    assert batch.output_file_id is not None
    assert batch.error_file_id is None
    assert batch.usage is not None
    assert batch.usage.total_tokens > 0


async def test_results_come_in_another_order_than_the_requests(
    clock: ManualClock, submit: Submit, results: Results
) -> None:
    batch = await submit(*TEXTS)
    await clock.advance(100)
    output, errors = await results(batch)
    assert sorted(ids(output), key=lambda id: int(id[1:])) == [f'r{n}' for n in range(1, 11)]
    assert ids(output) != [f'r{n}' for n in range(1, 11)]
    assert errors == []
    for line in output:
        assert line['response']['body']['output'][0]['content'][0]['text'] == f'Answer to: text {line["custom_id"][1:]}'


async def test_results_come_in_order_on_request(clock: ManualClock) -> None:
    with FakeProviders(clock=clock, ordered=True) as fake:
        async with fake.openai.client() as client:
            file = await client.files.create(file=input_file(TEXTS), purpose='batch')
            created = await client.batches.create(
                input_file_id=file.id, endpoint='/v1/responses', completion_window='24h'
            )
            await clock.advance(90)
            batch = await client.batches.retrieve(created.id)
            assert batch.output_file_id
            lines = (await client.files.content(batch.output_file_id)).text.splitlines()
    assert ids([json.loads(line) for line in lines]) == [f'r{n}' for n in range(1, 11)]


async def test_a_batch_longer_than_its_window_expires_with_what_it_has(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.processing = timedelta(hours=48)
    batch = await submit(*TEXTS)
    await clock.advance(timedelta(hours=24))
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.expired_at, batch.completed_at) == ('expired', batch.expires_at, None)
    output, errors = await results(batch)
    assert len(output) == 5
    assert len(errors) == 5
    assert {line['error']['code'] for line in errors} == {'batch_expired'}
    assert all(line['response'] is None for line in errors)
    assert len(fake.openai.billed) == 5


async def test_a_cancelled_batch_keeps_what_it_has_and_names_the_rest(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    batch = await submit(*TEXTS)
    await clock.advance(50)
    batch = await openai.batches.cancel(batch.id)
    assert (batch.status, batch.cancelling_at) == ('cancelling', batch.created_at + 50)
    await clock.advance(10)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.cancelled_at) == ('cancelled', batch.created_at + 60)
    output, errors = await results(batch)
    assert len(output) == 5
    assert {line['error']['code'] for line in errors} == {'batch_cancelled'}
    assert sorted(ids(output) + ids(errors)) == sorted(f'r{n}' for n in range(1, 11))
    assert len(fake.openai.billed) == 5


async def test_a_batch_cancelled_before_it_ran_has_no_output_file(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    batch = await submit('a', 'b')
    assert (await openai.batches.cancel(batch.id)).status == 'cancelling'
    assert (await openai.batches.cancel(batch.id)).status == 'cancelling'
    await clock.advance(10)
    output, errors = await results(batch)
    assert output == []
    assert len(errors) == 2
    assert fake.openai.billed == []


async def test_a_batch_that_is_over_cannot_be_cancelled(
    openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    batch = await submit('a')
    await clock.advance(100)
    with pytest.raises(BadRequestError, match='completed'):
        await openai.batches.cancel(batch.id)


async def test_listing_is_newest_first_and_pages_by_id(openai: AsyncOpenAI, submit: Submit) -> None:
    created = [(await submit('a')).id for _ in range(25)]
    page = await openai.batches.list()
    assert [batch.id for batch in page.data] == created[:4:-1]
    assert page.has_more
    assert [batch.id async for batch in openai.batches.list(limit=7)] == created[::-1]
    for limit in 0, 101:
        with pytest.raises(BadRequestError):
            await openai.batches.list(limit=limit)
    with pytest.raises(NotFoundError):
        await openai.batches.list(after='batch_unknown')


async def test_unknown_ids_are_not_found(openai: AsyncOpenAI) -> None:
    for call in openai.batches.retrieve('batch_x'), openai.batches.cancel('batch_x'), openai.files.retrieve('file-x'):
        with pytest.raises(NotFoundError) as caught:
            await call
        assert caught.value.type == 'invalid_request_error'
    with pytest.raises(NotFoundError):
        await openai.files.content('file-x')


async def test_a_key_sees_only_what_its_project_has(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.projects = {'key-b': 'one', 'key-c': 'one'}
    batch = await submit('a')
    b, c = openai.with_options(api_key='key-b'), openai.with_options(api_key='key-c')
    for stranger in b, c:
        for call in stranger.batches.retrieve(batch.id), stranger.files.retrieve(batch.input_file_id):
            with pytest.raises(NotFoundError):
                await call
        assert (await stranger.batches.list()).data == []
        assert (await stranger.files.list()).data == []
        with pytest.raises(BadRequestError):
            await stranger.batches.create(
                input_file_id=batch.input_file_id, endpoint='/v1/responses', completion_window='24h'
            )
    shared = await b.files.create(file=b'{}', purpose='batch')
    assert (await c.files.retrieve(shared.id)).id == shared.id


async def test_result_files_are_gone_after_thirty_days_or_when_asked(
    openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    plain = await submit('a')
    short = await submit('a', output_expires_after={'anchor': 'created_at', 'seconds': 3600})
    await clock.advance(100)
    files = [(await openai.batches.retrieve(batch.id)).output_file_id or '' for batch in (plain, short)]
    await clock.advance(3600)
    await openai.files.content(files[0])
    with pytest.raises(NotFoundError):
        await openai.files.content(files[1])
    await clock.advance(timedelta(days=30))
    for id in (files[0], plain.input_file_id):
        with pytest.raises(NotFoundError):
            await openai.files.content(id)
    assert (await openai.files.list()).data == []
    assert (await openai.batches.retrieve(plain.id)).output_file_id == files[0]


async def test_failed_rows_stand_in_the_error_file_and_are_not_billed(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit, results: Results
) -> None:
    fake.answer = lambda request: (
        FakeError(400, 'invalid_prompt', 'No.', param='input') if request.text == 'b' else 'ok'
    )
    batch = await submit('a', 'b')
    await clock.advance(100)
    output, errors = await results(batch)
    assert ids(output) == ['r1']
    assert ids(errors) == ['r2']
    assert errors[0]['error'] is None
    assert errors[0]['response']['status_code'] == 400
    assert errors[0]['response']['body'] == {
        'error': {'message': 'No.', 'type': 'invalid_request_error', 'param': 'input', 'code': 'invalid_prompt'}
    }
    counts = (await openai.batches.retrieve(batch.id)).request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)
    assert [row.text for row in fake.openai.billed] == ['a']


async def test_a_batch_without_a_success_has_no_output_file(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.answer = lambda request: FakeError(500, None, 'Broken.')
    batch = await submit('a')
    await clock.advance(100)
    batch = await openai.batches.retrieve(batch.id)
    assert (batch.status, batch.output_file_id) == ('completed', None)
    assert batch.error_file_id


async def test_a_batch_that_takes_no_time_is_over_when_it_is_created(fake: FakeProviders, submit: Submit) -> None:
    fake.processing = timedelta(0)
    batch = await submit('a')
    assert (batch.status, batch.in_progress_at, batch.completed_at) == ('completed', batch.created_at, batch.created_at)
    assert batch.output_file_id


async def test_each_run_of_a_row_is_billed(fake: FakeProviders, clock: ManualClock, submit: Submit) -> None:
    attempts: list[int] = []

    def answer(request: FakeRequest) -> str:
        attempts.append(request.attempt)
        return 'ok'

    fake.answer = answer
    first, second = await submit('a'), await submit('a')
    assert fake.openai.billed == []
    await clock.advance(100)
    billed = fake.openai.billed
    assert [(row.batch_id, row.custom_id, row.text) for row in billed] == [
        (first.id, 'r1', 'a'),
        (second.id, 'r1', 'a'),
    ]
    assert attempts == [0, 1]


async def test_a_test_can_look_into_a_batch(fake: FakeProviders, clock: ManualClock, submit: Submit) -> None:
    created = await submit('a', 'b', metadata={'tag': 'x'})
    [batch] = fake.openai.batches.values()
    assert (batch.id, batch.status, batch.metadata) == (created.id, 'validating', {'tag': 'x'})
    assert [(row.custom_id, row.body['input']) for row in batch.requests] == [('r1', 'a'), ('r2', 'b')]
    await clock.advance(100)
    assert batch.ended
    assert batch.counts == {'total': 2, 'completed': 2, 'failed': 0}
    assert {result.row.custom_id: result.request.text for result in batch.results} == {'r1': 'a', 'r2': 'b'}
    assert created.id in repr(batch)


async def test_the_queue_takes_no_more_tokens_than_its_limit(
    fake: FakeProviders, openai: AsyncOpenAI, clock: ManualClock, submit: Submit
) -> None:
    fake.openai.enqueued_token_limit = 40
    first, second = await submit('a'), await submit('b')
    await clock.advance(10)
    second = await openai.batches.retrieve(second.id)
    assert second.status == 'failed'
    assert second.errors
    assert second.errors.data
    assert (second.errors.data[0].code, second.errors.data[0].line) == ('token_limit_exceeded', None)
    await clock.advance(90)
    assert (await openai.batches.retrieve(first.id)).status == 'completed'
    third = await submit('c')
    await clock.advance(100)
    assert (await openai.batches.retrieve(third.id)).status == 'completed'
