"""A provider for a lane's own tests, that answers whatever a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx2

Handler = Callable[[httpx2.Request], httpx2.Response]


class Server:
    """A provider that answers each call as a test says, and keeps what it was sent."""

    def __init__(self) -> None:
        self.calls: list[httpx2.Request] = []
        self.answer: Handler = lambda request: httpx2.Response(500)

    def handle(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.append(request)
        return self.answer(request)

    def replies(self, *bodies: Any) -> None:
        """Answer one after another, with the last over and over."""
        waiting = list(bodies)

        def answer(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, json=waiting.pop(0) if len(waiting) > 1 else waiting[0])

        self.answer = answer
