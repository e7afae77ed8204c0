"""Rows that are requests as the provider takes them: `custom_id`, `url` and `body`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from lanes.harness import close, harness_of
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIResponsesModel

from pydantic_ai_batch import Journal, plan_batch
from pydantic_ai_batch.exceptions import InputProblems
from pydantic_ai_batch.testing import Answer, FakeError, FakeProviders, FakeRequest, ManualClock

from .scenes import all_of, echo, statuses

RESPONSES, CHAT, EMBEDDINGS = '/v1/responses', '/v1/chat/completions', '/v1/embeddings'


def body_of(url: str, text: str, model: str = 'gpt-5-mini', **more: Any) -> dict[str, Any]:
    said = {'messages': [{'role': 'user', 'content': text}]} if url == CHAT else {'input': text}
    return {'model': model, **said, **more}


def raw(url: str, *texts: str, model: str = 'gpt-5-mini', **more: Any) -> list[dict[str, Any]]:
    return [
        {'custom_id': f'{url} {text}', 'method': 'POST', 'url': url, 'body': body_of(url, text, model, **more)}
        for text in texts
    ]


@pytest.fixture
async def fake(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeProviders]:
    """Providers whose answers say whose they are, and which models are found at by their names."""
    with FakeProviders(echo, clock=clock) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        yield fake


@pytest.mark.parametrize('url', [RESPONSES, CHAT])
async def test_bodies_go_through_as_they_are_and_answers_are_read(fake: FakeProviders, clock: ManualClock, url: str):
    rows = raw(url, 'a', 'b', unheard_of={'n': 1})
    results = await all_of(clock, rows, model='openai', ordered=True)
    assert [result.id for result in results] == [row['custom_id'] for row in rows]
    assert [result.output for result in results] == ['answer to a', 'answer to b']
    assert [result.row for result in results] == rows
    assert sorted(json.dumps(row.body) for row in fake.openai.billed) == [json.dumps(row['body']) for row in rows]
    first = results[0]
    assert first.raw['model'] == 'gpt-5-mini'
    assert (first.finish_reason, first.model) == ('stop', 'gpt-5-mini')
    assert first.usage is not None
    assert first.usage.input_tokens > 0
    assert first.cost is not None
    assert first.live_cost == 2 * first.cost


async def test_embeddings_have_no_text_and_their_body(fake: FakeProviders, clock: ManualClock):
    [result] = await all_of(clock, raw(EMBEDDINGS, 'a', model='text-embedding-3-small'), model='openai')
    assert (result.status, result.text) == ('ok', None)
    assert len(result.raw['data'][0]['embedding']) > 1
    assert result.usage is not None
    assert (result.usage.input_tokens > 0, result.usage.output_tokens) == (True, 0)


async def test_requests_of_several_endpoints_and_models_are_batches_of_their_own(
    fake: FakeProviders, clock: ManualClock
):
    rows = [
        *raw(RESPONSES, 'a', 'b'),
        *raw(CHAT, 'c'),
        *raw(EMBEDDINGS, 'd', model='text-embedding-3-small'),
        *raw(RESPONSES, 'e', model='gpt-5'),
        *raw(CHAT, 'f'),
    ]
    results = await all_of(clock, rows, model='openai', ordered=True)
    assert set(statuses(results).values()) == {'ok'}
    assert [result.output for result in results][:3] == ['answer to a', 'answer to b', 'answer to c']
    found = {(batch.endpoint, batch.model, len(batch.requests)) for batch in fake.openai.batches.values()}
    assert found == {
        (RESPONSES, 'gpt-5-mini', 2),
        (CHAT, 'gpt-5-mini', 2),
        (EMBEDDINGS, 'text-embedding-3-small', 1),
        (RESPONSES, 'gpt-5', 1),
    }


@pytest.mark.parametrize('name', ['groq', 'together', 'azure', 'compatible', 'deepinfra'])
async def test_other_providers_of_the_same_shape_take_them(
    clock: ManualClock, name: str, monkeypatch: pytest.MonkeyPatch
):
    harness = harness_of(name, monkeypatch)
    with FakeProviders(echo, clock=clock) as fake:
        model, client = harness.make(fake, 'test')
        results = await all_of(clock, raw(CHAT, 'a', 'b', model=model.model_name), model=model, ordered=True)
        await close(client)
    assert [result.output for result in results] == ['answer to a', 'answer to b']


async def test_other_batch_apis_do_not(fake: FakeProviders, clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    harness = harness_of('anthropic', monkeypatch)
    model, client = harness.make(fake, 'test')
    with pytest.raises(UserError, match='of the shape of OpenAI, and Anthropic Message Batches is none'):
        await all_of(clock, raw(CHAT, 'a', model=model.model_name), model=model)
    await close(client)
    assert fake.calls == []


async def test_a_request_that_failed_is_an_error_of_its_own(fake: FakeProviders, clock: ManualClock):
    def answer(request: FakeRequest) -> Answer:
        return FakeError(400, 'invalid', 'not b') if request.text == 'b' else echo(request)

    fake.answer = answer
    results = await all_of(clock, raw(CHAT, 'a', 'b'), model='openai', ordered=True)
    assert [result.status for result in results] == ['ok', 'error']
    assert 'not b' in str(results[1].error)
    assert results[1].raw['error']['message'] == 'not b'


@pytest.mark.parametrize(
    ('url', 'body', 'status', 'text'),
    [
        (CHAT, {'choices': [{'finish_reason': 'length', 'message': {'content': 'half'}}]}, 'truncated', 'half'),
        (CHAT, {'choices': [{'finish_reason': 'stop', 'message': {'refusal': 'never'}}]}, 'refused', None),
        (CHAT, {'choices': [{'finish_reason': 'content_filter', 'message': {}}]}, 'refused', None),
        (CHAT, {'choices': [{'finish_reason': 'tool_calls', 'message': {'tool_calls': []}}]}, 'ok', None),
        (CHAT, {'choices': ['what'], 'usage': 'much', 'model': 5}, 'ok', None),
        (CHAT, {'choices': [{'message': {'content': [{'type': 'text'}]}}]}, 'ok', None),
        (RESPONSES, {'status': 'failed', 'error': {'message': 'broken'}, 'output': []}, 'error', None),
        (
            RESPONSES,
            {'status': 'incomplete', 'incomplete_details': {'reason': 'content_filter'}, 'output': []},
            'refused',
            None,
        ),
        (RESPONSES, {'status': 'completed', 'output': [{'type': 'reasoning', 'content': 'text'}, 3]}, 'ok', None),
        (RESPONSES, {'usage': {'input_tokens': None}}, 'ok', None),
    ],
)
async def test_bodies_of_any_kind_are_read_as_far_as_they_can_be(
    fake: FakeProviders, clock: ManualClock, url: str, body: dict[str, Any], status: str, text: str | None
):
    fake.answer = lambda request: body
    [result] = await all_of(clock, raw(url, 'a'), model='openai')
    assert (result.status, result.text) == (status, text)
    assert result.raw == body


async def test_cached_tokens_are_read_and_cost_less(fake: FakeProviders, clock: ManualClock):
    usage = {'prompt_tokens': 1_000, 'completion_tokens': 1, 'total_tokens': 1_001}
    details = {'prompt_tokens_details': {'cached_tokens': 900}}

    def answer(request: FakeRequest) -> Answer:
        return {
            'model': 'gpt-5-mini',
            'choices': [{'finish_reason': 'stop', 'message': {'content': 'x'}}],
            'usage': {**usage, **(details if request.text == 'b' else {})},
        }

    fake.answer = answer
    dear, cheap = await all_of(clock, raw(CHAT, 'a', 'b'), model='openai', ordered=True)
    assert dear.cost is not None
    assert cheap.cost is not None
    assert cheap.usage is not None
    assert cheap.usage.cache_read_tokens == 900
    assert cheap.cost < dear.cost


@pytest.mark.parametrize(
    ('row', 'says'),
    [
        ({'url': 'responses'}, 'the `url` is no path of an API'),
        ({'url': None}, 'the `url` is no path of an API'),
        ({'body': 'text'}, 'the `body` is no object'),
        ({'body': {'input': 'a'}}, 'the `body` names no model'),
        ({'body': {'model': 'gpt-5-mini', 'input': 'a', 'stream': True}}, '`stream` cannot be used in a batch'),
        ({'method': 'GET'}, 'batches take POST alone'),
        ({'custom_id': ''}, 'the ID in `custom_id` is blank'),
        ({'custom_id': f'{RESPONSES} a'}, 'again'),
        ({'max_tokens': 5}, '`max_tokens` of the row would change nothing'),
    ],
)
async def test_what_is_no_request_is_listed_and_nothing_sent(
    fake: FakeProviders, clock: ManualClock, row: dict[str, Any], says: str
):
    rows = raw(RESPONSES, 'a', 'b')
    with pytest.raises(InputProblems, match=says):
        await all_of(clock, [rows[0], {**rows[1], **row}], model='openai')
    assert fake.calls == []


@pytest.mark.parametrize(
    ('settings', 'says'),
    [
        ({'max_tokens': 5}, '`max_tokens` would change none of them'),
        ({'model_settings': {'seed': 1}}, '`seed` would change none of them'),
        ({'instructions': 'Be brief.'}, 'instructions and output types are in their bodies'),
        ({'output_type': int}, 'instructions and output types are in their bodies'),
        ({'model': 'openai:gpt-5'}, "the `body` is for the model 'gpt-5-mini', and the job for 'gpt-5'"),
        ({'model': 'nobody'}, 'nobody'),
    ],
)
async def test_a_job_says_nothing_that_its_requests_say(
    fake: FakeProviders, clock: ManualClock, settings: dict[str, Any], says: str
):
    with pytest.raises(UserError, match=says):
        await all_of(clock, raw(RESPONSES, 'a'), **{'model': 'openai', **settings})
    assert fake.calls == []


async def test_a_prompt_makes_rows_with_these_columns_ordinary_ones(clock: ManualClock, model_of: ModelOf):
    rows = [{'url': 'https://example.com', 'body': 'a page'}]
    with FakeProviders(echo, clock=clock) as fake:
        [result] = await all_of(clock, rows, model=model_of(fake), prompt='{{ url }}: {{ body }}')
    assert result.output == 'answer to https://example.com: a page'


async def test_they_are_resumed_from_a_journal(fake: FakeProviders, clock: ManualClock, tmp_path: Path):
    journal = Journal(tmp_path / 'job.db')
    rows = [*raw(RESPONSES, 'a'), *raw(CHAT, 'b')]
    first = await all_of(clock, rows, model='openai', journal=journal, ordered=True)
    journal.close()
    assert await all_of(clock, rows, model='openai', journal=journal, ordered=True) == first
    assert len(fake.openai.billed) == 2


async def test_a_plan_of_them_is_what_the_run_makes(fake: FakeProviders, clock: ManualClock):
    rows = [*raw(RESPONSES, 'a', 'b', max_output_tokens=5), *raw(EMBEDDINGS, 'c', model='text-embedding-3-small')]
    plan = plan_batch('openai', rows)
    assert fake.calls == []
    assert [(chunk.model, chunk.ids) for chunk in plan.chunks] == [
        ('openai:gpt-5-mini', (rows[0]['custom_id'], rows[1]['custom_id'])),
        ('openai:text-embedding-3-small', (rows[2]['custom_id'],)),
    ]
    assert plan.output_tokens == 10
    assert plan.first_request is not None
    assert json.loads(plan.first_request)['body'] == rows[0]['body']
    assert json.loads(plan.first_request)['url'] == RESPONSES
    assert plan.cost


async def test_the_model_of_a_program_takes_them(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        model: OpenAIResponsesModel = model_of(fake)
        [result] = await all_of(clock, raw(CHAT, 'a'), model=model)
    assert result.output == 'answer to a'
