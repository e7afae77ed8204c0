"""What a run was answered so far, which is let go of if it does not end well: made again, it is not paid for twice.

A run that failed for what it was answered lets go of nothing. The same answers would fail it again, where new ones may
not.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from pydantic_ai.exceptions import UnexpectedModelBehavior

from .ledger import Ledger


class RunAnswers:
    """The answers of one run, and of those inside its tools."""

    def __init__(self) -> None:
        self._answers: list[tuple[Ledger, str]] = []
        self._let_go = False

    def add(self, *answers: tuple[Ledger, str]) -> None:
        """Note answers, or let go of them at once if the run is over, as of one inside a tool that outlives it."""
        if self._let_go:
            _release(answers)
        else:
            self._answers += answers

    def let_go(self) -> None:
        """Let go of all of them, and of those to come."""
        self._let_go = True
        _release(self._answers)
        self._answers.clear()

    def hand_up(self, outer: RunAnswers) -> None:
        """Count them as those of the run that this one is inside of, which is made again with this one."""
        outer.add(*self._answers)


def _release(answers: Sequence[tuple[Ledger, str]]) -> None:
    for ledger, custom_id in answers:
        ledger.release(custom_id)


_running: ContextVar[RunAnswers | None] = ContextVar('pydantic_ai_batch_answers', default=None)


def answered(ledger: Ledger, custom_id: str) -> None:
    """Note that the run that goes on here got the answer to a request."""
    if (answers := _running.get()) is not None:
        answers.add((ledger, custom_id))


@contextmanager
def answers_of_run() -> Generator[None]:
    """Note what a run is answered. If it does not end well, whoever makes its requests next takes the answers over."""
    outer, answers = _running.get(), RunAnswers()
    token = _running.set(answers)
    try:
        yield
    except UnexpectedModelBehavior:
        raise
    except BaseException:
        answers.let_go()
        raise
    finally:
        # A run that nobody awaits any more is closed elsewhere, where there is nothing to reset.
        with suppress(ValueError):
            _running.reset(token)
    if outer is not None:
        answers.hand_up(outer)
