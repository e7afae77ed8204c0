"""Two tiny requests on every lane whose key is in the environment, paid for: `BATCH_LIVE=1 make test-live`.

A lane that runs no batch of two gets as many as it needs. Off by default. What a lane answers is printed, with what to
write into its `LaneInfo`.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai import ModelRequest
from pydantic_ai.messages import ModelResponse

from pydantic_ai_batch import LANES, BatchRequest, model_request_batch
from pydantic_ai_batch.lanes import lane_for
from pydantic_ai_batch.lanes.names import model_of_lane

pytestmark = [
    pytest.mark.skipif(os.environ.get('BATCH_LIVE') != '1', reason='it costs money: set BATCH_LIVE=1'),
    # A batch may take a day.
    pytest.mark.timeout(0),
]


@pytest.mark.parametrize('name', [info.name for info in LANES.values() if info.key_variables])
async def test_two_tiny_requests_are_answered(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    info = LANES[name]
    if not any(os.environ.get(variable) for variable in info.key_variables):
        pytest.skip(f'none of these is set: {", ".join(info.key_variables)}')
    model = model_of_lane(name)
    words = [('red', 'blue')[n % 2] for n in range(info.min_requests or 2)]
    began = datetime.now(UTC)
    outcomes = await model_request_batch(
        model,
        [
            BatchRequest(custom_id=str(n), messages=[ModelRequest.user_text_prompt(f'Say only the word {word}.')])
            for n, word in enumerate(words)
        ],
        poll_interval=timedelta(seconds=5),
        max_poll_interval=timedelta(minutes=5),
    )
    took = datetime.now(UTC) - began
    with capsys.disabled():
        print(f'\n{name}: {model.model_id}, {took.total_seconds():.0f} s')
        for word, outcome in zip(words, outcomes, strict=True):
            print(f'  {word}: {outcome.text if isinstance(outcome, ModelResponse) else repr(outcome)}')
        module = type(lane_for(model)).__module__
        print(f"  If that is right, add 'live' to `verified` in {module}, with the date in `sources`.")
    assert all(isinstance(outcome, ModelResponse) for outcome in outcomes)
