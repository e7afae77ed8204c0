"""What a provider's words for the state of a batch mean, in one set of words for all lanes.

Each lane's own words are on its [`LaneInfo`][pydantic_ai_batch.LaneInfo]; what ours are to the framework is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic_ai.models.batch import BatchStatus

JobStatus = Literal['submitted', 'in_progress', 'canceling', 'canceled', 'ended', 'expired', 'failed', 'gone']
"""Where a batch, or a job of several, is.

`submitted`: the provider has it and has not begun. `in_progress`: its requests are being run. `canceling`: it was asked
to stop. The others are terminal. `ended`: it is over, with any mix of outcomes of its requests. `canceled`, `expired`:
it was stopped, or its window passed, before all its requests were run; those that were have their results. `failed`:
the provider refused it as a whole. `gone`: the provider has none, or not for this key; it is looked for again whenever
the job is checked.
"""

TERMINAL: frozenset[JobStatus] = frozenset({'canceled', 'ended', 'expired', 'failed', 'gone'})

FRAMEWORK: Mapping[JobStatus, BatchStatus] = {
    'submitted': 'in_progress',
    'in_progress': 'in_progress',
    'canceling': 'canceling',
    'canceled': 'ended',
    'ended': 'ended',
    'expired': 'ended',
    'failed': 'ended',
    'gone': 'ended',
}
"""The framework's word for each status."""


def combined(statuses: Iterable[JobStatus]) -> JobStatus:
    """The status of a job whose batches have these: that of all of them if they agree, and else how far it is.

    A job without a batch failed: none of its batches could be created.
    """
    found = set(statuses)
    if not found:
        return 'failed'
    if len(found) == 1:
        return found.pop()
    if found <= TERMINAL:
        return 'ended'
    return 'canceling' if 'canceling' in found else 'in_progress'
