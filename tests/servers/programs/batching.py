"""The agent that every program runs, as its environment says."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent, PendingModelResponse

from pydantic_ai_batch import BatchModelRequests

WAIT = os.environ.get('MAX_WAIT', '2')

batching = BatchModelRequests(
    max_wait=None if WAIT == 'none' else timedelta(seconds=float(WAIT)),
    poll_interval=timedelta(seconds=float(os.environ.get('POLL', '0.5'))),
    max_poll_interval=timedelta(seconds=float(os.environ.get('MOST', '1'))),
    journal=os.environ.get('JOURNAL'),
)


def agent_with(durability: Any) -> Agent[None, str]:
    """The agent, with the capability of an engine."""
    return Agent('openai-responses:gpt-5-mini', name='asker', capabilities=[batching, durability])


def pending_agent_with(durability: Any) -> Agent[None, Any]:
    """One whose runs end when their requests are in a batch."""
    return Agent(
        'openai-responses:gpt-5-mini',
        name='leaver',
        output_type=[str, PendingModelResponse],
        capabilities=[batching, durability],
    )


def told(result: Any) -> Any:
    """What came of a run, as a program prints it."""
    return result if isinstance(result, str | bool) else f'{type(result).__name__}: {result}'
