"""The lane of Azure OpenAI's batch API, in OpenAI's shape, for a deployment of a batch type.

The facts are from Microsoft's documentation; see `INFO.sources`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from .base import LaneInfo, NotReadYet, Payload, Sought
from .errors import json_object, sdk_headers
from .openai_client import CHAT_COMPLETIONS, RESPONSES
from .openai_shape import STATUSES, OpenAIShapedLane

_BEING_READ = frozenset({'pending', 'running', 'uploaded', 'notrunning'})
"""The states of an input file that no batch can be made of yet."""

INFO = LaneInfo(
    name='azure',
    title='Azure OpenAI batch API',
    models='`OpenAIChatModel` and `OpenAIResponsesModel` with `AzureProvider`',
    endpoints=(CHAT_COMPLETIONS, RESPONSES),
    transport='file',
    max_requests=100_000,
    max_bytes=200_000_000,
    models_per_batch=1,
    statuses=STATUSES,
    windows=(timedelta(hours=24),),
    expires=False,
    results_kept=None,
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
    refused='embeddings, fine-tuned models',
    plan='a deployment of a batch type',
    key_variables=('AZURE_OPENAI_API_KEY',),
    sources={
        'endpoints': 'documentation: Azure OpenAI batch guide',
        'transport': 'documentation: Azure OpenAI batch guide',
        'max_requests': 'documentation: Azure OpenAI batch limits',
        'max_bytes': 'documentation: Azure OpenAI batch limits, 200 MB, read as 10^6',
        'models_per_batch': 'documentation: Azure OpenAI batch guide, one deployment',
        'statuses': 'documentation: Azure OpenAI batch guide, in capitals at times',
        'windows': 'documentation: Azure OpenAI batch guide',
        'expires': 'documentation: a late batch runs until it is done or cancelled',
        'discount': 'documentation: Azure OpenAI batch guide',
        'tag_field': 'documentation: Azure OpenAI batch API reference',
        'findable': "documentation: the listing shows a batch's metadata",
        'listing_proves_absence': 'documentation: the listing returns every batch with its metadata',
        'ordered': 'guess: nothing is promised',
        'cancellable': 'documentation: Azure OpenAI batch guide',
        'repeatable': 'documentation: Azure OpenAI batch API reference',
        'webhooks': 'guess: none was found',
        'results_while_running': 'documentation: Azure OpenAI batch guide',
        'results_as': 'documentation: Azure OpenAI batch guide',
        'allowlist': 'documentation: Azure OpenAI batch guide',
        'refused': 'documentation: Azure OpenAI batch guide',
        'plan': 'documentation: Azure OpenAI batch guide',
        'listable': 'documentation: Azure OpenAI batch API reference',
    },
)


@dataclass
class AzureLane(OpenAIShapedLane):
    """The lane of Azure OpenAI."""

    info: ClassVar[LaneInfo] = INFO
    responses_prefix: ClassVar[str | None] = 'azure-responses'

    @property
    def batch_endpoint(self) -> str:
        """The endpoint as the call that creates a batch names it, which for chat is not as the lines do."""
        return '/chat/completions' if self.endpoint == CHAT_COMPLETIONS else self.endpoint

    async def _upload(self, payload: Payload) -> str:
        """Upload the input file, which Azure reads before a batch can be made of it."""
        file_id = payload.receipt.get('unread') or await super()._upload(payload)
        payload.receipt['unread'] = file_id
        with self._errors('/files'):
            response = await self.client.files.with_raw_response.retrieve(file_id, extra_headers=sdk_headers())
        state = json_object(self.model.model_name, response.http_response.content).get('status')
        if isinstance(state, str) and state.lower() in _BEING_READ:
            raise NotReadYet(f'Azure is still reading the input file {file_id}, which is {state!r}.')
        return file_id

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no batch was made of."""
        unread = payload.receipt.pop('unread', None)
        payload.receipt.setdefault('input_file_id', unread)
        await super().discard(payload)
