"""What servers that only speak OpenAI's language are told to do to be batched, and that it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider

from pydantic_ai_batch import BatchModelRequests, lane_for
from pydantic_ai_batch.exceptions import NoBatchLane
from pydantic_ai_batch.testing import FakeProviders, ManualClock

NOWHERE: Any = {'base_url': 'http://127.0.0.1:9/v1', 'api_key': 'k'}
ON = OpenAIModelProfile(openai_supports_batch_api=True)
OFF = OpenAIModelProfile(openai_supports_batch_api=False)

OF_OTHERS: dict[str, Callable[[Any], Model]] = {
    'OllamaModel': lambda profile: OllamaModel('qwen3', provider=OllamaProvider(**NOWHERE), profile=profile),
    'Ollama': lambda profile: OpenAIChatModel('qwen3', provider=OllamaProvider(**NOWHERE), profile=profile),
    'DeepSeek': lambda profile: OpenAIChatModel('qwen3', provider=DeepSeekProvider(api_key='k'), profile=profile),
    'OpenRouter': lambda profile: OpenAIChatModel(
        'qwen/qwen3', provider=OpenRouterProvider(api_key='k'), profile=profile
    ),
}


def refusal(model: Model) -> str:
    with pytest.raises(NoBatchLane) as refused:
        lane_for(model)
    return str(refused.value)


@pytest.mark.parametrize('profile', [None, ON], ids=['by default', 'with the flag on'])
@pytest.mark.parametrize('make', OF_OTHERS.values(), ids=OF_OTHERS.keys())
def test_chat_models_of_other_providers_are_told_the_provider_that_works_and_no_flag(
    make: Callable[[Any], Model], profile: Any
):
    model = make(profile)
    said = refusal(model)
    assert 'whatever `profile=` says' in said
    assert f'use `OpenAIChatModel({model.model_name!r}, provider=OpenAIProvider(base_url=..., api_key=...))`' in said


async def test_the_provider_that_the_message_tells_is_batched(fake: FakeProviders, clock: ManualClock):
    async with fake.openai.client() as client:
        provider = OpenAIProvider(base_url=fake.openai.base_url, api_key='k', http_client=client._client)
        agent = Agent(OpenAIChatModel('qwen3', provider=provider), capabilities=[BatchModelRequests(clock=clock)])
        assert (await clock.run(agent.run('hello'))).output == 'Answer to: hello'
    assert len(fake.openai.batches) == 1
    assert fake.openai.count('live') == 0


@pytest.mark.parametrize('model_class', [OpenAIChatModel, OpenAIResponsesModel])
def test_a_model_whose_flag_is_off_is_told_to_turn_it_on_and_that_works(model_class: Any):
    off = model_class('qwen3', provider=OpenAIProvider(**NOWHERE), profile=OFF)
    assert 'with `profile=OpenAIModelProfile(openai_supports_batch_api=True)`' in refusal(off)
    on = model_class('qwen3', provider=OpenAIProvider(**NOWHERE), profile=ON)
    assert lane_for(on).info.name == 'openai'


def test_a_responses_model_of_another_provider_is_told_to_turn_its_flag_on_and_that_works():
    said = refusal(OpenAIResponsesModel('qwen3', provider=OllamaProvider(**NOWHERE)))
    assert 'with `profile=OpenAIModelProfile(openai_supports_batch_api=True)`' in said
    on = OpenAIResponsesModel('qwen3', provider=OllamaProvider(**NOWHERE), profile=ON)
    assert lane_for(on).info.name == 'openai'


@pytest.mark.parametrize('profile', [None, ON], ids=['by default', 'with the flag on'])
async def test_a_chat_model_with_an_azure_client_is_told_the_provider_that_works_and_no_flag(profile: Any):
    client = openai.AsyncAzureOpenAI(azure_endpoint='http://127.0.0.1:9', api_version='2026-01-01', api_key='k')
    said = refusal(OpenAIChatModel('m', provider=OpenAIProvider(openai_client=client), profile=profile))
    await client.close()
    assert 'not batched with an `AsyncAzureOpenAI`, whatever `profile=` says' in said
    assert 'provider=OpenAIProvider(base_url=..., api_key=...)' in said


def test_a_model_that_answers_in_streams_alone_is_told_so():
    profile = OpenAIModelProfile(openai_responses_requires_streaming=True)
    model = OpenAIResponsesModel('m', provider=OpenAIProvider(**NOWHERE), profile=profile)
    assert 'it answers in streams alone' in refusal(model)
