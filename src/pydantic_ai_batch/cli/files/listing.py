"""Prints tables of batches as wide as they are: an ID that is folded, or cut, cannot be copied."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table

_MOST = 500
"""The most columns of a line."""


def listing(*heads: str, title: str | None = None) -> Table:
    """A table of batches, whose first column has their IDs."""
    columns = (Column(head, no_wrap=True) for head in heads)
    return Table(*columns, title=title, title_justify='left', box=SIMPLE_HEAD, pad_edge=False, show_edge=False)


def show(table: Table) -> None:
    """Print a table. A terminal that is too narrow wraps its lines, as it does those of any other program."""
    console = Console()
    needed = console.measure(table, options=console.options.update(width=_MOST)).maximum
    Console(width=max(console.width, needed)).print(table)
