from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.settings import BatchSettings


@pytest.mark.parametrize(
    ('settings', 'named'),
    [
        ({'max_requests': 0}, '`max_requests`'),
        ({'max_bytes': 0}, '`max_bytes`'),
        ({'max_wait': timedelta(0)}, '`max_wait`'),
        ({'max_wait': timedelta(seconds=-1)}, '`max_wait`'),
        ({'max_resubmissions': -1}, '`max_resubmissions`'),
        ({'poll_interval': timedelta(0)}, '`poll_interval`'),
        ({'poll_interval': timedelta(hours=1)}, '`max_poll_interval`'),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(settings: dict[str, Any], named: str):
    with pytest.raises(UserError, match=named):
        BatchModelRequests(**settings)
    with pytest.raises(UserError, match=named):
        BatchSettings(**settings)


def test_the_defaults_are_those_of_the_built_in_capability():
    ours, theirs = BatchModelRequests(), BuiltIn()
    for name in ('max_requests', 'max_wait', 'max_resubmissions', 'poll_interval', 'max_poll_interval'):
        assert getattr(ours, name) == getattr(theirs, name)


def test_a_spec_gives_durations_in_seconds_or_iso_8601():
    batching = BatchModelRequests.from_spec(max_wait='PT5M', poll_interval=15, max_poll_interval=timedelta(hours=1))
    assert batching.max_wait == timedelta(minutes=5)
    assert batching.poll_interval == timedelta(seconds=15)
    assert BatchModelRequests.from_spec(max_wait=None).max_wait is None


@pytest.mark.parametrize(
    ('settings', 'named'),
    [
        ({'max_wait': 30}, '`max_wait` must be a `timedelta`'),
        ({'max_wait': 'PT5M'}, '`max_wait` must be a `timedelta`'),
        ({'poll_interval': 5}, '`poll_interval` must be a `timedelta`'),
        ({'poll_interval': None}, '`poll_interval` must be a `timedelta`'),
        ({'max_requests': '5'}, '`max_requests` must be a whole number'),
        ({'max_resubmissions': None}, '`max_resubmissions` must be a whole number'),
        ({'progress': 'yes'}, '`progress` must be'),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(settings: dict[str, Any], named: str):
    with pytest.raises(UserError, match=named):
        BatchModelRequests(**settings)
