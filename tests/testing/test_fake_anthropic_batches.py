from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from anthropic import APIStatusError, AsyncAnthropic, BadRequestError, NotFoundError
from anthropic.types.messages import MessageBatch

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

TEXTS = [f'text {n}' for n in range(1, 11)]


@pytest.fixture
async def anthropic(fake: FakeProviders) -> AsyncIterator[AsyncAnthropic]:
    """The real SDK on the fake, without retries, so that each fault is seen."""
    async with fake.anthropic.client(max_retries=0) as client:
        yield client


def requests_of(texts: Sequence[str], **params: Any) -> list[Any]:
    """A request for each text, with ids from `r1`."""
    return [
        {
            'custom_id': f'r{number}',
            'params': {
                'model': 'claude-haiku-4-5',
                'max_tokens': 100,
                'messages': [{'role': 'user', 'content': text}],
                **params,
            },
        }
        for number, text in enumerate(texts, start=1)
    ]


async def submit(client: AsyncAnthropic, *texts: str) -> MessageBatch:
    return await client.messages.batches.create(requests=requests_of(texts))


async def raw_results(client: AsyncAnthropic, id: str) -> bytes:
    """The results as they are served, which the SDK's own decoder would not show."""
    reply: bytes = await client.get(f'/v1/messages/batches/{id}/results', cast_to=bytes)
    return reply


async def results(client: AsyncAnthropic, id: str) -> dict[str, Any]:
    """The result of each row."""
    lines = [json.loads(line) for line in (await raw_results(client, id)).split(b'\n') if line]
    return {line['custom_id']: line['result'] for line in lines}


def counts(batch: MessageBatch) -> dict[str, int]:
    """What its counts are, without those that are 0."""
    return {name: count for name, count in batch.request_counts.model_dump().items() if count}


async def test_a_batch_tells_nothing_of_its_progress_before_it_ends(
    anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, *TEXTS)
    for _ in range(10):
        batch = await anthropic.messages.batches.retrieve(batch.id)
        assert (batch.processing_status, counts(batch)) == ('in_progress', {'processing': 10})
        assert batch.ended_at is batch.results_url is batch.archived_at is batch.cancel_initiated_at is None
        await clock.advance(10)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'succeeded': 10})
    assert batch.ended_at == batch.created_at + timedelta(seconds=100)
    assert batch.expires_at == batch.created_at + timedelta(hours=24)


async def test_times_are_written_as_recorded(anthropic: AsyncAnthropic) -> None:
    reply = await anthropic.messages.batches.with_raw_response.create(requests=requests_of(['a']))
    batch = reply.http_response.json()
    assert batch['created_at'] == '2030-01-01T00:00:00.000000+00:00'
    assert batch['expires_at'] == '2030-01-02T00:00:00.000000+00:00'


async def test_the_sdk_reads_results_through_either_of_its_resources(
    anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    for resource in anthropic.messages.batches, anthropic.beta.messages.batches:
        [line] = [line async for line in await resource.results(batch.id)]
        assert line.custom_id == 'r1'
        assert line.result.type == 'succeeded'
        assert line.result.message.content[0].type == 'text'
        assert line.result.message.content[0].text == 'Answer to: a'
        assert line.result.message.usage.service_tier == 'batch'


async def test_the_beta_resources_reach_every_operation(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batches = anthropic.beta.messages.batches
    batch = await batches.create(requests=requests_of(['a']), betas=['one-2026-01-01', 'two-2026-01-01'])
    assert [listed.id async for listed in batches.list()] == [batch.id]
    assert (await batches.cancel(batch.id)).processing_status == 'canceling'
    await clock.advance(10)
    assert (await batches.retrieve(batch.id)).processing_status == 'ended'
    assert (await batches.delete(batch.id)).type == 'message_batch_deleted'
    calls = fake.anthropic.calls
    assert [call.operation for call in calls] == ['create', 'list', 'cancel', 'status', 'delete']
    assert 'one-2026-01-01' in calls[0].headers['anthropic-beta']
    assert {'one-2026-01-01', 'two-2026-01-01'} <= set(fake.anthropic.batches[batch.id].betas)


async def test_the_paths_of_older_sdks_are_the_same(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, 'a')
    for path in '/v1/messages/batches', f'/v1/messages/batches/{batch.id}', f'/v1/messages/batches/{batch.id}/cancel':
        method = anthropic.post if path.endswith('cancel') else anthropic.get
        await method(f'{path}?beta=true', cast_to=object)
    await clock.advance(10)
    await anthropic.get(f'/v1/messages/batches/{batch.id}/results?beta=true', cast_to=bytes)
    assert [call.operation for call in fake.anthropic.calls] == ['create', 'list', 'status', 'cancel', 'download']


async def test_results_come_in_another_order_than_the_requests(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, *TEXTS)
    await clock.advance(100)
    answered = await results(anthropic, batch.id)
    assert sorted(answered) == sorted(f'r{n}' for n in range(1, 11))
    assert list(answered) != [f'r{n}' for n in range(1, 11)]
    for id, result in answered.items():
        assert result['message']['content'] == [{'type': 'text', 'text': f'Answer to: text {id[1:]}'}]


async def test_results_are_json_lines_of_no_announced_length(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    reply = await anthropic.messages.batches.with_raw_response.results(batch.id)
    headers = reply.http_response.headers
    assert headers['content-type'] == 'application/x-jsonl'
    assert headers['content-disposition'] == f"attachment; filename*=utf-8''{batch.id}_results.jsonl"
    assert 'content-length' not in headers
    await reply.http_response.aclose()


async def test_there_are_no_results_before_the_end(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, 'a')
    await clock.advance(99)
    with pytest.raises(NotFoundError) as caught:
        await raw_results(anthropic, batch.id)
    assert caught.value.type == 'not_found_error'
    assert caught.value.api_message == f'Message Batch {batch.id} has no available results.'
    assert caught.value.request_id == caught.value.response.json()['request_id']


async def test_results_are_archived_29_days_after_the_creation(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, 'a')
    await clock.advance(timedelta(days=29) - timedelta(seconds=1))
    await raw_results(anthropic, batch.id)
    await clock.advance(1)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert batch.archived_at == batch.created_at + timedelta(days=29)
    assert (batch.processing_status, batch.results_url) == ('ended', None)
    assert counts(batch) == {'succeeded': 1}
    with pytest.raises(NotFoundError, match='no available results'):
        await raw_results(anthropic, batch.id)
    assert len(fake.anthropic.billed) == 1


async def test_a_batch_longer_than_its_window_expires_with_what_it_has(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.processing = timedelta(hours=48)
    batch = await submit(anthropic, *TEXTS)
    await clock.advance(timedelta(hours=24))
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.ended_at) == ('ended', batch.expires_at)
    assert batch.cancel_initiated_at is None
    assert counts(batch) == {'succeeded': 5, 'expired': 5}
    answered = await results(anthropic, batch.id)
    assert Counter(result['type'] for result in answered.values()) == {'succeeded': 5, 'expired': 5}
    assert {'type': 'expired'} in answered.values()
    assert len(fake.anthropic.billed) == 5


async def test_a_cancelled_batch_keeps_what_it_has_and_bills_no_more(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch = await submit(anthropic, *TEXTS)
    await clock.advance(50)
    for _ in range(2):
        batch = await anthropic.messages.batches.cancel(batch.id)
        assert (batch.processing_status, counts(batch)) == ('canceling', {'processing': 10})
        assert batch.cancel_initiated_at == batch.created_at + timedelta(seconds=50)
    await clock.advance(10)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'succeeded': 5, 'canceled': 5})
    assert batch.ended_at == batch.created_at + timedelta(seconds=60)
    assert batch.cancel_initiated_at is not None
    answered = await results(anthropic, batch.id)
    assert {id for id, result in answered.items() if result == {'type': 'canceled'}} == {
        row.custom_id for row in fake.anthropic.batches[batch.id].unfinished
    }
    assert len(answered) == 10
    assert len(fake.anthropic.billed) == 5


async def test_a_batch_that_has_ended_cannot_be_cancelled(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    with pytest.raises(BadRequestError, match='ended'):
        await anthropic.messages.batches.cancel(batch.id)


async def test_a_batch_is_deleted_only_after_it_ended(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    batch, other = await submit(anthropic, 'a'), await submit(anthropic, 'b')
    with pytest.raises(BadRequestError, match='not ended'):
        await anthropic.messages.batches.delete(batch.id)
    await clock.advance(100)
    assert (await anthropic.messages.batches.delete(batch.id)).id == batch.id
    for call in (
        anthropic.messages.batches.retrieve(batch.id),
        anthropic.messages.batches.cancel(batch.id),
        anthropic.messages.batches.delete(batch.id),
        raw_results(anthropic, batch.id),
    ):
        with pytest.raises(NotFoundError):
            await call
    assert [listed.id async for listed in anthropic.messages.batches.list()] == [other.id]
    assert [row.text for row in fake.anthropic.billed] == ['a', 'b']


async def test_listing_is_newest_first_and_pages_by_id(anthropic: AsyncAnthropic) -> None:
    newest_first = [(await submit(anthropic, 'a')).id for _ in range(25)][::-1]
    page = await anthropic.messages.batches.list()
    assert [batch.id for batch in page.data] == newest_first[:20]
    assert (page.has_more, page.first_id, page.last_id) == (True, newest_first[0], newest_first[19])
    assert [batch.id async for batch in anthropic.messages.batches.list(limit=7)] == newest_first
    last = await anthropic.messages.batches.list(limit=1000)
    assert (len(last.data), last.has_more) == (25, False)


async def test_listing_goes_back_to_what_is_newer(anthropic: AsyncAnthropic) -> None:
    newest_first = [(await submit(anthropic, 'a')).id for _ in range(6)][::-1]
    page = await anthropic.messages.batches.list(before_id=newest_first[4], limit=3)
    assert [batch.id for batch in page.data] == newest_first[1:4]
    assert page.has_more
    page = await page.get_next_page()
    assert [batch.id for batch in page.data] == newest_first[:1]
    assert not page.has_more


async def test_listing_nothing_names_no_ids(anthropic: AsyncAnthropic) -> None:
    page = await anthropic.messages.batches.list()
    assert (page.data, page.has_more, page.first_id, page.last_id) == ([], False, None, None)


async def test_a_listing_goes_on_though_the_batch_it_stands_at_is_deleted(
    anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    old, new = await submit(anthropic, 'a'), await submit(anthropic, 'b')
    await clock.advance(100)
    page = await anthropic.messages.batches.list(limit=1)
    await anthropic.messages.batches.delete(new.id)
    assert [batch.id for batch in (await page.get_next_page()).data] == [old.id]


@pytest.mark.parametrize(
    'query', [{'limit': 0}, {'limit': 1001}, {'limit': 'x'}, {'after_id': 'x'}, {'after_id': 'x', 'before_id': 'x'}]
)
async def test_a_listing_that_makes_no_sense_is_refused(anthropic: AsyncAnthropic, query: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as caught:
        await anthropic.messages.batches.list(**query)
    assert caught.value.type == 'invalid_request_error'


async def test_a_key_sees_only_what_its_workspace_has(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.anthropic.projects = {'key-b': 'one', 'key-c': 'one'}
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    b, c = anthropic.with_options(api_key='key-b'), anthropic.with_options(api_key='key-c')
    for stranger in b, c:
        for call in (
            stranger.messages.batches.retrieve(batch.id),
            stranger.messages.batches.cancel(batch.id),
            raw_results(stranger, batch.id),
        ):
            with pytest.raises(NotFoundError):
                await call
        assert (await stranger.messages.batches.list()).data == []
    shared = await submit(b, 'a')
    assert (await c.messages.batches.retrieve(shared.id)).id == shared.id


async def test_failed_rows_are_errored_and_not_billed(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.answer = lambda request: FakeError(529, None, 'Too much.') if request.text == 'b' else 'ok'
    batch = await submit(anthropic, 'a', 'b')
    await clock.advance(100)
    answered = await results(anthropic, batch.id)
    assert answered['r1']['type'] == 'succeeded'
    assert answered['r2'] == {
        'type': 'errored',
        'error': {'type': 'error', 'error': {'type': 'overloaded_error', 'message': 'Too much.'}, 'request_id': None},
    }
    assert counts(await anthropic.messages.batches.retrieve(batch.id)) == {'succeeded': 1, 'errored': 1}
    assert [row.text for row in fake.anthropic.billed] == ['a']


async def test_a_batch_without_a_success_ends_as_any_other(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    fake.answer = lambda request: FakeError(500, None, 'Broken.')
    batch = await submit(anthropic, 'a')
    await clock.advance(100)
    batch = await anthropic.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, counts(batch)) == ('ended', {'errored': 1})
    assert batch.results_url


async def test_the_models_of_a_batch_may_differ(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock
) -> None:
    one, two = requests_of(['a', 'b'])
    two['params']['model'] = 'claude-sonnet-4-5'
    batch = await anthropic.messages.batches.create(requests=[one, two])
    await clock.advance(100)
    models = {id: result['message']['model'] for id, result in (await results(anthropic, batch.id)).items()}
    assert models == {'r1': 'claude-haiku-4-5', 'r2': 'claude-sonnet-4-5'}
    assert fake.anthropic.batches[batch.id].model is None


async def test_a_batch_that_takes_no_time_has_ended_when_it_is_created(
    fake: FakeProviders, anthropic: AsyncAnthropic
) -> None:
    fake.processing = timedelta(0)
    batch = await submit(anthropic, 'a')
    assert (batch.processing_status, batch.ended_at) == ('ended', batch.created_at)


async def test_the_status_says_how_long_to_wait_until_it_is_over(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    batch = await submit(anthropic, 'a')
    reply = await anthropic.messages.batches.with_raw_response.retrieve(batch.id)
    assert reply.headers['retry-after'] == '10'
    await clock.advance(100)
    reply = await anthropic.messages.batches.with_raw_response.retrieve(batch.id)
    assert 'retry-after' not in reply.headers


async def test_each_run_of_a_row_is_billed(fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    attempts: list[int] = []

    def answer(request: FakeRequest) -> str:
        attempts.append(request.attempt)
        return 'ok'

    fake.answer = answer
    first, second = await submit(anthropic, 'a'), await submit(anthropic, 'a')
    assert fake.anthropic.billed == []
    await clock.advance(100)
    billed = [(row.batch_id, row.custom_id, row.text) for row in fake.anthropic.billed]
    assert billed == [(first.id, 'r1', 'a'), (second.id, 'r1', 'a')]
    assert attempts == [0, 1]
    assert fake.openai.billed == []


async def test_unknown_ids_and_paths_are_not_found(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    for call in (
        anthropic.messages.batches.retrieve('msgbatch_x'),
        anthropic.messages.batches.cancel('msgbatch_x'),
        anthropic.get('/v1/nothing', cast_to=object),
    ):
        with pytest.raises(APIStatusError) as caught:
            await call
        assert (caught.value.status_code, caught.value.type) == (404, 'not_found_error')
    assert fake.anthropic.count('unknown') == 1


async def test_a_test_can_look_into_a_batch(fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    created = await submit(anthropic, 'a', 'b')
    [batch] = fake.anthropic.batches.values()
    assert (batch.id, batch.status, batch.endpoint) == (created.id, 'in_progress', '/v1/messages')
    assert [row.custom_id for row in batch.requests] == ['r1', 'r2']
    await clock.advance(100)
    assert (batch.ended, batch.status) == (True, 'ended')
    assert {result.row.custom_id: result.request.text for result in batch.results} == {'r1': 'a', 'r2': 'b'}
    assert created.id in repr(batch)
