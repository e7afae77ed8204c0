"""Starts a server as a process of its own, and stops it by its process ID."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import httpx2

_START_SECONDS = 100
_STOP_SECONDS = 10
_SHOWN = 5_000


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


@contextmanager
def running(command: list[str], home: Path, health: str, environment: Mapping[str, str] = {}) -> Generator[int]:
    """Run a server until the block ends, from when it answers at `health`; yields its process ID.

    Its environment is the path, a folder of its own as its home, and what is given: no keys, and no proxy settings.

    Raises:
        RuntimeError: It does not answer in time, or ends; with what it wrote.
    """
    inherited = {name: os.environ[name] for name in ('PATH', 'LANG', 'TMPDIR') if name in os.environ}
    with (
        httpx2.Client(trust_env=False, timeout=5) as client,
        _started(command, home, {**inherited, **environment}, lambda: _answers(client, health), health) as process,
    ):
        yield process


@contextmanager
def listening(command: list[str], home: Path, port: int) -> Generator[int]:
    """The same for a server that does not speak HTTP: from when something listens on its port.

    Raises:
        RuntimeError: Nothing does in time, or it ends; with what it wrote.
    """
    inherited = {name: os.environ[name] for name in ('PATH', 'LANG', 'TMPDIR') if name in os.environ}
    with _started(command, home, inherited, lambda: _listens(port), f'port {port}') as process:
        yield process


@contextmanager
def _started(
    command: list[str], home: Path, environment: Mapping[str, str], is_up: Callable[[], bool], where: str
) -> Generator[int]:
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            env={'HOME': str(home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _await(process, is_up, where, output.fileno())
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(client: httpx2.Client, health: str) -> bool:
    try:
        return client.get(health).is_success
    except httpx2.TransportError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(('127.0.0.1', port)) == 0


def _await(process: subprocess.Popen[bytes], is_up: Callable[[], bool], where: str, output: int) -> None:
    deadline = monotonic() + _START_SECONDS
    while monotonic() < deadline and process.poll() is None:
        if is_up():
            return
        sleep(0.1)
    what = f'does not answer at {where}' if process.poll() is None else f'ended with code {process.returncode}'
    written = os.pread(output, os.fstat(output).st_size, 0)[-_SHOWN:].decode('utf-8', 'replace')
    raise RuntimeError(f'The server {what}. It wrote:\n{written}')
