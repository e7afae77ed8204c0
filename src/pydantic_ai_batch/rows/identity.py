"""Which row is which: the ID of each, from a column or from its number."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise
from numbers import Integral
from typing import Any

from pydantic_ai.exceptions import UserError

from .base import InputRow, RowSource
from .problems import Problem

DEFAULT_ID_COLUMN = 'id'


def find_id_column(source: RowSource, id_column: str | None) -> str | None:
    """The column that the IDs are in, of an input that was read; `None` if they are the numbers of the rows.

    Args:
        source: The input.
        id_column: The name of the column; by default `id`, if there is one.

    Raises:
        UserError: The column is named, and is not there. The message lists those that are.
    """
    if id_column is None:
        return DEFAULT_ID_COLUMN if DEFAULT_ID_COLUMN in source.columns else None
    if id_column not in source.columns:
        columns = ', '.join(f'`{name}`' for name in source.columns) or 'none'
        raise UserError(f'{source.name} has no column `{id_column}` to take the IDs from. Its columns are {columns}.')
    return id_column


def id_of(row: InputRow, id_column: str | None) -> str:
    """The ID of a row: text, in which a whole number is written with decimals.

    Args:
        row: The row.
        id_column: What `find_id_column` found. With `None`, the ID is the number of the row, from 1.

    Raises:
        UserError: The row has no ID, or one that is neither text nor a whole number. The message says so in words that
            follow the line of a row.
    """
    if id_column is None:
        return str(row.place + 1)
    value: Any = row.fields.get(id_column)
    if isinstance(value, str) and value.strip():
        return value
    if not isinstance(value, bool) and isinstance(value, Integral):
        return str(int(value))
    if id_column not in row.fields:
        raise UserError(f'the ID is missing: the row has no `{id_column}`')
    if value is None or isinstance(value, str):
        raise UserError(f'the ID in `{id_column}` is blank')
    raise UserError(f'the ID in `{id_column}` is neither text nor a whole number but {type(value).__name__}')


def check_ids(source: RowSource, id_column: str | None) -> list[Problem]:
    """What is wrong with the IDs of an input that was read: those that are missing, blank, or not the only ones.

    Raises:
        UserError: `id_column` is named, and is not there.
    """
    column = find_id_column(source, id_column)
    if column is None:
        return []
    problems: list[Problem] = []
    # Eight bytes for each ID, however long they are: what repeats is looked at once more.
    hashes = array('q', (hash(row_id) for _, row_id in _ids(source, column, problems)))
    repeated = {one for one, other in pairwise(sorted(hashes)) if one == other}
    if repeated:
        first: dict[str, int] = {}
        for row, row_id in _ids(source, column, []):
            if hash(row_id) not in repeated:
                continue
            if row_id in first:
                where = f'{source.counts} {first[row_id]}'
                problems.append(Problem(row.line, f'the ID {row_id!r} again, which {where} has already'))
            else:
                first[row_id] = row.line
    return sorted(problems, key=lambda problem: problem.line)


def _ids(source: RowSource, column: str, problems: list[Problem]) -> Iterator[tuple[InputRow, str]]:
    for row in source:
        try:
            row_id = id_of(row, column)
        except UserError as error:
            problems.append(Problem(row.line, error.message))
        else:
            yield row, row_id
