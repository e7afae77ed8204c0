"""What an instrumented run shows of its batch in OpenTelemetry, and that others show nothing."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic
from conftest import ModelOf
from gate import Gate
from logfire.testing import CaptureLogfire
from openai import AsyncOpenAI
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, format_trace_id
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.capabilities import AbstractCapability, Instrumentation, WrapModelRequestHandler
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import (
    BatchModelRequests,
    cancel_batch,
    check_batch,
    collect_batch,
    model_request_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

KEY = 'sk-secret-key'
PROMPT = 'the-secret-prompt'


class Spans:
    """The spans of a process of its own, as far as tracing can tell."""

    def __init__(self, **settings: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer('tests')

    def on(self, **settings: Any) -> Instrumentation:
        return Instrumentation(settings=InstrumentationSettings(tracer_provider=self.provider, **settings))

    @property
    def ended(self) -> list[ReadableSpan]:
        """Every span, in the order they were started."""
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, beginning: str) -> list[ReadableSpan]:
        return [span for span in self.ended if span.name.startswith(beginning)]

    def batch(self) -> ReadableSpan:
        (span,) = [span for span in self.named('batch ') if not span.name.startswith('batch check')]
        return span

    @property
    def tree(self) -> list[str]:
        return tree(self.ended)


def tree(spans: list[ReadableSpan]) -> list[str]:
    """The names of spans, each under its parent, with the names of those that it links to."""
    known = {context(span).span_id: span for span in spans}

    def lines(parent: ReadableSpan | None, indent: str) -> list[str]:
        shown: list[str] = []
        for span in spans:
            above = known.get(span.parent.span_id) if span.parent is not None else None
            if above is parent:
                links = ', '.join(known[link.context.span_id].name for link in span.links)
                shown.append(f'{indent}{span.name}{f" -> {links}" if links else ""}')
                shown.extend(lines(span, indent + '  '))
        return shown

    return lines(None, '')


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise TimeoutError


def context(span: ReadableSpan) -> SpanContext:
    assert span.context is not None
    return span.context


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(f'pydantic_ai.batch.{name}')


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def ids(spans: list[ReadableSpan]) -> set[int]:
    return {context(span).span_id for span in spans}


def trace_ids(*spans: ReadableSpan) -> set[str]:
    return {format_trace_id(context(span).trace_id) for span in spans}


def exceptions(span: ReadableSpan) -> list[str]:
    return [str((event.attributes or {}).get('exception.message')) for event in span.events]


class Traced(httpx2.AsyncBaseTransport):
    """What instruments an HTTP client: a span for each request that it sends."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans
        self._inner: dict[str, Any] = {}

    async def handle_async_request(self, request: Any) -> Any:
        # Google's SDK may speak through httpx and the others through httpx2.
        name = type(request).__module__.partition('.')[0]
        if name not in self._inner:
            self._inner[name] = importlib.import_module(name).AsyncHTTPTransport()
        with self._spans.tracer.start_as_current_span(f'HTTP {request.method}'):
            return await self._inner[name].handle_async_request(request)

    async def aclose(self) -> None:
        for transport in self._inner.values():
            await transport.aclose()


Make = Callable[[FakeProviders], Model]


class Models:
    """Models of every provider whose HTTP clients are instrumented."""

    def __init__(self, spans: Spans) -> None:
        self._transport = Traced(spans)
        self.clients: list[Any] = []

    def _client(self, sdk: Any, base_url: str) -> Any:
        http_client = httpx2.AsyncClient(transport=self._transport)
        self.clients.append(sdk(api_key=KEY, base_url=base_url, http_client=http_client, max_retries=0))
        return self.clients[-1]

    def openai(self, fake: FakeProviders) -> Model:
        client = self._client(AsyncOpenAI, fake.openai.base_url)
        return OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))

    def chat(self, fake: FakeProviders) -> Model:
        client = self._client(AsyncOpenAI, fake.openai.base_url)
        return OpenAIChatModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))

    def anthropic(self, fake: FakeProviders) -> Model:
        client = self._client(AsyncAnthropic, fake.anthropic.base_url)
        return AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=client))

    def google(self, fake: FakeProviders) -> Model:
        options = {'async_client_args': {'trust_env': False, 'transport': self._transport}}
        client = fake.google.client(api_key=KEY, http_options=options)
        self.clients.append(client.aio)
        return GoogleModel('gemini-2.5-flash', provider=GoogleProvider(client=client))

    def native(self, fake: FakeProviders) -> Model:
        return TestModel()

    async def close(self) -> None:
        for client in self.clients:
            await (client.aclose() if hasattr(client, 'aclose') else client.close())


LANES = ['openai', 'chat', 'anthropic', 'google', 'native']


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def models(spans: Spans) -> AsyncIterator[Models]:
    models = Models(spans)
    yield models
    await models.close()


def batched(clock: ManualClock, **settings: Any) -> BatchModelRequests:
    return BatchModelRequests(clock=clock, **settings)


def pending_agent(model: Model, *capabilities: AbstractCapability[Any]) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=capabilities)


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history as a database or a queue gives it back."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


def ticket_of(messages: list[ModelMessage]) -> dict[str, Any]:
    last = messages[-1]
    assert isinstance(last, ModelResponse)
    assert last.state == 'suspended'
    return (last.provider_details or {})['batch']


@pytest.mark.parametrize('lane', LANES)
async def test_a_batch_is_a_trace_of_its_own_linked_with_each_request_in_it(
    lane: str, clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    agent = Agent(getattr(models, lane)(fake), capabilities=[spans.on(), batched(clock, max_requests=3)])
    with spans.tracer.start_as_current_span('script'):
        await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(3)]))

    chats, submission, checks = spans.named('chat'), spans.batch(), spans.named('batch check')
    assert submission.parent is None
    assert linked(submission) == ids(chats)
    assert len(chats) == 3
    assert all(linked(chat) == ids([submission]) for chat in chats)
    batch_id = attribute(submission, 'id')
    assert batch_id
    assert {attribute(span, 'id') for span in [*chats, *checks]} == {batch_id}
    assert attribute(submission, 'request_count') == 3
    assert attribute(submission, 'status') == ('ended' if lane == 'native' else 'in_progress')
    assert [attribute(check, 'status') for check in checks][-1] == 'ended'
    assert all(check.parent is not None and check.parent.span_id in ids([submission]) for check in checks)
    assert trace_ids(submission, *checks).isdisjoint(trace_ids(*chats))
    assert all(span.kind == SpanKind.CLIENT for span in [submission, *checks])
    # What the client sends is inside these spans, and in no run's trace.
    sent = spans.named('HTTP')
    assert bool(sent) == (lane != 'native')
    assert {span.parent.span_id for span in sent if span.parent} <= ids([submission, *checks])
    assert trace_ids(*sent) <= trace_ids(submission)


async def test_the_spans_of_a_run_stand_as_this(clock: ManualClock, spans: Spans, models: Models):
    with FakeProviders(clock=clock, processing=timedelta(seconds=50)) as fake:
        agent = Agent(models.openai(fake), name='a', capabilities=[spans.on(), batched(clock, max_requests=1)])
        await clock.run(agent.run('x'))
    assert spans.tree == [
        'invoke_agent a',
        '  chat gpt-5-mini -> batch gpt-5-mini',
        'batch gpt-5-mini -> chat gpt-5-mini',
        '  HTTP POST',
        '  HTTP POST',
        '  batch check gpt-5-mini -> chat gpt-5-mini',
        '    HTTP GET',
        '  batch check gpt-5-mini -> chat gpt-5-mini',
        '    HTTP GET',
        '    HTTP GET',
        '  HTTP DELETE',
    ]


# As the built-in capability


def compared(spans: Spans) -> list[Any]:
    """What two capabilities must agree on: spans, where they stand, their attributes, their links."""
    known = {context(span).span_id: span for span in spans.ended}
    numbers: dict[str, int] = {}

    def number(value: Any) -> Any:
        return numbers.setdefault(value, len(numbers)) if str(value).startswith(('batch', 'msgbatch')) else value

    def shown(span: ReadableSpan) -> dict[str, Any]:
        ours = span.name.startswith('batch')
        attributes = {
            name: number(value)
            for name, value in sorted((span.attributes or {}).items())
            if ours or name.startswith('pydantic_ai.batch.')
        }
        return {
            'name': span.name,
            'kind': span.kind,
            'status': span.status.status_code,
            'parent': known[span.parent.span_id].name if span.parent and span.parent.span_id in known else span.parent,
            'scope': span.instrumentation_scope and span.instrumentation_scope.name,
            'links': [(known[link.context.span_id].name, link.attributes) for link in span.links],
            'attributes': attributes,
            'exceptions': exceptions(span),
        }

    return [shown(span) for span in spans.ended if not span.name.startswith('HTTP')]


CAPABILITIES: list[Callable[[ManualClock], AbstractCapability[Any]]] = [
    lambda clock: batched(clock, max_requests=1),
    lambda clock: BuiltIn(max_requests=1),
]


@pytest.fixture
def quick(clock: ManualClock) -> Iterator[FakeProviders]:
    """Fakes whose batches have ended by their first check, as the built-in keeps statuses by the machine's clock."""
    with FakeProviders(clock=clock, processing=timedelta(seconds=20)) as fake:
        yield fake


async def as_run_with(
    capability: Callable[[ManualClock], AbstractCapability[Any]],
    lane: str,
    fake: FakeProviders,
    clock: ManualClock,
    scenario: Callable[[Agent[None, Any]], Awaitable[Any]],
    output_type: Any = str,
) -> list[Any]:
    spans = Spans()
    models = Models(spans)
    agent = Agent(
        getattr(models, lane)(fake), output_type=output_type, capabilities=[spans.on(), capability(clock)], retries=0
    )
    # The built-in waits through the framework, which is made to go by the clock.
    with Agent.using_sleep(clock.sleep):
        await clock.run(scenario(agent))
    await models.close()
    return compared(spans)


@pytest.mark.parametrize('lane', ['openai', 'anthropic', 'google', 'native'])
async def test_a_run_is_traced_as_by_the_built_in_capability(lane: str, clock: ManualClock, quick: FakeProviders):
    async def scenario(agent: Agent[None, Any]) -> None:
        await agent.run('x')

    ours, theirs = [await as_run_with(each, lane, quick, clock, scenario) for each in CAPABILITIES]
    assert len(ours) == 4
    assert ours == theirs


async def test_a_failed_submission_is_traced_as_by_the_built_in_capability(clock: ManualClock, quick: FakeProviders):
    async def scenario(agent: Agent[None, Any]) -> None:
        quick.openai.inject('create', 'http', status=400, message='no')
        with pytest.raises(ModelHTTPError):
            await agent.run('x')

    ours, theirs = [await as_run_with(each, 'openai', quick, clock, scenario) for each in CAPABILITIES]
    assert ours == theirs


async def test_a_failed_check_is_traced_as_by_the_built_in_capability(clock: ManualClock, quick: FakeProviders):
    async def scenario(agent: Agent[None, Any]) -> None:
        quick.openai.inject('status', 'http', status=503, message='busy')
        quick.openai.inject('status', 'http', status=401, message='no', after=1)
        with pytest.raises(ModelHTTPError):
            await agent.run('x')

    ours, theirs = [await as_run_with(each, 'openai', quick, clock, scenario) for each in CAPABILITIES]
    assert ours == theirs


async def test_a_resubmission_is_traced_as_by_the_built_in_capability(clock: ManualClock, quick: FakeProviders):
    async def scenario(agent: Agent[None, Any]) -> None:
        quick.openai.inject('batch', 'expire', seconds=10)
        await agent.run('x')

    ours, theirs = [await as_run_with(each, 'openai', quick, clock, scenario) for each in CAPABILITIES]
    assert ours == theirs


async def test_a_resumed_run_is_traced_as_by_the_built_in_capability(clock: ManualClock, quick: FakeProviders):
    async def scenario(agent: Agent[None, Any]) -> None:
        first = await agent.run('x')
        assert isinstance(first.output, PendingModelResponse)
        second = await agent.run(message_history=stored(first.all_messages()))
        assert isinstance(second.output, PendingModelResponse)

    output_type = [str, PendingModelResponse]
    ours, theirs = [await as_run_with(each, 'openai', quick, clock, scenario, output_type) for each in CAPABILITIES]
    assert ours == theirs


@pytest.mark.parametrize('ours_first', [True, False])
async def test_either_capability_continues_the_trace_of_the_other(
    ours_first: bool, clock: ManualClock, quick: FakeProviders, model_of: ModelOf
):
    first, second = CAPABILITIES if ours_first else CAPABILITIES[::-1]
    submitting, collecting = Spans(), Spans()
    model = model_of(quick)
    pending = await clock.run(pending_agent(model, submitting.on(), first(clock)).run('x'))
    await clock.advance(60)
    result = await pending_agent(model, collecting.on(), second(clock)).run(
        message_history=stored(pending.all_messages())
    )
    assert isinstance(result.output, str)
    submission = submitting.batch()
    (check,), (chat,) = collecting.named('batch check'), collecting.named('chat')
    assert check.parent is not None
    assert check.parent.span_id == context(submission).span_id
    assert trace_ids(check) == trace_ids(submission)
    assert linked(chat) == ids([submission])
    assert linked(check) == ids([chat])
    assert attribute(chat, 'id') == attribute(check, 'id') == attribute(submission, 'id')


# Later runs


@pytest.mark.parametrize('lane', LANES[:-1])
async def test_a_run_in_another_process_joins_the_trace(lane: str, clock: ManualClock, model_of: ModelOf):
    submitting, collecting = Spans(), Spans()
    ours, theirs = Models(submitting), Models(collecting)
    with FakeProviders(clock=clock, processing=timedelta(minutes=5)) as fake:
        agent = pending_agent(getattr(ours, lane)(fake), submitting.on(), batched(clock))
        pending = await clock.run(agent.run('x'))
        agent = Agent(getattr(theirs, lane)(fake), capabilities=[collecting.on(), batched(clock)])
        with Agent.using_sleep(clock.sleep):
            await clock.run(agent.run(message_history=stored(pending.all_messages())))
        await ours.close()
        await theirs.close()
    submission = submitting.batch()
    checks, (chat,) = collecting.named('batch check'), collecting.named('chat')
    assert len(checks) > 2
    assert {check.parent.span_id for check in checks if check.parent} == ids([submission])
    assert trace_ids(*checks) == trace_ids(submission)
    assert linked(chat) == ids([submission])
    assert attribute(chat, 'id') == attribute(submission, 'id')
    # All that the client sent, also to delete the input, which only the process that submitted it may.
    assert {span.parent.span_id for span in collecting.named('HTTP') if span.parent} == ids(checks)


async def test_what_a_later_run_of_the_process_cleans_up_is_under_the_submission(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    agent = pending_agent(models.openai(fake), spans.on(), batched(clock))
    pending = await clock.run(agent.run('x'))
    await clock.advance(timedelta(hours=1))
    await agent.run(message_history=stored(pending.all_messages()))
    (deleted,) = spans.named('HTTP DELETE')
    assert deleted.parent is not None
    assert deleted.parent.span_id == context(spans.batch()).span_id


async def test_a_history_left_by_a_run_without_instrumentation_is_checked_in_a_trace_of_its_own(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    pending = await clock.run(pending_agent(model, batched(clock)).run('x'))
    assert 'trace_context' not in ticket_of(pending.all_messages())
    await pending_agent(model, spans.on(), batched(clock)).run(message_history=stored(pending.all_messages()))
    (check,), (chat,) = spans.named('batch check'), spans.named('chat')
    assert check.parent is None
    assert linked(check) == ids([chat])
    assert attribute(chat, 'id') == attribute(check, 'id')
    assert linked(chat) == set()


async def test_a_ticket_keeps_its_trace_through_checks_of_runs_without_instrumentation(
    clock: ManualClock, model: OpenAIResponsesModel, spans: Spans
):
    first = await clock.run(pending_agent(model, spans.on(), batched(clock)).run('x'))
    second = await pending_agent(model, batched(clock)).run(message_history=stored(first.all_messages()))
    assert ticket_of(second.all_messages())['trace_context'] == ticket_of(first.all_messages())['trace_context']
    assert spans.named('batch check') == []


@pytest.mark.parametrize(
    'odd',
    [None, 'text', [], {}, {'traceparent': 7}, {'traceparent': 'no'}, {'traceparent': f'00-{"0" * 32}-{"0" * 16}-01'}],
)
async def test_a_history_with_an_odd_trace_is_collected_all_the_same(
    odd: Any, clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    first = await clock.run(pending_agent(model, batched(clock)).run('x'))
    history = stored(first.all_messages())
    ticket_of(history)['trace_context'] = odd
    await clock.advance(timedelta(hours=1))
    result = await pending_agent(model, spans.on(), batched(clock)).run(message_history=history)
    assert isinstance(result.output, str)
    assert fake.openai.count('create') == 1
    (check,) = spans.named('batch check')
    assert check.parent is None


async def test_an_answered_request_leaves_no_trace_in_its_history(
    clock: ManualClock, model: OpenAIResponsesModel, spans: Spans
):
    result = await clock.run(Agent(model, capabilities=[spans.on(), batched(clock)]).run('x'))
    assert 'traceparent' not in result.all_messages_json().decode()


async def test_a_run_that_goes_on_without_the_pool_is_linked_once(clock: ManualClock, spans: Spans, models: Models):
    with FakeProviders(clock=clock, processing=timedelta(minutes=5)) as fake:
        batching = batched(clock, max_requests=1)
        async with batching:
            with Agent.using_sleep(clock.sleep):
                run = asyncio.ensure_future(Agent(models.openai(fake), capabilities=[spans.on(), batching]).run('x'))
            await clock.until_asleep()
            assert fake.openai.count('create') == 1
        await clock.run(run)
    (chat,), submission, checks = spans.named('chat'), spans.batch(), spans.named('batch check')
    assert [link.context.span_id for link in chat.links] == [context(submission).span_id]
    assert len(checks) == fake.openai.count('status') > 1
    assert {linked(check) == ids([chat]) for check in checks} == {True}
    assert {check.parent.span_id for check in checks if check.parent} == ids([submission])


# Many requests


async def test_one_check_serves_all_and_is_linked_to_the_one_that_waits_longest(
    clock: ManualClock, model_of: ModelOf, spans: Spans
):
    runs: list[asyncio.Task[Any]] = []

    def first_goes(event: BatchEvent) -> None:
        if event.kind == 'checked':
            runs[0].cancel()

    with FakeProviders(clock=clock, processing=timedelta(minutes=2)) as fake:
        agent = Agent(model_of(fake), capabilities=[spans.on(), batched(clock, max_requests=2, progress=first_goes)])
        runs.append(asyncio.create_task(agent.run('first')))
        await clock.until_asleep()
        runs.append(asyncio.create_task(agent.run('second')))
        await clock.run(asyncio.gather(*runs, return_exceptions=True))
    assert runs[0].cancelled()
    checks, chats = spans.named('batch check'), spans.named('chat')
    assert len(checks) == fake.openai.count('status') == 3
    assert [linked(check) for check in checks] == [ids(chats[:1]), ids(chats[1:]), ids(chats[1:])]
    assert linked(spans.batch()) == ids(chats)


async def test_requests_with_and_without_instrumentation_share_a_batch(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    batching = batched(clock, max_requests=2)
    silent, seen = Agent(model, capabilities=[batching]), Agent(model, capabilities=[spans.on(), batching])
    # The first to wait, whom the poller is started for, is the one without.
    await clock.run(asyncio.gather(silent.run('a'), seen.run('b')))
    (chat,), submission = spans.named('chat'), spans.batch()
    assert fake.openai.count('create') == 1
    assert linked(submission) == ids([chat])
    assert attribute(submission, 'request_count') == 2
    assert len(spans.named('batch check')) == fake.openai.count('status')


async def test_a_request_that_is_submitted_again_is_linked_to_every_batch_it_was_in(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    fake.openai.inject('batch', 'expire', times=2, seconds=10)
    await clock.run(Agent(model, capabilities=[spans.on(), batched(clock)]).run('x'))
    submissions = [span for span in spans.named('batch ') if span.name == 'batch gpt-5-mini']
    (chat,) = spans.named('chat')
    assert len(submissions) == len(trace_ids(*submissions)) == 3
    assert linked(chat) == ids(submissions)
    assert all(linked(submission) == ids([chat]) for submission in submissions)
    assert attribute(chat, 'id') == attribute(submissions[-1], 'id')


# What goes wrong


async def test_a_refused_submission_shows_why(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    fake.openai.inject('create', 'http', status=400, message='too many cooks')
    with pytest.raises(ModelHTTPError):
        await clock.run(Agent(model, capabilities=[spans.on(), batched(clock)]).run('x'))
    submission = spans.batch()
    assert submission.status.status_code == StatusCode.ERROR
    assert 'too many cooks' in ''.join(exceptions(submission))
    assert attribute(submission, 'id') is None
    assert spans.named('batch check') == []


async def test_a_submission_whose_reply_was_lost_is_one_span(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    fake.openai.inject('create', 'lose_reply')
    await clock.run(Agent(models.openai(fake), capabilities=[spans.on(), batched(clock)]).run('x'))
    submission = spans.batch()
    assert submission.status.status_code == StatusCode.UNSET
    assert attribute(submission, 'id') == next(iter(fake.openai.batches))
    sent = [span for span in spans.named('HTTP') if span.parent and span.parent.span_id in ids([submission])]
    assert [span.name for span in sent[:3]] == ['HTTP POST', 'HTTP POST', 'HTTP GET']


async def test_a_submission_that_a_full_queue_sends_back_is_a_trace_each_time(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    fake.openai.inject('create', 'http', status=429, message='Too many batches', times=2)
    await clock.run(Agent(models.openai(fake), capabilities=[spans.on(), batched(clock)]).run('x'))
    submissions = [span for span in spans.named('batch ') if span.name == 'batch gpt-5-mini']
    (chat,) = spans.named('chat')
    assert len(submissions) == len(trace_ids(*submissions)) == 3
    assert [span.status.status_code for span in submissions] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert all(linked(submission) == ids([chat]) for submission in submissions)
    # The request is in the last one alone.
    assert linked(chat) == ids(submissions[-1:])
    assert {span.parent.span_id for span in spans.named('HTTP POST') if span.parent} == ids(submissions)


async def test_a_check_that_fails_shows_why_also_when_that_is_put_up_with(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, spans: Spans
):
    fake.openai.inject('status', 'http', status=503, message='busy')
    fake.openai.inject('status', 'http', status=403, message='go away', after=1)
    with pytest.raises(ModelHTTPError):
        await clock.run(Agent(model, capabilities=[spans.on(), batched(clock)]).run('x'))
    busy, refused = spans.named('batch check')
    for check, message in ((busy, 'busy'), (refused, 'go away')):
        assert check.status.status_code == StatusCode.ERROR
        assert len(check.events) == 1
        assert message in ''.join(exceptions(check))
        assert attribute(check, 'status') is None


@pytest.mark.parametrize('content', [True, False])
async def test_no_span_of_a_batch_shows_a_prompt_or_a_key(
    content: bool, clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(500, None, f'cannot answer {request.text}') if request.attempt == 0 else request.text

    fake.answer = answer
    fake.openai.inject('status', 'http', status=503, message=f'cannot tell about {PROMPT}')
    agent = Agent(models.openai(fake), capabilities=[spans.on(include_content=content), batched(clock)])
    pending = await clock.run(pending_agent(models.openai(fake), spans.on(), batched(clock)).run(PROMPT))
    assert KEY not in json.dumps(ticket_of(pending.all_messages()))
    await clock.run(agent.run(PROMPT))
    shown = [span for span in spans.ended if not span.name.startswith(('chat', 'invoke'))]
    assert len(shown) > 5
    for span in shown:
        assert PROMPT not in json.dumps(dict(span.attributes or {}))
        assert KEY not in span.to_json()
        # What a provider says may quote the request, as the chat span's own error does, so it goes by that setting.
        assert content or PROMPT not in span.to_json()
    (failed,) = [span for span in shown if span.status.status_code == StatusCode.ERROR]
    assert failed.events[0].name == 'exception'
    assert str((failed.events[0].attributes or {})['exception.type']).startswith('pydantic_ai.exceptions.Model')
    assert bool(failed.status.description) == content


# The end


GATES = {'creating': ('POST', '/batches'), 'checking': ('GET', '')}


@pytest.mark.parametrize('closing', [True, False], ids=['closed', 'cancelled'])
@pytest.mark.parametrize('moment', GATES)
async def test_spans_end_when_the_pool_is_closed_or_the_run_cancelled(
    moment: str,
    closing: bool,
    clock: ManualClock,
    model: OpenAIResponsesModel,
    spans: Spans,
    caplog: pytest.LogCaptureFixture,
):
    gate = Gate(model, *GATES[moment])
    batching = batched(clock, max_requests=1)
    agent = Agent(model, capabilities=[spans.on(), batching])
    async with batching:
        run = asyncio.ensure_future(agent.run('x'))
        moving = asyncio.ensure_future(clock.run(asyncio.gather(run, return_exceptions=True)))
        await gate.reached.wait()
        if not closing:
            run.cancel()
            await asyncio.wait((run,))
            gate.open()
    await moving
    if closing:
        assert isinstance(run.exception(), UserError)
    last = spans.named('batch')[-1]
    assert last.name == ('batch gpt-5-mini' if moment == 'creating' else 'batch check gpt-5-mini')
    assert last.status.status_code == StatusCode.UNSET
    assert [record for record in caplog.records if record.name.startswith('opentelemetry')] == []


def test_event_loops_one_after_another_log_nothing(
    clock: ManualClock, fake: FakeProviders, spans: Spans, caplog: pytest.LogCaptureFixture
):
    batching = batched(clock)

    async def once() -> None:
        async with fake.openai.client(max_retries=0) as client:
            model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
            await clock.run(Agent(model, capabilities=[spans.on(), batching]).run('x'))

    async def left() -> None:
        # The loop ends while the run waits.
        async with fake.openai.client(max_retries=0) as client:
            model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
            run = asyncio.ensure_future(Agent(model, capabilities=[spans.on(), batching]).run('x'))
            await clock.until_asleep()
            assert not run.done()

    for main in (once, left, once):
        asyncio.run(main())
    assert len([span for span in spans.named('batch ') if span.name == 'batch gpt-5-mini']) == 2
    assert [record for record in caplog.records if record.name.startswith('opentelemetry')] == []


async def test_the_cancellation_of_a_batch_while_it_was_created_is_under_its_span(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    model = models.openai(fake)
    assert isinstance(model, OpenAIResponsesModel)
    gate = Gate(model, *GATES['creating'])
    run = asyncio.ensure_future(Agent(model, capabilities=[spans.on(), batched(clock, max_requests=1)]).run('x'))
    await gate.reached.wait()
    run.cancel()
    await asyncio.wait((run,))
    gate.open()
    await until(lambda: fake.openai.count('cancel') == 1 and len(spans.named('HTTP')) == 3)
    cancel = spans.named('HTTP')[-1]
    assert cancel.parent is not None
    assert cancel.parent.span_id == context(spans.batch()).span_id


# Ways to run


async def test_a_streamed_run_is_traced_as_others_are(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    agent = Agent(models.openai(fake), capabilities=[spans.on(), batched(clock)])

    async def stream() -> str:
        async with agent.run_stream('x') as streamed:
            return await streamed.get_output()

    assert await clock.run(stream())
    (chat,), submission = spans.named('chat'), spans.batch()
    assert linked(chat) == ids([submission])
    assert linked(submission) == ids([chat])
    assert trace_ids(*spans.named('HTTP')) == trace_ids(submission)


async def test_an_instrumented_model_is_traced_as_an_instrumented_agent_is(
    clock: ManualClock, model: OpenAIResponsesModel, spans: Spans
):
    instrumented = InstrumentedModel(model, InstrumentationSettings(tracer_provider=spans.provider))
    await clock.run(Agent(instrumented, capabilities=[batched(clock)]).run('x'))
    (chat,) = spans.named('chat')
    assert linked(spans.batch()) == ids([chat])


@pytest.mark.parametrize('ours_first', [True, False])
async def test_spans_that_a_users_wrapper_opens_do_not_stand_in_for_the_requests(
    ours_first: bool, clock: ManualClock, model: OpenAIResponsesModel, spans: Spans
):
    class Opens(WrapperModel):
        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            with spans.tracer.start_as_current_span('mine'):
                return await super().request(*args, **kwargs)

    class Wraps(AbstractCapability[Any]):
        def get_wrapper_model(self, model: Model) -> Model:
            return Opens(model)

    ours = batched(clock)
    capabilities = [ours, Wraps(), spans.on()] if ours_first else [spans.on(), Wraps(), ours]
    await clock.run(Agent(model, capabilities=capabilities).run('x'))
    (chat,), submission = spans.named('chat'), spans.batch()
    assert linked(submission) == ids([chat])
    assert linked(chat) == ids([submission])
    assert all(attribute(span, 'id') is None for span in spans.named('mine'))


# Off


async def test_without_instrumentation_there_are_no_spans_and_the_clients_are_in_no_runs_trace(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    agent = pending_agent(models.openai(fake), batched(clock))
    with spans.tracer.start_as_current_span('script'):
        pending = await clock.run(agent.run('x'))
        await agent.run(message_history=stored(pending.all_messages()))
        await clock.run(Agent(models.openai(fake), capabilities=[batched(clock)]).run('y'))
    assert 'trace_context' not in ticket_of(pending.all_messages())
    assert {span.name.split()[0] for span in spans.ended} == {'script', 'HTTP'}
    assert all(span.parent is None for span in spans.named('HTTP'))
    (script,) = spans.named('script')
    assert trace_ids(script).isdisjoint(trace_ids(*spans.named('HTTP')))
    assert (script.links, attribute(script, 'id')) == ((), None)


async def test_a_request_that_is_not_sampled_has_no_batch_spans(clock: ManualClock, model: OpenAIResponsesModel):
    unsampled, spans = Spans(sampler=ALWAYS_OFF), Spans()
    pending = await clock.run(pending_agent(model, unsampled.on(), batched(clock)).run('x'))
    assert unsampled.ended == []
    assert 'trace_context' not in ticket_of(pending.all_messages())
    assert spans.ended == []


async def test_a_run_without_instrumentation_inside_an_instrumented_one_is_not_traced(
    clock: ManualClock, model_of: ModelOf, fake: FakeProviders, spans: Spans
):
    inner = Agent(model_of(fake, 'gpt-5-nano'), capabilities=[batched(clock)])

    class AsksFirst(AbstractCapability[Any]):
        async def wrap_model_request(
            self, ctx: Any, *, request_context: Any, handler: WrapModelRequestHandler
        ) -> ModelResponse:
            await inner.run('inner')
            return await handler(request_context)

    outer = Agent(model_of(fake), capabilities=[spans.on(), batched(clock), AsksFirst()])
    await clock.run(outer.run('outer'))
    assert fake.openai.count('create') == 2
    assert {span.name.split()[-1] for span in spans.named('batch')} == {'gpt-5-mini'}
    (chat,) = spans.named('chat')
    assert linked(chat) == ids([spans.batch()])


async def test_list_calls_are_not_traced(clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models):
    fake.openai.inject('status', 'http', status=503)
    requests = [BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('x')])]
    with spans.tracer.start_as_current_span('script'):
        await clock.run(model_request_batch(models.openai(fake), requests, clock=clock))
    (script,) = spans.named('script')
    assert {span.name.split()[0] for span in spans.ended} == {'script', 'HTTP'}
    # They are a part of the program that makes them.
    assert {span.parent.span_id for span in spans.named('HTTP') if span.parent} == ids([script])
    assert (script.events, script.status.status_code) == ((), StatusCode.UNSET)


async def test_submitting_now_and_collecting_later_is_not_traced_even_with_an_instrumented_model(
    clock: ManualClock, fake: FakeProviders, spans: Spans, models: Models
):
    settings = InstrumentationSettings(tracer_provider=spans.provider)
    model = InstrumentedModel(models.openai(fake), settings)
    requests = [BatchRequest(custom_id=name, messages=[ModelRequest.user_text_prompt(name)]) for name in ('a', 'b')]
    with spans.tracer.start_as_current_span('script'):
        job = await clock.run(submit_batch(model, requests, max_requests=1, clock=clock))
        fake.openai.inject('status', 'http', status=503)
        job = await clock.run(check_batch(job, model, clock=clock))
        job = await clock.run(wait_batch(job, model, clock=clock))
        outcomes = await clock.run(collect_batch(job, requests, model, clock=clock))
        other = await clock.run(submit_batch(model, requests, clock=clock))
        await clock.run(cancel_batch(other, model, clock=clock))
        await clock.run(model_request_batch(model, requests, clock=clock))
    (script,) = spans.named('script')
    assert {span.name.split()[0] for span in spans.ended} == {'script', 'HTTP'}
    assert {span.parent.span_id for span in spans.named('HTTP') if span.parent} == ids([script])
    assert (script.events, script.links, dict(script.attributes or {})) == ((), (), {})
    assert all(isinstance(outcome, ModelResponse) for outcome in outcomes)


# Logfire


async def test_logfire_shows_them(
    clock: ManualClock, fake: FakeProviders, model: OpenAIResponsesModel, capfire: CaptureLogfire
):
    # As `logfire.instrument_pydantic_ai()` does, for one agent.
    instrumentation = Instrumentation(settings=InstrumentationSettings())
    agent = Agent(model, name='a', capabilities=[instrumentation, batched(clock, max_requests=2)])
    await clock.run(asyncio.gather(agent.run('x'), agent.run('y')))
    spans = list(capfire.exporter.exported_spans_as_dict(parse_json_attributes=True))
    submission, *checks = [span for span in spans if span['name'].startswith('batch')]
    chats = [span for span in spans if span['name'] == 'chat gpt-5-mini']
    batch_id = next(iter(fake.openai.batches))
    assert submission['name'] == 'batch gpt-5-mini'
    assert submission['parent'] is None
    requests = {chat['context']['span_id'] for chat in chats}
    assert len(requests) == 2
    assert {link['context']['span_id'] for link in submission['links']} == requests
    assert submission['attributes']['pydantic_ai.batch.id'] == batch_id
    assert len(checks) == fake.openai.count('status')
    assert {check['parent']['span_id'] for check in checks} == {submission['context']['span_id']}
    for chat in chats:
        assert chat['attributes']['pydantic_ai.batch.id'] == batch_id
        assert [link['context']['span_id'] for link in chat['links']] == [submission['context']['span_id']]
        assert chat['context']['trace_id'] != submission['context']['trace_id']
