"""Rows of JSON lines: one object on each line, which ends at a newline byte and nowhere else."""

from __future__ import annotations

import json
from typing import Any

from .problems import Problem
from .strict_json import parse_object
from .text_source import TextSource, decoded
from .values import LoneSurrogate

_BLANK = b' \t\r\n'


class JsonlSource(TextSource):
    """Rows of a JSONL file."""

    def _find(self) -> list[Problem]:
        problems: list[Problem] = []
        columns: dict[str, None] = {}
        position = self._start
        array = False
        self._file.seek(position)
        for number, line in enumerate(self._file, 1):
            begin = position
            position += len(line)
            text = line.strip(_BLANK)
            if not text:
                continue
            try:
                fields = parse_object(decoded(text))
            except LoneSurrogate as error:
                problems.append(Problem(number, str(error), place=len(self._begins)))
                fields = error.fields
            except ValueError as error:
                if text.startswith(b'[') and not array and not self._begins and not problems:
                    array = True
                    problems.append(_array(number))
                    if _goes_on(text):
                        break
                else:
                    problems.append(Problem(number, str(error)))
                continue
            columns.update(dict.fromkeys(fields))
            self._add(begin, number)
        self.columns = tuple(columns)
        return problems

    def _parse(self, text: bytes) -> dict[str, Any]:
        return json.loads(text.partition(b'\n')[0].decode())


def _array(line: int) -> Problem:
    return Problem(
        line,
        "the file is a JSON array, and must be one object a line, without commas in between: `jq -c '.[]'` makes it so",
    )


def _goes_on(text: bytes) -> bool:
    """Whether an array that begins on a line ends on another: each line would be a problem of its own."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False
