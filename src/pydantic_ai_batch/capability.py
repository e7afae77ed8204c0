"""The capability that sends an agent's model requests through the provider's batch API."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler, WrapperCapability, WrapRunHandler
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from . import tracing
from .batched_model import BatchedModel, Unbatched, cannot_collect
from .clock import SYSTEM_CLOCK, Clock
from .compat import read_ticket
from .engines import refuse_in_workflow
from .exceptions import NoBatchLane
from .journal import JournalLike, journal_of
from .journal.run_answers import answers_of_run
from .pool import Pool
from .progress import Progress, listener_of
from .settings import (
    DEFAULT_MAX_POLL_INTERVAL,
    DEFAULT_MAX_REQUESTS,
    DEFAULT_MAX_RESUBMISSIONS,
    DEFAULT_MAX_WAIT,
    DEFAULT_POLL_INTERVAL,
    BatchSettings,
)
from .stats import BatchingStats
from .sync import running_loop

_DURATION = TypeAdapter(timedelta)


@dataclass
class BatchModelRequests(AbstractCapability[Any]):
    """Send an agent's model requests through the provider's batch API, at about half the price.

    Add it to an agent, and run the agent as before. Each request waits in a queue with the others that are made
    through this instance, is submitted with them in one batch, and its run goes on when the batch has ended, which can
    take minutes and up to a day:

        batching = BatchModelRequests(max_requests=5_000, max_wait=timedelta(minutes=1))
        agent = Agent('openai-responses:gpt-5-mini', capabilities=[batching])
        results = await asyncio.gather(*[agent.run(ticket) for ticket in tickets])

    A batch is submitted when it is full, when its oldest request has waited `max_wait`, or on `flush()`. Give one
    instance to several agents, and their requests share batches, as far as the provider lets them.

    To end a run instead of waiting, add [`PendingModelResponse`][pydantic_ai.output.PendingModelResponse] to the
    agent's `output_type`, store the run's messages, and run the agent with them later, in any process.

    Requests that expired, are missing from the results, or failed in a way that passes, such as an overloaded
    provider, are submitted again, `max_resubmissions` times. Other errors reach the run as a live request's would.

    Names, meanings and defaults of the settings are those of pydantic-ai's capability of the same name.

    Raises:
        UserError: A setting is out of range.
    """

    _: KW_ONLY

    max_requests: int = DEFAULT_MAX_REQUESTS
    """The most requests in a batch. The lane's own limit caps it."""

    max_bytes: int | None = None
    """The most bytes in a batch, as encoded, for a proxy that takes less than the provider. `None` is the lane's limit.
    """

    max_wait: timedelta | None = DEFAULT_MAX_WAIT
    """How long the oldest queued request waits for others, which later ones do not extend. `None` waits until the batch
    is full or `flush()` is called."""

    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS
    """How many times a request is submitted again, in another batch, after it failed in a way that passes."""

    poll_interval: timedelta = DEFAULT_POLL_INTERVAL
    """How long after its submission a batch is first checked. The interval grows by half with every check."""

    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL
    """The longest interval between checks."""

    window: timedelta | None = None
    """How long the provider has for a batch, of the windows that its lane takes. Longer ones expire less. `None` is the
    lane's own, which is 24 hours at most providers."""

    journal: JournalLike | None = None
    """A file, or a [`Journal`][pydantic_ai_batch.Journal], in which everything is recorded, so that the same program,
    started again, takes over what this one left, and pays for nothing twice."""

    progress: Progress = False
    """`True` shows, in the terminal, what is queued and how each batch comes along. A callable gets plain
    [`BatchEvent`][pydantic_ai_batch.events.BatchEvent]s instead."""

    clock: Clock = field(default=SYSTEM_CLOCK, repr=False, compare=False)
    """What time is read from and slept on. Tests pass one that they move by hand."""

    _pool: Pool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings = BatchSettings(
            max_requests=self.max_requests,
            max_bytes=self.max_bytes,
            max_wait=self.max_wait,
            max_resubmissions=self.max_resubmissions,
            poll_interval=self.poll_interval,
            max_poll_interval=self.max_poll_interval,
            window=self.window,
        )
        self._pool = Pool(
            settings,
            clock=self.clock,
            listener=listener_of(self.progress, self.clock),
            journal=journal_of(self.journal),
        )

    @classmethod
    def from_spec(
        cls,
        *,
        max_requests: int = DEFAULT_MAX_REQUESTS,
        max_bytes: int | None = None,
        max_wait: timedelta | float | str | None = DEFAULT_MAX_WAIT,
        max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS,
        poll_interval: timedelta | float | str = DEFAULT_POLL_INTERVAL,
        max_poll_interval: timedelta | float | str = DEFAULT_MAX_POLL_INTERVAL,
        window: timedelta | float | str | None = None,
        journal: str | None = None,
        progress: bool = False,
    ) -> BatchModelRequests:
        """Build from an agent spec, which gives durations as seconds or in ISO 8601, such as `PT5M`.

        Each agent that is built from a spec gets an instance of its own, and so batches of its own.
        """
        return cls(
            max_requests=max_requests,
            max_bytes=max_bytes,
            max_wait=None if max_wait is None else _DURATION.validate_python(max_wait),
            max_resubmissions=max_resubmissions,
            poll_interval=_DURATION.validate_python(poll_interval),
            max_poll_interval=_DURATION.validate_python(max_poll_interval),
            window=None if window is None else _DURATION.validate_python(window),
            journal=journal,
            progress=progress,
        )

    def get_wrapper_model(self, model: Model) -> Model | None:
        """Wrap the model that serves an attempt, unless it is batched already. Does no I/O.

        Raises:
            NoBatchLane: The model cannot be batched. The message says why.
        """
        return None if isinstance(model, BatchedModel | Unbatched) else BatchedModel(model, self._pool)

    async def for_run(self, ctx: RunContext[Any]) -> Self:
        """Serve the run, which takes the event loop of asyncio.

        Raises:
            UserError: None is running, as under Trio, where a run would fail later and say less.
        """
        running_loop('`BatchModelRequests`')
        return self

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Note the span of an instrumented request, for the spans of its batch.

        If the model cannot be batched at all, say whose batch a history waits for that it was to collect.
        """
        try:
            with tracing.requesting(ctx):
                return await handler(request_context)
        except NoBatchLane as refusal:
            last = request_context.messages[-1] if request_context.messages else None
            if (ticket := read_ticket(last)) is None:
                raise
            raise cannot_collect(ticket, request_context.model, 'has no batch API here') from refusal

    async def wrap_run(self, ctx: RunContext[Any], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Note what the run is answered, so that one that is cancelled and made again is not paid for twice."""
        with answers_of_run():
            return await handler()

    async def before_run(self, ctx: RunContext[Any]) -> None:
        """Refuse a run that has pydantic-ai's own capability of this name too: each request would be batched twice."""
        from pydantic_ai.capabilities import BatchModelRequests as BuiltIn

        capabilities = [_unwrapped(capability) for capability in ctx.capabilities.values()]
        if any(isinstance(capability, BatchModelRequests) and capability is not self for capability in capabilities):
            raise UserError('The run has two instances of `BatchModelRequests`: remove one, or share one instance.')
        if any(isinstance(capability, BuiltIn) for capability in capabilities):
            raise UserError(
                'The run has two `BatchModelRequests`, of `pydantic_ai` and of `pydantic_ai_batch`: remove one.'
            )

    def stats(self) -> BatchingStats:
        """A snapshot of what all runs that share this instance have come to so far. Makes no request.

        What it says of a batch in flight is as old as the last check of it.
        """
        return self._pool.stats()

    async def flush(self) -> None:
        """Submit every queued request of the running event loop now, and wait until that is done.

        Raises:
            UserError: It is called in workflow code of a durable engine, whose requests are sent in steps.
        """
        refuse_in_workflow('`flush()`')
        await self._pool.here().queues.flush()

    async def __aenter__(self) -> Self:
        self._pool.here().entered += 1
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """When the outermost block on this loop ends, fail what is queued and stop checking; batches go on."""
        here = self._pool.here()
        here.entered -= 1
        if here.entered == 0:
            await here.close()


def _unwrapped(capability: AbstractCapability[Any]) -> AbstractCapability[Any]:
    """The capability inside any wrappers, such as one that prefixes tools, which stand for it among a run's."""
    while isinstance(capability, WrapperCapability):
        capability = capability.wrapped
    return capability
