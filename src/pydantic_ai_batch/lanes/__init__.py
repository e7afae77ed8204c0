"""The lanes: one provider batch API each, and which of them serves a model."""

from __future__ import annotations

from .base import Lane, LaneInfo
from .names import model_named
from .which import LANES, lane_for, lane_named

__all__ = ('LANES', 'Lane', 'LaneInfo', 'lane_for', 'lane_named', 'model_named')
