"""Files of rows on the command line: what is sent, what is written, and what another start of a command finds."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import ModelRequest
from typer.testing import CliRunner, Result

from pydantic_ai_batch import BatchRequest, submit_batch
from pydantic_ai_batch.cli import app
from pydantic_ai_batch.cli.files.looking import options_in
from pydantic_ai_batch.cli.rows import Time
from pydantic_ai_batch.journal import store as stores
from pydantic_ai_batch.journal.sessions import RunLock
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

Command = Callable[..., Result]

MODEL = 'openai-responses:gpt-5-mini'


def echo(request: FakeRequest) -> Any:
    """Answers with the prompt, fails what is bad, and calls the tool of a typed answer."""
    if 'bad' in request.text:
        return FakeError(400, 'invalid_prompt', 'no such thing')
    if request.tools:
        return FakeToolCall(request.tools[0].name, {'label': 'fine', 'score': 3})
    return f'about {request.text}'


@pytest.fixture
def mended() -> list[bool]:
    """Holds something once what was bad is answered too."""
    return []


@pytest.fixture
def fake(clock: ManualClock, mended: list[bool], monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProviders]:
    def answer(request: FakeRequest) -> Any:
        return f'about {request.text}' if mended else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        for provider in (fake.openai, fake.anthropic):
            for name, value in provider.environment.items():
                monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def command(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command line in a folder of its own, on a clock that waits for nothing."""
    monkeypatch.chdir(tmp_path)

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        async def on_clock() -> Any:
            return await clock.run(work)

        return asyncio.run(on_clock())

    def command(*arguments: str, width: str = '120', **settings: Any) -> Result:
        obj = Time(clock, run)
        return CliRunner().invoke(
            app, list(arguments), obj=obj, catch_exceptions=False, env={'COLUMNS': width}, **settings
        )

    return command


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    path = tmp_path / 'reviews.csv'
    path.write_text('id,text\n001,"good, really"\n002,bad\n003,"two\nlines"\n', 'utf-8')
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding='utf-8', newline='') as stream:
        return list(csv.DictReader(stream))


def run_reviews(command: Command, *more: str) -> Result:
    return command('run', 'reviews.csv', '-m', MODEL, '-p', 'Sum up: {{ text }}', *more)


def test_each_row_is_written_beside_its_answer_in_the_order_of_the_input(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    result = run_reviews(command)
    assert result.exit_code == 1
    rows = read(reviews.with_name('reviews.answers.csv'))
    assert list(rows[0]) == ['id', 'text', 'answer', 'status', 'error', 'input_tokens', 'output_tokens', 'cost']
    assert [(row['id'], row['text'], row['answer'], row['status']) for row in rows] == [
        ('001', 'good, really', 'about Sum up: good, really', 'ok'),
        ('002', 'bad', '', 'error'),
        ('003', 'two\nlines', 'about Sum up: two\nlines', 'ok'),
    ]
    assert rows[1]['error'] == 'ModelRequestRejectedError: no such thing (status 400)'
    assert float(rows[0]['cost']) > 0
    assert rows[1]['cost'] == ''
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [3]
    assert '3 rows: 2 ok, 1 error' in result.output
    assert 'retry reviews.answers.csv.journal' in result.output


def test_the_same_command_again_sends_nothing_and_writes_the_same(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    written = reviews.with_name('reviews.answers.csv')
    first = written.read_bytes()
    written.unlink()
    assert run_reviews(command).exit_code == 1
    assert written.read_bytes() == first
    assert fake.openai.count('create') == 1


@pytest.mark.parametrize(
    ('change', 'says'),
    [
        (['-p', 'Other: {{ text }}'], 'the prompt ("Sum up: {{ text }}" then, "Other: {{ text }}" now)'),
        (['-m', 'openai-responses:gpt-5'], 'the model'),
        (['--max-tokens', '10'], '`max_tokens` (null then, 10 now)'),
        (['--instructions', 'Be short.'], 'the instructions (null then, "Be short." now)'),
        (['--settings', '{"top_p": 0.5}'], 'the settings'),
    ],
)
def test_another_run_with_the_same_output_is_refused_with_what_changed(
    change: list[str], says: str, command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    sent = fake.openai.count('upload')
    result = run_reviews(command, *change)
    assert result.exit_code == 2
    assert says in result.output
    assert fake.openai.count('upload') == sent


def test_another_output_type_is_refused_by_the_name_of_its_schema(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    schema = {'type': 'object', 'properties': {'label': {'type': 'string'}}}
    reviews.with_name('label.json').write_text(json.dumps(schema), 'utf-8')
    result = run_reviews(command, '--schema', 'label.json')
    assert result.exit_code == 2
    assert 'the output type (text then, ' in result.output
    assert 'label.json now)' in result.output
    assert run_reviews(command, '--schema', 'label.json', '-o', 'labels.csv').exit_code == 1
    reviews.with_name('label.json').write_text(json.dumps({**schema, 'required': ['label']}), 'utf-8')
    result = run_reviews(command, '--schema', 'label.json', '-o', 'labels.csv')
    assert 'label.json, which was another one then' in result.output


def test_another_input_is_refused_too(command: Command, fake: FakeProviders, reviews: Path) -> None:
    run_reviews(command)
    reviews.write_text('id,text\n001,"good, really"\n', 'utf-8')
    result = run_reviews(command)
    assert result.exit_code == 2
    assert 'the input (3 rows then, 1 now)' in result.output
    assert fake.openai.count('create') == 1


def test_a_schema_makes_columns_of_its_fields(command: Command, fake: FakeProviders, tmp_path: Path) -> None:
    schema = {
        'type': 'object',
        'title': 'Label',
        'properties': {'label': {'type': 'string'}, 'score': {'type': 'integer'}},
        'required': ['label', 'score'],
    }
    (tmp_path / 'schema.json').write_text(json.dumps(schema), 'utf-8')
    (tmp_path / 'rows.jsonl').write_text('{"id": "a", "input": "x", "tags": [1, 2]}\n', 'utf-8')
    result = command('run', 'rows.jsonl', '-m', MODEL, '--schema', 'schema.json', '-o', 'out.jsonl')
    assert result.exit_code == 0, result.output
    [row] = [json.loads(line) for line in (tmp_path / 'out.jsonl').read_text('utf-8').splitlines()]
    assert {name: row[name] for name in ('id', 'tags', 'label', 'score', 'status')} == {
        'id': 'a',
        'tags': [1, 2],
        'label': 'fine',
        'score': 3,
        'status': 'ok',
    }


def test_an_answer_that_is_not_as_the_schema_has_it_is_asked_for_again(
    command: Command, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(request: FakeRequest) -> Any:
        fits = request.text == 'good' or 'is not as the schema has it' in json.dumps(request.body)
        score = 3 if fits else 9
        return FakeToolCall(request.tools[0].name, {'score': score})

    schema = {'type': 'object', 'properties': {'score': {'type': 'integer', 'maximum': 5}}, 'required': ['score']}
    (tmp_path / 'score.json').write_text(json.dumps(schema), 'utf-8')
    (tmp_path / 'rows.csv').write_text('id,input\n1,good\n2,bad\n', 'utf-8')
    with FakeProviders(answer, clock=clock) as fake:
        for name, value in fake.openai.environment.items():
            monkeypatch.setenv(name, value)
        assert command('run', 'rows.csv', '-m', MODEL, '--schema', 'score.json').exit_code == 0
        assert [len(batch.requests) for batch in fake.openai.batches.values()] == [2, 1]
    assert [row['score'] for row in read(tmp_path / 'rows.answers.csv')] == ['3', '3']


def test_an_answer_that_is_never_as_the_schema_has_it_is_an_error(
    command: Command, fake: FakeProviders, tmp_path: Path
) -> None:
    schema = {'type': 'object', 'properties': {'score': {'type': 'string'}}}
    (tmp_path / 'score.json').write_text(json.dumps(schema), 'utf-8')
    (tmp_path / 'rows.csv').write_text('id,input\n1,hello\n', 'utf-8')
    assert command('run', 'rows.csv', '-m', MODEL, '--schema', 'score.json').exit_code == 1
    [row] = read(tmp_path / 'rows.answers.csv')
    assert (row['status'], row['score']) == ('error', '')
    assert float(row['cost']) > 0


@pytest.mark.parametrize(
    ('schema', 'reason'),
    [
        ({'type': 'object', 'properties': {'a': 5}}, "is none, at ['properties']['a']: 5 is not of types"),
        ({'type': 'object', 'properties': {'a': {'$ref': 'http://localhost/a.json'}}}, 'nothing is fetched'),
    ],
)
def test_a_schema_that_is_none_is_refused(
    command: Command, fake: FakeProviders, reviews: Path, schema: dict[str, Any], reason: str
) -> None:
    reviews.with_name('wrong.json').write_text(json.dumps(schema), 'utf-8')
    result = run_reviews(command, '--schema', 'wrong.json')
    assert result.exit_code == 2
    assert 'The schema wrong.json' in result.output
    assert reason in ' '.join(result.output.split())
    assert not fake.openai.calls


def test_columns_of_ours_that_the_input_has_already_are_renamed(
    command: Command, fake: FakeProviders, tmp_path: Path
) -> None:
    (tmp_path / 'rows.csv').write_text('id,input,status\n1,hello,new\n', 'utf-8')
    assert command('run', 'rows.csv', '-m', MODEL).exit_code == 0
    [row] = read(tmp_path / 'rows.answers.csv')
    assert (row['status'], row['batch_status'], row['answer']) == ('new', 'ok', 'about hello')


def test_gzip_and_standard_streams_work(command: Command, fake: FakeProviders, tmp_path: Path) -> None:
    (tmp_path / 'rows.jsonl.gz').write_bytes(gzip.compress(b'{"input": "one"}\n'))
    assert command('run', 'rows.jsonl.gz', '-m', MODEL, '-q').exit_code == 0
    packed = gzip.decompress((tmp_path / 'rows.answers.jsonl.gz').read_bytes())
    assert json.loads(packed)['answer'] == 'about one'
    piped = command('run', '-', '--format', 'jsonl', '-m', MODEL, '-q', input='{"input": "two"}\n')
    assert json.loads(piped.stdout)['answer'] == 'about two'


@pytest.mark.parametrize(
    ('rows', 'options', 'says'),
    [
        ('id,text\na,x\na,y\n', ['-p', '{{ text }}'], "rows.csv, line 3: the ID 'a' again"),
        ('id,text\na,x\n,y\n', ['-p', '{{ text }}'], 'rows.csv, line 3: the ID in `id` is blank'),
        ('id,text\na,x\n', ['-p', '{{ txt }}'], 'The columns are `id`, `text`'),
        ('id,text\na,x\n', [], 'no column `input`'),
        ('id,text\na,x\n', ['-p', '{{ text }}', '--max-tokens', '0'], 'at least 1'),
        ('id,input\na,x\n', ['--settings', '{"seed": 1}'], 'takes no `seed`'),
        ('id,input,max_tokens\na,x,5\n', ['--max-tokens', '6'], '`max_tokens` has different values'),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    rows: str, options: list[str], says: str, command: Command, fake: FakeProviders, tmp_path: Path
) -> None:
    (tmp_path / 'rows.csv').write_text(rows, 'utf-8')
    result = command('run', 'rows.csv', '-m', MODEL, *options)
    assert result.exit_code == 2
    assert says in result.output
    assert not fake.openai.calls
    assert not (tmp_path / 'rows.answers.csv').exists()


def test_an_output_that_is_the_journal_is_refused(command: Command, fake: FakeProviders, reviews: Path) -> None:
    result = run_reviews(command, '-o', 'one.csv', '--journal', 'one.csv')
    assert (result.exit_code, 'one.csv is the journal as well' in result.output) == (2, True)
    assert not fake.openai.calls


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_sent(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    result = run_reviews(command, '-o', 'nowhere/out.csv', '--journal', 'j.db')
    assert result.exit_code == 2
    assert not fake.openai.calls


def test_a_plan_sends_nothing_and_tells_batches_and_cost(command: Command, fake: FakeProviders, reviews: Path) -> None:
    arguments = ['reviews.csv', '-m', MODEL, '-p', '{{ text }}', '--max-requests', '2', '--max-tokens', '100']
    planned = command('plan', *arguments)
    assert planned.exit_code == 0
    head = planned.output.partition('The first request:')[0]
    assert command('run', *arguments, '--dry-run').output.startswith(head)
    assert '3 requests of reviews.csv in 2 batches' in planned.output
    assert 'at most 300 out' in planned.output
    described = json.loads(command('plan', *arguments, '--json').output)
    assert [chunk['ids'] for chunk in described['chunks']] == [['001', '002'], ['003']]
    assert 0 < described['cost'] < described['live_cost']
    assert not fake.openai.calls


def test_a_run_that_would_cost_too_much_is_refused(command: Command, fake: FakeProviders, reviews: Path) -> None:
    result = run_reviews(command, '--max-cost', '0.000001', '--max-tokens', '10000')
    assert result.exit_code == 2
    assert '`--max-cost` is $0.000001. Nothing was sent.' in result.output
    assert not fake.openai.calls


def test_a_trial_that_fails_stops_the_run(command: Command, fake: FakeProviders, tmp_path: Path) -> None:
    (tmp_path / 'rows.csv').write_text('id,input\n1,bad\n2,bad\n3,good\n', 'utf-8')
    result = command('run', 'rows.csv', '-m', MODEL, '--canary', '2')
    assert result.exit_code == 4
    assert '2 of the first 2 rows failed' in result.output
    assert [row['status'] for row in read(tmp_path / 'rows.answers.csv')] == ['error', 'error', 'pending']
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [2]


def test_rows_are_verified_and_the_summary_says_how_many(command: Command, fake: FakeProviders, reviews: Path) -> None:
    result = run_reviews(command, '--verify', '2')
    # It answers with the prompt, and so with the token.
    assert '1 of the sampled rows brought their own token back' in result.output
    assert '[[row-' not in reviews.with_name('reviews.answers.csv').read_text('utf-8')
    again = run_reviews(command, '--verify', '3')
    assert (again.exit_code, 'the number of rows that are verified (2 then, 3 now)' in again.output) == (2, True)


def test_retry_sends_what_failed_and_nothing_else(
    command: Command, fake: FakeProviders, mended: list[bool], reviews: Path
) -> None:
    run_reviews(command)
    mended.append(True)
    assert command('retry', 'reviews.answers.csv.journal').exit_code == 0
    rows = read(reviews.with_name('reviews.answers.csv'))
    assert [row['answer'] for row in rows] == [
        'about Sum up: good, really',
        'about Sum up: bad',
        'about Sum up: two\nlines',
    ]
    assert [len(batch.requests) for batch in fake.openai.batches.values()] == [3, 1]
    again = command('retry', 'reviews.answers.csv.journal')
    assert (again.exit_code, 'No row' in again.output) == (2, True)


def test_a_journal_tells_results_cost_and_status(command: Command, fake: FakeProviders, reviews: Path) -> None:
    run_reviews(command)
    journal = 'reviews.answers.csv.journal'
    results = [json.loads(line) for line in command('results', journal).output.splitlines()]
    assert [(result['id'], result['status']) for result in results] == [('001', 'ok'), ('002', 'error'), ('003', 'ok')]
    assert results[0]['raw']['object'] == 'response'
    assert [json.loads(line)['id'] for line in command('results', journal, '--failed').output.splitlines()] == ['002']
    cost = json.loads(command('cost', journal, '--json').output)
    rows = read(reviews.with_name('reviews.answers.csv'))
    assert cost['cost'] == pytest.approx(sum(float(row['cost']) for row in rows if row['cost']))
    assert cost['live_cost'] == pytest.approx(2 * cost['cost'])
    status = json.loads(command('status', journal, '--json').output)
    assert (status['rows'], status['done']) == (3, {'ok': 2, 'error': 1})
    assert [batch['state'] for batch in status['batches']] == ['ended']
    assert 'read' in command('watch', journal).output


def test_batches_that_no_journal_knows_are_orphans(command: Command, fake: FakeProviders, reviews: Path) -> None:
    run_reviews(command)
    run_reviews(command, '-o', 'other.csv')
    listed = json.loads(command('jobs', '--provider', 'gpt', '--json', 'reviews.answers.csv.journal').output)
    assert [batch['journal'] for batch in listed] == [None, 'reviews.answers.csv.journal']
    assert 'an orphan' in command('jobs', '--provider', 'openai', 'reviews.answers.csv.journal').output


def stopped_run(command: Command, folder: Path, *more: str) -> Result:
    """A run of two batches, in the first of which a row fails."""
    (folder / 'rows.csv').write_text('input\nbad\ntwo\nthree\nfour\n', 'utf-8')
    return command('run', 'rows.csv', '-m', MODEL, '--max-requests', '2', *more)


def test_what_may_stop_a_run_holds_when_its_journal_goes_on_with_it_and_can_be_lifted(
    command: Command, fake: FakeProviders, tmp_path: Path
) -> None:
    assert stopped_run(command, tmp_path, '--max-failures', '0').exit_code == 4
    assert fake.openai.count('create') == 1
    assert command('collect', 'rows.answers.csv.journal').exit_code == 4
    assert fake.openai.count('create') == 1
    assert command('collect', 'rows.answers.csv.journal', '--max-failures', 'none').exit_code == 1
    assert sorted(len(batch.requests) for batch in fake.openai.batches.values()) == [2, 2]


def test_the_last_command_of_a_run_says_what_may_stop_it(command: Command, fake: FakeProviders, tmp_path: Path) -> None:
    assert stopped_run(command, tmp_path, '--canary', '1').exit_code == 4
    assert stopped_run(command, tmp_path, '--max-failures', '0').exit_code == 4
    kept = options_in(tmp_path / 'rows.answers.csv.journal')
    assert (kept.canary, kept.max_failures) == (None, '0')
    # One that is lifted for once stays for later.
    command('collect', 'rows.answers.csv.journal', '--max-failures', '1')
    assert options_in(tmp_path / 'rows.answers.csv.journal') == kept


def test_a_retry_that_would_cost_more_than_it_may_forgets_nothing(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    result = command('retry', JOURNAL, '--max-cost', '0.0000001')
    assert (result.exit_code, '`--max-cost`' in result.output) == (2, True)
    assert len(command('results', JOURNAL, '--failed').output.splitlines()) == 1


def test_rows_that_were_piped_in_are_kept_for_who_goes_on_with_their_journal(
    command: Command, fake: FakeProviders, tmp_path: Path
) -> None:
    run = ('run', '-', '--format', 'jsonl', '-m', MODEL, '-o', 'out.jsonl', '--max-cost', '1', '--max-tokens', '9')
    rows = '{"input": "one"}\n{"input": "bad"}\n'
    result = command(*run, input=rows)
    assert result.exit_code == 1, result.output
    kept = tmp_path / 'out.jsonl.journal.rows'
    assert (kept.read_text('utf-8'), kept.stat().st_mode & 0o777) == (rows, 0o600)
    for again in (('collect', 'out.jsonl.journal'), ('retry', 'out.jsonl.journal')):
        (tmp_path / 'out.jsonl').unlink()
        assert command(*again).exit_code == 1
        answers = [json.loads(line)['answer'] for line in (tmp_path / 'out.jsonl').read_text('utf-8').splitlines()]
        assert answers == ['about one', None]
    # The command itself goes on too, with the same rows alone.
    assert command(*run, input=rows).exit_code == 1
    assert command(*run, input='{"input": "other"}\n').exit_code == 2
    assert kept.read_text('utf-8') == rows
    assert fake.openai.count('create') == 2


# Orphans


@pytest.fixture
def unsettled(command: Command, fake: FakeProviders, reviews: Path) -> str:
    """A batch whose creation had no reply, and which no listing showed while it was looked for."""
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('list', 'http', status=500, times=None)
    assert run_reviews(command).exit_code == 1
    fake.openai.clear_faults()
    stores.close_all()
    [batch_id] = fake.openai.batches
    return batch_id


def adopt(command: Command, batch_id: str, *more: str) -> Result:
    return command('adopt', batch_id, '--provider', 'openai', *more)


def test_a_batch_whose_creation_stayed_unsettled_is_joined_to_its_run_and_not_paid_for_again(
    command: Command, fake: FakeProviders, unsettled: str, reviews: Path
) -> None:
    result = adopt(command, unsettled, '--journal', JOURNAL)
    assert (result.exit_code, f'collect {JOURNAL}' in result.output) == (0, True)
    assert command('collect', JOURNAL).exit_code == 1
    rows = read(reviews.with_name('reviews.answers.csv'))
    assert [row['status'] for row in rows] == ['ok', 'error', 'ok']
    assert fake.openai.count('create') == 1
    # A second time, there is nothing left to do.
    assert 'already' in adopt(command, unsettled, '--journal', JOURNAL).output


def test_a_batch_that_is_not_proven_to_be_of_a_run_is_not_joined_to_it(
    command: Command, fake: FakeProviders, unsettled: str, reviews: Path
) -> None:
    # Of the same rows and as many, and still another one.
    assert run_reviews(command, '-o', 'other.csv').exit_code == 1
    [other] = fake.openai.batches.keys() - {unsettled}
    result = adopt(command, other, '--journal', JOURNAL)
    assert (result.exit_code, 'is not of the run' in result.output) == (2, True)
    result = adopt(command, unsettled, '--journal', 'other.csv.journal')
    assert (result.exit_code, 'lacks no batch' in result.output) == (2, True)
    # What was looked at is as it was, and can still be joined.
    assert adopt(command, unsettled, '--journal', JOURNAL).exit_code == 0
    assert (fake.openai.count('create'), fake.openai.count('cancel')) == (2, 0)


def test_where_the_listing_cannot_be_read_a_batch_stays_unproven(
    command: Command, fake: FakeProviders, unsettled: str
) -> None:
    fake.openai.inject('list', 'http', status=500)
    assert adopt(command, unsettled, '--journal', JOURNAL).exit_code == 2
    assert adopt(command, unsettled, '--journal', JOURNAL).exit_code == 0


def test_without_its_journal_a_batch_is_written_under_its_own_ids_and_left_as_it_is(
    command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    [batch] = fake.openai.batches.values()
    deleted = fake.openai.count('delete')
    result = adopt(command, batch.id, '-o', 'out.jsonl')
    assert (result.exit_code, '2 ok, 1 error' in result.output) == (1, True)
    lines = reviews.with_name('out.jsonl').read_text('utf-8').splitlines()
    rows = {row['id']: row for row in (json.loads(line) for line in lines)}
    assert sorted(rows) == sorted(request.custom_id for request in batch.requests)
    texts = {row['text'] for row in rows.values()}
    assert texts == {'about Sum up: good, really', 'about Sum up: two\nlines', None}
    [failed] = [row for row in rows.values() if row['status'] == 'error']
    assert 'no such thing' in failed['error']
    assert all(row['raw'] for row in rows.values())
    assert (fake.openai.count('cancel'), fake.openai.count('delete')) == (0, deleted)


def test_a_file_that_is_there_is_not_written_over(command: Command, fake: FakeProviders, reviews: Path) -> None:
    run_reviews(command)
    [batch_id] = fake.openai.batches
    before = reviews.read_bytes()
    result = adopt(command, batch_id, '-o', 'reviews.csv')
    assert (result.exit_code, 'is there already' in result.output) == (2, True)
    assert reviews.read_bytes() == before


def test_a_batch_that_the_provider_does_not_have_is_refused(command: Command, fake: FakeProviders) -> None:
    result = adopt(command, 'batch_0')
    assert (result.exit_code, 'jobs --provider openai' in result.output) == (2, True)


def test_a_batch_that_is_not_over_is_refused_or_waited_for(
    command: Command, fake: FakeProviders, clock: ManualClock, tmp_path: Path
) -> None:
    requests = [BatchRequest(custom_id='a', messages=[ModelRequest.user_text_prompt('hello')])]
    job = asyncio.run(clock.run(submit_batch(MODEL, requests, clock=clock)))
    [batch] = job.batches
    result = adopt(command, batch.batch.id)
    assert (result.exit_code, 'is not over' in result.output, '--wait' in result.output) == (2, True, True)
    result = adopt(command, batch.batch.id, '-o', 'out.jsonl', '--wait', '1s')
    assert (result.exit_code, (tmp_path / 'out.jsonl').exists()) == (3, False)
    result = adopt(command, batch.batch.id, '--wait', '24h')
    assert (result.exit_code, json.loads(result.stdout)['text']) == (0, 'about hello')


def test_standard_output_has_the_format_of_the_input(command: Command, fake: FakeProviders, reviews: Path) -> None:
    written = list(csv.DictReader(run_reviews(command, '-o', '-', '-q').stdout.splitlines()))
    assert [(row['id'], row['status']) for row in written[:2]] == [('001', 'ok'), ('002', 'error')]
    as_json = run_reviews(command, '-o', '-', '-q', '--output-format', 'jsonl').stdout
    assert json.loads(as_json.splitlines()[0])['id'] == '001'


@pytest.mark.parametrize('width', ['80', '120'])
def test_a_table_of_what_a_provider_holds_has_whole_times(
    width: str, command: Command, fake: FakeProviders, reviews: Path
) -> None:
    run_reviews(command)
    created = json.loads(command('jobs', '--provider', 'openai', '--json').output)[0]['created_at']
    output = command('jobs', '--provider', 'openai', JOURNAL, width=width).output
    assert created[:16].replace('T', ' ') in output


def test_the_status_names_the_model_as_it_was_given(command: Command, fake: FakeProviders, reviews: Path) -> None:
    run_reviews(command)
    assert MODEL in command('status', JOURNAL).output


def test_a_plan_that_costs_next_to_nothing_says_so(command: Command, fake: FakeProviders, reviews: Path) -> None:
    planned = command('plan', 'reviews.csv', '-m', MODEL, '-p', '{{ text }}', '--max-tokens', '1').output
    assert 'cost: under $0.0001 in batches' in planned


def test_raw_requests_go_through_as_they_are(command: Command, fake: FakeProviders, tmp_path: Path) -> None:
    body = {'model': 'gpt-5-mini', 'messages': [{'role': 'user', 'content': 'hi'}], 'seed': 7}
    line = {'custom_id': 'mine', 'method': 'POST', 'url': '/v1/chat/completions', 'body': body}
    (tmp_path / 'batch.jsonl').write_text(json.dumps(line) + '\n', 'utf-8')
    result = command('run', 'batch.jsonl', '-m', 'openai', '-o', 'out.jsonl')
    assert result.exit_code == 0, result.output
    [row] = [json.loads(text) for text in (tmp_path / 'out.jsonl').read_text('utf-8').splitlines()]
    assert (row['custom_id'], row['answer'], row['body']) == ('mine', 'about hi', body)
    [batch] = fake.openai.batches.values()
    assert (batch.endpoint, [request.body for request in batch.requests]) == ('/v1/chat/completions', [body])


def test_a_journal_that_is_none_is_an_error_of_one_line(command: Command, tmp_path: Path) -> None:
    for name in ('collect', 'status', 'results', 'cost', 'cancel', 'retry', 'watch'):
        result = command(name, 'none.journal')
        assert (result.exit_code, result.output) == (2, 'Error: There is no journal none.journal.\n')


# In processes of their own, which are left, stopped and killed


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProviders]:
    """A provider that takes two seconds of real time for a batch."""
    with FakeProviders(echo, processing=timedelta(seconds=2)) as fake:
        for name, value in fake.openai.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


def process(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, '-m', 'pydantic_ai_batch.cli', *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=os.environ | {'COLUMNS': '120'},
    )


def finished(running: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = running.communicate(timeout=60)
    return running.returncode, output


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    for _ in iter(happened, True):
        assert time.monotonic() < deadline
        time.sleep(0.02)


RUN = ('run', 'reviews.csv', '-m', MODEL, '-p', '{{ text }}', '--poll', '0.2')
JOURNAL = 'reviews.answers.csv.journal'


def test_a_run_that_was_left_is_collected_by_another_process(slow: FakeProviders, reviews: Path) -> None:
    code, output = finished(process(reviews.parent, *RUN, '--detach'))
    assert (code, 'collect reviews.answers.csv.journal' in output) == (3, True)
    # And nothing of it twice.
    assert 'goes on' not in output
    assert not reviews.with_name('reviews.answers.csv').exists()
    code, _ = finished(process(reviews.parent, 'collect', JOURNAL))
    assert code == 1
    assert [row['status'] for row in read(reviews.with_name('reviews.answers.csv'))] == ['ok', 'error', 'ok']
    assert slow.openai.count('create') == 1


def test_a_wait_that_is_up_leaves_the_batches_running(slow: FakeProviders, reviews: Path) -> None:
    code, _ = finished(process(reviews.parent, *RUN, '--wait', '1s'))
    assert code == 3
    assert finished(process(reviews.parent, *RUN))[0] == 1
    assert slow.openai.count('create') == 1


@pytest.mark.parametrize(('choice', 'code', 'cancels'), [('leave', 3, 0), ('cancel', 130, 1)])
def test_ctrl_c_leaves_or_cancels_as_it_was_told(
    choice: str, code: int, cancels: int, slow: FakeProviders, reviews: Path
) -> None:
    running = process(reviews.parent, *RUN, '--on-interrupt', choice)
    until(lambda: slow.openai.count('status') > 0)
    running.send_signal(signal.SIGINT)
    assert finished(running)[0] == code
    assert slow.openai.count('cancel') == cancels
    finished(process(reviews.parent, *RUN))
    assert Counter(row.text for row in slow.openai.billed if row.text != 'bad').most_common(1)[0][1] == 1


def test_a_run_that_a_process_works_on_is_left_to_it(slow: FakeProviders, reviews: Path) -> None:
    assert finished(process(reviews.parent, *RUN, '--detach'))[0] == 3
    with RunLock(reviews.with_name(JOURNAL)):
        for command in (RUN, ('collect', JOURNAL)):
            code, output = finished(process(reviews.parent, *command))
            assert code == 2
            assert f'is being worked on by process {os.getpid()}' in ' '.join(output.split())
    assert finished(process(reviews.parent, *RUN))[0] == 1
    assert slow.openai.count('create') == 1
    # It leaves nothing behind.
    assert not list(reviews.parent.glob('*.lock'))


def test_a_run_that_was_killed_is_gone_on_with_and_paid_once(slow: FakeProviders, reviews: Path) -> None:
    running = process(reviews.parent, *RUN)
    until(lambda: slow.openai.count('create') > 0)
    running.kill()
    finished(running)
    assert finished(process(reviews.parent, *RUN))[0] == 1
    assert slow.openai.count('create') == 1
    assert [row['status'] for row in read(reviews.with_name('reviews.answers.csv'))] == ['ok', 'error', 'ok']


def test_on_a_terminal_progress_is_drawn_and_ctrl_c_asks(slow: FakeProviders, reviews: Path) -> None:
    terminal, its_end = pty.openpty()
    command = [sys.executable, '-m', 'pydantic_ai_batch.cli', *RUN]
    environment = os.environ | {'COLUMNS': '100', 'TERM': 'xterm'}
    running = subprocess.Popen(
        command, cwd=reviews.parent, env=environment, stdin=its_end, stdout=its_end, stderr=its_end
    )
    os.close(its_end)
    shown = b''

    def says(text: bytes) -> bool:
        nonlocal shown
        with suppress(OSError):
            shown += os.read(terminal, 65536)
        return text in shown

    try:
        until(lambda: says(b'in_progress'))
        running.send_signal(signal.SIGINT)
        until(lambda: says(b'Type c to cancel them'))
        os.write(terminal, b'c\n')
        until(lambda: says(b'asked to stop'))
        assert running.wait(timeout=60) == 130
    finally:
        running.kill()
        os.close(terminal)
    assert b'submitted' in shown
    assert slow.openai.count('cancel') == 1
