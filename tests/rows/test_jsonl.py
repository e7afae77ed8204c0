"""JSON lines are split at newline bytes alone, and every line that is no plain object is a problem."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydantic_ai_batch.rows.sink import open_output
from pydantic_ai_batch.rows.source import Problem

from .files import PATIENT, opened, problems_of, rows_of

NAMES = st.text(st.characters(exclude_categories=['Cs']), max_size=5)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=['Cs'])),
    st.lists(st.sampled_from(['"', '\\', '\n', '\r', '\0', '\u2028', '\u2029', '\x85', '\x0b', '\x1c', '\ufeff'])).map(
        ''.join
    ),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(NAMES, VALUES, max_size=4), max_size=5)


@PATIENT
@given(ROWS, st.booleans())
def test_what_is_written_is_read_again(rows: list[dict[str, Any]], gap: bool):
    columns = list(dict.fromkeys(name for row in rows for name in row))
    stdout = io.BytesIO()
    with open_output('-', columns, stdout=stdout) as sink:
        for row in rows:
            sink.write(row)
    content = stdout.getvalue().replace(b'\n', b'\r\n\r\n' if gap else b'\n')
    if rows:
        assert rows_of(content, 'jsonl') == rows


@PATIENT
@given(ROWS.filter(bool), st.sampled_from(['\n', '\r\n', '\n\n']), st.booleans(), st.booleans(), st.data())
def test_any_row_is_the_same_alone_as_in_order(
    rows: list[dict[str, Any]], end: str, mark: bool, last: bool, data: st.DataObject
):
    text = ('\ufeff' if mark else '') + end.join(json.dumps(row, ensure_ascii=False) for row in rows)
    with opened(text + (end if last else ''), 'jsonl') as source:
        assert source.read() == []
        assert [row.fields for row in source] == rows
        assert source.columns == tuple(dict.fromkeys(name for row in rows for name in row))
        everything = list(source)
        order = data.draw(st.permutations(range(len(rows))))
        assert [source[place] for place in order] == [everything[place] for place in order]


def test_a_row_has_its_line_with_the_blank_ones_counted():
    with opened('\n{"a":1}\n \r\n{"a":2}', 'jsonl') as source:
        assert source.read() == []
        assert [(row.place, row.line) for row in source] == [(0, 2), (1, 4)]


@pytest.mark.parametrize('separator', ['\u2028', '\u2029', '\x85', '\x7f'])
def test_what_unicode_takes_for_a_line_end_is_a_character(separator: str):
    assert rows_of(f'{{"a":"x{separator}y"}}\n', 'jsonl') == [{'a': f'x{separator}y'}]


@pytest.mark.parametrize(
    ('line', 'reason'),
    [
        ('{"a":1', "not JSON: Expecting ',' delimiter, at character 7"),
        ('{"a":1} {"a":2}', 'not JSON: Extra data, at character 9'),
        ('"text"', 'not a JSON object but a text'),
        ('7', 'not a JSON object but a number'),
        ('null', 'not a JSON object but null'),
        ('true', 'not a JSON object but true or false'),
        ('[1]', 'not a JSON object but an array'),
        ('{"a":NaN}', 'NaN, which is no number in JSON: use null'),
        ('{"a":[-Infinity]}', '-Infinity, which is no number in JSON: use null'),
        ('{"a":1e999}', 'the number 1e999, which is too large'),
        ('{"a":' + '1' * 5000 + '}', 'a number of 5,000 digits, which is too large'),
        ('{"a":1,"a":2}', 'the key `a` twice in one object'),
        ('{"a":{"b":1,"b":1}}', 'the key `b` twice in one object'),
        ('{"a":' + '[' * 101 + ']' * 101 + '}', 'nested deeper than 100 levels'),
        ('{"a":' + '[' * 100_000 + ']' * 100_000 + '}', 'nested deeper than 100 levels'),
        ('{"a":' * 500 + '1' + '}' * 500, 'nested deeper than 100 levels'),
    ],
    ids=lambda value: value[:30],
)
def test_a_line_that_is_no_plain_object_is_a_problem(line: str, reason: str):
    with opened('{"a":1}\n' + line + '\n{"a":2}\n', 'jsonl') as source:
        assert [(problem.line, problem.reason) for problem in source.read()] == [(2, reason)]
        assert [row.fields for row in source] == [{'a': 1}, {'a': 2}]


@pytest.mark.parametrize(
    ('line', 'column'),
    [(r'{"x":"ok","a":["half \ud835 of"]}', 'a'), (r'{"a":{"\udcb2":1}}', 'a'), (r'{"\udcb2":1}', '�')],
)
def test_half_of_a_character_is_a_problem_of_a_row_that_is_there_all_the_same(line: str, column: str):
    with opened('{"a":1}\n' + line + '\n{"a":2}\n', 'jsonl') as source:
        (problem,) = source.read()
        assert problem == Problem(2, f'a lone surrogate, which is half of a character, in `{column}`', place=1)
        assert [row.fields for row in source] == [{'a': 1}, json.loads(line), {'a': 2}]


def test_every_bad_line_is_listed():
    content = b'{"a":1}\n{bad\n{"a":"\xff"}\n{"a":2}\n[]\n{"a":"\0"}'
    assert [problem.line for problem in problems_of(content, 'jsonl')] == [2, 3, 5, 6]


def test_whole_characters_in_escapes_and_ninety_levels_are_fine():
    deep = '[' * 90 + ']' * 90
    assert rows_of(r'{"a":"\ud83d\ude00","b":"\\ud800","c":' + deep + '}', 'jsonl')[0]['a'] == '😀'


@pytest.mark.parametrize('content', ['[{"a":1},{"a":2}]', '[\n  {"a":1},\n  {"a":2}\n]\n', '[{"a":1},\n{"a":2}]'])
def test_a_json_array_is_told_from_json_lines(content: str):
    (problem,) = problems_of(content, 'jsonl')
    assert problem.line == 1
    assert problem.reason.startswith('the file is a JSON array, and must be one object a line')


def test_blank_lines_alone_are_an_input_without_rows():
    assert rows_of('\n\n', 'jsonl') == []
