"""pydantic-ai's own batching and ours, to be put through the same scenes, and what these scenes have in common."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import ALL, Harness, echo
from lanes.native_model import NativeModel
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.testing import FakeProviders, ManualClock
from pydantic_ai_batch.testing.answers import AnswerFunction

ModelFor = Callable[..., Model]
"""What the fixture `model_for` is."""

POLL = timedelta(minutes=10)
"""Longer than a fake takes with a batch. What the built-in capability remembers of a batch goes by the machine's clock,
so that it must not have to look twice under one that is moved by hand."""

RESPONSES = next(harness for harness in ALL if harness.name == 'responses')
ANTHROPIC = next(harness for harness in ALL if harness.name == 'anthropic')


@dataclass(frozen=True)
class Way:
    """One of the two capabilities."""

    name: str

    def batching(self, clock: Clock, *, max_requests: int = 1, **settings: Any) -> BatchModelRequests | BuiltIn:
        """One that submits when `max_requests` are there.

        Chat's first request waits for a thread, which a clock that is moved by hand may overtake.
        """
        settings = {'poll_interval': POLL, 'max_poll_interval': POLL, 'max_wait': None} | settings
        if self is OURS:
            return BatchModelRequests(max_requests=max_requests, clock=clock, **settings)
        return BuiltIn(max_requests=max_requests, **settings)


OURS = Way('ours')
BUILT_IN = Way('built-in')

ways = pytest.mark.parametrize('way', [OURS, BUILT_IN], ids=lambda way: way.name)
"""Both capabilities, where one lane will do."""


@dataclass(frozen=True)
class Scene:
    """A capability and a lane."""

    way: Way
    harness: Harness

    def __str__(self) -> str:
        return f'{self.way.name}-{self.harness.name}'


def _built_in_serves(harness: Harness) -> bool:
    # It has no batches of Chat Completions, and decides by itself whether a Gemini batch goes up as a file.
    return harness.name not in ('chat', 'google-file')


SCENES = [
    Scene(way, harness) for way in (OURS, BUILT_IN) for harness in ALL if way is OURS or _built_in_serves(harness)
]
"""Each capability on each of its lanes."""


@contextmanager
def providers(clock: ManualClock, answer: AnswerFunction = echo, **settings: Any) -> Generator[FakeProviders]:
    """Fakes, and agents whose waits, too, go by the clock that is moved by hand."""
    with Agent.using_sleep(clock.sleep), FakeProviders(answer, clock=clock, **settings) as fake:
        yield fake


def waiting_agent(model: Model, *capabilities: AbstractCapability[Any], **settings: Any) -> Agent[None, str]:
    return Agent(model, capabilities=capabilities, **settings)


def pending_agent(
    model: Model, *capabilities: AbstractCapability[Any], **settings: Any
) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=capabilities, **settings)


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history as a database or a queue gives it back."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


def message_of(*texts: str, **changes: Any) -> dict[str, Any]:
    """A message of Anthropic's with a block for each text."""
    return {
        'id': 'msg_1',
        'type': 'message',
        'role': 'assistant',
        'model': 'claude-haiku-4-5',
        'content': [{'type': 'text', 'text': text} for text in texts],
        'stop_reason': 'end_turn',
        'stop_sequence': None,
        'usage': {'input_tokens': 5, 'output_tokens': 5},
        **changes,
    }


async def left_pending(
    model: Model, batching: AbstractCapability[Any], *prompts: str
) -> tuple[list[ModelMessage], ...]:
    """The histories of runs that ended when their requests were in a batch, which is full with them."""
    agent = pending_agent(model, batching)
    results = await asyncio.gather(*[agent.run(prompt) for prompt in prompts or ('hello',)])
    assert all(isinstance(result.output, PendingModelResponse) for result in results)
    return tuple(stored(result.all_messages()) for result in results)


def pending_response(history: list[ModelMessage]) -> ModelResponse:
    assert isinstance(history[-1], ModelResponse)
    assert history[-1].state == 'suspended'
    return history[-1]


def billed(harness: Harness, fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in harness.fake(fake).billed)


class Gate:
    """Holds every call that a model makes to its provider, until it is opened."""

    def __init__(self, model: Any) -> None:
        self.reached, self._open = asyncio.Event(), asyncio.Event()
        if isinstance(model, NativeModel):
            send = model._send

            async def held(*args: Any, **kwargs: Any) -> bytes:
                await self._hold()
                return await send(*args, **kwargs)

            model._send = held
        else:
            client = model.client
            http_client = client._api_client._async_httpx_client if hasattr(client, '_api_client') else client._client
            http_client.event_hooks = {'request': [self._hold]}

    async def _hold(self, *_: Any) -> None:
        self.reached.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait, in real time, for what another thread or task is about to do."""
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError('It did not come to be.')


async def all_quiet() -> list[asyncio.Task[Any]]:
    """The tasks that are left, other than the test's own, when everything had time to end."""

    def rest() -> list[asyncio.Task[Any]]:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        # A client of Google's that is collected closes itself in a task.
        others = ('anyio', 'AsyncClient.aclose')
        return [task for task in tasks if task is not None and not any(other in repr(task) for other in others)]

    for _ in range(100):
        if not rest():
            break
        await asyncio.sleep(0.005)
    return rest()
