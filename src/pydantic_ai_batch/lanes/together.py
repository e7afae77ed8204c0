"""The lane of Together's batch API, in OpenAI's shape but for its upload, its listing and the reply to a create.

A batch carries no tag. It is found by its input file, whose name has the tag, and whose content is like no other's, as
the IDs of its lines are. The facts are from Together's published API description, SDK and documentation; see
`INFO.sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast

from pydantic_ai.models.batch import Batch

from .base import LaneInfo, Payload, Sought, file_name, listed_batches
from .errors import json_object, sdk_headers, unreadable
from .lines import list_of_objects, object_in, parse_json
from .openai_client import CHAT_COMPLETIONS
from .openai_shape import STATUSES, OpenAIShapedLane

INFO = LaneInfo(
    name='together',
    title='Together batch API',
    models='`OpenAIChatModel` with `TogetherProvider`',
    endpoints=(CHAT_COMPLETIONS,),
    transport='file',
    max_requests=50_000,
    max_bytes=100_000_000,
    models_per_batch=1,
    statuses=STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=None,
    discount=None,
    tag_field='input_file_id',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='files',
    allowlist=True,
    key_variables=('TOGETHER_API_KEY',),
    verified=('spec',),
    sources={
        'endpoints': 'spec: Together OpenAPI, April 2026',
        'transport': 'spec: Together OpenAPI, April 2026',
        'max_requests': 'documentation: Together batch guide',
        'max_bytes': 'documentation: Together batch guide, 100 MB, read as 10^6',
        'models_per_batch': 'documentation: Together batch guide allows several; a batch here has those of one model',
        'statuses': 'spec: Together OpenAPI, April 2026, in capitals',
        'windows': 'spec: Together OpenAPI, April 2026',
        'expires': 'documentation: Together batch guide',
        'tag_field': 'spec: a batch has no metadata, but its input file, whose name has the tag',
        'findable': 'spec: the listing shows the input file of each batch',
        'listing_proves_absence': 'spec: the listing returns every batch at once',
        'ordered': 'guess: nothing is promised',
        'cancellable': 'spec: Together OpenAPI, April 2026',
        'repeatable': 'documentation: only the upload of an equal file returns the first',
        'webhooks': 'guess: none was found',
        'results_while_running': 'guess: as at OpenAI',
        'results_as': 'spec: Together OpenAPI, April 2026',
        'allowlist': 'documentation: Together batch guide',
        'listable': 'spec: Together OpenAPI, April 2026',
    },
)


@dataclass
class TogetherLane(OpenAIShapedLane):
    """The lane of Together."""

    info: ClassVar[LaneInfo] = INFO

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file, which names neither method nor URL."""
        return b'{"custom_id":"%b","body":%b}' % (custom_id.encode(), body)

    async def _upload(self, payload: Payload) -> str:
        import httpx2

        name = f'{file_name(payload.tag)}.jsonl'
        with self._errors('/files'):
            response = await self.client.post(
                '/files/upload',
                cast_to=httpx2.Response,
                body={'purpose': 'batch-api', 'file_name': name, 'file_type': 'jsonl'},
                files={'file': (name, payload.open(), 'application/jsonl')},
                options={'headers': {**sdk_headers(), 'Content-Type': 'multipart/form-data'}},
            )
        file_id = json_object(self.model.model_name, response.content).get('id')
        if not isinstance(file_id, str) or not file_id:
            raise unreadable(self.model.model_name, 'a file without an ID')
        return file_id

    def _labels(self, payload: Payload) -> dict[str, Any]:
        return {}

    def _created(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        return object_in(reply, 'job') or reply

    async def _listed(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """All batches, as a bare list."""
        try:
            value = parse_json(await self._list_batches({}))
        except (ValueError, RecursionError):
            value = None
        wrapped = cast('Mapping[str, Any]', value).get('data') if isinstance(value, Mapping) else value
        return listed_batches(wrapped), None

    async def _listed_files(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """All files."""
        page = json_object(self.model.model_name, await self._list_files({}))
        return list_of_objects(page.get('data')), None

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for batches that were made of the payload's file, which is found by its name if need be."""
        if 'input_file_id' not in payload.receipt:
            await self.recall(payload, since=since)
        return await super().find(payload, since=since)

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the batch of `payload` at the provider."""
        return f'look for a batch whose input file is called {file_name(payload.tag)}.jsonl'
