"""Parquet is read and written through `pyarrow`, with its types."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.sink import open_output
from pydantic_ai_batch.rows.source import open_rows

MISSING = """
import sys
sys.modules['pyarrow'] = None
from pydantic_ai.exceptions import UserError
from pydantic_ai_batch.rows.sink import open_output
from pydantic_ai_batch.rows.source import open_rows
for call in (lambda: open_rows(__file__, format='parquet'), lambda: open_output(sys.argv[1], ['a'])):
    try:
        call()
    except UserError as error:
        print(error)
"""


def test_without_the_library_the_error_names_the_extra(tmp_path: Path):
    (tmp_path / 'program.py').write_text(MISSING)
    (tmp_path / 'out').mkdir()
    command = [sys.executable, '-W', 'error', str(tmp_path / 'program.py'), str(tmp_path / 'out' / 'out.parquet')]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.stderr == ''
    said = 'Parquet files need `pyarrow`: install it with `pip install "pydantic-ai-batch[parquet]"`.\n'
    assert ran.stdout == said * 2
    assert os.listdir(tmp_path / 'out') == []


@pytest.fixture
def arrow() -> Any:
    return pytest.importorskip('pyarrow')


@pytest.fixture
def parquet(arrow: Any) -> Any:
    return importlib.import_module('pyarrow.parquet')


def test_rows_keep_their_types_and_are_read_in_any_order(tmp_path: Path, arrow: Any, parquet: Any):
    rows = [
        {'id': number, 'text': f'é{number}', 'on': date(2030, 1, 2), 'tags': ['a', None], 'none': None}
        for number in range(2_500)
    ]
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / 'rows.parquet', row_group_size=700)
    with open_rows(tmp_path / 'rows.parquet') as source:
        assert source.read() == []
        assert [row.fields for row in source] == rows
        assert [(source[place].line, source[place].fields) for place in (2_499, 0, 1_234)] == [
            (2_500, rows[2_499]),
            (1, rows[0]),
            (1_235, rows[1_234]),
        ]
        assert source.columns == ('id', 'text', 'on', 'tags', 'none')
        assert source.digest == hashlib.sha256((tmp_path / 'rows.parquet').read_bytes()).hexdigest()


def test_parquet_comes_through_standard_input_too(arrow: Any, parquet: Any):
    content = io.BytesIO()
    parquet.write_table(arrow.table({'id': [1, 2]}), content)
    with open_rows('-', format='parquet', stdin=io.BytesIO(content.getvalue())) as source:
        assert source.read() == []
        assert [row.fields for row in source] == [{'id': 1}, {'id': 2}]


def test_a_row_with_nan_is_a_problem(tmp_path: Path, arrow: Any, parquet: Any):
    parquet.write_table(arrow.table({'x': [1.0, float('nan'), None]}), tmp_path / 'rows.parquet')
    with open_rows(tmp_path / 'rows.parquet') as source:
        assert [problem.line for problem in source.read()] == [2]
        assert [row.fields for row in source] == [{'x': 1.0}, {'x': None}]


@pytest.mark.parametrize('content', [b'id,input\n1,a\n', b'PAR1' + b'x' * 50 + b'PAR1', b''])
def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path, arrow: Any, content: bytes):
    (tmp_path / 'rows.parquet').write_bytes(content)
    with pytest.raises(UserError, match='is no Parquet file, or is damaged'):
        open_rows(tmp_path / 'rows.parquet')


def test_columns_of_one_name_are_refused(tmp_path: Path, arrow: Any, parquet: Any):
    table = arrow.Table.from_arrays([arrow.array([1]), arrow.array([2])], names=['a', 'a'])
    parquet.write_table(table, tmp_path / 'rows.parquet')
    with pytest.raises(UserError, match='more than one column that goes by the name a'):
        open_rows(tmp_path / 'rows.parquet')


def test_a_file_that_is_changed_while_it_is_read_is_refused(tmp_path: Path, arrow: Any, parquet: Any):
    path = tmp_path / 'rows.parquet'
    parquet.write_table(arrow.table({'id': [1, 2]}), path)
    with open_rows(path) as source:
        os.utime(path, ns=(0, 0))
        with pytest.raises(UserError, match='was changed while it was read'):
            source.read()


def test_a_column_has_the_type_that_holds_all_its_values(tmp_path: Path, arrow: Any, parquet: Any):
    columns: dict[str, tuple[list[Any], str, list[Any]]] = {
        'truth': ([None, True, False], 'bool', [None, True, False]),
        'whole': ([None, 1, 2], 'int64', [None, 1, 2]),
        'number': ([1, 0.5, float('nan')], 'double', [1.0, 0.5, None]),
        'cost': ([Decimal('0.5'), None, 1], 'double', [0.5, None, 1.0]),
        'text': (['a', '', None], 'string', ['a', '', None]),
        'half': (['\ud835', None, None], 'string', ['�', None, None]),
        'mixed': ([1, 'a', True], 'string', ['1', 'a', 'true']),
        'large': ([2**70, 1, 2], 'string', [str(2**70), '1', '2']),
        'list': ([['ä'], {'a': 1}, None], 'string', ['["ä"]', '{"a":1}', None]),
        'on': ([date(2030, 1, 2), None, None], 'string', ['2030-01-02', None, None]),
        'nothing': ([None, None, None], 'string', [None, None, None]),
    }
    path = tmp_path / 'out.parquet'
    with open_output(path, list(columns)) as sink:
        for place in range(3):
            sink.write({name: values[place] for name, (values, _, _) in columns.items()})
    table = parquet.read_table(path)
    assert {name: str(table.schema.field(name).type) for name in columns} == {
        name: kind for name, (_, kind, _) in columns.items()
    }
    assert table.to_pydict() == {name: read for name, (_, _, read) in columns.items()}


def test_columns_of_the_input_keep_their_types(tmp_path: Path, arrow: Any, parquet: Any):
    schema = arrow.schema(
        {
            'id': arrow.int16(),
            'at': arrow.timestamp('us'),
            'tags': arrow.list_(arrow.string()),
            'cost': arrow.decimal128(9, 4),
            'kind': arrow.dictionary(arrow.int32(), arrow.string()),
            'blob': arrow.binary(),
        }
    )
    row = {
        'id': 1,
        'at': datetime(2030, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001 - a column without a time zone
        'tags': ['a', None],
        'cost': Decimal('0.1000'),
        'kind': 'k',
        'blob': b'\xff',
    }
    parquet.write_table(arrow.Table.from_pylist([row], schema=schema), tmp_path / 'rows.parquet')
    with open_rows(tmp_path / 'rows.parquet') as source:
        assert source.read() == []
        with open_output(tmp_path / 'out.parquet', [*source.columns, 'answer'], like=source) as sink:
            for read in source:
                sink.write({**read.fields, 'answer': 'a'})
    table = parquet.read_table(tmp_path / 'out.parquet')
    assert table.to_pylist() == [{**row, 'answer': 'a'}]
    assert [table.schema.field(name).type for name in schema.names] == schema.types


def test_row_groups_have_ten_thousand_rows_and_an_output_without_rows_its_columns(
    tmp_path: Path, arrow: Any, parquet: Any
):
    with open_output(tmp_path / 'out.parquet', ['id']) as sink:
        for number in range(25_000):
            sink.write({'id': number})
    written = parquet.ParquetFile(tmp_path / 'out.parquet').metadata
    assert [written.row_group(group).num_rows for group in range(3)] == [10_000, 10_000, 5_000]
    with open_output(tmp_path / 'empty.parquet', ['id', 'answer']):
        pass
    assert parquet.read_table(tmp_path / 'empty.parquet').to_pydict() == {'id': [], 'answer': []}


def test_an_error_leaves_what_was_there(tmp_path: Path, arrow: Any):
    path = tmp_path / 'out.parquet'
    path.write_text('before')

    def fail() -> None:
        with open_output(path, ['id']) as sink:
            sink.write({'id': 1})
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert path.read_text() == 'before'
    assert os.listdir(tmp_path) == ['out.parquet']
