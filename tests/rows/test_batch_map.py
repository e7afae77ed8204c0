"""`batch_map`: the answers of items in their order."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.openai import OpenAIResponsesModel

from pydantic_ai_batch import BatchModelRequests, Journal, batch_map, batch_map_sync
from pydantic_ai_batch.exceptions import RowFailed
from pydantic_ai_batch.testing import Answer, FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import all_of, asked, echo, sizes


class Label(BaseModel):
    word: str
    size: int = Field(ge=0)


def label(request: FakeRequest, size: int) -> FakeToolCall:
    return FakeToolCall('final_result', {'word': request.text, 'size': size})


def fails_b(request: FakeRequest) -> Answer:
    return FakeError(400, 'invalid_prompt', 'not b') if request.text == 'b' else echo(request)


async def test_answers_are_in_the_order_of_the_items(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        items = [f'item {n}' for n in range(50)]
        answers = await clock.run(batch_map(model_of(fake), items, max_requests=7, clock=clock))
    assert answers == [f'answer to {item}' for item in items]


async def test_no_items_are_no_answers_and_send_nothing(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    assert await clock.run(batch_map(model, [], clock=clock)) == []
    assert await clock.run(batch_map(model, iter([]), clock=clock)) == []
    assert fake.calls == []


async def test_items_may_come_from_a_generator(clock: ManualClock, model_of: ModelOf):
    def items() -> Iterator[str]:
        yield from 'abc'

    with FakeProviders(echo, clock=clock) as fake:
        answers = await clock.run(batch_map(model_of(fake), items(), clock=clock))
    assert answers == ['answer to a', 'answer to b', 'answer to c']


async def test_items_fill_in_the_prompt(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        answers = await clock.run(
            batch_map(model_of(fake), [{'name': 'Ann', 'n': 3}], prompt='{{ name }}: {{ n }}', clock=clock)
        )
        assert answers == ['answer to Ann: 3']
        assert await clock.run(batch_map(model_of(fake), ['x'], prompt='<{{ input }}>', clock=clock)) == [
            'answer to <x>'
        ]


@pytest.mark.parametrize('items', ['a text', {'a': 1}, b'bytes', 5])
async def test_one_thing_is_no_list_of_items(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, items: Any
):
    with pytest.raises(UserError, match='`items` must be an iterable'):
        await clock.run(batch_map(model, items, clock=clock))


async def test_an_item_that_failed_is_none(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(fails_b, clock=clock) as fake:
        answers = await clock.run(batch_map(model_of(fake), ['a', 'b', 'c'], clock=clock))
    assert answers == ['answer to a', None, 'answer to c']


async def test_an_item_that_failed_is_its_error_if_errors_are_returned(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(fails_b, clock=clock) as fake:
        answers = await clock.run(batch_map(model_of(fake), ['a', 'b', 'c'], errors='return', clock=clock))
    assert (answers[0], answers[2]) == ('answer to a', 'answer to c')
    assert isinstance(answers[1], RowFailed)
    assert answers[1].result.row == {'input': 'b'}
    assert 'not b' in str(answers[1])


async def test_an_item_that_failed_is_raised_when_all_are_done_with(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(fails_b, clock=clock) as fake:
        with pytest.raises(RowFailed, match=r"Row '2'.*not b"):
            await clock.run(batch_map(model_of(fake), ['a', 'b', 'c'], errors='raise', clock=clock))
        assert sorted(asked(fake)) == ['a', 'c']


async def test_errors_are_one_of_three_words(fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock):
    with pytest.raises(UserError, match="'none', 'return' or 'raise'"):
        await clock.run(batch_map(model, ['a'], errors='ignore', clock=clock))  # pyright: ignore[reportArgumentType]


async def test_answers_are_of_the_type_that_was_asked_for(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: label(request, 3), clock=clock) as fake:
        answers = await clock.run(batch_map(model_of(fake), ['a', 'b'], output_type=Label, clock=clock))
        assert sizes(fake) == [2]
    assert answers == [Label(word='a', size=3), Label(word='b', size=3)]


async def test_answers_that_are_not_valid_are_asked_for_again_in_batches(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> FakeToolCall:
        wrong = request.text in 'bc' and not request.tool_results
        return FakeToolCall('final_result', {'word': 'w', 'size': -1 if wrong else 2})

    with FakeProviders(answer, clock=clock) as fake:
        results = await all_of(clock, ['a', 'b', 'c'], model=model_of(fake), output_type=Label, ordered=True)
        assert sizes(fake) == [3, 2]
    assert [result.output for result in results] == [Label(word='w', size=2)] * 3
    first, second, _ = results
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost > first.cost


async def test_an_item_whose_answers_are_never_valid_fails_alone_and_says_what_it_cost(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(lambda request: label(request, -1 if request.text == 'b' else 1), clock=clock) as fake:
        results = await all_of(clock, ['a', 'b'], model=model_of(fake), output_type=Label, ordered=True)
        assert len(fake.openai.billed) == 3
    assert [result.status for result in results] == ['ok', 'error']
    assert results[1].error_class == 'UnexpectedModelBehavior'
    assert results[0].cost is not None
    assert results[1].cost is not None
    assert results[1].cost > results[0].cost


async def test_items_are_runs_of_an_agent_tools_included(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> Answer:
        return 'done' if request.tool_results else FakeToolCall('double', {'text': request.text})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), instructions='Use the tool.')
        doubled: list[str] = []

        @agent.tool_plain
        async def double(text: str) -> str:
            doubled.append(text)
            return text * 2

        answers = await clock.run(batch_map(agent, ['a', 'b'], clock=clock))
        assert sizes(fake) == [2, 2]
        assert all(row.body['instructions'] == 'Use the tool.' for row in fake.openai.billed)
    assert answers == ['done', 'done']
    assert sorted(doubled) == ['a', 'b']


async def test_a_tool_that_raises_is_an_error_of_its_item_alone(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> Answer:
        return 'done' if request.tool_results else FakeToolCall('look', {'text': request.text})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake))

        @agent.tool_plain
        async def look(text: str) -> str:
            if text == 'b':
                raise ValueError('the tool is broken')
            return text

        answers = await clock.run(batch_map(agent, ['a', 'b', 'c'], errors='return', clock=clock))
    assert (answers[0], answers[2]) == ('done', 'done')
    assert 'ValueError: the tool is broken' in str(answers[1])


async def test_an_agent_that_batches_its_requests_itself_goes_on_with_that(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> Answer:
        return 'done' if request.tool_results else FakeToolCall('look', {})

    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])

        @agent.tool_plain
        async def look() -> str:
            return 'seen'

        answers = await clock.run(batch_map(agent, ['a', 'b'], errors='return', clock=clock))
        assert sizes(fake) == [2, 2]
    assert answers == ['done', 'done']
    assert batching.stats().answered == 2


async def test_an_agent_that_would_not_write_down_what_it_sends_is_refused(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, tmp_path: Path
):
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
    with pytest.raises(UserError, match='of its own, without the journal'):
        await clock.run(batch_map(agent, ['a', 'b'], journal=tmp_path / 'job.db', clock=clock))
    assert fake.calls == []


async def test_an_agents_output_function_and_validators_are_run(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> Answer:
        return FakeToolCall('final_result', {'word': request.text, 'size': request.attempt})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), output_type=Label)

        @agent.output_validator
        def check(output: Label) -> Label:
            if output.word == 'b':
                raise ModelRetry('not b')
            return output

        answers = await clock.run(batch_map(agent, ['a', 'b'], clock=clock))
    assert answers == [Label(word='a', size=0), None]


class Own:
    def __init__(self, text: str) -> None:
        self.text = text


class Mood(StrEnum):
    GOOD = 'good'
    BAD = 'bad'


class Aliased(BaseModel):
    size: int = Field(validation_alias='theSize', serialization_alias='a-size')
    secret: str = Field(default='', exclude=True)


@pytest.mark.parametrize(
    ('output_type', 'arguments', 'output'),
    [
        (Label, {'word': 'x', 'size': 1}, Label(word='x', size=1)),
        (Mood, {'response': 'good'}, Mood.GOOD),
        (list[int], {'response': [1, 2]}, [1, 2]),
        (set[int], {'response': [1, 2]}, {1, 2}),
        (tuple[int, str], {'response': [1, 'a']}, (1, 'a')),
        (float, {'response': 1.5}, 1.5),
        (bool, {'response': False}, False),
        (Aliased, {'theSize': 3}, Aliased.model_validate({'theSize': 3})),
    ],
)
async def test_outputs_are_of_their_type_also_when_they_come_from_the_journal(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path, output_type: Any, arguments: dict[str, Any], output: Any
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(lambda request: FakeToolCall('final_result', arguments), clock=clock) as fake:
        for _ in range(2):
            [answer] = await clock.run(
                batch_map(model_of(fake), ['a'], output_type=output_type, journal=journal, clock=clock, errors='raise')
            )
            assert answer == output
            assert type(answer) is type(output)
            journal.close()
        assert fake.openai.count('create') == 1


async def test_an_output_that_json_does_not_give_back_is_handed_out_as_it_is(clock: ManualClock, model_of: ModelOf):
    def make(text: str) -> Any:
        return Own(text)

    def answer(request: FakeRequest) -> Answer:
        return FakeToolCall('final_result', {'text': request.text})

    with FakeProviders(answer, clock=clock) as fake:
        answers = await clock.run(batch_map(model_of(fake), ['a', 'b'], output_type=make, clock=clock))
    assert [(type(answer), answer.text) for answer in answers] == [(Own, 'a'), (Own, 'b')]


async def test_a_run_with_an_output_function_is_taken_up_by_another_process(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')

    def made() -> Any:
        def upper(text: str) -> str:
            return text.upper()

        return upper

    def answer(request: FakeRequest) -> Answer:
        return FakeToolCall('final_result', {'text': request.text})

    with FakeProviders(answer, clock=clock) as fake:
        for _ in range(2):
            answers = await clock.run(
                batch_map(model_of(fake), ['a'], output_type=made(), journal=journal, clock=clock)
            )
            assert answers == ['A']
            journal.close()


async def test_retries_of_a_run_are_paid_for_once(clock: ManualClock, model_of: ModelOf, tmp_path: Path):
    journal = Journal(tmp_path / 'job.db')

    def answer(request: FakeRequest) -> FakeToolCall:
        return FakeToolCall('final_result', {'word': 'w', 'size': 1 if request.tool_results else -1})

    with FakeProviders(answer, clock=clock) as fake:
        for _ in range(2):
            answers = await clock.run(
                batch_map(model_of(fake), ['a', 'b'], output_type=Label, journal=journal, clock=clock)
            )
            assert answers == [Label(word='w', size=1)] * 2
            journal.close()
        assert len(fake.openai.billed) == 4


def test_there_is_a_way_without_an_event_loop():
    # In a process of its own, as the loop and the client are kept open for the next call.
    program = """
        from datetime import timedelta
        from pydantic_ai_batch import batch_map_sync
        print(batch_map_sync('openai:gpt-5-mini', ['a', 'b'], poll_interval=timedelta(milliseconds=10)))
    """
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        ran = subprocess.run(
            [sys.executable, '-c', textwrap.dedent(program)],
            env=os.environ | fake.openai.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    assert ran.stdout == "['answer to a', 'answer to b']\n"


def test_the_call_without_an_event_loop_takes_what_the_other_takes():
    there, here = (inspect.signature(call).parameters for call in (batch_map, batch_map_sync))
    assert list(here.items()) == list(there.items())
