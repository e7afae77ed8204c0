"""The fake Azure OpenAI: OpenAI's shape with Azure's manners."""

from __future__ import annotations

from datetime import UTC, datetime
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.loopback import client_options
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_batches import WORDS, FakeOpenAIBatch
from pydantic_ai_batch.testing.openai_bodies import CHAT, RESPONSES
from pydantic_ai_batch.testing.openai_files import FakeFile
from pydantic_ai_batch.testing.openai_input import Input
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.timetable import Phase

if TYPE_CHECKING:
    from openai import AsyncAzureOpenAI

_SHORT = {'/chat/completions': CHAT, '/responses': RESPONSES}


class FakeAzure(FakeOpenAI):
    """Azure OpenAI's Files and Batch APIs, and its Chat Completions and Responses endpoints.

    Its manners: the key is in a header of its own, words for states come in capitals and times as text, counts are null
    before a batch runs, no batch expires, an input file is read before a batch can be made of it, and each batch that
    ended has an error file, which may be empty.
    """

    name = 'azure'
    prefix = '/azure/openai'
    endpoints = (CHAT, RESPONSES)
    words = MappingProxyType({phase: word.capitalize() for phase, word in WORDS.items()})
    window = inf
    inapplicable = MappingProxyType({'expire': 'a late batch runs until it is done or cancelled'})
    reading = 0.0
    """How long it takes to read an input file, in seconds."""

    def client(self, **settings: Any) -> AsyncAzureOpenAI:
        """An SDK client on this fake, with the API key `'test'`. Close it when done (`async with`).

        Args:
            settings: Further settings of `AsyncAzureOpenAI`, such as `api_key` or `max_retries`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        from openai import AsyncAzureOpenAI, DefaultAsyncHttpxClient

        if 'http_client' not in settings:
            settings['http_client'] = DefaultAsyncHttpxClient(**client_options())
        arguments: dict[str, Any] = {
            'api_key': 'test',
            'azure_endpoint': self.base_url.removesuffix('/openai'),
            'api_version': '2026-01-01',
            **settings,
        }
        return AsyncAzureOpenAI(**arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point a program at this fake that gives Azure's SDK no other settings."""
        return {
            'AZURE_OPENAI_ENDPOINT': self.base_url.removesuffix('/openai'),
            'AZURE_OPENAI_API_KEY': 'test',
            'OPENAI_API_VERSION': '2026-01-01',
        }

    def live_path(self, endpoint: str) -> str:
        """Where an endpoint answers live: chat at its deployment."""
        path = endpoint.removeprefix('/v1')
        return f'/deployments/{{deployment}}{path}' if endpoint == CHAT else path

    def _project(self, call: Incoming) -> str:
        key = call.headers.get('api-key', '')
        if not key.strip():
            self._refuse(401, 'The request has no API key.', code='401')
        return self.projects.get(key, digest(key))

    def _ordered_endpoint(self, order: dict[str, Any]) -> Any:
        endpoint = super()._ordered_endpoint(order)
        return _SHORT.get(endpoint, endpoint)

    def read_input(self, content: bytes, endpoint: str) -> Input:
        """The rows of an input file, or what is wrong with it, in Azure's codes."""
        read = super().read_input(content, endpoint)
        codes = {'mismatched_model': 'model_mismatch', 'invalid_url': 'url_mismatch'}
        for error in read.errors:
            error['code'] = codes.get(error['code'], error['code'])
        return read

    def describe_file(self, file: FakeFile) -> dict[str, Any]:
        """The provider's File object, as of now."""
        read = self._now >= file.created_at + self.reading
        return file.to_json() | {'status': 'processed' if read else 'pending'}

    def _input_file(self, call: Incoming, order: dict[str, Any]) -> FakeFile:
        file = super()._input_file(call, order)
        if self._now < file.created_at + self.reading:
            self._refuse(400, f'The file {file.id!r} is not processed yet.', param='input_file_id')
        return file

    def describe(self, batch: FakeOpenAIBatch) -> dict[str, Any]:
        """The provider's Batch object, as of now."""
        described = batch.to_json()
        if Phase.RUNNING not in batch.entered:
            described['request_counts'] = dict.fromkeys(described['request_counts'])
        for name, value in described.items():
            if name.endswith('_at') and value is not None:
                described[name] = datetime.fromtimestamp(value, UTC).isoformat()
        return described

    def keeps_empty(self, kind: str) -> bool:
        """Whether a result file without a line is made."""
        return kind == 'error'
