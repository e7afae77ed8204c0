"""Traffic of the real providers, played back through the lanes. The recordings are not part of the package.

Another library recorded them, so the requests in them are its own, and their IDs are not made as ours are.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from anthropic import AsyncAnthropic
from google.genai import Client
from google.genai.types import HttpOptions
from openai import AsyncOpenAI
from pydantic_ai import ModelRequest
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import Batch, BatchRequest, BatchResult, Lane, lane_for
from pydantic_ai_batch.lanes.base import Payload, Stray
from pydantic_ai_batch.lanes.openai import OpenAILane

RECORDINGS = Path(__file__).resolve().parents[2] / '..' / 'shared' / 'recordings' / 'ruby_llm'

TAG = 't' * 20
NAMED = f'"displayName": "pab-{TAG}"'.encode()

pytestmark = pytest.mark.skipif(not RECORDINGS.is_dir(), reason='the recordings are not on this machine')


@dataclass(frozen=True)
class Recording:
    """One recording: its file, the model that was asked, and how many requests were in the batch."""

    file: str
    model: str
    requests: int = 2


OPENAI = Recording('openai_gpt-5-nano_chats', 'gpt-5-nano')
EMBEDDINGS = Recording('openai_text-embedding-3-small_embeddings', 'text-embedding-3-small')
ANTHROPIC = Recording('anthropic_claude-haiku-4-5_chats', 'claude-haiku-4-5')
RELOAD = Recording('anthropic_claude-haiku-4-5_reload', 'claude-haiku-4-5', requests=1)
CANCEL = Recording('anthropic_claude-haiku-4-5_cancel', 'claude-haiku-4-5', requests=1)
GEMINI = Recording('gemini_gemini-2_5-flash_chats', 'gemini-2.5-flash')


def recordings(*those: Recording) -> pytest.MarkDecorator:
    return pytest.mark.parametrize('recording', those, ids=[recording.file for recording in those])


# Playing back


@dataclass(frozen=True)
class Exchange:
    """One call as it was recorded, and its reply."""

    method: str
    path: str
    sent: str
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def json(self) -> dict[str, Any]:
        return json.loads(self.body)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.split(b'\n') if line]


def recorded(name: str) -> list[Exchange]:
    """The calls of a recording, in their order."""
    calls = yaml.safe_load((RECORDINGS / f'{name}.yml').read_text('utf-8'))['http_interactions']
    return [
        Exchange(
            method=call['request']['method'].upper(),
            path=httpx2.URL(call['request']['uri']).path,
            sent=call['request']['body']['string'],
            status=call['response']['status']['code'],
            headers=[
                (header, value)
                for header, values in call['response']['headers'].items()
                for value in values
                # The bodies were stored whole.
                if header.lower() != 'transfer-encoding'
            ],
            body=call['response']['body']['string'].encode(),
        )
        for call in calls
    ]


class Tape(httpx2.AsyncBaseTransport):
    """Answers each call with the reply that was recorded for the same call at the same place."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        self.left = list(exchanges)
        self.sent: list[bytes] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent.append(await request.aread())
        assert self.left, f'{request.method} {request.url.path} comes after the end of the recording'
        exchange = self.left.pop(0)
        assert (request.method, request.url.path) == (exchange.method, exchange.path)
        return httpx2.Response(exchange.status, headers=exchange.headers, content=exchange.body)


def model_of(name: str, http_client: httpx2.AsyncClient) -> Model:
    """A model of that name, with a real SDK client whose server is the recording."""
    if name.startswith('claude'):
        anthropic = AsyncAnthropic(api_key='test', base_url='http://provider.test', http_client=http_client)
        return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=anthropic))
    if name.startswith('gemini'):
        options = HttpOptions(base_url='http://provider.test', api_version='v1beta', httpx_async_client=http_client)
        google = Client(api_key='test', vertexai=False, http_options=options)
        return GoogleModel(name, provider=GoogleProvider(client=google))
    openai = AsyncOpenAI(api_key='test', base_url='http://provider.test/v1', http_client=http_client)
    return OpenAIResponsesModel(name, provider=OpenAIProvider(openai_client=openai))


@dataclass
class Replay:
    """A lane whose provider is a recording."""

    lane: Lane
    tape: Tape
    recording: Recording
    exchanges: list[Exchange]
    payload: Payload

    async def create(self) -> Batch:
        """Create a batch as the recorded one, of as many requests."""
        for n in range(self.recording.requests):
            encoded = await self.lane.encode(asking(f'question {n}'))
            self.payload.add(encoded.body.encode())
        return await self.lane.create(self.payload)

    async def checks(self, batch: Batch) -> list[Batch]:
        """What the lane makes of each of the recorded checks."""
        recorded = [exchange for exchange in self.tape.left if exchange.path.endswith(batch.id)]
        return [await self.lane.status(batch) for _ in recorded]

    async def results(self, batch: Batch) -> list[BatchResult | Stray]:
        return [result async for result in self.lane.results(batch)]

    def then(self, path: str, reply: Any) -> None:
        """Have the provider answer one more call, before what is left of the recording."""
        made = Exchange('GET', path, '', 200, [('content-type', 'application/json')], json.dumps(reply).encode())
        self.tape.left.insert(0, made)


def as_it_is(exchange: Exchange) -> Exchange:
    return exchange


def with_our_key(exchange: Exchange) -> Exchange:
    """Gemini's reply to a create of ours: it gives back each request's metadata, in which the ID has another name."""
    return replace(exchange, body=re.sub(rb'("metadata": \{\s*)"custom_id"', rb'\1"key"', exchange.body))


@asynccontextmanager
async def replaying(recording: Recording, edit: Callable[[Exchange], Exchange] = as_it_is) -> AsyncGenerator[Replay]:
    exchanges = [edit(exchange) for exchange in recorded(recording.file)]
    tape = Tape(exchanges)
    async with httpx2.AsyncClient(transport=tape) as http_client:
        lane = lane_for(model_of(recording.model, http_client))
        with Payload(lane, await lane.identity(), TAG) as payload:
            yield Replay(lane, tape, recording, exchanges, payload)


def asking(text: str) -> BatchRequest:
    return BatchRequest(custom_id='', messages=[ModelRequest.user_text_prompt(text)])


# What a recording holds, read without the package


@dataclass(frozen=True)
class Answer:
    text: str | None
    input_tokens: int
    output_tokens: int


def answers_in(exchange: Exchange) -> dict[str, Answer]:
    """The answers in the last reply of a recording, by the ID that they were recorded under."""
    answers: dict[str, Answer] = {}
    if exchange.path.startswith('/v1beta/'):
        for item in exchange.json()['response']['inlinedResponses']['inlinedResponses']:
            (id,) = item['metadata'].values()
            (candidate,), usage = item['response']['candidates'], item['response']['usageMetadata']
            (part,) = candidate['content']['parts']
            output = usage['candidatesTokenCount'] + usage['thoughtsTokenCount']
            answers[id] = Answer(part['text'], usage['promptTokenCount'], output)
        return answers
    for line in exchange.lines():
        if 'result' in line:
            (block,), usage = line['result']['message']['content'], line['result']['message']['usage']
        else:
            reply = line['response']['body']
            (block,), usage = reply['output'][-1]['content'], reply['usage']
        answers[line['custom_id']] = Answer(block['text'], usage['input_tokens'], usage['output_tokens'])
    return answers


def batch_in(exchange: Exchange) -> tuple[str, str, datetime]:
    """The ID, the status and the time of creation of a recorded batch, in the provider's own words."""
    item = exchange.json()
    if 'metadata' in item and 'processing_status' not in item and 'endpoint' not in item:
        created = item['metadata']['createTime'][:26] + '+00:00'
        return item['name'], item['metadata']['state'].replace('BATCH', 'JOB'), datetime.fromisoformat(created)
    if 'processing_status' in item:
        return item['id'], item['processing_status'], datetime.fromisoformat(item['created_at'])
    return item['id'], item['status'], datetime.fromtimestamp(item['created_at'], UTC)


def read_batch(batch: Batch) -> tuple[str, str, datetime]:
    """The same of a batch as a lane read it."""
    details = batch.provider_details or {}
    return batch.id, details.get('state') or details['status'], batch.created_at


# The whole way


@recordings(OPENAI, ANTHROPIC, RELOAD, GEMINI)
async def test_a_batch_is_created_checked_and_read_as_it_was_recorded(recording: Recording) -> None:
    async with replaying(recording, with_our_key) as replay:
        created = await replay.create()
        checks = await replay.checks(created)
        first, *_, last = checks
        results = await replay.results(last)
        assert replay.tape.left == [], 'The lane makes every call that was recorded, and no other.'

        shown = [exchange for exchange in replay.exchanges if exchange.path.endswith(created.id)]
        assert [read_batch(batch) for batch in checks] == [batch_in(exchange) for exchange in shown]
        assert (created.id, created.created_at) == (first.id, first.created_at)
        statuses = [created.status, *[batch.status for batch in checks]]
        assert [status for status in statuses if status != 'ended'] == ['in_progress'] * statuses.index('ended')
        assert {batch.request_count for batch in (created, *checks)} == {recording.requests}
        assert replay.lane.readable(last) == recording.requests

        answers: dict[str, Answer] = {}
        for result in results:
            assert isinstance(result, BatchResult)
            response = await replay.lane.decode(result, asking('question'))
            assert response.finish_reason == 'stop'
            assert response.provider_details is not None
            assert response.provider_details['processing'] == 'batch'
            usage = response.usage
            answers[result.custom_id] = Answer(response.text, usage.input_tokens, usage.output_tokens)
        assert len(answers) == recording.requests
        assert answers == answers_in(replay.exchanges[-1])


async def test_a_batch_is_cancelled_as_it_was_recorded() -> None:
    async with replaying(CANCEL) as replay:
        created = await replay.create()
        cancelled = await replay.lane.cancel(created)
        assert replay.tape.left == []
        assert [created.status, cancelled.status] == ['in_progress', 'canceling']
        assert [read_batch(created), read_batch(cancelled)] == [batch_in(exchange) for exchange in replay.exchanges]
        assert cancelled.request_count == 1


async def test_embeddings_are_read_as_they_were_recorded() -> None:
    async with replaying(EMBEDDINGS) as replay:
        assert isinstance(replay.lane, OpenAILane)
        replay.lane.endpoint = '/v1/embeddings'
        for text in ('one', 'two'):
            replay.payload.add(json.dumps({'model': EMBEDDINGS.model, 'input': text}).encode())
        checks = await replay.checks(await replay.lane.create(replay.payload))
        results = await replay.results(checks[-1])
        assert replay.tape.left == []
        assert json.loads(replay.tape.sent[1])['endpoint'] == '/v1/embeddings'

        bodies: dict[str, Any] = {}
        for result in results:
            assert isinstance(result, BatchResult)
            assert result.status == 'succeeded'
            assert result.body is not None
            bodies[result.custom_id] = json.loads(result.body)
        lines = replay.exchanges[-1].lines()
        assert bodies == {line['custom_id']: line['response']['body'] for line in lines}
        assert [len(body['data'][0]['embedding']) for body in bodies.values()] == [1536, 256]


# What is not in a recording, on what is


async def test_answers_under_another_librarys_key_are_kept_whole_and_given_to_nobody() -> None:
    async with replaying(GEMINI) as replay:
        last = (await replay.checks(await replay.create()))[-1]
        strays = await replay.results(last)
        answers = replay.exchanges[-1].json()['response']['inlinedResponses']['inlinedResponses']
        assert all(isinstance(stray, Stray) and stray.keyless for stray in strays)
        assert [json.loads(stray.line) for stray in strays if isinstance(stray, Stray)] == answers


async def test_a_recorded_batch_is_found_in_a_listing_by_its_file() -> None:
    async with replaying(OPENAI) as replay:
        created = await replay.create()
        replay.then('/v1/batches', {'object': 'list', 'data': [replay.exchanges[-2].json()], 'has_more': False})
        found = await replay.lane.find(replay.payload, since=created.created_at)
        assert [(batch.id, batch.status) for batch in found] == [(created.id, 'ended')]


async def test_a_recorded_batch_is_found_in_a_listing_by_the_ids_in_its_results() -> None:
    def with_our_ids(exchange: Exchange) -> Exchange:
        return replace(exchange, body=exchange.body.replace(b'"custom_id":"', f'"custom_id":"{TAG}-'.encode()))

    async with replaying(ANTHROPIC, with_our_ids) as replay:
        created = await replay.create()
        *_, ended, results = replay.exchanges
        replay.tape.left[:] = [results]
        replay.then('/v1/messages/batches', {'data': [ended.json()], 'has_more': False})
        found = await replay.lane.find(replay.payload, since=created.created_at)
        assert [(batch.id, batch.status) for batch in found] == [(created.id, 'ended')]
        assert replay.tape.left == []


async def test_a_recorded_batch_is_found_in_a_listing_by_its_display_name() -> None:
    def with_our_name(exchange: Exchange) -> Exchange:
        return replace(exchange, body=re.sub(rb'"displayName": "[^"]*"', NAMED, exchange.body))

    async with replaying(GEMINI, with_our_name) as replay:
        created = await replay.create()
        ended = replay.exchanges[-1]
        replay.tape.left.clear()
        replay.then('/v1beta/batches', {'operations': [ended.json()]})
        found = await replay.lane.find(replay.payload, since=created.created_at)
        assert [(batch.id, batch.status) for batch in found] == [(created.id, 'ended')]
        assert replay.tape.left == []


# What we send, beside what was sent then


async def test_an_openai_batch_is_created_with_the_recorded_fields_and_a_tag() -> None:
    async with replaying(OPENAI) as replay:
        await replay.create()
        create = json.loads(replay.tape.sent[1])
        assert create.pop('metadata') == {'pydantic_ai_batch': TAG}
        assert create == json.loads(replay.exchanges[1].sent)


async def test_an_anthropic_batch_is_created_with_the_recorded_fields() -> None:
    async with replaying(ANTHROPIC) as replay:
        await replay.create()
        ours, theirs = json.loads(replay.tape.sent[0]), json.loads(replay.exchanges[0].sent)
        assert ours.keys() == theirs.keys()
        for request, recorded in zip(ours['requests'], theirs['requests'], strict=True):
            assert request.keys() == recorded.keys()
            assert request['params'].keys() <= recorded['params'].keys()
            assert request['params']['model'] == recorded['params']['model']


async def test_a_gemini_batch_is_created_with_the_recorded_fields() -> None:
    async with replaying(GEMINI) as replay:
        await replay.create()
        ours, theirs = json.loads(replay.tape.sent[0])['batch'], json.loads(replay.exchanges[0].sent)['batch']
        assert ours.keys() == theirs.keys()
        requests, recorded = ours['inputConfig']['requests']['requests'], theirs['inputConfig']['requests']['requests']
        for request, other in zip(requests, recorded, strict=True):
            assert request.keys() == other.keys()
            assert request['request'].keys() <= other['request'].keys()
