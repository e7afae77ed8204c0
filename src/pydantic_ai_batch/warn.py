"""Warnings about settings that a batch ignores, given once and not for every request."""

from __future__ import annotations

import warnings
import weakref

from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from .codec import sets_max_retries

_warned: weakref.WeakSet[object] = weakref.WeakSet()


def warn_max_retries() -> None:
    """Warn that `max_retries` does nothing in a batch."""
    warnings.warn(
        'The setting `max_retries` is ignored in a batch, whose requests the provider runs: set '
        '`max_resubmissions` for those, and `max_retries` on the client of the provider for its own calls.',
        UserWarning,
        stacklevel=3,
    )


def warn_max_retries_once(model: Model, settings: ModelSettings | None, once_per: object) -> None:
    """Warn, once for `once_per`, if `max_retries` is set for a request."""
    if once_per not in _warned and sets_max_retries(model, settings):
        _warned.add(once_per)
        warn_max_retries()
