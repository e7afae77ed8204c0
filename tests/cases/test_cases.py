"""Inputs that broke other batch software, played by a provider on loopback and answered as their users had a right to.

The cases and the tools that play and check them are not part of the package.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from anthropic import AsyncAnthropic
from google.genai import Client
from google.genai.types import HttpOptions
from openai import AsyncOpenAI
from pydantic_ai import (
    Agent,
    AgentRunResult,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PendingModelResponse,
    PromptedOutput,
    exceptions,
)
from pydantic_ai.exceptions import ModelAPIError, UnexpectedModelBehavior, UserError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.testing import ManualClock

CASES = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'cases'
TOOLS = CASES / '_tools'
PYTHON = [sys.executable, '-I', '-S']
"""Runs the tools, which are written in the standard library alone, and starts in a third of the time."""

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason='the cases are not on this machine')


# The models, each with a real SDK client


def responses(name: str, url: str, http_client: httpx2.AsyncClient) -> Model:
    client = AsyncOpenAI(api_key='test', base_url=f'{url}/v1', http_client=http_client)
    return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=client))


def chat(name: str, url: str, http_client: httpx2.AsyncClient) -> Model:
    client = AsyncOpenAI(api_key='test', base_url=f'{url}/v1', http_client=http_client)
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


def anthropic(name: str, url: str, http_client: httpx2.AsyncClient) -> Model:
    client = AsyncAnthropic(api_key='test', base_url=url, http_client=http_client)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def gemini(name: str, url: str, http_client: httpx2.AsyncClient) -> Model:
    options = HttpOptions(base_url=url, httpx_async_client=http_client)
    client = Client(api_key='test', vertexai=False, http_options=options)
    return GoogleModel(name, provider=GoogleProvider(client=client))


MAKERS: dict[str, Callable[[str, str, httpx2.AsyncClient], Model]] = {
    'responses': responses,
    'chat': chat,
    'anthropic': anthropic,
    'google-inline': gemini,
    'google-file': gemini,
}

OPENAI = ('responses', 'chat')
GOOGLE = ('google-inline', 'google-file')
PLAYED = {
    'h01-reverse-order-no-ids': OPENAI,
    'h02-gemini-shuffled-file': GOOGLE,
    'h03-gemini-answered-inline': GOOGLE,
    'h05-long-and-odd-ids': ('anthropic',),
    'h06-all-rows-failed': OPENAI,
    'h07-empty-string-error-file': OPENAI,
    'h08-both-files-and-a-missing-row': OPENAI,
    'h09-error-inside-output-file': OPENAI,
    'h10-gemini-succeeded-but-rows-failed': GOOGLE,
    'h11-expired-with-paid-results': OPENAI,
    'h12-cancelled-from-console': ('anthropic',),
    'h13-404-right-after-create': ('anthropic',),
    'h14-poll-502-and-reset': OPENAI,
    'h15-result-file-cut-short': OPENAI,
    'h16-create-answer-lost': OPENAI,
    'h17-enqueued-token-limit': OPENAI,
    'h18-validation-errors-by-line': OPENAI,
    'h19-line-separators-in-answers': OPENAI,
    # One of its answers is written out in the script, for Responses.
    'h20-lone-surrogates': ('responses',),
    'h22-split-by-bytes': OPENAI,
    'h23-gemini-long-result-file-id': GOOGLE,
    'h24-truncated-answers': GOOGLE,
    'h25-cost-cached-and-collected-twice': ('responses',),
}
"""The cases whose rows all have an outcome, and the models they are played to."""


# Playing and checking


@dataclass(frozen=True)
class Case:
    """One case, and the files that playing it leaves."""

    name: str
    scratch: Path

    @property
    def folder(self) -> Path:
        return CASES / self.name

    @property
    def wire(self) -> Path:
        return self.scratch / 'wire.jsonl'

    def read(self, file: str) -> dict[str, Any]:
        return json.loads((self.folder / file).read_text('utf-8'))

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / 'rows.jsonl').read_bytes().split(b'\n') if line.strip()]

    def options(self) -> dict[str, Any]:
        """The options of the call, under the names that they have here."""
        given = self.read('case.json')
        names = {'max_requests': 'max_requests', 'max_resubmissions': 'max_resubmissions'}
        names['force_max_bytes'] = 'max_bytes'
        assert given.keys() <= {'model', *names}
        return {ours: given[name] for name, ours in names.items() if name in given}

    def check(self, *rows: dict[str, Any]) -> None:
        """Compare what the provider saw, and the rows, with what the case expects."""
        expected = self.read('expect.json')
        # Whoever has to resume to get its rows expects them under another name; the tool checks one name alone.
        expected['rows'] = expected.get('rows') or expected.get('rows_after_resume', {})
        assert bool(expected['rows']) == bool(rows)
        (self.scratch / 'expect.json').write_text(json.dumps(expected), 'utf-8')
        out = self.scratch / 'out.jsonl'
        out.write_text(''.join(json.dumps(row) + '\n' for row in rows), 'utf-8')
        command = [*PYTHON, str(TOOLS / 'check.py'), str(self.scratch), '--wire', str(self.wire), '--rows', str(out)]
        checked = subprocess.run(command, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, (
            f'{checked.stdout}{checked.stderr}\nOn the wire:\n{self.wire.read_text("utf-8")}'
        )


@contextmanager
def playing(case: Case) -> Generator[str]:
    """The URL of a provider that plays the case, for as long as the block runs."""
    command = [*PYTHON, str(TOOLS / 'play.py'), str(case.folder), '--wire', str(case.wire)]
    # It prints a traceback for each connection that it resets.
    with (
        (case.scratch / 'player.log').open('wb') as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as player,
    ):
        try:
            assert player.stdout is not None
            url = player.stdout.readline().strip()
            assert url.startswith('http://127.0.0.1:'), (case.scratch / 'player.log').read_text('utf-8')
            yield url
        finally:
            player.kill()


def one_at_a_time() -> httpx2.AsyncClient:
    """An HTTP client with one connection, so that batches are created in their order: a case may go by that."""
    return httpx2.AsyncClient(trust_env=False, limits=httpx2.Limits(max_connections=1))


async def answers(case: Case, model: str, **options: Any) -> list[ModelResponse | ModelAPIError]:
    """What comes of the case's rows, sent as a list. No time passes while batches are waited for."""
    clock = ManualClock(datetime.now(UTC))
    requests = [
        BatchRequest(
            custom_id=row['id'],
            messages=[ModelRequest.user_text_prompt(row['input'])],
            model_settings=row.get('settings'),
        )
        for row in case.rows()
    ]
    with playing(case) as url:
        async with one_at_a_time() as http_client:
            made = MAKERS[model](case.read('case.json')['model'], url, http_client)
            call = model_request_batch(made, requests, clock=clock, **{**case.options(), **options})
            return await clock.run(call)


STATUSES = {'stop': 'ok', 'length': 'truncated'}
"""What a row is that an answer ended in for that reason."""


def as_row(id: str, outcome: ModelResponse | ModelAPIError) -> dict[str, Any]:
    """An outcome as a row of the file that is checked."""
    if isinstance(outcome, ModelAPIError):
        return {'id': id, 'status': 'error', 'text': None, 'error': str(outcome)}
    reason = str(outcome.finish_reason)
    status = STATUSES.get(reason, reason)
    return {'id': id, 'status': status, 'text': outcome.text, 'error': None}


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Case]:
    def play(name: str, model: str) -> Case:
        if model == 'google-file':
            # So that a batch of a few rows is too large to be sent inline.
            monkeypatch.setattr(google, 'INLINE_BYTES', 0)
        return Case(name, tmp_path)

    return play


@pytest.mark.parametrize(('name', 'model'), [(name, model) for name, models in PLAYED.items() for model in models])
async def test_every_row_comes_to_what_its_case_expects(
    name: str, model: str, play: Callable[[str, str], Case]
) -> None:
    case = play(name, model)
    outcomes = await answers(case, model)
    ids = [cast('str', row['id']) for row in case.rows()]
    case.check(*[as_row(id, outcome) for id, outcome in zip(ids, outcomes, strict=True)])


@pytest.mark.parametrize('model', OPENAI)
@pytest.mark.parametrize('max_requests', [None, 1])
async def test_a_repeated_id_is_refused_by_name_and_places_before_anything_is_sent(
    model: str, max_requests: int | None, play: Callable[[str, str], Case]
) -> None:
    case = play('h04-duplicate-ids', model)
    with pytest.raises(UserError) as refused:
        await answers(case, model, max_requests=max_requests)
    id, *lines = case.read('expect.json')['refused']
    assert repr(id) in str(refused.value)
    for line in lines:
        assert re.search(rf'\b{line}\b', str(refused.value))
    case.check()


# What comes of them beyond their rows


@asynccontextmanager
async def model_of(case: Case, model: str) -> AsyncGenerator[Model]:
    """A model whose provider plays the case."""
    with playing(case) as url:
        async with one_at_a_time() as http_client:
            yield MAKERS[model](case.read('case.json')['model'], url, http_client)


@pytest.mark.parametrize('model', GOOGLE)
async def test_a_thought_is_no_part_of_an_answer_that_was_cut_off(model: str, play: Callable[[str, str], Case]) -> None:
    case = play('h24-truncated-answers', model)
    outcomes = [outcome for outcome in await answers(case, model) if isinstance(outcome, ModelResponse)]
    assert [outcome.finish_reason for outcome in outcomes] == ['length', 'length', 'stop']
    texts = [outcome.text for outcome in outcomes]
    assert texts == ['Wait, the parser will see', '{"a": 1, "b": [', 'answer r3']


@pytest.mark.skipif(
    not hasattr(exceptions, 'OutputTokenLimitExceeded'),
    reason='this version of pydantic-ai asks again for text that was cut off',
)
@pytest.mark.parametrize('model', GOOGLE)
async def test_typed_output_that_was_cut_off_is_an_error_that_names_the_limit(
    model: str, play: Callable[[str, str], Case]
) -> None:
    case = play('h24-truncated-answers', model)
    clock = ManualClock(datetime.now(UTC))
    *cut, whole = [row['input'] for row in case.rows()]
    async with model_of(case, model) as made:
        batching = BatchModelRequests(max_requests=len(cut) + 1, clock=clock)
        typed = Agent(made, output_type=PromptedOutput(dict[str, Any]), capabilities=[batching])
        plain = Agent(made, capabilities=[batching])
        calls = [*[typed.run(prompt) for prompt in cut], plain.run(whole)]
        *failed, answered = await clock.run(asyncio.gather(*calls, return_exceptions=True))
    assert all(isinstance(error, UnexpectedModelBehavior) and 'token limit' in str(error) for error in failed)
    assert isinstance(answered, AgentRunResult)
    texts = [None, None, cast('str', answered.output)]
    rows = zip(case.rows(), ['error', 'error', 'ok'], texts, strict=True)
    case.check(*[{'id': row['id'], 'status': status, 'text': text} for row, status, text in rows])


async def test_a_history_that_is_collected_three_times_costs_the_same_each_time(
    play: Callable[[str, str], Case],
) -> None:
    case = play('h25-cost-cached-and-collected-twice', 'responses')
    clock = ManualClock(datetime.now(UTC))
    prompts = [row['input'] for row in case.rows()]
    async with model_of(case, 'responses') as made:

        def agent() -> Agent[None, str | PendingModelResponse]:
            batching = BatchModelRequests(max_requests=len(prompts), clock=clock)
            return Agent(made, output_type=[str, PendingModelResponse], capabilities=[batching])

        submitting = agent()
        submitted = await clock.run(asyncio.gather(*[submitting.run(prompt) for prompt in prompts]))
        histories = [run.all_messages_json() for run in submitted]
        await clock.advance(timedelta(hours=1))
        for _ in range(3):
            # Each time as in another process, of which the first finds the batch running.
            collecting = agent()
            runs = [await collected(collecting, history) for history in histories]
            assert [run.output for run in runs] == ['answer r1', 'answer r2']
            assert [run.usage.cost for run in runs] == COSTS
            assert [run.usage.input_tokens for run in runs] == [1_000_000, 1_000_000]
            assert [run.usage.cache_read_tokens for run in runs] == [800_000, 0]
            assert [run.usage.output_tokens for run in runs] == [100_000, 100_000]
            assert [run.usage.requests for run in runs] == [1, 1]
    case.check(*[{'id': row['id'], 'status': 'ok', 'text': f'answer {row["id"]}'} for row in case.rows()])


COSTS = [Decimal('0.20'), Decimal('0.28')]
"""In USD, of the two rows of h25 in a batch, the first with most of its prompt cached."""


async def collected(agent: Agent[None, str | PendingModelResponse], history: bytes) -> AgentRunResult[Any]:
    """The run that finds the answer, however often the batch has to be checked before that."""
    messages = ModelMessagesTypeAdapter.validate_json(history)
    while True:
        run = await agent.run(message_history=messages)
        if not isinstance(run.output, PendingModelResponse):
            return run
        messages = run.all_messages()


async def test_a_list_is_priced_at_the_batch_price_cached_tokens_apart(play: Callable[[str, str], Case]) -> None:
    case = play('h25-cost-cached-and-collected-twice', 'responses')
    outcomes = [outcome for outcome in await answers(case, 'responses') if isinstance(outcome, ModelResponse)]
    assert [outcome.cost().total_price for outcome in outcomes] == COSTS
    assert [outcome.usage.cache_read_tokens for outcome in outcomes] == [800_000, 0]
