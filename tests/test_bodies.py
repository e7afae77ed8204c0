"""The bodies that each model class's requests have, pinned, so that they change only where someone means it.

The framework writes them, so a change of its own shows here before it shows in a batch of a hundred thousand requests.
They are equal on the oldest and the newest version that is supported.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from inline_snapshot import snapshot
from lanes.harness import HARNESSES, close
from pydantic_ai.messages import (
    BinaryContent,
    InstructionPart,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from pydantic_ai_batch import lane_for
from pydantic_ai_batch.testing import FakeProviders

CITY = {
    'type': 'object',
    'properties': {'city': {'type': 'string'}},
    'required': ['city'],
    'additionalProperties': False,
}
SCORE = {
    'type': 'object',
    'properties': {'score': {'type': 'integer'}},
    'required': ['score'],
    'additionalProperties': False,
}
WEATHER = ToolDefinition(name='weather', description='The weather in a city.', parameters_json_schema=CITY)
RESULT = ToolDefinition(name='final_result', parameters_json_schema=SCORE, kind='output')

REQUESTS = {
    'text': BatchRequest(
        custom_id='a',
        messages=[
            ModelRequest(parts=[SystemPromptPart('Be brief.'), UserPromptPart('A question: ü € "quoted" \u2028')]),
            ModelResponse(parts=[TextPart('An answer.')]),
            ModelRequest(parts=[UserPromptPart('And now?')]),
        ],
        model_settings=ModelSettings(max_tokens=100),
    ),
    'instructions': BatchRequest(
        custom_id='a',
        messages=[ModelRequest(parts=[UserPromptPart('hello')], instructions='Be brief.')],
        model_settings=ModelSettings(max_tokens=100),
        model_request_parameters=ModelRequestParameters(instruction_parts=[InstructionPart(content='Be brief.')]),
    ),
    'tools': BatchRequest(
        custom_id='a',
        messages=[
            ModelRequest.user_text_prompt('hello'),
            ModelResponse(parts=[ToolCallPart('weather', {'city': 'Rome'}, 'call_1')]),
            ModelRequest(parts=[ToolReturnPart('weather', {'sunny': True}, 'call_1')]),
        ],
        model_settings=ModelSettings(max_tokens=100),
        model_request_parameters=ModelRequestParameters(
            function_tools=[WEATHER], output_mode='tool', output_tools=[RESULT], allow_text_output=False
        ),
    ),
    'schema': BatchRequest(
        custom_id='a',
        messages=[ModelRequest.user_text_prompt('hello')],
        model_settings=ModelSettings(max_tokens=100),
        model_request_parameters=ModelRequestParameters(
            output_mode='native', output_object=OutputObjectDefinition(name='Score', json_schema=SCORE)
        ),
    ),
    'image': BatchRequest(
        custom_id='a',
        messages=[ModelRequest(parts=[UserPromptPart(['Look.', BinaryContent(b'no image', media_type='image/png')])])],
        model_settings=ModelSettings(max_tokens=100),
    ),
}


@pytest.fixture
async def models(fake: FakeProviders) -> AsyncIterator[dict[str, Model]]:
    made = {harness.name: harness.make(fake, 'test') for harness in HARNESSES}
    yield {name: model for name, (model, _) in made.items()}
    for _, client in made.values():
        await close(client)


async def bodies(model: Model) -> dict[str, Any]:
    lane = lane_for(model)
    return {name: json.loads((await lane.encode(request)).body) for name, request in REQUESTS.items()}


async def test_the_bodies_of_a_responses_model(models: dict[str, Model]):
    assert await bodies(models['responses']) == snapshot(
        {
            'text': {
                'model': 'gpt-5-mini',
                'input': [
                    {'role': 'system', 'content': 'Be brief.'},
                    {'role': 'user', 'content': 'A question: ü € "quoted" \u2028'},
                    {'role': 'assistant', 'content': 'An answer.'},
                    {'role': 'user', 'content': 'And now?'},
                ],
                'max_output_tokens': 100,
                'include': ['reasoning.encrypted_content'],
            },
            'instructions': {
                'model': 'gpt-5-mini',
                'input': [{'role': 'user', 'content': 'hello'}],
                'instructions': 'Be brief.',
                'max_output_tokens': 100,
                'include': ['reasoning.encrypted_content'],
            },
            'tools': {
                'model': 'gpt-5-mini',
                'input': [
                    {'role': 'user', 'content': 'hello'},
                    {'name': 'weather', 'arguments': '{"city":"Rome"}', 'call_id': 'call_1', 'type': 'function_call'},
                    {'type': 'function_call_output', 'call_id': 'call_1', 'output': '{"sunny":true}'},
                ],
                'tools': [
                    {
                        'name': 'weather',
                        'parameters': {
                            'type': 'object',
                            'properties': {'city': {'type': 'string'}},
                            'required': ['city'],
                            'additionalProperties': False,
                        },
                        'type': 'function',
                        'description': 'The weather in a city.',
                        'strict': True,
                    },
                    {
                        'name': 'final_result',
                        'parameters': {
                            'type': 'object',
                            'properties': {'score': {'type': 'integer'}},
                            'required': ['score'],
                            'additionalProperties': False,
                        },
                        'type': 'function',
                        'description': None,
                        'strict': True,
                    },
                ],
                'tool_choice': 'required',
                'max_output_tokens': 100,
                'include': ['reasoning.encrypted_content'],
            },
            'schema': {
                'model': 'gpt-5-mini',
                'input': [{'role': 'user', 'content': 'hello'}],
                'text': {
                    'format': {
                        'type': 'json_schema',
                        'name': 'Score',
                        'schema': {
                            'type': 'object',
                            'properties': {'score': {'type': 'integer'}},
                            'required': ['score'],
                            'additionalProperties': False,
                        },
                        'strict': True,
                    }
                },
                'max_output_tokens': 100,
                'include': ['reasoning.encrypted_content'],
            },
            'image': {
                'model': 'gpt-5-mini',
                'input': [
                    {
                        'role': 'user',
                        'content': [
                            {'text': 'Look.', 'type': 'input_text'},
                            {
                                'image_url': 'data:image/png;base64,bm8gaW1hZ2U=',
                                'type': 'input_image',
                                'detail': 'auto',
                            },
                        ],
                    }
                ],
                'max_output_tokens': 100,
                'include': ['reasoning.encrypted_content'],
            },
        }
    )


async def test_the_bodies_of_a_chat_model(models: dict[str, Model]):
    assert await bodies(models['chat']) == snapshot(
        {
            'text': {
                'model': 'gpt-5-mini',
                'messages': [
                    {'role': 'system', 'content': 'Be brief.'},
                    {'role': 'user', 'content': 'A question: ü € "quoted" \u2028'},
                    {'role': 'assistant', 'content': 'An answer.'},
                    {'role': 'user', 'content': 'And now?'},
                ],
                'max_completion_tokens': 100,
            },
            'instructions': {
                'model': 'gpt-5-mini',
                'messages': [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'hello'}],
                'max_completion_tokens': 100,
            },
            'tools': {
                'model': 'gpt-5-mini',
                'messages': [
                    {'role': 'user', 'content': 'hello'},
                    {
                        'role': 'assistant',
                        'content': None,
                        'tool_calls': [
                            {
                                'id': 'call_1',
                                'type': 'function',
                                'function': {'name': 'weather', 'arguments': '{"city":"Rome"}'},
                            }
                        ],
                    },
                    {'role': 'tool', 'tool_call_id': 'call_1', 'content': '{"sunny":true}'},
                ],
                'max_completion_tokens': 100,
                'tool_choice': 'required',
                'tools': [
                    {
                        'type': 'function',
                        'function': {
                            'name': 'weather',
                            'description': 'The weather in a city.',
                            'parameters': {
                                'type': 'object',
                                'properties': {'city': {'type': 'string'}},
                                'required': ['city'],
                                'additionalProperties': False,
                            },
                            'strict': True,
                        },
                    },
                    {
                        'type': 'function',
                        'function': {
                            'name': 'final_result',
                            'description': '',
                            'parameters': {
                                'type': 'object',
                                'properties': {'score': {'type': 'integer'}},
                                'required': ['score'],
                                'additionalProperties': False,
                            },
                            'strict': True,
                        },
                    },
                ],
            },
            'schema': {
                'model': 'gpt-5-mini',
                'messages': [{'role': 'user', 'content': 'hello'}],
                'max_completion_tokens': 100,
                'response_format': {
                    'type': 'json_schema',
                    'json_schema': {
                        'name': 'Score',
                        'schema': {
                            'type': 'object',
                            'properties': {'score': {'type': 'integer'}},
                            'required': ['score'],
                            'additionalProperties': False,
                        },
                        'strict': True,
                    },
                },
            },
            'image': {
                'model': 'gpt-5-mini',
                'messages': [
                    {
                        'role': 'user',
                        'content': [
                            {'text': 'Look.', 'type': 'text'},
                            {'image_url': {'url': 'data:image/png;base64,bm8gaW1hZ2U='}, 'type': 'image_url'},
                        ],
                    }
                ],
                'max_completion_tokens': 100,
            },
        }
    )


async def test_the_bodies_of_an_anthropic_model(models: dict[str, Model]):
    assert await bodies(models['anthropic']) == snapshot(
        {
            'text': {
                'max_tokens': 100,
                'system': 'Be brief.',
                'messages': [
                    {'role': 'user', 'content': [{'text': 'A question: ü € "quoted" \u2028', 'type': 'text'}]},
                    {'role': 'assistant', 'content': [{'text': 'An answer.', 'type': 'text'}]},
                    {'role': 'user', 'content': [{'text': 'And now?', 'type': 'text'}]},
                ],
                'model': 'claude-haiku-4-5',
            },
            'instructions': {
                'max_tokens': 100,
                'system': [{'type': 'text', 'text': 'Be brief.'}],
                'messages': [{'role': 'user', 'content': [{'text': 'hello', 'type': 'text'}]}],
                'model': 'claude-haiku-4-5',
            },
            'tools': {
                'max_tokens': 100,
                'messages': [
                    {'role': 'user', 'content': [{'text': 'hello', 'type': 'text'}]},
                    {
                        'role': 'assistant',
                        'content': [{'id': 'call_1', 'type': 'tool_use', 'name': 'weather', 'input': {'city': 'Rome'}}],
                    },
                    {
                        'role': 'user',
                        'content': [
                            {
                                'tool_use_id': 'call_1',
                                'type': 'tool_result',
                                'content': [{'text': '{"sunny":true}', 'type': 'text'}],
                                'is_error': False,
                            }
                        ],
                    },
                ],
                'model': 'claude-haiku-4-5',
                'tools': [
                    {
                        'name': 'weather',
                        'description': 'The weather in a city.',
                        'input_schema': {
                            'type': 'object',
                            'properties': {'city': {'type': 'string'}},
                            'required': ['city'],
                            'additionalProperties': False,
                        },
                    },
                    {
                        'name': 'final_result',
                        'description': '',
                        'input_schema': {
                            'type': 'object',
                            'properties': {'score': {'type': 'integer'}},
                            'required': ['score'],
                            'additionalProperties': False,
                        },
                    },
                ],
                'tool_choice': {'type': 'any'},
            },
            'schema': {
                'max_tokens': 100,
                'messages': [{'role': 'user', 'content': [{'text': 'hello', 'type': 'text'}]}],
                'model': 'claude-haiku-4-5',
                'output_config': {
                    'format': {
                        'type': 'json_schema',
                        'schema': {
                            'type': 'object',
                            'properties': {'score': {'type': 'integer'}},
                            'additionalProperties': False,
                            'required': ['score'],
                        },
                    }
                },
            },
            'image': {
                'max_tokens': 100,
                'messages': [
                    {
                        'role': 'user',
                        'content': [
                            {'text': 'Look.', 'type': 'text'},
                            {
                                'source': {'data': 'bm8gaW1hZ2U=', 'media_type': 'image/png', 'type': 'base64'},
                                'type': 'image',
                            },
                        ],
                    }
                ],
                'model': 'claude-haiku-4-5',
            },
        }
    )


async def test_the_bodies_of_a_google_model(models: dict[str, Model]):
    assert await bodies(models['google-inline']) == snapshot(
        {
            'text': {
                'contents': [
                    {'parts': [{'text': 'A question: ü € "quoted" \u2028'}], 'role': 'user'},
                    {'parts': [{'text': 'An answer.'}], 'role': 'model'},
                    {'parts': [{'text': 'And now?'}], 'role': 'user'},
                ],
                'systemInstruction': {'parts': [{'text': 'Be brief.'}], 'role': 'user'},
                'generationConfig': {'maxOutputTokens': 100, 'responseModalities': ['TEXT']},
            },
            'instructions': {
                'contents': [{'parts': [{'text': 'hello'}], 'role': 'user'}],
                'systemInstruction': {'parts': [{'text': 'Be brief.'}], 'role': 'user'},
                'generationConfig': {'maxOutputTokens': 100, 'responseModalities': ['TEXT']},
            },
            'tools': {
                'contents': [
                    {'parts': [{'text': 'hello'}], 'role': 'user'},
                    {
                        'parts': [
                            {
                                'functionCall': {'id': 'call_1', 'args': {'city': 'Rome'}, 'name': 'weather'},
                                'thoughtSignature': 'c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I=',
                            }
                        ],
                        'role': 'model',
                    },
                    {
                        'parts': [
                            {'functionResponse': {'id': 'call_1', 'name': 'weather', 'response': {'sunny': True}}}
                        ],
                        'role': 'user',
                    },
                ],
                'tools': [
                    {
                        'functionDeclarations': [
                            {
                                'description': 'The weather in a city.',
                                'name': 'weather',
                                'parameters_json_schema': {
                                    'type': 'object',
                                    'properties': {'city': {'type': 'string'}},
                                    'required': ['city'],
                                    'additionalProperties': False,
                                },
                            },
                            {
                                'description': '',
                                'name': 'final_result',
                                'parameters_json_schema': {
                                    'type': 'object',
                                    'properties': {'score': {'type': 'integer'}},
                                    'required': ['score'],
                                    'additionalProperties': False,
                                },
                            },
                        ]
                    }
                ],
                'toolConfig': {'functionCallingConfig': {'mode': 'ANY'}},
                'generationConfig': {'maxOutputTokens': 100, 'responseModalities': ['TEXT']},
            },
            'schema': {
                'contents': [{'parts': [{'text': 'hello'}], 'role': 'user'}],
                'generationConfig': {
                    'maxOutputTokens': 100,
                    'responseMimeType': 'application/json',
                    'responseJsonSchema': {
                        'type': 'object',
                        'properties': {'score': {'type': 'integer'}},
                        'required': ['score'],
                        'additionalProperties': False,
                        'title': 'Score',
                    },
                    'responseModalities': ['TEXT'],
                },
            },
            'image': {
                'contents': [
                    {
                        'parts': [
                            {'text': 'Look.'},
                            {'inlineData': {'data': 'bm8gaW1hZ2U=', 'mime_type': 'image/png'}},
                        ],
                        'role': 'user',
                    }
                ],
                'generationConfig': {'maxOutputTokens': 100, 'responseModalities': ['TEXT']},
            },
        }
    )


async def test_bodies_are_equal_byte_for_byte_each_time(models: dict[str, Model]):
    for model in models.values():
        lane = lane_for(model)
        for request in REQUESTS.values():
            first, second = (await lane.encode(request)).body, (await lane.encode(request)).body
            assert first == second
            assert '\n' not in first


async def test_every_model_class_with_a_provider_of_its_own_is_pinned_here(models: dict[str, Model]):
    assert {lane_for(model).info.name for model in models.values()} == {'openai', 'anthropic', 'google'}
    assert {type(model).__name__ for model in models.values()} == {
        'OpenAIResponsesModel',
        'OpenAIChatModel',
        'AnthropicModel',
        'GoogleModel',
    }
