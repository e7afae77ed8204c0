"""What answers cost in a batch, and what live requests with the same tokens would have cost.

Prices are those of `genai-prices`, which has batch prices of some models as variants under `processing: batch`. Of a
model without one, the lane's flat discount is taken off the live price. Where neither is known, there is no price: that
of a live request is another one. All amounts are US dollars.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelInfo, PriceCalculation, Provider
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from .compat import PROCESSING_KEY, answer_id, read_ticket
from .lanes.base import LaneInfo

Basis = Literal['batch price', 'flat discount', 'unknown']
"""What a price in a batch goes by.

`batch price`: the prices that `genai-prices` has for the model in a batch, of each kind of tokens. A kind that it has
no batch price of, such as the cached tokens of some models, and what is no token, such as a search, is at its live
price there. `flat discount`: the live price of all tokens, less what the lane takes off. `unknown`: there is neither.
"""


_REMEMBERED = 1_000
"""How many prices are remembered: that of an answer is asked for several times, which takes a quarter of a millisecond.
"""


@dataclass(frozen=True, slots=True)
class Price:
    """What one answer costs."""

    batch: Decimal | None
    """In a batch; `None` where that is not known."""

    live: Decimal | None
    """As a live request with the same tokens; `None` where that is not known."""

    basis: Basis
    """What the price in a batch goes by."""


def price_of(response: ModelResponse, info: LaneInfo) -> Price | None:
    """What an answer costs in a batch of a lane, and as a live request.

    Args:
        response: The answer. What its own `usage.cost` says is not looked at.
        info: The lane that it came from.

    Returns:
        The price, at the time of the answer; `None` for a pending response, which costs nothing yet.
    """
    if read_ticket(response) is not None:
        return None
    key = _key(response, info)
    if (known := _prices.get(key)) is None:
        if len(_prices) >= _REMEMBERED:
            _prices.pop(next(iter(_prices), ''), None)
        known = _prices[key] = _price_of(response, info)
    return known


def _key(response: ModelResponse, info: LaneInfo) -> str:
    """All that a price goes by. A price may begin at some time of some day, and no more precisely than a minute."""
    asked = response.provider_url, response.provider_name, response.model_name, info.name, info.discount
    return f'{asked} {response.timestamp:%Y-%m-%d %H:%M} {response.usage} {response.provider_details}'


_prices: dict[str, Price] = {}


def _price_of(response: ModelResponse, info: LaneInfo) -> Price:
    listed = _listed(response)
    live = listed and listed.live()
    if listed is None or live is None:
        return Price(None, None, 'unknown')
    if listed.has_batch_price():
        batch = listed.in_batch()
        return Price(batch and batch.total_price, live.total_price, 'batch price' if batch else 'unknown')
    batch = _discounted(live, info)
    return Price(batch, live.total_price, 'unknown' if batch is None else 'flat discount')


def cost_of(response: ModelResponse, info: LaneInfo) -> Decimal | None:
    """`batch` of [`price_of`][pydantic_ai_batch.pricing.price_of]; `None` where that is not known."""
    price = price_of(response, info)
    return price and price.batch


def priced(response: ModelResponse, info: LaneInfo) -> ModelResponse:
    """An answer with its cost in `usage.cost`, where the framework would put the live price there.

    It puts in what `genai-prices` says, which is the live price of a model without a batch price. A cost that is there
    already, which only the model can have put there, is left.
    """
    if response.usage.cost is not None or (listed := _listed(response)) is None:
        return response
    if listed.has_batch_price() and (response.provider_details or {}).get(PROCESSING_KEY) == 'batch':
        return response
    if (cost := cost_of(response, info)) is None:
        return response
    # The model may hand out the same response again.
    response, usage = copy.copy(response), copy.copy(response.usage)
    usage.cost = cost
    response.usage = usage
    return response


def estimate(
    model_name: str,
    provider: str | None,
    info: LaneInfo,
    input_tokens: int,
    output_tokens: int,
    *,
    provider_url: str | None = None,
) -> Price:
    """What a request of that many tokens would cost now, none of them cached.

    Args:
        model_name: The model's name, as the provider has it.
        provider: The provider's name, as `system` of the model.
        info: The lane it would go by.
        input_tokens: How many tokens go in.
        output_tokens: How many tokens come out.
        provider_url: The address of the provider, as `base_url` of the model. Prices are looked up by it first.
    """
    asked = ModelResponse(
        parts=[],
        usage=RequestUsage(input_tokens=input_tokens, output_tokens=output_tokens),
        model_name=model_name,
        provider_name=provider,
        provider_url=provider_url,
    )
    price = price_of(asked, info)
    assert price is not None
    return price


@dataclass(frozen=True)
class _Listed:
    """An answer of a model that `genai-prices` knows."""

    provider: Provider
    model: ModelInfo
    usage: RequestUsage
    at: datetime
    live_context: Mapping[str, Any]
    """What else of the answer prices go by, such as its service tier."""

    @property
    def _batch_context(self) -> dict[str, Any]:
        return {**self.live_context, PROCESSING_KEY: 'batch'}

    def has_batch_price(self) -> bool:
        """Whether there is a batch price of the model at that time."""
        # Variants of a model that stands in from another provider's list are not used.
        if not any(self.model is own for own in self.provider.models):
            return False
        context = self._batch_context
        return any(
            PROCESSING_KEY in variant.when
            and all(context.get(key) == value for key, value in variant.when.items())
            and (variant.constraint is None or variant.constraint.active(self.at))
            and any(price is not None for price in vars(variant.prices).values())
            for variant in self.model.price_variants or ()
        )

    def in_batch(self) -> PriceCalculation | None:
        return self._priced(self._batch_context)

    def live(self) -> PriceCalculation | None:
        return self._priced(self.live_context)

    def _priced(self, context: Mapping[str, Any]) -> PriceCalculation | None:
        try:
            return self.model.calc_price(
                self.usage, self.provider, genai_request_timestamp=self.at, price_context=dict(context)
            )
        except Exception:
            # Usage that no price fits, as of more cached tokens than there are. The answer is there, and was paid for.
            return None


def _listed(response: ModelResponse) -> _Listed | None:
    """The answer as `genai-prices` knows it, found as the framework finds it; `None` if it does not, or not in full."""
    if not response.model_name or response.usage.unmeasured_requests:
        return None
    by_url = [(None, response.provider_url)] if response.provider_url else []
    for name, url in [*by_url, (response.provider_name, None)]:
        with suppress(LookupError):
            found = get_snapshot().find_provider_model(response.model_name, None, name, url)
            break
    else:
        return None
    details = response.provider_details or {}
    live_context = {key: value for key, value in details.items() if key != PROCESSING_KEY}
    return _Listed(*found, response.usage, response.timestamp, live_context)


def _discounted(live: PriceCalculation, info: LaneInfo) -> Decimal | None:
    """The live price less the lane's discount, which is on tokens and not on what else there is to pay."""
    if info.discount is None:
        return None
    tokens = live.input_price + live.output_price
    return live.total_price - tokens * Decimal(str(info.discount))


@dataclass(frozen=True)
class ModelCost:
    """What answers of one model cost together, or of all models."""

    answers: int = 0
    """How many answers there are."""

    unknown: int = 0
    """How many of them there is no price for. They count in none of the amounts."""

    discounted: int = 0
    """How many of them are priced by the flat discount of their lane."""

    batch: Decimal = Decimal()
    """What the others cost in batches."""

    live: Decimal = Decimal()
    """What the same answers would have cost live."""

    @property
    def saved(self) -> Decimal:
        """What was saved against live requests."""
        return self.live - self.batch

    @property
    def share_saved(self) -> Decimal:
        """What part of the live price that is: `0.5` is half."""
        return self.saved / self.live if self.live else Decimal()

    def __add__(self, other: ModelCost) -> ModelCost:
        return ModelCost(
            self.answers + other.answers,
            self.unknown + other.unknown,
            self.discounted + other.discounted,
            self.batch + other.batch,
            self.live + other.live,
        )

    def __sub__(self, other: ModelCost) -> ModelCost:
        return ModelCost(
            self.answers - other.answers,
            self.unknown - other.unknown,
            self.discounted - other.discounted,
            self.batch - other.batch,
            self.live - other.live,
        )

    def __str__(self) -> str:
        without = f'{self.unknown} of {self.answers} answers without a known price' if self.unknown else ''
        if self.unknown == self.answers:
            return without or 'nothing'
        amounts = f'{dollars(self.batch)} in batches, {dollars(self.live)} live, {dollars(self.saved)} saved'
        return ', '.join(filter(None, [f'{amounts} ({self.share_saved:.0%})', without]))


@dataclass
class Cost:
    """What answers cost, by model, each counted once however often it is collected."""

    models: dict[str, ModelCost] = field(default_factory=dict[str, ModelCost])
    """The totals of each model, by its name."""

    _counted: dict[str, tuple[str, ModelCost]] = field(default_factory=dict[str, tuple[str, ModelCost]], repr=False)
    """By ID, what answers count for, and for which model."""

    @property
    def total(self) -> ModelCost:
        """The totals of all models together."""
        return sum(self.models.values(), ModelCost())

    def count(self, response: ModelResponse, info: LaneInfo, *, answer: str | None = None) -> None:
        """Count an answer.

        Args:
            response: The answer. A pending response is none, and is not counted.
            info: The lane that it came from.
            answer: What tells it from all others. Without it, that is where its history says it came from; what says
                nothing, such as an answer of a list, is counted as often as it is given.
        """
        if (price := price_of(response, info)) is not None:
            self.add(response.model_name or '', price, answer=answer or answer_id(response))

    def add(self, model_name: str, price: Price, *, answer: str | None = None) -> None:
        """Count an answer of that model at a price.

        Args:
            model_name: The model's name.
            price: What it costs.
            answer: What tells it from all others; without it, it is counted as often as it is given.
        """
        if answer in self._counted:
            return
        if price.batch is None or price.live is None:
            one = ModelCost(answers=1, unknown=1)
        else:
            one = ModelCost(1, 0, int(price.basis == 'flat discount'), price.batch, price.live)
        if answer is not None:
            self._counted[answer] = model_name, one
        self.models[model_name] = self.models.get(model_name, ModelCost()) + one

    def __add__(self, other: Cost) -> Cost:
        models = dict(self.models)
        for name, own in other.models.items():
            models[name] = models.get(name, ModelCost()) + own
        for answer in self._counted.keys() & other._counted.keys():
            name, one = other._counted[answer]
            models[name] -= one
        return Cost(models, {**other._counted, **self._counted})

    def __str__(self) -> str:
        return str(self.total)


def dollars(amount: Decimal) -> str:
    """An amount as people read it, to a hundredth of a cent."""
    return f'${amount:.4f}' if not 0 < amount < Decimal('0.0001') else 'under $0.0001'


def about(amount: Decimal) -> str:
    """An estimated amount as people read it."""
    said = dollars(amount)
    return f'~{said}' if said.startswith('$') else said
