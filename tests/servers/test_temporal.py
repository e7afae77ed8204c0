"""Runs as workflows of Temporal: one batch, one bill, whatever dies when, and a history that stays short."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders

from .engines import Program, answers, program, until
from .running import free_port, listening

SECONDS = 4
"""How long the fake takes for a batch."""


@pytest.fixture
def fake() -> FakeProviders:
    return FakeProviders(lambda request: f'answer to {request.text}', processing=timedelta(seconds=SECONDS))


@pytest.fixture
def server(engines: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a Temporal server of the test's own."""
    port = free_port()
    binary = shutil.which('temporal', path=str(engines.parent))
    assert binary is not None
    options = ['--headless', '--ip', '127.0.0.1', '--port', str(port), '--log-level', 'error']
    with listening([binary, 'server', 'start-dev', *options], tmp_path, port):
        yield f'127.0.0.1:{port}'


@contextmanager
def worker(engines: Path, server: str, fake: FakeProviders, home: Path, **settings: str) -> Generator[Program]:
    with program(engines, 'temporal_runs.py', 'worker', server, fake=fake, home=home, **settings) as serving:
        assert serving.line() == 'serving'
        yield serving


@contextmanager
def asking(
    engines: Path, server: str, fake: FakeProviders, home: Path, count: int, task: str = 'ask'
) -> Generator[Program]:
    with program(engines, 'temporal_runs.py', 'ask', server, count, task, fake=fake, home=home) as runs:
        yield runs


def test_fifty_workflows_share_one_batch(engines: Path, server: str, fake: FakeProviders, tmp_path: Path):
    with (
        fake,
        worker(engines, server, fake, tmp_path, MAX_WAIT='15'),
        asking(engines, server, fake, tmp_path, 50) as runs,
    ):
        assert runs.json() == answers(50)
        # Each step and each wait takes some events, and there are as many as there are checks.
        assert runs.json() <= 30 + 11 * (SECONDS * 2 + 2)
        assert (fake.openai.count('create'), len(fake.openai.billed), fake.openai.count('live')) == (1, 50, 0)
        assert fake.openai.count('status') <= SECONDS * 2 + 2


def test_a_worker_that_is_killed_while_a_batch_runs_is_followed_by_another(
    engines: Path, server: str, fake: FakeProviders, tmp_path: Path
):
    with fake, asking(engines, server, fake, tmp_path, 5) as runs:
        with worker(engines, server, fake, tmp_path) as serving:
            until(lambda: fake.openai.count('status'), 'a check of the batch')
            serving.kill()
        with worker(engines, server, fake, tmp_path):
            assert runs.json() == answers(5)
        assert (fake.openai.count('create'), len(fake.openai.billed)) == (1, 5)


@pytest.mark.parametrize('journal', [False, True])
def test_a_step_that_died_after_its_batch_was_created_pays_twice_without_a_journal_and_once_with_one(
    engines: Path, server: str, fake: FakeProviders, tmp_path: Path, journal: bool
):
    settings = {'JOURNAL': str(tmp_path / 'runs.db')} if journal else {}
    with fake, asking(engines, server, fake, tmp_path, 3) as runs:
        # The worker hears nothing of the batch, looks for it, and dies before it finds it.
        fake.openai.inject('create', 'lose_reply')
        fake.openai.inject('batch', 'hide', seconds=3)
        with worker(engines, server, fake, tmp_path, **settings) as serving:
            until(lambda: fake.openai.count('list'), 'a search for the batch')
            serving.kill()
        with worker(engines, server, fake, tmp_path, **settings):
            assert runs.json() == answers(3)
        assert fake.openai.count('create') == (1 if journal else 2)
        assert len(fake.openai.billed) == (3 if journal else 6)


def test_a_workflow_that_is_cancelled_withdraws_its_request(
    engines: Path, server: str, fake: FakeProviders, tmp_path: Path
):
    with fake, worker(engines, server, fake, tmp_path), asking(engines, server, fake, tmp_path, 1, 'cancel') as runs:
        until(lambda: fake.openai.count('status'), 'a check of the batch')
        runs.tell()
        [said] = runs.json()
        assert 'ancelled' in said
        assert fake.openai.count('cancel') == 1


def test_a_run_that_ends_pending_is_one_step(engines: Path, server: str, fake: FakeProviders, tmp_path: Path):
    with fake, worker(engines, server, fake, tmp_path), asking(engines, server, fake, tmp_path, 2, 'leave') as runs:
        assert runs.json() == [True, True]
        assert (fake.openai.count('create'), fake.openai.count('status')) == (1, 0)


def test_workflow_code_flushes_nothing_and_takes_no_further_capabilities(
    engines: Path, server: str, fake: FakeProviders, tmp_path: Path
):
    with fake, worker(engines, server, fake, tmp_path):
        with asking(engines, server, fake, tmp_path, 1, 'flush') as runs:
            [said] = runs.json()
            assert said.startswith('UserError: `flush()` is called in code of a Temporal workflow')
        with program(engines, 'temporal_runs.py', 'ask', server, 2, 'add', fake=fake, home=tmp_path) as runs:
            assert all(said.startswith('UserError') for said in runs.json())
        assert fake.openai.count('create') == 0


@pytest.mark.parametrize('wait', ['none', '60'])
def test_a_wait_that_outlasts_its_step_is_refused(
    engines: Path, server: str, fake: FakeProviders, tmp_path: Path, wait: str
):
    with (
        fake,
        worker(engines, server, fake, tmp_path, MAX_WAIT=wait),
        asking(engines, server, fake, tmp_path, 1) as runs,
    ):
        [said] = runs.json()
        assert '`max_wait=None` waits' in said if wait == 'none' else '`max_wait` is 60 s, and Temporal gives' in said
        assert fake.openai.count('create') == 0
