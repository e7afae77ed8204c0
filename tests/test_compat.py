"""The framework's undocumented formats and hooks, which only `compat` and the wrapper may know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.test import TestModel

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.batched_model import BatchedModel
from pydantic_ai_batch.compat import (
    Ticket,
    counted,
    error_body,
    group_of,
    model_id_of,
    read_ticket,
    same_group,
    settle_details,
    with_model_id,
    without_ticket,
    write_ticket,
)
from pydantic_ai_batch.pool import Pool
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.testing import FakeProviders, ManualClock

AT = datetime(2030, 1, 1, tzinfo=UTC)


def batch(**details: Any) -> Batch:
    return Batch(
        id='batch_1',
        model_name='m',
        provider_name='openai',
        group='{"credential":"c","endpoint":"e","model":"m"}',
        status='in_progress',
        created_at=AT,
        request_count=2,
        provider_details=details or None,
    )


FULL = Ticket(
    custom_id='tag-1',
    batch=batch(status='in_progress', input_file_id='file-1', request_counts={'total': 2, 'completed': 1}),
    lane='openai',
    checked_at=AT,
    polls=7,
    failed_checks=1,
    not_found=2,
    last_seen=AT + timedelta(seconds=1.5),
    resubmissions=1,
    continued_response_id='msg_1',
    trace_context={'traceparent': f'00-{"1" * 32}-{"2" * 16}-01', 'tracestate': 'a=b'},
)


def pending(ticket: Ticket, **changes: Any) -> ModelResponse:
    response = ModelResponse(
        parts=[],
        state='suspended',
        provider_response_id=ticket.response_id,
        provider_details=write_ticket(ticket),
    )
    return replace(response, **changes)


def stored(*messages: ModelMessage) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(list(messages)))


# The ticket


FRESH = Ticket(custom_id='tag-0', batch=batch(), lane='openai')


@pytest.mark.parametrize('ticket', [FULL, FRESH], ids=['full', 'fresh'])
def test_a_ticket_comes_back_from_json_as_it_was(ticket: Ticket):
    written = write_ticket(ticket)
    assert json.loads(json.dumps(written)) == written
    assert read_ticket(stored(pending(ticket))[0]) == ticket
    assert read_ticket(pending(ticket, provider_details=json.loads(json.dumps(written)))) == ticket


def test_the_frameworks_own_ticket_is_read_without_a_lane():
    theirs = {
        'custom_id': 'tag-1',
        'batch': json.loads(json.dumps(write_ticket(FULL)['batch']['batch'])),
        'polls': 3,
    }
    ticket = read_ticket(pending(FULL, provider_details={'batch': theirs}))
    assert ticket == Ticket(custom_id='tag-1', batch=FULL.batch, polls=3)


async def test_the_ticket_that_the_framework_writes_today_is_read(model_of: ModelOf):
    with FakeProviders(processing=timedelta(hours=1)) as fake:
        agent = Agent(model_of(fake), output_type=[str, PendingModelResponse], capabilities=[BuiltIn(max_requests=1)])
        history = stored(*(await agent.run('x')).all_messages())
        ticket = read_ticket(history[-1])
        assert ticket is not None
        assert ticket.batch.id in fake.openai.batches
        assert ticket.lane is None


@pytest.mark.parametrize(
    'message',
    [
        None,
        ModelRequest.user_text_prompt('x'),
        ModelResponse(parts=[]),
        pending(FULL, state='complete'),
        pending(FULL, provider_response_id='batch:an older one:tag-1'),
        pending(FULL, provider_response_id=None),
        pending(FULL, provider_details=None),
        pending(FULL, provider_details={'batch': None}),
        pending(FULL, provider_details={'batch': {'id': 'batch_1', 'custom_id': 'tag-1'}}),
        pending(FULL, provider_details={'batch': {**write_ticket(FULL)['batch'], 'polls': 'many'}}),
    ],
)
def test_what_does_not_wait_for_a_batch_has_no_ticket(message: ModelMessage | None):
    assert read_ticket(message) is None


def test_an_answer_keeps_where_it_came_from_and_waits_for_nothing():
    answer = ModelResponse(parts=[TextPart('x')], provider_details={'finish_reason': 'stop'})
    settled = settle_details(answer, FULL)
    assert settled.provider_details == {
        'finish_reason': 'stop',
        'batch': {'id': 'batch_1', 'custom_id': 'tag-1', 'resubmissions': 1},
    }
    assert read_ticket(settled) is None
    assert read_ticket(replace(settled, state='suspended', provider_response_id=FULL.response_id)) is None


def test_a_turn_that_goes_on_elsewhere_loses_its_ticket_and_keeps_the_rest():
    turn = pending(FULL, parts=[TextPart('so far')], provider_details={**write_ticket(FULL), 'kept': 1})
    continued = without_ticket(turn, FULL)
    assert continued.parts == [TextPart('so far')]
    assert continued.provider_details == {'kept': 1}
    assert continued.provider_response_id == 'msg_1'
    assert without_ticket(pending(FULL), FULL).provider_details is None


# Groups


def group(**changes: Any) -> str:
    return json.dumps({'credential': 'c', 'endpoint': 'e', 'model': 'm', **changes})


@pytest.mark.parametrize(
    ('asking', 'same'),
    [
        (group(), True),
        (group(credential='rotated'), True),
        (json.dumps({'model': 'm', 'endpoint': 'e', 'credential': 'c'}), True),
        (group(endpoint='another'), False),
        (group(model='another'), False),
        (group(url='/v1/chat/completions'), False),
        ('{}', False),
    ],
)
def test_only_the_credential_may_differ(asking: str, same: bool):
    assert same_group(group(), asking) is same
    assert same_group(asking, group()) is same


def test_a_request_may_name_another_model_id_than_its_model():
    plain = json.dumps({'credential': 'c', 'endpoint': 'e', 'model': 'm'}, sort_keys=True)
    assert with_model_id(plain, None) == with_model_id(plain, 'm') == plain
    named = with_model_id(plain, 'p')
    assert (model_id_of(plain), model_id_of(named), model_id_of(with_model_id(named, 'q'))) == (None, 'p', 'q')
    assert with_model_id(named, 'm') == plain
    assert same_group(named, plain)


@pytest.mark.parametrize('odd', ['', 'not json', '[]', 'null'])
def test_a_group_key_that_cannot_be_read_is_said_so(odd: str):
    with pytest.raises(UserError, match='group key'):
        group_of(odd)


async def test_the_frameworks_group_has_the_parts_that_are_compared(fake: FakeProviders, model_of: ModelOf):
    async def parts(model: Model) -> dict[str, Any]:
        encoded = await model.batch_encode(BatchRequest(custom_id='', messages=[ModelRequest.user_text_prompt('x')]))
        return group_of(encoded.group)

    one, two = await parts(model_of(fake, api_key='sk-one')), await parts(model_of(fake, api_key='sk-two'))
    assert {key for key in one if one[key] != two[key]} == {'credential'}
    assert 'sk-one' not in json.dumps(one)
    other = await parts(model_of(fake, 'gpt-5-nano', api_key='sk-one'))
    assert not same_group(json.dumps(one), json.dumps(other))


# Bodies and counts


async def test_an_error_body_is_what_the_framework_decodes(model: OpenAIResponsesModel):
    body = error_body(429, {'error': {'code': 'rate_limit_exceeded', 'message': 'slow down'}})
    request = BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('x')])
    with pytest.raises(ModelHTTPError) as raised:
        model.batch_decode(BatchResult(custom_id='a', status='errored', body=body), request)
    assert raised.value.status_code == 429
    assert raised.value.provider_error_code == 'rate_limit_exceeded'


@pytest.mark.parametrize(
    ('details', 'count'),
    [
        ({}, 0),
        ({'request_counts': None}, 0),
        ({'request_counts': {}}, 0),
        ({'request_counts': {'completed': 3}}, 3),
        ({'request_counts': {'completed': 3, 'failed': 2, 'total': 9}}, 5),
    ],
)
def test_what_a_provider_counts_is_what_it_is_done_with(details: dict[str, Any], count: int):
    assert counted(batch(**details)) == count


# The hooks that the framework looks up by name


@pytest.mark.parametrize(
    'name', ['_limits_polls', '_release_suspended_response', '_withdraws_rejected_suspended_response']
)
def test_the_framework_still_has_the_hook(name: str):
    assert callable(getattr(Model, name, None))


@pytest.fixture
async def hours(clock: ManualClock, model_of: ModelOf) -> AsyncIterator[tuple[FakeProviders, OpenAIResponsesModel]]:
    with FakeProviders(clock=clock, processing=timedelta(hours=20)) as fake:
        yield fake, model_of(fake)


async def pending_history(clock: ManualClock, model: Model, batching: BatchModelRequests) -> list[ModelMessage]:
    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[batching])
    return stored(*(await clock.run(agent.run('x'))).all_messages())


async def test_a_run_whose_every_poll_goes_through_the_graph_is_not_given_up_after_a_thousand(
    hours: tuple[FakeProviders, OpenAIResponsesModel], clock: ManualClock
):
    """As in a durable engine, where each pass is a wrapper of its own and so never parks."""
    fake, model = hours
    settings: dict[str, Any] = {'poll_interval': timedelta(seconds=60), 'max_poll_interval': timedelta(seconds=60)}
    batching = BatchModelRequests(max_requests=1, clock=clock, **settings)

    class ForgetsWhatItReturned(BatchedModel):
        async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
            response = await super().request(*args, **kwargs)
            self._parkable = None
            return response

    class Forgets(BatchModelRequests):
        def get_wrapper_model(self, model: Model) -> Model | None:
            return ForgetsWhatItReturned(model, self._pool)

    history = await pending_history(clock, model, batching)
    agent = Agent(model, capabilities=[Forgets(max_requests=1, clock=clock, **settings)])
    with Agent.using_sleep(clock.sleep):
        result = await clock.run(agent.run(message_history=history))
    assert isinstance(result.output, str)
    assert fake.openai.count('status') > 1_000
    assert (fake.openai.count('create'), fake.openai.count('cancel')) == (1, 0)


async def test_a_request_that_a_run_leaves_for_later_keeps_its_batch_from_being_cancelled(
    hours: tuple[FakeProviders, OpenAIResponsesModel], clock: ManualClock
):
    fake, model = hours
    batching = BatchModelRequests(max_requests=2, clock=clock)
    left = asyncio.ensure_future(pending_history(clock, model, batching))
    waits = asyncio.ensure_future(Agent(model, capabilities=[batching]).run('waits'))
    await left
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert fake.openai.count('cancel') == 0


async def test_the_hooks_leave_other_models_pending_responses_to_them():
    other, calls = ModelResponse(parts=[], state='suspended', provider_response_id='resp_1'), list[str]()

    class Background(TestModel):
        def continuation_delay(self, response: ModelResponse) -> float | None:
            return 2.5

        async def cancel_suspended_response(self, response: ModelResponse) -> None:
            calls.append('cancel')

        def _limits_polls(self, response: ModelResponse) -> bool:
            return True

        def _release_suspended_response(self, response: ModelResponse) -> None:
            calls.append('release')

        def _withdraws_rejected_suspended_response(self, response: ModelResponse) -> bool:
            return False

    try:
        model = BatchedModel(Background(), Pool(BatchSettings()))
    except UserError:
        pytest.skip('no lane serves this model')
    assert model.continuation_delay(other) == 2.5
    await model.cancel_suspended_response(other)
    model._release_suspended_response(other)
    assert model._limits_polls(other)
    assert not model._withdraws_rejected_suspended_response(other)
    assert calls == ['cancel', 'release']
    assert not model._limits_polls(pending(FULL))
    assert model._withdraws_rejected_suspended_response(pending(FULL))
