"""Who works on a journal now: one session for each process, alive as long as it holds the lock on its own file.

The kernel frees the lock when the process ends, however it ends, so that whoever comes next need not wait to take over
what it left. Only for a process on another host, whose locks may not be seen here, is there a lease that it renews.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic_ai_batch.exceptions import JournalError

LEASE_SECONDS = 30.0
"""How often a session renews its lease. One on another host that has not for twice as long counts as ended."""

HOST = platform.node() or 'localhost'


class SessionLock:
    """The lock that a session holds on a file of its own beside the journal."""

    def __init__(self, journal: Path) -> None:
        self.token = secrets.token_hex(8)
        self._path = _lock_path(journal, self.token)
        self._file: IO[bytes] | None = _open_private(self._path)
        if not _lock(self._file):  # pragma: no cover - the name was made up just now
            raise OSError(f'{self._path} is locked by another process')

    def release(self) -> None:
        """Free the lock and remove its file."""
        if self._file is not None:
            with suppress(OSError):
                self._path.unlink()
            self.forget()

    def forget(self) -> None:
        """Close the file without removing it, as a fork of the process that holds the lock does."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class RunLock:
    """The lock of the one process that works on the run of a journal: a second one would send all of it once more."""

    def __init__(self, journal: Path) -> None:
        """Take it.

        Raises:
            JournalError: A process has it, or its file cannot be written.
        """
        self._path = _lock_path(journal.expanduser().resolve(), 'run')
        while True:
            try:
                file = _open_private(self._path)
            except OSError as error:
                raise JournalError(f'{self._path} cannot be written: {error.strerror}.') from error
            if not _lock(file):
                with file:
                    owner = _written_in(file)
                raise JournalError(
                    f'The run of {journal} is being worked on{owner}: nothing was sent, as it would be paid for twice. '
                    'Wait until that is done, or look at it with `status`.'
                )
            # Whoever had it may have removed the file between the two steps.
            with suppress(FileNotFoundError):
                if os.fstat(file.fileno()).st_ino == self._path.stat().st_ino:
                    break
            file.close()
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        self._file = file

    def release(self) -> None:
        """Free it, and remove its file."""
        with suppress(OSError):
            self._path.unlink()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _written_in(file: IO[bytes]) -> str:
    """The process that a lock's file names, in words."""
    with suppress(OSError):
        if (pid := file.read().decode('ascii', 'replace')).isdecimal():
            return f' by process {pid}' if int(pid) != os.getpid() else ' by this process'
    return ' by another process'


def is_locked(journal: Path, token: str) -> bool:
    """Whether a process on this machine holds the lock of a session. What an ended one left of it is removed."""
    path = _lock_path(journal, token)
    try:
        file = path.open('r+b')
    except FileNotFoundError:
        return False
    with file:
        if not _lock(file):
            return True
        with suppress(OSError):
            path.unlink()
        return False


def _lock_path(journal: Path, token: str) -> Path:
    return journal.with_name(f'{journal.name}.{token}.lock')


def _open_private(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, 'O_CLOEXEC', 0), 0o600), 'r+b')


if sys.platform == 'win32':  # pragma: no cover - the tests run elsewhere
    import msvcrt

    def _lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
