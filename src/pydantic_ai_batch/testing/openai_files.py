"""The files of the fake OpenAI."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

PURPOSES = frozenset({'assistants', 'batch', 'evals', 'fine-tune', 'user_data', 'vision'})
"""What an upload may be for."""

RETENTION = 30 * 24 * 3600.0
"""How long batch files are kept unless the caller says otherwise, in seconds."""


@dataclass(frozen=True)
class FakeFile:
    """A file on the fake OpenAI."""

    id: str
    project: str
    """The project whose keys can see it."""
    purpose: str
    filename: str
    content: bytes
    created_at: float
    """In seconds since the epoch."""
    lifetime: float | None
    """How long it is kept, in seconds; `None` is until it is deleted."""

    @property
    def expires_at(self) -> float | None:
        """When it is gone, in seconds since the epoch."""
        return None if self.lifetime is None else self.created_at + self.lifetime

    def visible(self, project: str, now: float) -> bool:
        """Whether a project sees it at `now`."""
        return self.project == project and (self.expires_at is None or now < self.expires_at)

    def to_json(self) -> dict[str, Any]:
        """The provider's File object."""
        return {
            'object': 'file',
            'id': self.id,
            'purpose': self.purpose,
            'filename': self.filename,
            'bytes': len(self.content),
            'created_at': int(self.created_at),
            'expires_at': None if self.expires_at is None else int(self.expires_at),
            'status': 'processed',
            'status_details': None,
        }


class FileStore:
    """Files until they expire. A project sees its own alone."""

    def __init__(self) -> None:
        self._files: dict[str, FakeFile] = {}

    def add(
        self, project: str, *, purpose: str, filename: str, content: bytes, created_at: float, lifetime: float | None
    ) -> FakeFile:
        """Keep a file."""
        id = f'file-{uuid.uuid4().hex[:22]}'
        self._files[id] = file = FakeFile(id, project, purpose, filename, content, created_at, lifetime)
        return file

    def of(self, project: str, now: float) -> list[FakeFile]:
        """The files that a project sees at `now`, oldest first."""
        return [file for file in self._files.values() if file.visible(project, now)]

    def get(self, id: Any, project: str, now: float) -> FakeFile | None:
        """The file with that id, if the project sees it at `now`."""
        file = self._files.get(id) if isinstance(id, str) else None
        return file if file is not None and file.visible(project, now) else None

    def delete(self, file: FakeFile) -> None:
        """Forget a file."""
        del self._files[file.id]
