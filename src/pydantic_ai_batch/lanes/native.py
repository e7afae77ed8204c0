"""Any other model with the framework's public `batch_*` methods, such as `TestModel`, `FunctionModel` and users' own.

What such a model does behind those methods is its own affair, so nothing is known of its provider: a batch cannot be
looked for, and a lost reply cannot be settled.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.exceptions import RequestNotSendable
from pydantic_ai_batch.per_model import PerModel
from pydantic_ai_batch.wording import counted

from .base import WIRE_ID_WIDTH, Lane, LaneInfo, ListingIncomplete, Payload, Sought, Stray
from .errors import connection_error

INFO = LaneInfo(
    name='native',
    title="the model's own batch methods",
    models='every other model with `batch_*` methods, such as `TestModel` and `FunctionModel`',
    endpoints=(),
    transport="the model's own",
    max_requests=None,
    max_bytes=None,
    models_per_batch=None,
    statuses={'in_progress': 'in_progress', 'canceling': 'canceling', 'ended': 'ended'},
    windows=(),
    expires=False,
    results_kept=None,
    discount=None,
    tag_field=None,
    findable=False,
    listing_proves_absence=False,
    ordered=False,
    cancellable=True,
    listable=False,
    sources={
        'listable': "the framework's `Model` has no listing",
        'endpoints': "the framework's `Model.batch_create` takes none",
        'transport': "the framework's `Model.batch_create`",
        'statuses': "the framework's `BatchStatus`",
        'windows': "the framework's `Model` tells none",
        'expires': "the framework's `Model` tells nothing",
        'findable': "the framework's `Model` has no listing",
        'listing_proves_absence': "the framework's `Model` has no listing",
        'ordered': "the framework's `Model.batch_results` promises none",
        'cancellable': "the framework's `Model.batch_cancel`",
    },
)

_groups: PerModel[str] = PerModel()


@dataclass
class NativeLane(Lane):
    """The lane of a model that brings its own batch API."""

    info: ClassVar[LaneInfo] = INFO

    @property
    def window(self) -> timedelta | None:
        """Not known, so that a batch is waited for until it ends."""
        return None

    async def identity(self) -> str:
        """The group of this model's requests, asked for once, as encoding may leave something behind in a model."""
        return _groups.get(self.model) or _groups.keep(self.model, await super().identity())

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result. The error that a model makes of a failed request, of whatever class, is raised as it is."""
        if result.status == 'errored':
            return self.model.batch_decode(result, request)
        return await super().decode(result, request)

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of a payload, which is taken apart again for the model."""
        return json.dumps([custom_id, body.decode('utf-8', 'surrogatepass')]).encode()

    def request_size(self, body: bytes) -> int:
        """The bytes that a request adds to a batch, as the model counts them."""
        encoded = EncodedBatchRequest(
            custom_id='x' * WIRE_ID_WIDTH, group='', body=body.decode('utf-8', 'surrogatepass')
        )
        try:
            return self.model.batch_request_size(encoded)
        except Exception as error:
            # As the framework's own method does for a lone surrogate.
            raise RequestNotSendable(self.model.model_name, f'The request has no size: {error}') from error

    async def create(self, payload: Payload) -> Batch:
        """Create a batch through the model."""
        requests = [
            EncodedBatchRequest(custom_id=custom_id, group=payload.group, body=body)
            for custom_id, body in map(json.loads, payload.open())
        ]
        with self._errors():
            return self._read(await self.model.batch_create(requests))

    async def status(self, batch: Batch) -> Batch:
        """The batch as the model describes it now."""
        with self._errors():
            return self._read(await self.model.batch_status(batch))

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """The results that the model returns, one by one."""
        with self._errors():
            results = await self.model.batch_results(batch)
        for result in results:
            yield result

    def readable(self, batch: Batch) -> int:
        """Not known: what is in a handle's details is the model's own affair."""
        return 0

    def lacks_results(self, batch: Batch, results: int, run: int) -> bool:
        """Never: by the framework's contract, a model returns all results that there are at once."""
        return False

    async def cancel(self, batch: Batch) -> Batch:
        """Ask the model to cancel the batch."""
        with self._errors():
            return self._read(await self.model.batch_cancel(batch))

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Take an error that is none of the framework's for one of the transport: nobody knows what was done."""
        try:
            yield
        except (ModelAPIError, UserError, NotImplementedError):
            raise
        except Exception as error:
            raise connection_error(self.model.model_name, error) from error

    def _read(self, batch: Batch) -> Batch:
        """The handle as a history can hold it: a status that is none of the framework's counts as running."""
        if batch.status not in self.info.statuses:
            self.log_unknown_status(batch.id, batch.status)
            batch = replace(batch, status='in_progress')
        return replace(batch, created_at=compat.aware(batch.created_at))

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """There is no way to look for a batch.

        Raises:
            ListingIncomplete: Always.
        """
        raise ListingIncomplete('The model has no listing of its batches.')

    def word(self, batch: Batch) -> str:
        """The framework's word, as the model has no other."""
        return batch.status

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the batch of `payload` at the provider."""
        requests = counted(payload.count, 'request')
        return f'look at the provider for a batch of {requests} with IDs that begin with `{payload.tag}`'
