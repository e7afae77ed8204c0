"""What the cases of tests/cases show on one lane, on all the others, and through agents and stored histories."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from lanes.harness import Harness
from pydantic import BaseModel
from pydantic_ai import Agent, ModelMessagesTypeAdapter, ModelRequest, PendingModelResponse, PromptedOutput, exceptions
from pydantic_ai.exceptions import IncompleteToolCall, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.exceptions import RequestNotSendable
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

LaneModel = Callable[..., Model]
ROWS = [f'row {number}' for number in range(6)]


def echo(request: FakeRequest) -> str:
    return f'answer to {request.text}'


ANSWERS = [f'answer to {row}' for row in ROWS]


class Label(BaseModel):
    name: str
    score: int


async def run(clock: ManualClock, model: Model, rows: Sequence[str] = ROWS, **settings: Any) -> list[Any]:
    """The text of each row's answer, or its error."""
    outcomes = await responses(clock, model, rows, **settings)
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


async def responses(clock: ManualClock, model: Model, rows: Sequence[str] = ROWS, **settings: Any) -> list[Any]:
    requests = [
        BatchRequest(custom_id=str(place), messages=[ModelRequest.user_text_prompt(row)])
        for place, row in enumerate(rows)
    ]
    return await clock.run(model_request_batch(model, requests, clock=clock, **settings))


async def live(model: Model, prompt: str) -> ModelResponse:
    return await model.request([ModelRequest.user_text_prompt(prompt)], None, ModelRequestParameters())


def collector(model: Model, clock: ManualClock, **settings: Any) -> Agent[None, str | PendingModelResponse]:
    batching = BatchModelRequests(clock=clock, **settings)
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])


async def left_pending(clock: ManualClock, model: Model, rows: Sequence[str] = ROWS) -> list[list[ModelMessage]]:
    """The stored histories of runs that ended when their batch was submitted."""
    agent = collector(model, clock, max_requests=len(rows), max_wait=None)
    runs = await clock.run(asyncio.gather(*[agent.run(row) for row in rows]))
    assert all(isinstance(run.output, PendingModelResponse) for run in runs)
    return [stored(run.all_messages()) for run in runs]


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def outcome_of(run: Any) -> Any:
    try:
        return (await run).output
    except ModelAPIError as error:
        return error


# h08 and h11: what is missing is sent again, and nothing else


@pytest.mark.parametrize('way', ['lists', 'agents'])
async def test_of_answers_errors_and_rows_without_either_only_these_are_sent_again(
    way: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError | None:
        if request.text == 'row 4':
            return FakeError(400, None, 'it is not to be')
        return None if request.text == 'row 1' and request.attempt == 0 else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        if way == 'lists':
            outcomes = await run(clock, model)
        else:
            agent = Agent(model, capabilities=[BatchModelRequests(max_requests=len(ROWS), clock=clock)])
            outcomes = await clock.run(asyncio.gather(*[outcome_of(agent.run(row)) for row in ROWS]))
        assert [*outcomes[:4], outcomes[5]] == [*ANSWERS[:4], ANSWERS[5]]
        assert isinstance(outcomes[4], ModelHTTPError)
        assert 'it is not to be' in str(outcomes[4])
        assert [len(batch.requests) for batch in harness.fake(fake).batches.values()] == [len(ROWS), 1]


async def test_stored_histories_of_a_batch_that_expired_get_what_was_done_and_send_the_rest_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        if harness.provider == 'google':
            fake.google.partial_results = True
        harness.fake(fake).inject('batch', 'expire', done=2, seconds=600)
        model = lane_model(fake)
        histories = await left_pending(clock, model)
        await clock.advance(timedelta(hours=1))
        agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
        # What is sent again is waited for as a history is, by the framework.
        with Agent.using_sleep(clock.sleep):
            runs = await clock.run(asyncio.gather(*[agent.run(message_history=history) for history in histories]))
        assert [run.output for run in runs] == ANSWERS
        assert [len(batch.requests) for batch in harness.fake(fake).batches.values()] == [len(ROWS), 4]
        assert Counter(row.text for row in harness.fake(fake).billed) == Counter(ROWS)


# h12: someone cancels the batch elsewhere


async def test_stored_histories_of_a_batch_that_somebody_cancelled_get_what_was_done_and_send_nothing_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, None, 'it is not to be') if request.text == 'row 1' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        if harness.provider == 'google':
            fake.google.partial_results = True
        harness.fake(fake).inject('batch', 'cancel', done=2)
        model = lane_model(fake)
        histories = await left_pending(clock, model)
        await clock.advance(timedelta(hours=1))
        agent = collector(model, clock)
        outcomes = [await outcome_of(agent.run(message_history=history)) for history in histories]
        assert outcomes[0] == ANSWERS[0]
        assert 'it is not to be' in str(outcomes[1])
        assert all(isinstance(outcome, ModelAPIError) and 'cancel' in str(outcome) for outcome in outcomes[2:])
        assert (harness.fake(fake).count('create'), harness.fake(fake).count('cancel')) == (1, 0)


# h13: 404s that pass


async def test_a_404_between_good_checks_and_one_of_the_results_are_faults(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(minutes=5)) as fake:
        for after in (0, 2):
            harness.fake(fake).inject('status', 'http', status=404, after=after)
        if harness.download != 'status':
            harness.fake(fake).inject(harness.download, 'http', status=404)
        assert await run(clock, lane_model(fake), max_resubmissions=0) == ANSWERS
        assert harness.fake(fake).count('create') == 1


# h15: results cut short


@pytest.mark.parametrize('announced', [True, False])
async def test_results_that_break_off_twice_are_read_until_they_are_whole(
    announced: bool, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('cut')
    with FakeProviders(echo, clock=clock) as fake:
        for fraction in (0.6, 0.9):
            harness.fake(fake).inject('download', 'cut', fraction=fraction, announced=announced)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 1
        assert harness.fake(fake).count('download') == 3


# h20: lone surrogates


@pytest.mark.parametrize('way', ['lists', 'agents'])
async def test_half_a_character_in_a_prompt_or_an_answer_costs_no_other_row(
    way: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    rows = ['row 0', 'half \ud835 of a pair', 'row 2', 'row 3']

    def answer(request: FakeRequest) -> str:
        return 'half \udcb2 pair' if request.text == 'row 2' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        if way == 'lists':
            outcomes = await run(clock, model, rows)
        else:
            agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
            runs = [agent.run(row) for row in rows]
            done = await clock.run(asyncio.gather(*runs, return_exceptions=True))
            outcomes = [one if isinstance(one, BaseException) else one.output for one in done]
        assert [outcomes[0], outcomes[3]] == [echo_of('row 0'), echo_of('row 3')]
        # As live: a prompt that cannot be written in UTF-8 is sent escaped, or is that row's error.
        assert isinstance(outcomes[1], RequestNotSendable) or outcomes[1] == echo_of(rows[1])
        assert outcomes[2] in ('half \udcb2 pair', 'half \ufffd pair')
        assert harness.fake(fake).count('create') == 1


def echo_of(row: str) -> str:
    return f'answer to {row}'


# h22: batches cut by bytes


async def test_a_row_that_is_larger_than_a_batch_is_its_own_error_and_the_others_are_answered(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    rows = [*(f'{number}{"x" * 900}' for number in range(7)), 'x' * 5_000]
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        outcomes = await run(clock, model, rows, max_bytes=4_000)
        assert outcomes[:7] == [echo_of(row) for row in rows[:7]]
        assert isinstance(outcomes[7], RequestNotSendable)
        assert all(len(batch.requests) < 7 for batch in harness.fake(fake).batches.values())
        sent = sum(len(batch.requests) for batch in harness.fake(fake).batches.values())
        assert sent == 7

        batching = BatchModelRequests(max_bytes=4_000, clock=clock)
        agent = Agent(model, capabilities=[batching])
        done = await clock.run(asyncio.gather(*[outcome_of(agent.run(row)) for row in rows]))
        assert done[:7] == outcomes[:7]
        assert isinstance(done[7], RequestNotSendable)


# h24: answers that were cut off


LIMIT_IS_NAMED = hasattr(exceptions, 'OutputTokenLimitExceeded')
"""Whether pydantic-ai names the limit as the reason why text that was cut off is not what it was to be."""


def truncated(harness: Harness, request: FakeRequest, answer: str | FakeToolCall, fake: FakeProviders) -> Any:
    """The provider's answer, which ended because the limit of tokens was reached."""
    body: Any = harness.fake(fake).write_answer(request, answer, 100)
    match harness.name:
        case 'responses':
            body |= {'status': 'incomplete', 'incomplete_details': {'reason': 'max_output_tokens'}}
            for item in body['output']:
                item['status'] = 'incomplete'
        case 'chat':
            body['choices'][0]['finish_reason'] = 'length'
        case 'anthropic':
            body['stop_reason'] = 'max_tokens'
        case _:
            body['candidates'][0]['finishReason'] = 'MAX_TOKENS'
    return body


def without_text(harness: Harness, body: Any) -> Any:
    """The answer that was cut off before there was anything of it but a thought."""
    match harness.name:
        case 'responses':
            body['output'] = [{'type': 'reasoning', 'id': 'rs_1', 'summary': [], 'status': 'incomplete'}]
        case 'chat':
            body['choices'][0]['message']['content'] = ''
        case 'anthropic':
            body['content'] = [{'type': 'thinking', 'thinking': 'secret plan', 'signature': 'c2ln'}]
        case _:
            body['candidates'][0]['content']['parts'] = [{'text': 'secret plan', 'thought': True}]
    return body


def of_a_provider(harness: Harness) -> None:
    if harness.name == 'native':
        pytest.skip('the model says of no answer why it ended')


async def test_an_answer_that_was_cut_off_says_so_and_is_not_asked_for_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    of_a_provider(harness)
    with FakeProviders(clock=clock) as fake:
        fake.answer = lambda request: (
            truncated(harness, request, 'half of an', fake) if request.text == 'row 1' else echo(request)
        )
        outcomes = await responses(clock, lane_model(fake))
        assert [outcome.finish_reason for outcome in outcomes] == ['stop', 'length', *['stop'] * 4]
        assert [outcome.text for outcome in outcomes] == [ANSWERS[0], 'half of an', *ANSWERS[2:]]
        assert harness.fake(fake).count('create') == 1


@pytest.mark.parametrize('cut', ['json', 'no json', 'thought'])
async def test_typed_output_that_was_cut_off_fails_as_live_and_names_the_limit(
    cut: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    of_a_provider(harness)
    if cut != 'thought' and not LIMIT_IS_NAMED:
        pytest.skip('this version of pydantic-ai asks again for text that was cut off')
    said = {'json': '{"name": "a", "score"', 'no json': 'Wait, the parser will see', 'thought': 'x'}[cut]

    def answer(request: FakeRequest) -> Any:
        body = truncated(harness, request, said, fake)
        return without_text(harness, body) if cut == 'thought' else body

    with FakeProviders(clock=clock) as fake:
        fake.answer = answer
        model = lane_model(fake)
        agent = Agent(model, output_type=PromptedOutput(Label))
        with pytest.raises(UnexpectedModelBehavior) as alive:
            await agent.run('row 1')
        with pytest.raises(UnexpectedModelBehavior, match='token limit') as batched:
            await clock.run(agent.run('row 1', capabilities=[BatchModelRequests(clock=clock)]))
        assert type(batched.value) is type(alive.value)
        assert str(batched.value) == str(alive.value)
        assert harness.fake(fake).count('create') == 1


async def test_a_tool_call_that_was_cut_off_fails_as_live_and_names_the_limit(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    if harness.provider != 'openai':
        pytest.skip('arguments are an object, which is whole or is none')

    def answer(request: FakeRequest) -> Any:
        body = truncated(harness, request, FakeToolCall('final_result', {'name': 'a', 'score': 1}), fake)
        call = body['output'][0] if harness.name == 'responses' else _only_call(body)['function']
        call['arguments'] = call['arguments'][:-3]
        return body

    with FakeProviders(clock=clock) as fake:
        fake.answer = answer
        agent = Agent(lane_model(fake), output_type=Label)
        with pytest.raises(IncompleteToolCall) as alive:
            await agent.run('row 1')
        asked = harness.fake(fake).count('live')
        with pytest.raises(IncompleteToolCall, match='token limit') as batched:
            await clock.run(agent.run('row 1', capabilities=[BatchModelRequests(clock=clock)]))
        assert str(batched.value) == str(alive.value)
        assert harness.fake(fake).count('create') == asked


def _only_call(body: Any) -> Any:
    (call,) = body['choices'][0]['message']['tool_calls']
    return call


# h25: what is counted


def with_cached_tokens(harness: Harness, body: Any) -> Any:
    """The answer to a prompt of a million tokens, most of which the provider had cached."""
    match harness.name:
        case 'responses':
            details = {'input_tokens_details': {'cached_tokens': 800_000}}
            body['usage'] |= {'input_tokens': 1_000_000, 'output_tokens': 100_000, **details}
        case 'chat':
            details = {'prompt_tokens_details': {'cached_tokens': 800_000}}
            body['usage'] |= {'prompt_tokens': 1_000_000, 'completion_tokens': 100_000, **details}
        case 'anthropic':
            # Here what is cached is counted beside the rest.
            body['usage'] |= {'input_tokens': 200_000, 'output_tokens': 100_000, 'cache_read_input_tokens': 800_000}
        case _:
            counts = {'promptTokenCount': 1_000_000, 'candidatesTokenCount': 100_000, 'totalTokenCount': 1_100_000}
            body['usageMetadata'] |= {**counts, 'cachedContentTokenCount': 800_000}
    return body


async def test_cached_tokens_are_counted_as_live_at_the_price_of_a_batch_each_time_they_are_collected(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('price')
    with FakeProviders(clock=clock) as fake:
        fake.answer = lambda request: with_cached_tokens(
            harness, harness.fake(fake).write_answer(request, echo(request), 100)
        )
        model = lane_model(fake)
        alive = await live(model, 'row 0')
        (batched,) = await responses(clock, model, ['row 0'])
        assert batched.usage == alive.usage
        assert (batched.usage.input_tokens, batched.usage.cache_read_tokens) == (1_000_000, 800_000)
        price = batched.cost().total_price
        assert 0 < price < alive.cost().total_price

        (history,) = await left_pending(clock, model, ['row 0'])
        await clock.advance(timedelta(hours=1))
        for _ in range(3):
            result = await collector(model, clock).run(message_history=history)
            assert result.output == ANSWERS[0]
            assert (result.usage.input_tokens, result.usage.cache_read_tokens) == (1_000_000, 800_000)
            assert result.usage.output_tokens == 100_000
            assert result.usage.cost == price
        assert harness.fake(fake).count('create') == 2
