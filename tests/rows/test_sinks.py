"""An output is there whole or not at all, and what is in it can be read again."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import stat
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.sink import RowSink, open_output
from pydantic_ai_batch.rows.source import open_rows

from .files import PATIENT

COLUMNS = ['id', 'answer']
ROWS = [{'id': '1', 'answer': 'a'}, {'id': '2', 'answer': 'b'}]


def write(path: Path, rows: list[dict[str, Any]], columns: list[str] = COLUMNS, **options: Any) -> bytes:
    with open_output(path, columns, **options) as sink:
        for row in rows:
            sink.write(row)
    return path.read_bytes()


@pytest.mark.parametrize('name', ['out.csv', 'out.tsv', 'out.jsonl', 'out.ndjson', 'out.csv.gz', 'out.jsonl.gz'])
def test_the_suffix_says_the_format(tmp_path: Path, name: str):
    write(tmp_path / name, ROWS)
    with open_rows(tmp_path / name) as source:
        assert source.read() == []
        assert [row.fields for row in source] == ROWS
        assert list(source.columns) == COLUMNS


VALUES = {
    'text': 'é "x",\n',
    'nothing': None,
    'truth': True,
    'whole': 7,
    'number': 0.5,
    'nan': float('nan'),
    'cost': Decimal('0.00000120'),
    'list': ['ä', {'b': None}],
    'on': date(2030, 1, 2),
}


def test_csv_has_values_as_text(tmp_path: Path):
    content = write(tmp_path / 'out.csv', [VALUES, {}], list(VALUES)).decode()
    assert content == (
        'text,nothing,truth,whole,number,nan,cost,list,on\n'
        '"é ""x"",\n",,true,7,0.5,null,0.00000120,"[""ä"",{""b"":null}]",2030-01-02\n'
        ',,,,,,,,\n'
    )


def test_jsonl_has_values_as_json_and_the_columns_that_a_row_has(tmp_path: Path):
    content = write(tmp_path / 'out.jsonl', [VALUES, {'nothing': None}], list(VALUES)).decode()
    assert content == (
        '{"text":"é \\"x\\",\\n","nothing":null,"truth":true,"whole":7,"number":0.5,"nan":null,"cost":1.2e-06,'
        '"list":["ä",{"b":null}],"on":"2030-01-02"}\n'
        '{"nothing":null}\n'
    )


@PATIENT
@given(st.text(st.characters()))
def test_a_file_of_any_answer_can_be_read_again(answer: str):
    for format in ('csv', 'jsonl'):
        stdout = io.BytesIO()
        with open_output('-', ['answer'], format=format, stdout=stdout) as sink:
            sink.write({'answer': answer})
        text = stdout.getvalue().decode()
        if format == 'jsonl':
            assert text.count('\n') == 1
            assert json.loads(text) == {'answer': answer}
        else:
            whole = ''.join('�' if '\ud800' <= character <= '\udfff' else character for character in answer)
            assert list(csv.reader(io.StringIO(text, newline=''), strict=True)) == [['answer'], [whole]]


def test_half_of_a_character_is_escaped_in_json_and_replaced_in_csv(tmp_path: Path):
    rows = [{'id': '1', 'answer': 'half \udcb2 of é'}]
    assert write(tmp_path / 'out.jsonl', rows) == b'{"id":"1","answer":"half \\udcb2 of \\u00e9"}\n'
    assert write(tmp_path / 'out.csv', rows).decode() == 'id,answer\n1,half � of é\n'


def test_the_columns_stand_in_the_order_they_were_given(tmp_path: Path):
    rows = [{'answer': 'a', 'id': '1'}]
    assert write(tmp_path / 'out.csv', rows) == b'id,answer\n1,a\n'
    assert write(tmp_path / 'out.jsonl', rows) == b'{"id":"1","answer":"a"}\n'


def test_a_csv_file_without_rows_has_its_header(tmp_path: Path):
    assert write(tmp_path / 'out.csv', []) == b'id,answer\n'


def test_the_same_rows_are_the_same_bytes_packed_too(tmp_path: Path):
    assert write(tmp_path / 'one.csv.gz', ROWS) == write(tmp_path / 'two.csv.gz', ROWS)
    assert gzip.decompress((tmp_path / 'one.csv.gz').read_bytes()) == b'id,answer\n1,a\n2,b\n'


def test_standard_output_is_json_lines_unless_it_is_said_otherwise():
    for options, content in [({}, b'{"id":"1"}\n'), ({'format': 'csv', 'delimiter': ';'}, b'id;answer\n1;\n')]:
        stdout = io.BytesIO()
        with open_output('-', COLUMNS, stdout=stdout, **options) as sink:
            sink.write({'id': '1'})
        assert stdout.getvalue() == content


def test_a_file_is_not_there_before_it_is_whole(tmp_path: Path):
    path = tmp_path / 'out.csv'
    path.write_text('before')
    with open_output(path, COLUMNS) as sink:
        sink.write(ROWS[0])
        assert path.read_text() == 'before'
    assert path.read_text() == 'id,answer\n1,a\n'
    assert os.listdir(tmp_path) == ['out.csv']


@pytest.mark.parametrize('name', ['out.csv', 'out.jsonl.gz'])
def test_an_error_leaves_what_was_there(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text('before')

    def fail() -> None:
        with open_output(path, COLUMNS) as sink:
            sink.write(ROWS[0])
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert path.read_text() == 'before'
    assert os.listdir(tmp_path) == [name]


def fill(sink: RowSink) -> None:
    with sink:
        for _ in range(100):
            sink.write({'id': '1', 'answer': os.urandom(10_000).hex()})


@pytest.mark.parametrize('name', ['out.csv', 'out.jsonl', 'out.csv.gz'])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / name
    path.write_text('before')
    opened = os.open
    monkeypatch.setattr(os, 'open', lambda path, *rest: os.dup2(opened('/dev/full', os.O_WRONLY), opened(path, *rest)))
    sink = open_output(path, COLUMNS)
    with pytest.raises(OSError, match='No space left on device'):
        fill(sink)
    assert path.read_text() == 'before'
    assert os.listdir(tmp_path) == [name]


def test_a_file_has_the_permissions_of_any_new_one(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write(tmp_path / 'out.csv', ROWS)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / 'out.csv').stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path: Path):
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'out.csv').symlink_to(tmp_path / 'folder' / 'there.csv')
    write(tmp_path / 'out.csv', ROWS)
    assert (tmp_path / 'out.csv').is_symlink()
    assert (tmp_path / 'folder' / 'there.csv').read_bytes() == b'id,answer\n1,a\n2,b\n'


def test_a_device_is_written_to_and_not_replaced():
    with open_output('/dev/null', COLUMNS, format='csv') as sink:
        sink.write(ROWS[0])
    assert stat.S_ISCHR(os.stat('/dev/null').st_mode)


def test_a_long_name_is_one_that_can_be_written(tmp_path: Path):
    write(tmp_path / ('ü' * 125 + '.csv'), ROWS)


def test_the_output_may_not_be_the_input(tmp_path: Path):
    path = tmp_path / 'rows.csv'
    path.write_text('id\n1\n')
    (tmp_path / 'link.csv').symlink_to(path)
    with open_rows(path) as source:
        for output in (path, tmp_path / 'link.csv', tmp_path / '..' / tmp_path.name / 'rows.csv'):
            with pytest.raises(UserError, match='is the input as well'):
                open_output(output, COLUMNS, like=source)
        path.unlink()
        with pytest.raises(UserError, match='is the input as well'):
            open_output(path, COLUMNS, like=source)


def test_a_place_where_no_file_can_be_is_refused_before_anything_is_written(tmp_path: Path):
    (tmp_path / 'folder.csv').mkdir()
    for name, said in [
        ('folder.csv', 'is a folder'),
        ('none/out.csv', 'there is no folder .*none'),
        ('out.txt', 'is none of .csv'),
        ('out.parquet.gz', 'leave out .gz'),
    ]:
        with pytest.raises(UserError, match=said):
            open_output(tmp_path / name, COLUMNS)
    assert os.listdir(tmp_path) == ['folder.csv']


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise PermissionError(13, 'Permission denied')

    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(os, 'open', refuse)
    with pytest.raises(UserError, match='cannot be written: Permission denied in the folder'):
        open_output(tmp_path / 'out.csv', COLUMNS)


def test_columns_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match='would go by the name answer'):
        open_output(tmp_path / 'out.csv', ['answer', 'id', 'answer'])


def test_a_value_that_has_no_column_is_refused(tmp_path: Path):
    with open_output(tmp_path / 'out.csv', COLUMNS) as sink, pytest.raises(ValueError, match='no column cost'):
        sink.write({'cost': 1})


def test_ending_twice_is_ending_once(tmp_path: Path):
    sink = open_output(tmp_path / 'out.csv', COLUMNS)
    sink.write(ROWS[0])
    sink.commit()
    sink.commit()
    sink.discard()
    assert (tmp_path / 'out.csv').read_bytes() == b'id,answer\n1,a\n'
