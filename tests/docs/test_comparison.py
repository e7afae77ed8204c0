"""What README.md and docs/index.md say of this package and of pydantic-ai's own `BatchModelRequests` is so today."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import Agent
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.testing import FakeProviders, FakeRequest
from pydantic_ai_batch.testing.openai_api import FakeOpenAI

RUNS = 5
BRIEF = timedelta(milliseconds=10)


@dataclass(frozen=True)
class Came:
    """What came of five runs in one batch."""

    answered: int
    cancelled: int = 0
    """How many cancellations the provider was asked for."""
    created: int = 1
    """How many batches it was asked for."""


def odd_line(line: bytes) -> Callable[[FakeOpenAI], None]:
    def inject(fake: FakeOpenAI) -> None:
        fake.rewrite_results = lambda lines, kind: [line, *lines]

    return inject


def raw_separators(fake: FakeOpenAI) -> None:
    fake.rewrite_results = lambda lines, kind: [
        json.dumps(json.loads(line), ensure_ascii=False).encode() for line in lines
    ]


def fault(operation: str, name: str, **options: Any) -> Callable[[FakeOpenAI], None]:
    return lambda fake: fake.inject(operation, name, **options)


@pytest.mark.parametrize(
    ('inject', 'theirs', 'ours'),
    [
        pytest.param(fault('create', 'lose_reply'), Came(0), Came(RUNS), id='lost create reply'),
        pytest.param(fault('status', 'http', status=404), Came(0, cancelled=1), Came(RUNS), id='404 after the create'),
        pytest.param(fault('status', 'http', status=403), Came(0, cancelled=1), Came(0), id='check refused'),
        pytest.param(odd_line(b''), Came(0, cancelled=1), Came(RUNS), id='blank line'),
        pytest.param(odd_line(b'[]'), Came(0, cancelled=1), Came(RUNS), id='list'),
        pytest.param(odd_line(b'{"custom_id":null,"response":null}'), Came(0, cancelled=1), Came(RUNS), id='null id'),
        pytest.param(raw_separators, Came(0, cancelled=1), Came(RUNS), id='raw U+2028'),
        pytest.param(fault('lines', 'damage'), Came(0, cancelled=1), Came(RUNS - 1), id='damaged line'),
        pytest.param(
            fault('download', 'cut', announced=False), Came(0, cancelled=1), Came(RUNS), id='download cut short'
        ),
    ],
)
async def test_the_comparison_is_true(
    inject: Callable[[FakeOpenAI], None], theirs: Came, ours: Came, model_of: ModelOf
) -> None:
    settings = {'max_requests': RUNS, 'poll_interval': BRIEF, 'max_poll_interval': BRIEF}
    assert await what_comes_of_it(BuiltIn(**settings), inject, model_of) == theirs
    assert await what_comes_of_it(BatchModelRequests(**settings), inject, model_of) == ours


async def test_chat_models_are_batched_here_and_refused_there() -> None:
    settings = {'max_requests': 1, 'poll_interval': BRIEF, 'max_poll_interval': BRIEF}
    with FakeProviders(processing=timedelta(0)) as fake:
        async with fake.openai.client() as client:
            model = OpenAIChatModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
            with pytest.raises(UserError, match='has no batch API'):
                await Agent(model, capabilities=[BuiltIn(**settings)]).run('hello')
            assert fake.openai.calls == []
            run = await Agent(model, capabilities=[BatchModelRequests(**settings)]).run('hello')
        assert run.output == 'Answer to: hello'
        assert (fake.openai.count('create'), fake.openai.count('live')) == (1, 0)


async def what_comes_of_it(
    batching: BuiltIn | BatchModelRequests, inject: Callable[[FakeOpenAI], None], model_of: ModelOf
) -> Came:
    def answer(request: FakeRequest) -> str:
        return f'line\u2028{request.text}'

    with FakeProviders(answer, processing=timedelta(0)) as fake:
        inject(fake.openai)
        agent = Agent(model_of(fake), capabilities=[batching])
        runs = await asyncio.gather(*[agent.run(str(n)) for n in range(RUNS)], return_exceptions=True)
        assert len(fake.openai.billed) == RUNS, 'Whatever comes of it, the provider ran the batch.'
        return Came(
            answered=sum(not isinstance(run, BaseException) for run in runs),
            cancelled=fake.openai.count('cancel'),
            created=fake.openai.count('create'),
        )
