"""What a run was answered so far, which is let go of if the run is cancelled: made again, it is not paid for twice.

A run that failed lets go of nothing. The same answers would fail it again, where new ones may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from .ledger import Ledger

_answers: ContextVar[list[tuple[Ledger, str]] | None] = ContextVar('pydantic_ai_batch_answers', default=None)


def answered(ledger: Ledger, custom_id: str) -> None:
    """Note that the run that goes on here got the answer to a request."""
    if (answers := _answers.get()) is not None:
        answers.append((ledger, custom_id))


@contextmanager
def answers_of_run() -> Generator[None]:
    """Note what a run is answered. If it is cancelled, whoever makes its requests next takes the answers over."""
    outer, answers = _answers.get(), list[tuple[Ledger, str]]()
    token = _answers.set(answers)
    try:
        yield
    except asyncio.CancelledError:
        for ledger, custom_id in answers:
            ledger.release(custom_id)
        raise
    finally:
        _answers.reset(token)
    if outer is not None:
        # A run inside a tool of another one is made again with that.
        outer += answers
