"""What a run would come to before anything is sent: its batches, their size, what they cost, and what will bite."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch.chunks import Chunk, Row, fill
from pydantic_ai_batch.clock import SYSTEM_CLOCK
from pydantic_ai_batch.lanes.base import Lane, LaneInfo
from pydantic_ai_batch.pricing import about, estimate
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.sync import run_apart
from pydantic_ai_batch.wording import counted, listed

from .base import RowSource
from .formats import Format
from .job import ModelLike, RowJob
from .parameters import parameter_columns
from .preparing import Prepared
from .source import open_rows

_BYTES_PER_TOKEN = 4
"""How many bytes of a request stand for a token, which depends on the model and the language."""


@dataclass(frozen=True, kw_only=True)
class PlanChunk:
    """One batch, as it would be created."""

    lane: str
    """The name of its lane."""

    model: str
    """The name of its model."""

    ids: tuple[str, ...]
    """The IDs of its rows, in their order."""

    bytes: int
    """Its bytes as they are sent."""

    max_requests: int | None
    """The most requests that a batch of this kind may have here."""

    max_bytes: int | None
    """The most bytes that it may have."""

    @property
    def requests(self) -> int:
        """How many requests it has."""
        return len(self.ids)


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """What a run over rows would come to. Nothing was sent for it."""

    name: str
    """The name of the input."""

    chunks: tuple[PlanChunk, ...]
    """The batches."""

    refused: Mapping[str, str]
    """The IDs of rows that cannot be sent, and why not."""

    first_request: str | None
    """The first request as it is sent; `None` if there is none."""

    input_tokens: int
    """About how many tokens go in: a quarter of the requests' bytes."""

    output_tokens: int | None
    """The most tokens that may come out; `None` if `max_tokens` does not limit every row."""

    cost: Decimal | None
    """About what it costs in batches, in US dollars: of the input alone where `output_tokens` is not known. `None` if a
    price is not known."""

    live_cost: Decimal | None
    """About what live requests with the same tokens would cost."""

    flat: bool
    """Whether a price goes by the flat discount of a lane."""

    caveats: tuple[str, ...] = field(default=())
    """What is to be known of the lanes before it is sent."""

    @property
    def requests(self) -> int:
        """How many requests are sent."""
        return sum(chunk.requests for chunk in self.chunks)

    @property
    def bytes(self) -> int:
        """How many bytes they are together."""
        return sum(chunk.bytes for chunk in self.chunks)

    @property
    def cost_in_words(self) -> str:
        """The cost as people read it, with what it assumes."""
        if self.cost is None or self.live_cost is None:
            return 'unknown: there is no batch price of the model'
        up_to = 'input alone, as `max_tokens` is not set' if self.output_tokens is None else 'at most, by `max_tokens`'
        flat = "; the lane's flat discount on the live price" if self.flat else ''
        return f'{about(self.cost)} in batches, {about(self.live_cost)} live ({up_to}{flat})'


def plan_batch(
    model: ModelLike | None,
    rows: Any,
    *,
    prompt: str | None = None,
    instructions: str | None = None,
    output_type: Any = str,
    id_column: str | None = None,
    input_column: str | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    model_settings: ModelSettings | None = None,
    verify: int | None = None,
    format: Format | None = None,
    delimiter: str | None = None,
    max_requests: int | None = None,
    max_bytes: int | None = None,
    window: timedelta | None = None,
) -> BatchPlan:
    """What `run_rows` with the same arguments would send, and what that would cost. Sends nothing.

    Args:
        model: The model, its name, or an agent. `None` if each row has a `model`.
        rows: A file, mappings or texts.
        prompt: The template of the prompts.
        instructions: The instructions of every row.
        output_type: What an answer has to be.
        id_column: The column of the IDs.
        input_column: The column of the prompts, without a template.
        temperature: The temperature of the answers.
        max_tokens: The most tokens of an answer, which the cost of the output is estimated by.
        model_settings: Other settings.
        verify: How many rows have a token in their prompt that has to come back.
        format: The format of the file, if it is not that of its suffix.
        delimiter: The character between two fields of a CSV file.
        max_requests: The most requests in a batch. `None` is the lane's own limit, which caps any number.
        max_bytes: The most bytes in a batch, as encoded.
        window: How long the provider has for a batch.

    Raises:
        InputProblems: Something is wrong with rows; all of it is listed.
        UserError: Something else is wrong.
        NoBatchLane: A model cannot be batched.
    """
    settings = BatchSettings(max_requests=max_requests, max_bytes=max_bytes, window=window)
    job = RowJob(
        model=model,
        prompt=prompt,
        instructions=instructions,
        output_type=output_type,
        id_column=id_column,
        input_column=input_column,
        temperature=temperature,
        max_tokens=max_tokens,
        model_settings=model_settings,
        verify=verify,
    )
    with open_rows(rows, format=format, delimiter=delimiter) as source:
        return run_apart(planned(job, source, settings))


async def planned(job: RowJob, source: RowSource, settings: BatchSettings) -> BatchPlan:
    """The plan of a job over an input."""
    requests = job.requests(source, settings, None, SYSTEM_CLOCK)
    prepared = await job.prepare(source, requests, lambda lane: lane.ask(settings.window))
    chunks: list[PlanChunk] = []
    refused: dict[str, str] = {}
    first: str | None = None
    tokens_in, tokens_out, most = 0, 0, True
    cost: Decimal | None = Decimal()
    live: Decimal | None = Decimal()
    flat = False
    for target, lane in enumerate(prepared.targets.lanes):
        name = prepared.targets.names[target]
        target_in, target_out = 0, 0
        async for chunk in _chunks(prepared, lane, prepared.targets.places(target), settings, refused):
            places = [row.place for row in chunk.rows.values()]
            with chunk.payload as payload:
                if first is None:
                    first = payload.open().readline().decode('utf-8', 'replace').strip()
                size = payload.size
            chunks.append(_described(prepared, lane, name, places, size, settings))
            target_in += chunk.size // _BYTES_PER_TOKEN
            for place in places:
                limit = prepared.requests.requests.limit(lane, place)
                most, target_out = most and limit is not None, target_out + (limit or 0)
        tokens_in, tokens_out = tokens_in + target_in, tokens_out + target_out
        model = lane.model
        price = estimate(
            model.model_name, model.system, lane.info, target_in, target_out if most else 0, provider_url=model.base_url
        )
        flat = flat or price.basis == 'flat discount'
        cost = None if cost is None or price.batch is None else cost + price.batch
        live = None if live is None or price.live is None else live + price.live
    infos = {lane.info.name: lane.info for lane in prepared.targets.lanes}.values()
    return BatchPlan(
        name=source.name,
        chunks=tuple(chunks),
        refused=refused,
        first_request=first,
        input_tokens=tokens_in,
        output_tokens=tokens_out if most else None,
        cost=cost,
        live_cost=live if cost is not None else None,
        flat=flat,
        caveats=tuple(caveats_of(infos, chunks, settings.window, source.columns)),
    )


async def _chunks(
    prepared: Prepared, lane: Lane, places: Iterable[int], settings: BatchSettings, refused: dict[str, str]
) -> AsyncGenerator[Chunk]:
    def note(row: Row, error: ModelAPIError) -> None:
        refused[prepared.requests.custom_id(row.place)] = str(error)

    async with aclosing(fill(lane, settings, prepared.requests, map(Row, places), refused=note)) as chunks:
        async for chunk in chunks:
            yield chunk


def _described(
    prepared: Prepared, lane: Lane, name: str, places: list[int], size: int, settings: BatchSettings
) -> PlanChunk:
    return PlanChunk(
        lane=lane.info.name,
        model=name,
        ids=tuple(prepared.requests.custom_id(place) for place in places),
        bytes=size,
        max_requests=_least(lane.info.max_requests, settings.max_requests),
        max_bytes=_least(lane.info.max_bytes, settings.max_bytes),
    )


def _least(*limits: int | None) -> int | None:
    return min((limit for limit in limits if limit is not None), default=None)


def caveats_of(
    infos: Iterable[LaneInfo],
    chunks: Sequence[PlanChunk] = (),
    window: timedelta | None = None,
    columns: Collection[str] = (),
) -> Iterator[str]:
    """What is to be known of lanes, and of an input, before something is sent by them.

    Args:
        infos: The lanes.
        chunks: The batches that would be created.
        window: How long the provider is to have for a batch.
        columns: The columns of the input.
    """
    if names := parameter_columns(columns):
        yield (
            f'What {listed([f"`{name}`" for name in names])} of a row says, it is asked with: rename '
            f'{"the column, if it is" if len(names) == 1 else "those columns that are"} data.'
        )
    for info in infos:
        time = window or (info.windows[0] if info.windows else None)
        if time is None or not info.expires:
            yield f'{info.title} states no time by which a batch ends.'
        else:
            yield f'{info.title} has {_time(time)} for a batch. What is not run by then is sent again, twice at most.'
        if info.results_kept is not None:
            yield f'Results are kept for {_time(info.results_kept)} at {info.title}: collect them before.'
        if not info.cancellable:
            yield f'{info.title} cannot cancel a batch: what is sent is paid for.'
        if info.plan:
            yield f'{info.title} needs {info.plan}.'
        if info.allowlist:
            yield f'{info.title} takes the models alone that it lists for batches.'
        few = [chunk for chunk in chunks if chunk.lane == info.name and chunk.requests < (info.min_requests or 0)]
        if few:
            yield (
                f'{info.title} refuses batches of fewer than {counted(info.min_requests or 0, "request")}, and '
                f'{counted(len(few), "batch") if len(few) == 1 else f"{len(few)} batches"} would be one.'
            )
        if info.transport != 'inline':
            yield f'Prompts and answers stand in files at {info.title}, which zero-data-retention agreements leave out.'


def _time(span: timedelta) -> str:
    hours = span.total_seconds() / 3600
    return f'{hours / 24:g} days' if hours > 48 else f'{hours:g} hours'
