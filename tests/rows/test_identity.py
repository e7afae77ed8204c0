"""Every row has an ID of its own, or the input is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.identity import check_ids, find_id_column, id_of
from pydantic_ai_batch.rows.source import open_rows

from .files import PATIENT, opened


def ids(rows: list[Any], id_column: str | None = None) -> list[str]:
    with open_rows(rows) as source:
        assert source.read() == []
        assert check_ids(source, id_column) == []
        column = find_id_column(source, id_column)
        return [id_of(row, column) for row in source]


def problems(rows: list[Any], id_column: str | None = None) -> list[tuple[int, str]]:
    with open_rows(rows) as source:
        assert source.read() == []
        return [(problem.line, problem.reason) for problem in check_ids(source, id_column)]


def test_ids_are_in_the_column_id_if_there_is_one():
    assert ids([{'id': 'a', 'input': 'x'}, {'id': 'b'}]) == ['a', 'b']


def test_rows_without_ids_go_by_their_numbers():
    assert ids(['x', 'y']) == ['1', '2']


def test_ids_are_in_the_column_that_is_named():
    assert ids([{'id': 'a', 'key': 'x'}], 'key') == ['x']


def test_a_column_that_is_not_there_is_refused_with_those_that_are():
    with open_rows([{'id': 'a', 'input': 'x'}]) as source:
        source.read()
        with pytest.raises(UserError, match=r'rows has no column `key` .* Its columns are `id`, `input`\.'):
            check_ids(source, 'key')


def test_ids_are_text_as_it_is():
    with opened('id\n001\n1\n1e5\nNaN\n" 1"\nTrue\n', 'csv') as source:
        source.read()
        assert check_ids(source, None) == []
        assert [id_of(row, 'id') for row in source] == ['001', '1', '1e5', 'NaN', ' 1', 'True']


def test_long_ids_that_begin_alike_and_any_characters_are_fine():
    odd = ['x' * 64, 'x' * 65, 'x' * 300, 'EMEA/2024 #7', 'a:b', 'naïve', '数-1', 'a\nb']
    assert ids([{'id': name} for name in odd]) == odd


def test_a_whole_number_becomes_its_decimals_and_may_not_repeat_a_text():
    assert ids([{'id': 7}, {'id': -(10**30)}]) == ['7', '-1' + '0' * 30]
    assert problems([{'id': 7}, {'id': '7'}]) == [(2, "the ID '7' again, which row 1 has already")]


@pytest.mark.parametrize(
    ('row', 'reason'),
    [
        ({'id': ''}, 'the ID in `id` is blank'),
        ({'id': ' \t'}, 'the ID in `id` is blank'),
        ({'id': None}, 'the ID in `id` is blank'),
        ({'x': 1}, 'the ID is missing: the row has no `id`'),
        ({'id': True}, 'the ID in `id` is neither text nor a whole number but bool'),
        ({'id': 1.0}, 'the ID in `id` is neither text nor a whole number but float'),
        ({'id': ['a']}, 'the ID in `id` is neither text nor a whole number but list'),
        ({'id': {'a': 1}}, 'the ID in `id` is neither text nor a whole number but dict'),
    ],
)
def test_an_id_that_is_none_is_a_problem(row: dict[str, Any], reason: str):
    assert problems([{'id': 'a'}, row, {'id': 'b'}]) == [(2, reason)]


def test_all_that_is_wrong_is_listed_in_the_order_of_the_input():
    lines = [{'id': 'a'}, {'id': 'b'}, {'id': 'a'}, {'id': ''}, {'id': 'b'}, {'id': 'a'}]
    with opened('\n'.join(map(json.dumps, lines)), 'jsonl') as source:
        source.read()
        assert [(problem.line, problem.reason) for problem in check_ids(source, None)] == [
            (3, "the ID 'a' again, which line 1 has already"),
            (4, 'the ID in `id` is blank'),
            (5, "the ID 'b' again, which line 2 has already"),
            (6, "the ID 'a' again, which line 1 has already"),
        ]


@PATIENT
@given(st.lists(st.sampled_from('abcdefgh')))
def test_every_repeat_is_found_and_nothing_else(names: list[str]):
    expected = [number for number, name in enumerate(names, 1) if name in names[: number - 1]]
    assert [line for line, _ in problems([{'id': name} for name in names])] == expected
