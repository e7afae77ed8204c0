"""The lane of OpenAI's own Batch API, and of servers behind an `OpenAIProvider` that speak its language.

The facts are from OpenAI's published API description, its documentation and recorded traffic; see `INFO.sources`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, cast

from pydantic_ai.models import Model

from pydantic_ai_batch import compat
from pydantic_ai_batch.codec import NativeCodec
from pydantic_ai_batch.per_model import PerModel, innermost
from pydantic_ai_batch.replay import with_client

from .base import LaneInfo
from .openai_client import CHAT_COMPLETIONS, RESPONSES
from .openai_shape import STATUSES, OpenAIShapedLane

INFO = LaneInfo(
    name='openai',
    title='OpenAI Batch API',
    models='`OpenAIResponsesModel`, `OpenAIChatModel` with `OpenAIProvider`',
    endpoints=(RESPONSES, CHAT_COMPLETIONS),
    transport='file',
    max_requests=50_000,
    max_bytes=200_000_000,
    models_per_batch=1,
    statuses=STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=timedelta(days=30),
    discount=0.5,
    tag_field='metadata',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=True,
    results_while_running=False,
    results_as='files',
    allowlist=True,
    reports_tier=False,
    refused='`stream`, `background`',
    key_variables=('OPENAI_API_KEY',),
    verified=('recording', 'spec', 'independent server'),
    sources={
        'endpoints': 'spec: openai-openapi, August 2026',
        'transport': 'spec: openai-openapi, August 2026',
        'max_requests': 'documentation: OpenAI batch guide',
        'max_bytes': 'documentation: OpenAI batch guide, 200 MB, read as 10^6',
        'models_per_batch': 'documentation: OpenAI batch guide',
        'statuses': 'spec: openai-openapi, August 2026',
        'windows': 'spec: openai-openapi, August 2026',
        'expires': 'documentation: OpenAI batch guide',
        'results_kept': 'documentation: OpenAI batch guide, 30 days after completion',
        'discount': 'documentation: OpenAI batch guide',
        'tag_field': 'spec: openai-openapi, August 2026',
        'findable': "spec: the listing shows a batch's metadata",
        'listing_proves_absence': 'spec: the listing returns every batch with its metadata',
        'ordered': 'documentation: OpenAI batch guide',
        'cancellable': 'spec: openai-openapi, August 2026',
        'repeatable': 'code: the SDK sends no key for it',
        'webhooks': 'spec: openai-openapi, August 2026',
        'results_while_running': 'documentation: OpenAI batch guide',
        'results_as': 'spec: openai-openapi, August 2026',
        'allowlist': 'documentation: OpenAI batch guide',
        'reports_tier': 'recording: the tier of an answer is `default`',
        'refused': 'documentation: OpenAI batch guide; `background` is a guess',
        'listable': 'spec: openai-openapi, August 2026',
    },
)


_twins: PerModel[Model] = PerModel()


def responses_twin(model: Model) -> Model:
    """The model of the same name on the Responses API through the same provider and client.

    The framework batches that one, and so knows for it what it does not say for a chat model: whether the provider has
    a batch API, whether the credential may change from call to call, and a digest of it.
    """
    from pydantic_ai.models.openai import OpenAIResponsesModel

    inner = innermost(model)
    if (twin := _twins.get(inner)) is None:
        responses = OpenAIResponsesModel(inner.model_name, provider=cast('Any', inner.provider))
        # Its own client, where a model has another than its provider's: that is the one that the calls are made with.
        twin = _twins.keep(inner, with_client(responses, cast('Any', inner).client))
    return twin


async def chat_group(model: Model) -> str:
    """The group key of a chat model's requests: that of its twin, told apart by the endpoint, which a file is for."""
    group = compat.group_of(await NativeCodec().group(responses_twin(model)))
    return json.dumps({**group, 'url': CHAT_COMPLETIONS}, sort_keys=True)


@dataclass
class OpenAILane(OpenAIShapedLane):
    """The lane of OpenAI's own endpoint, and of servers that speak its language."""

    info: ClassVar[LaneInfo] = INFO

    @property
    def model_reference(self) -> str:
        """The name by which the framework finds a model of this class again."""
        kind = 'openai-chat' if self.endpoint == CHAT_COMPLETIONS else 'openai-responses'
        return f'{kind}:{self.model.model_name}' if self.model.system == 'openai' else self.model.model_id
