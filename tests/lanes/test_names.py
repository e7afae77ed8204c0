"""Lanes and models by the names that people type."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch import LANES, lane_for, list_batches, with_batch_api
from pydantic_ai_batch.exceptions import NoBatchLane
from pydantic_ai_batch.lanes import lane_named
from pydantic_ai_batch.lanes.names import ALIASES


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for info in LANES.values():
        for name in info.key_variables:
            monkeypatch.setenv(name, 'a-key')
    monkeypatch.setenv('AZURE_OPENAI_ENDPOINT', 'http://127.0.0.1:9')
    monkeypatch.setenv('OPENAI_API_VERSION', '2026-01-01')
    monkeypatch.setenv('AWS_DEFAULT_REGION', 'us-east-1')
    monkeypatch.delenv('AWS_PROFILE')


@pytest.mark.parametrize('alias', [alias for alias, name in ALIASES.items() if name in LANES])
def test_a_lane_goes_by_its_aliases_in_any_case(alias: str):
    assert lane_named(alias).name == lane_named(alias.upper()).name == ALIASES[alias]


def test_no_alias_is_the_name_of_another_lane():
    assert not ALIASES.keys() & LANES.keys()


@pytest.mark.parametrize(
    ('name', 'lane'),
    [
        ('openai-responses:gpt-5-mini', 'openai'),
        ('openai-chat:gpt-5-mini', 'openai'),
        ('anthropic:claude-haiku-4-5', 'anthropic'),
        ('claude:claude-haiku-4-5', 'anthropic'),
        ('gemini:gemini-2.5-flash', 'google'),
        ('groq:openai/gpt-oss-20b', 'groq'),
        ('together:openai/gpt-oss-20b', 'together'),
        ('deepinfra:openai/gpt-oss-20b', 'deepinfra'),
        ('mistral:mistral-small-latest', 'mistral'),
        ('xai:grok-4', 'xai'),
        ('grok:grok-4', 'xai'),
        ('azure:gpt-5-mini', 'azure'),
        ('azure-responses:gpt-5-mini', 'azure'),
        ('xai-responses:grok-4', 'xai'),
        ('bedrock:us.amazon.nova-lite-v1:0', 'bedrock'),
        ('aws:us.amazon.nova-lite-v1:0', 'bedrock'),
    ],
)
def test_a_model_has_a_name_of_each_lane_by_which_a_job_finds_it_again(name: str, lane: str):
    found = lane_for(name)
    assert found.info.name == lane
    again = lane_for(found.model_reference)
    assert (again.info.name, type(again.model)) == (lane, type(found.model))
    assert getattr(again, 'endpoint', None) == getattr(found, 'endpoint', None)


def test_a_model_that_is_no_providers_has_one_too():
    assert lane_for('test').info.name == 'native'


@pytest.mark.parametrize(
    ('name', 'variable'),
    [('deepinfra:openai/gpt-oss-20b', 'DEEPINFRA_API_KEY'), ('groq:openai/gpt-oss-20b', 'GROQ_API_KEY')],
)
def test_a_missing_key_is_an_error_that_names_its_variable(name: str, variable: str, monkeypatch: pytest.MonkeyPatch):
    for info in LANES.values():
        for key in info.key_variables:
            monkeypatch.delenv(key, raising=False)
    with pytest.raises(UserError, match=variable):
        lane_for(name)


@pytest.mark.parametrize(
    ('name', 'why'),
    [
        ('cohere:command-r', 'Cohere'),
        ('Cohere:command-r', 'Cohere'),
        ('deepseek:deepseek-chat', 'DeepSeek'),
        ('huggingface:openai/gpt-oss-20b', 'Hugging Face'),
        ('ollama:qwen3', "lane='openai-compatible'"),
        ('openrouter:openai/gpt-5-mini', 'provider of the model itself'),
        ('vllm:qwen3', 'run-batch'),
        ('cerebras:gpt-oss-120b', 'private preview'),
        ('gateway/openai:gpt-5-mini', 'a key of its own'),
    ],
)
async def test_a_provider_without_a_batch_api_is_refused_before_a_key_or_an_sdk_is_asked_for(name: str, why: str):
    for call in (lane_for, with_batch_api):
        with pytest.raises(NoBatchLane, match=re.escape(why)):
            call(name)
    with pytest.raises(NoBatchLane, match=re.escape(why)):
        await anext(list_batches(name))


def test_a_server_of_such_a_provider_may_be_said_to_have_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('OLLAMA_BASE_URL', 'http://127.0.0.1:9/v1')
    assert lane_for('ollama:qwen3', lane='openai-compatible').info.name == 'openai-compatible'


async def test_what_is_no_model_and_no_lane_is_told_what_lanes_there_are():
    with pytest.raises(UserError, match='openai, azure, anthropic'):
        await anext(list_batches('nonsense'))


@pytest.mark.parametrize('prefix', ['bedrock', 'aws'])
def test_a_model_of_bedrock_without_a_region_says_how_to_set_one(prefix: str, monkeypatch: pytest.MonkeyPatch):
    for name in ('AWS_DEFAULT_REGION', 'AWS_REGION'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('AWS_CONFIG_FILE', '/nonexistent')
    with pytest.raises(UserError, match='`AWS_DEFAULT_REGION`'):
        lane_for(f'{prefix}:us.amazon.nova-lite-v1:0')


@pytest.mark.parametrize('name', ['nowhere:model', 'deepinfra:'])
def test_what_is_no_model_is_an_error(name: str):
    with pytest.raises(UserError):
        lane_for(name)


@pytest.mark.parametrize(('lane', 'sdk'), [('groq', 'groq'), ('mistral', 'mistralai'), ('bedrock', 'botocore')])
def test_a_lane_whose_sdk_is_not_installed_names_the_extra_and_leaves_the_others_alone(lane: str, sdk: str):
    program = f"""
import sys

sys.modules[{sdk!r}] = None
from pydantic_ai_batch import lane_for
from pydantic_ai_batch.exceptions import LaneDependencyMissing

try:
    lane_for('{lane}:a-model')
except LaneDependencyMissing as missing:
    print(missing)
print(lane_for('claude:claude-haiku-4-5').info.name)
"""
    shown = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        f"The SDK of the lane '{lane}' is not installed: `pip install 'pydantic-ai-batch[{lane}]'`.",
        'anthropic',
    ]
