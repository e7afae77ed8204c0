"""OpenTelemetry spans of batches, for instrumented runs: one for each submission, and one under it for each check.

A batch serves many runs, so its spans are in no run's trace. A submission's starts a trace, links to the `chat` span of
each request in it, and travels in their tickets, so that checks join it from any process. Each `chat` span gets the
batch's ID and a link to the submission. What the provider's client reports meanwhile is inside these spans.

Names and attributes are those of pydantic-ai's own batch support. Without instrumentation there are no spans.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    NoOpTracer,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch
from pydantic_ai.tools import RunContext

BATCH_ID = 'pydantic_ai.batch.id'
BATCH_STATUS = 'pydantic_ai.batch.status'
REQUEST_COUNT = 'pydantic_ai.batch.request_count'

TraceContext = Mapping[str, str]
"""The W3C trace context of a submission's span, as headers. From a history it is the caller's data."""

# Not the one that is set globally, which may add more than a history should hold.
_W3C = TraceContextTextMapPropagator()

_REQUESTER = otel.create_key('pydantic-ai-batch-requester')
_BATCH_SPAN = otel.create_key('pydantic-ai-batch-span')


@dataclass(eq=False, frozen=True)
class Requester:
    """An instrumented request: what the spans of its batch are made with, and linked to."""

    tracer: Tracer
    span: Span
    include_content: bool
    """Whether spans may show what an error says, which may quote a prompt."""

    linked: set[str] = field(default_factory=set[str])
    """The batches that its span is linked to."""


@contextmanager
def requesting(ctx: RunContext[Any]) -> Generator[None]:
    """Note the request that a run makes, and whose span is the current one, if the run is instrumented.

    It is noted in OpenTelemetry's context, so that it is found wherever the framework takes the request's span.
    """
    span = get_current_span()
    requester = None
    if span.is_recording() and not isinstance(ctx.tracer, NoOpTracer):
        requester = Requester(ctx.tracer, span, ctx.trace_include_content)
    outer = otel.get_current()
    if requester is None and _REQUESTER not in outer:
        yield
        return
    with _attached(otel.set_value(_REQUESTER, requester)):
        yield


def requester() -> Requester | None:
    """The instrumented request that is being made here, or `None`."""
    found = otel.get_value(_REQUESTER)
    return found if isinstance(found, Requester) and found.span.is_recording() else None


def link(batch: Batch, trace_context: TraceContext | None) -> None:
    """Tie the request that is being made here to the batch it waits for."""
    request = requester()
    if request is None or batch.id in request.linked:
        return
    request.linked.add(batch.id)
    request.span.set_attribute(BATCH_ID, batch.id)
    if (submission := _span_context(trace_context)) is not None:
        request.span.add_link(submission)


@dataclass(frozen=True)
class BatchSpan:
    """The span of a submission or a check. It takes no notice of anything where no request is instrumented."""

    span: Span = INVALID_SPAN
    include_content: bool = True

    def answered(self, batch: Batch) -> None:
        """Record the batch as the provider describes it."""
        self.span.set_attributes({BATCH_ID: batch.id, BATCH_STATUS: batch.status})

    def failed(self, error: Exception) -> None:
        """Record an error, also one that is put up with."""
        if not self.span.is_recording():
            return
        name = type(error).__qualname__
        if self.include_content:
            self.span.record_exception(error)
            self.span.set_status(StatusCode.ERROR, f'{name}: {error}')
        else:
            self.span.add_event('exception', {'exception.type': f'{type(error).__module__}.{name}'})
            self.span.set_status(StatusCode.ERROR)

    @property
    def trace_context(self) -> TraceContext | None:
        """What lets checks join this span's trace, or `None` where there is no span."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, set_span_in_context(self.span, otel.Context()))
        return carrier or None


def current() -> BatchSpan:
    """The span of the submission or check that is under way in this task of the pool."""
    found = otel.get_value(_BATCH_SPAN)
    return found if isinstance(found, BatchSpan) else BatchSpan()


@contextmanager
def submission(model: Model, requesters: Iterable[Requester | None]) -> Generator[BatchSpan]:
    """The span of one attempt at submitting a batch, which starts a trace, if a request in the batch is instrumented.

    Args:
        model: The model that the batch is submitted with.
        requesters: One for each request in the batch.
    """
    requests = list(requesters)
    attributes: dict[str, AttributeValue] = {REQUEST_COUNT: len(requests)}
    instrumented = [request for request in requests if request is not None]
    with _batch_span(f'batch {model.model_name}', model, instrumented, attributes, None) as span:
        yield span


class BatchTrace:
    """The trace of a batch, as known to the instrumented requests that wait for it together.

    One check serves them all. Its span is linked to the one that has waited longest: from a check in another process,
    whose requests the submission's span does not know, that leads to a run. Each is linked to the submission itself.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Requester, TraceContext | None]] = deque()

    def join(self, trace_context: TraceContext | None) -> None:
        """Count in the request that is being made here, with what its ticket says of the trace."""
        if (request := requester()) is not None:
            self._waiting.append((request, trace_context))

    @contextmanager
    def check(self, model: Model, batch: Batch) -> Generator[None]:
        """The span of one check, under that of the submission, if a request that waits is instrumented."""
        request, parent = self._first()
        requests = [] if request is None else [request]
        with _batch_span(f'batch check {model.model_name}', model, requests, {BATCH_ID: batch.id}, parent):
            yield

    @contextmanager
    def inside(self) -> Generator[None]:
        """Put what is done for the batch beside its checks under the submission's span, as a check would be."""
        _, parent = self._first()
        with under(parent):
            yield

    def _first(self) -> tuple[Requester | None, TraceContext | None]:
        # The span of a request that waits no more has ended.
        while self._waiting and not self._waiting[0][0].span.is_recording():
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else (None, None)


@contextmanager
def under(trace_context: TraceContext | None) -> Generator[None]:
    """Put what the provider's client reports meanwhile under the submission's span, if there is one."""
    parent = _span_context(trace_context)
    if parent is None:
        yield
        return
    with _attached(set_span_in_context(NonRecordingSpan(parent))):
        yield


@contextmanager
def _batch_span(
    name: str,
    model: Model,
    requests: list[Requester],
    attributes: Mapping[str, AttributeValue],
    parent: TraceContext | None,
) -> Generator[BatchSpan]:
    if not requests:
        yield BatchSpan()
        return
    # Of its own, whatever the context of the task is.
    context = otel.get_current()
    if (submitted := _span_context(parent)) is not None:
        context = set_span_in_context(NonRecordingSpan(submitted), context)
    span = requests[0].tracer.start_span(
        name,
        context,
        kind=SpanKind.CLIENT,
        attributes={**_model_attributes(model), **attributes},
        links=[Link(request.span.get_span_context()) for request in requests],
    )
    batch_span = BatchSpan(span, all(request.include_content for request in requests))
    try:
        with _attached(set_span_in_context(span, otel.set_value(_BATCH_SPAN, batch_span, otel.Context()))):
            yield batch_span
    except Exception as error:
        batch_span.failed(error)
        raise
    finally:
        span.end()


@contextmanager
def _attached(context: otel.Context) -> Generator[None]:
    outer = otel.get_current()
    otel.attach(context)
    try:
        yield
    finally:
        # Not detached, which logs an error when a coroutine is closed in another context than it ran in.
        otel.attach(outer)


def _span_context(trace_context: TraceContext | None) -> SpanContext | None:
    if not trace_context:
        return None
    context = get_current_span(_W3C.extract(trace_context, otel.Context())).get_span_context()
    return context if context.is_valid else None


def _model_attributes(model: Model) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        'gen_ai.provider.name': model.system,
        'gen_ai.system': model.system,
        'gen_ai.request.model': model.model_name,
    }
    try:
        url = urlsplit(model.base_url or '')
        host, port = url.hostname, url.port
    except ValueError:
        return attributes
    # Not the rest of the URL, which may hold a password.
    if host:
        attributes['server.address'] = host
    if port:
        attributes['server.port'] = port
    return attributes
