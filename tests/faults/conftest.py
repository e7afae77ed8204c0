from __future__ import annotations

from lanes.conftest import harness, lane_model

# The lanes and their models, as the contract suite of the lanes has them.
__all__ = ('harness', 'lane_model')
