"""A PostgreSQL server of the tests' own: on a free port of loopback, with its data in a temporary folder."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from .running import free_port

_STOP_SECONDS = 20


def reason() -> str | None:
    """Why there can be none on this machine; `None` if there can."""
    if _folder() is None:
        return 'PostgreSQL is not on this machine'
    if os.geteuid() == 0 and (shutil.which('runuser') is None or not _has_user()):
        return 'PostgreSQL refuses to be run by root, and this machine has no user `postgres` for it'
    return None


@contextmanager
def postgres() -> Generator[str]:
    """Run a server until the block ends; yields the address that databases are below."""
    folder = _folder()
    assert folder is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix='postgres-', ignore_cleanup_errors=True) as name:
        data = Path(name, 'data')
        as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(name, 'postgres')
            as_user = ['runuser', '-u', 'postgres', '--']
        _run([*as_user, str(folder / 'initdb'), '-D', str(data), '-A', 'trust', '-U', 'postgres', '--no-sync'], name)
        options = f'-p {port} -k {name} -c listen_addresses=127.0.0.1 -c fsync=off'
        control = [str(folder / 'pg_ctl'), '-D', str(data), '-w', '-l', f'{name}/log', '-o', options, 'start']
        _run([*as_user, *control], name)
        process = int((data / 'postmaster.pid').read_text().split('\n', 1)[0])
        try:
            yield f'postgresql://postgres@127.0.0.1:{port}'
        finally:
            # At once, also if a program is still connected to it.
            os.kill(process, signal.SIGINT)
            deadline = monotonic() + _STOP_SECONDS
            while (data / 'postmaster.pid').exists() and monotonic() < deadline:
                sleep(0.05)


def _folder() -> Path | None:
    """Where its programs are: on the path, or where Debian keeps them."""
    if (found := shutil.which('initdb')) is not None:
        return Path(found).resolve().parent
    return next((path.parent for path in sorted(Path('/usr/lib/postgresql').glob('*/bin/initdb'))), None)


def _has_user() -> bool:
    try:
        pwd.getpwnam('postgres')
    except KeyError:
        return False
    return True


def _run(command: list[str], folder: str) -> None:
    # Its server goes on, and would hold a pipe open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False)
        output.seek(0)
        assert done.returncode == 0, output.read().decode('utf-8', 'replace')
