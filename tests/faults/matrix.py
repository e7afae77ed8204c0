"""The fault matrix: what a provider may do to a batch of 50 requests, and how many right answers come of it.

Each behaviour is played by a fake provider, through real SDK clients, to list calls and to agent runs, once without
resubmission and once with it. Of pydantic-ai's own batch support the same is measured.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import pytest
from lanes.harness import ALL, Harness, close, harness_of
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.direct import model_request_batch as built_in_batch
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import BatchModelRequests, BatchRequest, lane_for, model_request_batch
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

ROWS = [f'row {number}' for number in range(50)]
SOME = 5
"""How many rows are hit where a few are."""
DONE = 25
"""How many rows are done in a batch that ends early."""
RESUBMISSIONS = 2
"""The default of list calls and agents."""

Way = Literal['lists', 'agents']
WAYS: tuple[Way, ...] = ('lists', 'agents')


# What a provider does


def _behave(fake: Any, window: float) -> None:
    """Nothing goes wrong."""


@dataclass(frozen=True)
class Behaviour:
    """One thing that a provider may do to a batch."""

    name: str
    wanted: tuple[int, int]
    """How many right answers there are to be, without and with resubmission."""
    play: Callable[[Any, float], None] = _behave
    """Makes a fake do it to its next batch, which, if it is one that expires, does so after that many seconds."""
    failing: int = 0
    """How many rows fail for good, the first ones."""
    lost: int = 0
    """How many rows are paid for and not answered, the first ones."""
    text: str = 'answer to {}'
    """What a row is answered, with the row in it."""
    ordered: bool = False
    """Whether results come in the order of the requests."""
    lacking: Mapping[str, str] = field(default_factory=dict[str, str])
    """The harnesses that it cannot be played to, and why: for all of them the same reason."""

    @property
    def resubmits(self) -> bool:
        """Whether rows are to be submitted again."""
        return self.wanted[0] != self.wanted[1]

    def answer(self, row: str) -> str:
        """What the row is answered if it does not fail."""
        return self.text.format(row)

    def answers(self, request: FakeRequest) -> str | FakeError:
        """The provider's answer to a request."""
        if request.text in ROWS[: self.failing]:
            return FakeError(400, 'invalid_prompt', 'This cannot be answered.')
        return self.answer(request.text)

    def __str__(self) -> str:
        return self.name


def _shuffle(fake: Any, window: float) -> None:
    if fake.name == 'google':
        # Google alone promises an order.
        fake.ordered = False


def _lines(fault: str) -> Callable[[Any, float], None]:
    return lambda fake, window: fake.inject('lines', fault, rows=SOME)


def _expire(done: int) -> Callable[[Any, float], None]:
    return lambda fake, window: _end_early(fake, 'expire', done=done, seconds=window)


def _cancel(fake: Any, window: float) -> None:
    _end_early(fake, 'cancel', done=DONE)


def _end_early(fake: Any, fault: str, **options: Any) -> None:
    if fake.name == 'google':
        # As documented, such a job has no results at all. If one ever has some, they are not to be dropped.
        fake.partial_results = True
    fake.inject('batch', fault, **options)


def _fail(fake: Any, window: float) -> None:
    # Neither about what is in the batch nor something that passes, so that each further batch fails as well.
    error = {
        'openai': {'code': 'billing_hard_limit_reached', 'message': 'Billing hard limit has been reached.'},
        'google': {'code': 7, 'message': 'Billing is disabled for this project.'},
    }[fake.name]
    fake.inject('batch', 'fail', times=None, errors=[{**error, 'param': None, 'line': None}])


ALL_WELL = Behaviour('all well', (50, 50), ordered=True)
SHUFFLED = Behaviour('shuffled results', (50, 50), _shuffle)
EXPIRED = Behaviour('expired with 25 done', (25, 50), _expire(DONE))
CANCELLED = Behaviour('cancelled with 25 done', (25, 25), _cancel)
SEPARATORS = Behaviour(
    'answers with raw line separators',
    (50, 50),
    text='the\u2028answer\u2029to\x85{}\x0b\x0c\x1c.',
    lacking={'native': 'nothing of it is on a wire'},
)

BEHAVIOURS = (
    ALL_WELL,
    SHUFFLED,
    Behaviour('5 rows in error', (45, 45), failing=SOME),
    Behaviour('5 rows missing', (45, 50), _lines('drop'), lost=SOME),
    Behaviour('all rows in error', (0, 0), failing=len(ROWS)),
    EXPIRED,
    CANCELLED,
    Behaviour('expired with none', (0, 50), _expire(0)),
    Behaviour(
        'job failed',
        (0, 0),
        _fail,
        lacking=dict.fromkeys(('anthropic', 'native'), 'a batch never fails as a whole, its rows do'),
    ),
    SEPARATORS,
    Behaviour('a result given twice', (50, 50), _lines('duplicate')),
    Behaviour('a result with an unknown id', (50, 50), _lines('unknown_id')),
)


# What comes of it


@dataclass
class Came:
    """What came of 50 requests."""

    right: set[str] = field(default_factory=set[str])
    """The rows with the answer that the provider gave to them."""
    wrong: list[Any] = field(default_factory=list[Any])
    """Answers that are not the row's own."""
    errors: list[BaseException] = field(default_factory=list[BaseException])
    """The errors that rows have instead of an answer, or that a call raised for all."""
    billed: Counter[str] = field(default_factory=Counter[str])
    """How often each row was run and charged."""
    calls: Counter[str] = field(default_factory=Counter[str])
    """How often the provider was called, by operation."""
    served: list[bytes] = field(default_factory=list[bytes])
    """The lines of the results that it served."""

    def add(self, behaviour: Behaviour, row: str, outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            self.errors.append(outcome)
        elif outcome == behaviour.answer(row):
            self.right.add(row)
        else:
            self.wrong.append(outcome)

    @property
    def order(self) -> list[int]:
        """The numbers of the requests in the order in which their results were served."""
        ids = [re.search(rb'[a-z2-7]{20}-(\d+)', line) for line in self.served]
        return [int(id[1]) for id in ids if id]


def harnesses(behaviour: Behaviour | None = None) -> list[Harness]:
    """The lanes, each with its models, that can show a behaviour."""
    return [harness for harness in ALL if behaviour is None or harness.name not in behaviour.lacking]


async def measure(behaviour: Behaviour, harness: str, way: Way, max_resubmissions: int) -> Came:
    """Play a behaviour to this package."""
    clock = ManualClock()
    came = Came()
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeProviders(behaviour.answers, clock=clock, ordered=behaviour.ordered) as providers,
    ):
        lane = harness_of(harness, patch)
        fake = lane.fake(providers)
        _record(fake, came)
        # A window of a day would only be waited through in more checks.
        behaviour.play(fake, 600)
        model, client = lane.make(providers, 'test')
        # The first request of an SDK's client waits for a thread, which a clock moved by hand may overtake.
        await lane_for(model).encode(_requests(ROWS[:1])[0])
        if way == 'lists':
            call = model_request_batch(model, _requests(ROWS), max_resubmissions=max_resubmissions, clock=clock)
            outcomes = await clock.run(call)
        else:
            batching = BatchModelRequests(max_requests=len(ROWS), max_resubmissions=max_resubmissions, clock=clock)
            outcomes = await clock.run(_runs(model, batching))
        await close(client)
        _note(came, behaviour, fake, outcomes)
    return came


async def measure_built_in(behaviour: Behaviour, harness: str, way: Way, max_resubmissions: int) -> Came:
    """Play a behaviour to pydantic-ai's own batch support, which goes by real time."""
    came = Came()
    brief = timedelta(milliseconds=1)
    settings = {'max_resubmissions': max_resubmissions, 'poll_interval': brief, 'max_poll_interval': brief}
    with (
        pytest.MonkeyPatch.context() as patch,
        FakeProviders(behaviour.answers, processing=timedelta(0), ordered=behaviour.ordered) as providers,
    ):
        lane = harness_of(harness, patch)
        fake = lane.fake(providers)
        behaviour.play(fake, 0)
        model, client = lane.make(providers, 'test')
        if way == 'lists':
            try:
                outcomes = await built_in_batch(model, _requests(ROWS), **settings)
            except Exception as error:
                outcomes = [error] * len(ROWS)
        else:
            batching = BuiltIn(max_requests=len(ROWS), max_wait=None, **settings)
            flusher = asyncio.ensure_future(_flush(batching, fake))
            outcomes = await _runs(model, batching)
            flusher.cancel()
        await close(client)
        _note(came, behaviour, fake, outcomes)
    return came


async def _flush(batching: BuiltIn, fake: Any) -> None:
    """Send off what is submitted again, for which there is no telling how many requests to wait for."""
    while True:
        await asyncio.sleep(0.005)
        if fake.count('create'):
            await batching.flush()


def _requests(rows: Sequence[str]) -> list[BatchRequest]:
    # pydantic-ai's own list call puts these IDs on the wire, and Anthropic takes no spaces in them.
    ids = [row.replace(' ', '-') for row in rows]
    return [
        BatchRequest(custom_id=id, messages=[ModelRequest.user_text_prompt(row)])
        for id, row in zip(ids, rows, strict=True)
    ]


async def _runs(model: Model, batching: Any) -> list[Any]:
    agent = Agent(model, capabilities=[batching])
    runs = await asyncio.gather(*[agent.run(row) for row in ROWS], return_exceptions=True)
    return [run if isinstance(run, BaseException) else run.output for run in runs]


def _record(fake: Any, came: Came) -> None:
    def served(lines: list[bytes], kind: str) -> list[bytes]:
        came.served += lines
        return lines

    fake.rewrite_results = served


def _note(came: Came, behaviour: Behaviour, fake: Any, outcomes: Sequence[Any]) -> None:
    assert len(outcomes) == len(ROWS)
    for row, outcome in zip(ROWS, outcomes, strict=True):
        came.add(behaviour, row, outcome.text if isinstance(outcome, ModelResponse) else outcome)
    came.billed = Counter(row.text for row in fake.billed)
    came.calls = Counter(call.operation for call in fake.calls)
