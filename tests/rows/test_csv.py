"""CSV is read as RFC 4180 has it, byte for byte, with every problem by its line."""

from __future__ import annotations

import csv
import io
import random
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydantic_ai_batch.rows import csv_source
from pydantic_ai_batch.rows.sink import open_output

from .files import PATIENT, opened, problems_of, rows_of

ODD = st.sampled_from(
    [
        '"',
        '""',
        '\n',
        '\r',
        '\r\n',
        ',',
        ';',
        '\t',
        ' ',
        '\u2028',
        '\u2029',
        '\x85',
        '\x0b',
        '\x0c',
        '\x1c',
        '\ufeff',
        'é',
        '😀',
    ]
)
CELLS = st.one_of(
    st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\0')), st.lists(ODD).map(''.join)
)
TABLES = st.integers(1, 4).flatmap(lambda width: st.lists(st.lists(CELLS, min_size=width, max_size=width), min_size=1))


def written(table: list[list[str]], delimiter: str) -> bytes:
    """A table as our own output has it."""
    columns = [f'c{number}' for number in range(len(table[0]))]
    stdout = io.BytesIO()
    with open_output('-', columns, format='csv', delimiter=delimiter, stdout=stdout) as sink:
        for record in table:
            sink.write(dict(zip(columns, record, strict=True)))
    return stdout.getvalue()


@PATIENT
@given(TABLES, st.sampled_from([',', ';', '\t', '|', '→']))
def test_what_is_written_is_read_again(table: list[list[str]], delimiter: str):
    rows = rows_of(written(table, delimiter), 'csv', delimiter=delimiter)
    assert [list(row.values()) for row in rows] == table


@PATIENT
@given(TABLES)
def test_what_is_written_is_read_by_the_standard_library_too(table: list[list[str]]):
    with io.StringIO(written(table, ',').decode(), newline='') as text:
        assert list(csv.reader(text, strict=True))[1:] == table


@PATIENT
@given(TABLES, st.sampled_from(['\n', '\r\n', '\r']), st.booleans(), st.data())
def test_any_row_is_the_same_alone_as_in_order(table: list[list[str]], end: str, mark: bool, data: st.DataObject):
    quoted = [['"' + cell.replace('"', '""') + '"' for cell in record] for record in [table[0], *table]]
    quoted[0] = [f'c{number}' for number in range(len(table[0]))]
    blank = data.draw(st.sampled_from(['', end, end * 2]))
    text = ('\ufeff' if mark else '') + ''.join(','.join(record) + end + blank for record in quoted)
    with opened(text, 'csv') as source:
        assert source.read() == []
        rows = list(source)
        assert [list(row.fields.values()) for row in rows] == table
        order = data.draw(st.permutations(range(len(rows))))
        assert [source[place] for place in order] == [rows[place] for place in order]


@PATIENT
@given(TABLES, st.integers(1, 9))
def test_where_the_chunks_of_the_file_end_makes_no_difference(table: list[list[str]], size: int):
    content = written(table, ',')
    before, csv_source._CHUNK = csv_source._CHUNK, size
    try:
        assert [list(row.values()) for row in rows_of(content, 'csv')] == table
        assert [list(row.values()) for row in rows_of(content.replace(b'\n', b'\r\n'), 'csv')] == [
            [cell.replace('\n', '\r\n') for cell in record] for record in table
        ]
    finally:
        csv_source._CHUNK = before


def test_all_is_text_as_excel_writes_it():
    content = '\ufeffid,input,team\r\n007,"A, ""b""\r\nc",\r\n1e5,;,NaN\r\n7,x,TRUE'
    assert rows_of(content, 'csv') == [
        {'id': '007', 'input': 'A, "b"\r\nc', 'team': ''},
        {'id': '1e5', 'input': ';', 'team': 'NaN'},
        {'id': '7', 'input': 'x', 'team': 'TRUE'},
    ]


def test_a_row_has_the_line_that_it_begins_on():
    with opened('id,input\n\n1,"a\nb\n"\n\n2,c\n', 'csv') as source:
        assert source.read() == []
        assert [(row.place, row.line) for row in source] == [(0, 3), (1, 7)]


def test_every_bad_line_is_a_problem_and_no_row():
    content = b'id,input\n1,a\n2\n3,b,c\n4,"d"e\n5,\xe9\n6,f\0\n7,ok\n8,"never\nclosed\n'
    with opened(content, 'csv') as source:
        problems = source.read()
        assert [row.fields for row in source] == [{'id': '1', 'input': 'a'}, {'id': '7', 'input': 'ok'}]
    assert [(problem.line, problem.reason) for problem in problems] == [
        (3, '1 field, and the header has 2'),
        (4, '3 fields, and the header has 2'),
        (5, 'a quoted field that goes on after its closing quote; a quote within it is written twice'),
        (
            6,
            'the byte 0xe9, which is not UTF-8: convert the file, such as with `iconv -f WINDOWS-1252 -t UTF-8`',
        ),
        (7, 'a NUL byte, which text has not'),
        (9, 'a field that begins with a quote, which is never closed'),
    ]


def test_a_bad_byte_further_down_in_a_record_has_its_own_line():
    assert [problem.line for problem in problems_of(b'id,input\n1,"a\nb\xff\n"\n', 'csv')] == [3]


def test_a_quote_that_closes_too_late_says_how_far_down():
    (problem,) = problems_of('id,input\n1,"a\n2,b\n3,"c\n', 'csv')
    assert (problem.line, problem.reason) == (
        2,
        'a quoted field that goes on after its closing quote, 2 lines further down; a quote within it is written twice',
    )


@pytest.mark.parametrize(
    ('header', 'reasons'),
    [
        ('id,,input', ['column 2 has no name']),
        ('id,input,', ['column 3 has no name']),
        ('id,x,id', ['two columns go by the name `id`']),
        ('id, id ', ['two columns go by the name `id`']),
        (',', ['column 1 has no name', 'column 2 has no name']),
    ],
)
def test_a_header_names_every_column_once(header: str, reasons: list[str]):
    assert [problem.reason for problem in problems_of(header + '\n', 'csv')] == reasons


def test_spaces_around_the_names_of_columns_are_none_of_them():
    assert rows_of('id, input \n1, a \n', 'csv') == [{'id': '1', 'input': ' a '}]


def test_a_file_of_blank_lines_has_no_header():
    (problem,) = problems_of('\n\n', 'csv')
    assert problem.reason.startswith('there is no header')


def test_a_header_alone_is_an_input_without_rows():
    with opened('id,input\n', 'csv') as source:
        assert source.read() == []
        assert (len(source), source.columns) == (0, ('id', 'input'))


def test_a_field_may_be_of_any_sensible_size_and_the_limit_of_the_process_stays():
    before = csv.field_size_limit()
    big = 'x' * (before + 1)
    with opened(f'id,input\n1,"{big}\n{big}"\n2,b\n', 'csv') as source:
        assert source.read() == []
        assert source[0].fields['input'] == f'{big}\n{big}'
        assert source[1].fields == {'id': '2', 'input': 'b'}
        assert [row.line for row in source] == [2, 4]
    assert csv.field_size_limit() == before


def test_a_field_of_no_sensible_size_is_a_problem_and_not_all_of_memory(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv_source, '_MAX_FIELD', 200_000)
    lines = 'x' * 100 + '\n'
    first, *_ = problems_of('id,input\n1,"' + lines * 3_000, 'csv')
    assert first.line == 2
    assert 'a closing quote may be missing' in first.reason


def test_rows_are_read_by_many_threads_at_once():
    rows = [f'{number},"{"x" * random.Random(number).randrange(300)}\n{number}"' for number in range(500)]
    with opened('id,input\n' + '\n'.join(rows), 'csv') as source:
        assert source.read() == []
        wrong: list[int] = []

        def look(seed: int) -> None:
            places = list(range(len(source)))
            random.Random(seed).shuffle(places)
            wrong.extend(place for place in places if source[place].fields['id'] != str(place))

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(before)
        assert wrong == []
