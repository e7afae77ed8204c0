"""A credential that is made for each call is refused on every lane of OpenAI's SDK, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncAzureOpenAI, AsyncOpenAI
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.together import TogetherProvider

from pydantic_ai_batch import lane_for, model_request_batch
from pydantic_ai_batch.providers import DeepInfraProvider, XAILanguageProvider

from .harness import requests_of

NOWHERE = 'http://127.0.0.1:9'


async def key() -> str:
    return 'a key of this moment'


def client() -> Any:
    return AsyncOpenAI(api_key=key, base_url=f'{NOWHERE}/v1')


def azure(**credential: Any) -> Any:
    return AsyncAzureOpenAI(azure_endpoint=NOWHERE, api_version='2026-01-01', **credential)


ON = OpenAIModelProfile(openai_supports_batch_api=True)
MODELS: dict[str, Callable[[], Model]] = {
    'openai': lambda: OpenAIChatModel('m', provider=OpenAIProvider(openai_client=client())),
    'openai-compatible': lambda: OpenAIChatModel('m', provider=DeepSeekProvider(openai_client=client()), profile=ON),
    'together': lambda: OpenAIChatModel('m', provider=TogetherProvider(openai_client=client())),
    'deepinfra': lambda: OpenAIChatModel('m', provider=DeepInfraProvider(openai_client=client())),
    'xai': lambda: OpenAIChatModel('m', provider=XAILanguageProvider(openai_client=client())),
    'azure': lambda: OpenAIChatModel('m', provider=AzureProvider(openai_client=azure(azure_ad_token_provider=key))),
}


@pytest.mark.parametrize('lane', MODELS)
async def test_a_key_that_a_function_gives_is_refused(lane: str):
    model = MODELS[lane]()
    assert lane_for(model).info.name == lane
    with pytest.raises(UserError, match='may differ from call to call'):
        await model_request_batch(model, requests_of(['row']))


async def test_two_tokens_of_azure_are_two_credentials():
    groups = set[str]()
    for token in ('one', 'two'):
        provider = AzureProvider(openai_client=azure(azure_ad_token=token))
        groups.add(await lane_for(OpenAIChatModel('m', provider=provider)).identity())
    assert len(groups) == 2
    assert not any('one' in group or 'two' in group for group in groups)
