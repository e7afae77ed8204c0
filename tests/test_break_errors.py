"""Attacks on errors: what one run does to its error is no other run's business, and no error tells a secret."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models.batch import Batch
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import lane_for
from pydantic_ai_batch.exceptions import batch_of, copy_of, with_batch

BATCH = Batch(
    id='b',
    model_name='m',
    provider_name='openai',
    group='{}',
    status='in_progress',
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
    request_count=1,
    provider_details=None,
)


def test_what_happens_to_one_copy_is_not_seen_on_the_other():
    error = ModelAPIError('m', 'wrong')
    error.add_note('from before')
    one, two = copy_of(error), copy_of(error)
    with pytest.raises(ModelAPIError):
        raise one
    one.add_note('of one run')
    with_batch(one, BATCH)
    assert two.__notes__ == ['from before']
    assert two.__traceback__ is None
    assert batch_of(two) is None


@pytest.mark.parametrize('status', [401, 404, 405, 500])
async def test_no_error_tells_the_key_or_a_password_in_the_base_url(status: int):
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, text='no')

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http_client:
        client: Any = AsyncOpenAI(
            api_key='sk-secret', base_url='http://user:hunter2@proxy.test/v1', http_client=http_client
        )
        lane = lane_for(OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client)))
        with pytest.raises(ModelHTTPError) as raised:
            await lane.status(BATCH)
    text = ''.join(traceback.format_exception(raised.value)) + repr(vars(raised.value))
    assert 'sk-secret' not in text
    assert 'hunter2' not in text
