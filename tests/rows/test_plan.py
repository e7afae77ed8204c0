"""`plan_batch`: what a run would come to, before anything is sent."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from conftest import ModelOf
from lanes.harness import Harness, close, harness_of
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIResponsesModel

from pydantic_ai_batch import plan_batch
from pydantic_ai_batch.exceptions import InputProblems
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import all_of

ROWS = [{'id': f'row-{n}', 'input': f'text {n} ' + 'x' * 100 * n} for n in range(20)]


def texts_of(body: dict[str, Any]) -> str:
    """The prompt in a body."""
    source = body['input']
    return source if isinstance(source, str) else source[-1]['content']


class Label(BaseModel):
    word: str


async def test_a_plan_sends_nothing(fake: FakeProviders, model: OpenAIResponsesModel):
    plan = plan_batch(model, ROWS)
    assert fake.calls == []
    assert (plan.requests, plan.refused) == (20, {})


def test_a_plan_needs_no_event_loop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'test')
    assert plan_batch('openai:gpt-5-mini', ROWS).requests == 20


@pytest.mark.parametrize('output_type', [str, Label])
@pytest.mark.parametrize('limits', [{}, {'max_requests': 6}, {'max_bytes': 6_000}])
async def test_a_plan_has_the_batches_that_the_run_makes(
    clock: ManualClock, model_of: ModelOf, limits: dict[str, Any], output_type: Any
):
    with FakeProviders(clock=clock) as fake:
        model = model_of(fake)
        plan = plan_batch(model, ROWS, output_type=output_type, **limits)
        await all_of(clock, ROWS, model=model, output_type=output_type, **limits)
        sent = [[texts_of(row.body) for row in batch.requests] for batch in fake.openai.batches.values()]
        sizes = [len(call.body) for call in fake.openai.calls if call.operation == 'upload']
    texts = {row['id']: row['input'] for row in ROWS}
    planned = sorted([texts[row_id] for row_id in chunk.ids] for chunk in plan.chunks)
    assert planned == sorted(sent)
    for chunk, size in zip(sorted(chunk.bytes for chunk in plan.chunks), sorted(sizes), strict=True):
        # The upload is the file and the form around it.
        assert 0 <= size - chunk < 1_000


async def test_each_batch_has_its_ids_and_its_limits(model: OpenAIResponsesModel):
    plan = plan_batch(model, ROWS, max_requests=15)
    assert [chunk.ids for chunk in plan.chunks] == [
        tuple(row['id'] for row in ROWS[:15]),
        tuple(row['id'] for row in ROWS[15:]),
    ]
    first = plan.chunks[0]
    assert (first.lane, first.model, first.requests) == ('openai', 'openai:gpt-5-mini', 15)
    assert (first.max_requests, first.max_bytes) == (15, 200_000_000)
    assert plan.bytes == sum(chunk.bytes for chunk in plan.chunks)
    assert plan.first_request is not None
    assert 'text 0' in plan.first_request


async def test_output_is_estimated_by_max_tokens_alone(model: OpenAIResponsesModel):
    bare, limited = plan_batch(model, ROWS), plan_batch(model, ROWS, max_tokens=1_000)
    assert (bare.output_tokens, limited.output_tokens) == (None, 20_000)
    assert bare.cost is not None
    assert limited.cost is not None
    assert limited.cost > bare.cost + Decimal('0.01')
    assert limited.live_cost == 2 * limited.cost
    assert 'input alone, as `max_tokens` is not set' in bare.cost_in_words
    assert 'at most, by `max_tokens`' in limited.cost_in_words


async def test_a_row_without_a_limit_leaves_the_output_open(model: OpenAIResponsesModel):
    rows = [{**row, 'max_tokens': 5} for row in ROWS]
    assert plan_batch(model, rows).output_tokens == 100
    assert plan_batch(model, [*rows, {'id': 'more', 'input': 'more'}]).output_tokens is None


async def test_the_limit_of_the_model_itself_counts(fake: FakeProviders, model: OpenAIResponsesModel):
    own = OpenAIResponsesModel('gpt-5-mini', provider=model.provider, settings={'max_tokens': 7})  # pyright: ignore[reportArgumentType]
    assert plan_batch(own, ROWS).output_tokens == 140


@pytest.mark.parametrize('name', ['together', 'groq', 'anthropic', 'fireworks', 'mistral-inline', 'vertex', 'bedrock'])
async def test_a_plan_says_what_is_to_be_known_of_its_lane(
    fake: FakeProviders, name: str, monkeypatch: pytest.MonkeyPatch
):
    harness: Harness = harness_of(name, monkeypatch)
    model, client = harness.make(fake, 'test')
    plan = plan_batch(model, ROWS, max_tokens=100)
    await close(client)
    assert plan.requests == 20
    assert plan.caveats
    assert fake.calls == []
    if name == 'together':
        assert plan.cost is None
        assert plan.live_cost is None
        assert 'unknown' in plan.cost_in_words
    if name == 'groq':
        assert plan.flat
        assert 'flat discount on the live price' in plan.cost_in_words
    if name == 'anthropic':
        assert any('Results are kept for 29 days' in caveat for caveat in plan.caveats)
    if name == 'fireworks':
        assert any('cannot cancel' in caveat for caveat in plan.caveats)


async def test_batches_that_are_too_small_for_their_provider_are_named(
    fake: FakeProviders, monkeypatch: pytest.MonkeyPatch
):
    harness = harness_of('bedrock', monkeypatch)
    model, _ = harness.make(fake, 'test')
    assert any('fewer than 100 requests' in caveat for caveat in plan_batch(model, ROWS).caveats)


async def test_rows_that_cannot_be_sent_are_in_the_plan(model: OpenAIResponsesModel):
    plan = plan_batch(model, ['fine', 'half: \ud835', 'x' * 9_000], max_bytes=5_000)
    assert set(plan.refused) == {'2', '3'}
    assert 'lone surrogate' in plan.refused['2']
    assert '5,000' in plan.refused['3']
    assert plan.requests == 1


async def test_what_is_wrong_with_rows_is_refused_as_by_the_run(fake: FakeProviders, model: OpenAIResponsesModel):
    with pytest.raises(InputProblems, match='row 2'):
        plan_batch(model, ['a', ' '])
    with pytest.raises(UserError, match='no column'):
        plan_batch(model, [{'text': 'a'}])
    with pytest.raises(UserError, match='no rows'):
        plan_batch(model, [])


async def test_the_plan_of_an_agent_has_its_tools_and_instructions(model: OpenAIResponsesModel):
    agent = Agent(model, instructions='Be brief.')

    @agent.tool_plain
    def look(text: str) -> str:
        return text

    plan = plan_batch(agent, ['a'])
    assert plan.first_request is not None
    assert 'Be brief.' in plan.first_request
    assert '"look"' in plan.first_request


async def test_a_plan_of_rows_with_models_of_their_own_has_batches_of_each(
    fake: FakeProviders, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv('OPENAI_API_KEY', 'test')
    monkeypatch.setenv('GROQ_API_KEY', 'test')
    names = ['openai:gpt-5-mini', 'groq:llama-3.3-70b-versatile']
    rows = [{**row, 'model': names[n % 2]} for n, row in enumerate(ROWS)]
    plan = plan_batch(None, rows)
    assert [(chunk.lane, chunk.model, chunk.requests) for chunk in plan.chunks] == [
        ('openai', names[0], 10),
        ('groq', names[1], 10),
    ]
    assert plan.flat


async def test_a_plan_says_which_columns_set_what_rows_are_asked_with(model: OpenAIResponsesModel):
    phones = [{'input': 'Cheap?', 'max_tokens': 9, 'top_p': 0.3}]
    assert any('`max_tokens` of a row' in caveat for caveat in plan_batch(model, phones).caveats)
    assert not any('of a row' in caveat for caveat in plan_batch(model, [{'input': 'Cheap?', 'top_p': 0.3}]).caveats)


async def test_a_prompt_made_with_a_column_that_is_a_parameter_is_refused(model: OpenAIResponsesModel):
    cities = [{'city': 'Oslo', 'temperature': 1.5}]
    with pytest.raises(UserError, match=r'`temperature`, and a column of that name .* rename it in rows'):
        plan_batch(model, cities, prompt='Pack for {{ city }} at {{ temperature }} degrees.')
