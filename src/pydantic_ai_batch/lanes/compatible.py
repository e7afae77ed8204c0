"""The lane of servers that speak OpenAI's language under a provider class of their own, for who opts in.

Nothing is known of the server beforehand: limits are OpenAI's, and whatever it answers is read as leniently as on every
lane of the family.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from . import openai
from .base import LaneInfo
from .openai_shape import OpenAIShapedLane

_OPENAIS = 'guess: as at OpenAI, whose language the server speaks'
_OPENAIS_OWN = ('results_kept', 'discount', 'webhooks', 'allowlist', 'reports_tier')

INFO = replace(
    openai.INFO,
    name='openai-compatible',
    title='OpenAI-compatible batch API',
    models='`OpenAIChatModel` and `OpenAIResponsesModel` with a provider class of its own',
    results_kept=None,
    discount=None,
    webhooks=None,
    allowlist=None,
    reports_tier=None,
    key_variables=(),
    verified=('independent server',),
    sources={fact: _OPENAIS for fact in openai.INFO.sources if fact not in _OPENAIS_OWN},
)


@dataclass
class CompatibleLane(OpenAIShapedLane):
    """The lane of a server that speaks OpenAI's language."""

    info: ClassVar[LaneInfo] = INFO
