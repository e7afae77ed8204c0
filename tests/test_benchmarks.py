"""The benchmarks run, at tiny sizes, and send what they say they do. How fast is never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_benchmarks_do_the_same_work_in_every_case() -> None:
    run = subprocess.run(
        [sys.executable, '-W', 'error', '-m', 'benchmarks', '--quick', '--json'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    output = json.loads(run.stdout)
    assert 'pydantic-ai-slim' in output['machine']
    direct, agents, journal, files = output['reports']

    # The warm-up is a batch of its own, with a check of its own.
    batched = {'answers': 30, 'creates': 2, 'checks': 2, 'live': 0}
    assert direct['counts'] == {'built-in': batched, 'ours': batched}
    batched = {'answers': 10, 'creates': 1, 'checks': 4, 'live': 0}
    live = {'answers': 10, 'creates': 0, 'checks': 0, 'live': 13}
    assert agents['counts'] == {
        'live, 50 at a time': live,
        'live, all at once': live,
        'built-in': batched,
        'ours': batched,
    }
    kept = {'answers': 30, 'live': 0}
    assert {case: {name: counts[name] for name in kept} for case, counts in journal['counts'].items()} == dict.fromkeys(
        ('without', 'with a journal', 'again', 'claims and reads alone'), kept
    )
    for report in (direct, agents, journal):
        assert list(report['rows']) == list(report['counts'])
        assert all(len(row) == len(report['columns']) for row in report['rows'].values())
        assert all(ratio['value'] > 0 for ratio in report['ratios'])
    assert list(direct['breakdown']) == list(direct['counts'])
    # Beside others only where they are installed, as `make bench` does.
    assert files['counts']['ours'] == {'answers': 20, 'creates': 1, 'checks': 1, 'live': 0}
