"""`make test-live` does what it says, against a provider that costs nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from pydantic_ai_batch import LANES
from pydantic_ai_batch.testing import FakeProviders

LIVE = Path(__file__).parent / 'live'


def run(environment: dict[str, str]) -> str:
    keys = {variable for info in LANES.values() for variable in info.key_variables}
    clean = {name: value for name, value in os.environ.items() if name not in keys}
    command = [sys.executable, '-m', 'pytest', '-q', '-rs', '-p', 'no:cacheprovider', '-n0', str(LIVE)]
    done = subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_sent_unless_it_is_asked_for() -> None:
    with FakeProviders() as fake:
        assert 'set BATCH_LIVE=1' in run({**fake.openai.environment, 'BATCH_LIVE': ''})
        assert fake.calls == []


def test_lanes_whose_key_is_set_are_tried_and_the_others_are_not() -> None:
    with FakeProviders(processing=timedelta(seconds=0.5)) as fake:
        shown = run({**fake.openai.environment, **fake.groq.environment, 'BATCH_LIVE': '1'})
        assert '2 passed' in shown
        assert 'red: Answer to: Say only the word red.' in shown
        assert "add 'live' to `verified` in pydantic_ai_batch.lanes.groq" in shown
        assert {name: provider.count('create') for name, provider in fake.providers.items() if provider.calls} == {
            'openai': 1,
            'groq': 1,
        }
