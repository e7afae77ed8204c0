"""A fake OpenAI in a process of its own, so that what it takes does not count; it ends when its input does.

Its batches take next to no time, or, with a number as its argument, end at that many status requests: however fast a
machine is and however often a client looks, each batch is checked the same number of times.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

from pydantic_ai_batch.testing import FakeProviders


class PollClock:
    """Stands still, but for a second with each status request."""

    def __init__(self) -> None:
        self.fakes: FakeProviders | None = None
        self._started = time.time()

    def now(self) -> float:
        return self._started + self.monotonic()

    def monotonic(self) -> float:
        return float(self.fakes.openai.count('status')) if self.fakes else 0.0

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def main(polls: int) -> None:
    if polls:
        clock = PollClock()
        fakes = clock.fakes = FakeProviders(clock=clock, processing=timedelta(seconds=polls - 1))
    else:
        fakes = FakeProviders(processing=timedelta(milliseconds=50))
    with fakes:
        print(fakes.openai.base_url, flush=True)
        for _ in sys.stdin:
            counts = (fakes.openai.count('create'), fakes.openai.count('status'), fakes.openai.count('live'))
            print(*counts, flush=True)


if __name__ == '__main__':
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
