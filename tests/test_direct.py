"""Lists of requests: one outcome each, in their order."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from conftest import ModelOf
from ctrl_c import interrupted
from pydantic_ai import ModelRequest
from pydantic_ai.direct import model_request_batch as built_in
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse, SystemPromptPart, TextPart, UserPromptPart
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchRequest, model_request_batch, model_request_batch_sync
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.exceptions import NoBatchLane, RequestNotSendable, ResultUnreadable, batch_of
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock


def requests(*prompts: str, **settings: Any) -> list[BatchRequest]:
    return [
        BatchRequest(
            custom_id=f'row {n}',
            messages=[ModelRequest.user_text_prompt(prompt)],
            model_settings=ModelSettings(**settings) if settings else None,
        )
        for n, prompt in enumerate(prompts)
    ]


def texts(outcomes: list[ModelResponse | ModelAPIError]) -> list[str | None]:
    return [outcome.text if isinstance(outcome, ModelResponse) else None for outcome in outcomes]


NUMBERS = [str(n) for n in range(10)]


def echo(request: FakeRequest) -> str:
    return f'you said {request.text}'


async def test_answers_come_in_the_order_of_the_requests(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]
        assert [call.operation for call in fake.calls if call.operation != 'status'] == [
            'upload',
            'create',
            'download',
            'delete',
        ]


async def test_users_ids_never_go_on_the_wire(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        await clock.run(model_request_batch(model_of(fake), requests('a', 'b'), clock=clock))
        assert all(b'row ' not in call.body for call in fake.calls)


async def test_no_requests_are_no_batch(fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock):
    assert await clock.run(model_request_batch(model, [], clock=clock)) == []
    assert fake.calls == []


async def test_everything_goes_out_at_once_in_as_few_batches_as_it_fits_in(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    await clock.run(model_request_batch(model, requests(*NUMBERS), max_requests=4, clock=clock))
    assert sorted(len(batch.requests) for batch in fake.openai.batches.values()) == [2, 4, 4]


async def test_batches_are_split_by_bytes_as_encoded(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    await clock.run(model_request_batch(model, requests(*['ü' * 1_000] * 5), max_bytes=5_000, clock=clock))
    assert sorted(len(batch.requests) for batch in fake.openai.batches.values()) == [1, 2, 2]


async def test_a_row_that_is_too_large_for_any_batch_is_its_own_error(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    outcomes = await clock.run(
        model_request_batch(model, requests('a', 'x' * 9_000, 'c'), max_bytes=5_000, clock=clock)
    )
    assert [type(outcome) for outcome in outcomes] == [ModelResponse, RequestNotSendable, ModelResponse]
    assert '5,000' in str(outcomes[1])
    assert fake.openai.count('create') == 1


async def test_a_row_that_cannot_be_encoded_is_its_own_error(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    outcomes = await clock.run(model_request_batch(model, requests('a', 'half a pair: \ud835', 'c'), clock=clock))
    assert [type(outcome) for outcome in outcomes] == [ModelResponse, RequestNotSendable, ModelResponse]


async def test_a_rows_error_stands_in_its_place(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.text == '3' else 'fine'

    with FakeProviders(answer, clock=clock) as fake:
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        assert [type(outcome) is ModelResponse for outcome in outcomes] == [n != '3' for n in NUMBERS]
        error = outcomes[3]
        assert isinstance(error, ModelHTTPError)
        batch = batch_of(error)
        assert batch is not None
        assert batch.id in fake.openai.batches


async def test_rows_without_an_answer_are_submitted_again(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('lines', 'drop', rows=3)
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]
        assert [len(batch.requests) for batch in fake.openai.batches.values()] == [10, 3]


async def test_without_resubmissions_they_are_errors_that_name_the_batch(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('lines', 'drop', rows=3)
        outcomes = await clock.run(
            model_request_batch(model_of(fake), requests(*NUMBERS), max_resubmissions=0, clock=clock)
        )
        missing = [outcome for outcome in outcomes if isinstance(outcome, ModelAPIError)]
        assert len(missing) == 3
        assert all(next(iter(fake.openai.batches)) in str(error) for error in missing)


async def test_one_chunk_that_is_refused_does_not_stop_the_others(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=400)
    outcomes = await clock.run(model_request_batch(model, requests(*NUMBERS), max_requests=5, clock=clock))
    assert sum(isinstance(outcome, ModelHTTPError) for outcome in outcomes) == 5
    assert sum(isinstance(outcome, ModelResponse) for outcome in outcomes) == 5


async def test_one_batch_that_cannot_be_checked_fails_its_rows_and_is_not_cancelled(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('status', 'http', status=403)
    outcomes = await clock.run(model_request_batch(model, requests(*NUMBERS), max_requests=5, clock=clock))
    errors = [outcome for outcome in outcomes if isinstance(outcome, ModelAPIError)]
    assert len(errors) == 5
    assert len({id(error) for error in errors}) == 5
    assert all(batch_of(error) is not None for error in errors)
    assert fake.openai.count('cancel') == 0


@pytest.mark.parametrize('operation', ['status', 'download'])
@pytest.mark.parametrize('fault', ['reset', 'lose_reply', 'garbage'])
async def test_a_transport_fault_says_nothing_about_the_batch(
    operation: str, fault: str, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject(operation, fault, times=2)
        outcomes = await clock.run(
            model_request_batch(model_of(fake), requests(*NUMBERS), max_resubmissions=0, clock=clock)
        )
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]
        assert fake.openai.count('create') == 1


@pytest.mark.parametrize('announced', [True, False])
@pytest.mark.parametrize('fraction', [0.0, 0.6, 0.9])
async def test_a_download_that_breaks_off_is_downloaded_again(
    announced: bool, fraction: float, clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('download', 'cut', fraction=fraction, announced=announced, times=2)
        outcomes = await clock.run(
            model_request_batch(model_of(fake), requests(*NUMBERS), max_resubmissions=0, clock=clock)
        )
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]
        assert fake.openai.count('create') == 1
        assert Counter(row.text for row in fake.openai.billed) == Counter(NUMBERS)


async def test_a_damaged_line_that_says_whose_it_was_is_unreadable_and_not_paid_again(
    clock: ManualClock, model_of: ModelOf
):
    def damage(lines: list[bytes], kind: str) -> list[bytes]:
        return [line[:-40] if n == 4 else line for n, line in enumerate(lines)]

    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = damage
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        unreadable = [outcome for outcome in outcomes if isinstance(outcome, ModelAPIError)]
        assert [type(error) for error in unreadable] == [ResultUnreadable]
        assert 'you said' in str(unreadable[0].body)
        assert fake.openai.count('create') == 1


@pytest.mark.parametrize(
    'odd',
    [
        b'',
        b'   ',
        b'[]',
        b'null',
        b'17',
        b'{"custom_id":null,"response":null,"error":null}',
        b'{"no":"id"}',
        b'{"custom_id":"nobody-0","response":{"status_code":200,"body":{}}}',
        b'\xff\xfe not text',
        b'{"custom_id": 5}',
    ],
)
async def test_an_odd_line_shifts_no_row_and_stops_no_batch(odd: bytes, clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = lambda lines, kind: [odd, *lines[:5], odd, *lines[5:], odd]
        outcomes = await clock.run(
            model_request_batch(model_of(fake), requests(*NUMBERS), max_resubmissions=0, clock=clock)
        )
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]


async def test_answers_with_raw_line_separators_are_whole(clock: ManualClock, model_of: ModelOf):
    text = 'a\u2028b\u2029c\x85d\x1ce\x0bf'
    with FakeProviders(lambda request: text, clock=clock) as fake:
        fake.openai.rewrite_results = lambda lines, kind: [
            json.dumps(json.loads(line), ensure_ascii=False).encode() for line in lines
        ]
        outcomes = await clock.run(model_request_batch(model_of(fake), requests('a', 'b'), clock=clock))
        assert texts(outcomes) == [text, text]


async def test_a_success_beats_an_error_for_the_same_request(clock: ManualClock, model_of: ModelOf):
    def error_first(lines: list[bytes], kind: str) -> list[bytes]:
        if kind != 'output':
            return lines
        ids = [line.split(b'"custom_id"')[1].split(b'"')[1] for line in lines]
        errors = [b'{"custom_id":"%b","response":null,"error":{"code":"x","message":"no"}}' % wire for wire in ids]
        return [*errors, *lines]

    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = error_first
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]


async def test_the_first_of_two_answers_counts(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.rewrite_results = lambda lines, kind: [
            *lines,
            *[line.replace(b'you said', b'SECOND') for line in lines],
        ]
        outcomes = await clock.run(model_request_batch(model_of(fake), requests(*NUMBERS), clock=clock))
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]


async def test_batches_whose_results_show_late_are_waited_for(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('download', 'cut', fraction=0.0, announced=False, times=3)
        outcomes = await clock.run(
            model_request_batch(model_of(fake), requests(*NUMBERS), max_resubmissions=0, clock=clock)
        )
        assert texts(outcomes) == [f'you said {n}' for n in NUMBERS]


# What is wrong with the call


async def test_a_repeated_custom_id_is_refused(fake: FakeProviders, model: OpenAIResponsesModel):
    rows = [*requests('a', 'b'), *requests('c')]
    with pytest.raises(UserError, match="'row 0'"):
        await model_request_batch(model, rows)
    assert fake.calls == []


@pytest.mark.parametrize(
    ('settings', 'named'),
    [
        ({'timeout': 3}, '`timeout`'),
        ({'extra_headers': {'a': 'b'}}, '`extra_headers`'),
        ({'extra_body': {'stream': True}}, '`stream`'),
        ({'request_timeout': 5}, '`asyncio.timeout`'),
    ],
)
async def test_a_refused_setting_names_the_rows(
    settings: dict[str, Any], named: str, fake: FakeProviders, model: OpenAIResponsesModel
):
    rows = requests(*NUMBERS)
    for row in rows[:7]:
        row.model_settings = ModelSettings(**settings)
    with pytest.raises(UserError, match=named) as raised:
        await model_request_batch(model, rows)
    assert "Rows: 'row 0', 'row 1', 'row 2', 'row 3', 'row 4' and 2 more." in str(raised.value)
    assert fake.calls == []


async def test_background_mode_is_refused(fake: FakeProviders, model: OpenAIResponsesModel):
    rows = requests('a')
    rows[0].model_settings = OpenAIResponsesModelSettings(openai_background=True)
    with pytest.raises(UserError, match='openai_background'):
        await model_request_batch(model, rows)


async def test_max_retries_is_ignored_with_one_warning(clock: ManualClock, model: OpenAIResponsesModel):
    with pytest.warns(UserWarning, match='max_retries') as warned:
        outcomes = await clock.run(model_request_batch(model, requests('a', 'b', max_retries=3), clock=clock))
    assert all(isinstance(outcome, ModelResponse) for outcome in outcomes)
    assert len([warning for warning in warned if 'max_retries' in str(warning.message)]) == 1


async def test_messages_that_wait_for_a_batch_are_not_sent_again(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    from pydantic_ai import Agent, PendingModelResponse

    from pydantic_ai_batch import BatchModelRequests

    agent = Agent(model, output_type=[str, PendingModelResponse], capabilities=[BatchModelRequests(clock=clock)])
    history = (await clock.run(agent.run('x'))).all_messages()
    with pytest.raises(UserError, match='waits for batch'):
        await model_request_batch(model, [BatchRequest(custom_id='1', messages=history)])
    assert fake.openai.count('create') == 1


@pytest.mark.parametrize('row', ['hello', BatchRequest(custom_id='1', messages='hello')])  # pyright: ignore[reportArgumentType]
async def test_what_is_no_request_is_named_by_its_place(row: Any, fake: FakeProviders, model: OpenAIResponsesModel):
    with pytest.raises(UserError, match='Request 2 is not a `BatchRequest`'):
        await model_request_batch(model, [*requests('a'), row])
    assert fake.calls == []


async def test_a_setting_out_of_range_is_refused(model: OpenAIResponsesModel):
    with pytest.raises(UserError, match='`max_requests`'):
        await model_request_batch(model, requests('a'), max_requests=0)


async def test_a_model_without_a_lane_is_refused(clock: ManualClock):
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.test import TestModel

    with pytest.raises(NoBatchLane, match='FallbackModel'):
        await clock.run(model_request_batch(FallbackModel(TestModel(), TestModel()), requests('a'), clock=clock))


async def test_the_model_may_be_a_name(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('OPENAI_API_KEY', 'test')
    with FakeProviders(echo, clock=clock) as fake:
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        outcomes = await clock.run(model_request_batch('openai-responses:gpt-5-mini', requests('a'), clock=clock))
        assert texts(outcomes) == ['you said a']


# As the built-in sends


async def test_the_bodies_are_those_the_built_in_call_sends(clock: ManualClock, model_of: ModelOf):
    rows = [
        BatchRequest(
            custom_id=str(n),
            messages=[
                ModelRequest(
                    parts=[SystemPromptPart('be brief'), UserPromptPart(f'hello {n}')], instructions='be kind'
                ),
                ModelResponse(parts=[TextPart('hi')]),
                ModelRequest(parts=[UserPromptPart('and now?')], instructions='be kind'),
            ],
            model_settings=ModelSettings(max_tokens=50),
        )
        for n in range(3)
    ]
    with FakeProviders(echo, clock=clock) as ours, FakeProviders(echo, processing=timedelta(0)) as theirs:
        await clock.run(model_request_batch(model_of(ours), rows, clock=clock))
        brief = timedelta(milliseconds=10)
        await built_in(model_of(theirs), rows, poll_interval=brief, max_poll_interval=brief)
        sent = [[row.body for row in next(iter(f.openai.batches.values())).requests] for f in (ours, theirs)]
        assert sent[0] == sent[1]


# Cancelling


async def test_cancelling_the_call_cancels_the_batches_that_have_not_ended(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    call = asyncio.ensure_future(model_request_batch(model, requests(*NUMBERS), max_requests=5, clock=clock))
    await clock.until_asleep(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert fake.openai.count('cancel') == 2


async def test_a_call_cancelled_during_a_create_cancels_the_batch_that_came_of_it(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('batch', 'hide', seconds=3)
    call = asyncio.ensure_future(model_request_batch(model, requests(*NUMBERS), clock=clock))
    await clock.until_asleep()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await clock.run(call)
    assert fake.openai.count('create') == 1
    assert fake.openai.count('cancel') == 1


# Without an event loop


def test_the_sync_call_does_the_same(monkeypatch: pytest.MonkeyPatch):
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        script = """
            from datetime import timedelta
            from pydantic_ai import ModelRequest
            from pydantic_ai_batch import BatchRequest, model_request_batch_sync
            row = BatchRequest(custom_id='1', messages=[ModelRequest.user_text_prompt('hello')])
            brief = timedelta(milliseconds=10)
            for _ in range(2):
                (outcome,) = model_request_batch_sync(
                    'openai-responses:gpt-5-mini', [row], poll_interval=brief, max_poll_interval=brief
                )
                print(outcome.text)
        """
        done = subprocess.run(
            [sys.executable, '-c', textwrap.dedent(script)], capture_output=True, text=True, timeout=120
        )
        assert (done.stdout, done.returncode) == ('you said hello\nyou said hello\n', 0), done.stderr


async def test_the_sync_call_names_the_async_one_where_a_loop_runs(model: OpenAIResponsesModel):
    with pytest.raises(UserError, match=r'await model_request_batch'):
        model_request_batch_sync(model, requests('a'))


def test_ctrl_c_cancels_the_batches_and_waits_for_the_answer(monkeypatch: pytest.MonkeyPatch):
    with FakeProviders(echo, processing=timedelta(hours=1)) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        script = """
            from pydantic_ai import ModelRequest
            from pydantic_ai_batch import BatchRequest, model_request_batch_sync
            row = BatchRequest(custom_id='1', messages=[ModelRequest.user_text_prompt('hello')])
            def tell(event):
                print(event.kind, flush=True)
            model_request_batch_sync('openai-responses:gpt-5-mini', [row], progress=tell)
        """
        errors = interrupted(script)
        assert 'KeyboardInterrupt' in errors
        assert fake.openai.count('cancel') == 1


# Progress


async def test_a_callable_gets_plain_events(clock: ManualClock, model: OpenAIResponsesModel):
    events: list[BatchEvent] = []
    await clock.run(model_request_batch(model, requests(*NUMBERS), progress=events.append, clock=clock))
    counts: Counter[str] = Counter()
    for event in events:
        counts[event.kind] += event.count
    assert counts['queued'] == counts['submitted'] == counts['answered'] == 10
    assert counts['checked'] >= 1


async def test_a_progress_callable_that_raises_costs_nobody_an_answer(
    clock: ManualClock, model: OpenAIResponsesModel, caplog: pytest.LogCaptureFixture
):
    def broken(event: BatchEvent) -> None:
        raise RuntimeError('broken display')

    outcomes = await clock.run(model_request_batch(model, requests('a'), progress=broken, clock=clock))
    assert isinstance(outcomes[0], ModelResponse)
    assert 'not called again' in caplog.text
