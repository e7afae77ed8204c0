from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from anthropic import transform_schema
from pydantic import BaseModel, Field, TypeAdapter

from pydantic_ai_batch.testing.anthropic_schemas import with_described_limits
from pydantic_ai_batch.testing.schema_values import json_value


class Money(BaseModel):
    amount: Annotated[float, Field(gt=0, lt=2, multiple_of=0.5)]
    currency: Annotated[str, Field(pattern=r'^[A-Z]{3}$', description='ISO 4217')]


class Order(BaseModel):
    number: Annotated[int, Field(ge=10, le=12, description='Its number {as printed}')]
    code: Annotated[str, Field(min_length=5, max_length=6)]
    positions: Annotated[list[Money], Field(min_length=2, max_length=3)]
    where: tuple[int, str] = (0, '')
    discount: Annotated[float, Field(le=0.5)] | None
    state: Literal['open', 'closed']


@pytest.mark.parametrize('seed', ['a', 'b', 'c', 'd'])
def test_values_keep_the_limits_that_the_sdk_moves_into_descriptions(seed: str) -> None:
    sent: Any = transform_schema(Order)
    assert 'maximum' not in sent['properties']['number']
    TypeAdapter(Order).validate_python(json_value(with_described_limits(sent), seed))


@pytest.mark.parametrize(
    'schema',
    [
        {'type': 'integer', 'minimum': 1, 'description': '{minimum: 5}'},
        {'type': 'string', 'description': 'One of {a, b}'},
        {'type': 'string', 'description': '{maxLength: as short as you can}'},
        {'type': 'string', 'description': '{a: 1}'},
        {'type': 'object', 'properties': {'description': {'type': 'string'}, 'items': True}},
        {'description': ['{minimum: 5}'], 'properties': [], 'anyOf': {}, 'items': False},
    ],
)
def test_what_the_sdk_did_not_write_changes_nothing(schema: dict[str, Any]) -> None:
    assert with_described_limits(schema) == schema
