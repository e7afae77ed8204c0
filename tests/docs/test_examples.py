"""Every program in `examples/` runs, against the fake providers, as its first lines say."""

from __future__ import annotations

import asyncio
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders

from .programs import JumpingClock, jumping_clock, like
from .tables import ROOT

Run = Callable[..., str]


@pytest.fixture
def clock() -> Iterator[JumpingClock]:
    with jumping_clock() as clock:
        yield clock


@pytest.fixture
def fake(clock: JumpingClock) -> Iterator[FakeProviders]:
    """Goes by the clock that jumps over waits, as the examples do."""
    with FakeProviders() as fakes:
        yield fakes


@pytest.fixture
def run(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs an example as `python examples/NAME.py ARGUMENTS` does, and returns what it prints."""
    for provider in fake.providers.values():
        for name, value in provider.environment.items():
            monkeypatch.setenv(name, value)

    def run(name: str, *arguments: str) -> str:
        path = ROOT / 'examples' / f'{name}.py'
        monkeypatch.setattr(sys, 'argv', [str(path), *arguments])
        runpy.run_path(str(path), run_name='__main__')
        return capsys.readouterr().out

    with asyncio.Runner() as runner:
        asyncio.set_event_loop(runner.get_loop())
        yield run


def test_agents(run: Run, fake: FakeProviders) -> None:
    lines = run('agents').splitlines()
    assert lines[::2] == [row.text for row in sorted(fake.openai.billed, key=lambda row: lines.index(row.text))]
    assert all(', about ' in line for line in lines[1::2])
    assert fake.openai.count('create') == 1


def test_pending(run: Run, fake: FakeProviders, clock: JumpingClock, tmp_path: Path) -> None:
    folder = str(tmp_path / 'histories')
    assert run('pending', folder) == '3 questions were submitted.\n'
    assert run('pending', folder) == 'bread: pending\nice: pending\nsky: pending\n'
    clock.skipped += 3600
    assert run('pending', folder).startswith('bread: Answer to: Why does bread go stale?')
    assert run('pending', folder) == 'Nothing is pending.\n'
    assert fake.openai.count('create') == 1
    assert fake.openai.count('live') == 0


def test_list_of_requests(run: Run, fake: FakeProviders) -> None:
    assert run('list_of_requests').splitlines()[0] == 'Feierabend: Answer to: Feierabend'
    assert fake.openai.count('create') == 1


def test_several_providers(run: Run, fake: FakeProviders) -> None:
    lines = run('several_providers').splitlines()
    assert lines[::2] == [row.text for row in sorted(fake.anthropic.billed, key=lambda row: lines.index(row.text))]
    assert all(': Answer to: ' in line for line in lines[1::2])
    created = {name: provider.count('create') for name, provider in fake.providers.items()}
    assert {name: count for name, count in created.items() if count} == {'anthropic': 1, 'google': 1}


@pytest.mark.skipif(sys.platform == 'win32', reason='a process is killed in another way there')
def test_survives_kill(tmp_path: Path) -> None:
    with FakeProviders(processing=timedelta(seconds=4)) as fake:
        environment = {**os.environ, **fake.openai.environment, 'PYTHONUNBUFFERED': '1'}
        command = [sys.executable, str(ROOT / 'examples' / 'survives_kill.py'), str(tmp_path / 'primes.journal')]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as killed:
            assert killed.stderr is not None
            said = ''
            while 'was submitted' not in said:
                assert killed.poll() is None
                said = killed.stderr.readline()
            # What Ctrl-\ sends.
            killed.send_signal(signal.SIGQUIT)
        assert killed.returncode == -signal.SIGQUIT
        again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert len(again.stdout.splitlines()) == 10
        start = '$ python examples/survives_kill.py\n'
        page = (ROOT / 'docs' / 'journal.md').read_text(encoding='utf-8')
        (shown,) = re.findall(r'<!-- shown: survives_kill -->\n```text\n(.*?)```', page, re.DOTALL)
        assert like(shown, f'{start}{said}^\\Quit\n{start}{again.stderr}{again.stdout}')
        assert len(fake.openai.billed) == 10
        assert fake.openai.count('create') == 1


def test_each_example_has_a_test() -> None:
    tested = {name.removeprefix('test_') for name in globals()}
    assert {path.stem for path in (ROOT / 'examples').glob('*.py')} <= tested
