from __future__ import annotations

import random
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, HttpUrl

from pydantic_ai_batch.testing.patterns import matching
from pydantic_ai_batch.testing.schema_values import json_value


class Colour(Enum):
    RED = 'red'
    GREEN = 'green'


class Cat(BaseModel):
    kind: Literal['cat']
    lives: int = Field(ge=1, le=9)


class Dog(BaseModel):
    kind: Literal['dog']
    weight: float = Field(gt=0, lt=1)


class Node(BaseModel):
    name: str
    children: list[Node]
    parent: Node | None = None


class Numbers(BaseModel):
    low: int = Field(ge=5, lt=7)
    negative: float = Field(gt=-2, le=-1)
    large: int = Field(gt=1000)
    small: int = Field(lt=-50)
    share: float = Field(ge=0, le=1)
    sevens: int = Field(multiple_of=7, ge=20, le=30)
    price: Decimal


class Strings(BaseModel):
    code: str = Field(pattern=r'^[A-Z]{2}-\d{4,6}(?:x|yy)?$')
    long: str = Field(min_length=40, max_length=41)
    short: str = Field(max_length=3)
    day: date
    at: datetime
    of_day: time
    lasts: timedelta
    id: UUID
    url: HttpUrl
    email: str = Field(json_schema_extra={'format': 'email'}, pattern='.+@.+')


class Collections(BaseModel):
    several: list[int] = Field(min_length=3, max_length=5)
    distinct: set[Annotated[int, Field(ge=0, le=5)]] = Field(min_length=4)
    triple: tuple[int, str, bool]
    empty: dict[str, int]
    pairs: dict[str, Dog] = Field(min_length=2)
    pets: list[Cat | Dog]


class Unions(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator='kind')]
    perhaps: Cat | None
    colour: Colour
    literal: Literal[3, 'x']
    nothing: None
    anything: Any
    tree: Node


@pytest.mark.parametrize('model', [Numbers, Strings, Collections, Unions, Node])
@pytest.mark.parametrize('seed', range(20))
def test_a_value_satisfies_the_schema(model: type[BaseModel], seed: int) -> None:
    model.model_validate(json_value(model.model_json_schema(), f'seed {seed}'))


def test_a_value_depends_on_its_seed_alone() -> None:
    schema = Strings.model_json_schema()
    assert json_value(schema, 'a') == json_value(schema, 'a')
    assert json_value(schema, 'a') != json_value(schema, 'b')


def test_an_optional_value_is_a_real_one() -> None:
    assert json_value({'anyOf': [{'type': 'null'}, {'type': 'integer'}]}, 'a') is not None
    assert json_value({'type': ['null', 'string']}, 'a') is not None


def test_all_of_is_everything_of_each() -> None:
    part = {'properties': {'b': {'const': 2}}, 'required': ['b']}
    schema = {
        '$defs': {'A': {'type': 'object', 'properties': {'a': {'const': 1}}, 'required': ['a']}},
        'allOf': [{'$ref': '#/$defs/A'}, part],
    }
    assert json_value(schema, 'a') == {'a': 1, 'b': 2}


def test_a_schema_that_requires_itself_is_refused() -> None:
    endless = {'$defs': {'A': {'type': 'object', 'properties': {'a': {'$ref': '#/$defs/A'}}, 'required': ['a']}}}
    with pytest.raises(ValueError, match='without end'):
        json_value(endless | {'$ref': '#/$defs/A'}, 'a')


def test_a_reference_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match='#/\\$defs/A'):
        json_value({'$ref': '#/$defs/A'}, 'a')


@pytest.mark.parametrize(
    'pattern',
    [
        r'^\d{3}-\d{2}$',
        r'[a-z]+@[a-z]+\.(com|org)',
        r'^[^abc]{5}$',
        r'(?P<x>a|b){2,3}',
        r'^(?!x)y$',
        r'\bfoo\b',
        r'^[\w.-]+$',
        r'^#(?:[0-9a-fA-F]{3}){1,2}$',
        r'[]a]',
        r'^a{2,}b??$',
        r'^\S+\s\S+$',
    ],
)
@pytest.mark.parametrize('seed', range(10))
def test_a_string_matches_the_pattern(pattern: str, seed: int) -> None:
    made = matching(pattern, random.Random(seed))
    assert made is not None
    assert re.search(pattern, made)


@pytest.mark.parametrize('pattern', ['(', 'x**', '(?i)x', r'(a)\1b(?=c)$'])
def test_a_pattern_that_is_not_understood_is_given_up(pattern: str) -> None:
    assert matching(pattern, random.Random(0)) is None
    assert json_value({'type': 'string', 'pattern': pattern}, 'a')
