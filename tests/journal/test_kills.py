"""A program that is killed at any point, and started again with the same journal, answers every row and pays once."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from .kills import Outcome, expected, kill_at_random, play
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


IN_A_SECOND_START = {
    'mid-claim': Kill('sql', 'INSERT OR IGNORE INTO claims', nth=30),
    'while it looks for the batch': Kill('reply', 'GET batches'),
    'before it notes what it found': Kill('sql', "UPDATE batches SET state = 'running'"),
    'while it deletes the input': Kill('call', 'DELETE /files'),
}
"""Points that a program comes to that takes over what another one left when it created its batches."""

CREATE_LOST = Kill('reply', 'POST /openai/v1/batches')


def check(outcome: Outcome, *, creates: int = 6) -> None:
    """Every row answered once and billed once, in no more batches than were needed, and nothing left behind."""
    for answers in outcome.answers:
        assert answers == {name: expected(name) for name in ('openai', 'anthropic', 'google')}
    assert outcome.billed == Counter(
        {f'{name} {row}': creates // 6 for name in ('openai', 'anthropic', 'google') for row in range(ROWS)}
    )
    assert outcome.creates == creates
    assert outcome.kept_files == 0


@pytest.mark.parametrize('kill', POINTS.values(), ids=POINTS)
def test_a_program_that_was_killed_carries_on_and_pays_once(kill: Kill, tmp_path: Path):
    outcome = play(tmp_path, [kill])
    assert outcome.starts == 2
    check(outcome)


@pytest.mark.parametrize('kill', IN_A_SECOND_START.values(), ids=IN_A_SECOND_START)
def test_a_program_that_is_killed_while_it_takes_over_carries_on_and_pays_once(kill: Kill, tmp_path: Path):
    outcome = play(tmp_path, [CREATE_LOST, kill])
    assert outcome.starts == 3
    check(outcome)


@pytest.mark.parametrize('kill', POINTS.values(), ids=POINTS)
def test_of_two_programs_that_share_a_journal_one_can_be_killed_and_each_row_is_paid_once(kill: Kill, tmp_path: Path):
    outcome = play(tmp_path, [kill], copies=2)
    # Both may have queued some when one of them is killed, and make more batches of them then.
    assert outcome.creates >= 6
    check(replace(outcome, creates=6))


@pytest.mark.parametrize(
    'kill',
    [
        Kill('sql', 'INSERT INTO batches', nth=8),
        Kill('reply', 'POST /openai/v1/batches', nth=3),
        Kill('reply', 'POST messages/batches', nth=3),
        Kill('reply', 'POST batchGenerateContent', nth=3),
        Kill('sql', "UPDATE batches SET state = 'ended'", nth=9),
    ],
    ids=['before the intent', 'OpenAI', 'Anthropic', 'Gemini', 'after the download'],
)
def test_agents_with_tools_that_were_killed_in_their_second_turn_take_over_both_turns(kill: Kill, tmp_path: Path):
    outcome = play(tmp_path, [kill], tools=True)
    assert outcome.starts == 2
    check(outcome, creates=12)


KILLS = int(os.environ.get('PYDANTIC_AI_BATCH_KILLS', '20'))


@pytest.mark.parametrize('seed', range(KILLS))
def test_a_program_that_is_killed_at_random_carries_on_and_pays_once(seed: int, tmp_path: Path):
    check(kill_at_random(tmp_path, seed))
