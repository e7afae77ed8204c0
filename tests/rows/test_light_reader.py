"""Rows read light say what they say read in full, and whatever is new, or says more than text, is read in full."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic_ai import ModelRequest
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, BatchResult
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import lane_for, model_request_batch
from pydantic_ai_batch.lanes import Lane
from pydantic_ai_batch.rows.light_reader import LightReader
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock
from pydantic_ai_batch.testing.openai_bodies import CHAT, RESPONSES, write_answer
from tests.lanes.harness import EVERY, Harness, close, harness_of

from .scenes import all_of

TEXTS = [
    'plain',
    '  \n around \t ',
    '<think>secret</think>said',
    'a < b <thinking',
    'é 漢字 😀 \u2028 \u0085',
    '{"json": [1, 2]}',
    'null',
    '0',
    '9' * 3000,
    '\\ " \x7f',
]


@pytest.fixture(params=[harness.name for harness in EVERY])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return harness_of(request.param, monkeypatch)


async def test_rows_say_what_the_answers_to_a_list_say_on_every_lane(harness: Harness, clock: ManualClock):
    prompts = [f'{number} {text}' for number in range(13) for text in TEXTS]
    with FakeProviders(clock=clock, answer=lambda request: request.text) as fake:
        model, client = harness.make(fake, 'test')
        if harness.lane == 'openai-compatible':
            await close(client)
            pytest.skip('Rows have no setting by which that lane is chosen.')
        rows = await all_of(clock, [{'input': prompt} for prompt in prompts], model=model, ordered=True)
        requests = [
            BatchRequest(custom_id=str(place), messages=[ModelRequest.user_text_prompt(prompt)])
            for place, prompt in enumerate(prompts)
        ]
        answers = await clock.run(model_request_batch(model, requests, clock=clock))
        await close(client)
    for row, answer in zip(rows, answers, strict=True):
        assert isinstance(answer, ModelResponse), answer
        assert (row.text, row.finish_reason, row.model) == (answer.text, answer.finish_reason, answer.model_name)
        assert row.usage is not None
        answer.usage.cost = row.usage.cost = None
        assert row.usage == answer.usage


@dataclass
class Reading:
    """A reader of one lane's answers, and how many of them were read in full."""

    lane: Lane
    endpoint: str
    reader: LightReader = field(default_factory=LightReader)
    in_full: int = 0
    settings: str = ''

    async def read(
        self, answer: str, change: Callable[[dict[str, Any]], None] = lambda body: None, *, full_text: str | None = None
    ) -> ModelResponse:
        """Read an answer that says `answer`, after a change of its body."""
        request = FakeRequest(
            text='', provider='openai', endpoint=self.endpoint, custom_id='0', model='gpt-5-mini', body={}, attempt=0
        )
        body = write_answer(request, answer, len(answer) * 7, now=1_790_000_000)
        change(body)
        result = BatchResult(custom_id='0', status='succeeded', body=json.dumps(body))

        async def in_full() -> ModelResponse:
            self.in_full += 1
            response = await self.lane.decode(result, BatchRequest(custom_id='0', messages=[]))
            if full_text is not None:
                response.parts = [TextPart(content=full_text)]
            return response

        return await self.reader.read(self.lane, result, self.settings, in_full)


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
async def reading(request: pytest.FixtureRequest) -> AsyncIterator[Reading]:
    model: Model = request.param('gpt-5-mini', provider=OpenAIProvider(api_key='test'))
    async with model:
        yield Reading(lane_for(model), CHAT if request.param is OpenAIChatModel else RESPONSES)


async def test_the_first_of_a_shape_and_one_in_a_hundred_are_read_in_full(reading: Reading):
    answers = [await reading.read(f'answer {number}') for number in range(250)]
    assert [answer.text for answer in answers] == [f'answer {number}' for number in range(250)]
    assert reading.in_full == 3


async def test_what_a_model_thinks_in_its_text_is_not_taken_for_its_answer(reading: Reading):
    await reading.read('said')
    answer = await reading.read('<think>secret</think>said')
    assert reading.in_full == 2
    # Those of Responses think in parts of their own, and their text is text.
    assert answer.text == ('said' if reading.endpoint == CHAT else '<think>secret</think>said')


def cut(body: dict[str, Any]) -> None:
    if 'choices' in body:
        body['choices'][0]['finish_reason'] = 'length'
    else:
        body |= {'status': 'incomplete', 'incomplete_details': {'reason': 'max_output_tokens'}}


def tooled(body: dict[str, Any]) -> None:
    function = {'name': 'look', 'arguments': '{}'}
    if 'choices' in body:
        body['choices'][0]['message']['tool_calls'] = [{'id': 'call_1', 'type': 'function', 'function': function}]
    else:
        body['output'].append({'type': 'function_call', 'id': 'fc_1', 'call_id': 'call_1', **function})


def refused(body: dict[str, Any]) -> None:
    if 'choices' in body:
        body['choices'][0]['message']['refusal'] = 'No.'
    else:
        body['output'][0]['content'] = [{'type': 'refusal', 'refusal': 'No.'}]


def emptied(body: dict[str, Any]) -> None:
    if 'choices' in body:
        body['choices'][0]['message']['content'] = ''
    else:
        body['output'][0]['content'][0]['text'] = ''


@pytest.mark.parametrize('change', [tooled, refused, emptied])
async def test_what_is_more_than_text_is_always_read_in_full(reading: Reading, change: Callable[[Any], None]):
    await reading.read('said')
    for _ in range(3):
        await reading.read('said', change)
    assert reading.in_full == 4


async def test_an_answer_that_was_cut_off_still_says_so(reading: Reading):
    await reading.read('said')
    answers = [await reading.read('said', cut) for _ in range(3)]
    assert {answer.finish_reason for answer in answers} == {'length'}


@pytest.mark.parametrize('key', ['service_tier', 'model', 'a key that is new'])
async def test_other_words_make_another_shape(reading: Reading, key: str):
    for number in range(3):
        answer = await reading.read('said', lambda body, number=number: body.update({key: f'word {number}'}))
        assert key != 'model' or answer.model_name == f'word {number}'
    assert reading.in_full == 3


async def test_rows_with_other_settings_are_not_read_as_those_before(reading: Reading):
    await reading.read('said')
    reading.settings = "{'openai_logprobs': True}"
    await reading.read('said')
    assert reading.in_full == 2


async def test_the_cached_tokens_of_each_answer_are_its_own(reading: Reading):
    def cache(count: int) -> Callable[[dict[str, Any]], None]:
        details = 'prompt_tokens_details' if reading.endpoint == CHAT else 'input_tokens_details'
        return lambda body: body['usage'][details].update(cached_tokens=count)

    counts = [0, 3, 2, 0, 5]
    assert [(await reading.read('said ' * 9, cache(count))).usage.cache_read_tokens for count in counts] == counts
    assert reading.in_full == 2


async def test_no_more_shapes_are_kept_than_help(reading: Reading):
    for number in range(100):
        await reading.read('said', lambda body, number=number: body.update(nonce=str(number)))
    await reading.read('said')
    before = reading.in_full
    await reading.read('said', lambda body: body.update(nonce='0'))
    await reading.read('said')
    assert (before, reading.in_full) == (101, 102)


async def test_a_reader_that_is_caught_reading_otherwise_is_not_used_again(
    reading: Reading, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, 'pydantic_ai_batch')
    for _ in range(100):
        await reading.read('said')
    answer = await reading.read('said', full_text='meant')
    assert answer.text == 'meant'
    assert '99 of its shape' in caplog.text
    before = reading.in_full
    await reading.read('said')
    assert reading.in_full == before + 1


@pytest.mark.parametrize('body', [None, 'no JSON', '[]', '1', '[' * 100_000])
async def test_a_body_that_is_none_is_left_to_the_full_decoder(reading: Reading, body: str | None):
    given = ModelResponse(parts=[TextPart(content='read in full')])

    async def in_full() -> ModelResponse:
        return given

    result = BatchResult(custom_id='0', status='succeeded', body=body)
    assert await reading.reader.read(reading.lane, result, '', in_full) is given
