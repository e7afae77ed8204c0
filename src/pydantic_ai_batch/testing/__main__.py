"""`python -m pydantic_ai_batch.testing`: fake providers to try things against by hand."""

from __future__ import annotations

import errno
import json
import signal
import threading
from contextlib import ExitStack
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any

import typer

from pydantic_ai_batch.testing import FakeProviders
from pydantic_ai_batch.testing.faults import TEXTS


def serve(
    providers: Annotated[
        list[str] | None, typer.Argument(help='The providers whose addresses are shown; all, if none are named.')
    ] = None,
    port: Annotated[int, typer.Option(help='Port to listen on; 0 is a free one.')] = 0,
    processing: Annotated[float, typer.Option(help='Seconds that a batch takes.', min=0)] = 10,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="A fault as 'PROVIDER.OPERATION:FAULT,OPTION=VALUE,…', such as 'openai.lines:drop,rows=3' or "
            "'openai.status:http,status=404,times=2'. May be repeated. `FakeProviders.openai.inject` describes them; "
            'rows are a number here.'
        ),
    ] = None,
) -> None:
    """Serve fake providers on 127.0.0.1 until Ctrl-C."""
    fakes = FakeProviders(processing=timedelta(seconds=processing), port=port)
    if unknown := [name for name in providers or () if name not in fakes.providers]:
        known = ', '.join(fakes.providers)
        raise typer.BadParameter(f'There is no fake {unknown[0]!r}. There are {known}.', param_hint='PROVIDERS')
    for text in fault or ():
        try:
            inject(fakes, text)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint='--fault') from error
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    with ExitStack() as stack:
        try:
            stack.enter_context(fakes)
        except (OSError, OverflowError) as error:
            typer.echo(f'Error: {_why_not(port, error)}', err=True)
            raise typer.Exit(2) from error
        for name, provider in fakes.providers.items():
            if providers and name not in providers:
                continue
            typer.echo(f'{name}: {provider.base_url}')
            for variable, value in provider.environment.items():
                typer.echo(f'  export {variable}={value}')
        typer.echo('Ctrl-C ends it.')
        # On Windows a wait without an end cannot be interrupted.
        while not ended.wait(0.5):
            pass


def inject(fakes: FakeProviders, text: str) -> None:
    """Inject a fault that is written as `PROVIDER.OPERATION:FAULT,OPTION=VALUE,…`.

    Values are JSON, or a string where they are not, or where the option takes text.

    Raises:
        ValueError: It is not written like that, or there is no such provider, operation, fault or option, or the
                option takes no such value.
    """
    target, _, rest = text.partition(':')
    provider, _, operation = target.partition('.')
    fault, *pairs = rest.split(',')
    if provider not in fakes.providers or not operation or not fault:
        known = ', '.join(fakes.providers)
        raise ValueError(f'{text!r} is not PROVIDER.OPERATION:FAULT,OPTION=VALUE,… with a PROVIDER of: {known}.')
    options: dict[str, Any] = {}
    for pair in pairs:
        option, equals, value = pair.partition('=')
        if not equals:
            raise ValueError(f'{pair!r} is not OPTION=VALUE.')
        options[option.strip()] = _read(option.strip(), value)
    fakes.providers[provider].inject(operation, fault, **options)


def _read(option: str, value: str) -> Any:
    try:
        read = json.loads(value)
    except ValueError:
        return value
    # A code such as 429 is text all the same.
    return value if option in TEXTS and not (read is None or isinstance(read, str)) else read


def _why_not(port: int, error: OSError | OverflowError) -> str:
    """Why nothing can listen on a port, and what to do about it."""
    if isinstance(error, OverflowError):
        return f'there is no port {port}: pass a `--port` from 1 to 65535, or leave it out for a free one.'
    reason = 'is taken' if error.errno == errno.EADDRINUSE else f'cannot be had ({error.strerror})'
    return f'port {port} {reason}: pass another `--port`, or leave it out for a free one.'


if __name__ == '__main__':
    typer.run(serve)
