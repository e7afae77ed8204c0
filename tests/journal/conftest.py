from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lanes.conftest import lane_model
from lanes.harness import HARNESSES, Harness, harness_of

from .scenes import Wire, all_over

# The models of the lanes, as the contract suite has them.
__all__ = ('lane_model',)


@pytest.fixture(params=[harness.name for harness in HARNESSES])
def harness(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Each lane that a journal can be kept for in turn."""
    return harness_of(request.param, monkeypatch)


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
