"""Shows what is known about the lanes: `pydantic-ai-batch lanes`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Column, Table

from pydantic_ai_batch.lanes import LANES, LaneInfo, lane_named
from pydantic_ai_batch.lanes.facts import FACTS, shown

_COLUMNS = {
    'requests': 'max_requests',
    'size': 'max_bytes',
    'window': 'windows',
    'kept': 'results_kept',
    'off': 'discount',
    'cancel': 'cancellable',
}
"""What is shown of all lanes, in words that are short enough for a narrow terminal."""


def show_lanes(name: str | None, *, as_json: bool) -> None:
    """Print all lanes, or all that is known about one.

    Raises:
        UserError: There is no lane of that name.
    """
    infos = [lane_named(name)] if name is not None else list(LANES.values())
    if as_json:
        described = [TypeAdapter(LaneInfo).dump_python(info, mode='json') for info in infos]
        print(json.dumps(described[0] if name is not None else described, indent=2))
        return
    console = Console()
    console.print(_facts_of(infos[0]) if name is not None else _all_of(infos))


def _all_of(infos: list[LaneInfo]) -> Table:
    table = Table(*(Column(head, no_wrap=True) for head in ('lane', *_COLUMNS)))
    for info in infos:
        table.add_row(info.name, *(_short(info, fact) for fact in _COLUMNS.values()))
    # Few lanes have a fewest number, and a narrow terminal has no room for another column.
    least = [f'{info.name}: at least {info.min_requests:,}' for info in infos if info.min_requests is not None]
    if least:
        table.caption, table.caption_justify = f'Requests in a batch, {"; ".join(least)}.', 'left'
    return table


def _short(info: LaneInfo, fact: str) -> str:
    if fact == 'windows' and len(info.windows) > 1:
        shortest, longest = (shown(fact, at(info.windows)).partition(' ')[0] for at in (min, max))
        return f'{shortest} to {longest} h'
    text = shown(fact, getattr(info, fact))
    return text.replace(' hours', ' h').replace(' days', ' d')


def _facts_of(info: LaneInfo) -> Table:
    # Folded, and not cut off: names of variables are there to be copied.
    columns = [Column(head, overflow='fold') for head in ('fact', 'value', 'known from')]
    table = Table(*columns, title=f'{info.name}: {info.title}', title_justify='left')
    for fact, value in _known(info):
        table.add_row(FACTS[fact], shown(fact, value).replace('`', ''), info.sources.get(fact, ''))
    return table


def _known(info: LaneInfo) -> Iterator[tuple[str, Any]]:
    for field in dataclasses.fields(info):
        value = getattr(info, field.name)
        if field.name in FACTS and value is not None and value != ():
            yield field.name, value
