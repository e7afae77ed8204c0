"""Rows of text: a copy of the input that nobody else can change, and where each row begins in it."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from abc import abstractmethod
from typing import IO, Any, BinaryIO

from pydantic_ai.exceptions import UserError

from .stored_source import StoredSource, store, temporary_file

_CHUNK = 1 << 20
_BOM = b'\xef\xbb\xbf'
_MARKS = (
    (b'\xff\xfe\0\0', 'UTF-32'),
    (b'\0\0\xfe\xff', 'UTF-32'),
    (b'\xff\xfe', 'UTF-16'),
    (b'\xfe\xff', 'UTF-16'),
)


class TextSource(StoredSource):
    """Rows in a file of text, one after the other.

    The input is copied once, decompressed, into a temporary file without a name: a file that is changed while its
    batches run, which may take a day, does not give a row another content.
    """

    counts = 'line'

    def __init__(self, name: str, path: str | None, stream: BinaryIO, *, compressed: bool) -> None:
        copy, digest = _copied(name, stream, compressed=compressed)
        super().__init__(name, path, copy)
        self.digest = digest
        try:
            self._start = self._begin()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _parse(self, text: bytes) -> dict[str, Any]:
        """The values of the row that `text` begins with. Another that had a problem may follow it there."""

    def _fields(self, place: int) -> dict[str, Any]:
        return self._parse(self._stored(place))

    def _begin(self) -> int:
        """Where the text begins, after its byte order mark."""
        self._file.seek(0)
        head = self._file.read(4)
        if not head:
            raise UserError(f'{self.name} is empty.')
        if (encoding := _wide(head)) is not None:
            raise UserError(
                f'{self.name} is {encoding}, and must be UTF-8: save it as "CSV UTF-8", or convert it with '
                f'`iconv -f {encoding} -t UTF-8`.'
            )
        return len(_BOM) if head.startswith(_BOM) else 0


def decoded(text: bytes) -> str:
    """Text as it is in UTF-8.

    Raises:
        ValueError: It is not UTF-8, or has a NUL byte. The message says so in words that follow a line.
    """
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f'the byte 0x{text[error.start]:02x}, which is not UTF-8: convert the file, such as with '
            '`iconv -f WINDOWS-1252 -t UTF-8`'
        ) from None
    if '\0' in decoded:
        raise ValueError('a NUL byte, which text has not')
    return decoded


def _wide(head: bytes) -> str | None:
    """The encoding of a text of two or four bytes a character, as its first bytes show."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    zeros = tuple(byte == 0 for byte in head)
    if zeros in {(False, True, True, True), (True, True, True, False)}:
        return 'UTF-32'
    return 'UTF-16' if zeros in {(False, True, False, True), (True, False, True, False)} else None


def _copied(name: str, stream: BinaryIO, *, compressed: bool) -> tuple[IO[bytes], str]:
    """A temporary file with what a stream holds, and the digest of that."""
    digest = hashlib.sha256()
    copy = temporary_file()
    try:
        _copy(name, gzip.GzipFile(fileobj=stream, mode='rb') if compressed else stream, copy, digest)
    except BaseException:
        copy.close()
        raise
    return copy, digest.hexdigest()


def _copy(name: str, stream: BinaryIO | gzip.GzipFile, copy: IO[bytes], digest: Any) -> None:
    while True:
        try:
            chunk = stream.read(_CHUNK)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(f'{name} is no gzip file, or is damaged: {error}.') from error
        if not chunk:
            return
        digest.update(chunk)
        store(name, copy, chunk)
