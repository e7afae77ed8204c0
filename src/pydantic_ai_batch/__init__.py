"""Send Pydantic AI agents' model requests through the providers' batch APIs, at about half the price.

Add [`BatchModelRequests`][pydantic_ai_batch.BatchModelRequests] to an agent, or hand a list of requests to
[`model_request_batch`][pydantic_ai_batch.model_request_batch].
"""

from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from .capability import BatchModelRequests
from .direct import model_request_batch, model_request_batch_sync
from .lanes import LANES, Lane, LaneInfo, lane_for

__all__ = (
    'LANES',
    'Batch',
    'BatchModelRequests',
    'BatchRequest',
    'BatchResult',
    'EncodedBatchRequest',
    'Lane',
    'LaneInfo',
    'lane_for',
    'model_request_batch',
    'model_request_batch_sync',
)
