"""Attacks from below: transports of the user's, such as one that retries, raise what they like."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.testing import FakeProviders, ManualClock


class GaveUp(Exception):
    """What a retrying transport may raise, as tenacity's `RetryError` is: no error of httpx's."""


class Transport(httpx2.AsyncBaseTransport):
    """Sends calls on, but gives up on the first `times` to a path, before or after they took effect."""

    def __init__(self, method: str, ending: str, *, after: bool, times: int = 1) -> None:
        self._inner = httpx2.AsyncHTTPTransport()
        self._hit: Callable[[httpx2.Request], bool] = lambda request: (
            request.method == method and request.url.path.endswith(ending) and self._left > 0
        )
        self._after, self._left = after, times

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        hit = self._hit(request)
        self._left -= hit
        if hit and not self._after:
            raise GaveUp
        response = await self._inner.handle_async_request(request)
        if hit:
            await response.aread()
            await response.aclose()
            raise GaveUp
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


async def outputs(
    fake: FakeProviders, clock: ManualClock, transport: httpx2.AsyncBaseTransport, runs: int = 3
) -> list[object]:
    async with fake.openai.client(http_client=httpx2.AsyncClient(transport=transport)) as client:
        model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, capabilities=[BatchModelRequests(max_requests=runs, clock=clock)])
        work: list[Awaitable[object]] = [agent.run(str(n)) for n in range(runs)]
        results = await clock.run(asyncio.gather(*work, return_exceptions=True))
        return [getattr(result, 'output', result) for result in results]


async def test_a_create_whose_reply_a_transport_lost_is_found_and_paid_once(clock: ManualClock, fake: FakeProviders):
    results = await outputs(fake, clock, Transport('POST', '/batches', after=True))
    assert all(isinstance(result, str) for result in results)
    assert fake.openai.count('create') == 1
    assert Counter(row.text for row in fake.openai.billed) == Counter('012')


@pytest.mark.parametrize('ending', ['/content', ''])
async def test_a_check_that_a_transport_gives_up_on_says_nothing_about_the_batch(
    ending: str, clock: ManualClock, fake: FakeProviders
):
    results = await outputs(fake, clock, Transport('GET', ending, after=False))
    assert fake.openai.count('cancel') == 0
    assert all(isinstance(result, str) for result in results)


async def test_an_upload_that_a_transport_gives_up_on_is_repeated(clock: ManualClock, fake: FakeProviders):
    results = await outputs(fake, clock, Transport('POST', '/files', after=False))
    assert all(isinstance(result, str) for result in results)


async def test_a_batch_whose_every_check_fails_is_not_cancelled(clock: ManualClock, fake: FakeProviders):
    results = await outputs(fake, clock, Transport('GET', '', after=False, times=10_000))
    assert all(isinstance(result, Exception) for result in results)
    assert fake.openai.count('cancel') == 0
