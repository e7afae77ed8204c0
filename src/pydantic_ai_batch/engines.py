"""Durable engines, as far as batches have to know of them: whether this is workflow code, or one of its recorded steps.

None is imported. One that is not loaded runs nothing here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic_ai.exceptions import UserError


@dataclass(frozen=True)
class Step:
    """What an engine runs as one recorded step, and runs again if that fails."""

    engine: str
    """The engine's name."""

    timeout: timedelta | None
    """How long a step may take before the engine gives it up; `None` if that is not limited."""


def current_step() -> Step | None:
    """The step that this code runs in; `None` if it runs in none."""
    if (activity := _loaded('temporalio.activity')) is not None and activity.in_activity():
        info = activity.info()
        return Step('Temporal', info.start_to_close_timeout or info.schedule_to_close_timeout)
    if (dbos := _loaded('dbos')) is not None and dbos.DBOS.step_id is not None:
        return Step('DBOS', None)
    if (prefect := _loaded('prefect.context')) is not None and (run := prefect.TaskRunContext.get()) is not None:
        seconds = run.task.timeout_seconds
        return Step('Prefect', None if seconds is None else timedelta(seconds=seconds))
    return None


def current_workflow() -> str | None:
    """The engine whose workflow code this is, which it may run again from the start; `None` if it is none."""
    if (workflow := _loaded('temporalio.workflow')) is not None and workflow.in_workflow():
        return 'Temporal'
    if (dbos := _loaded('dbos')) is not None and dbos.DBOS.workflow_id is not None and dbos.DBOS.step_id is None:
        return 'DBOS'
    prefect = _loaded('prefect.context')
    if prefect is not None and prefect.FlowRunContext.get() is not None and prefect.TaskRunContext.get() is None:
        return 'Prefect'
    return None


def refuse_wait(max_wait: timedelta | None) -> None:
    """Refuse to queue a request for longer than the step may take in which it is queued.

    Raises:
        UserError: The engine would give the step up, and run it again, before its request was sent.
    """
    if (step := current_step()) is None:
        return
    if max_wait is None:
        raise UserError(
            f'`max_wait=None` waits for a full batch or `flush()`, and this request is queued in a step of '
            f'{step.engine}, which would wait for that too: set `max_wait` to some seconds.'
        )
    if step.timeout is not None and max_wait >= step.timeout:
        raise UserError(
            f'`max_wait` is {_seconds(max_wait)}, and {step.engine} gives the step up in which the request is queued '
            f'after {_seconds(step.timeout)}, so that it would be run again before anything was sent: set `max_wait` '
            'well below that, or give steps of models more time.'
        )


def refuse_in_workflow(what: str) -> None:
    """Refuse what workflow code must not do, as it would do it again each time it is replayed.

    Raises:
        UserError: This is workflow code.
    """
    if (engine := current_workflow()) is not None:
        raise UserError(
            f'{what} is called in code of a {engine} workflow, which has no batches: its requests are sent in steps. '
            'Leave it out, and set `max_wait`.'
        )


def _loaded(module: str) -> Any:
    return sys.modules.get(module)


def _seconds(time: timedelta) -> str:
    return f'{time.total_seconds():g} s'
