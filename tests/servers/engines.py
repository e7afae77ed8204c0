"""Starts programs of durable engines, reads what they print, and kills them."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any

from pydantic_ai_batch.testing import FakeProviders

PROGRAMS = Path(__file__).parent / 'programs'
_SECONDS = 90


class Program:
    """A program that runs."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes]) -> None:
        self.process = process
        self._errors = errors

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(_SECONDS)
            raise AssertionError(f'It ended with {self.process.returncode}, and wrote:\n{self.errors}')
        return line.strip()

    def json(self) -> Any:
        """The next line that is JSON."""
        while True:
            line = self.line()
            if line[:1] in ('[', '{') or line.isdigit():
                return json.loads(line)

    def tell(self) -> None:
        """Tell it to go on."""
        assert self.process.stdin is not None
        self.process.stdin.write('\n')
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it with no time for anything."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Wait until it has ended by itself, and stopped what it started."""
        self.process.wait(_SECONDS)

    @property
    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode('utf-8', 'replace')[-5_000:]


@contextmanager
def program(
    python: Path, name: str, *arguments: object, fake: FakeProviders, home: Path, **settings: str
) -> Generator[Program]:
    """Run a program until the block ends."""
    inherited = {name: os.environ[name] for name in ('LANG', 'TMPDIR') if name in os.environ}
    environment = {
        **inherited,
        'PATH': f'{python.parent}:{os.environ["PATH"]}',
        'HOME': str(home),
        'PREFECT_HOME': str(home / 'prefect'),
        'PREFECT_SERVER_ANALYTICS_ENABLED': 'false',
        'PREFECT_LOGGING_LEVEL': 'CRITICAL',
        'DO_NOT_TRACK': '1',
        'PYTHONUNBUFFERED': '1',
        **fake.openai.environment,
        **settings,
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(python), str(PROGRAMS / name), *map(str, arguments)],
            cwd=home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            yield Program(process, errors)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something holds that other processes bring about."""
    deadline = monotonic() + _SECONDS
    while not holds():
        assert monotonic() < deadline, f'{what} did not come about'
        sleep(0.02)


def answers(count: int) -> list[str]:
    """What so many runs are answered."""
    return [f'answer to prompt {number}' for number in range(count)]
