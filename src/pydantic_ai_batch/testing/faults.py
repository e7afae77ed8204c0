"""Misbehaviour that a test asks for by name, and when each piece of it is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

DAMAGES = ('truncate', 'not_json', 'null_id', 'list', 'blank', 'bad_utf8')
"""The ways `damage` has: see the table of `inject`."""


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
            ValueError: An unknown operation, fault or option, or a count that makes no sense.
        """
        known = self._known(operation)
        if name not in known:
            raise ValueError(f'Unknown fault {name!r} for {operation!r}. Known: {", ".join(sorted(known))}.')
        if unknown := options.keys() - known[name].keys():
            takes = ', '.join(known[name]) or 'no options'
            raise ValueError(f'Fault {name!r} does not take {", ".join(sorted(unknown))}. It takes: {takes}.')
        if name == 'damage' and options.get('how', 'truncate') not in DAMAGES:
            raise ValueError(f'Unknown damage {options["how"]!r}. Known: {", ".join(DAMAGES)}.')
        if after < 0 or (times is not None and times < 1):
            raise ValueError('`times` must be at least 1, or `None` for every time, and `after` must not be negative.')
        self._due.append(Fault(operation, name, known[name] | options, times, after))

    def _known(self, operation: str) -> dict[str, dict[str, Any]]:
        if operation == BATCH:
            return _BATCH
        if operation == LINES:
            return _LINES
        if operation == 'download':
            return _WIRE | _CUT
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
