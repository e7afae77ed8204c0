"""Fixtures for pytest, found by it without being asked for: `manual_clock` and `fake_providers`.

Every pytest run of whoever has the package installed loads this module, so it imports nothing before a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pydantic_ai_batch.testing import FakeProviders, ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that the test moves by hand, the one that `fake_providers` goes by."""
    from pydantic_ai_batch.testing import ManualClock

    return ManualClock()


@pytest.fixture
def fake_providers(manual_clock: ManualClock) -> Iterator[FakeProviders]:
    """Providers on loopback, started, which go by `manual_clock`: batches stand still until the test moves it.

    Answers are [`auto_answer`][pydantic_ai_batch.testing.auto_answer]'s unless the test sets `fake_providers.answer`.
    An exception in that function fails the test.

    Raises:
        ImportError: The extra `testing` is not installed.
    """
    from pydantic_ai_batch.testing import FakeProviders

    with FakeProviders(clock=manual_clock) as fakes:
        yield fakes
