"""Whatever is in a provider's results, each row gets its own answer or an error, and no call raises.

Result files are drawn line by line, out of what a provider wrote, what it might have written, and what nobody writes,
and are read through the SDKs from fakes on loopback, in pieces that end anywhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import httpx2
import pytest
from google.genai.types import HttpOptions
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from pydantic_ai import ModelRequest
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchRequest, model_request_batch
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.testing import FakeProviders, ManualClock

Json = dict[str, Any]

MORE = int(os.environ.get('FAULT_EXAMPLES', '0'))
"""How many examples to try of each, other ones each time. By default few are, and the same ones each time."""

ROWS = [f'row {number}' for number in range(4)]


def bounded(examples: int) -> settings:
    return settings(
        max_examples=MORE or examples,
        derandomize=not MORE,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# The lanes


class Pieces(httpx2.AsyncBaseTransport):
    """Passes a download on in pieces that end where a test says, and as if it were complete when it is cut off."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self.places: Sequence[int] = ()
        self.ends: dict[bytes, int] = {}
        """Where a file ends early, by what is in it."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if not re.search(r'/content$|/results$|:download$', request.url.path):
            return response
        content = await response.aread()
        content = content[: self.ends.get(content)]
        await response.aclose()
        places = sorted({0, len(content), *(place for place in self.places if place < len(content))})
        pieces = [content[start:end] for start, end in pairwise(places)]
        headers = {'content-type': response.headers['content-type']}
        return httpx2.Response(response.status_code, headers=headers, stream=_Stream(pieces))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@dataclass(frozen=True)
class Lane:
    """A lane's model, and how its result lines look."""

    provider: str
    make: Callable[[FakeProviders, httpx2.AsyncClient], Model]
    with_id: Callable[[Json, Any], Json]
    """The line with that ID, whatever it is."""
    failed: Json
    """The line of a row that failed, without an ID."""
    content: str
    """The key of a line under which its answer is."""


def _responses(fake: FakeProviders, http_client: httpx2.AsyncClient) -> Model:
    client = fake.openai.client(http_client=http_client)
    return OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))


def _chat(fake: FakeProviders, http_client: httpx2.AsyncClient) -> Model:
    client = fake.openai.client(http_client=http_client)
    return OpenAIChatModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))


def _anthropic(fake: FakeProviders, http_client: httpx2.AsyncClient) -> Model:
    client = fake.anthropic.client(http_client=http_client)
    return AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client))


def _google(fake: FakeProviders, http_client: httpx2.AsyncClient) -> Model:
    client = fake.google.client(http_options=HttpOptions(httpx_async_client=http_client))
    return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client))


_NO = {'message': 'no', 'type': 'invalid_request_error'}
_OPENAI_FAILED = {
    'response': {'status_code': 400, 'request_id': 'r', 'body': {'error': _NO}},
    'error': None,
}
_ANTHROPIC_FAILED = {'result': {'type': 'errored', 'error': {'type': 'error', 'error': _NO}}}
_GOOGLE_FAILED = {'error': {'code': 3, 'message': 'no'}}

LANES = {
    'responses': Lane('openai', _responses, lambda line, id: {**line, 'custom_id': id}, _OPENAI_FAILED, 'response'),
    'chat': Lane('openai', _chat, lambda line, id: {**line, 'custom_id': id}, _OPENAI_FAILED, 'response'),
    'anthropic': Lane('anthropic', _anthropic, lambda line, id: {**line, 'custom_id': id}, _ANTHROPIC_FAILED, 'result'),
    'google-file': Lane('google', _google, lambda line, id: {**line, 'key': id}, _GOOGLE_FAILED, 'response'),
    'google-inline': Lane(
        'google', _google, lambda line, id: {**line, 'metadata': {'key': id}}, _GOOGLE_FAILED, 'response'
    ),
}


# What may stand in results


@dataclass(frozen=True)
class Line:
    """A line of a result file, and what it means for a row."""

    content: bytes
    answers: tuple[int, int] | None = None
    """The row that it answers, and with which of the row's answers."""
    spoils: frozenset[int] = frozenset()
    """The rows of which it can be part, so that anything may be made of it but another row's answer."""


@dataclass
class Material:
    """What lines are made of: what the provider wrote for a batch."""

    lane: Lane
    lines: dict[int, bytes]
    """Each row's line."""
    ids: dict[int, str]
    """Each row's ID on the wire."""

    def answer(self, row: int, which: int) -> bytes:
        return self.lines[row].replace(b'@0@', b'@%d@' % which)

    def value(self, row: int) -> Json:
        return json.loads(self.lines[row])


Piece = Callable[[Material], Line]

number = st.integers(0, len(ROWS) - 1)
places = st.floats(0, 1, exclude_max=True)
text = st.text(st.characters(exclude_categories=[]), max_size=6)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | text | st.sampled_from([200, 500, '200', 1e999])
keys = st.sampled_from(
    ('custom_id', 'key', 'metadata', 'response', 'result', 'error', 'body', 'type', 'status_code', 'code', 'message')
)
odd_json = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | text, inner, max_size=4),
    max_leaves=8,
)


def dumped(value: Any, escaped: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=escaped).encode('utf-8', 'surrogatepass')


def piece(make: Callable[..., Line], **drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[Piece]:
    """Draws what a line is made with, and makes it once it is known what the provider wrote."""
    return st.fixed_dictionaries(drawn).map(lambda given: _Piece(make, given))


@dataclass(frozen=True)
class _Piece:
    make: Callable[..., Line]
    drawn: Json

    def __call__(self, material: Material) -> Line:
        return self.make(material, **self.drawn)

    def __repr__(self) -> str:
        return f'{self.make.__name__}({", ".join(f"{name}={value!r}" for name, value in self.drawn.items())})'


def its_answer(material: Material, row: int, which: int, ending: bytes) -> Line:
    return Line(material.answer(row, which) + ending, answers=(row, which))


def its_error(material: Material, row: int) -> Line:
    return Line(dumped(material.lane.with_id(material.lane.failed, material.ids[row])))


def nobodys(material: Material, row: int, id: Any) -> Line:
    """A line with another ID. Of a Gemini batch without any IDs the order is believed, so there is one in it."""
    return Line(dumped(material.lane.with_id(material.value(row), id)))


def any_json(material: Material, value: Any, escaped: bool) -> Line:
    return Line(dumped(value, escaped))


def any_bytes(material: Material, content: bytes) -> Line:
    return Line(content)


def cut(material: Material, row: int, place: float) -> Line:
    line = material.lines[row]
    return Line(line[: int(place * len(line))], spoils=frozenset({row}))


def run_together(material: Material, row: int, other: int, place: float) -> Line:
    line = material.lines[row]
    return Line(line[: int(place * len(line))] + material.lines[other], spoils=frozenset({row, other}))


def no_utf8(material: Material, row: int, place: float, wrong: bytes) -> Line:
    line = material.lines[row]
    at = int(place * len(line))
    return Line(line[:at] + wrong + line[at:], spoils=frozenset({row}))


def odd(material: Material, row: int, value: Any, escaped: bool) -> Line:
    """A line with a row's ID and anything for an answer."""
    content = value if isinstance(value, dict) else {material.lane.content: value}
    return Line(dumped(material.lane.with_id(content, material.ids[row]), escaped), spoils=frozenset({row}))


def odd_within(material: Material, row: int, depth: int, value: Any) -> Line:
    """A row's line in which something, some way down, is something else."""
    line = material.value(row)
    at: Any = line
    for _ in range(depth):
        inner = (
            at.get(material.lane.content) if at is line else next((v for v in at.values() if isinstance(v, dict)), 0)
        )
        if not isinstance(inner, dict) or not inner:
            break
        at = inner
    at[next(reversed(at)) if at is not line else material.lane.content] = value
    return Line(dumped(line), spoils=frozenset({row}))


as_written: st.SearchStrategy[Piece] = st.one_of(
    piece(its_answer, row=number, which=st.integers(0, 2), ending=st.sampled_from([b'', b'', b'\r', b' \t'])),
    piece(its_error, row=number),
)
as_nobody_writes: st.SearchStrategy[Piece] = st.one_of(
    piece(nobodys, row=number, id=st.none() | st.just('') | st.just('somebody-0') | st.integers() | odd_json),
    piece(any_json, value=odd_json, escaped=st.booleans()),
    piece(any_bytes, content=st.binary(max_size=12) | st.sampled_from([b'', b' ', b'\r', b'[]', b'null', b'{', b'"'])),
    piece(cut, row=number, place=places),
    piece(run_together, row=number, other=number, place=places),
    piece(
        no_utf8, row=number, place=places, wrong=st.sampled_from([b'\xff', b'\xc3', b'\xed\xa0\x80', b'\x00', b'\n'])
    ),
    piece(odd, row=number, value=odd_json, escaped=st.booleans()),
    piece(odd_within, row=number, depth=st.integers(0, 4), value=odd_json),
)
# Of nothing but odd lines, each row would be spoiled by one of them.
pieces = st.booleans().flatmap(lambda well: as_written if well else as_nobody_writes)


@dataclass(frozen=True)
class Results:
    """The results of a batch."""

    output: Sequence[Piece]
    errors: Sequence[Piece] = ()
    """What is in the error file, where there is one."""
    said: str = ''
    """Part of each answer."""
    mark: bool = False
    """Whether a byte order mark comes first."""
    places: Sequence[int] = ()
    """Where the pieces end in which they arrive."""
    end: float | None = None
    """Where they end before their end."""


results = st.builds(
    Results,
    output=st.lists(pieces, max_size=9),
    errors=st.lists(pieces, max_size=4),
    said=text,
    mark=st.booleans(),
    places=st.lists(st.integers(1, 3000), max_size=8),
    end=st.none() | places,
)


# Reading them


@dataclass
class Player:
    """Plays drawn results to one lane."""

    name: str
    lane: Lane
    fake: FakeProviders
    clock: ManualClock
    model: Model
    transport: Pieces
    runner: asyncio.Runner
    material: Material | None = None
    files: list[list[Line]] = field(default_factory=list[list[Line]])

    def __call__(self, drawn: Results) -> None:
        self.fake.answer = lambda request: said(request.text, 0, drawn.said)
        provider = self._provider
        provider.rewrite_results = lambda lines, kind: self._rewritten(drawn, lines, kind)
        self.transport.places = drawn.places
        self.transport.ends.clear()
        self.files.clear()
        requests = [BatchRequest(custom_id=row, messages=[ModelRequest.user_text_prompt(row)]) for row in ROWS]
        created = provider.count('create')
        call = model_request_batch(self.model, requests, max_resubmissions=0, clock=self.clock)
        outcomes = self.runner.run(self.clock.run(call))
        assert provider.count('create') == created + 1
        assert len(outcomes) == len(ROWS)
        for row, outcome in enumerate(outcomes):
            self._check(row, outcome, drawn)

    @property
    def _provider(self) -> Any:
        return getattr(self.fake, self.lane.provider)

    def _rewritten(self, drawn: Results, lines: list[bytes], kind: str) -> list[bytes]:
        if kind == 'output':
            wire_ids = [re.search(rb'"([a-z2-7]{20}-(\d+))"', line) for line in lines]
            ids = {int(id[2]): id[1].decode() for id in wire_ids if id}
            assert len(ids) == len(ROWS)
            by_row = dict(zip(ids, lines, strict=True))
            self.material = Material(self.lane, by_row, ids)
        assert self.material is not None
        made = [make(self.material) for make in (drawn.output if kind == 'output' else drawn.errors)]
        if self.name == 'google-inline':
            made.append(nobodys(self.material, 0, 'somebody-0'))
        content = [line.content for line in made]
        if drawn.mark and content and self.name != 'google-inline':
            content[0] = b'\xef\xbb\xbf' + content[0]
        if drawn.end is not None and self.name != 'google-inline':
            whole = b''.join(line + b'\n' for line in content)
            self.transport.ends[whole] = end = int(drawn.end * len(whole))
            made = _cut_off(made, content, end)
        self.files.append(made)
        return content

    def _check(self, row: int, outcome: ModelResponse | ModelAPIError, drawn: Results) -> None:
        lines = [line for file in self.files for line in file]
        which = [line.answers[1] for line in lines if line.answers and line.answers[0] == row]
        if any(row in line.spoils for line in lines):
            # It may be half of its answer, but of no other row's.
            text = outcome.text or '' if isinstance(outcome, ModelResponse) else ''
            assert not any(other in text for other in ROWS if other != ROWS[row])
            return
        if not which:
            assert isinstance(outcome, ModelAPIError)
        else:
            assert isinstance(outcome, ModelResponse), repr(outcome)
            assert outcome.text == said(ROWS[row], which[0], drawn.said)


def _cut_off(lines: Sequence[Line], content: Sequence[bytes], end: int) -> list[Line]:
    """What is left of a file that ends early."""
    left: list[Line] = []
    start = 0
    for line, written in zip(lines, content, strict=True):
        if start + len(written) <= end:
            left.append(line)
        elif start < end:
            rows = line.spoils | ({line.answers[0]} if line.answers else set())
            left.append(Line(written[: end - start], spoils=frozenset(rows)))
        start += len(written) + 1
    return left


def said(row: str, which: int, more: str) -> str:
    return f'@{which}@ {row} {more}.'


@contextmanager
def playing(name: str) -> Generator[Player]:
    clock = ManualClock()
    lane = LANES[name]
    transport = Pieces()
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeProviders(clock=clock, processing=timedelta(seconds=20)) as fake,
        asyncio.Runner() as runner,
    ):
        if name == 'google-file':
            patch.setattr(google, 'INLINE_BYTES', 0)
        http_client = httpx2.AsyncClient(transport=transport)
        try:
            yield Player(name, lane, fake, clock, lane.make(fake, http_client), transport, runner)
        finally:
            runner.run(http_client.aclose())


def answered(which: int) -> list[Piece]:
    """A line for each row, with one of its answers."""
    return [_Piece(its_answer, {'row': row, 'which': which, 'ending': b''}) for row in range(len(ROWS))]


WELL = answered(0)
FAILED = [_Piece(its_error, {'row': row}) for row in range(len(ROWS))]


@pytest.mark.parametrize('name', LANES)
def test_each_row_gets_its_own_answer_or_an_error_whatever_is_in_the_results(name: str) -> None:
    with playing(name) as play:

        @bounded(20 if name == 'chat' else 40)
        @given(results)
        @example(Results(WELL))
        # An answer beats an error, wherever either stands, and the first one counts.
        @example(Results([*FAILED, *answered(2), *WELL]))
        @example(Results(WELL, said='\u2028\u2029\x85\x0b\x0c\x1c', places=range(1, 3000, 7)))
        # More digits than Python makes a number of.
        @example(Results([with_status('9' * 5_000), *WELL[1:]]))
        def each(drawn: Results) -> None:
            play(drawn)

        each()


def with_status(status: str) -> Piece:
    return _Piece(odd, {'row': 0, 'value': {'response': {'status_code': status, 'body': {}}}, 'escaped': True})


@pytest.mark.parametrize('name', [name for name in LANES if name != 'google-inline'])
def test_results_that_nest_as_deep_as_can_just_be_read_cost_no_other_row(name: str) -> None:
    """What parses may be too deep to be written again, as the two ends of Python's recursion differ a little."""

    def nested(opened: str, closed: str, key: str, depth: int) -> Piece:
        def make(material: Material) -> Line:
            value = f'"{key}":{opened * depth}1{closed * depth}}}'
            line = dumped(material.lane.with_id({}, material.ids[0]))[:-1]
            return Line(line + f',{value}'.encode(), spoils=frozenset({0}))

        return make

    with playing(name) as play:
        for key in {LANES[name].content, 'error'}:
            for opened, closed in (('[', ']'), ('{"a":', '}')):
                deep = [nested(opened, closed, key, depth) for depth in range(900, 1000)]
                play(Results([*deep, *WELL[1:]]))
