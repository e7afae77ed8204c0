"""Runs as workflows of DBOS, on SQLite and on PostgreSQL: one batch, one bill, whatever dies when."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders

from .engines import answers, program, until

SECONDS = 4
"""How long the fake takes for a batch."""


@pytest.fixture
def fake() -> FakeProviders:
    return FakeProviders(lambda request: f'answer to {request.text}', processing=timedelta(seconds=SECONDS))


def test_fifty_workflows_share_one_batch(engines: Path, database: str, fake: FakeProviders, tmp_path: Path):
    with fake, program(engines, 'dbos_runs.py', database, 50, fake=fake, home=tmp_path, MAX_WAIT='8') as runs:
        assert runs.json() == answers(50)
        # A submission and each check is a step of its own, and so is the wait before it.
        steps = runs.json()
        assert set(steps) == {'asker__model.request', 'DBOS.sleep'}
        assert steps[::2] == ['asker__model.request'] * (len(steps) // 2 + 1)
        assert (fake.openai.count('create'), len(fake.openai.billed), fake.openai.count('live')) == (1, 50, 0)
        assert fake.openai.count('status') <= SECONDS * 2 + 2


def test_a_worker_that_is_killed_while_a_batch_runs_goes_on_with_it(
    engines: Path, database: str, fake: FakeProviders, tmp_path: Path
):
    with fake:
        with program(engines, 'dbos_runs.py', database, 5, fake=fake, home=tmp_path) as runs:
            until(lambda: fake.openai.count('status'), 'a check of the batch')
            runs.kill()
        with program(engines, 'dbos_runs.py', database, 5, fake=fake, home=tmp_path) as runs:
            assert runs.json() == answers(5)
        assert (fake.openai.count('create'), len(fake.openai.billed)) == (1, 5)


@pytest.mark.parametrize('journal', [False, True])
def test_a_step_that_died_after_its_batch_was_created_pays_twice_without_a_journal_and_once_with_one(
    engines: Path, database: str, fake: FakeProviders, tmp_path: Path, journal: bool
):
    settings = {'JOURNAL': str(tmp_path / 'runs.db')} if journal else {}
    with fake:
        # The program hears nothing of the batch, looks for it, and dies before it finds it.
        fake.openai.inject('create', 'lose_reply')
        fake.openai.inject('batch', 'hide', seconds=3)
        with program(engines, 'dbos_runs.py', database, 3, fake=fake, home=tmp_path, **settings) as runs:
            until(lambda: fake.openai.count('list'), 'a search for the batch')
            runs.kill()
        with program(engines, 'dbos_runs.py', database, 3, fake=fake, home=tmp_path, **settings) as runs:
            assert runs.json() == answers(3)
        assert fake.openai.count('create') == (1 if journal else 2)
        assert len(fake.openai.billed) == (3 if journal else 6)


def test_a_run_that_ends_pending_is_one_step(engines: Path, database: str, fake: FakeProviders, tmp_path: Path):
    with fake, program(engines, 'dbos_runs.py', database, 2, 'leave', fake=fake, home=tmp_path) as runs:
        assert runs.json() == [True, True]
        assert runs.json() == ['leaver__model.request']
        assert fake.openai.count('create') == 1


def test_workflow_code_flushes_nothing_and_takes_no_further_capabilities(
    engines: Path, database: str, fake: FakeProviders, tmp_path: Path
):
    with fake, program(engines, 'dbos_runs.py', database, 1, 'flush', fake=fake, home=tmp_path) as runs:
        [said] = runs.json()
        assert said.startswith('UserError: `flush()` is called in code of a DBOS workflow')
    database = database.replace('runs', 'more')
    with (
        FakeProviders() as other,
        program(engines, 'dbos_runs.py', database, 1, 'add', fake=other, home=tmp_path) as runs,
    ):
        [said] = runs.json()
        assert said.startswith('UserError')
        assert other.openai.count('create') == 0


def test_a_wait_without_an_end_is_refused(engines: Path, database: str, fake: FakeProviders, tmp_path: Path):
    with fake, program(engines, 'dbos_runs.py', database, 1, fake=fake, home=tmp_path, MAX_WAIT='none') as runs:
        [said] = runs.json()
        assert said.startswith('UserError: `max_wait=None` waits for a full batch or `flush()`')
        assert fake.openai.count('create') == 0
