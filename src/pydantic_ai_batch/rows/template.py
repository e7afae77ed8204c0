"""Prompts with the values of a row in them: `{{ name }}`, filled in once, and nothing else."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic_ai.exceptions import UserError

from .values import text_of

_VARIABLE = re.compile(r'\{\{([^{}]*[^{}\s][^{}]*)\}\}')
_EXPRESSION = re.compile(r'[.|()\[\]+%]')


class Template:
    """A text with variables, which are names of columns in double braces: `Summarise: {{ text }}`.

    There are no expressions, and a value that looks like a variable is not filled in again. Braces that form no
    variable stay as they are.
    """

    names: tuple[str, ...]
    """The variables, in the order of their first appearance."""

    def __init__(self, text: str) -> None:
        # Every second part is the name of a variable.
        self._parts = [part.strip() if place % 2 else part for place, part in enumerate(_VARIABLE.split(text))]
        self.names = tuple(dict.fromkeys(self._parts[1::2]))

    def check(self, columns: Collection[str]) -> None:
        """Refuse variables that are no columns.

        Raises:
            UserError: There are some. The message names each, and lists the columns.
        """
        unknown = [name for name in self.names if name not in columns]
        if not unknown:
            return
        named = ', '.join(_unknown(name, columns) for name in unknown)
        takes = ' Only names are taken between `{{` and `}}`.' if any(map(_EXPRESSION.search, unknown)) else ''
        listing = ', '.join(f'`{name}`' for name in columns) or 'none'
        raise UserError(f'No column goes by what the template names: {named}.{takes} The columns are {listing}.')

    def render(self, fields: Mapping[str, Any]) -> str:
        """The text with the values of one row: text as it is, `None` as nothing, other values as compact JSON.

        Raises:
            UserError: The row has no value of that name. The message says which.
        """
        parts = self._parts[:]
        for place in range(1, len(parts), 2):
            name = parts[place]
            if name not in fields:
                raise UserError(f'the row has no `{name}`, which the template names')
            parts[place] = text_of(fields[name])
        return ''.join(parts)


def _unknown(name: str, columns: Collection[str]) -> str:
    close = difflib.get_close_matches(name, columns, n=1) or [
        column for column in columns if column.casefold() == name.casefold()
    ]
    return f'`{name}` (did you mean `{close[0]}`?)' if close else f'`{name}`'
