"""The commands over files of rows: `run`, `plan` and those over the journals of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal, TypeVar

import typer

if TYPE_CHECKING:
    from pydantic_ai_batch.clock import Clock
    from pydantic_ai_batch.rows.guards import Guards

    from .files.options import RunOptions

T = TypeVar('T')


@dataclass(frozen=True)
class Time:
    """What commands go by for time: their context's `obj`, which tests set to a clock that they move by hand."""

    clock: Clock
    run: Callable[[Coroutine[Any, Any, Any]], Any]
    """Runs a coroutine to its end."""


Rows = Annotated[str, typer.Argument(help='A .csv, .tsv, .jsonl or .parquet file, also .gz, or `-`.', metavar='ROWS')]
Model = Annotated[
    str | None, typer.Option('--model', '-m', help='The model, as `provider:name`. Without it each row has a `model`.')
]
Prompt = Annotated[
    str | None,
    typer.Option('--prompt', '-p', help='The prompts, with columns in double braces: `Summarise: {{ text }}`.'),
]
PromptFile = Annotated[Path | None, typer.Option('--prompt-file', help='A file with that template.')]
InputColumn = Annotated[
    str | None, typer.Option(help='The column of the prompts, without a template.  [default: input]')
]
IdColumn = Annotated[str | None, typer.Option(help='The column of the IDs.  [default: id, or the number of the row]')]
Instructions = Annotated[str | None, typer.Option(help='The instructions (system prompt) of every row.')]
Schema = Annotated[str | None, typer.Option(help='A JSON schema of the answers. Its fields become columns.')]
OutputType = Annotated[str | None, typer.Option(help='A type of the answers, as `module:Type`.')]
Temperature = Annotated[float | None, typer.Option(help='The temperature.')]
MaxTokens = Annotated[int | None, typer.Option(help='The most tokens of an answer.')]
Settings = Annotated[str | None, typer.Option(help='Other settings of the model, as a JSON object.')]
FormatOption = Annotated[
    Literal['csv', 'jsonl', 'parquet'] | None,
    typer.Option('--format', help='The format of the input, if not by suffix.'),
]
OutputFormat = Annotated[
    Literal['csv', 'jsonl', 'parquet'] | None, typer.Option(help='The format of the output, if not by suffix.')
]
Delimiter = Annotated[str | None, typer.Option(help='The delimiter of CSV files.')]
Verify = Annotated[
    int | None,
    typer.Option(help='Prove on that many rows that answers are those of their rows, by tokens in their prompts.'),
]
MaxRequests = Annotated[int | None, typer.Option(help='The most requests in a batch.  [default: as many as go]')]
MaxBytes = Annotated[int | None, typer.Option(help='The most bytes in a batch.')]
Window = Annotated[float | None, typer.Option(help='Hours that the provider has for a batch.')]
MaxFailures = Annotated[
    str | None, typer.Option(help='Stop when more rows fail, as `10` or `5%`. Batches go one after the other then.')
]
MaxCost = Annotated[
    str | None, typer.Option(help='Refuse a run that is estimated to cost more dollars, and stop one that does.')
]
OtherMaxFailures = Annotated[
    str | None, typer.Option('--max-failures', help='As for `run`, or `none`.  [default: what `run` was given]')
]
OtherMaxCost = Annotated[
    str | None, typer.Option('--max-cost', help='As for `run`, or `none`.  [default: what `run` was given]')
]
JsonFlag = Annotated[bool, typer.Option('--json', help='Write JSON.')]
JournalArgument = Annotated[Path, typer.Argument(help='The journal of a run: `<output>.journal`.', metavar='JOURNAL')]
OnInterruptOption = Annotated[
    Literal['ask', 'cancel', 'leave'], typer.Option(help='What the first Ctrl-C does to the batches.')
]
Wait = Annotated[str | None, typer.Option(help='How long to wait before leaving, as `30m` or `2h`.')]
Quiet = Annotated[bool, typer.Option('--quiet', '-q', help='Show neither progress nor a summary.')]


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command('run', rich_help_panel='Rows')(run)
    app.command('plan', rich_help_panel='Rows')(plan)
    app.command('collect', rich_help_panel='Runs')(collect)
    app.command('status', rich_help_panel='Runs')(status)
    app.command('watch', rich_help_panel='Runs')(watch)
    app.command('results', rich_help_panel='Runs')(results)
    app.command('retry', rich_help_panel='Runs')(retry)
    app.command('cancel', rich_help_panel='Runs')(cancel)
    app.command('cost', rich_help_panel='Runs')(cost)
    app.command('jobs', rich_help_panel='Runs')(jobs)
    app.command('adopt', rich_help_panel='Runs')(adopt)


def run(
    context: typer.Context,
    rows: Rows,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    input_column: InputColumn = None,
    id_column: IdColumn = None,
    instructions: Instructions = None,
    schema: Schema = None,
    output_type: OutputType = None,
    output: Annotated[
        str | None, typer.Option('--output', '-o', help='The output, or `-`.  [default: `<rows>.answers.<suffix>`]')
    ] = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    settings: Settings = None,
    format: FormatOption = None,
    output_format: OutputFormat = None,
    delimiter: Delimiter = None,
    max_requests: MaxRequests = None,
    max_bytes: MaxBytes = None,
    max_resubmissions: Annotated[int, typer.Option(help='How often a row that failed in passing is sent again.')] = 2,
    window: Window = None,
    journal: Annotated[Path | None, typer.Option(help='The journal.  [default: `<output>.journal`]')] = None,
    detach: Annotated[bool, typer.Option('--detach', help='Leave when everything is sent.')] = False,
    wait: Wait = None,
    on_interrupt: OnInterruptOption = 'ask',
    verify: Verify = None,
    canary: Annotated[
        int | None, typer.Option(help='Send that many rows first, and the others if enough of them are answered.')
    ] = None,
    max_failures: MaxFailures = None,
    max_cost: MaxCost = None,
    dry_run: Annotated[bool, typer.Option('--dry-run', help='Send nothing, and show the plan.')] = False,
    quiet: Quiet = False,
    as_json: JsonFlag = False,
    poll: Annotated[float, typer.Option(hidden=True, min=0.05)] = 30.0,
) -> None:
    """Ask a model about each row of a file, in batches, and write the answers beside the rows.

    The same command again goes on with what was left, and pays for nothing twice.

    Exits with 0 if every row was answered, 1 if rows failed, 2 if something is wrong and nothing was sent, 3 if rows
    are still on their way, 4 if the run was stopped, 130 if it was interrupted and its batches cancelled.
    """
    from .files.options import RunOptions

    def work() -> int:
        options = RunOptions(
            rows=rows,
            model=model,
            prompt=_prompt(prompt, prompt_file),
            input_column=input_column,
            id_column=id_column,
            instructions=instructions,
            schema=schema,
            output_type=output_type,
            temperature=temperature,
            max_tokens=max_tokens,
            settings=settings,
            format=format,
            output_format=output_format,
            delimiter=delimiter,
            output=output,
            max_requests=max_requests,
            max_bytes=max_bytes,
            max_resubmissions=max_resubmissions,
            window=window,
            verify=verify,
            canary=canary,
            max_failures=max_failures,
            max_cost=max_cost,
            poll=poll,
        )
        if dry_run:
            _plan(options, as_json=as_json)
            return 0
        guards = _guards(canary, max_failures, max_cost)
        if detach and (canary is not None or guards.watchful):
            raise _wrong(
                '`--detach` leaves when everything is sent, and `--canary`, `--max-failures` and `--max-cost` '
                'wait for answers before that: leave one of them out, or give `--wait`.'
            )
        place = journal or options.journal
        if place is None and (detach or wait is not None):
            raise _wrong('Rows that are left need a journal to be collected by: give `--journal`.')
        from .files.piped import read_piped
        from .files.running import Manner, run_file

        with read_piped() if rows == '-' else nullcontext() as piped:
            if guards.max_cost is not None:
                _refuse_dear(options, guards.max_cost, piped)
            manner = Manner(detach=detach, wait=_seconds(wait), on_interrupt=on_interrupt, quiet=quiet, as_json=as_json)
            time = _time(context)
            return time.run(run_file(options, place, guards, manner, time.clock, piped))

    raise typer.Exit(_guarded(work))


def plan(
    rows: Rows,
    model: Model = None,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    input_column: InputColumn = None,
    id_column: IdColumn = None,
    instructions: Instructions = None,
    schema: Schema = None,
    output_type: OutputType = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    settings: Settings = None,
    verify: Verify = None,
    format: FormatOption = None,
    delimiter: Delimiter = None,
    max_requests: MaxRequests = None,
    max_bytes: MaxBytes = None,
    window: Window = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a run would send, and what that would cost. Sends nothing."""
    from .files.options import RunOptions

    def work() -> int:
        options = RunOptions(
            rows=rows,
            model=model,
            prompt=_prompt(prompt, prompt_file),
            input_column=input_column,
            id_column=id_column,
            instructions=instructions,
            schema=schema,
            output_type=output_type,
            temperature=temperature,
            max_tokens=max_tokens,
            settings=settings,
            verify=verify,
            format=format,
            delimiter=delimiter,
            max_requests=max_requests,
            max_bytes=max_bytes,
            window=window,
        )
        _plan(options, as_json=as_json)
        return 0

    raise typer.Exit(_guarded(work))


def collect(
    context: typer.Context,
    journal: JournalArgument,
    max_failures: OtherMaxFailures = None,
    max_cost: OtherMaxCost = None,
    wait: Wait = None,
    on_interrupt: OnInterruptOption = 'ask',
    quiet: Quiet = False,
    as_json: JsonFlag = False,
) -> None:
    """Go on with a run that was left, and write its answers. Exits as `run` does."""

    def work() -> int:
        options, guards = _kept(journal, max_failures, max_cost)
        return _go_on(context, journal, options, guards, wait, on_interrupt, quiet=quiet, as_json=as_json)

    raise typer.Exit(_guarded(work))


def retry(
    context: typer.Context,
    journal: JournalArgument,
    max_failures: OtherMaxFailures = None,
    max_cost: OtherMaxCost = None,
    wait: Wait = None,
    on_interrupt: OnInterruptOption = 'ask',
    quiet: Quiet = False,
    as_json: JsonFlag = False,
) -> None:
    """Send the rows of a run again that failed, and write all its answers. Exits as `run` does."""

    def work() -> int:
        from .files.retrying import forget_failed

        options, guards = _kept(journal, max_failures, max_cost)
        _run(forget_failed(journal))
        return _go_on(context, journal, options, guards, wait, on_interrupt, quiet=quiet, as_json=as_json)

    raise typer.Exit(_guarded(work))


def status(
    journal: JournalArgument,
    offline: Annotated[bool, typer.Option('--offline', help='Ask no provider.')] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show how far a run is."""

    def work() -> int:
        from .files.looking import show_status

        _run(show_status(journal, ask=not offline, as_json=as_json))
        return 0

    raise typer.Exit(_guarded(work))


def watch(
    journal: JournalArgument, every: Annotated[float, typer.Option(min=0.1, help='Seconds between two looks.')] = 30.0
) -> None:
    """Show how far a run is, until its batches are over."""

    def work() -> int:
        from .files.looking import watch as look

        _run(look(journal, every=every))
        return 0

    raise typer.Exit(_guarded(work))


def results(
    journal: JournalArgument,
    failed: Annotated[bool, typer.Option('--failed', help='Those without an answer alone.')] = False,
) -> None:
    """Write what a run has so far, a JSON object a line, with what the provider returned."""

    def work() -> int:
        from .files.looking import show_results

        _run(show_results(journal, failed=failed))
        return 0

    raise typer.Exit(_guarded(work))


def cancel(journal: JournalArgument) -> None:
    """Ask the providers to stop the batches of a run. What is finished is billed, and can be collected."""

    def work() -> int:
        from rich.console import Console

        from .files.cancelling import cancel_open

        return 1 if _run(cancel_open(journal, Console())) else 0

    raise typer.Exit(_guarded(work))


def cost(journal: JournalArgument, as_json: JsonFlag = False) -> None:
    """Show what the answers of a run cost, by model, and what live requests would have cost."""

    def work() -> int:
        from .files.looking import show_cost

        _run(show_cost(journal, as_json=as_json))
        return 0

    raise typer.Exit(_guarded(work))


def jobs(
    journals: Annotated[list[Path] | None, typer.Argument(help='Journals whose batches are known.')] = None,
    provider: Annotated[
        str | None, typer.Option(help='A lane whose batches are listed, as the provider has them.')
    ] = None,
    limit: Annotated[int, typer.Option(help='How many of them.')] = 50,
    offline: Annotated[bool, typer.Option('--offline', help='Ask no provider about batches of journals.')] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the batches of journals, or, with `--provider`, those that a provider holds, orphans marked."""

    def work() -> int:
        if provider is not None:
            from .files.providers import show_provider

            _run(show_provider(provider, journals or [], limit=limit, as_json=as_json))
            return 0
        from .files.looking import show_status

        if not journals:
            raise _wrong('Give journals, or a `--provider`.')
        for journal in journals:
            _run(show_status(journal, ask=not offline, as_json=as_json))
        return 0

    raise typer.Exit(_guarded(work))


def adopt(
    context: typer.Context,
    batch_id: Annotated[str, typer.Argument(help="The provider's ID of the batch.", metavar='BATCH_ID')],
    provider: Annotated[str, typer.Option(help='The lane, or a model of it, whose key is in the environment.')],
    journal: Annotated[Path | None, typer.Option(help='The journal of the run that it may be of.')] = None,
    output: Annotated[
        str, typer.Option('--output', '-o', help='A new file of JSON lines for its results, or `-`.')
    ] = '-',
    wait: Wait = None,
    poll: Annotated[float, typer.Option(hidden=True, min=0.05)] = 30.0,
) -> None:
    """Take a batch that no journal knows: join it to its run, or write its results. Cancels and deletes nothing.

    With `--journal` it is joined to that run, if the provider shows that it is of it, and `collect` reads it then.
    Without, its results are written as they are, under their own IDs.

    Exits with 0 if it was joined, or every result is an answer; 1 if some are none; 2 if something is wrong and nothing
    was done; 3 if the wait was up.
    """

    def work() -> int:
        from rich.console import Console

        from pydantic_ai_batch.listing import lane_named

        from .files.adopting import join, write_results
        from .files.options import RunOptions

        time, console = _time(context), Console(stderr=True)
        if journal is not None:
            if output != '-' or wait is not None:
                raise _wrong(
                    '`--journal` joins the batch to its run, and `collect` waits and writes: leave `--output` and '
                    '`--wait` out.'
                )
            return time.run(join(batch_id, lane_named(provider), provider, journal, console, time.clock))
        settings = RunOptions(rows='-', poll=poll).batches
        return time.run(
            write_results(
                batch_id,
                lane_named(provider),
                provider,
                output,
                console,
                time.clock,
                wait=_seconds(wait),
                settings=settings,
            )
        )

    raise typer.Exit(_guarded(work))


# What they share


def _kept(journal: Path, max_failures: str | None, max_cost: str | None) -> tuple[RunOptions, Guards]:
    """What a journal's run was given, and what may stop it now: the same, unless something else is given."""
    from .files.looking import options_in

    options = options_in(journal)

    def held(given: str | None, kept: str | None) -> str | None:
        return kept if given is None else None if given.lower() == 'none' else given

    guards = _guards(options.canary, held(max_failures, options.max_failures), held(max_cost, options.max_cost))
    if max_cost is not None and guards.max_cost is not None:
        with _kept_rows(options, journal) as piped:
            _refuse_dear(options, guards.max_cost, piped)
    return options, guards


def _go_on(
    context: typer.Context,
    journal: Path,
    options: RunOptions,
    guards: Guards,
    wait: str | None,
    on_interrupt: Any,
    *,
    quiet: bool,
    as_json: bool,
) -> int:
    from .files.running import Manner, run_file

    manner = Manner(wait=_seconds(wait), on_interrupt=on_interrupt, again=True, quiet=quiet, as_json=as_json)
    time = _time(context)
    with _kept_rows(options, journal) as piped:
        return time.run(run_file(options, journal, guards, manner, time.clock, piped))


def _kept_rows(options: RunOptions, journal: Path) -> AbstractContextManager[BinaryIO | None]:
    """The rows that were piped in when a run was begun, if they were."""
    from .files.piped import open_kept

    return open_kept(journal) if options.rows == '-' else nullcontext()


def _time(context: typer.Context) -> Time:
    if isinstance(context.obj, Time):
        return context.obj
    from pydantic_ai_batch.clock import SYSTEM_CLOCK

    return Time(SYSTEM_CLOCK, _run)


def _plan(options: RunOptions, *, as_json: bool) -> None:
    from .files.planning import plan_of, show_plan

    show_plan(_run(plan_of(options)), as_json=as_json)


def _refuse_dear(options: RunOptions, most: Decimal, piped: BinaryIO | None) -> None:
    """Refuse a run that is estimated to cost more than it may."""
    from .files.planning import plan_of

    plan = _run(plan_of(options, piped))
    if piped is not None:
        piped.seek(0)
    if plan.cost is not None and plan.cost > most:
        raise _wrong(f'The run is estimated at {plan.cost_in_words}, and `--max-cost` is ${most}. Nothing was sent.')


def _guards(canary: int | None, max_failures: str | None, max_cost: str | None) -> Guards:
    from pydantic_ai_batch.rows.guards import Guards

    try:
        most = None if max_cost is None else Decimal(max_cost.lstrip('$'))
    except InvalidOperation:
        raise _wrong(f'`--max-cost` must be a sum in US dollars, such as `5`, not {max_cost!r}.') from None
    failures: float | int | None = None
    if max_failures is not None:
        try:
            share = max_failures.endswith('%')
            failures = float(max_failures[:-1]) / 100 if share else int(max_failures)
        except ValueError:
            raise _wrong(
                f'`--max-failures` must be a number, such as `10`, or a share, not {max_failures!r}.'
            ) from None
    return Guards(canary=canary, max_failures=failures, max_cost=most)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    units = {'s': 1, 'm': 60, 'h': 3600, 'd': 86400}
    try:
        seconds = float(text[:-1]) * units[text[-1]] if text[-1:] in units else float(text)
    except ValueError:
        seconds = -1
    if not seconds >= 0:
        raise _wrong(f'`--wait` must be a time, such as `30m` or `2h`, not {text!r}.')
    return seconds


def _prompt(prompt: str | None, file: Path | None) -> str | None:
    if file is None:
        return prompt
    if prompt is not None:
        raise _wrong('Give `--prompt` or `--prompt-file`, and not both.')
    try:
        return file.read_text('utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(f'The prompt {file} cannot be read: {error}.') from error


def _run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def _guarded(work: Any) -> int:
    """Do what a command is to do; what is wrong is said in a few words, and not by a traceback."""
    from pydantic_ai.exceptions import AgentRunError, UserError

    try:
        return int(work())
    except (UserError, AgentRunError) as error:
        typer.echo(f'Error: {error}', err=True)
        return 2
    except KeyboardInterrupt:
        return 130


def _wrong(message: str) -> Exception:
    from pydantic_ai.exceptions import UserError

    return UserError(message)
