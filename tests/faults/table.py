"""The table of the fault matrix in docs/details.md; `python -m tests.faults --write` writes it there.

A cell says how many of 50 answers were right, as it was measured. In parentheses is how many were with resubmission,
where that is another number.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from textwrap import fill

from lanes.harness import ALL

from .matrix import (
    BEHAVIOURS,
    RESUBMISSIONS,
    ROWS,
    WAYS,
    Behaviour,
    Came,
    Way,
    measure,
    measure_built_in,
)

PAGE = Path(__file__).parents[2] / 'docs' / 'details.md'
_BETWEEN = re.compile(r'(?<=<!-- fault-matrix -->\n).*?(?=<!-- /fault-matrix -->)', re.DOTALL)
_NONE = '–'


@dataclass(frozen=True)
class Column:
    """Whose answers are counted, and with which models."""

    harness: str
    built_in: bool = False

    @property
    def title(self) -> str:
        return f'built-in: {self.harness.removesuffix("-file")}' if self.built_in else self.harness

    async def measure(self, behaviour: Behaviour, way: Way, max_resubmissions: int) -> Came:
        play = measure_built_in if self.built_in else measure
        return await play(behaviour, self.harness, way, max_resubmissions)

    def __str__(self) -> str:
        return self.title


OURS = [Column(harness.name) for harness in ALL]
# pydantic-ai's own refuses chat models, and sends each Gemini batch as a file. What is native is nobody's lane.
BUILT_IN = [Column(name, True) for name in ('responses', 'anthropic', 'google-file')]
COLUMNS = [*OURS, *BUILT_IN]

Key = tuple[str, Way, Column]
"""The name of a behaviour, the way the requests were made, and whose answers are counted."""

_HEADINGS: dict[Way, str] = {
    'lists': 'Through lists, `model_request_batch`:',
    'agents': 'Through agents, 50 runs that are gathered:',
}


def cell(without: int, with_resubmission: int) -> str:
    return str(without) if without == with_resubmission else f'{without} ({with_resubmission})'


def rendered(cells: Mapping[Key, str], built_in: str) -> str:
    """The table, of cells that were measured, those of the built-in with the version `built_in` of pydantic-ai."""
    parts = [
        f'Right answers out of {len(ROWS)} without resubmission; in parentheses with up to {RESUBMISSIONS}, the '
        f'default, where that makes a difference. *Wanted* is what the provider leaves to be had. *Built-in* is what '
        f"pydantic-ai {built_in}'s own batch support comes to, which serves no chat models."
    ]
    for way in WAYS:
        head = ['behaviour', 'wanted', *(column.title for column in COLUMNS)]
        lines = [head, ['---'] * len(head)]
        for behaviour in BEHAVIOURS:
            measured = [cells[behaviour.name, way, column] for column in COLUMNS]
            lines.append([behaviour.name, cell(*behaviour.wanted), *measured])
        parts += [_HEADINGS[way], '\n'.join(f'| {" | ".join(line)} |' for line in lines)]
    lacking = [
        f'“{behaviour.name[0].upper()}{behaviour.name[1:]}” cannot be shown on '
        f'{" and ".join(f"`{harness}`" for harness in behaviour.lacking)}: {next(iter(behaviour.lacking.values()))}.'
        for behaviour in BEHAVIOURS
        if behaviour.lacking
    ]
    parts.append(
        'Gemini documents that a batch which expires or is cancelled has no results. What is done of it is counted '
        f'here for the case that it has some. {" ".join(lacking)}'
    )
    wrapped = [part if part.startswith('|') else fill(part, 118, break_on_hyphens=False) for part in parts]
    return '\n' + '\n\n'.join(wrapped) + '\n\n'


def stored() -> str:
    """The table as it stands on the page."""
    found = _BETWEEN.search(PAGE.read_text(encoding='utf-8'))
    assert found is not None, f'{PAGE.name} has no marks for the fault matrix.'
    return found[0]


def cells_of(table: str) -> dict[Key, str]:
    """The cells of a table that was rendered."""
    cells: dict[Key, str] = {}
    columns = {column.title: column for column in COLUMNS}
    for way, heading in _HEADINGS.items():
        head, _, *lines = [
            [text.strip() for text in line.strip('|').split('|')]
            for line in table.partition(heading)[2].strip().partition('\n\n')[0].splitlines()
        ]
        for name, _, *texts in lines:
            cells |= {(name, way, columns[title]): text for title, text in zip(head[2:], texts, strict=True)}
    return cells


def built_in_version(table: str) -> str:
    """The version of pydantic-ai that the built-in's cells of a table were measured with."""
    found = re.search(r'pydantic-ai\s([\d.]+)', table)
    return found[1] if found else ''


async def measured_cell(behaviour: Behaviour, way: Way, column: Column) -> str:
    """One cell, measured now."""
    if column.harness in behaviour.lacking:
        return _NONE
    came = [await column.measure(behaviour, way, most) for most in (0, RESUBMISSIONS)]
    return cell(*(len(each.right) for each in came))


async def measured(known: Mapping[Key, str] | None = None) -> dict[Key, str]:
    """Every cell, measured now but for those that are known."""
    cells = dict(known or {})
    for behaviour in BEHAVIOURS:
        for way in WAYS:
            for column in COLUMNS:
                if (key := (behaviour.name, way, column)) not in cells:
                    cells[key] = await measured_cell(behaviour, way, column)
    return cells


def main() -> None:
    logging.getLogger('pydantic_ai_batch').setLevel(logging.ERROR)
    table = rendered(asyncio.run(measured()), version('pydantic-ai-slim'))
    if '--write' in sys.argv[1:]:
        page = PAGE.read_text(encoding='utf-8')
        PAGE.write_text(_BETWEEN.sub(lambda _: table, page), encoding='utf-8')
    else:
        print(table.strip())
