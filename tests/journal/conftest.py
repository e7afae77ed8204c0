from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from behaviours.conftest import hurry, make
from lanes.conftest import lane_model
from lanes.harness import HARNESSES, Harness, echo, harness_of

from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import Wire, all_over

# The models of the lanes, as the other suites have them, and what passes the framework's time.
__all__ = ('hurry', 'lane_model', 'make')


@pytest.fixture(params=[harness.name for harness in HARNESSES])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Each lane that a journal can be kept for in turn."""
    return harness_of(request.param, monkeypatch)


@pytest.fixture
def fake(clock: ManualClock) -> Iterator[FakeProviders]:
    """Providers whose answers say whose they are."""
    with FakeProviders(echo, clock=clock) as fake:
        yield fake


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the journal is."""
    return tmp_path / 'journal.db'


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """What stands between the SDKs and the network."""
    return Wire(monkeypatch)


@pytest.fixture(autouse=True)
def every_process_ends() -> Iterator[None]:
    """No journal of a test is open in the next one."""
    yield
    all_over()
