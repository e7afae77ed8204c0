"""Opens a run over rows: looks at all of them, and goes on with what an earlier process left."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.events import Listener
from pydantic_ai_batch.journal import Journal, refuse_unfindable
from pydantic_ai_batch.journal.sessions import RunLock
from pydantic_ai_batch.lanes.base import Lane
from pydantic_ai_batch.settings import BatchSettings

from .agent_requests import AgentRequests
from .base import RowSource
from .guards import Guards
from .job import RowJob, refuse_changes
from .kept_results import KeptResults
from .row_run import RowRun


@asynccontextmanager
async def opened_run(
    job: RowJob,
    source: RowSource,
    settings: BatchSettings,
    clock: Clock,
    journal: Journal | None = None,
    listener: Listener | None = None,
    guards: Guards | None = None,
    command: Mapping[str, Any] | None = None,
) -> AsyncGenerator[RowRun]:
    """A run that is ready to be sent.

    Args:
        job: What is done with every row.
        source: The input.
        settings: The limits of its batches.
        clock: What time is read from and slept on.
        journal: The journal, if there is one.
        listener: Called with what happens.
        guards: What may stop it.
        command: How a command line asked for it, by which the journal alone can go on with it.

    Raises:
        InputProblems: Something is wrong with rows. Nothing was sent.
        RunChanged: The journal has another run. Nothing was sent.
        JournalError: Another process works on that run, or the journal cannot be used. Nothing was sent.
        UserError: Something else is wrong. Nothing was sent.
    """
    requests = job.requests(source, settings, journal, clock)

    def ask(lane: Lane) -> Lane:
        return lane.ask(settings.window)

    prepared = await job.prepare(source, requests, ask)
    for lane, name in zip(prepared.targets.lanes, prepared.targets.names, strict=True):
        if journal is not None:
            refuse_unfindable(lane)
        if guards is not None:
            guards.refuse_unpriced(lane, name)
    path = Path(os.fspath(journal.path)) if journal is not None else None
    with ExitStack() as stack:
        kept = KeptResults(path)
        stack.callback(kept.close)
        if path is not None and journal is not None and not journal.share:
            stack.enter_context(RunLock(path))
        spec = {**job.spec(source), 'command': dict(command) if command is not None else None}
        before = await kept.begin(spec)
        if before is not None and journal is not None:
            refuse_changes(os.fspath(journal.path), before, spec)
            if command is not None:
                await kept.go_on({**before, 'command': spec['command']})
        finish = requests.finish if isinstance(requests, AgentRequests) else None
        run = RowRun(
            prepared,
            kept,
            job.outputs,
            settings,
            clock,
            journal=journal,
            listener=listener,
            guards=guards,
            finish=finish,
        )
        await run.load()
        yield run
