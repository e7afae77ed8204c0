"""Gives a model the framework's public `batch_*` methods over one of our lanes.

With it, whatever batches by those methods, such as pydantic-ai's own `BatchModelRequests` or its
`model_request_batch`, batches on every lane. It keeps to the framework's contract: each call is sent once, and nothing
is looked up or sent again. What this package adds to that is in its own capability and calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.models.wrapper import WrapperModel

from .codec import NativeCodec
from .exceptions import CreateUnsettled, ResultIntegrityError, brief
from .lanes import Lane, lane_for
from .lanes.base import WIRE_ID_WIDTH, NotCreated, Payload, Stray, is_run
from .policy import create_outcome
from .pricing import priced
from .sync import run_apart

_READ_AGAIN = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Seconds after which the results of a batch are read again that may not be all there yet."""


def with_batch_api(model: Model | KnownModelName | str, *, lane: str | None = None) -> Model:
    """A model with the framework's `batch_*` methods, through its provider's batch API.

    Args:
        model: The model, or its name.
        lane: The lane that it is to be on, where the model alone does not say: `'openai-compatible'` takes any server
            that speaks OpenAI's language to have `/files` and `/batches`. `None` goes by the model.

    Raises:
        NoBatchLane: The model cannot be batched. The message says why.
        UserError: It is on another lane.
    """
    found = lane_for(model, lane=lane)
    return BatchApiModel(found.model, found)


class BatchApiModel(WrapperModel):
    """A model that batches through a lane. Make it with [`with_batch_api`][pydantic_ai_batch.with_batch_api]."""

    def __init__(self, wrapped: Model, lane: Lane) -> None:
        super().__init__(wrapped)
        self.lane = lane
        self._own = uuid4().hex

    @property
    def batch_max_requests(self) -> int | None:
        """The most requests in one batch."""
        return self.lane.max_requests

    @property
    def batch_max_bytes(self) -> int | None:
        """The most bytes of requests in one batch, as `batch_request_size` counts them."""
        return self.lane.max_bytes

    def batch_request_size(self, request: EncodedBatchRequest) -> int:
        """The bytes that a request adds to a batch."""
        body = request.body.encode('utf-8', 'surrogatepass')
        return self.lane.request_size(body) + max(0, len(request.custom_id) - WIRE_ID_WIDTH)

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live.

        Raises:
            UserError: It asks for what a batch cannot do.
        """
        return replace(await self.lane.encode(request), custom_id=request.custom_id)

    async def batch_create(self, requests: Sequence[EncodedBatchRequest]) -> Batch:
        """Submit encoded requests of one group as one batch. The call is made once.

        Raises:
            UserError: They are none, of several groups, too many or too large, or an ID is repeated or cannot be sent.
            CreateUnsettled: The reply was lost, so that a batch may exist. The message says where to look.
            ModelAPIError: The provider refused the batch, or could not be reached: there is none.
        """
        _check(self.lane, requests)
        lane = self.lane
        with Payload(lane, requests[0].group) as payload:
            for request in requests:
                payload.add(request.body.encode('utf-8', 'surrogatepass'), wire_id=request.custom_id)
            try:
                return await lane.create(payload)
            except NotCreated as error:
                raise error.__cause__ or ModelAPIError(lane.model.model_name, str(error)) from error
            except ModelAPIError as error:
                if create_outcome(error) != 'unknown':
                    raise
                raise CreateUnsettled(
                    lane.model.model_name,
                    f'The reply to the creation of a batch was lost ({brief(error)}), so one may exist: '
                    f'{lane.where_to_look(payload)}. It was sent once, and is not sent again.',
                ) from error

    async def batch_status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        return await self.lane.status(batch)

    async def batch_results(self, batch: Batch) -> list[BatchResult]:
        """The results of a batch that has ended.

        Raises:
            UserError: It has not.
            ModelAPIError: It failed as a whole, or its results cannot be read.
        """
        if batch.status != 'ended':
            raise UserError(f'Batch {batch.id!r} has not ended, so its results cannot be read yet.')
        results = await self._read(batch)
        for delay in _READ_AGAIN:
            if not self._lacks_results(batch, results):
                break
            # The end of a batch can be seen before its results are all there, or before their files are named.
            await asyncio.sleep(delay)
            with suppress(ModelAPIError):
                batch = await self.lane.status(batch)
            results |= await self._read(batch)
        unlisted = self.lane.unlisted(batch, '')
        if not results and isinstance(unlisted, BatchResult) and unlisted.status == 'errored':
            request = BatchRequest(custom_id='', messages=[])
            # The error that each of its requests would get.
            await self.lane.decode(unlisted, request)
        return list(results.values())

    def _lacks_results(self, batch: Batch, results: dict[str, BatchResult]) -> bool:
        return self.lane.lacks_results(batch, len(results), sum(map(is_run, results.values())))

    async def _read(self, batch: Batch) -> dict[str, BatchResult]:
        """The results by their IDs. What is left out is sent again by whoever asks, so that nothing paid for may be.

        Raises:
            ResultIntegrityError: Results that are missing came without saying whose they are.
        """
        results: dict[str, BatchResult] = {}
        damaged: dict[str, str] = {}
        keyless = 0
        async for result in self.lane.results(batch):
            if isinstance(result, Stray):
                keyless += result.keyless
                if result.custom_id is not None:
                    damaged.setdefault(result.custom_id, result.line)
            elif (known := results.get(result.custom_id)) is None or (
                result.status == 'succeeded' and known.status != 'succeeded'
            ):
                results[result.custom_id] = result
        for custom_id, line in damaged.items():
            # The answer was paid for and cannot be read, which decoding it will say.
            results.setdefault(custom_id, BatchResult(custom_id=custom_id, status='succeeded', body=line))
        if keyless and len(results) < batch.request_count:
            raise ResultIntegrityError(
                batch.model_name,
                f'Batch {batch.id!r} returned results that do not say whose they are: none of its requests is sent '
                'again, as those were paid for.',
            )
        return results

    def _batch_credential(self) -> str:
        """What the framework keeps apart what it knows of batches by: as it does itself, where it encodes the model."""
        native = isinstance(self.lane.codec, NativeCodec)
        return self.wrapped._batch_credential() if native else self._own

    async def batch_cancel(self, batch: Batch) -> Batch:
        """Ask the provider to stop a batch.

        Raises:
            UserError: The provider cannot.
        """
        if not self.lane.info.cancellable:
            raise UserError(f'{self.lane.info.title} cannot cancel a batch.')
        return await self.lane.cancel(batch)

    def batch_decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """The response the model would make of a result live.

        Raises:
            ModelAPIError: The error that the request would have raised live.
        """
        if isinstance(codec := self.lane.codec, NativeCodec):
            return priced(codec.read(self.wrapped, result, request), self.lane.info)
        # An answer is played back to the model, which is asynchronous, and whoever asks may be inside an event loop.
        return priced(run_apart(self.lane.decode(result, request)), self.lane.info)

    def _batch_unlisted_status(self, batch: Batch) -> Any:
        """What the end of a batch means for a request that its results do not list; the framework looks it up."""
        unlisted = self.lane.unlisted(batch, '')
        return unlisted.status if isinstance(unlisted, BatchResult) and unlisted.status != 'errored' else None


def _check(lane: Lane, requests: Sequence[EncodedBatchRequest]) -> None:
    """Refuse what cannot be one batch.

    Raises:
        UserError: It cannot. Nothing was sent.
    """
    if not requests:
        raise UserError('A batch needs at least one request.')
    if len({request.group for request in requests}) > 1:
        raise UserError('The requests of a batch must share a `group`: make a batch for each.')
    if len(requests) > lane.max_requests:
        raise UserError(
            f'A batch of {lane.info.title} has at most {lane.max_requests:,} requests, and not {len(requests):,}.'
        )
    ids = [request.custom_id for request in requests]
    if len(set(ids)) != len(ids):
        raise UserError('Each request of a batch needs a `custom_id` of its own.')
    if odd := next((custom_id for custom_id in ids if not lane.wire_ids.fullmatch(custom_id)), None):
        raise UserError(f'A `custom_id` in a batch of {lane.info.title} has {lane.wire_ids_are}, and not {odd!r}.')
    size = sum(lane.request_size(request.body.encode('utf-8', 'surrogatepass')) for request in requests)
    if size > lane.max_bytes:
        raise UserError(f'A batch of {lane.info.title} has at most {lane.max_bytes:,} bytes, and not {size:,}.')
