"""The command line: `pydantic-ai-batch`.

What a command needs is imported when it runs, so that `--help` and `--version` load nothing that they do not show.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

# Without Typer's own tracebacks, which are cut to what it deems of interest.
app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode='markdown'
)

_MODEL = 'gpt-5-mini'


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f'pydantic-ai-batch {version("pydantic-ai-batch")}')
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option('--version', callback=_version, is_eager=True, help='Show the version and exit.')
    ] = False,
) -> None:
    """Send Pydantic AI agents' model requests through the providers' batch APIs, at about half the price."""
    # The framework greets every program on a terminal that has no tracing set up; here it would greet between rows.
    os.environ.setdefault('PYDANTIC_AI_NO_BANNER', '1')


@app.command()
def demo(
    live: Annotated[
        bool, typer.Option('--live', help='Send the requests to OpenAI, with the key in OPENAI_API_KEY.')
    ] = False,
    model: Annotated[str, typer.Option(help='The OpenAI model that triages.')] = _MODEL,
    seconds: Annotated[float, typer.Option(min=0.1, help='How long the fake provider takes for a batch.')] = 3.0,
    poll: Annotated[
        float | None, typer.Option(min=0.05, hidden=True, help='Seconds between checks of a batch.')
    ] = None,
) -> None:
    """Triage support tickets in batches: against a fake provider on this machine, or against OpenAI.

    Shows the progress of a batch, typed results, what they cost, and what live requests would have cost. Then ends
    agent runs while their requests are pending, and collects them in a second process.

    Exits with 0 if every ticket was answered.
    """
    from .demo.story import run_demo

    raise typer.Exit(run_demo(live=live, model_name=model, seconds=seconds, poll=poll))


@app.command(hidden=True)
def demo_collect(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help='Where the histories are.')],
    model: Annotated[str, typer.Option(help='The model that the histories wait for.')] = _MODEL,
    every: Annotated[float, typer.Option(min=0.05, help='Seconds between two sweeps over the histories.')] = 60.0,
) -> None:
    """Collect what a demo left pending: the second process of `demo`."""
    from .demo.collect import run_collect

    raise typer.Exit(run_collect(folder, model_name=model, every=every))
