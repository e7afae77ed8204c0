"""The fake Groq: OpenAI's shape with Groq's manners."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from pydantic_ai_batch.exceptions import sdk_missing
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch
from pydantic_ai_batch.testing.openai_bodies import CHAT
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.wire import json_reply

if TYPE_CHECKING:
    from groq import AsyncGroq

_PAGE = 20


class FakeGroq(FakeOpenAI):
    """Groq's Files and Batch APIs, and its Chat Completions endpoint.

    Its manners: listings are paged by a cursor, the errors of a batch are a bare list, windows go from 24 hours to
    seven days, and only chat is batched.
    """

    name = 'groq'
    prefix = '/groq/openai/v1'
    endpoints = (CHAT,)
    completion_window = '(2[4-9]|[3-9][0-9]|1[0-6][0-9])h|[1-7]d'

    def client(self, **settings: Any) -> AsyncGroq:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An SDK client on this fake, with the API key `'test'`. Close it when done (`async with`).

        Args:
            settings: Further settings of `AsyncGroq`, such as `api_key` or `max_retries`.

        Raises:
            RuntimeError: The fakes are not started.
            LaneDependencyMissing: The SDK is not installed. The message names the extra that installs it.
        """
        try:
            from groq import AsyncGroq, DefaultAsyncHttpxClient
        except ImportError as error:
            raise sdk_missing('groq') from error

        from pydantic_ai_batch.testing.loopback import client_options

        if 'http_client' not in settings:
            settings['http_client'] = DefaultAsyncHttpxClient(**client_options())
        arguments: dict[str, Any] = {'api_key': 'test', 'base_url': self._sdk_url, **settings}
        return AsyncGroq(**arguments)

    @property
    def _sdk_url(self) -> str:
        return self.base_url.removesuffix('/openai/v1')

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Groq's SDK at this fake, where the program gives it no other settings."""
        return {'GROQ_BASE_URL': self._sdk_url, 'GROQ_API_KEY': 'test'}

    def new_id(self) -> str:
        """The ID of a batch."""
        return f'batch_01{uuid.uuid4().hex[:24]}'

    def describe(self, batch: FakeOpenAIBatch) -> dict[str, Any]:
        """The provider's Batch object, as of now."""
        described = batch.to_json()
        for name in ('model', 'usage'):
            del described[name]
        errors = described['errors']['data'] if described['errors'] else None
        return described | {'project_id': 'project_01', 'errors': errors}

    def _listed(self, call: Incoming, batches: Sequence[FakeOpenAIBatch]) -> Response:
        cursor = call.query.get('cursor', '')
        start = int(cursor) if cursor.isdecimal() else 0
        more = start + _PAGE < len(batches)
        return json_reply(
            {
                'object': 'list',
                'data': [self.describe(batch) for batch in batches[start : start + _PAGE]],
                'paging': {'next_cursor': str(start + _PAGE) if more else None},
            }
        )
