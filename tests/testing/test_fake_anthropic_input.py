from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from anthropic import (
    APIStatusError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    Omit,
    RequestTooLargeError,
)

from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .test_fake_anthropic_batches import requests_of, results, submit

[GOOD] = requests_of(['a'])
PATH = '/v1/messages/batches'


@pytest.fixture
async def anthropic(fake: FakeProviders) -> AsyncIterator[AsyncAnthropic]:
    async with fake.anthropic.client(max_retries=0) as client:
        yield client


@pytest.mark.parametrize(
    ('body', 'said'),
    [
        ({'requests': [GOOD], 'metadata': {'tag': 'x'}}, 'metadata'),
        ({'requests': [GOOD], 'betas': []}, 'betas'),
        ({'requests': []}, 'requests'),
        ({'requests': GOOD}, 'requests'),
        ({}, 'requests'),
        ([], 'object'),
        ({'requests': ['a']}, 'requests.0'),
        ({'requests': [GOOD, GOOD]}, 'requests.1.custom_id'),
        ({'requests': [{**GOOD, 'model': 'm'}]}, 'requests.0: model'),
        ({'requests': [{**GOOD, 'custom_id': ''}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'custom_id': 'x' * 65}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'custom_id': 'a.b'}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'custom_id': 'a\n'}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'custom_id': 'ä'}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'custom_id': 1}]}, 'requests.0.custom_id'),
        ({'requests': [{'params': GOOD['params']}]}, 'requests.0.custom_id'),
        ({'requests': [{**GOOD, 'params': 'a'}]}, 'requests.0.params'),
        ({'requests': [{'custom_id': 'a'}]}, 'requests.0.params'),
    ],
)
async def test_a_create_that_is_wrong_is_refused(
    fake: FakeProviders, anthropic: AsyncAnthropic, body: Any, said: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        await anthropic.post(PATH, cast_to=object, body=body)
    assert caught.value.type == 'invalid_request_error'
    assert said in (caught.value.api_message or '')
    assert fake.anthropic.batches == {}


@pytest.mark.parametrize('body', [b'', b'x', b'\xff', b'{"requests": NaN}'])
async def test_a_body_that_is_no_json_is_refused(anthropic: AsyncAnthropic, body: bytes) -> None:
    for path in PATH, '/v1/messages':
        with pytest.raises(BadRequestError, match='JSON'):
            await anthropic.post(path, cast_to=object, content=body)


async def test_ids_at_their_limits_are_taken(anthropic: AsyncAnthropic) -> None:
    requests: Any = [{**GOOD, 'custom_id': id} for id in ('a', 'A-_9' * 16)]
    assert (await anthropic.messages.batches.create(requests=requests)).request_counts.processing == 2


async def test_too_many_requests_are_too_large(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    assert fake.anthropic.max_requests == 100_000
    fake.anthropic.max_requests = 2
    await submit(anthropic, 'a', 'b')
    with pytest.raises(RequestTooLargeError) as caught:
        await submit(anthropic, 'a', 'b', 'c')
    assert caught.value.response.json()['error']['type'] == 'request_too_large'


async def test_too_many_bytes_are_refused_before_anything_is_looked_at(
    fake: FakeProviders, anthropic: AsyncAnthropic
) -> None:
    assert fake.anthropic.max_bytes == 256_000_000
    body = json.dumps({'requests': [GOOD]}).encode()
    fake.anthropic.max_bytes = len(body)
    await anthropic.post(PATH, cast_to=object, content=body)
    with pytest.raises(RequestTooLargeError):
        await anthropic.post(PATH, cast_to=object, content=b'x' + body)
    with pytest.raises(RequestTooLargeError):
        await anthropic.post(
            PATH, cast_to=object, content=b'x' + body, options={'headers': {'Authorization': 'Basic x'}}
        )
    assert len(fake.anthropic.batches) == 1


async def test_a_request_without_a_key_is_refused(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    for header in 'Bearer', 'Basic x', Omit():
        with pytest.raises(AuthenticationError) as caught:
            await anthropic.messages.batches.list(extra_headers={'Authorization': header})
        error = caught.value
        assert error.type == 'authentication_error'
        assert error.response.json() == {
            'type': 'error',
            'error': {'type': 'authentication_error', 'message': error.api_message},
            'request_id': error.request_id,
        }


async def test_a_key_is_the_same_in_either_header(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    batch = await submit(anthropic, 'a')
    async with fake.anthropic.client(default_headers={'x-api-key': 'test', 'authorization': ''}) as older:
        assert (await older.messages.batches.retrieve(batch.id)).id == batch.id
    call = fake.anthropic.calls[-1]
    assert call.headers['x-api-key'].startswith('sha256:')


async def test_a_request_without_a_version_is_refused(fake: FakeProviders, anthropic: AsyncAnthropic) -> None:
    with pytest.raises(BadRequestError, match='anthropic-version'):
        await anthropic.messages.batches.list(extra_headers={'anthropic-version': Omit()})


REFUSED_IN_BATCHES: list[dict[str, Any]] = [
    {'stream': True},
    {'max_tokens': 0},
    {'speed': 'fast'},
    {'store': True},
    {'previous_thread_event_id': 'x'},
    {'cache_hint': {}},
    {'context_hint': {}},
    {'fallbacks': []},
    {'research_preview_2026_02': 'active'},
    {'billing_policy': {'bill_to': 'user_profile'}},
]
REFUSED_EVERYWHERE: list[dict[str, Any]] = [
    {'model': None},
    {'max_tokens': None},
    {'max_tokens': 'many'},
    {'max_tokens': True},
    {'max_tokens': -1},
    {'messages': []},
    {'messages': 'hi'},
]


@pytest.mark.parametrize('params', [*REFUSED_IN_BATCHES, *REFUSED_EVERYWHERE])
async def test_what_is_wrong_with_one_request_is_that_rows_error_alone(
    fake: FakeProviders, anthropic: AsyncAnthropic, clock: ManualClock, params: dict[str, Any]
) -> None:
    good, wrong = requests_of(['a', 'b'])
    wrong['params'] |= params
    batch = await anthropic.messages.batches.create(requests=[good, wrong])
    assert batch.request_counts.processing == 2
    await clock.advance(100)
    answered = await results(anthropic, batch.id)
    assert answered['r1']['type'] == 'succeeded'
    error = answered['r2']['error']['error']
    assert (answered['r2']['type'], error['type']) == ('errored', 'invalid_request_error')
    assert next(iter(params)) in error['message']
    assert [row.custom_id for row in fake.anthropic.billed] == ['r1']


@pytest.mark.parametrize(
    'params', [{'stream': False}, {'speed': None}, {'billing_policy': {'bill_to': 'organization'}}]
)
async def test_what_says_nothing_special_is_taken(
    anthropic: AsyncAnthropic, clock: ManualClock, params: dict[str, Any]
) -> None:
    batch = await anthropic.messages.batches.create(requests=requests_of(['a'], **params))
    await clock.advance(100)
    assert (await results(anthropic, batch.id))['r1']['type'] == 'succeeded'


@pytest.mark.parametrize('params', REFUSED_EVERYWHERE)
async def test_what_is_wrong_with_a_live_request_is_told_at_once(
    fake: FakeProviders, anthropic: AsyncAnthropic, params: dict[str, Any]
) -> None:
    with pytest.raises(APIStatusError) as caught:
        await anthropic.post('/v1/messages', cast_to=object, body={**GOOD['params'], **params})
    assert (caught.value.status_code, caught.value.type) == (400, 'invalid_request_error')
    assert fake.anthropic.billed == []


async def test_odd_requests_are_answered_in_some_way(anthropic: AsyncAnthropic, clock: ManualClock) -> None:
    odd: list[dict[str, Any]] = [
        {'messages': [{'role': 'user'}, {'role': 'user', 'content': [1, {'type': 'image'}]}]},
        {'tools': 'none', 'tool_choice': 'any', 'output_config': []},
        {'tools': [{'type': 'web_search_20250305', 'name': 'web_search'}], 'tool_choice': {'type': 'any'}},
        {'messages': [{'role': 'user', 'content': 'lone \udcb2 surrogate'}]},
    ]
    requests = [
        {'custom_id': f'r{number}', 'params': {**GOOD['params'], **params}} for number, params in enumerate(odd)
    ]
    body = json.dumps({'requests': requests}).encode()
    batch: Any = await anthropic.post(PATH, cast_to=object, content=body)
    await clock.advance(100)
    answered = await results(anthropic, batch['id'])
    texts = [answered[f'r{number}']['message']['content'][0]['text'] for number in range(len(odd))]
    assert texts == ['Answer to: ', 'Answer to: a', 'Answer to: a', 'Answer to: lone \udcb2 surrogate']
