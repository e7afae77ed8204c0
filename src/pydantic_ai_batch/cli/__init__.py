"""The command line: `pydantic-ai-batch`.

What a command needs is imported when it runs, so that `--help` and `--version` load nothing that they do not show.
"""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path
from typing import Annotated

import typer

from .rows import register

# Without Typer's own tracebacks, which are cut to what it deems of interest.
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode='markdown')

_MODELS = ['openai-responses:gpt-5-mini', 'anthropic:claude-haiku-4-5', 'google:gemini-2.5-flash']


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
    # At its end Python looks through all objects for garbage, which takes it a second for those of three SDKs.
    atexit.register(gc.freeze)


@app.command()
def demo(
    live: Annotated[
        bool, typer.Option('--live', help='Send the requests to the providers whose keys are in the environment.')
    ] = False,
    model: Annotated[list[str], typer.Option(help='A model that triages. May be given several times.')] = _MODELS,
    seconds: Annotated[float, typer.Option(min=0.1, help='How long the fake providers take for a batch.')] = 2.0,
    poll: Annotated[
        float | None, typer.Option(min=0.05, hidden=True, help='Seconds between checks of a batch.')
    ] = None,
) -> None:
    """Triage support tickets in batches: against fake providers on this machine, or against the real ones.

    The tickets are dealt to OpenAI, Anthropic and Google in turn. Shows the progress of the batches, typed results,
    what they cost, and what live requests would have cost. Then ends agent runs while their requests are pending, and
    collects them in a second process.

    Exits with 0 if every ticket was answered.
    """
    from .demo.story import run_demo

    raise typer.Exit(run_demo(live=live, models=model, seconds=seconds, poll=poll))


@app.command()
def lanes(
    name: Annotated[str | None, typer.Argument(help='A lane, or a name that it goes by, such as `claude`.')] = None,
    as_json: Annotated[bool, typer.Option('--json', help='Write JSON.')] = False,
) -> None:
    """Show the providers' batch APIs that are served, and their limits; of one lane, all that is known.

    A dash stands for what is not known, which does not mean that there is no limit.
    """
    from pydantic_ai.exceptions import UserError

    from .lanes import show_lanes

    try:
        show_lanes(name, as_json=as_json)
    except UserError as error:
        typer.echo(f'Error: {error}', err=True)
        raise typer.Exit(2) from error


register(app)


@app.command(hidden=True)
def demo_collect(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, help='Where the histories are.')],
    every: Annotated[float, typer.Option(min=0.05, help='Seconds between two sweeps over the histories.')] = 60.0,
) -> None:
    """Collect what a demo left pending: the second process of `demo`."""
    from .demo.collect import run_collect

    raise typer.Exit(run_collect(folder, every=every))
