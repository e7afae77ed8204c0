"""The same inputs, as files that the command line is given: each row comes to what a user has a right to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pydantic_ai_batch.cli import app
from pydantic_ai_batch.cli.rows import Time
from pydantic_ai_batch.lanes import google
from pydantic_ai_batch.testing import ManualClock

from .test_cases import CASES, PLAYED, Case, playing

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason='the cases are not on this machine')

NAMES = {
    'responses': 'openai-responses',
    'chat': 'openai-chat',
    'anthropic': 'anthropic',
    'google-inline': 'google',
    'google-file': 'google',
}
"""What models of each kind begin with by name."""

OPTIONS = {'max_requests': '--max-requests', 'max_resubmissions': '--max-resubmissions', 'max_bytes': '--max-bytes'}

PLAYS = [(name, model) for name, models in PLAYED.items() for model in models]
PLAYS += [('h04-duplicate-ids', 'responses'), ('h21-csv-bom-zeros-blanks', 'chat')]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command line against a provider, on a clock that waits for nothing."""

    def command(url: str, *arguments: str) -> Any:
        for variable, address in {
            'OPENAI_BASE_URL': f'{url}/v1',
            'ANTHROPIC_BASE_URL': url,
            'GOOGLE_GEMINI_BASE_URL': url,
        }.items():
            monkeypatch.setenv(variable, address)
        for variable in ('OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'GOOGLE_API_KEY'):
            monkeypatch.setenv(variable, 'test')
        clock = ManualClock(datetime.now(UTC))

        def run(work: Coroutine[Any, Any, Any]) -> Any:
            async def on_clock() -> Any:
                return await clock.run(work)

            return asyncio.run(on_clock())

        return CliRunner().invoke(app, [*arguments], obj=Time(clock, run), catch_exceptions=False)

    return command


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an output as the file that is checked has them."""
    rows = [json.loads(line) for line in path.read_bytes().split(b'\n') if line]
    return [{'id': row['id'], 'status': row['status'], 'text': row['answer'], 'error': row['error']} for row in rows]


def created_in_order(case: Case) -> bool:
    """Whether the provider was asked for its first batches in the order of the rows.

    They are created at the same time, and what becomes of each goes by that order in some cases.
    """
    events = [json.loads(line) for line in case.wire.read_text('utf-8').splitlines()] if case.wire.exists() else []
    first = dict.fromkeys(mark for event in events if event.get('event') == 'create' for _, mark in event['rows'])
    return list(first) == sorted(first, key=lambda mark: int(mark.strip('r')))


def play(name: str, model: str, command: Callable[..., Any], scratch: Path) -> tuple[Case, Path, Any]:
    """Give the rows of a case to the command line."""
    scratch.mkdir()
    case, out = Case(name, scratch), scratch / 'answers.jsonl'
    rows = next(path for suffix in ('jsonl', 'csv') if (path := case.folder / f'rows.{suffix}').exists())
    asked = f'{NAMES[model]}:{case.read("case.json")["model"]}'
    options = [part for name, value in case.options().items() for part in (OPTIONS[name], str(value))]
    with playing(case) as url:
        return case, out, command(url, 'run', str(rows), '--model', asked, '--output', str(out), *options)


@pytest.mark.parametrize(('name', 'model'), PLAYS)
def test_every_case_passes_through_the_command_line(
    name: str, model: str, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model == 'google-file':
        monkeypatch.setattr(google, 'INLINE_BYTES', 0)
    case, out, done = next(
        played
        for attempt in range(10)
        if created_in_order((played := play(name, model, command, tmp_path / str(attempt)))[0]) or attempt == 9
    )
    expected = case.read('expect.json')
    if 'refused' in expected:
        assert done.exit_code == 2
        assert all(repr(part) in done.output or f'line {part}' in done.output for part in expected['refused'])
        case.check()
        return
    found = rows_of(out)
    assert done.exit_code == (0 if all(row['status'] == 'ok' for row in found) else 1)
    case.check(*found)


def test_what_answers_cost_is_counted_once_however_often_they_are_collected(
    command: Callable[..., Any], tmp_path: Path
) -> None:
    case = Case('h25-cost-cached-and-collected-twice', tmp_path)
    out = tmp_path / 'answers.jsonl'
    with playing(case) as url:
        run = ['run', str(case.folder / 'rows.jsonl'), '--model', 'openai-responses:gpt-4.1-mini', '--output', str(out)]
        for again in (run, run, ['collect', f'{out}.journal']):
            assert command(url, *again, '--quiet').exit_code == 0
            cost = json.loads(command(url, 'cost', f'{out}.journal', '--json').output)
            assert (round(cost['cost'], 6), cost['unpriced']) == (0.48, 0)
    assert [json.loads(line)['cost'] for line in out.read_text('utf-8').splitlines()] == [0.2, 0.28]
    case.check(*rows_of(out))
