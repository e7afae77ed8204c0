"""Tools for tests: providers on loopback and a clock that is moved by hand.

[`FakeProviders`][pydantic_ai_batch.testing.FakeProviders] needs the extra `testing`; everything else here does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai_batch.testing.answers import (
    Answer,
    AnswerFunction,
    BilledRow,
    FakeError,
    FakeRequest,
    FakeTool,
    FakeToolCall,
)
from pydantic_ai_batch.testing.auto import auto_answer
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow
from pydantic_ai_batch.testing.calls import Call
from pydantic_ai_batch.testing.clock import ManualClock

if TYPE_CHECKING:
    from pydantic_ai_batch.testing.fakes import FakeProviders

__all__ = (
    'Answer',
    'AnswerFunction',
    'BilledRow',
    'Call',
    'FakeBatch',
    'FakeError',
    'FakeProviders',
    'FakeRequest',
    'FakeRow',
    'FakeTool',
    'FakeToolCall',
    'ManualClock',
    'auto_answer',
)


def __getattr__(name: str) -> Any:
    """Import what needs the extra only when it is asked for."""
    if name != 'FakeProviders':
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    try:
        from pydantic_ai_batch.testing.fakes import FakeProviders
    except ModuleNotFoundError as error:
        if error.name not in ('starlette', 'uvicorn', 'h11'):
            raise
        raise ImportError(
            f"`FakeProviders` needs {error.name}: `pip install 'pydantic-ai-batch[testing]'`.", name=error.name
        ) from error
    return FakeProviders
