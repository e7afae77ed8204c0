"""The lane of models that bring batch methods of their own: the framework's test models, and anybody's."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.batch import Batch, BatchResult, EncodedBatchRequest
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch import BatchModelRequests, BatchRequest, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import (
    CreateUnsettled,
    NoBatchLane,
    RequestNotSendable,
    ResultUnreadable,
    batch_of,
)
from pydantic_ai_batch.testing import ManualClock

from .harness import requests_of

ROWS = [f'row {n}' for n in range(7)]
ANSWERS = [f'answer to {row}' for row in ROWS]


def requests(rows: Sequence[str] = ROWS) -> list[BatchRequest]:
    return requests_of(rows)


def prompt_of(messages: Sequence[ModelMessage]) -> str:
    texts = [
        part.content
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    assert isinstance(texts[-1], str)
    return texts[-1]


def echo(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart(f'answer to {prompt_of(messages)}')])


class Homemade(Model):
    """A model of a third party: batches that a test moves along, of bodies in a form of its own."""

    def __init__(self, clock: ManualClock, *, max_requests: int = 100, max_bytes: int | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.limits = (max_requests, max_bytes)
        self.processing = timedelta(minutes=5)
        self.created: list[list[EncodedBatchRequest]] = []
        self.calls: list[str] = []
        self.encoded = 0
        self.cancelled: list[str] = []
        self.create_error: Exception | None = None
        self.status_errors: list[Exception] = []
        self.result_errors: list[Exception] = []
        self.handle: Callable[[Batch], Batch] = lambda batch: batch
        self.answer: Callable[[EncodedBatchRequest], BatchResult | None] = lambda request: BatchResult(
            custom_id=request.custom_id, status='succeeded', body=json.dumps({'text': f'answer to {request.body}'})
        )
        self.order: Callable[[list[BatchResult]], list[BatchResult]] = lambda results: results[::-1]

    @property
    def model_name(self) -> str:
        return 'homemade-1'

    @property
    def system(self) -> str:
        return 'homemade'

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        raise AssertionError('a batched request is never sent live')

    @property
    def batch_max_requests(self) -> int | None:
        return self.limits[0]

    @property
    def batch_max_bytes(self) -> int | None:
        return self.limits[1]

    def batch_request_size(self, request: EncodedBatchRequest) -> int:
        return len(request.body.encode('utf-8', 'surrogatepass')) + 10

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        self.encoded += 1
        text = prompt_of(request.messages)
        if text == 'cannot be written':
            raise ValueError('it is not for writing down')
        if text == 'not allowed':
            raise UserError('say something else')
        group = 'homemade:fast' if text.startswith('fast') else 'homemade'
        return EncodedBatchRequest(custom_id=request.custom_id, group=group, body=text)

    async def batch_create(self, requests: Sequence[EncodedBatchRequest]) -> Batch:
        self.calls.append('create')
        self.created.append(list(requests))
        if self.create_error is not None:
            raise self.create_error
        return self._batch(len(self.created) - 1, self.now)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now(), tz=UTC)

    def _batch(self, number: int, created_at: datetime) -> Batch:
        ended = self.now - created_at >= self.processing
        batch = Batch(
            id=f'job-{number}',
            model_name=self.model_name,
            provider_name=self.system,
            group=self.created[number][0].group,
            status='ended' if ended else 'in_progress',
            created_at=created_at,
            request_count=len(self.created[number]),
        )
        return self.handle(batch)

    async def batch_status(self, batch: Batch) -> Batch:
        self.calls.append('status')
        if self.status_errors:
            raise self.status_errors.pop(0)
        return self._batch(int(batch.id.removeprefix('job-')), batch.created_at.replace(tzinfo=UTC))

    async def batch_results(self, batch: Batch) -> list[BatchResult]:
        self.calls.append('results')
        if self.result_errors:
            raise self.result_errors.pop(0)
        rows = self.created[int(batch.id.removeprefix('job-'))]
        return self.order([result for row in rows if (result := self.answer(row)) is not None])

    async def batch_cancel(self, batch: Batch) -> Batch:
        self.calls.append('cancel')
        self.cancelled.append(batch.id)
        return replace(batch, status='canceling')

    def batch_decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        if result.status != 'succeeded':
            told: dict[str, Any] = json.loads(result.body or '{"status":500}')
            raise ModelHTTPError(told['status'], self.model_name, told)
        text = json.loads(result.body or '')['text']
        return ModelResponse(parts=[TextPart(text)], usage=RequestUsage(input_tokens=3, output_tokens=2))


@pytest.fixture
def homemade(clock: ManualClock) -> Homemade:
    return Homemade(clock)


async def run(clock: ManualClock, model: Model, rows: Sequence[str] = ROWS, **settings: Any) -> list[Any]:
    """The text of each row's answer, or its error."""
    outcomes = await clock.run(model_request_batch(model, requests(rows), clock=clock, **settings))
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


# Answers


async def test_answers_of_a_function_model_are_joined_to_their_rows(clock: ManualClock):
    model = FunctionModel(echo)
    assert lane_for(model).info.name == 'native'
    assert await run(clock, model) == ANSWERS


async def test_a_test_model_answers_a_list_and_an_agent(clock: ManualClock):
    assert await run(clock, TestModel(custom_output_text='yes')) == ['yes'] * len(ROWS)
    agent = Agent(TestModel(custom_output_args=7), output_type=int)
    result = await clock.run(agent.run('x', capabilities=[BatchModelRequests(clock=clock)]))
    assert result.output == 7


async def test_a_model_of_ones_own_is_joined_by_id_in_whatever_order_it_answers(homemade: Homemade, clock: ManualClock):
    assert await run(clock, homemade) == ANSWERS
    assert homemade.calls.count('create') == homemade.calls.count('results') == 1
    ids = [row.custom_id for row in homemade.created[0]]
    assert len(set(ids)) == len(ROWS)
    assert not set(ids) & set(ROWS)


async def test_a_wrapped_model_is_served_like_the_model_in_it(homemade: Homemade, clock: ManualClock):
    assert await run(clock, WrapperModel(homemade)) == ANSWERS
    assert homemade.calls.count('create') == 1


async def test_agents_that_call_tools_run_in_two_rounds(clock: ManualClock):
    called: list[str] = []
    model = TestModel()
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, max_requests=3)])

    @agent.tool_plain
    def lookup(name: str) -> str:
        called.append(name)
        return 'found'

    results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS[:3]]))
    assert [result.output for result in results] == ['{"lookup":"found"}'] * 3
    assert len(called) == 3


async def test_agents_of_one_capability_share_a_batch(homemade: Homemade, clock: ManualClock):
    agent = Agent(homemade, capabilities=[BatchModelRequests(clock=clock)])
    results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
    assert [result.output for result in results] == ANSWERS
    assert [len(batch) for batch in homemade.created] == [len(ROWS)]
    assert [result.usage.input_tokens for result in results] == [3] * len(ROWS)


async def test_two_instances_of_a_test_model_do_not_share_a_batch(clock: ManualClock):
    capability = BatchModelRequests(clock=clock)
    agents = [Agent(TestModel(custom_output_text=text), capabilities=[capability]) for text in ('one', 'two')]
    results = await clock.run(asyncio.gather(*[agent.run('x') for agent in agents]))
    assert [result.output for result in results] == ['one', 'two']


# Splitting


async def test_batches_split_at_the_models_own_number_of_requests(clock: ManualClock):
    model = Homemade(clock, max_requests=3)
    assert await run(clock, model) == ANSWERS
    assert [len(batch) for batch in model.created] == [3, 3, 1]
    assert await run(clock, model, max_requests=1_000) == ANSWERS
    assert [len(batch) for batch in model.created[3:]] == [3, 3, 1]


async def test_batches_split_at_the_models_own_number_of_bytes_by_its_own_count(clock: ManualClock):
    # Each takes 15 bytes by the model's own word.
    model = Homemade(clock, max_bytes=45)
    assert await run(clock, model) == ANSWERS
    assert [len(batch) for batch in model.created] == [3, 3, 1]


async def test_a_row_that_no_batch_of_the_model_holds_is_its_own_error(clock: ManualClock):
    model = Homemade(clock, max_bytes=45)
    outcomes = await run(clock, model, ['row 0', 'x' * 36, 'row 1'])
    assert [outcomes[0], outcomes[2]] == ['answer to row 0', 'answer to row 1']
    assert isinstance(outcomes[1], RequestNotSendable)
    assert '46 bytes' in str(outcomes[1])
    assert [len(batch) for batch in model.created] == [2]


async def test_groups_of_the_models_own_do_not_mix(homemade: Homemade, clock: ManualClock):
    rows = ['row 0', 'fast 1', 'row 2', 'fast 3']
    assert await run(clock, homemade, rows) == [f'answer to {row}' for row in rows]
    assert sorted([row.body for row in batch] for batch in homemade.created) == [
        ['fast 1', 'fast 3'],
        ['row 0', 'row 2'],
    ]
    assert {row.group for batch in homemade.created for row in batch} == {'homemade', 'homemade:fast'}


async def test_a_body_reaches_the_model_as_the_model_wrote_it(homemade: Homemade, clock: ManualClock):
    rows = ['line\nbreak', '\u2028', '"quoted"', 'half \ud800', 'ü🙂']
    assert await run(clock, homemade, rows) == [f'answer to {row}' for row in rows]
    assert [row.body for row in homemade.created[0]] == rows


# Errors


async def test_errors_of_rows_are_theirs_alone(clock: ManualClock):
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = prompt_of(messages)
        if prompt == 'row 2':
            raise ModelHTTPError(400, 'function', {'message': 'no'})
        return echo(messages, info)

    outcomes = await run(clock, FunctionModel(answer))
    assert [*outcomes[:2], *outcomes[3:]] == [*ANSWERS[:2], *ANSWERS[3:]]
    assert isinstance(outcomes[2], ModelHTTPError)
    assert (outcomes[2].status_code, outcomes[2].body) == (400, {'message': 'no'})


async def test_what_a_model_decodes_into_no_answer_is_unreadable_and_kept(homemade: Homemade, clock: ManualClock):
    def answer(request: EncodedBatchRequest) -> BatchResult:
        body = 'no json' if request.body == 'row 2' else '{"text":"fine"}'
        return BatchResult(custom_id=request.custom_id, status='succeeded', body=body)

    homemade.answer = answer
    outcomes = await run(clock, homemade)
    assert [*outcomes[:2], *outcomes[3:]] == ['fine'] * 6
    assert isinstance(outcomes[2], ResultUnreadable)
    assert outcomes[2].body == 'no json'
    assert homemade.calls.count('create') == 1


@pytest.mark.parametrize(
    ('text', 'error'), [('cannot be written', 'not for writing'), ('not allowed', 'say something')]
)
async def test_a_row_that_a_model_cannot_encode_is_its_own_error(
    text: str, error: str, homemade: Homemade, clock: ManualClock
):
    outcomes = await run(clock, homemade, ['row 0', text, 'row 1'])
    assert [outcomes[0], outcomes[2]] == ['answer to row 0', 'answer to row 1']
    assert isinstance(outcomes[1], RequestNotSendable)
    assert error in str(outcomes[1])


async def test_a_passing_error_is_submitted_again_and_a_lasting_one_is_not(homemade: Homemade, clock: ManualClock):
    attempts: dict[str, int] = {}

    def answer(request: EncodedBatchRequest) -> BatchResult:
        attempts[request.body] = attempts.get(request.body, 0) + 1
        status = {'row 1': 500, 'row 2': 400}.get(request.body)
        if status is not None and (status == 400 or attempts[request.body] == 1):
            return BatchResult(custom_id=request.custom_id, status='errored', body=json.dumps({'status': status}))
        return BatchResult(custom_id=request.custom_id, status='succeeded', body='{"text":"fine"}')

    homemade.answer = answer
    outcomes = await run(clock, homemade)
    assert [*outcomes[:2], *outcomes[3:]] == ['fine'] * 6
    assert isinstance(outcomes[2], ModelHTTPError)
    assert [[row.body for row in batch] for batch in homemade.created] == [ROWS, ['row 1']]


async def test_rows_without_a_result_are_submitted_again_up_to_the_limit(homemade: Homemade, clock: ManualClock):
    answer = homemade.answer
    homemade.answer = lambda request: None if request.body == 'row 4' else answer(request)
    outcomes = await run(clock, homemade, max_resubmissions=1)
    assert [*outcomes[:4], *outcomes[5:]] == [*ANSWERS[:4], *ANSWERS[5:]]
    assert isinstance(outcomes[4], ModelAPIError)
    assert 'job-1' in str(outcomes[4])
    assert [[row.body for row in batch] for batch in homemade.created] == [ROWS, ['row 4']]


async def test_results_of_nobodys_and_results_that_come_twice_change_nothing(homemade: Homemade, clock: ManualClock):
    def order(results: list[BatchResult]) -> list[BatchResult]:
        late = BatchResult(custom_id=results[0].custom_id, status='succeeded', body='{"text":"too late"}')
        unknown = BatchResult(custom_id='nobody', status='succeeded', body='{"text":"for nobody"}')
        return [unknown, *results, late]

    homemade.order = order
    assert await run(clock, homemade) == ANSWERS
    assert homemade.calls.count('create') == 1


async def test_a_job_that_failed_as_a_whole_fails_its_rows_and_names_itself(homemade: Homemade, clock: ManualClock):
    """As the framework's own models do, by raising when the results are asked for."""
    error = ModelHTTPError(400, 'homemade-1', {'message': 'the file is not to our liking'})
    homemade.result_errors = [error] * 9
    outcomes = await run(clock, homemade)
    assert len(outcomes) == len(ROWS)
    for outcome in outcomes:
        assert isinstance(outcome, ModelHTTPError)
        assert outcome is not error
        assert (outcome.status_code, outcome.body) == (400, {'message': 'the file is not to our liking'})
        batch = batch_of(outcome)
        assert batch is not None
        assert (batch.id, batch.status) == ('job-0', 'ended')
    assert homemade.calls == ['create', *['status'] * homemade.calls.count('status'), 'results']


async def test_checks_and_downloads_that_fail_in_passing_are_made_again(homemade: Homemade, clock: ManualClock):
    homemade.status_errors = [ModelHTTPError(503, 'homemade-1'), ModelConnectionError('homemade-1', 'reset')]
    homemade.result_errors = [ModelHTTPError(500, 'homemade-1')]
    assert await run(clock, homemade, max_resubmissions=0) == ANSWERS
    assert homemade.calls.count('create') == 1
    assert homemade.calls.count('results') == 2


# Creates


@pytest.mark.parametrize(
    'lost',
    [
        ModelConnectionError('homemade-1', 'the reply was lost', phase='read'),
        ModelConnectionError('homemade-1', 'nobody knows'),
        ModelHTTPError(500, 'homemade-1'),
        ModelHTTPError(408, 'homemade-1'),
        ModelAPIError('homemade-1', 'something went wrong'),
    ],
    ids=['read', 'no phase', '500', '408', 'other'],
)
async def test_a_lost_reply_is_unsettled_at_once_and_nothing_is_sent_again(
    lost: Exception, homemade: Homemade, clock: ManualClock
):
    homemade.create_error = lost
    started = clock.now()
    outcomes = await run(clock, homemade)
    assert clock.now() == started
    assert homemade.calls == ['create']
    (tag,) = {row.custom_id.partition('-')[0] for row in homemade.created[0]}
    for outcome in outcomes:
        assert isinstance(outcome, CreateUnsettled)
        assert tag in str(outcome)
        assert f'{len(ROWS)} requests' in str(outcome)
        assert outcome.__cause__ is lost


async def test_an_agents_lost_reply_is_unsettled_too(homemade: Homemade, clock: ManualClock):
    homemade.create_error = ModelConnectionError('homemade-1', 'the reply was lost', phase='read')
    agent = Agent(homemade, capabilities=[BatchModelRequests(clock=clock, max_requests=2)])
    outcomes = await clock.run(asyncio.gather(agent.run('a'), agent.run('b'), return_exceptions=True))
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * 2
    assert homemade.calls == ['create']


async def test_a_create_that_was_never_sent_is_sent_again(homemade: Homemade, clock: ManualClock):
    homemade.create_error = ModelConnectionError('homemade-1', 'no route', phase='connect')
    outcomes = await run(clock, homemade)
    assert homemade.calls == ['create'] * 4
    assert [type(outcome) for outcome in outcomes] == [ModelConnectionError] * len(ROWS)


async def test_a_refused_create_is_every_rows_error(homemade: Homemade, clock: ManualClock):
    homemade.create_error = ModelHTTPError(422, 'homemade-1')
    outcomes = await run(clock, homemade)
    assert homemade.calls == ['create']
    assert [type(outcome) for outcome in outcomes] == [ModelHTTPError] * len(ROWS)


# Histories and cancelling


def _collector(model: Model, clock: ManualClock) -> Agent[None, str | PendingModelResponse]:
    capability = BatchModelRequests(clock=clock, max_requests=1)
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=[capability])


def _stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def test_a_pending_history_is_collected_in_the_same_process(homemade: Homemade, clock: ManualClock):
    pending = await clock.run(_collector(homemade, clock).run('hello'))
    assert isinstance(pending.output, PendingModelResponse)
    history = _stored(pending.all_messages())
    again = await _collector(homemade, clock).run(message_history=history)
    assert isinstance(again.output, PendingModelResponse)
    await clock.advance(timedelta(minutes=6))
    done = await _collector(homemade, clock).run(message_history=_stored(again.all_messages()))
    assert done.output == 'answer to hello'
    assert homemade.calls.count('create') == 1


async def test_a_test_models_pending_history_is_collected_by_its_own_instance_alone(clock: ManualClock):
    model = TestModel(custom_output_text='yes')
    pending = await clock.run(_collector(model, clock).run('hello'))
    assert isinstance(pending.output, PendingModelResponse)
    history = _stored(pending.all_messages())
    with pytest.raises(UserError):
        await _collector(TestModel(custom_output_text='no'), clock).run(message_history=history)
    assert (await _collector(model, clock).run(message_history=history)).output == 'yes'


async def test_a_pending_history_is_not_sent_live_by_an_agent_without_the_capability(
    homemade: Homemade, clock: ManualClock
):
    pending = await clock.run(_collector(homemade, clock).run('hello'))
    with pytest.raises(UserError, match='BatchModelRequests'):
        await Agent(homemade).run(message_history=_stored(pending.all_messages()))
    assert homemade.calls == ['create']


async def test_a_cancelled_call_cancels_its_batch(homemade: Homemade, clock: ManualClock):
    call = asyncio.ensure_future(model_request_batch(homemade, requests(), clock=clock))
    await clock.until_asleep()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert homemade.cancelled == ['job-0']


async def test_a_batch_is_cancelled_with_the_last_run_that_waits_for_it(homemade: Homemade, clock: ManualClock):
    agent = Agent(homemade, capabilities=[BatchModelRequests(clock=clock, max_requests=2)])
    runs = [asyncio.ensure_future(agent.run(row)) for row in ROWS[:2]]
    await clock.until_asleep()
    runs[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[0]
    assert homemade.cancelled == []
    runs[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await runs[1]
    assert homemade.cancelled == ['job-0']


async def test_a_batch_that_takes_weeks_is_waited_for(homemade: Homemade, clock: ManualClock):
    homemade.processing = timedelta(weeks=3)
    assert lane_for(homemade).window_of('') is None
    assert await run(clock, homemade) == ANSWERS


async def test_waiting_for_a_batch_that_never_ends_ends_with_request_timeout(homemade: Homemade, clock: ManualClock):
    homemade.processing = timedelta.max
    capability = BatchModelRequests(clock=clock, max_requests=1)
    agent = Agent(homemade, capabilities=[capability], model_settings=ModelSettings(request_timeout=0.1))
    with pytest.raises(ModelAPIError, match=r'(?i)time'):
        await agent.run('x')
    assert homemade.calls == ['create', 'cancel']


@pytest.mark.parametrize('make', [TestModel, lambda: FunctionModel(echo)], ids=['test', 'function'])
async def test_a_batch_that_has_ended_when_it_is_created_is_not_waited_for(
    make: Callable[[], Model], clock: ManualClock
):
    started = clock.now()
    agent = Agent(make(), capabilities=[BatchModelRequests(clock=clock, max_requests=1)])
    await clock.run(agent.run('x'))
    await run(clock, make())
    assert clock.now() == started


# What a model may make of its methods


@pytest.mark.parametrize('error', [OSError('the connection was reset'), ValueError('the reply is no JSON')])
async def test_errors_of_any_class_that_pass_are_outlived(error: Exception, homemade: Homemade, clock: ManualClock):
    homemade.status_errors = [error]
    homemade.result_errors = [error]
    assert await run(clock, homemade, max_resubmissions=0) == ANSWERS
    assert homemade.calls.count('create') == 1


@pytest.mark.parametrize('error', [OSError('the connection was reset'), ValueError('the reply is no JSON')])
@pytest.mark.parametrize('call', ['status', 'results'])
async def test_errors_of_any_class_that_last_leave_the_batch_and_name_it(
    call: str, error: Exception, homemade: Homemade, clock: ManualClock
):
    failing = homemade.status_errors if call == 'status' else homemade.result_errors
    failing += [error] * 9
    outcomes = await run(clock, homemade)
    for outcome in outcomes:
        assert str(error) in str(outcome)
        batch = batch_of(outcome)
        assert batch is not None
        assert batch.id == 'job-0'
    assert homemade.calls.count('create') == 1
    assert homemade.cancelled == []


@pytest.mark.parametrize('error', [OSError('the connection was reset'), ValueError('the reply is no JSON')])
async def test_a_create_that_raises_what_tells_nobody_what_came_of_it_is_unsettled(
    error: Exception, homemade: Homemade, clock: ManualClock
):
    homemade.create_error = error
    outcomes = await run(clock, homemade)
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * len(ROWS)
    agent = Agent(homemade, capabilities=[BatchModelRequests(clock=clock, max_requests=1)])
    with pytest.raises(CreateUnsettled, match=str(error)):
        await clock.run(agent.run('x'))
    assert homemade.calls == ['create'] * 2


@pytest.mark.parametrize('from_the_start', [True, False])
async def test_a_status_in_a_word_of_the_models_own_counts_as_running_and_is_paid_once(
    from_the_start: bool, homemade: Homemade, clock: ManualClock
):
    def handle(batch: Batch) -> Batch:
        in_a_word = batch.status == 'in_progress' and (from_the_start or homemade.now > batch.created_at)
        return replace(batch, status=cast('Any', 'pondering')) if in_a_word else batch

    homemade.handle = handle
    history = _stored((await clock.run(_collector(homemade, clock).run('hello'))).all_messages())
    for _ in range(2):
        await clock.advance(timedelta(minutes=1))
        result = await clock.run(_collector(homemade, clock).run(message_history=history))
        assert isinstance(result.output, PendingModelResponse)
        history = _stored(result.all_messages())
    await clock.advance(homemade.processing)
    assert (await clock.run(_collector(homemade, clock).run(message_history=history))).output == 'answer to hello'
    assert homemade.calls.count('create') == 1


@pytest.mark.filterwarnings('ignore:Pydantic serializer warnings')
@pytest.mark.parametrize('odd', [{'id': 17}, {'request_count': None}, {'provider_details': 'none'}])
@pytest.mark.parametrize('from_the_start', [True, False])
async def test_a_batch_that_no_history_can_hold_is_neither_paid_twice_nor_cancelled(
    from_the_start: bool, odd: dict[str, Any], homemade: Homemade, clock: ManualClock
):
    def handle(batch: Batch) -> Batch:
        return replace(batch, **odd) if from_the_start or homemade.now > batch.created_at else batch

    homemade.handle = handle
    (result,) = await clock.run(asyncio.gather(_collector(homemade, clock).run('hello'), return_exceptions=True))
    for _ in range(3):
        await clock.advance(timedelta(minutes=1))
        if not isinstance(result, BaseException):
            again = _collector(homemade, clock).run(message_history=_stored(result.all_messages()))
            (result,) = await clock.run(asyncio.gather(again, return_exceptions=True))
    assert homemade.calls.count('create') == 1
    assert homemade.cancelled == []


async def test_a_time_without_a_zone_is_taken_for_utc(homemade: Homemade, clock: ManualClock):
    homemade.handle = lambda batch: replace(batch, created_at=batch.created_at.replace(tzinfo=None))
    assert await run(clock, homemade) == ANSWERS
    agent = Agent(homemade, capabilities=[BatchModelRequests(clock=clock, max_requests=1)])
    assert (await clock.run(agent.run('x'))).output == 'answer to x'


@pytest.mark.parametrize('counts', ['7 of 7', [7], {'completed': None}, {'completed': 70, 'failed': 7}])
async def test_details_in_a_form_of_the_models_own_mean_nothing(counts: object, homemade: Homemade, clock: ManualClock):
    homemade.handle = lambda batch: replace(batch, provider_details={'request_counts': counts})
    answer = homemade.answer
    homemade.answer = lambda request: (
        None if len(homemade.created) == 1 and request.body == 'row 4' else answer(request)
    )
    assert await run(clock, homemade) == ANSWERS
    assert [[row.body for row in batch] for batch in homemade.created] == [ROWS, ['row 4']]
    assert homemade.calls.count('results') == 2


async def test_a_row_whose_size_the_model_cannot_tell_costs_no_other_row(homemade: Homemade, clock: ManualClock):
    def size(request: EncodedBatchRequest) -> int:
        return len(request.body.encode())  # As the framework's own method does.

    homemade.batch_request_size = size
    outcomes = await run(clock, homemade, ['row 0', 'half \ud800', 'row 1'])
    assert [outcomes[0], outcomes[2]] == ['answer to row 0', 'answer to row 1']
    assert outcomes[1] == 'answer to half \ud800' or isinstance(outcomes[1], RequestNotSendable)


# What is left behind


def in_memory(model: Model) -> dict[str, Any]:
    """The requests that the framework's in-memory models keep for batches that are still to be created."""
    return vars(model)['_in_memory_batch_state'].requests


@pytest.mark.parametrize('make', [TestModel, lambda: FunctionModel(echo)], ids=['test', 'function'])
async def test_asking_for_a_models_identity_leaves_at_most_one_request_behind(make: Callable[[], Model]):
    model = make()
    groups = {await lane_for(model).identity() for _ in range(50)}
    assert len(groups) == 1
    assert len(in_memory(model)) <= 1


async def test_many_calls_with_one_model_leave_nothing_more_behind(clock: ManualClock):
    model = FunctionModel(echo)
    for _ in range(5):
        assert await run(clock, model) == ANSWERS
        agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, max_requests=1)])
        assert (await clock.run(agent.run('x'))).output == 'answer to x'
    assert len(in_memory(model)) <= 1


async def test_a_model_is_asked_once_for_its_identity(homemade: Homemade):
    for _ in range(5):
        assert await lane_for(homemade).identity() == 'homemade'
    assert homemade.encoded == 1


async def test_a_model_is_let_go_when_its_work_is_done(clock: ManualClock):
    model = FunctionModel(echo)
    alive = weakref.ref(model)
    await lane_for(model).identity()
    assert await run(clock, model) == ANSWERS
    del model
    gc.collect()
    assert alive() is None


async def test_a_model_without_batch_methods_has_no_lane(homemade: Homemade, clock: ManualClock):
    homemade.limits = (None, None)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(NoBatchLane, match='Homemade'):
        lane_for(homemade)
    with pytest.raises(NoBatchLane):
        await model_request_batch(homemade, requests(), clock=clock)
    assert homemade.calls == []
