"""The lane of DeepInfra's batch API, in OpenAI's shape.

The facts are from DeepInfra's documentation; see `INFO.sources`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from .base import LaneInfo
from .openai_client import CHAT_COMPLETIONS
from .openai_shape import STATUSES, OpenAIShapedLane

INFO = LaneInfo(
    name='deepinfra',
    title='DeepInfra batch API',
    models='`OpenAIChatModel` at DeepInfra',
    endpoints=(CHAT_COMPLETIONS,),
    transport='file',
    max_requests=50_000,
    max_bytes=200_000_000,
    models_per_batch=1,
    statuses=STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=None,
    discount=0.2,
    tag_field='metadata',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='files',
    refused='the Responses API',
    key_variables=('DEEPINFRA_API_KEY', 'DEEPINFRA_TOKEN'),
    sources={
        'endpoints': 'documentation: DeepInfra batch guide',
        'transport': 'documentation: DeepInfra batch guide',
        'max_requests': 'documentation: DeepInfra batch guide',
        'max_bytes': 'documentation: DeepInfra batch guide, 200 MB, read as 10^6',
        'models_per_batch': 'documentation: DeepInfra batch guide',
        'statuses': 'documentation: DeepInfra batch guide',
        'windows': 'documentation: DeepInfra batch guide',
        'expires': 'documentation: DeepInfra batch guide',
        'discount': 'documentation: DeepInfra batch guide',
        'tag_field': 'documentation: DeepInfra batch guide',
        'findable': "documentation: the listing shows a batch's metadata",
        'listing_proves_absence': 'documentation: the listing returns every batch with its metadata',
        'ordered': 'guess: nothing is promised',
        'cancellable': 'documentation: DeepInfra batch guide',
        'repeatable': 'documentation: DeepInfra batch guide',
        'webhooks': 'guess: none was found',
        'results_while_running': 'guess: as at OpenAI',
        'results_as': 'documentation: DeepInfra batch guide',
        'refused': 'documentation: DeepInfra batch guide',
        'listable': 'documentation: DeepInfra batch guide',
    },
)


@dataclass
class DeepInfraLane(OpenAIShapedLane):
    """The lane of DeepInfra."""

    info: ClassVar[LaneInfo] = INFO
