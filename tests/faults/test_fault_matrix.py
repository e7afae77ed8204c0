"""50 requests on each of 12 behaviours of a provider, and what comes of them; docs/details.md shows it as a table."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelAPIError

from .matrix import (
    ALL_WELL,
    BEHAVIOURS,
    CANCELLED,
    EXPIRED,
    RESUBMISSIONS,
    ROWS,
    SEPARATORS,
    SHUFFLED,
    WAYS,
    Behaviour,
    Came,
    Way,
    measure,
)
from .table import BUILT_IN, COLUMNS, OURS, Column, Key, built_in_version, cell, cells_of, measured, rendered, stored


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split('.')]


AS_SHOWN = _number(version('pydantic-ai-slim')) >= _number(built_in_version(stored()))
"""Whether the built-in is to do what the table says of it, which is not of older versions."""

CELLS = [
    pytest.param(behaviour, column, id=f'{behaviour.name}-{column.title}')
    for behaviour in BEHAVIOURS
    for column in [*OURS, *BUILT_IN]
    if column.harness not in behaviour.lacking
]


@pytest.fixture(autouse=True)
def _garbage_is_collected_between_tests() -> Iterator[None]:
    """Within one, going through all that fifty runs hold at a time takes half of the time."""
    gc.disable()
    yield
    gc.enable()


class Measured:
    """The cells that this run of the tests has measured so far, in whichever of its processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, key: Key, text: str) -> None:
        name, way, column = key
        path = self._folder / f'{name}-{way}-{column}.json'.replace(' ', '_').replace(':', '')
        # In one step, so that no other process reads half of it.
        draft = path.with_suffix('.draft')
        draft.write_text(json.dumps([name, way, column.title, text]), encoding='utf-8')
        draft.replace(path)

    @property
    def cells(self) -> dict[Key, str]:
        columns = {column.title: column for column in COLUMNS}
        found = [json.loads(path.read_text(encoding='utf-8')) for path in self._folder.glob('*.json')]
        return {(name, way, columns[title]): text for name, way, title, text in found}


@pytest.fixture
def measured_cells(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    base = tmp_path_factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in that of the run.
    folder = (base.parent if 'PYTEST_XDIST_WORKER' in os.environ else base) / 'fault-matrix'
    folder.mkdir(exist_ok=True)
    return Measured(folder)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize(('behaviour', 'column'), CELLS)
async def test_the_right_answers_are_as_many_as_the_table_says(
    behaviour: Behaviour, column: Column, way: Way, measured_cells: Measured
) -> None:
    again = await column.measure(behaviour, way, RESUBMISSIONS)
    if again.calls['create'] > 1 or (way == 'lists' and not column.built_in):
        once = await column.measure(behaviour, way, 0)
    else:
        # Nothing was submitted again, so without resubmission it is the same, and need not take its time once more.
        once = again
    right = (len(once.right), len(again.right))
    measured_cells.add((behaviour.name, way, column), cell(*right))
    if column.built_in:
        assert all(theirs <= ours for theirs, ours in zip(right, behaviour.wanted, strict=True))
    else:
        assert right == behaviour.wanted
        check(behaviour, once, creates=1)
        check(behaviour, again, creates=2 if behaviour.resubmits else 1)
    if not column.built_in or AS_SHOWN:
        shown = cells_of(stored())[behaviour.name, way, column]
        assert shown == cell(*right), 'Something else came of it before: `python -m tests.faults --write`'


def check(behaviour: Behaviour, came: Came, *, creates: int) -> None:
    """Beyond the number of right answers: nothing is another row's, and nothing is paid for and dropped, or twice."""
    assert came.wrong == []
    assert len(came.right) + len(came.errors) == len(ROWS)
    assert all(isinstance(error, ModelAPIError) for error in came.errors)
    assert came.calls['create'] == creates
    assert came.calls['cancel'] == came.calls['live'] == came.calls['unknown'] == 0
    lost = set(ROWS[: behaviour.lost])
    assert came.billed.keys() - lost <= came.right <= came.billed.keys()
    assert all(times <= (creates if row in lost else 1) for row, times in came.billed.items())


def test_the_table_has_every_behaviour_and_every_lane() -> None:
    table = stored()
    assert table == rendered(cells_of(table), built_in_version(table)), '`python -m tests.faults --write`'
    assert [cell(*behaviour.wanted) for behaviour in BEHAVIOURS] == [
        *('50', '50', '45', '45 (50)', '0', '25 (50)', '25', '0 (50)', '0', '50', '50', '50')
    ]


# By itself, it measures every cell, which takes some minutes.
@pytest.mark.timeout(900)
@pytest.mark.skipif(not AS_SHOWN, reason='the built-in column is of a later version of pydantic-ai')
async def test_the_table_that_is_measured_is_the_one_that_is_shown(measured_cells: Measured) -> None:
    cells = await measured(measured_cells.cells)
    table = rendered(cells, built_in_version(stored()))
    # Seen with `pytest -s`, or when it is another.
    print(table)
    assert table == stored(), 'Something else came of it before: `python -m tests.faults --write`'


# That the fakes do what the behaviours are called


async def served(behaviour: Behaviour, column: Column, max_resubmissions: int = 0) -> Came:
    return await measure(behaviour, column.harness, 'lists', max_resubmissions)


@pytest.mark.parametrize('column', OURS, ids=str)
async def test_results_are_shuffled_where_they_are_said_to_be(column: Column) -> None:
    in_order = list(range(len(ROWS)))
    assert (await served(ALL_WELL, column)).order == in_order
    shuffled = (await served(SHUFFLED, column)).order
    assert shuffled != in_order
    assert sorted(shuffled) == in_order


@pytest.mark.parametrize('column', [column for column in OURS if column.harness not in SEPARATORS.lacking], ids=str)
async def test_separators_are_raw_on_the_wire(column: Column) -> None:
    lines = (await served(SEPARATORS, column)).served
    assert len(lines) == len(ROWS)
    assert all(all(raw.encode() in line for raw in '\u2028\u2029\x85') for line in lines)


@pytest.mark.parametrize('behaviour', BEHAVIOURS, ids=str)
async def test_as_many_results_are_served_as_the_behaviour_says(behaviour: Behaviour) -> None:
    lines = {
        '5 rows missing': 45,
        'job failed': 0,
        'a result given twice': 55,
        'a result with an unknown id': 55,
    }
    came = await measure(behaviour, 'responses', 'lists', 0)
    assert len(came.served) == lines.get(behaviour.name, 50)


@pytest.mark.parametrize('behaviour', [EXPIRED, CANCELLED], ids=str)
@pytest.mark.parametrize('harness', ['google-inline', 'google-file'])
async def test_a_gemini_batch_that_ends_early_without_results_is_run_again_if_it_expired(
    behaviour: Behaviour, harness: str
) -> None:
    """As Google documents it: unlike in the matrix, what was done of such a batch is lost with it."""
    bare = Behaviour(behaviour.name, behaviour.wanted, lambda fake, window: _as_documented(behaviour, fake, window))
    once = await measure(bare, harness, 'lists', 0)
    again = await measure(bare, harness, 'lists', RESUBMISSIONS)
    assert (len(once.right), len(again.right)) == ((0, 50) if behaviour is EXPIRED else (0, 0))
    assert again.calls['create'] == (2 if behaviour is EXPIRED else 1)
    assert once.served == []


def _as_documented(behaviour: Behaviour, fake: Any, window: float) -> None:
    behaviour.play(fake, window)
    fake.partial_results = False
