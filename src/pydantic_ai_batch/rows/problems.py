"""What is wrong with the rows of an input, gathered so that all of it can be said at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic_ai_batch.exceptions import InputProblems
from pydantic_ai_batch.wording import counted

if TYPE_CHECKING:
    from .base import RowSource

SHOWN = 20
"""How many problems an error has in full."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with an input, and where."""

    line: int
    """The line it begins on, from 1; for rows that are no text, the number of the row."""

    reason: str
    """What is wrong there."""

    place: int | None = None
    """Where the row stands among the rows, if it is one that can be read and only not sent as it is, for a lone
    surrogate: the others could do without it. `None` if there is no row."""

    of_all: bool = False
    """Whether it is wrong with every row, as what is wrong with a header is."""

    def at(self, source: RowSource) -> str:
        """The problem with the name of its input and its place in it."""
        return f'{source.name}, {source.counts} {self.line}: {self.reason}'


def unreadable_error(source: RowSource) -> InputProblems | None:
    """The error for an input of which nothing more can be said than that it cannot be read; `None` if more can."""
    problems = [problem for problem in source.read() if problem.place is None]
    if problems and (not len(source) or any(problem.of_all for problem in problems)):
        return problems_error(source, problems)
    return None


def problems_error(source: RowSource, problems: Sequence[Problem]) -> InputProblems:
    """The error for an input that cannot be used as it is: the first 20 problems, and how many more there are."""
    ordered = sorted(problems, key=lambda problem: problem.line)
    lines = [problem.at(source) for problem in ordered[:SHOWN]]
    if len(ordered) > SHOWN:
        lines.append(f'… and {len(ordered) - SHOWN:,} more')
    head = f'{source.name} has {counted(len(ordered), "problem")}, and nothing was sent:'
    return InputProblems('\n'.join([head, *lines]), ordered)
