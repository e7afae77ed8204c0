"""The record of every call that a fake provider received."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

_SECRET_HEADERS = frozenset({'authorization', 'api-key', 'x-api-key', 'x-goog-api-key', 'cookie'})
_SECRET_QUERY = frozenset({'key', 'access_token'})


@dataclass(frozen=True)
class Call:
    """One HTTP call, as the fake provider saw it."""

    provider: str
    """Which fake was called, such as `'openai'`."""
    operation: str
    """What was asked for, such as `'create'`; `'unknown'` if there is nothing at the path."""
    method: str
    """HTTP method, in capitals."""
    path: str
    """Decoded path, without the query."""
    query: dict[str, str]
    """Query parameters; keys in them are replaced by a digest."""
    headers: dict[str, str]
    """Headers with lowercase names; credentials are replaced by a digest, equal for equal credentials."""
    body: bytes = field(repr=False)
    """The request's whole body."""
    status: int | None
    """The status that was answered; `None` if the connection was cut before the reply was complete."""
    at: float
    """When, in seconds since the epoch on the fake's clock."""


class CallLog:
    """Collects calls from any thread, in the order they were answered."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def add(self, call: Call) -> None:
        """Append a call."""
        with self._lock:
            self._calls.append(call)

    def of(self, provider: str | None = None) -> list[Call]:
        """A copy of the calls, of one provider or of all."""
        with self._lock:
            return [call for call in self._calls if provider in (None, call.provider)]


def digest(secret: str) -> str:
    """A short digest that tells two secrets apart without holding either."""
    return f'sha256:{hashlib.sha256(secret.encode()).hexdigest()[:12]}'


def without_secrets(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers or query parameters as a dict with lowercase header names and credentials digested."""
    return {
        name: digest(value) if name.lower() in _SECRET_HEADERS or name in _SECRET_QUERY else value
        for name, value in pairs
    }
