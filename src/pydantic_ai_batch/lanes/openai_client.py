"""Lanes that are asked through OpenAI's SDK, or one of its family, whatever shape their batch API has."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from .credentials import ClientLane
from .errors import error_object, sdk_errors, shown_url

if TYPE_CHECKING:
    from openai import AsyncOpenAI

RESPONSES = '/v1/responses'
CHAT_COMPLETIONS = '/v1/chat/completions'


@dataclass
class OpenAIClientLane(ClientLane):
    """A lane that is asked through an SDK of the family that OpenAI's is of."""

    made_per_call: ClassVar[Mapping[str, str]] = {
        '_api_key_provider': 'calls a function for its API key',
        'workload_identity': 'signs in with a workload identity',
        '_azure_ad_token_provider': 'calls a function for its Azure AD token',
        '_provider': 'leaves its credential to a `provider`',
    }

    endpoint: str = CHAT_COMPLETIONS
    """The endpoint that the model's requests are for."""

    responses_prefix: ClassVar[str | None] = None
    """The prefix of names of models of the Responses API, where the one of the framework is for chat models."""

    @property
    def model_reference(self) -> str:
        """The name by which a model of this class is found again."""
        if self.endpoint == RESPONSES and self.responses_prefix is not None:
            return f'{self.responses_prefix}:{self.model.model_name}'
        return super().model_reference

    @property
    def client(self) -> AsyncOpenAI:
        """The user's own client, without its retries: what a failure means is decided above."""
        client: AsyncOpenAI = cast('Any', self.model).client
        return client.with_options(max_retries=0)

    @property
    def sdk(self) -> Any:
        """The package of the client, with its exception classes."""
        import openai

        return openai

    def _errors(self, resource: str | None = None) -> AbstractContextManager[None]:
        """Raise the framework's errors for those of the SDK and the transport below it.

        Args:
            resource: What is asked for, where a server that only resembles the provider's may not have it.
        """

        def hint(status: int, body: Any) -> str | None:
            missing = status == 405 or (status == 404 and not error_object(body).get('message'))
            if resource is None or not missing:
                return None
            return f'The server at {shown_url(self.model.base_url)} may have no `{resource}`, which batches need.'

        return sdk_errors(self.sdk, self.model.model_name, hint=hint)
