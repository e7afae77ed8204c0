"""What every lane owes: one suite, run over each of them against a fake of its own."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter
from pydantic_ai import Agent, ModelMessagesTypeAdapter, ModelRequest, PendingModelResponse, UsageLimits
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelHTTPError,
    SuspendedResponseExpired,
    UsageLimitExceeded,
    UserError,
)
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model

from pydantic_ai_batch import Batch, BatchModelRequests, BatchRequest, lane_for, model_request_batch
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock

from .harness import EVERY, Harness, echo, harness_of, requests_of
from .native_model import FakeService

LaneModel = Callable[..., Model]


@pytest.fixture(params=[harness.name for harness in EVERY])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Every lane in turn."""
    return harness_of(request.param, monkeypatch)


ROWS = [f'row {n}' for n in range(12)]


ANSWERS = [f'answer to {row}' for row in ROWS]


def all_at_once(clock: ManualClock) -> BatchModelRequests:
    """Waits for all rows: the first request of an SDK client waits for a thread, which a clock by hand may overtake."""
    return BatchModelRequests(max_requests=len(ROWS), max_wait=None, clock=clock)


def requests(rows: list[str] = ROWS) -> list[BatchRequest]:
    return requests_of(rows)


async def run(clock: ManualClock, model: Model, rows: list[str] = ROWS, **settings: Any) -> list[Any]:
    """The text of each row's answer, or its error."""
    outcomes = await clock.run(model_request_batch(model, requests(rows), clock=clock, **settings))
    assert len(outcomes) == len(rows)
    return [outcome.text if isinstance(outcome, ModelResponse) else outcome for outcome in outcomes]


def billed(harness: Harness, fake: FakeProviders) -> Counter[str]:
    return Counter(row.text for row in harness.fake(fake).billed)


def errors_in(outcomes: list[Any]) -> int:
    return sum(isinstance(outcome, Exception) for outcome in outcomes)


# The straight path


async def test_each_row_gets_its_own_answer_and_is_billed_once(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, ordered=False) as fake:
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert billed(harness, fake) == Counter(ROWS)
        assert harness.fake(fake).count('create') == 1
        assert lane_for(lane_model(fake)).info.name == harness.lane


async def test_agents_get_typed_answers(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('tools')

    class Label(BaseModel):
        name: str
        score: int

    with FakeProviders(clock=clock) as fake:
        agent = Agent(lane_model(fake), output_type=Label, capabilities=[all_at_once(clock)])
        results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
        assert all(isinstance(result.output, Label) for result in results)
        assert harness.fake(fake).count('create') == 1


async def test_ids_on_the_wire_are_ours_and_fit_every_provider(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        await run(clock, lane_model(fake))
        ids = [row.custom_id for row in harness.fake(fake).billed]
        assert len(set(ids)) == len(ROWS)
        assert all(re.fullmatch(r'[a-z2-7]{20}-\d+', custom_id) for custom_id in ids)


async def test_batches_split_at_the_number_of_requests(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        assert await run(clock, lane_model(fake), max_requests=5) == ANSWERS
        assert harness.fake(fake).count('create') == 3


async def test_batches_split_at_the_number_of_bytes_as_encoded(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    rows = [f'{n}{"x" * 2_000}' for n in range(6)]
    with FakeProviders(echo, clock=clock) as fake:
        assert errors_in(await run(clock, lane_model(fake), rows, max_bytes=5_000)) == 0
        assert harness.fake(fake).count('create') == 3


async def test_where_no_price_in_a_batch_is_known_none_is_claimed(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    if 'cost' not in harness.lacks:
        pytest.skip('its price in a batch is known')
    with FakeProviders(echo, clock=clock) as fake:
        batching = BatchModelRequests(clock=clock)
        await clock.run(Agent(lane_model(fake), capabilities=[batching]).run('hello'))
        assert (batching.stats().cost, batching.stats().unpriced) == (0, 1)


async def test_without_a_batch_price_what_the_lane_takes_off_is_taken_off_the_live_price(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('cost')
    if 'price' not in harness.lacks or harness.lane == 'xai':
        pytest.skip('its batch price is known')
    with FakeProviders(echo, clock=clock) as fake:
        batching, model = BatchModelRequests(clock=clock), lane_model(fake)
        result = await clock.run(Agent(model, capabilities=[batching]).run('hello'))
        live = result.response.cost().total_price
        assert result.usage.cost == live / 2 > 0
        assert (batching.stats().cost, batching.stats().unpriced) == (live / 2, 0)
        limits = UsageLimits(cost_limit=live * 3 / 4)
        assert (await clock.run(Agent(model, capabilities=[batching]).run('hello', usage_limits=limits))).output
        (answer,) = await clock.run(model_request_batch(model, requests_of(['hello']), clock=clock))
        assert isinstance(answer, ModelResponse)
        assert answer.usage.cost == live / 2


async def test_the_price_is_the_batch_price(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('price')
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(clock=clock)])
        result = await clock.run(agent.run('hello'))
        answer = result.all_messages()[-1]
        assert isinstance(answer, ModelResponse)
        assert answer.provider_details is not None
        assert answer.provider_details['processing'] == 'batch'
        batch = answer.cost().total_price
        live = replace(answer, provider_details=None).cost().total_price
        assert batch == pytest.approx(live / 2, rel=Decimal('0.02'))
        assert result.usage.cost == batch
        await clock.run(agent.run('hello', usage_limits=UsageLimits(cost_limit=(batch + live) / 2)))
        with pytest.raises(UsageLimitExceeded):
            await clock.run(agent.run('hello', usage_limits=UsageLimits(cost_limit=batch * 9 / 10)))


# Errors of rows


@pytest.mark.parametrize('status', [400, 401, 403, 404, 408, 409, 429, 500, 503, 529])
async def test_a_rows_error_has_the_class_of_a_live_one(
    status: int, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(status, None, 'it is not to be') if request.text == 'row 3' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        outcomes = await run(clock, model, max_resubmissions=0)
        assert [*outcomes[:3], *outcomes[4:]] == [*ANSWERS[:3], *ANSWERS[4:]]
        with pytest.raises(ModelHTTPError) as live:
            await model.request([ModelRequest.user_text_prompt('row 3')], None, _no_parameters())
        batched = outcomes[3]
        if not harness.states_status or (harness.provider == 'anthropic' and status in (408, 409, 503)):
            # A batch's error line carries Anthropic's type of the error alone, and these share that of a 500 or 400.
            assert isinstance(batched, ModelHTTPError)
        else:
            assert type(batched) is type(live.value)


def _no_parameters() -> Any:
    from pydantic_ai.models import ModelRequestParameters

    return ModelRequestParameters()


async def test_a_passing_error_is_submitted_again(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    def answer(request: FakeRequest) -> str | FakeError:
        failing = request.text in ROWS[:4] and request.attempt == 0
        return FakeError(500, None, 'oh no') if failing else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 2
        assert billed(harness, fake) == Counter(ROWS)


# Promise 1: never pay twice


def settles(model: Model) -> bool:
    """Whether its lane can find out what came of a create. Where it cannot, the rows are told that nobody knows."""
    return lane_for(model).info.findable


def unsettled_in(outcomes: list[Any]) -> int:
    return sum(isinstance(outcome, CreateUnsettled) for outcome in outcomes)


@pytest.mark.parametrize('fault', ['lose_reply', 'garbage'])
async def test_a_lost_create_reply_is_settled_and_paid_once(
    fault: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', fault)
        model = lane_model(fake)
        outcomes = await run(clock, model)
        if settles(model):
            assert outcomes == ANSWERS
        else:
            assert unsettled_in(outcomes) == len(ROWS)
            # There is a batch, which runs to its end unread.
            await clock.advance(timedelta(hours=1))
        assert harness.fake(fake).count('create') == 1
        assert billed(harness, fake) == Counter(ROWS)


async def test_a_create_that_made_nothing_is_sent_again_only_when_the_listing_shows_it(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', status=503)
        model = lane_model(fake)
        outcomes = await run(clock, model)
        if settles(model):
            assert outcomes == ANSWERS
            assert harness.fake(fake).count('create') == 2
            assert harness.fake(fake).count(harness.look) >= 4
            assert billed(harness, fake) == Counter(ROWS)
        else:
            assert unsettled_in(outcomes) == len(ROWS)
            assert harness.fake(fake).count('create') == 1


async def test_a_lost_reply_beside_a_batch_of_the_same_size_is_not_mistaken_for_it(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        other = [f'other {n}' for n in range(len(ROWS))]
        harness.fake(fake).inject('create', 'lose_reply', after=1)
        outcomes = await clock.run(
            asyncio.gather(
                model_request_batch(model, requests(other), clock=clock),
                model_request_batch(model, requests(), clock=clock),
            )
        )
        answers = [[getattr(outcome, 'text', outcome) for outcome in of_call] for of_call in outcomes]
        expected = [[f'answer to {row}' for row in other], ANSWERS]
        lost = [unsettled_in(of_call) for of_call in answers]
        assert sorted(lost) == ([0, 0] if settles(model) else [0, len(ROWS)])
        assert all(answers[call] == expected[call] for call in (0, 1) if not lost[call])
        assert harness.fake(fake).count('create') == 2
        assert billed(harness, fake) == Counter([*ROWS, *other])


async def test_a_refused_create_is_not_repeated(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('create', 'http', status=harness.refused)
        outcomes = await run(clock, lane_model(fake))
        assert all(isinstance(outcome, ModelHTTPError) for outcome in outcomes)
        assert harness.fake(fake).count('create') == 1
        assert harness.fake(fake).batches == {}


# Promise 2 and 6: what was paid is read, and faults say nothing


@pytest.mark.parametrize('fault', ['reset', 'lose_reply', 'garbage'])
async def test_faults_of_checks_and_downloads_are_outlived(
    fault: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('status', fault)
        harness.fake(fake).inject(harness.download, fault, after=1 if harness.download == 'status' else 0)
        assert await run(clock, lane_model(fake), max_resubmissions=0) == ANSWERS
        assert harness.fake(fake).count('create') == 1


@pytest.mark.parametrize('status', [429, 500, 502, 503])
async def test_a_check_that_fails_in_passing_is_made_again(
    status: int, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('status', 'http', status=status, times=3)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 1


async def test_a_404_right_after_the_create_is_a_fault(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('status', 'http', status=404, times=2)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 1


async def test_the_sdks_own_retries_are_off(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('status', 'http', status=500)
        await run(clock, lane_model(fake))
        at = [call.at for call in harness.fake(fake).calls if call.operation == 'status']
        assert at == sorted(set(at))


async def test_a_download_that_breaks_off_is_made_again(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('cut')
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('download', 'cut', fraction=0.6, times=2)
        assert await run(clock, lane_model(fake), max_resubmissions=0) == ANSWERS


async def test_a_download_that_keeps_failing_leaves_the_batch_collectable(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('download')
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        history = await _submitted(clock, model, 'hello')
        await clock.advance(timedelta(hours=1))
        harness.fake(fake).inject('download', 'http', status=500, times=4)
        agent = _collector(model, clock)
        for _ in range(3):
            history = _stored((await agent.run(message_history=history)).all_messages())
        with pytest.raises(ModelHTTPError):
            await agent.run(message_history=history)
        assert (await agent.run(message_history=history)).output == 'answer to hello'
        assert harness.fake(fake).count('cancel') == 0


async def test_expired_requests_are_submitted_again_and_finished_ones_are_not(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('window')
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'expire', done=5)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 2
        if harness.provider != 'google':
            # A Gemini batch that expires has no results at all, not even of what was run.
            assert billed(harness, fake) == Counter(ROWS)


@pytest.mark.parametrize('end', ['its own', 'expire', 'cancel'])
async def test_results_that_nobody_counts_and_that_come_after_the_end_are_paid_once(
    end: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        provider = harness.fake(fake)
        for fault in ('delay_results', end):
            if reason := provider.inapplicable.get(fault):
                pytest.skip(f'{fault}: {reason}')
        provider.inject('batch', 'delay_results', seconds=40)
        if end != 'its own':
            provider.inject('batch', end, done=5)
        # Looked at sooner after its end than its results are there.
        every = timedelta(seconds=30)
        outcomes = await run(clock, lane_model(fake), poll_interval=every, max_poll_interval=every)
        assert errors_in(outcomes) == (7 if end == 'cancel' else 0)
        assert billed(harness, fake) == Counter(ROWS[:5] if end == 'cancel' else ROWS)
        assert provider.count('create') == (2 if end == 'expire' else 1)


async def test_a_history_that_is_resumed_time_and_again_waits_for_results_that_come_after_the_end(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        provider = harness.fake(fake)
        for fault in ('delay_results', 'expire'):
            if reason := provider.inapplicable.get(fault):
                pytest.skip(f'{fault}: {reason}')
        provider.inject('batch', 'delay_results', seconds=60)
        provider.inject('batch', 'expire', done=1, seconds=60)
        agent = Agent(
            lane_model(fake),
            output_type=[str, PendingModelResponse],
            capabilities=[BatchModelRequests(max_requests=1, max_resubmissions=0, clock=clock)],
        )
        result = await clock.run(agent.run('row'))
        await clock.advance(timedelta(seconds=60))
        for _ in range(20):
            history = ModelMessagesTypeAdapter.validate_json(result.all_messages_json())
            result = await clock.run(agent.run(message_history=history))
            if not isinstance(result.output, PendingModelResponse):
                break
            await clock.advance(timedelta(seconds=5))
        assert result.output == 'answer to row'


async def test_a_batch_that_expired_before_anything_ran_is_sent_again_though_nobody_counts(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        provider = harness.fake(fake)
        for fault in ('delay_results', 'expire'):
            if reason := provider.inapplicable.get(fault):
                pytest.skip(f'{fault}: {reason}')
        provider.inject('batch', 'delay_results')
        provider.inject('batch', 'expire', done=0)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert billed(harness, fake) == Counter(ROWS)


async def test_what_a_cancelled_batch_has_finished_is_kept_and_the_rest_is_not_sent_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'cancel', done=5)
        outcomes = await run(clock, lane_model(fake))
        assert errors_in(outcomes) == (12 if harness.provider == 'google' else 7)
        assert harness.fake(fake).count('create') == 1


# Promise 3 and 4: one odd line costs one row, and rows are joined by ID


async def test_missing_rows_are_submitted_again(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('lines', 'drop', rows=3)
        assert await run(clock, lane_model(fake)) == ANSWERS
        assert harness.fake(fake).count('create') == 2


async def test_a_repeated_result_and_an_unknown_one_change_nothing(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('lines', 'duplicate', rows=2)
        harness.fake(fake).inject('lines', 'unknown_id', rows=2)
        assert await run(clock, lane_model(fake), max_resubmissions=0) == ANSWERS


@pytest.mark.parametrize(
    'odd', [b'', b'[]', b'null', b'17', b'{"custom_id":null,"key":null,"result":null}', b'{"no":"id"}', b'\xff\xfe']
)
async def test_an_odd_line_costs_no_other_row(odd: bytes, harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('lines')
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).rewrite_results = lambda lines, kind: [odd, *lines[:5], odd, *lines[5:], odd]
        assert await run(clock, lane_model(fake), max_resubmissions=0) == ANSWERS


async def test_answers_with_raw_line_separators_are_whole(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    text = 'a\u2028b\u2029c\x85d'
    with FakeProviders(lambda request: text, clock=clock) as fake:
        if harness.download != 'status':
            harness.fake(fake).rewrite_results = lambda lines, kind: [
                json.dumps(json.loads(line), ensure_ascii=False).encode() for line in lines
            ]
        assert await run(clock, lane_model(fake)) == [text] * len(ROWS)


# Promise 7: nothing secret is stored


async def test_no_key_is_in_a_history_a_handle_or_a_log(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    key = 'sk-very-secret-key'
    caplog.set_level(logging.DEBUG, logger='pydantic_ai_batch')
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake, key)
        history = await _submitted(clock, model, 'hello')
        harness.fake(fake).inject('create', 'lose_reply')
        harness.fake(fake).inject('status', 'http', status=403)
        outcomes = await run(clock, model)
        texts = [ModelMessagesTypeAdapter.dump_json(history).decode(), repr(outcomes), caplog.text]
        assert all(key not in text for text in texts)


# Promise 8: waiting is bounded


async def test_a_batch_that_never_ends_is_given_up_a_quarter_past_its_window(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('window')
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'stick', done=0)
        started = clock.now()
        model = lane_model(fake)
        outcomes = await run(clock, model)
        lane = lane_for(model)
        window = lane.window_of(await lane.identity())
        assert window is not None
        assert all(isinstance(outcome, ModelAPIError) for outcome in outcomes)
        assert window * 1.25 <= timedelta(seconds=clock.now() - started) < window * 1.25 + timedelta(minutes=15)
        assert harness.fake(fake).count('cancel') == 0


async def test_an_unknown_status_counts_as_running_and_is_logged_once(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    harness.needs('word')
    word = f'pondering-{harness.name}'
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('batch', 'status_word', word=word)
        assert await run(clock, lane_model(fake), poll_interval=timedelta(seconds=5)) == ANSWERS
        assert len([record for record in caplog.records if word in record.getMessage()]) == 1


async def test_a_cancelled_call_cancels_its_batch(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('cancel')
    with FakeProviders(echo, clock=clock) as fake:
        call = asyncio.ensure_future(model_request_batch(lane_model(fake), requests(), clock=clock))
        await clock.until_asleep()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert harness.fake(fake).count('cancel') == 1


# Promise 9 and 10: histories


def _collector(model: Model, clock: ManualClock) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])


def _stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def _submitted(clock: ManualClock, model: Model, prompt: str) -> list[ModelMessage]:
    result = await clock.run(_collector(model, clock).run(prompt))
    assert isinstance(result.output, PendingModelResponse)
    return _stored(result.all_messages())


async def test_a_stored_history_is_collected_elsewhere(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        history = await _submitted(clock, lane_model(fake), 'hello')
        agent = _collector(lane_model(fake), clock)
        again = await agent.run(message_history=history)
        assert isinstance(again.output, PendingModelResponse)
        await clock.advance(timedelta(hours=1))
        assert (await agent.run(message_history=_stored(again.all_messages()))).output == 'answer to hello'
        assert harness.fake(fake).count('create') == 1


async def test_collecting_many_histories_costs_a_status_request_a_sweep_and_one_download(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=1)) as fake:
        model = lane_model(fake)
        agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[all_at_once(clock)])
        results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
        histories = [_stored(result.all_messages()) for result in results]
        collector = _collector(model, clock)
        for sweep in (1, 2):
            results = [await collector.run(message_history=history) for history in histories]
            histories = [_stored(result.all_messages()) for result in results]
            assert harness.fake(fake).count('status') == sweep
            await clock.advance(timedelta(minutes=5))
        await clock.advance(timedelta(hours=2))
        results = [await collector.run(message_history=history) for history in histories]
        assert [result.output for result in results] == ANSWERS
        assert harness.fake(fake).count('status') == 3
        if harness.download != 'status':
            assert harness.fake(fake).count('download') == harness.files


async def test_resuming_without_the_capability_is_refused(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        history = await _submitted(clock, lane_model(fake), 'hello')
        with pytest.raises(UserError, match='BatchModelRequests'):
            await Agent(lane_model(fake)).run(message_history=history)
        assert harness.fake(fake).count('live') == 0


async def test_another_projects_key_gets_nothing(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    with FakeProviders(echo, clock=clock) as fake:
        history = await _submitted(clock, lane_model(fake, 'mine'), 'secret')
        await clock.advance(timedelta(hours=1))
        await _collector(lane_model(fake, 'mine'), clock).run(message_history=history)
        agent = _collector(lane_model(fake, 'theirs'), clock)
        for _ in range(3):
            history = _stored((await agent.run(message_history=history)).all_messages())
        with pytest.raises(SuspendedResponseExpired):
            await agent.run(message_history=history)


async def test_results_past_their_retention_are_said_to_be_gone_and_never_sent_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    harness.needs('retention')
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        history = await _submitted(clock, model, 'hello')
        # Of a model's own provider nobody but itself knows.
        kept = lane_for(model).info.results_kept or FakeService.retention
        await clock.advance(kept + timedelta(days=2))
        agent = _collector(model, clock)
        for _ in range(3):
            history = _stored((await agent.run(message_history=history)).all_messages())
            await clock.advance(timedelta(minutes=1))
        with pytest.raises(SuspendedResponseExpired, match='without its last response'):
            await agent.run(message_history=history)
        assert harness.fake(fake).count('create') == 1


async def test_a_handle_survives_json_and_pickle(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    adapter = TypeAdapter(Batch)
    events: list[Batch] = []
    with FakeProviders(echo, clock=clock) as fake:
        await run(clock, lane_model(fake), progress=lambda event: events.append(event.batch) if event.batch else None)
    assert events
    for batch in events:
        assert adapter.validate_json(adapter.dump_json(batch)) == batch
        assert pickle.loads(pickle.dumps(batch)) == batch


async def test_uploaded_input_is_deleted_once_it_was_run(harness: Harness, lane_model: LaneModel, clock: ManualClock):
    harness.needs('upload')
    with FakeProviders(echo, clock=clock) as fake:
        await run(clock, lane_model(fake))
        assert harness.fake(fake).count('upload') == 1
        assert harness.fake(fake).count(harness.delete) == 1
