"""The documentation is true: its programs run and print what it says, and its tables are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders

from .answers import answer
from .programs import jumping_clock, like, programs, run_page
from .tables import PACKAGE, PAGES, ROOT, with_tables


@pytest.mark.parametrize('page', [page for page in PAGES if programs(page)], ids=lambda page: page.name)
def test_programs_run_and_print_what_the_page_shows(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('COLUMNS', '100')
    with jumping_clock() as clock, FakeProviders(answer) as fake:
        for provider in fake.providers.values():
            for name, value in provider.environment.items():
                monkeypatch.setenv(name, value)
        run_page(page, clock)


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_code(page: Path) -> None:
    text = page.read_text(encoding='utf-8')
    assert text == with_tables(text), 'The code has changed: run `.venv/bin/python tests/docs/tables.py`.'


def test_the_architecture_names_every_module() -> None:
    page = (ROOT / 'docs' / 'architecture.md').read_text(encoding='utf-8')
    named = [name for names in re.findall(r'<!-- table: modules (.*?) -->', page) for name in names.split()]
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == '.py' or (path / '__init__.py').is_file()}
    journal = {f'journal/{path.stem}' for path in (PACKAGE / 'journal').glob('*.py')}
    lanes = {f'lanes/{path.stem}' for path in (PACKAGE / 'lanes').glob('*.py')}
    rows = {f'rows/{path.stem}' for path in (PACKAGE / 'rows').glob('*.py')}
    packages = {'__init__', 'journal/__init__', 'lanes/__init__', 'rows/__init__'}
    assert sorted(named) == sorted((modules | journal | lanes | rows) - packages)


def test_the_api_names_every_fake() -> None:
    page = (ROOT / 'docs' / 'api.md').read_text(encoding='utf-8')
    fakes = [type(fake) for fake in FakeProviders().providers.values()]
    named = re.findall(r'^::: pydantic_ai_batch\.testing\.(\w+_api\.Fake\w+)$', page, re.MULTILINE)
    assert sorted(named) == sorted(f'{fake.__module__.rpartition(".")[2]}.{fake.__name__}' for fake in fakes)


def test_the_readme_shows_what_the_demo_prints() -> None:
    readme = (ROOT / 'README.md').read_text(encoding='utf-8')
    (shown,) = re.findall(r'^```text\n(No key is needed.*?)^```$', readme, re.MULTILINE | re.DOTALL)
    environment = {name: value for name, value in os.environ.items() if name != 'COLUMNS'}
    demo = subprocess.run(
        [sys.executable, '-m', 'pydantic_ai_batch.cli', 'demo', '--seconds', '1', '--poll', '0.2'],
        env={**environment, 'PYTHONIOENCODING': 'utf-8'},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding='utf-8',
        timeout=120,
        check=False,
    )
    assert demo.returncode == 0, demo.stdout
    assert like(_settled(shown), _settled(demo.stdout)), demo.stdout


def _settled(output: str) -> str:
    """The demo's output without what depends on how fast the machine is.

    That is how often its second process had to look, and which of the batches came first.
    """
    output = re.sub(r'^Sweep \d+: 0 .*\n', '', output, flags=re.MULTILINE)
    output = re.sub(r'^Sweep \d+', 'Sweep', output, flags=re.MULTILINE)
    output = re.sub(r'^batch \S+:', 'batch …:', output, flags=re.MULTILINE)
    batches = re.compile(r'(^batch .*\n)+', re.MULTILINE)
    return batches.sub(lambda lines: ''.join(sorted(lines[0].splitlines(keepends=True))), output)


def test_the_fake_provider_in_a_terminal_prints_what_the_page_shows() -> None:
    page = (ROOT / 'docs' / 'getting-started.md').read_text(encoding='utf-8')
    (command, shown) = re.findall(
        r'^```bash\n(python -m .*?)```\n+```text\n(.*?)^```$', page, re.MULTILINE | re.DOTALL
    )[0]
    with subprocess.Popen([sys.executable, *command.split()[1:]], stdout=subprocess.PIPE, encoding='utf-8') as process:
        assert process.stdout is not None
        printed = ''
        for line in process.stdout:
            printed += re.sub(r'127\.0\.0\.1:\d+', '127.0.0.1:43121', line)
            if line.startswith('Ctrl-C'):
                break
        process.terminate()
    assert like(shown, printed), printed
