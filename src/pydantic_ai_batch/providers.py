"""Provider classes for services with a batch API that the framework has none for.

Use them with [`OpenAIChatModel`][pydantic_ai.models.openai.OpenAIChatModel]. Their names stand in message histories as
the provider of each response.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar

from pydantic_ai.exceptions import UserError
from pydantic_ai.profiles import ModelProfile, merge_profile
from pydantic_ai.profiles.grok import grok_model_profile
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer, OpenAIModelProfile
from pydantic_ai.providers import Provider

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class OpenAILanguageProvider(Provider['AsyncOpenAI']):
    """A service that is asked in OpenAI's language."""

    service: ClassVar[str]
    """Its name."""

    address: ClassVar[str]
    """The base URL of its API."""

    variables: ClassVar[tuple[str, ...]]
    """The environment variables that its key may be in."""

    def __init__(self, *, api_key: str | None = None, openai_client: AsyncOpenAI | None = None) -> None:
        """Make a provider, with a key or with a client of your own.

        Args:
            api_key: The key; `None` takes it from the environment.
            openai_client: A client with a key and the base URL of the service.

        Raises:
            UserError: There is no key.
        """
        if openai_client is None:
            key = api_key or next((os.environ[name] for name in self.variables if os.environ.get(name)), None)
            if key is None:
                raise UserError(
                    f'Set the environment variable `{self.variables[0]}`, or pass `api_key` to `{type(self).__name__}`.'
                )
            from openai import AsyncOpenAI

            openai_client = AsyncOpenAI(api_key=key, base_url=self.address)
        self._client = openai_client

    @property
    def name(self) -> str:
        """The name of the service."""
        return self.service

    @property
    def base_url(self) -> str:
        """The base URL of the API."""
        return str(self.client.base_url)

    @property
    def client(self) -> AsyncOpenAI:
        """The client that calls are made with."""
        return self._client

    @staticmethod
    def model_profile(model_name: str) -> ModelProfile | None:
        """What is known of a model."""
        return OpenAIModelProfile(json_schema_transformer=OpenAIJsonSchemaTransformer)


class DeepInfraProvider(OpenAILanguageProvider):
    """DeepInfra."""

    service = 'deepinfra'
    address = 'https://api.deepinfra.com/v1/openai'
    variables = ('DEEPINFRA_API_KEY', 'DEEPINFRA_TOKEN')


class XAILanguageProvider(OpenAILanguageProvider):
    """xAI, asked in OpenAI's language; the framework's own `XaiProvider` asks it through its SDK, which is another."""

    service = 'xai'
    address = 'https://api.x.ai/v1'
    variables = ('XAI_API_KEY',)

    @staticmethod
    def model_profile(model_name: str) -> ModelProfile | None:
        """What is known of a model."""
        return merge_profile(
            OpenAIModelProfile(json_schema_transformer=OpenAIJsonSchemaTransformer), grok_model_profile(model_name)
        )
