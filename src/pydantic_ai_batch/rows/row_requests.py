"""The requests of the rows of an input, each made of its row when it is asked for, so that none stands in memory."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.batch import BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.settings import ModelSettings, merge_model_settings

from pydantic_ai_batch.chunks import Requests, prepared
from pydantic_ai_batch.journal.digests import depth_of
from pydantic_ai_batch.lanes.base import Lane, NotRun

from .base import InputRow, RowSource
from .encode_template import EncodeTemplates
from .identity import id_of
from .light_reader import LightReader
from .parameters import JobParameters, Parameters, resolve
from .prompting import Prompting
from .verifying import Verification


@dataclass
class RowRequests(Requests):
    """The requests of an input's rows."""

    source: RowSource
    id_column: str | None
    parameters: JobParameters
    _last: InputRow | None = field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.source)

    def row(self, place: int) -> InputRow:
        """A row, which is read once where it is asked for several times in a row."""
        last = self._last
        if last is None or last.place != place:
            last = self._last = self.source[place]
        return last

    def custom_id(self, place: int) -> str:
        """The ID of a row."""
        return id_of(self.row(place), self.id_column)

    def resolved(self, row: InputRow, row_id: str) -> Parameters:
        """What a row's request is made with.

        Raises:
            ParameterConflict: Two places differ.
            UserError: A value is none that its parameter takes.
        """
        return resolve(row.fields, row_id, self.parameters)

    def endpoint(self, row: InputRow) -> str | None:
        """The path of the API that a row names; `None` for that of its model."""
        return None

    def model(self, row: InputRow, name: str | None) -> str | None:
        """The name of the model that a row is for, where `name` is what its parameters say."""
        return name

    def limit(self, lane: Lane, place: int) -> int | None:
        """The most tokens of the answer to a row; `None` if nothing limits it."""
        row = self.row(place)
        own = self.resolved(row, id_of(row, self.id_column)).settings
        merged = merge_model_settings(lane.model.settings, cast('ModelSettings | None', own)) or {}
        limit = merged.get('max_tokens')
        return limit if isinstance(limit, int) else None

    @abstractmethod
    def check(self, row: InputRow) -> None:
        """Refuse a row that no request can be made of.

        Raises:
            UserError: None can, in words that follow the line of a row.
        """

    async def begin(self, lane: Lane, place: int) -> None:
        """Find out what holds for all rows of a lane, by one of them.

        Raises:
            UserError: They cannot be sent as they are.
        """

    @abstractmethod
    async def request(self, lane: Lane, place: int) -> BatchRequest:
        """A row's request as the lane takes it.

        Raises:
            UserError: It cannot be made.
        """

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """A request as the lane sends it, and how many answers its messages hold."""
        request = await self.request(lane, place)
        return await lane.encode(prepared(lane.model, request)), depth_of(request.messages)

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """The response to a request, or whatever error it failed with."""
        return await lane.outcome(result, await self.request(lane, place))


@dataclass
class PromptRequests(RowRequests):
    """A prompt for each row, and nothing else."""

    prompting: Prompting
    verification: Verification | None = None
    """The sample of rows whose answers bring a token back, if there is one."""

    _templates: EncodeTemplates = field(default_factory=EncodeTemplates)
    _reader: LightReader = field(default_factory=LightReader)

    def check(self, row: InputRow) -> None:
        """Refuse a row without a prompt."""
        self.prompting.messages(row)

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """A request as the lane sends it, which differs from those of other rows in its prompt alone."""
        row = self.row(place)
        prompt = self.prompting.prompt(row)
        if not isinstance(prompt, str):
            return await super().encode(lane, place)
        prompt = self._asking(place, prompt)
        row_id = id_of(row, self.id_column)
        settings = cast('ModelSettings | None', self.resolved(row, row_id).settings)

        def asking(prompt: str) -> BatchRequest:
            return BatchRequest(custom_id=row_id, messages=self.prompting.asking(prompt), model_settings=settings)

        return await self._templates.encode(lane, repr(settings), prompt, asking), 0

    async def request(self, lane: Lane, place: int) -> BatchRequest:
        """A row's request."""
        row = self.row(place)
        row_id = id_of(row, self.id_column)
        settings = self.resolved(row, row_id).settings
        prompt = self.prompting.prompt(row)
        text = isinstance(prompt, str)
        return BatchRequest(
            custom_id=row_id,
            messages=self.prompting.asking(self._asking(place, prompt)) if text else self.prompting.messages(row),
            model_settings=cast('ModelSettings | None', settings),
        )

    def _asking(self, place: int, prompt: str) -> str:
        return prompt if self.verification is None else self.verification.asking(place, prompt)

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """The response to a request, or whatever error it failed with."""
        if isinstance(result, NotRun):
            return await super().outcome(lane, place, result)
        row = self.row(place)
        row_id = id_of(row, self.id_column)
        settings = self.resolved(row, row_id).settings
        response = await self._reader.read(
            lane, result, repr(settings), lambda: super(PromptRequests, self).outcome(lane, place, result)
        )
        return response if self.verification is None else self.verification.read(place, row_id, response)


@dataclass
class FaultyRows(Requests):
    """Requests of which some cannot be sent, and have that for their error."""

    requests: RowRequests
    faults: dict[int, str]
    """What is wrong with each of those, by its place."""

    def __len__(self) -> int:
        return len(self.requests)

    def custom_id(self, place: int) -> str:
        """The ID of a row."""
        return self.requests.custom_id(place)

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """A request as the lane sends it.

        Raises:
            UserError: It is one of those that cannot be sent.
        """
        if (fault := self.faults.get(place)) is not None:
            raise UserError(fault)
        return await self.requests.encode(lane, place)

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """The response to a request, or whatever error it failed with."""
        return await self.requests.outcome(lane, place, result)
