"""Strings that match a regular expression, for the expressions that JSON schemas are written with.

Understood are literals, escapes, classes, groups, alternatives and counts. Look-arounds and word boundaries are passed
over, and the string is tried afterwards; back-references and flags are not understood.
"""

from __future__ import annotations

import random
import re
import string

_ESCAPED = {
    'd': string.digits,
    'w': string.ascii_lowercase + string.digits,
    's': ' ',
    'D': string.ascii_lowercase,
    'W': '-',
    'S': string.ascii_lowercase,
    'n': '\n',
    't': '\t',
}
_ANY = string.ascii_lowercase
_PRINTABLE = string.ascii_letters + string.digits + string.punctuation + ' '
_UNBOUNDED = 3
"""How many more than it must `*`, `+` and `{n,}` take at most."""
_TRIES = 20
_GROUP = re.compile(r'\?(?::|P?<\w+>)')
_LOOK_AROUND = re.compile(r'\?<?[=!]')
_COUNT = re.compile(r'\{(\d+)(?:(,)(\d*))?\}')


def matching(pattern: str, draw: random.Random) -> str | None:
    """A string in which `pattern` is found, drawn from `draw`; `None` if there is none within reach."""
    try:
        expression = re.compile(pattern)
        tries = (_Pattern(pattern, draw).alternatives() for _ in range(_TRIES))
        return next((made for made in tries if expression.search(made)), None)
    except (IndexError, ValueError, re.error):
        return None


class _Pattern:
    """Reads an expression from left to right, and writes a match on the way."""

    def __init__(self, pattern: str, draw: random.Random) -> None:
        self._pattern = pattern
        self._at = 0
        self._draw = draw

    def alternatives(self) -> str:
        """One of the alternatives up to the end of the group."""
        choices = [self._sequence()]
        while self._next_is('|'):
            self._at += 1
            choices.append(self._sequence())
        return self._draw.choice(choices)

    def _sequence(self) -> str:
        made = ''
        while self._at < len(self._pattern) and self._pattern[self._at] not in '|)':
            start = self._at
            piece = self._piece()
            end = self._at
            for n in range(self._count()):
                if n:
                    # Read once more, so that `[a-z]{3}` is three letters and not one letter three times.
                    after, self._at = self._at, start
                    piece = self._piece()
                    assert self._at == end
                    self._at = after
                made += piece
        return made

    def _piece(self) -> str:
        char = self._pattern[self._at]
        self._at += 1
        if char == '[':
            return self._draw.choice(self._class())
        if char == '(':
            return self._group()
        if char == '\\':
            return self._draw.choice(self._escape() or [''])
        if char in '^$':
            return ''
        return self._draw.choice(_ANY) if char == '.' else char

    def _group(self) -> str:
        looks_around = _LOOK_AROUND.match(self._pattern, self._at)
        if opening := looks_around or _GROUP.match(self._pattern, self._at):
            self._at = opening.end()
        elif self._next_is('?'):
            raise ValueError('only plain and named groups are understood')
        made = self.alternatives()
        self._at += 1
        return '' if looks_around else made

    def _escape(self) -> str:
        char = self._pattern[self._at]
        self._at += 1
        if char in 'bBAZ':
            return ''
        return _ESCAPED.get(char, char)

    def _class(self) -> str:
        negated = self._next_is('^')
        self._at += negated
        chars = ''
        while not self._next_is(']') or not chars:
            char = self._pattern[self._at]
            self._at += 1
            if char == '\\':
                chars += self._escape()
            elif self._next_is('-') and self._pattern[self._at + 1] != ']':
                last = self._pattern[self._at + 1]
                self._at += 2
                chars += ''.join(map(chr, range(ord(char), min(ord(last), ord(char) + 255) + 1)))
            else:
                chars += char
        self._at += 1
        return ''.join(char for char in _PRINTABLE if char not in chars) if negated else chars

    def _count(self) -> int:
        least = most = 1
        if self._at < len(self._pattern):
            char = self._pattern[self._at]
            if char in '?*+':
                least, most = {'?': (0, 1), '*': (0, _UNBOUNDED), '+': (1, 1 + _UNBOUNDED)}[char]
                self._at += 1
            elif counted := _COUNT.match(self._pattern, self._at):
                least = int(counted[1])
                most = int(counted[3]) if counted[3] else least + (_UNBOUNDED if counted[2] else 0)
                self._at = counted.end()
        if self._next_is('?'):
            self._at += 1
        return self._draw.randint(least, most)

    def _next_is(self, char: str) -> bool:
        return self._pattern[self._at : self._at + 1] == char
