"""The demo's second process: it resumes the histories that the first one left pending, until all are answered.

It gets a folder with a JSON file for each run, and knows nothing else of the process that wrote them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic_ai import ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.messages import ModelMessage
from rich.console import Console

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.compat import counted, read_ticket

from . import report
from .providers import Triager, opened, triager_of
from .tickets import Ticket, load_tickets
from .triage import pending_triage_agent

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def save(folder: Path, ticket: Ticket, history: list[ModelMessage]) -> None:
    """Store the history of a ticket's run."""
    (folder / f'{ticket.id}.json').write_bytes(ModelMessagesTypeAdapter.dump_json(history, indent=2))


def run_collect(folder: Path, *, every: float) -> int:
    """Collect the pending histories in `folder`, and return the exit code: 0 if all of them were answered."""
    try:
        return asyncio.run(_collect(report.make_console(), folder, every))
    except KeyboardInterrupt:
        return INTERRUPTED


async def _collect(console: Console, folder: Path, every: float) -> int:
    histories = {
        ticket: ModelMessagesTypeAdapter.validate_json(path.read_bytes())
        for ticket in load_tickets()
        if (path := folder / f'{ticket.id}.json').is_file()
    }
    total = len(histories)
    console.print(f'Process {os.getpid()} found {total} histories.')
    # A history says which model its request waits for.
    triagers = {ticket: _triager(history) for ticket, history in histories.items()}
    answered: list[report.Answered] = []
    failed: list[tuple[Ticket, BaseException]] = []
    async with opened(set(triagers.values())) as models:
        agent = pending_triage_agent(BatchModelRequests())
        sweep = 0
        while histories:
            if sweep:
                await asyncio.sleep(every)
            sweep += 1
            # Each run checks once, and ends. Those of one batch share the check.
            runs = await asyncio.gather(
                *[
                    agent.run(message_history=history, model=models[triagers[ticket]])
                    for ticket, history in histories.items()
                ],
                return_exceptions=True,
            )
            for ticket, run in zip(list(histories), runs, strict=True):
                if isinstance(run, BaseException):
                    failed.append((ticket, run))
                    del histories[ticket]
                elif isinstance(run.output, PendingModelResponse):
                    histories[ticket] = run.all_messages()
                    save(folder, ticket, histories[ticket])
                else:
                    cost = report.cost_of(run.all_messages(), triagers[ticket])
                    answered.append(report.Answered(ticket, triagers[ticket], run.output, cost))
                    del histories[ticket]
            console.print(f'Sweep {sweep}: {len(answered)} answered, {len(histories)} pending{_state(histories)}')
    console.print()
    report.failures(console, failed)
    report.results(console, answered, limit=total)
    report.cost_line(console, answered)
    return 0 if len(answered) == total else 1


def _triager(history: Sequence[ModelMessage]) -> Triager:
    ticket = read_ticket(history[-1])
    assert ticket is not None
    return triager_of(ticket.batch.provider_name, ticket.batch.model_name)


def _state(histories: Mapping[Ticket, Sequence[ModelMessage]]) -> str:
    """How far the batches are that `histories` wait for, as their last check saw them."""
    states: dict[str, str] = {}
    for history in histories.values():
        if (ticket := read_ticket(history[-1])) is not None:
            batch = ticket.batch
            states[batch.id] = f'{batch.provider_name} {counted(batch)} of {batch.request_count}'
    return f' ({", ".join(states.values())} done)' if states else ''
