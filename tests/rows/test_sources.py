"""An input is found, told what it is, copied once and read in any order, whatever it is."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.exceptions import InputProblems
from pydantic_ai_batch.rows.formats import Format
from pydantic_ai_batch.rows.source import Problem, RowSource, open_rows, problems_error

from .files import opened, problems_of

CSV = b'id,input\n1,a\n2,b\n'
JSONL = b'{"id":"1","input":"a"}\n{"id":"2","input":"b"}\n'
ROWS = [{'id': '1', 'input': 'a'}, {'id': '2', 'input': 'b'}]


def fields(source: RowSource) -> list[dict[str, Any]]:
    assert source.read() == []
    return [row.fields for row in source]


@pytest.mark.parametrize(
    ('name', 'content'),
    [
        ('rows.csv', CSV),
        ('ROWS.CSV', CSV),
        ('rows.tsv', CSV.replace(b',', b'\t')),
        ('rows.jsonl', JSONL),
        ('rows.ndjson', JSONL),
        ('rows.csv.gz', gzip.compress(CSV, mtime=0)),
        ('rows.tsv.gz', gzip.compress(CSV.replace(b',', b'\t'), mtime=0)),
        ('rows.jsonl.gz', gzip.compress(JSONL[:24], mtime=0) + gzip.compress(JSONL[24:], mtime=0)),
    ],
)
def test_the_suffix_says_the_format(tmp_path: Path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    with open_rows(tmp_path / name) as source:
        assert fields(source) == ROWS
        assert source.columns == ('id', 'input')
        assert source.name == source.path == str(tmp_path / name)


def test_a_format_that_is_given_goes_over_the_suffix(tmp_path: Path):
    (tmp_path / 'rows.txt').write_bytes(JSONL)
    with open_rows(tmp_path / 'rows.txt', format='jsonl') as source:
        assert fields(source) == ROWS


@pytest.mark.parametrize('delimiter', [';', '\t', '|', '→', '\\t'])
def test_any_character_may_stand_between_fields(delimiter: str):
    separator = '\t' if delimiter == '\\t' else delimiter
    with opened(CSV.decode().replace(',', separator), 'csv', delimiter=delimiter) as source:
        assert fields(source) == ROWS


@pytest.mark.parametrize('delimiter', ['', ',,', '"', '\n', '\r'])
def test_what_cannot_stand_between_fields_is_refused(delimiter: str):
    with pytest.raises(UserError, match='`delimiter` must be one character'):
        open_rows('-', format='csv', delimiter=delimiter, stdin=io.BytesIO(CSV))


def test_a_delimiter_is_for_csv_alone():
    with pytest.raises(UserError, match='`delimiter` is for CSV'):
        open_rows('-', format='jsonl', delimiter=';', stdin=io.BytesIO(JSONL))


def test_standard_input_needs_a_format():
    with pytest.raises(UserError, match='give `format` as well: csv, jsonl, parquet'):
        open_rows('-', stdin=io.BytesIO(JSONL))
    with open_rows('-', format='jsonl', stdin=io.BytesIO(JSONL)) as source:
        assert source.name == 'standard input'
        assert source.path is None
        assert fields(source) == ROWS


@pytest.mark.parametrize('name', ['rows.txt', 'rows', 'rows.json', 'rows.xlsx', '.csv', 'rows.gz'])
def test_an_unknown_suffix_is_refused_with_those_that_are_known(name: str):
    with pytest.raises(UserError, match=r'is none of \.csv, \.tsv, \.jsonl, \.ndjson, \.parquet'):
        open_rows(name)


def test_an_unknown_format_is_refused():
    with pytest.raises(UserError, match="`format` must be one of csv, jsonl, parquet, not 'json'"):
        open_rows('rows.csv', format=cast('Format', 'json'))


def test_a_file_that_is_not_there_is_a_folder_or_is_empty_is_said_to_be_that(tmp_path: Path):
    (tmp_path / 'empty.csv').touch()
    (tmp_path / 'empty.csv.gz').write_bytes(gzip.compress(b'', mtime=0))
    (tmp_path / 'folder.csv').mkdir()
    for name, said in [
        ('none.csv', 'There is no file .*none.csv'),
        ('folder.csv', 'is a folder'),
        ('empty.csv', 'empty.csv is empty'),
        ('empty.csv.gz', 'empty.csv.gz is empty'),
    ]:
        with pytest.raises(UserError, match=said):
            open_rows(tmp_path / name)


@pytest.mark.parametrize(
    'content', [CSV, gzip.compress(CSV, mtime=0)[:-9], gzip.compress(CSV, mtime=0)[:-1] + b'x', b'\x1f\x8b\x08']
)
def test_a_file_that_is_no_whole_gzip_file_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / 'rows.csv.gz').write_bytes(content)
    with pytest.raises(UserError, match='is no gzip file, or is damaged'):
        open_rows(tmp_path / 'rows.csv.gz')


@pytest.mark.parametrize('encoding', ['utf-16', 'utf-16-le', 'utf-16-be', 'utf-32', 'utf-32-le', 'utf-32-be'])
@pytest.mark.parametrize(('format', 'content'), [('csv', CSV), ('jsonl', JSONL)])
def test_a_text_of_wide_characters_is_named_as_such(encoding: str, format: Format, content: bytes):
    name = encoding[:6].upper()
    with pytest.raises(UserError, match=rf'standard input is {name}, and must be UTF-8: .*`iconv -f {name} -t UTF-8`'):
        open_rows('-', format=format, stdin=io.BytesIO(content.decode().encode(encoding)))


def test_a_file_that_is_changed_later_gives_no_row_another_content(tmp_path: Path):
    path = tmp_path / 'rows.jsonl'
    path.write_bytes(JSONL)
    with open_rows(path) as source:
        path.write_bytes(b'{"id":"9"}\n')
        assert fields(source) == ROWS


def test_the_digest_of_a_text_is_that_of_its_content_packed_or_not(tmp_path: Path):
    (tmp_path / 'rows.csv').write_bytes(CSV)
    (tmp_path / 'rows.csv.gz').write_bytes(gzip.compress(CSV, mtime=0))
    for name in ('rows.csv', 'rows.csv.gz'):
        with open_rows(tmp_path / name) as source:
            source.read()
            assert source.digest == hashlib.sha256(CSV).hexdigest()


def test_nothing_is_left_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    for rows in (io.BytesIO(JSONL), iter(ROWS)):
        source = open_rows('-', format='jsonl', stdin=rows) if isinstance(rows, io.BytesIO) else open_rows(rows)
        with source:
            assert fields(source) == ROWS
            assert os.listdir(tmp_path) == []
        with pytest.raises(ValueError, match='closed file'):
            _ = source[0]


def test_no_room_for_the_copy_says_where_there_could_be_some(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('tempfile.TemporaryFile', lambda **_: open('/dev/full', 'wb', buffering=0))  # noqa: SIM115
    with pytest.raises(UserError, match=r'No space left on device\. Set TMPDIR'):
        open_rows('-', format='csv', stdin=io.BytesIO(CSV))
    with open_rows(iter(ROWS)) as source, pytest.raises(UserError, match='Set TMPDIR'):
        source.read()


def test_rows_are_asked_for_after_they_were_found():
    with opened(JSONL, 'jsonl') as source, pytest.raises(RuntimeError, match=r'`read\(\)`'):
        len(source)


def test_reading_twice_finds_the_same():
    with opened(CSV + b'3\n', 'csv') as source:
        assert source.read() == source.read() != []
        assert len(source) == 2


@pytest.mark.parametrize('place', [-1, 2])
def test_a_place_without_a_row_is_an_index_error(place: int):
    with opened(CSV, 'csv') as source:
        source.read()
        with pytest.raises(IndexError):
            _ = source[place]


def once(rows: Sequence[Any]) -> Iterator[Any]:
    yield from rows


@pytest.mark.parametrize('kind', [list, tuple, once])
class TestPython:
    def test_rows_are_mappings_or_inputs(self, kind: Any):
        rows = ['text', {'id': 7, 'on': date(2030, 1, 2), 'tags': ('a', 'b')}, {'input': None}]
        with open_rows(kind(rows)) as source:
            assert source.read() == []
            assert source.columns == ('input', 'id', 'on', 'tags')
            assert [(row.place, row.line, row.fields) for row in source] == [
                (0, 1, {'input': 'text'}),
                (1, 2, rows[1]),
                (2, 3, {'input': None}),
            ]
            assert source[1].fields == rows[1]
            assert source.name == 'rows'

    def test_every_row_that_is_none_is_a_problem(self, kind: Any):
        loop: list[Any] = []
        loop.append(loop)
        rows = [
            {'a': 1},
            7,
            {3: 'x'},
            {'a': float('nan')},
            {'a': [float('inf')]},
            {'a': '\ud835'},
            {'a': loop},
            {'a': {(1, 2): 3}},
            None,
            {'a': 2},
        ]
        with open_rows(kind(rows)) as source:
            problems = source.read()
            assert [row.fields for row in source] == [{'a': 1}, {'a': '\ud835'}, {'a': 2}]
            assert [row.line for row in source] == [1, 6, 10]
        assert [problem.place for problem in problems if problem.place is not None] == [1]
        assert [(problem.line, problem.reason.split(':')[0]) for problem in problems] == [
            (2, 'a row must be a mapping or a text, not int'),
            (3, 'the key 3 is no text'),
            (4, 'a NaN or an infinite number in `a`, which JSON has not'),
            (5, 'a NaN or an infinite number in `a`, which JSON has not'),
            (6, 'a lone surrogate, which is half of a character, in `a`'),
            (7, 'a value is nested too deeply'),
            (8, 'a value is no JSON'),
            (9, 'a row must be a mapping or a text, not NoneType'),
        ]

    def test_the_digest_tells_other_rows_and_another_order(self, kind: Any):
        def digest(rows: list[Any]) -> str:
            with open_rows(kind(rows)) as source:
                source.read()
                return source.digest

        assert digest([{'a': 1}, {'a': 2}]) == digest([{'a': 1}, {'a': 2}])
        others = [[{'a': 2}, {'a': 1}], [{'a': 1}], [{'a': 1}, {'a': '2'}], [{'a': 1}, {'b': 2}]]
        assert len({digest([{'a': 1}, {'a': 2}]), *map(digest, others)}) == 5


def test_the_values_of_a_row_are_not_the_rows_own_mapping():
    rows = [{'a': 1}]
    with open_rows(rows) as source:
        source.read()
        source[0].fields['a'] = 2
    assert rows == [{'a': 1}]


class Unkept:
    def __reduce__(self) -> Any:
        raise pickle.PicklingError('never')

    def __repr__(self) -> str:
        return 'Unkept()'


def test_a_value_that_cannot_be_kept_is_a_problem_of_its_row():
    with open_rows(iter([{'a': Unkept()}, {'a': 1}])) as source:
        (problem,) = source.read()
    assert problem == Problem(1, 'a value cannot be kept for later (PicklingError: never)')


def test_an_error_of_a_programs_own_rows_is_raised_as_it_is():
    def rows() -> Iterator[dict[str, Any]]:
        yield {'a': 1}
        raise LookupError('theirs')

    with open_rows(rows()) as source, pytest.raises(LookupError, match='theirs'):
        source.read()


class Frame:
    columns = ('a',)

    def to_dict(self) -> None: ...

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize(
    ('rows', 'said'),
    [
        ({'input': 'x'}, 'not one dict'),
        (b'x', 'not one bytes'),
        (7, 'not one int'),
        (Frame(), r"to_dict\('records'\)"),
    ],
)
def test_what_would_be_taken_for_other_rows_is_refused(rows: Any, said: str):
    with pytest.raises(UserError, match=said):
        open_rows(rows)


def test_a_format_is_for_files():
    with pytest.raises(UserError, match='leave them out'):
        open_rows(ROWS, format='csv')


def test_the_error_of_an_input_lists_the_first_twenty_problems_and_has_all():
    content = b'id,input\n' + b'x\n' * 25
    with opened(content, 'csv') as source:
        error = problems_error(source, source.read()[::-1])
    lines = str(error).split('\n')
    assert lines[0] == 'standard input has 25 problems, and nothing was sent:'
    assert lines[1] == 'standard input, line 2: 1 field, and the header has 2'
    assert lines[-1] == '… and 5 more'
    assert len(lines) == 22
    assert list(error.problems) == problems_of(content, 'csv')


def test_problems_of_a_programs_rows_are_named_by_their_numbers():
    with open_rows(cast('Any', [7])) as source:
        error = problems_error(source, source.read())
    assert str(error) == (
        'rows has 1 problem, and nothing was sent:\nrows, row 1: a row must be a mapping or a text, not int'
    )


def test_the_error_of_an_input_can_be_pickled():
    error = InputProblems('said', [Problem(1, 'reason')])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.problems) == ('said', (Problem(1, 'reason'),))
