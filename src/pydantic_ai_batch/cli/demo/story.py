"""What the demo does and tells, from the first heading to the exit code."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_ai import AgentRunResult, PendingModelResponse
from rich.console import Console
from rich.text import Text

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.compat import read_ticket

from . import report
from .collect import INTERRUPTED, save
from .providers import PROVIDERS, Triager, UnknownProvider, opened, titles, triager
from .tickets import Ticket, load_tickets
from .triage import Triage, pending_triage_agent, triage_agent

if TYPE_CHECKING:
    from pydantic_ai_batch.testing import FakeProviders

_VARIABLES = '; or '.join(f'{provider.variables} for {provider.title}' for provider in PROVIDERS)
"""What `--live` needs one of."""

_OVERNIGHT = 6
"""How many tickets, of those that came in last, are left for the second process."""

_SHOWN = 8
"""How many of the first results are shown."""

_SECOND_PROCESS_START = timedelta(seconds=2.5)
"""How much longer the fake takes for the second batch, so that the second process finds it running."""

_NO_PROXY = ('NO_PROXY', 'no_proxy')


@dataclass(frozen=True)
class _Pace:
    """How long the demo waits for what."""

    max_wait: timedelta
    """For other requests, before a batch is submitted."""

    poll: timedelta
    """Before the first check of a batch, from which the interval grows."""

    max_poll: timedelta

    sweep: float
    """Seconds between two sweeps of the second process."""


@dataclass(frozen=True)
class _Demo:
    console: Console
    triagers: Sequence[Triager]
    pace: _Pace
    fake: FakeProviders | None = None
    """What answers; `None` is the real providers."""

    @property
    def live(self) -> bool:
        return self.fake is None

    def batching(self, *, progress: bool) -> BatchModelRequests:
        return BatchModelRequests(
            max_wait=self.pace.max_wait,
            poll_interval=self.pace.poll,
            max_poll_interval=self.pace.max_poll,
            progress=progress,
        )

    def dealt(self, tickets: Sequence[Ticket]) -> list[tuple[Ticket, Triager]]:
        """The tickets, each with the model whose turn it is."""
        return [(ticket, self.triagers[place % len(self.triagers)]) for place, ticket in enumerate(tickets)]


def run_demo(*, live: bool, models: Sequence[str], seconds: float, poll: float | None) -> int:
    """Run the demo, and return the exit code: 0 if every ticket was answered."""
    console = report.make_console()
    try:
        triagers = [triager(model) for model in dict.fromkeys(models)]
    except UnknownProvider as error:
        _problem(str(error))
        return 2
    if live:
        with_key = [each for each in triagers if each.provider.has_key]
        if not with_key:
            _problem(f'`--live` needs the key of a provider: set {_VARIABLES}. Without `--live`, no key is needed.')
            return 2
        for each in triagers:
            if each not in with_key:
                console.print(
                    f'{each.provider.title} is skipped, as no key is set in {each.provider.variables}.', markup=False
                )
        pace = _Pace(timedelta(seconds=1), timedelta(seconds=poll or 15), timedelta(seconds=poll or 120), poll or 60)
        return _run(_Demo(console, with_key, pace))
    try:
        from pydantic_ai_batch.testing import FakeProviders

        from .answers import answer_triage
    except ImportError as error:
        _problem(f'{error} Or set {_VARIABLES}, and run `pydantic-ai-batch demo --live`, which needs no fakes.')
        return 1
    every = timedelta(seconds=poll or 0.5)
    with (
        FakeProviders(answer_triage, processing=timedelta(seconds=seconds)) as fake,
        _environment(
            {
                **{name: value for each in fake.providers.values() for name, value in each.environment.items()},
                # A proxy of the user's cannot reach this machine's loopback.
                **{name: ','.join(filter(None, (os.environ.get(name), '127.0.0.1'))) for name in _NO_PROXY},
            }
        ),
    ):
        pace = _Pace(timedelta(seconds=0.7), every, every, every.total_seconds())
        return _run(_Demo(console, triagers, pace, fake))


@contextmanager
def _environment(changes: Mapping[str, str]) -> Generator[None]:
    """Change the environment of this process, and so of the one it starts, for a while."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _run(demo: _Demo) -> int:
    console, tickets = demo.console, load_tickets()
    now, later = tickets[:-_OVERNIGHT], tickets[-_OVERNIGHT:]
    names = titles(demo.triagers)
    if demo.live:
        console.print(
            f'The {len(tickets)} tickets go to {names}, in two batches of each model, which cost a few cents. A batch '
            'takes minutes, sometimes hours, and a day or two at most. Ctrl-C cancels the batches that are waited for, '
            'of which the providers bill what they have answered by then.',
            markup=False,
        )
    else:
        console.print(
            f'No key is needed: the clients of {names} send the requests to fakes on this machine, which answer by '
            'keywords and take seconds where the real ones take minutes to hours. `--live` sends them to the '
            'providers whose keys are set.'
        )
    try:
        answered = asyncio.run(_first_part(demo, now))
    except KeyboardInterrupt:
        console.print('\nStopped. Batches that were submitted are being cancelled: no run waits for them any more.')
        return INTERRUPTED
    if not answered:
        return 1
    collected = _second_part(demo, later)
    if collected == INTERRUPTED:
        return INTERRUPTED
    console.print()
    if answered < len(now) or collected != 0:
        console.print('[red]Not every ticket was answered.[/] Above is why.')
        return 1
    console.print(f'[green]All {len(tickets)} tickets were answered.[/]')
    return 0


async def _first_part(demo: _Demo, tickets: Sequence[Ticket]) -> int:
    """Triage `tickets` in a batch of each model, waiting for them, and return how many were answered."""
    console, count = demo.console, len(demo.triagers)
    report.heading(
        console,
        f'1 · {len(tickets)} agent runs, {_batches(count)}',
        f'One agent, {len(tickets)} support tickets, and `asyncio.gather`. '
        + (f'The tickets go to {titles(demo.triagers)} in turn. ' if count > 1 else '')
        + 'One capability, `BatchModelRequests`, puts the requests of all runs into '
        + ('one batch for each model' if count > 1 else 'one batch')
        + f', checks on {"them" if count > 1 else "it"}, and hands each run its own answer, typed as ever.',
    )
    dealt = demo.dealt(tickets)
    async with opened(demo.triagers) as models:
        agent = triage_agent(demo.batching(progress=True))
        runs = await asyncio.gather(
            *[agent.run(ticket.prompt, model=models[by]) for ticket, by in dealt], return_exceptions=True
        )
    answered: list[report.Answered] = []
    failed: list[tuple[Ticket, BaseException]] = []
    for (ticket, by), run in zip(dealt, runs, strict=True):
        if isinstance(run, BaseException):
            failed.append((ticket, run))
        else:
            answered.append(report.Answered(ticket, by, run.output, report.cost_of(run.all_messages(), by)))
    console.print()
    report.failures(console, failed)
    if not answered:
        return 0
    report.results(console, answered, limit=_SHOWN)
    report.heading(
        console,
        '2 · What it cost',
        'Providers take about half off in a batch. Both sums go by `genai-prices`, for the same tokens'
        + ('.' if demo.live else ': the prices are real, and the fakes count a token for every four bytes.'),
    )
    report.cost_table(console, answered)
    return len(answered)


def _batches(count: int) -> str:
    return 'one batch' if count == 1 else f'{count} batches'


def _second_part(demo: _Demo, tickets: Sequence[Ticket]) -> int:
    """End runs while their requests are pending and let another process collect them, and return its exit code."""
    console = demo.console
    report.heading(
        console,
        '3 · Submit now, collect later, in another process',
        'With `output_type=[Triage, PendingModelResponse]` a run ends as soon as its request is submitted. Its message '
        'history is all there is to keep: run the agent with it again, any time and anywhere, to get the answer.',
    )
    if demo.fake is not None:
        demo.fake.processing += _SECOND_PROCESS_START
    folder = Path(tempfile.mkdtemp(prefix='pydantic-ai-batch-demo-'))
    command = [sys.executable, '-m', 'pydantic_ai_batch.cli', 'demo-collect', str(folder)]
    command += ['--every', str(demo.pace.sweep)]
    try:
        pending = asyncio.run(_submit(demo, tickets, folder))
        collected = 1
        if pending:
            console.print('A second process resumes them:\n')
            collected = subprocess.run(command, check=False).returncode
        result = collected if pending == len(tickets) else collected or 1
    except KeyboardInterrupt:
        result = INTERRUPTED
    if result != 0 and demo.live and any(folder.iterdir()):
        console.print('\nThe answers stay with the providers for weeks. To collect them again, with the same keys:\n')
        console.print(Text('  ' + shlex.join(command)), soft_wrap=True)
    else:
        shutil.rmtree(folder)
    return result


async def _submit(demo: _Demo, tickets: Sequence[Ticket], folder: Path) -> int:
    """Run the agent until every request is submitted, store the histories, and return how many are pending."""
    dealt = demo.dealt(tickets)
    async with opened(demo.triagers) as models:
        agent = pending_triage_agent(demo.batching(progress=False))
        runs = await asyncio.gather(
            *[agent.run(ticket.prompt, model=models[by]) for ticket, by in dealt], return_exceptions=True
        )
    pending: dict[Ticket, AgentRunResult[Triage | PendingModelResponse]] = {}
    failed: list[tuple[Ticket, BaseException]] = []
    for ticket, run in zip(tickets, runs, strict=True):
        if isinstance(run, BaseException):
            failed.append((ticket, run))
        else:
            pending[ticket] = run
            save(folder, ticket, run.all_messages())
    report.failures(demo.console, failed)
    batches = {ticket.batch.id for run in pending.values() if (ticket := read_ticket(run.response))}
    demo.console.print(
        f'{len(pending)} runs ended, their requests pending in {_batches(len(batches))}.\n'
        f'Their histories are files in {folder} now.',
        markup=False,
        soft_wrap=True,
    )
    return len(pending)


def _problem(message: str) -> None:
    """Say what keeps the demo from starting."""
    Console(stderr=True, highlight=False).print(Text.assemble(('Error: ', 'bold red'), message), soft_wrap=True)
