"""Words that errors and log lines share."""

from __future__ import annotations

from collections.abc import Sequence

_NAMED = 5
"""How many rows an error names at the most."""


def listed(things: Sequence[object]) -> str:
    """The first few of some things, for an error or a log line, and how many more there are."""
    more = f' and {len(things) - _NAMED} more' if len(things) > _NAMED else ''
    return ', '.join(str(thing) for thing in things[:_NAMED]) + more


def counted(count: int, thing: str) -> str:
    """How many there are of a thing, in the plural unless it is one."""
    return f'{count:,} {thing}' if count == 1 else f'{count:,} {thing}s'
