"""What servers that only speak OpenAI's language are told to do to be batched, and that it works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.instrumented import InstrumentedModel
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.azure import AzureProvider
from pydantic_ai.providers.deepseek import DeepSeekProvider
from pydantic_ai.providers.moonshotai import MoonshotAIProvider
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openrouter import OpenRouterProvider

from pydantic_ai_batch import BatchModelRequests, lane_for, with_batch_api
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
    'MoonshotAI, on Responses': lambda profile: OpenAIResponsesModel(
        'qwen3', provider=MoonshotAIProvider(api_key='k'), profile=profile
    ),
}


def refusal(model: Model) -> str:
    with pytest.raises(NoBatchLane) as refused:
        lane_for(model)
    return str(refused.value)


@pytest.mark.parametrize('make', OF_OTHERS.values(), ids=OF_OTHERS.keys())
def test_models_of_other_providers_are_refused_and_batched_by_who_opts_in(make: Callable[[Any], Model]):
    model = make(None)
    assert model.model_id in refusal(model)
    assert lane_for(make(ON)).info.name == 'openai-compatible'
    assert lane_for(with_batch_api(model, lane='openai-compatible')).info.name == 'openai-compatible'
    # Any agent that is given the model then is.
    assert lane_for(InstrumentedModel(with_batch_api(model, lane='openai-compatible'))).info.name == 'openai-compatible'


@pytest.mark.parametrize(
    ('model', 'why'),
    [
        (lambda: OpenAIChatModel('qwen/m', provider=OpenRouterProvider(api_key='k')), 'OpenRouter has no batch API'),
        (lambda: OllamaModel('m', provider=OllamaProvider(**NOWHERE)), 'no price per token'),
        (lambda: OllamaModel('m', provider=OllamaProvider(**NOWHERE)), 'vllm run-batch'),
        (lambda: OpenAIChatModel('m', provider=DeepSeekProvider(api_key='k')), 'DeepSeek has no batch API'),
    ],
)
def test_a_provider_without_a_batch_api_is_refused_by_name_with_the_reason(model: Callable[[], Model], why: str):
    assert why in refusal(model())


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


async def test_a_client_of_azures_behind_another_provider_is_told_which_provider_is_batched():
    client = openai.AsyncAzureOpenAI(azure_endpoint='http://127.0.0.1:9', api_version='2026-01-01', api_key='k')
    said = refusal(OpenAIChatModel('m', provider=OpenAIProvider(openai_client=client)))
    assert 'not batched with an `AsyncAzureOpenAI`, whatever `profile=` says' in said
    assert 'provider=AzureProvider(openai_client=...)' in said
    assert lane_for(OpenAIChatModel('m', provider=AzureProvider(openai_client=client))).info.name == 'azure'
    await client.close()


def test_a_model_that_answers_in_streams_alone_is_told_so():
    profile = OpenAIModelProfile(openai_responses_requires_streaming=True)
    model = OpenAIResponsesModel('m', provider=OpenAIProvider(**NOWHERE), profile=profile)
    assert 'it answers in streams alone' in refusal(model)
