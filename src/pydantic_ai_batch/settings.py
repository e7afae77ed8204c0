"""The settings of a batch, checked once for every way in.

The names, meanings and defaults are those of pydantic-ai's own `BatchModelRequests`, so that changing from one to the
other is one import.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pydantic_ai.exceptions import UserError

DEFAULT_MAX_REQUESTS = 1_000
DEFAULT_MAX_WAIT = timedelta(seconds=30)
DEFAULT_MAX_RESUBMISSIONS = 2
DEFAULT_POLL_INTERVAL = timedelta(seconds=30)
DEFAULT_MAX_POLL_INTERVAL = timedelta(minutes=10)


@dataclass(frozen=True, kw_only=True)
class BatchSettings:
    """How requests are gathered into batches, how often those are checked, and what is sent again.

    Raises:
        UserError: A setting is out of its range. The message names it, the value and the range.
    """

    max_requests: int | None = DEFAULT_MAX_REQUESTS
    """The most requests in a batch; `None` is the lane's own limit, which caps any number."""

    max_bytes: int | None = None
    """The most bytes in a batch, counted as encoded; `None` is the lane's own limit, which caps any number."""

    max_wait: timedelta | None = DEFAULT_MAX_WAIT
    """How long the oldest queued request waits for others; `None` until the batch is full or flushed."""

    max_resubmissions: int = DEFAULT_MAX_RESUBMISSIONS
    """How many times a request that failed in a way a new batch may not repeat is submitted again."""

    poll_interval: timedelta = DEFAULT_POLL_INTERVAL
    """How long after a submission its batch is first checked; the interval grows by half with every check."""

    max_poll_interval: timedelta = DEFAULT_MAX_POLL_INTERVAL
    """The longest interval between two checks."""

    window: timedelta | None = None
    """How long a batch is given to end; `None` is the lane's own window."""

    def __post_init__(self) -> None:
        for name, optional in (
            ('max_wait', True),
            ('window', True),
            ('poll_interval', False),
            ('max_poll_interval', False),
        ):
            value = getattr(self, name)
            if not (isinstance(value, timedelta) or (optional and value is None)):
                raise UserError(f'`{name}` must be a `timedelta`, such as `timedelta(seconds=30)`, not {value!r}.')
        for name in ('max_requests', 'max_bytes', 'max_resubmissions'):
            value = getattr(self, name)
            if isinstance(value, bool) or not (
                isinstance(value, int) or (value is None and name != 'max_resubmissions')
            ):
                raise UserError(f'`{name}` must be a whole number, not {value!r}.')
        for name in ('max_requests', 'max_bytes'):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f'`{name}` must be at least 1, or `None` for the limit of the provider, not {value!r}.')
        if self.max_wait is not None and self.max_wait <= timedelta(0):
            raise UserError(
                f'`max_wait` must be longer than zero, or `None` to wait for `flush()`, not {self.max_wait!r}.'
            )
        if self.max_resubmissions < 0:
            raise UserError(f'`max_resubmissions` must not be negative, and is {self.max_resubmissions!r}.')
        if self.poll_interval <= timedelta(0):
            raise UserError(f'`poll_interval` must be longer than zero, not {self.poll_interval!r}.')
        if self.max_poll_interval < self.poll_interval:
            raise UserError(
                f'`max_poll_interval` must not be shorter than `poll_interval`: {self.max_poll_interval!r} is shorter '
                f'than {self.poll_interval!r}.'
            )
