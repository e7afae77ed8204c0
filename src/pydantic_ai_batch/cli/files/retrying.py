"""Has the rows of a run sent again that failed."""

from __future__ import annotations

from pathlib import Path

from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.journal.overview import overview_of
from pydantic_ai_batch.journal.sessions import RunLock
from pydantic_ai_batch.rows.kept_results import KeptResults
from pydantic_ai_batch.rows.records import Status

_FAILED: tuple[Status, ...] = ('error', 'missing', 'expired', 'cancelled')
"""What another try may mend. An answer that was cut off, or refused, would be the same one."""


async def forget_failed(path: Path) -> int:
    """Forget what came of the rows of a run that failed, and return how many they are.

    Raises:
        JournalError: There is no journal, or it cannot be used.
        UserError: No row failed in a way that another try may mend.
    """
    overview = overview_of(path)
    if not any(overview.rows.get(status) for status in _FAILED):
        raise UserError(f'No row in {path} failed in a way that another try may mend.')
    kept = KeptResults(path)
    try:
        with RunLock(path):
            return await kept.forget(_FAILED)
    finally:
        kept.close()
