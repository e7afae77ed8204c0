"""A gate on the way of a model's calls, for tests of what happens while one is under way."""

from __future__ import annotations

import asyncio

import httpx2
from pydantic_ai.models.openai import OpenAIResponsesModel


class Gate:
    """Holds the first call that a model's client makes to a path, until it is opened."""

    def __init__(self, model: OpenAIResponsesModel, method: str, ending: str) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()

        async def hold(request: httpx2.Request) -> None:
            if request.method == method and request.url.path.endswith(ending):
                self.reached.set()
                await self._open.wait()

        model.client._client.event_hooks = {'request': [hold]}

    def open(self) -> None:
        self._open.set()
