"""The facts about lanes in words, for tables that people read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, cast

FACTS: Mapping[str, str] = MappingProxyType(
    {
        'models': 'models',
        'endpoints': 'endpoints',
        'transport': 'input',
        'max_requests': 'requests',
        'min_requests': 'at least',
        'max_bytes': 'size',
        'models_per_batch': 'models in a batch',
        'windows': 'windows',
        'window_step': 'and any between, by',
        'expires': 'expires',
        'results_kept': 'results kept',
        'results_as': 'results as',
        'results_while_running': 'results while it runs',
        'ordered': 'in order',
        'discount': 'discount',
        'tag_field': 'our tag is in',
        'findable': 'lost batch is found',
        'listing_proves_absence': 'listing proves absence',
        'listable': 'listing',
        'repeatable': 'create is safe to repeat by',
        'cancellable': 'cancel',
        'webhooks': 'webhooks',
        'allowlist': 'only listed models',
        'reports_tier': 'answer tells the tier',
        'refused': 'refused',
        'plan': 'plan needed',
        'key_variables': 'key in',
        'verified': 'verified against',
    }
)
"""The facts that are shown, by the name of their field, each in a word or two."""


def shown(fact: str, value: Any) -> str:
    """A fact's value in words; `–` where it is not known."""
    if value is None or value == ():
        return '–'  # noqa: RUF001 - as in every table of the documentation
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if fact == 'discount':
        return f'{value:.0%}'
    if fact == 'max_bytes':
        return f'{value // 1_000_000:,} MB'
    if fact == 'models_per_batch' and value == 0:
        return 'any number'
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, tuple):
        return ', '.join(shown('', item) for item in cast('tuple[Any, ...]', value))
    return f'{value:,}' if isinstance(value, int) else str(value)


def _duration(value: timedelta) -> str:
    # Windows are told in hours, as the providers do.
    hours = value.total_seconds() / 3600
    return f'{value.days} days' if hours > 168 else f'{hours:g} hour{"s" * (hours != 1)}'
