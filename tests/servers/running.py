"""Starts a server as a process of its own, and stops it by its process ID."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Generator, Mapping
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
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            env={**inherited, 'HOME': str(home), **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            _await_health(process, health, output.fileno())
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_health(process: subprocess.Popen[bytes], health: str, output: int) -> None:
    deadline = monotonic() + _START_SECONDS
    with httpx2.Client(trust_env=False, timeout=5) as client:
        while monotonic() < deadline and process.poll() is None:
            try:
                if client.get(health).is_success:
                    return
            except httpx2.TransportError:
                pass
            sleep(0.1)
    what = f'does not answer at {health}' if process.poll() is None else f'ended with code {process.returncode}'
    written = os.pread(output, os.fstat(output).st_size, 0)[-_SHOWN:].decode('utf-8', 'replace')
    raise RuntimeError(f'The server {what}. It wrote:\n{written}')
