"""Send Pydantic AI agents' model requests through the providers' batch APIs, at about half the price.

Add [`BatchModelRequests`][pydantic_ai_batch.BatchModelRequests] to an agent, or hand a list of requests to
[`model_request_batch`][pydantic_ai_batch.model_request_batch], or, to collect the answers another time, to
[`submit_batch`][pydantic_ai_batch.submit_batch].
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

    from .batch_job import BatchJob
    from .bridge import with_batch_api
    from .capability import BatchModelRequests
    from .direct import model_request_batch, model_request_batch_sync
    from .jobs import cancel_batch, check_batch, collect_batch, submit_batch, wait_batch
    from .jobs_sync import (
        cancel_batch_sync,
        check_batch_sync,
        collect_batch_sync,
        submit_batch_sync,
        wait_batch_sync,
    )
    from .journal import Journal
    from .lanes import LANES, Lane, LaneInfo, lane_for
    from .listing import list_batches
    from .rows.calls import batch_map, batch_map_sync, run_rows
    from .rows.plan import BatchPlan, PlanChunk, plan_batch
    from .rows.records import RowResult, by_id, reconcile

__all__ = (
    'LANES',
    'Batch',
    'BatchJob',
    'BatchModelRequests',
    'BatchPlan',
    'BatchRequest',
    'BatchResult',
    'EncodedBatchRequest',
    'Journal',
    'Lane',
    'LaneInfo',
    'PlanChunk',
    'RowResult',
    'batch_map',
    'batch_map_sync',
    'by_id',
    'cancel_batch',
    'cancel_batch_sync',
    'check_batch',
    'check_batch_sync',
    'collect_batch',
    'collect_batch_sync',
    'lane_for',
    'list_batches',
    'model_request_batch',
    'model_request_batch_sync',
    'plan_batch',
    'reconcile',
    'run_rows',
    'submit_batch',
    'submit_batch_sync',
    'wait_batch',
    'wait_batch_sync',
    'with_batch_api',
)

# Imported when they are asked for: the framework takes seconds to import, which `pydantic-ai-batch --version` and the
# pytest plugin, loaded in every test session of every user, need not wait for.
_HOMES = {
    'LANES': '.lanes',
    'Batch': 'pydantic_ai.models.batch',
    'BatchJob': '.batch_job',
    'BatchModelRequests': '.capability',
    'BatchPlan': '.rows.plan',
    'BatchRequest': 'pydantic_ai.models.batch',
    'BatchResult': 'pydantic_ai.models.batch',
    'EncodedBatchRequest': 'pydantic_ai.models.batch',
    'Journal': '.journal',
    'Lane': '.lanes',
    'LaneInfo': '.lanes',
    'PlanChunk': '.rows.plan',
    'RowResult': '.rows.records',
    'batch_map': '.rows.calls',
    'batch_map_sync': '.rows.calls',
    'by_id': '.rows.records',
    'cancel_batch': '.jobs',
    'cancel_batch_sync': '.jobs_sync',
    'check_batch': '.jobs',
    'check_batch_sync': '.jobs_sync',
    'collect_batch': '.jobs',
    'collect_batch_sync': '.jobs_sync',
    'lane_for': '.lanes',
    'list_batches': '.listing',
    'model_request_batch': '.direct',
    'model_request_batch_sync': '.direct',
    'plan_batch': '.rows.plan',
    'reconcile': '.rows.records',
    'run_rows': '.rows.calls',
    'submit_batch': '.jobs',
    'submit_batch_sync': '.jobs_sync',
    'wait_batch': '.jobs',
    'wait_batch_sync': '.jobs_sync',
    'with_batch_api': '.bridge',
}


def __getattr__(name: str) -> Any:
    if (home := _HOMES.get(name)) is None:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = globals()[name] = getattr(import_module(home, __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
