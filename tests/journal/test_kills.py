"""A program that is killed at any point, and started again with the same journal, answers every row and pays once."""

from __future__ import annotations

from pathlib import Path

import pytest

from .kills import Outcome, expected, play
from .program import ROWS, Kill

POINTS = {
    'before the intent': Kill('sql', 'INSERT INTO batches'),
    'after the intent': Kill('call', 'POST /files'),
    'after the intent, inline': Kill('call', 'POST /batches'),
    'after the upload': Kill('reply', 'POST /openai/v1/files'),
    'before the create': Kill('call', 'POST /openai/v1/batches'),
    'after the create was received, OpenAI': Kill('reply', 'POST /openai/v1/batches'),
    'after the create was received, Anthropic': Kill('reply', 'POST messages/batches'),
    'after the create was received, Gemini': Kill('reply', 'POST batchGenerateContent'),
    'after the reply': Kill('sql', "UPDATE batches SET state = 'running'"),
    'after the handle': Kill('call', 'GET batches/'),
    'between polls': Kill('reply', 'GET batches/', nth=8),
    'mid-download': Kill('reply', 'GET /content'),
    'mid-download, Anthropic': Kill('reply', 'GET /results'),
    'before the results are written': Kill('sql', 'INSERT OR REPLACE INTO results', nth=2),
    'after the download': Kill('sql', "UPDATE batches SET state = 'ended'"),
}


def check(outcome: Outcome, *, creates: int = 6) -> None:
    """Every row answered once, and billed once, in no more batches than were needed."""
    for answers in outcome.answers:
        assert answers == {name: expected(name) for name in ('openai', 'anthropic', 'google')}
    assert sorted(outcome.billed.values()) == [1] * (3 * ROWS)
    assert outcome.creates == creates


@pytest.mark.parametrize('kill', POINTS.values(), ids=POINTS)
def test_a_program_that_was_killed_carries_on_and_pays_once(kill: Kill, tmp_path: Path):
    outcome = play(tmp_path, [kill])
    assert outcome.starts == 2
    check(outcome)
