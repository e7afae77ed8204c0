"""Decisions without a clock, a loop or a client: when to poll, what an error means, what to send again.

Everything here is a pure function of what is known, so that each rule can be read, and tested, in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
)
from pydantic_ai.models.batch import BatchResult

NEVER_SENT_DELAYS = (1.0, 5.0, 25.0)
"""Seconds before a create that never reached the provider is sent again, each time."""

READ_DELAYS = (1.0, 2.0, 5.0, 10.0, 20.0, *[30.0] * 19)
"""Seconds between looks at a file that the provider has to read before it makes a batch of it: ten minutes in all."""

SETTLE_OFFSETS = (0.0, 5.0, 30.0, 120.0)
"""Seconds after a create's reply was lost at which the provider's listing is read for the batch."""

SETTLE_INTERVALS = (timedelta(minutes=1), timedelta(minutes=10))
"""The first and the longest interval at which a batch is looked for further that shows whose it is when it ends."""

SETTLE_MARGIN = timedelta(minutes=5)
"""How far back before the create the listing is read, as the provider's clock may differ from ours."""

MAX_FAILED_CHECKS = 3
"""How many checks in a row may fail in a way that says nothing about the batch; the next one raises."""

MAX_RETRY_AFTER = 3600.0
"""The longest, in seconds, that a provider can ask to wait: results do not wait for ever, whatever a proxy says."""

MAX_NOT_FOUND = 3
"""How many checks in a row may answer 404, at least, before the batch counts as gone."""

INCOMPLETE_GRACE = timedelta(minutes=2)
"""How long at least a batch that has ended is read again whose results are fewer than they may be.

Checks alone do not tell: a history can be resumed several times in a second.
"""

NOT_FOUND_GRACE = timedelta(minutes=5)
"""How long after a batch was created, or last seen, a 404 is still a fault and not an answer.

Providers answer 404 for a batch that their replicas have not heard of yet.
"""

OVERDUE = 1.25
"""After how many of its windows a batch that has not ended is read once more and then given up on."""


FULL_INTERVALS = (timedelta(minutes=1), timedelta(minutes=30))
"""The first and the longest interval at which a batch is sent again that a full queue sent back."""

FULL_WINDOW = timedelta(hours=24)
"""How long that goes on, or as long as a lane gives a batch where that is less: a file may be kept no longer."""

MAX_FAILED_PARTS = 128
"""How many parts of a batch may fail without naming a row, if none was run, before what is left of it counts as failed.
"""

MAX_PARTS = 2048
"""How many may if others were run, so that what fails is not every request."""

CreateOutcome = Literal['refused', 'never_sent', 'unknown']
"""What a failed create says of the batch: there is none; there is none, and trying again may help; nobody knows."""


def poll_delay(polls: int, poll_interval: timedelta, max_poll_interval: timedelta) -> float:
    """Seconds to wait for the check after `polls` checks: the interval, growing by half each time up to the longest."""
    first, longest = poll_interval.total_seconds(), max_poll_interval.total_seconds()
    # The power is capped where the longest interval is reached, as it would overflow for a batch checked for weeks.
    growing = math.ceil(math.log(longest / first, 1.5))
    return min(first * 1.5 ** min(polls, growing), longest)


def create_outcome(error: ModelAPIError) -> CreateOutcome:
    """What an error of a create call says of the batch.

    A connection that was never opened carried no request. A 4xx is the provider's word that it made nothing; only a
    408 may come from a proxy in between. Anything else, a 5xx included, may come after the batch was made.
    """
    if isinstance(error, ModelConnectionError):
        return 'never_sent' if error.phase in ('pool', 'connect') else 'unknown'
    if isinstance(error, ModelHTTPError) and 400 <= error.status_code < 500 and error.status_code != 408:
        return 'refused'
    return 'unknown'


def transient(error: ModelAPIError) -> bool:
    """Whether the same request may succeed another time: what a provider's SDK retries a live request on.

    Rate limits, overload, server errors, time-outs and conflicts are; a request that was refused for its content, its
    size or its credential, or an account without quota, is not.
    """
    if isinstance(error, ModelRateLimitError | ModelUnavailableError | ModelServerError | ModelConnectionError):
        return True
    if isinstance(error, ModelQuotaExceededError | ModelContextWindowExceededError):
        return False
    return isinstance(error, ModelHTTPError) and (error.status_code in (408, 409, 429) or error.status_code >= 500)


FullQueue = Literal['tokens', 'batches']
"""What a provider's queue has no room for: this many tokens, of which half may fit, or another batch at all."""


def full_queue(error: ModelAPIError) -> FullQueue | None:
    """What the provider's queue has no room for, if that is why it sent a batch back; it will have some later.

    An account without quota gets none by waiting.
    """
    if isinstance(error, ModelQuotaExceededError) or not isinstance(error, ModelHTTPError):
        return None
    if error.provider_error_code == 'token_limit_exceeded':
        return 'tokens'
    if error.status_code != 429:
        return None
    # A limit of tokens a minute is none of the queue's, and passes by itself.
    return 'tokens' if 'enqueued' in str(error.body).lower() and not error.retry_after else 'batches'


def not_found(error: ModelAPIError) -> bool:
    """Whether the provider says that there is no such thing, for now or for good."""
    return isinstance(error, ModelHTTPError) and error.status_code == 404


def resubmits(result: BatchResult, error: ModelAPIError) -> bool:
    """Whether a request whose `result` is `error` is worth another batch.

    One the provider did not get to before the window closed is, and one that failed in a passing way. One that was
    cancelled is not: providers cancel nothing of their own accord, so somebody meant it.
    """
    return result.status == 'expired' or (result.status == 'errored' and transient(error))


@dataclass
class Search:
    """The search for the requests that a batch fails for when the provider does not name them, by halves."""

    failed: set[str] = field(default_factory=set[str])
    """The parts of the batch that failed so far."""

    found: bool = False
    """Whether a part of it was run."""

    def goes_on(self, batch_id: str) -> bool:
        """Record a part that failed, and return whether it is worth dividing.

        What fails for every request in it would make as many batches as it has requests.
        """
        self.failed.add(batch_id)
        return len(self.failed) <= (MAX_PARTS if self.found else MAX_FAILED_PARTS)


@dataclass(kw_only=True)
class CheckHistory:
    """What the checks of a batch came to so far: the state that a poll, or a stored history, carries on from."""

    polls: int = 0
    """How many checks were made, which the interval grows with."""

    failed: int = 0
    """How many checks in a row failed in a passing way."""

    not_found: int = 0
    """How many checks in a row answered 404."""

    last_seen: datetime | None = None
    """When a check last answered, by our clock."""

    incomplete: int = 0
    """How many checks found that the batch has ended, and fewer results than there may be."""

    incomplete_since: datetime | None = None
    """When the first of those was made, by our clock."""

    retry_after: float = 0.0
    """Seconds that the provider asked to wait before the next check, when it refused the last one."""

    def came_short(self, now: datetime) -> bool:
        """Record a check that found fewer results than there may be, and say whether they are to be read again.

        That they are all there are is believed after several checks, and not before some time has passed.
        """
        self.answered(now)
        self.incomplete += 1
        self.incomplete_since = self.incomplete_since or now
        # A time to come is that of another clock, or made up.
        recent = timedelta(0) <= now - self.incomplete_since < INCOMPLETE_GRACE
        return recent or self.incomplete <= MAX_FAILED_CHECKS

    def answered(self, now: datetime) -> None:
        """Record a check that the provider answered."""
        self.failed = self.not_found = 0
        self.retry_after = 0.0
        self.last_seen = now

    def tolerates(self, error: ModelAPIError, *, created_at: datetime, now: datetime) -> bool:
        """Record a check that failed, and say whether the batch is checked again before anything is concluded.

        A 404 is believed when it was answered several times in a row and the batch has not been seen for a while;
        other passing faults are, after a few in a row; a refusal at once.
        """
        self.retry_after = min(error.retry_after or 0.0, MAX_RETRY_AFTER)
        if not_found(error):
            self.not_found += 1
            seen = max(created_at, self.last_seen) if self.last_seen else created_at
            return self.not_found <= MAX_NOT_FOUND or now - seen < NOT_FOUND_GRACE
        self.failed += 1
        return self.failed <= MAX_FAILED_CHECKS and transient(error)


def overdue(created_at: datetime, window: timedelta | None, now: datetime) -> bool:
    """Whether a batch should long have ended: a quarter past its window. Never for a lane whose batches have no end."""
    return window is not None and now - created_at > window * OVERDUE
