"""Runs as flows of Prefect, whose waits are plain sleeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pydantic_ai_batch.testing import FakeProviders

from .engines import answers, program


@pytest.fixture
def fake() -> FakeProviders:
    return FakeProviders(lambda request: f'answer to {request.text}', processing=timedelta(seconds=3))


def test_flows_share_one_batch(engines: Path, fake: FakeProviders, tmp_path: Path):
    with fake, program(engines, 'prefect_runs.py', 10, fake=fake, home=tmp_path, MAX_WAIT='15') as runs:
        assert runs.json() == answers(10)
        runs.end()
        assert (fake.openai.count('create'), len(fake.openai.billed), fake.openai.count('live')) == (1, 10, 0)


def test_a_run_that_ends_pending_checks_nothing(engines: Path, fake: FakeProviders, tmp_path: Path):
    with fake, program(engines, 'prefect_runs.py', 1, 'leave', fake=fake, home=tmp_path) as runs:
        assert runs.json() == [True]
        runs.end()
        assert (fake.openai.count('create'), fake.openai.count('status')) == (1, 0)


@pytest.mark.parametrize(
    ('task', 'wait', 'reason'),
    [
        ('flush', '2', '`flush()` is called in code of a Prefect workflow'),
        ('ask', 'none', '`max_wait=None` waits for a full batch'),
        ('ask', '5', '`max_wait` is 5 s, and Prefect gives the step up'),
    ],
)
def test_what_cannot_be_in_a_flow_is_refused(
    engines: Path, fake: FakeProviders, tmp_path: Path, task: str, wait: str, reason: str
):
    settings = {'MAX_WAIT': wait, 'STEP_SECONDS': '4'}
    with fake, program(engines, 'prefect_runs.py', 1, task, fake=fake, home=tmp_path, **settings) as runs:
        [said] = runs.json()
        runs.end()
        assert said.startswith(f'UserError: {reason}')
        assert fake.openai.count('create') == 0
