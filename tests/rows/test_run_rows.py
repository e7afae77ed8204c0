"""Runs over rows: each row beside what came of it, whatever happens to the others."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from lanes.harness import EVERY, Harness, close, harness_of
from lanes.native_model import NativeModel
from pydantic_ai.exceptions import UserError
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import Journal, RowResult, run_rows
from pydantic_ai_batch.events import BatchEvent
from pydantic_ai_batch.exceptions import InputProblems, JournalError, NoBatchLane, ParameterConflict, RunChanged
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import all_of, asked, echo, sizes, statuses


@pytest.fixture(params=[harness.name for harness in EVERY])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return harness_of(request.param, monkeypatch)


ROWS = [{'id': f'row-{n}', 'text': f'text {n}', 'kept': n} for n in range(30)]
PROMPT = 'Say: {{ text }}'


def body_of(request: FakeRequest, text: str, **changes: Any) -> dict[str, Any]:
    """A whole body of the Responses API with something else in it."""
    return {
        'id': 'resp_1',
        'object': 'response',
        'created_at': 1,
        'status': 'completed',
        'model': request.model,
        'output': [
            {
                'id': 'msg_1',
                'type': 'message',
                'status': 'completed',
                'role': 'assistant',
                'content': [{'type': 'output_text', 'annotations': [], 'text': text}],
            }
        ],
        'parallel_tool_calls': True,
        'tool_choice': 'auto',
        'tools': [],
        'usage': {
            'input_tokens': 7,
            'input_tokens_details': {'cached_tokens': 0},
            'output_tokens': 3,
            'output_tokens_details': {'reasoning_tokens': 0},
            'total_tokens': 10,
        },
        **changes,
    }


# Results


async def test_each_row_is_beside_its_own_answer_however_results_are_shuffled(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, max_requests=10)
    assert [result.id for result in results] != [row['id'] for row in ROWS]
    assert sorted(result.row['kept'] for result in results) == list(range(30))
    assert all(result.output == f'answer to Say: {result.row["text"]}' for result in results)
    assert all(result.id == result.row['id'] and result.status == 'ok' for result in results)


async def test_ordered_results_are_in_the_order_of_the_rows(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, max_requests=7, ordered=True)
    assert [result.row for result in results] == ROWS


async def test_results_come_before_the_last_batch_has_ended(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'stick', after=1)
        model = model_of(fake)
        async with aclosing(run_rows(ROWS, model=model, prompt=PROMPT, max_requests=15, clock=clock)) as results:
            found: list[RowResult[Any]] = []

            async def first() -> None:
                async for result in results:
                    found.append(result)
                    if len(found) == 15:
                        return

            await clock.run(first())
            assert len(found) == 15
            await clock.run(results.aclose())


async def test_what_an_answer_says_of_itself_is_in_its_record(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: body_of(request, 'fine'), clock=clock) as fake:
        [result] = await all_of(clock, ['hello'], model=model_of(fake))
        batch = next(iter(fake.openai.batches))
    assert (result.id, result.row) == ('1', {'input': 'hello'})
    assert (result.output, result.text, result.finish_reason, result.model) == ('fine', 'fine', 'stop', 'gpt-5-mini')
    assert result.usage is not None
    assert (result.usage.input_tokens, result.usage.output_tokens) == (7, 3)
    assert result.cost is not None
    assert result.live_cost == 2 * result.cost
    assert result.batch_id == batch


async def test_raw_is_the_body_of_the_provider_untouched(clock: ManualClock, model_of: ModelOf):
    sent: dict[str, dict[str, Any]] = {}

    def answer(request: FakeRequest) -> dict[str, Any]:
        sent[request.text] = body_of(request, f'to {request.text}', of_nobody={'knows': [1, 2.5, None, 'ü']})
        return sent[request.text]

    with FakeProviders(answer, clock=clock) as fake:
        results = await all_of(clock, ['a', 'b'], model=model_of(fake))
    assert {result.row['input']: result.raw for result in results} == sent


async def test_a_row_that_failed_leaves_the_others_alone(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no such thing') if request.text == 'Say: text 3' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, ordered=True)
    assert [result.id for result in results if not result.ok] == ['row-3']
    failed = results[3]
    assert (failed.status, failed.error_class, failed.output) == ('error', 'ModelRequestRejectedError', None)
    assert 'no such thing' in str(failed.error)
    assert failed.raw['error']['message'] == 'no such thing'


async def test_an_answer_that_was_cut_off_is_truncated_and_has_its_text(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> dict[str, Any]:
        return body_of(request, 'half', status='incomplete', incomplete_details={'reason': 'max_output_tokens'})

    with FakeProviders(answer, clock=clock) as fake:
        [result] = await all_of(clock, ['hello'], model=model_of(fake))
    assert (result.status, result.output, result.text, result.finish_reason) == ('truncated', None, 'half', 'length')
    assert result.cost


async def test_an_answer_that_the_model_refused_is_refused_and_says_in_what_words(
    clock: ManualClock, model_of: ModelOf
):
    def answer(request: FakeRequest) -> dict[str, Any]:
        body = body_of(request, '')
        body['output'][0]['content'] = [{'type': 'refusal', 'refusal': 'I would rather not.'}]
        return body

    with FakeProviders(answer, clock=clock) as fake:
        [result] = await all_of(clock, ['hello'], model=model_of(fake))
    assert (result.status, result.output) == ('refused', None)
    assert 'I would rather not.' in str(result.error)


async def test_a_row_without_a_result_is_missing(clock: ManualClock, model_of: ModelOf):
    def answer(request: FakeRequest) -> str | None:
        return None if request.text == 'b' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        first, second = await all_of(clock, ['a', 'b'], model=model_of(fake), max_resubmissions=0, ordered=True)
    assert first.ok
    assert (second.status, second.raw) == ('missing', None)
    assert second.error


async def test_rows_whose_results_are_gone_are_errors(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: None, clock=clock) as fake:
        [result] = await all_of(clock, ['a'], model=model_of(fake))
    assert (result.status, result.error_class) == ('error', 'ResultsGone')


async def test_rows_whose_batch_expired_are_expired(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'expire', times=None, done=10)
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, max_resubmissions=0)
    assert sorted(statuses(results).values()) == ['expired'] * 20 + ['ok'] * 10


async def test_rows_that_expired_are_sent_again(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'expire', done=10)
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT)
        assert sizes(fake) == [30, 20]
    assert set(statuses(results).values()) == {'ok'}


async def test_rows_whose_batch_somebody_cancelled_are_cancelled(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('batch', 'cancel', times=None, done=10)
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, max_resubmissions=0)
    assert sorted(statuses(results).values()) == ['cancelled'] * 20 + ['ok'] * 10


async def test_rows_whose_batch_was_refused_are_errors_and_no_missing_ones(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('create', 'http', status=400, message='no batches for you')
        results = await all_of(clock, ['a', 'b'], model=model_of(fake))
    assert set(statuses(results).values()) == {'error'}
    assert all('no batches for you' in str(result.error) for result in results)


async def test_an_answer_that_is_no_text_is_still_an_answer(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: body_of(request, ''), clock=clock) as fake:
        [result] = await all_of(clock, ['hello'], model=model_of(fake))
    assert (result.status, result.output) == ('ok', '')


async def test_a_tool_that_is_called_without_a_word_is_no_answer_to_a_row_of_text(clock: ManualClock, harness: Harness):
    if harness.lane == 'openai-compatible':
        pytest.skip('Rows have no setting by which that lane is chosen.')
    with FakeProviders(lambda request: FakeToolCall('look', {'at': 'it'}), clock=clock) as fake:
        model, client = harness.make(fake, 'test')
        [result] = await all_of(clock, ['hello'], model=model)
        await close(client)
    assert (result.status, result.output) == ('error', None)
    assert result.error == 'The model called `look`, which the row has not, and said nothing.'
    assert 'look' in json.dumps(result.raw)
    assert result.usage is not None


# Leaving


async def left(clock: ManualClock, fake: FakeProviders, **settings: Any) -> None:
    """Leave the loop at the first result, while another batch goes on."""
    fake.openai.inject('batch', 'stick', after=1)

    async def leave() -> None:
        async with aclosing(run_rows(ROWS, prompt=PROMPT, max_requests=15, clock=clock, **settings)) as results:
            async for _ in results:
                break

    await clock.run(leave())


async def test_leaving_the_loop_cancels_the_batches_that_have_not_ended(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        await left(clock, fake, model=model_of(fake))
        assert [call.operation for call in fake.calls].count('cancel') == 1


async def test_leaving_the_loop_cancels_nothing_that_a_journal_keeps(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    with FakeProviders(echo, clock=clock) as fake:
        await left(clock, fake, model=model_of(fake), journal=tmp_path / 'job.db')
        assert fake.openai.count('cancel') == 0
        assert len(fake.openai.batches) == 2


@pytest.mark.parametrize('journaled', [False, True])
async def test_a_run_that_is_cancelled_cancels_its_batches_unless_a_journal_keeps_them(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path, journaled: bool
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=2)) as fake:
        checked = asyncio.Event()

        def heard(event: BatchEvent) -> None:
            if event.kind == 'checked':
                checked.set()

        running = asyncio.ensure_future(
            all_of(
                clock,
                ROWS,
                model=model_of(fake),
                prompt=PROMPT,
                max_requests=15,
                journal=tmp_path / 'job.db' if journaled else None,
                progress=heard,
            )
        )
        await checked.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert fake.openai.count('cancel') == (0 if journaled else 2)


# The journal


async def test_the_same_call_again_goes_on_where_the_last_one_was_left(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(echo, clock=clock) as fake:
        settings: dict[str, Any] = {'model': model_of(fake), 'prompt': PROMPT, 'max_requests': 10, 'journal': journal}
        fake.openai.inject('batch', 'stick', after=1)

        async def leave() -> None:
            async with aclosing(run_rows(ROWS, clock=clock, **settings)) as results:
                async for _ in results:
                    break

        await clock.run(leave())
        journal.close()
        created = fake.openai.count('create')
        stuck = list(fake.openai.batches.values())[1]
        stuck_ids = {row.body['input'][0]['content'] for row in stuck.requests if isinstance(row.body['input'], list)}
        assert created == 3
        assert stuck_ids is not None
        # It is cancelled by hand, and its rows are sent again by themselves.
        async with fake.openai.client() as client:
            await client.batches.cancel(stuck.id)
        results = await all_of(clock, ROWS, ordered=True, **settings)
        assert [result.row for result in results] == ROWS
        assert set(statuses(results).values()) == {'ok'}
        assert sorted(asked(fake)) == sorted(f'Say: {row["text"]}' for row in ROWS)


async def test_a_run_that_is_done_sends_nothing_when_it_is_made_again(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')

    def answer(request: FakeRequest) -> str | FakeError:
        return FakeError(400, 'invalid_prompt', 'no') if request.text == 'Say: text 3' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        first = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, journal=journal, ordered=True)
        journal.close()
        calls = len(fake.calls)
        again = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, journal=journal, ordered=True)
        assert len(fake.calls) == calls
    assert again == first
    assert [result.id for result in again if not result.ok] == ['row-3']


async def test_rows_whose_batch_could_not_be_checked_are_pending_and_collected_by_the_next_run(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('status', 'http', status=403)
        settings: dict[str, Any] = {'model': model_of(fake), 'prompt': PROMPT, 'journal': journal}
        first = await all_of(clock, ROWS, **settings)
        assert set(statuses(first).values()) == {'pending'}
        assert all(result.batch_id for result in first)
        journal.close()
        results = await all_of(clock, ROWS, **settings)
        assert set(statuses(results).values()) == {'ok'}
        assert sizes(fake) == [30]


async def test_one_journal_is_worked_on_by_one_run_at_a_time(clock: ManualClock, model_of: ModelOf, tmp_path: Path):
    async def twice(model: OpenAIResponsesModel) -> None:
        settings: Any = {'model': model, 'prompt': PROMPT, 'journal': tmp_path / 'run.db', 'clock': clock}
        async with aclosing(run_rows(ROWS, **settings)) as first:
            await anext(first)
            with pytest.raises(JournalError, match='is being worked on by this process: nothing was sent'):
                await anext(run_rows(ROWS, **settings))
        # Left by the first, it is free for the next.
        assert len([result async for result in run_rows(ROWS, **settings)]) == 30

    with FakeProviders(echo, clock=clock) as fake:
        await clock.run(twice(model_of(fake)))
        assert len(asked(fake)) == 30


@pytest.mark.parametrize(
    ('change', 'named'),
    [
        ({'rows': ROWS[:-1]}, '30 rows then, 29 now'),
        ({'rows': ROWS[::-1]}, 'in another order'),
        ({'rows': [*ROWS[:-1], {**ROWS[-1], 'kept': 99}]}, 'other content'),
        ({'model': 'gpt-5'}, '"openai-responses:gpt-5-mini" then'),
        ({'prompt': 'Shout: {{ text }}'}, 'Shout'),
        ({'instructions': 'Be brief.'}, 'Be brief.'),
        ({'max_tokens': 5}, '`max_tokens` (null then, 5 now)'),
        ({'model_settings': {'openai_user': 'me'}}, 'the settings'),
        ({'output_type': int}, 'the output type'),
    ],
)
async def test_another_run_is_refused_and_it_is_said_what_changed(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path, change: dict[str, Any], named: str
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(echo, clock=clock) as fake:
        settings: dict[str, Any] = {'rows': ROWS, 'prompt': PROMPT, 'journal': journal, 'model': model_of(fake)}
        await all_of(clock, **settings)
        journal.close()
        calls = len(fake.calls)
        if isinstance(name := change.get('model'), str):
            change = {'model': model_of(fake, name)}
        with pytest.raises(RunChanged) as refused:
            await all_of(clock, **{**settings, **change})
        assert named in str(refused.value).replace('"openai:', '"openai-responses:')
        assert len(fake.calls) == calls


async def test_a_run_that_was_refused_before_anything_was_sent_leaves_the_journal_free(
    clock: ManualClock, model_of: ModelOf, tmp_path: Path
):
    journal = Journal(tmp_path / 'job.db')
    with FakeProviders(echo, clock=clock) as fake:
        with pytest.raises(UserError, match='A journal cannot be kept'):
            await all_of(clock, ['other'], model=NativeModel(fake, 'test'), journal=journal)
        results = await all_of(clock, ROWS, model=model_of(fake), prompt=PROMPT, journal=journal)
        assert len(results) == 30


async def test_a_model_without_a_batch_api_is_refused(clock: ManualClock):
    with pytest.raises(NoBatchLane, match='FallbackModel'):
        await all_of(clock, ROWS, model=FallbackModel(TestModel()), prompt=PROMPT)


async def test_no_journal_is_kept_where_a_lost_batch_can_never_be_found(
    fake: FakeProviders, clock: ManualClock, tmp_path: Path
):
    for model in (TestModel(), NativeModel(fake, 'test')):
        with pytest.raises(UserError, match='A journal cannot be kept'):
            await all_of(clock, ROWS, model=model, prompt=PROMPT, journal=tmp_path / 'job.db')
    assert fake.calls == []


# Models and parameters


async def test_each_row_may_name_its_model(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    with FakeProviders(echo, clock=clock) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        names = ['openai:gpt-5-mini', 'openai:gpt-5', 'openai:gpt-5-mini']
        rows = [{'input': f'text {n}', 'model': name} for n, name in enumerate(names)]
        results = await all_of(clock, rows, ordered=True)
        assert [result.model for result in results] == ['gpt-5-mini', 'gpt-5', 'gpt-5-mini']
        assert sorted(sizes(fake)) == [1, 2]
        models = [{row.body['model'] for row in batch.requests} for batch in fake.openai.batches.values()]
        assert sorted(models, key=str) == [{'gpt-5'}, {'gpt-5-mini'}]


async def test_rows_without_a_model_are_all_listed(fake: FakeProviders, clock: ManualClock):
    with pytest.raises(InputProblems, match=r'2 problems(.|\n)*row 1: it names no model(.|\n)*row 2'):
        await all_of(clock, ['a', 'b'])


async def test_a_model_that_cannot_be_had_is_said_once(clock: ManualClock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv('OPENAI_API_KEY', raising=False)
    with pytest.raises(UserError, match='OPENAI_API_KEY') as refused:
        await all_of(clock, ['a', 'b', 'c'], model='openai:gpt-5-mini')
    assert not isinstance(refused.value, InputProblems)
    assert str(refused.value).count('OPENAI_API_KEY') <= 2


@pytest.mark.parametrize(
    ('row', 'job', 'named'),
    [
        ({'max_tokens': 5}, {'max_tokens': 6}, '`max_tokens`'),
        ({'max_output_tokens': 5}, {'model_settings': {'max_tokens': 6}}, '`max_output_tokens` of the row'),
        ({'settings': {'temperature': 0.5}}, {'temperature': 1}, '`temperature`'),
        ({'model': 'openai:gpt-5'}, {}, '`model`'),
    ],
)
async def test_a_parameter_with_two_values_is_refused_before_anything_is_sent(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel, row: Any, job: Any, named: str
):
    with pytest.raises(ParameterConflict, match=named):
        await all_of(clock, [{'id': 'a', 'input': 'hi'}, {'id': 'b', 'input': 'hi', **row}], model=model, **job)
    assert fake.calls == []


async def test_settings_of_the_row_and_of_the_job_reach_the_provider(clock: ManualClock, model_of: ModelOf):
    rows = [{'input': 'a', 'max_output_tokens': 50}, {'input': 'b', 'settings': '{"seed": 3, "max_tokens": 60}'}]
    with FakeProviders(echo, clock=clock) as fake:
        client = fake.openai.client(max_retries=0)
        model = OpenAIChatModel('gpt-4.1', provider=OpenAIProvider(openai_client=client))
        await all_of(clock, rows, model=model, temperature=0.5)
        bodies = {row.text: row.body for row in fake.openai.billed}
        await client.close()
    assert bodies['a']['max_completion_tokens'] == 50
    assert (bodies['b']['max_completion_tokens'], bodies['b']['seed']) == (60, 3)
    assert all(body['temperature'] == 0.5 for body in bodies.values())


async def test_a_setting_that_the_model_would_drop_is_refused_by_name(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel
):
    with pytest.raises(UserError, match=r"'openai:gpt-5-mini' takes no `top_k`"):
        await all_of(clock, ['a'], model=model, model_settings={'top_k': 5})
    assert fake.calls == []


async def test_a_setting_that_the_model_has_itself_is_not_said_to_be_dropped(clock: ManualClock, fake: FakeProviders):
    async with fake.openai.client() as client:
        model = OpenAIResponsesModel(
            'gpt-4.1', provider=OpenAIProvider(openai_client=client), settings={'temperature': 0.5}
        )
        [result] = await all_of(clock, ['a'], model=model, temperature=0.5)
    assert result.ok


async def test_a_setting_that_no_batch_honours_is_refused(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel
):
    with pytest.raises(UserError, match='`timeout` cannot be used in a batch'):
        await all_of(clock, ['a'], model=model, model_settings={'timeout': 5})
    assert fake.calls == []


# Rows


async def test_the_input_column_may_have_messages(clock: ManualClock, model_of: ModelOf):
    messages = [
        {'role': 'system', 'content': 'Be brief.'},
        {'role': 'user', 'content': 'one'},
        {'role': 'assistant', 'content': 'two'},
        {'role': 'user', 'content': 'three'},
    ]
    with FakeProviders(echo, clock=clock) as fake:
        [result] = await all_of(clock, [{'input': messages}], model=model_of(fake))
        [body] = [row.body for row in fake.openai.billed]
    assert result.output == 'answer to three'
    assert [item['role'] for item in body['input']] == ['system', 'user', 'assistant', 'user']


@pytest.mark.parametrize(
    ('rows', 'settings', 'says'),
    [
        (['a', '  ', 'b', ''], {}, ['row 2: the prompt in `input` is blank', 'row 4']),
        ([{'text': 'a'}, {'text': ' '}], {'prompt': '{{ text }}'}, ['row 2: the prompt that the template makes']),
        ([{'text': 'a'}, {'other': 'b'}], {'prompt': PROMPT}, ['row 2: the row has no `text`']),
        ([{'id': 1, 'input': 'a'}, {'id': 1, 'input': 'b'}], {}, ["row 2: the ID '1' again", 'row 1']),
        ([{'input': 5}, {'input': [{'role': 'tool'}]}], {}, ['row 1: the prompt in `input` is neither', 'row 2']),
        ([{'input': [{'role': 'assistant', 'content': 'x'}]}], {}, ['row 1: the last message in `input` is an answer']),
        ([{'input': 'a', 'max_tokens': 0}, {'input': 'b', 'stream': True}], {}, ['`max_tokens`', '`stream`']),
        ([{'input': 'a'}, 7, {'input': float('nan')}], {}, ['row 2', 'row 3']),
    ],
)
async def test_everything_that_is_wrong_with_rows_is_listed_and_nothing_sent(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel, rows: Any, settings: Any, says: list[str]
):
    with pytest.raises(InputProblems) as refused:
        await all_of(clock, rows, model=model, **settings)
    assert all(words in str(refused.value) for words in says)
    assert fake.calls == []


async def test_unreadable_rows_do_not_hide_what_is_wrong_with_others(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel, tmp_path: Path
):
    lines = [
        '{"id": 1, "input": "fine"}',
        '{"id": 2, "input": NaN}',
        '{"id": 1, "input": "again"}',
        '{"id": 4, "input": " "}',
        'no JSON',
        '{"id": 6, "input": "a", "max_tokens": 5}',
    ]
    (tmp_path / 'rows.jsonl').write_text('\n'.join(lines))
    with pytest.raises(InputProblems) as refused:
        await all_of(clock, tmp_path / 'rows.jsonl', model=model, max_tokens=9)
    assert [problem.line for problem in refused.value.problems] == [2, 3, 4, 5, 6]
    assert "Row '6': `max_tokens` has different values" in str(refused.value)
    assert fake.calls == []


async def test_a_header_that_is_wrong_is_said_alone(clock: ManualClock, model: OpenAIResponsesModel, tmp_path: Path):
    (tmp_path / 'rows.csv').write_text('id,input,input\n1,a,b\n1,,\n')
    with pytest.raises(InputProblems) as refused:
        await all_of(clock, tmp_path / 'rows.csv', model=model)
    assert [problem.reason for problem in refused.value.problems] == ['two columns go by the name `input`']


async def test_every_conflict_is_told(fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel):
    rows = [{'input': 'a', 'max_tokens': count} for count in (9, 5, 9, *range(10, 40))]
    with pytest.raises(ParameterConflict) as refused:
        await all_of(clock, rows, model=model, max_tokens=9)
    assert str(refused.value).startswith("31 rows have conflicting parameters:\nRow '2': `max_tokens`")
    assert str(refused.value).endswith('… and 11 more')
    assert (refused.value.row, refused.value.parameter) == ('2', 'max_tokens')
    assert fake.calls == []


@pytest.mark.parametrize(
    ('rows', 'settings', 'says'),
    [
        ([{'text': 'a'}], {}, 'no column `input`'),
        ([{'text': 'a'}], {'prompt': '{{ txt }}'}, 'did you mean `text`'),
        ([{'text': 'a'}], {'prompt': PROMPT, 'id_column': 'key'}, 'no column `key`'),
        ([], {}, 'no rows'),
        (['a'], {'prompt': ' '}, 'blank'),
        (['a'], {'canary': 0}, '`canary`'),
        (['a'], {'max_failures': 1.5}, '`max_failures`'),
        (['a'], {'max_failures': float('nan')}, '`max_failures`'),
        (['a'], {'max_cost': 0}, '`max_cost`'),
        (['a'], {'max_cost': float('nan')}, '`max_cost`'),
    ],
)
async def test_what_is_wrong_with_the_call_is_refused_and_nothing_sent(
    fake: FakeProviders, clock: ManualClock, model: OpenAIResponsesModel, rows: Any, settings: Any, says: str
):
    with pytest.raises(UserError, match=says):
        await all_of(clock, rows, model=model, **settings)
    assert fake.calls == []


async def test_a_row_with_half_a_character_fails_alone(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        results = await all_of(clock, ['a', 'half: \ud835', 'c'], model=model_of(fake), ordered=True)
        assert sizes(fake) == [2]
    assert [result.status for result in results] == ['ok', 'error', 'ok']
    assert 'lone surrogate' in str(results[1].error)


async def test_rows_of_a_file_come_back_with_all_their_columns(clock: ManualClock, model_of: ModelOf, tmp_path: Path):
    path = tmp_path / 'rows.jsonl'
    path.write_text('\n'.join(json.dumps(row) for row in ROWS))
    with FakeProviders(echo, clock=clock) as fake:
        results = await all_of(clock, path, model=model_of(fake), prompt=PROMPT, ordered=True)
    assert [result.row for result in results] == ROWS
