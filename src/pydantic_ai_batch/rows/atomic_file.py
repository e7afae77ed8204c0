"""Files that appear under their name once they are whole, and streams that cannot do so."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import IO, BinaryIO, Protocol

from pydantic_ai.exceptions import UserError


class Output(Protocol):
    """Where the bytes of an output go."""

    @property
    def stream(self) -> IO[bytes]:
        """What is written to."""
        ...

    def commit(self) -> None:
        """End the output, which is whole."""
        ...

    def discard(self) -> None:
        """End the output, which is not whole."""
        ...


class AtomicFile:
    """A file under another name in the same folder, which takes the place of the one it is for when it is whole.

    Raises:
        UserError: No file can be made in the folder.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # A link stays one: the file that it leads to is replaced.
        self._target = os.path.realpath(path)
        folder, name = os.path.split(self._target)
        # A name of 255 bytes is the longest that most file systems have.
        self._temporary = os.path.join(folder, f'.{name[:40]}.{secrets.token_hex(8)}.tmp')
        try:
            # The permissions are those of any new file, which `tempfile` would not give it.
            descriptor = os.open(
                self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, 'O_BINARY', 0), 0o666
            )
        except OSError as error:
            raise UserError(f'The output {path} cannot be written: {error.strerror} in the folder {folder}.') from error
        self._stream = open(descriptor, 'wb', buffering=1 << 18)  # noqa: SIM115 - it stays open until the output ends

    @property
    def stream(self) -> IO[bytes]:
        """What is written to."""
        return self._stream

    def commit(self) -> None:
        """Put the file where it belongs, once the disk has all of it."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            os.replace(self._temporary, self._target)
        except BaseException as error:
            self.discard()
            error.add_note(f'{self._path} was not written: a file of that name is as it was before.')
            raise

    def discard(self) -> None:
        """Remove the file, and leave what is under its name as it is."""
        # Closing writes what is buffered, which fails once more on a disk that is full.
        with suppress(OSError):
            self._stream.close()
        with suppress(FileNotFoundError):
            os.remove(self._temporary)


class StreamOutput:
    """A stream whose bytes are gone as soon as they are written, such as standard output."""

    def __init__(self, stream: BinaryIO, *, owned: bool = False) -> None:
        self._stream = stream
        self._owned = owned

    @property
    def stream(self) -> IO[bytes]:
        """What is written to."""
        return self._stream

    def commit(self) -> None:
        """Let go of everything that is buffered."""
        self._stream.flush()
        if self._owned:
            self._stream.close()

    def discard(self) -> None:
        """End as it is: what was written cannot be taken back."""
        with suppress(OSError):
            self.commit()
