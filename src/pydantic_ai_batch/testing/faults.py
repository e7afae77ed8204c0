"""Misbehaviour that a test asks for by name, and when each piece of it is due."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

_WIRE: dict[str, dict[str, Any]] = {
    'http': {'status': 500, 'code': None, 'message': 'injected fault', 'headers': {}, 'done': False},
    'reset': {},
    'lose_reply': {},
    'garbage': {'body': b'<html><body>Bad gateway</body></html>'},
}
"""Faults of any HTTP operation, with the defaults of their options."""

_CUT: dict[str, dict[str, Any]] = {'cut': {'fraction': 0.5, 'announced': True}}

_BATCH: dict[str, dict[str, Any]] = {
    'expire': {'done': 0, 'seconds': 86400.0},
    'cancel': {'done': 0},
    'fail': {'errors': None, 'rows': None},
    'stick': {'done': 0},
    'status_word': {'word': 'weird', 'when': None},
    'hide': {'seconds': 60.0},
    'delay_results': {'seconds': 60.0},
}
"""Faults of a batch as a whole."""

_LINES: dict[str, dict[str, Any]] = {
    'drop': {'rows': 1},
    'damage': {'rows': 1, 'how': 'truncate'},
    'duplicate': {'rows': 1},
    'unknown_id': {'rows': 1},
    'error_in_output': {'rows': None},
    'string_body': {'rows': None},
}
"""Faults of a batch's result lines. `rows` is a number (the first of the input), a predicate on the request, or all."""

BATCH, LINES = 'batch', 'lines'
"""The two targets of a fault that are no HTTP operation: the next batch that is created, and its results."""

DEFAULTS = {'download': _WIRE | _CUT, BATCH: _BATCH, LINES: _LINES}
"""The faults of each operation with the options they take; those of an HTTP operation that is not here are `_WIRE`."""

DAMAGES = ('truncate', 'not_json', 'null_id', 'list', 'blank', 'bad_utf8')
"""The ways `damage` has: see the table of `inject`."""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_count(value: object) -> bool:
    # `True` is an `int` to Python, and never meant as one here.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _is_headers(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(part, str) for pair in cast('Mapping[object, object]', value).items() for part in pair
    )


def _is_errors(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(error, dict) for error in cast('list[object]', value))
    )


_ROWS = 'the number of the first rows that are meant, `None` for all, or, in Python, a function from `FakeRequest`'

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'status': ('an HTTP status from 200 to 599', lambda value: _is_count(value) and 200 <= value < 600),
    'code': ('a string or `None`', _is_text_or_none),
    'message': ('a string', _is_text),
    'headers': ('a mapping of strings to strings', _is_headers),
    'body': ('bytes or a string', lambda value: isinstance(value, bytes | str)),
    'fraction': ('a number from 0 to 1', lambda value: _is_number(value) and value <= 1),
    'announced': ('true or false', _is_flag),
    'seconds': ('a number of seconds that is not negative', _is_number),
    'errors': ('a list of mappings, or `None`', _is_errors),
    'rows': (_ROWS, lambda value: value is None or _is_count(value) or callable(value)),
    'word': ('a string', _is_text),
    'when': ('a string or `None`', _is_text_or_none),
    'how': (f'one of {", ".join(DAMAGES)}', lambda value: value in DAMAGES),
    'done': ('a number of rows that is not negative', _is_count),
}
"""What each option takes, in words and as a check of a value."""

_KINDS_OF_ONE: dict[tuple[str, str], tuple[str, Callable[[Any], bool]]] = {
    ('http', 'done'): ('true or false', _is_flag),
    ('fail', 'rows'): (
        'a function from `FakeRequest`, which only Python can pass, or `None`',
        lambda value: value is None or callable(value),
    ),
}
"""The same, for a fault whose option has the name of another's and takes something else."""

TEXTS = frozenset({'code', 'message', 'body', 'word', 'when', 'how'})
"""The options that take text, which a command line need not put in quotes."""


def _check(name: str, option: str, value: object) -> None:
    takes, fits = _KINDS_OF_ONE.get((name, option), _KINDS[option])
    if not fits(value):
        raise ValueError(f'Option `{option}` of fault {name!r} takes {takes}, not {value!r}.')


@dataclass
class Fault:
    """A fault that was injected, with its options filled in, and how often it is still due."""

    operation: str
    name: str
    options: dict[str, Any]
    times: int | None
    after: int

    def __getitem__(self, option: str) -> Any:
        return self.options[option]


class Faults:
    """The faults of one provider that are still due, oldest first."""

    def __init__(self, operations: frozenset[str]) -> None:
        self._operations = operations
        self._due: list[Fault] = []

    def add(self, operation: str, name: str, *, times: int | None, after: int, options: dict[str, Any]) -> None:
        """Plan a fault, or say what is wrong with it.

        Raises:
            ValueError: An unknown operation, fault or option, or a value that an option does not take.
        """
        known = self._known(operation)
        if name not in known:
            raise ValueError(f'Unknown fault {name!r} for {operation!r}. Known: {", ".join(sorted(known))}.')
        if unknown := options.keys() - known[name].keys():
            takes = ', '.join(known[name]) or 'no options'
            raise ValueError(f'Fault {name!r} does not take {", ".join(sorted(unknown))}. It takes: {takes}.')
        for option, value in options.items():
            _check(name, option, value)
        if times is not None and (not _is_count(times) or times < 1):
            raise ValueError(f'`times` must be a number of at least 1, or `None` for every time, not {times!r}.')
        if not _is_count(after):
            raise ValueError(f'`after` must be a number that is not negative, and not {after!r}.')
        self._due.append(Fault(operation, name, known[name] | options, times, after))

    def _known(self, operation: str) -> dict[str, dict[str, Any]]:
        if operation in DEFAULTS:
            return DEFAULTS[operation]
        if operation in self._operations:
            return _WIRE
        known = ', '.join(sorted({*self._operations, BATCH, LINES}))
        raise ValueError(f'Unknown operation {operation!r}. Known: {known}.')

    def take(self, operation: str) -> Fault | None:
        """The fault of the HTTP call that is being answered: the oldest that is due."""
        return next(iter(self._take(operation, 1)), None)

    def take_all(self, operation: str) -> list[Fault]:
        """Every fault of the batch that is being created."""
        return self._take(operation, None)

    def _take(self, operation: str, limit: int | None) -> list[Fault]:
        taken: list[Fault] = []
        for fault in [fault for fault in self._due if fault.operation == operation]:
            if fault.after:
                fault.after -= 1
            elif limit is None or len(taken) < limit:
                taken.append(fault)
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._due.remove(fault)
        return taken

    def clear(self) -> None:
        """Forget what was injected."""
        self._due.clear()
