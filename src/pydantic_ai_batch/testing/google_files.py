"""The files of the fake Gemini API, and the uploads that make them."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import string
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai_batch.testing.google_json import Json, timestamp

INPUT_RETENTION = 48 * 3600.0
"""How long an uploaded file is kept, in seconds."""

OUTPUT_RETENTION = 42 * 24 * 3600.0
"""How long the results of a batch are kept, in seconds."""

LONGEST_ID = 40
"""Characters of the longest file id that the Files API takes. Those of result files are longer."""

_ID = re.compile(r'[a-z0-9]([a-z0-9-]*[a-z0-9])?')


@dataclass(frozen=True)
class FakeFile:
    """A file on the fake Gemini API."""

    id: str
    project: str
    """The project whose keys can see it."""
    display_name: str | None
    mime_type: str
    content: bytes
    created_at: float
    """In seconds since the epoch."""
    generated: bool
    """Whether it holds the results of a batch, and not what somebody uploaded."""

    @property
    def expires_at(self) -> float:
        """When it is gone, in seconds since the epoch."""
        return self.created_at + (OUTPUT_RETENTION if self.generated else INPUT_RETENTION)

    def to_json(self, base_url: str) -> Json:
        """The provider's File object."""
        uri = f'{base_url}/v1beta/files/{self.id}'
        shown: Json = {
            'name': f'files/{self.id}',
            'displayName': self.display_name,
            'mimeType': self.mime_type,
            'sizeBytes': str(len(self.content)),
            'createTime': timestamp(self.created_at),
            'updateTime': timestamp(self.created_at),
            'expirationTime': timestamp(self.expires_at),
            'sha256Hash': base64.b64encode(hashlib.sha256(self.content).hexdigest().encode()).decode(),
            'uri': uri,
            'downloadUri': f'{uri}:download?alt=media' if self.generated else None,
            'state': 'ACTIVE',
            'source': 'GENERATED' if self.generated else 'UPLOADED',
        }
        return {name: value for name, value in shown.items() if value is not None}


@dataclass
class Upload:
    """An upload that was begun: its URL is all that is needed to go on with it."""

    project: str
    file_id: str
    display_name: str | None
    mime_type: str
    announced: int | None
    """How many bytes there will be, if that was said."""
    received: bytearray = field(default_factory=bytearray)


class FileStore:
    """Files until they expire. A project sees its own alone."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], FakeFile] = {}

    def add(self, file: FakeFile) -> None:
        """Keep a file."""
        self._files[file.project, file.id] = file

    def of(self, project: str, now: float) -> list[FakeFile]:
        """The files that a project sees at `now`, oldest first."""
        files = [file for file in self._files.values() if file.project == project and now < file.expires_at]
        # Result files are made when somebody looks, which may be later than they say that they were.
        return sorted(files, key=lambda file: file.created_at)

    def get(self, id: str, project: str, now: float) -> FakeFile | None:
        """The file with that id, if the project sees it at `now`."""
        file = self._files.get((project, id))
        return file if file is not None and now < file.expires_at else None

    def delete(self, file: FakeFile) -> None:
        """Forget a file."""
        del self._files[file.project, file.id]


def new_id(length: int) -> str:
    """An id as Google draws them, of lowercase letters and digits."""
    return ''.join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length))


def id_problem(id: Any) -> str | None:
    """Why `id` is none that the Files API takes."""
    if not isinstance(id, str) or not _ID.fullmatch(id):
        return f'{id!r} is no file id: it has lowercase letters, digits and dashes, and no dash at an end.'
    if len(id) > LONGEST_ID:
        return f'A file id has at most {LONGEST_ID} characters, and {id!r} has {len(id)}.'
    return None
