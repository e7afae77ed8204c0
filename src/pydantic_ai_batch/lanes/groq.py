"""The lane of Groq's batch API, in OpenAI's shape, through Groq's own SDK.

The facts are from Groq's documentation and SDK, and from recorded traffic; see `INFO.sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from .base import LaneInfo, listed_batches
from .errors import json_object
from .lines import list_of_objects, object_in
from .openai_client import CHAT_COMPLETIONS
from .openai_shape import STATUSES, OpenAIShapedLane

INFO = LaneInfo(
    name='groq',
    title='Groq Batch API',
    models='`GroqModel`',
    endpoints=(CHAT_COMPLETIONS,),
    transport='file',
    max_requests=50_000,
    max_bytes=100_000_000,
    models_per_batch=1,
    statuses=STATUSES,
    windows=(timedelta(hours=24), timedelta(days=7)),
    window_step=timedelta(hours=1),
    expires=True,
    results_kept=timedelta(days=30),
    discount=0.5,
    tag_field='metadata',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='files',
    allowlist=True,
    plan='the Developer plan',
    key_variables=('GROQ_API_KEY',),
    verified=('spec',),
    sources={
        'endpoints': 'spec: types of the Groq SDK 1.7',
        'transport': 'spec: types of the Groq SDK 1.7',
        'max_requests': 'documentation: Groq batch guide',
        'max_bytes': 'spec: the Groq SDK 1.7 says 100 MB, the guide 200 MB; the lower is taken',
        'models_per_batch': 'documentation: Groq batch guide allows several; a batch here has those of one model',
        'statuses': 'spec: types of the Groq SDK 1.7',
        'window_step': 'documentation: Groq batch guide',
        'windows': 'documentation: Groq batch guide, from 24 hours to 7 days',
        'expires': 'documentation: Groq batch guide',
        'results_kept': 'documentation: Groq batch guide',
        'discount': 'documentation: Groq batch guide',
        'tag_field': 'spec: types of the Groq SDK 1.7',
        'findable': "documentation: the listing shows a batch's metadata",
        'listing_proves_absence': 'documentation: the listing returns every batch, a page at a time',
        'ordered': 'documentation: Groq batch guide',
        'cancellable': 'spec: types of the Groq SDK 1.7',
        'repeatable': 'spec: types of the Groq SDK 1.7',
        'webhooks': 'guess: none was found',
        'results_while_running': 'documentation: Groq batch guide',
        'results_as': 'spec: types of the Groq SDK 1.7',
        'allowlist': 'documentation: Groq batch guide',
        'plan': 'code: other packages say so',
        'listable': 'documentation: Groq batch guide',
    },
)


@dataclass
class GroqLane(OpenAIShapedLane):
    """The lane of Groq's batch API."""

    info: ClassVar[LaneInfo] = INFO

    @property
    def sdk(self) -> Any:
        """The package of the client, with its exception classes."""
        import groq

        return groq

    async def _listed(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing, which Groq pages by a cursor that it gives with it."""
        query: Mapping[str, Any] = {} if after is None else {'cursor': after}
        page = json_object(self.model.model_name, await self._list_batches(query))
        cursor = object_in(page, 'paging').get('next_cursor')
        return listed_batches(page.get('data')), cursor if isinstance(cursor, str) and cursor else None

    async def _listed_files(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """All files: Groq documents no pages of them."""
        page = json_object(self.model.model_name, await self._list_files({}))
        return list_of_objects(page.get('data')), None
