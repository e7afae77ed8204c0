"""`python -m pydantic_ai_batch.testing`: fake providers to try things against by hand."""

from __future__ import annotations

import json
import signal
import threading
from datetime import timedelta
from types import FrameType
from typing import Annotated, Any

import typer

from pydantic_ai_batch.testing import FakeProviders


def serve(
    port: Annotated[int, typer.Option(help='Port to listen on; 0 is a free one.')] = 0,
    processing: Annotated[float, typer.Option(help='Seconds that a batch takes.', min=0)] = 10,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="A fault as 'PROVIDER.OPERATION:FAULT,OPTION=VALUE,…', such as 'openai.lines:drop,rows=3' or "
            "'openai.status:http,status=404,times=2'. May be repeated. `FakeProviders.openai.inject` describes them."
        ),
    ] = None,
) -> None:
    """Serve fake providers on 127.0.0.1 until Ctrl-C."""
    fakes = FakeProviders(processing=timedelta(seconds=processing), port=port)
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
    with fakes:
        for name, provider in fakes.providers.items():
            typer.echo(f'{name}: {provider.base_url}')
            for variable, value in provider.environment.items():
                typer.echo(f'  export {variable}={value}')
        typer.echo('Ctrl-C ends it.')
        # On Windows a wait without an end cannot be interrupted.
        while not ended.wait(0.5):
            pass


def inject(fakes: FakeProviders, text: str) -> None:
    """Inject a fault that is written as `PROVIDER.OPERATION:FAULT,OPTION=VALUE,…`.

    Values are JSON, or a string where they are not.

    Raises:
        ValueError: It is not written like that, or there is no such provider, operation, fault or option.
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
        try:
            options[option.strip()] = json.loads(value)
        except ValueError:
            options[option.strip()] = value
    fakes.providers[provider].inject(operation, fault, **options)


if __name__ == '__main__':
    typer.run(serve)
