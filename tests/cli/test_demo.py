"""`pydantic-ai-batch demo`, in processes of its own and with the fake provider's real clock."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pydantic_ai_batch.cli import app
from pydantic_ai_batch.cli.demo.answers import answer_triage
from pydantic_ai_batch.testing import Answer, FakeError, FakeProviders, FakeRequest, ManualClock
from pydantic_ai_batch.testing.provider import FakeProvider

COMMAND = [sys.executable, '-m', 'pydantic_ai_batch.cli']

# Imported by each Python process that has its folder in `PYTHONPATH`: the demo's own, and the one that it starts.
NETWORK_GUARD = """
import os, sys

def guard(event, args):
    host = None
    if event == 'socket.getaddrinfo':
        host = args[0]
    elif event == 'socket.connect' and isinstance(args[1], tuple):
        host = args[1][0]
    if host not in (None, '127.0.0.1', '::1', 'localhost'):
        with open(os.environ['GUARD_LOG'], 'a') as log:
            print(event, host, file=log)
        raise OSError(f'The demo wanted to reach {host}.')

sys.addaudithook(guard)
with open(os.environ['GUARD_LOG'], 'a') as log:
    print('guarded', os.getpid(), file=log)
"""

WITHOUT_STARLETTE = """
import sys
from pydantic_ai_batch.cli import app

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] == 'starlette':
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Missing())
app(['demo'])
"""


@dataclass(frozen=True)
class Demo:
    code: int
    output: str
    """Standard output and standard error, as a log has them."""
    guard_log: str
    left_behind: list[str]
    """What is in the folder for temporary files after it."""


@pytest.fixture(scope='module')
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """One run of the demo by somebody who has a key, a proxy and no terminal, with every way out guarded."""
    folder, temporary = tmp_path_factory.mktemp('guard'), tmp_path_factory.mktemp('temporary')
    (folder / 'sitecustomize.py').write_text(NETWORK_GUARD)
    environment = {
        **os.environ,
        'PYTHONPATH': os.pathsep.join(filter(None, (str(folder), os.environ.get('PYTHONPATH')))),
        'PYTHONIOENCODING': 'utf-8',
        'GUARD_LOG': str(folder / 'log'),
        'TMPDIR': str(temporary),
        'OPENAI_API_KEY': 'sk-of-the-user',
        'GEMINI_API_KEY': 'AI-of-the-user',
        'HTTP_PROXY': 'http://proxy.invalid:3128',
    }
    environment.pop('COLUMNS', None)
    run = subprocess.run(
        [*COMMAND, 'demo', '--seconds', '1', '--poll', '0.2'],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding='utf-8',
        timeout=120,
        check=False,
    )
    left_behind = sorted(path.name for path in temporary.iterdir())
    return Demo(run.returncode, run.stdout, (folder / 'log').read_text(), left_behind)


def test_every_ticket_is_answered_and_the_exit_code_says_so(demo: Demo) -> None:
    assert demo.code == 0, demo.output
    submitted = re.findall(r'^batch \S+: 10 requests of (\S+) submitted$', demo.output, re.MULTILINE)
    assert sorted(submitted) == ['claude-haiku-4-5', 'gemini-2.5-flash', 'gpt-5-mini']
    assert demo.output.count(': 10 answered, 0 failed, 0 resubmitted\n') == 3
    assert demo.output.endswith('All 36 tickets were answered.\n')


def test_results_are_typed_and_about_the_tickets(demo: Demo) -> None:
    row = next(line for line in demo.output.splitlines() if line.startswith('T-004'))
    assert re.match(r'T-004 +openai +Smoke from.* hardware +1 +worried +yes +Reports a device that', row)
    assert re.search(r'^T-005 +anthropic +it doesnt work ', demo.output, re.MULTILINE)
    assert re.search(r'^T-006 +google +No puedo iniciar', demo.output, re.MULTILINE)
    assert '… and 22 more.' in demo.output
    by_category = re.findall(r'By category: ([^.]*?)\n\n', demo.output)[0]
    assert sum(int(count) for count in re.findall(r'\d+', by_category)) == 30


def test_batches_cost_half_of_what_live_requests_would_have(demo: Demo) -> None:
    amounts = r'(\d+) +\$([\d.]+) +\$([\d.]+) +\$([\d.]+) \(50%\) +\$[\d,]+ *$'
    costs = re.findall(rf'^(openai|anthropic|google|together) .*? {amounts}', demo.output, re.MULTILINE)
    assert [(name, int(tickets)) for name, tickets, *_ in costs] == [
        ('openai', 10),
        ('anthropic', 10),
        ('google', 10),
        ('together', 30),
    ]
    in_batches, live, saved = ([Decimal(amount) for amount in column] for column in list(zip(*costs, strict=True))[2:])
    cent = Decimal('0.0002')
    for batch_price, live_price, difference in zip(in_batches, live, saved, strict=True):
        assert abs(batch_price * 2 - live_price) <= cent
        assert abs(batch_price + difference - live_price) <= cent
    assert abs(sum(live[:3]) - live[3]) <= cent


def test_a_second_process_collects_what_the_first_left_pending(demo: Demo) -> None:
    assert '6 runs ended, their requests pending in 3 batches.' in demo.output
    found = re.search(r'^Process (\d+) found 6 histories\.$', demo.output, re.MULTILINE)
    assert found is not None
    assert f'guarded {found[1]}' in demo.guard_log.splitlines()[1:]
    assert re.search(r'^Sweep \d+: 6 answered, 0 pending$', demo.output, re.MULTILINE)
    assert re.search(r'^T-036 +google +Thank you.*Thanks, and lacks a', demo.output, re.MULTILINE)
    cost = re.search(r'^Cost: \$(\S+) in batches; live, it would have been \$(\S+)\.$', demo.output, re.MULTILINE)
    assert cost is not None
    assert Decimal(cost[1]) < Decimal(cost[2])


def test_without_live_nothing_leaves_the_machine(demo: Demo) -> None:
    assert [line.split()[0] for line in demo.guard_log.splitlines()] == ['guarded', 'guarded']


def test_a_log_gets_plain_lines_no_wider_than_a_page(demo: Demo) -> None:
    assert '\x1b' not in demo.output
    assert '\r' not in demo.output
    histories = [line for line in demo.output.splitlines() if line.startswith('Their histories are files in ')]
    assert [line for line in demo.output.splitlines() if len(line) > 100 and line not in histories] == []
    assert 'pydantic-ai v' not in demo.output


def test_histories_are_removed_when_they_were_collected(demo: Demo) -> None:
    assert demo.left_behind == []


KEYS = ('OPENAI_API_KEY', 'ANTHROPIC_API_KEY', 'GEMINI_API_KEY', 'GOOGLE_API_KEY')


@pytest.mark.parametrize('key', [None, '', ' '])
def test_live_without_a_key_names_the_variables(key: str | None) -> None:
    result = CliRunner().invoke(app, ['demo', '--live'], env=dict.fromkeys(KEYS, key))
    assert result.exit_code == 2
    assert result.stderr.startswith('Error: `--live` needs the key of a provider: set ')
    assert [name for name in KEYS if name not in result.stderr] == []
    assert result.stdout == ''


def test_a_model_of_another_provider_is_refused() -> None:
    result = CliRunner().invoke(app, ['demo', '--model', 'mistral:mistral-small'])
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: The demo has no model 'mistral:mistral-small'. It knows `openai-responses:…`, `anthropic:…`, "
        '`google:…`.\n'
    )


def test_without_the_extra_the_command_that_installs_it_is_named() -> None:
    run = subprocess.run(
        [sys.executable, '-c', WITHOUT_STARLETTE],
        capture_output=True,
        encoding='utf-8',
        timeout=60,
        check=False,
    )
    assert run.returncode == 1
    assert "pip install 'pydantic-ai-batch[testing]'" in run.stderr
    assert 'Traceback' not in run.stderr


LIVE = ['demo', '--live', '--poll', '0.1']


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeProviders]:
    """What `demo --live` takes for the providers."""
    with FakeProviders(answer_triage, processing=timedelta(seconds=0.5)) as fake:
        instead_of_the_providers(fake, monkeypatch, tmp_path)
        yield fake


def asked(fake: FakeProviders) -> list[FakeProvider[Any]]:
    """The providers that the demo deals its tickets to."""
    return [fake.openai, fake.anthropic, fake.google]


def instead_of_the_providers(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    environment = {name: value for each in asked(fake) for name, value in each.environment.items()}
    for name, value in {**environment, 'NO_PROXY': '127.0.0.1', 'TMPDIR': str(temporary)}.items():
        monkeypatch.setenv(name, value)
    # The folder for temporary files is remembered when it was asked for once.
    monkeypatch.setattr('tempfile.tempdir', None)


def sizes(fake: FakeProviders) -> dict[str, list[int]]:
    """How many requests the batches of each provider hold."""
    return {provider.name: [batch.counts['total'] for batch in provider.batches.values()] for provider in asked(fake)}


def statuses(fake: FakeProviders) -> list[str]:
    return [batch.status for provider in asked(fake) for batch in provider.batches.values()]


def test_a_ticket_that_is_not_answered_is_named_and_fails_the_demo(stand_in: FakeProviders) -> None:
    def answer(request: FakeRequest) -> Answer:
        if 'Smoke from' in request.text:
            return FakeError(400, 'invalid_prompt', 'No smoking.')
        return answer_triage(request)

    stand_in.answer = answer
    result = CliRunner().invoke(app, LIVE)
    assert result.exit_code == 1
    assert 'Not answered: T-004. Model' in result.output, result.output
    assert 'No smoking.' in result.output
    assert result.output.endswith('Not every ticket was answered. Above is why.\n')
    assert sizes(stand_in) == {'openai': [10, 2], 'anthropic': [10, 2], 'google': [10, 2]}


def test_a_provider_without_a_key_is_skipped(stand_in: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('ANTHROPIC_API_KEY')
    monkeypatch.delenv('GOOGLE_API_KEY')
    result = CliRunner().invoke(app, LIVE)
    assert result.exit_code == 0, result.output
    assert 'Anthropic is skipped, as no key is set in ANTHROPIC_API_KEY.\n' in result.output
    assert 'Google is skipped, as no key is set in GEMINI_API_KEY or GOOGLE_API_KEY.\n' in result.output
    assert '1 · 30 agent runs, one batch ' in result.output
    assert sizes(stand_in) == {'openai': [30, 6], 'anthropic': [], 'google': []}


def test_a_refused_batch_is_explained_once_and_the_others_go_on(stand_in: FakeProviders) -> None:
    stand_in.openai.inject('create', 'http', status=401, message='That key is not valid.', times=None)
    result = CliRunner().invoke(app, LIVE)
    assert result.exit_code == 1
    assert result.output.count('Not answered: T-001, T-004, ') == 1
    assert result.output.count('That key is not valid.') == 2, 'once for the runs that wait, once for those that do not'
    assert sizes(stand_in) == {'openai': [], 'anthropic': [10, 2], 'google': [10, 2]}


def test_when_every_batch_is_refused_nothing_more_is_sent(stand_in: FakeProviders) -> None:
    for provider in asked(stand_in):
        provider.inject('create', 'http', status=401, message='That key is not valid.', times=None)
    result = CliRunner().invoke(app, LIVE)
    assert result.exit_code == 1
    assert [provider.count('create') for provider in asked(stand_in)] == [1, 1, 1]


@pytest.mark.skipif(sys.platform == 'win32', reason='Ctrl-C is no signal there')
def test_ctrl_c_cancels_the_batches_that_runs_wait_for(stand_in: FakeProviders) -> None:
    stand_in.processing = timedelta(hours=1)
    code, output = interrupted(LIVE, at=lambda output: output.count(' submitted\n') == 3)
    assert code == 130, output
    assert 'Traceback' not in output
    assert [provider.count('cancel') for provider in asked(stand_in)] == [1, 1, 1]


@pytest.mark.skipif(sys.platform == 'win32', reason='Ctrl-C is no signal there')
def test_ctrl_c_in_the_second_process_leaves_the_batches_and_says_how_to_collect_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = ManualClock(datetime.now(tz=UTC))
    with FakeProviders(answer_triage, clock=clock) as fake:
        instead_of_the_providers(fake, monkeypatch, tmp_path)

        def end_first_batches(output: str) -> bool:
            if output.endswith(' submitted\n') and output.count(' submitted\n') == 3:
                clock.set_wall(3600)
            return 'Sweep 2' in output

        code, output = interrupted(LIVE, at=end_first_batches)
        assert code == 130, output
        assert 'Traceback' not in output
        assert len(statuses(fake)) == 6
        assert [provider.count('cancel') for provider in asked(fake)] == [0, 0, 0]

        clock.set_wall(3600)
        command = shlex.split(output.splitlines()[-1])
        later = subprocess.run(command, capture_output=True, encoding='utf-8', timeout=60, check=False)
        assert later.returncode == 0, later.stderr
        assert 'Sweep 1: 6 answered, 0 pending\n' in later.stdout


def interrupted(arguments: list[str], *, at: Callable[[str], bool]) -> tuple[int, str]:
    """Run the command line, press Ctrl-C once when `at` says so of the output, and return exit code and output.

    Once, as a second Ctrl-C leaves at once, without cancelling anything.
    """
    # Where the tests run in a shell's background, Ctrl-C is ignored, which processes inherit.
    code = (
        'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); '
        'from pydantic_ai_batch.cli import app; app(sys.argv[1:])'
    )
    process = subprocess.Popen(
        [sys.executable, '-c', code, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding='utf-8',
        start_new_session=True,
    )
    assert process.stdout is not None
    too_late = threading.Timer(90, os.killpg, (process.pid, signal.SIGKILL))
    too_late.start()
    output, pressed = '', False
    with process:
        for line in process.stdout:
            output += line
            if not pressed and at(output):
                # As a terminal does: to the process and to those that it started.
                os.killpg(process.pid, signal.SIGINT)
                pressed = True
    too_late.cancel()
    return process.returncode, output
