"""An answer costs what its provider charges in a batch, or has no known price: never the live price for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from conftest import ModelOf
from genai_prices.data_snapshot import DataSnapshot, set_custom_snapshot
from genai_prices.types import ClauseEquals, ModelInfo, ModelPrice, PriceVariant, Provider, StartDateConstraint
from pydantic_ai import Agent, ModelResponse, PendingModelResponse, TextPart
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch import LANES, BatchModelRequests, BatchRequest, collect_batch, model_request_batch, submit_batch
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.pricing import Basis, Cost, ModelCost, Price, cost_of, dollars, estimate, price_of, priced
from pydantic_ai_batch.testing import FakeProviders, ManualClock

AT = datetime(2026, 12, 1, 12, tzinfo=UTC)
MILLION = 1_000_000


def answer(provider: str, model: str, *, batch: tuple[str, str] | None = None, **usage: Any) -> ModelResponse:
    """An answer of a batch with that usage, a million tokens in and a tenth of that out unless it says otherwise."""
    details: dict[str, Any] = {'processing': 'batch'}
    if batch:
        details['batch'] = dict(zip(('id', 'custom_id'), batch, strict=True))
    return ModelResponse(
        parts=[TextPart('fine')],
        usage=RequestUsage(**{'input_tokens': MILLION, 'output_tokens': MILLION // 10, **usage}),
        model_name=model,
        provider_name=provider,
        provider_details=details,
        timestamp=AT,
    )


@pytest.fixture
def own_prices() -> Iterator[None]:
    """Prices of providers that `genai-prices` does not have, or not so."""

    def provider(name: str, *models: ModelInfo) -> Provider:
        return Provider(id=name, name=name, api_pattern=f'https://api.{name}.example', models=list(models))

    def model(name: str, variant: ModelPrice | None = None, *, since: date | None = None, **more: Decimal) -> ModelInfo:
        prices = ModelPrice(input_mtok=Decimal(2), output_mtok=Decimal(10), **more)
        constraint = StartDateConstraint(start_date=since) if since else None
        variants = (
            [PriceVariant(when={'processing': 'batch'}, prices=variant, constraint=constraint)] if variant else []
        )
        return ModelInfo(id=name, match=ClauseEquals(equals=name), prices=prices, price_variants=variants)

    half = ModelPrice(input_mtok=Decimal(1), output_mtok=Decimal(5))
    snapshot = DataSnapshot(
        providers=[
            provider('deepinfra', model('plain')),
            provider('groq', model('searching', web_searches_kcount=Decimal(10))),
            provider(
                'mistral',
                model('as live', ModelPrice(input_mtok=Decimal(2), output_mtok=Decimal(10))),
                model('no prices', ModelPrice()),
                model('from now', half, since=AT.date()),
                model('later', half, since=date(2026, 12, 2)),
            ),
        ],
        from_auto_update=False,
    )
    set_custom_snapshot(snapshot)
    yield
    set_custom_snapshot(None)


# One answer


@pytest.mark.parametrize(
    ('provider', 'model', 'usage', 'batch', 'live'),
    [
        ('openai', 'gpt-4.1-mini', {}, '0.28', '0.56'),
        # No batch price of cached tokens is known, which are at the live price then.
        ('openai', 'gpt-4.1-mini', {'input_tokens': 2 * MILLION, 'cache_read_tokens': MILLION}, '0.38', '0.66'),
        ('openai', 'gpt-5-mini', {'cache_read_tokens': MILLION}, '0.1125', '0.225'),
        (
            'anthropic',
            'claude-haiku-4-5',
            {'cache_read_tokens': 400_000, 'cache_write_tokens': 200_000},
            '0.595',
            '1.19',
        ),
        ('groq', 'openai/gpt-oss-20b', {'cache_read_tokens': MILLION, 'output_tokens': 0}, '0.0375', '0.0375'),
        ('google', 'gemini-2.5-flash', {}, '0.275', '0.55'),
        ('mistral', 'mistral-small-latest', {}, '0.105', '0.21'),
        ('xai', 'grok-4.3', {'input_tokens': 100_000}, '0.3', '0.375'),
    ],
)
def test_each_kind_of_tokens_has_its_own_batch_price(
    provider: str, model: str, usage: dict[str, Any], batch: str, live: str
):
    response = answer(provider, model, **usage)
    assert price_of(response, LANES[provider]) == Price(Decimal(batch), Decimal(live), 'batch price')
    assert cost_of(response, LANES[provider]) == response.cost().total_price == Decimal(batch)
    assert replace(response, provider_details=None).cost().total_price == Decimal(live)


@pytest.mark.parametrize(
    ('lane', 'provider', 'model', 'batch', 'live'),
    [
        ('groq', 'groq', 'llama-3.3-70b-versatile', '0.3345', '0.669'),
        ('mistral', 'mistral', 'magistral-medium-latest', '1.25', '2.5'),
        ('anthropic', 'anthropic', 'claude-3-5-haiku-latest', '0.6', '1.2'),
        ('azure', 'azure', 'gpt-5-mini', '0.225', '0.45'),
        ('bedrock', 'bedrock', 'us.amazon.nova-lite-v1:0', '0.042', '0.084'),
        ('fireworks', 'fireworks', 'accounts/fireworks/models/gpt-oss-20b', '0.05', '0.1'),
        ('xai', 'xai', 'grok-4', '3.6', '4.5'),
    ],
)
def test_without_a_batch_price_the_lane_takes_its_discount_off_the_live_price(
    lane: str, provider: str, model: str, batch: str, live: str
):
    response = answer(provider, model)
    assert price_of(response, LANES[lane]) == Price(Decimal(batch), Decimal(live), 'flat discount')
    assert cost_of(response, LANES[lane]) == Decimal(batch)
    assert response.cost().total_price == Decimal(live)


def test_the_discount_is_taken_off_cached_tokens_too():
    cached = answer('anthropic', 'claude-3-5-haiku-latest', cache_read_tokens=500_000, cache_write_tokens=500_000)
    assert price_of(cached, LANES['anthropic']) == Price(Decimal('0.47'), Decimal('0.94'), 'flat discount')


@pytest.mark.usefixtures('own_prices')
def test_a_fifth_is_taken_off_where_the_discount_is_a_fifth():
    assert price_of(answer('deepinfra', 'plain'), LANES['deepinfra']) == Price(
        Decimal('2.4'), Decimal(3), 'flat discount'
    )


@pytest.mark.usefixtures('own_prices')
def test_nothing_is_taken_off_what_is_no_token():
    searched = answer('groq', 'searching', web_searches=100)
    assert price_of(searched, LANES['groq']) == Price(Decimal('2.5'), Decimal(4), 'flat discount')


@pytest.mark.usefixtures('own_prices')
@pytest.mark.parametrize(
    ('model', 'batch', 'basis'),
    [
        ('as live', 3, 'batch price'),
        ('no prices', '1.5', 'flat discount'),
        ('from now', '1.5', 'batch price'),
        ('later', '1.5', 'flat discount'),
    ],
)
def test_a_batch_price_counts_from_its_day_even_if_it_is_the_live_one(model: str, batch: str, basis: Basis):
    assert price_of(answer('mistral', model), LANES['mistral']) == Price(Decimal(batch), Decimal(3), basis)


def test_a_live_price_without_a_known_discount_is_no_price_in_a_batch():
    response = answer('together', 'Qwen/Qwen3.5-9B')
    assert price_of(response, LANES['together']) == Price(None, Decimal('0.195'), 'unknown')
    assert cost_of(response, LANES['together']) is None


@pytest.mark.parametrize(
    'unknown',
    [
        answer('openai', 'a-model-of-tomorrow'),
        answer('deepinfra', 'Qwen/Qwen3-32B'),
        replace(answer('openai', 'gpt-5-mini'), model_name=None),
        answer('openai', 'gpt-5-mini', input_tokens=10, cache_read_tokens=20),
        answer('openai', 'gpt-5-mini', unmeasured_requests=1),
    ],
    ids=['model', 'provider', 'no name', 'more cached than there are', 'usage left out'],
)
def test_what_no_price_is_known_of_has_none(unknown: ModelResponse):
    for name in ('openai', 'together'):
        assert price_of(unknown, LANES[name]) == Price(None, None, 'unknown')
        assert cost_of(unknown, LANES[name]) is None
        assert priced(unknown, LANES[name]) is unknown


def test_an_address_goes_before_a_name():
    response = replace(answer('nobody', 'gpt-5-mini'), provider_url='https://api.openai.com/v1/')
    assert price_of(response, LANES['openai']) == Price(Decimal('0.225'), Decimal('0.45'), 'batch price')
    nowhere = replace(answer('openai', 'gpt-5-mini'), provider_url='http://127.0.0.1:1/v1')
    assert price_of(nowhere, LANES['openai']) == Price(Decimal('0.225'), Decimal('0.45'), 'batch price')


# The framework's own count


def test_the_framework_is_told_what_it_would_get_wrong_and_no_more():
    known = answer('groq', 'openai/gpt-oss-20b')
    assert priced(known, LANES['groq']) is known
    flat = answer('groq', 'llama-3.3-70b-versatile')
    assert priced(flat, LANES['groq']) == replace(flat, usage=flat.usage + RequestUsage(cost=Decimal('0.3345')))
    assert flat.usage.cost is None
    unmarked = replace(known, provider_details=None)
    assert priced(unmarked, LANES['groq']).usage.cost == known.cost().total_price < unmarked.cost().total_price
    own = replace(flat, usage=flat.usage + RequestUsage(cost=Decimal(7)))
    assert priced(own, LANES['groq']) is own


async def test_events_stats_and_usage_have_one_cost(fake: FakeProviders, model_of: ModelOf, clock: ManualClock):
    # A model that has a live price alone.
    events: list[BatchEvent] = []
    batching = BatchModelRequests(clock=clock, progress=events.append)
    result = await clock.run(Agent(model_of(fake, 'gpt-4.5-preview'), capabilities=[batching]).run('hello'))
    half = result.response.cost().total_price / 2
    assert result.usage.cost == result.response.usage.cost == batching.stats().cost == half > 0
    assert [event.cost for event in events if event.kind == 'answered'] == [half]


async def test_lists_count_as_agents_do(fake: FakeProviders, model_of: ModelOf, clock: ManualClock):
    model = model_of(fake, 'gpt-4.5-preview')
    result = await clock.run(Agent(model, capabilities=[BatchModelRequests(clock=clock)]).run('hello'))
    request = BatchRequest(custom_id='a', messages=result.all_messages()[:1])
    (listed,) = await clock.run(model_request_batch(model, [request], clock=clock))
    assert isinstance(listed, ModelResponse)
    assert listed.usage.cost == result.usage.cost
    job = await clock.run(submit_batch(model, [request], clock=clock))
    await clock.advance(timedelta(hours=1))
    (collected,) = await clock.run(collect_batch(job, [request], model=model, clock=clock))
    assert isinstance(collected, ModelResponse)
    assert collected.usage.cost == result.usage.cost


# Plans


@pytest.mark.parametrize(
    ('lane', 'model', 'price'),
    [
        ('openai', 'gpt-4.1-mini', Price(Decimal('0.28'), Decimal('0.56'), 'batch price')),
        ('groq', 'llama-3.3-70b-versatile', Price(Decimal('0.3345'), Decimal('0.669'), 'flat discount')),
        ('together', 'Qwen/Qwen3.5-9B', Price(None, Decimal('0.195'), 'unknown')),
        ('openai', 'a-model-of-tomorrow', Price(None, None, 'unknown')),
    ],
)
def test_an_estimate_is_what_an_answer_of_as_many_tokens_costs(lane: str, model: str, price: Price):
    assert estimate(model, lane, LANES[lane], MILLION, MILLION // 10) == price


def test_an_estimate_goes_by_the_address_of_the_provider_too():
    url = 'https://api.openai.com/v1/'
    price = estimate('gpt-4.1-mini', None, LANES['openai'], MILLION, 0, provider_url=url)
    assert price == Price(Decimal('0.2'), Decimal('0.4'), 'batch price')


# Many answers


def test_totals_are_by_model_and_together():
    cost = Cost()
    cost.count(answer('openai', 'gpt-4.1-mini'), LANES['openai'])
    cost.count(answer('openai', 'gpt-4.1-mini'), LANES['openai'])
    cost.count(answer('groq', 'llama-3.3-70b-versatile'), LANES['groq'])
    cost.count(answer('together', 'Qwen/Qwen3.5-9B'), LANES['together'])
    assert cost.models == {
        'gpt-4.1-mini': ModelCost(answers=2, batch=Decimal('0.56'), live=Decimal('1.12')),
        'llama-3.3-70b-versatile': ModelCost(answers=1, discounted=1, batch=Decimal('0.3345'), live=Decimal('0.669')),
        # Its live price is known, and is in no amount: nobody knows what was saved.
        'Qwen/Qwen3.5-9B': ModelCost(answers=1, unknown=1),
    }
    total = cost.total
    assert (total.answers, total.unknown, total.discounted) == (4, 1, 1)
    assert (total.batch, total.saved, total.share_saved) == (Decimal('0.8945'), Decimal('0.8945'), Decimal('0.5'))
    assert str(cost) == ('$0.8945 in batches, $1.7890 live, $0.8945 saved (50%), 1 of 4 answers without a known price')
    assert str(cost.models['Qwen/Qwen3.5-9B']) == '1 of 1 answers without a known price'
    assert str(Cost()) == 'nothing'


def test_an_answer_counts_once_however_often_it_is_collected():
    first = answer('openai', 'gpt-4.1-mini', batch=('batch_1', 'a'), cache_read_tokens=500_000)
    second = answer('openai', 'gpt-4.1-mini', batch=('batch_1', 'b'))
    costs: list[Cost] = []
    for _ in range(3):
        cost = Cost()
        for response in (first, second, first):
            cost.count(response, LANES['openai'])
        costs.append(cost)
        assert str(sum(costs, Cost())) == '$0.5100 in batches, $0.9700 live, $0.4600 saved (47%)'
        assert sum(costs, Cost()).total.answers == 2


def test_sums_leave_their_parts_as_they_were():
    one, other, third = Cost(), Cost(), Cost()
    price = Price(Decimal(1), Decimal(2), 'batch price')
    one.add('m', price, answer='a')
    other.add('m', price, answer='a')
    other.add('n', price, answer='b')
    third.add('n', price)
    for both in (one + other + third, third + other + one):
        assert both.models == {
            'm': ModelCost(answers=1, batch=Decimal(1), live=Decimal(2)),
            'n': ModelCost(answers=2, batch=Decimal(2), live=Decimal(4)),
        }
    assert (one.total.answers, other.total.answers, third.total.answers) == (1, 2, 1)
    both = one + other
    both.add('n', price, answer='b')
    assert both.total.answers == 2


async def test_a_pending_response_costs_nothing_and_its_answer_once(model: OpenAIResponsesModel, clock: ManualClock):
    agent = Agent(
        model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(max_requests=1, clock=clock)]
    )
    submitted = await clock.run(agent.run('hello'))
    pending = submitted.response
    assert price_of(pending, LANES['openai']) is None
    assert cost_of(pending, LANES['openai']) is None
    cost = Cost()
    cost.count(pending, LANES['openai'])
    await clock.advance(3600)
    for _ in range(3):
        collecting = Agent(
            model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)]
        )
        messages = submitted.all_messages()
        collected = await collecting.run(message_history=messages)
        cost.count(collected.response, LANES['openai'])
        assert collected.usage.cost == cost.total.batch > 0
    assert cost.total.answers == 1


def test_amounts_are_shown_to_a_hundredth_of_a_cent():
    amounts = [Decimal(0), Decimal('0.00004'), Decimal('0.0001'), Decimal('12.34567')]
    assert [dollars(amount) for amount in amounts] == ['$0.0000', 'under $0.0001', '$0.0001', '$12.3457']
