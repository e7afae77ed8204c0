"""What a command asks of a run, as the command line has it and as the journal keeps it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic_ai import StructuredDict
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.rows.formats import Format
from pydantic_ai_batch.rows.job import RowJob
from pydantic_ai_batch.rows.json_schema import JsonSchema
from pydantic_ai_batch.settings import BatchSettings

_SUFFIXES = ('.gz', '.csv', '.tsv', '.jsonl', '.ndjson', '.parquet')


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Everything that decides what a run sends, what stops it, and where its answers go."""

    rows: str
    """The input: a path, or `-`."""

    model: str | None = None
    prompt: str | None = None
    input_column: str | None = None
    id_column: str | None = None
    instructions: str | None = None
    schema: str | None = None
    """The path of a JSON schema."""

    output_type: str | None = None
    """A type, as `module:Type`."""

    temperature: float | None = None
    max_tokens: int | None = None
    settings: str | None = None
    """Other settings of the model, as a JSON object."""

    format: Format | None = None
    output_format: Format | None = None
    delimiter: str | None = None
    output: str | None = None
    """Where the answers go: a path, or `-`."""

    max_requests: int | None = None
    max_bytes: int | None = None
    max_resubmissions: int = 2
    window: float | None = None
    """Hours that the provider has for a batch."""

    verify: int | None = None
    """How many rows have a token in their prompt that has to come back."""

    canary: int | None = None
    max_failures: str | None = None
    max_cost: str | None = None
    """These three are the guards, which hold again when the journal alone goes on with the run."""

    poll: float = 30.0
    """Seconds after which a batch is first looked at."""

    @property
    def to(self) -> str:
        """Where the answers go."""
        if self.output is not None:
            return self.output
        if self.rows == '-':
            return '-'
        stem, suffix = split_suffix(self.rows)
        return f'{stem}.answers{suffix}'

    @property
    def journal(self) -> Path | None:
        """The journal beside the output; `None` if that is standard output."""
        return Path(f'{self.to}.journal') if self.to != '-' else None

    @property
    def batches(self) -> BatchSettings:
        """The limits of its batches."""
        poll = timedelta(seconds=self.poll)
        return BatchSettings(
            max_requests=self.max_requests,
            max_bytes=self.max_bytes,
            max_resubmissions=self.max_resubmissions,
            window=None if self.window is None else timedelta(hours=self.window),
            poll_interval=poll,
            max_poll_interval=max(poll, timedelta(minutes=10)) if self.poll >= 1 else poll,
        )

    def job(self) -> RowJob:
        """What is done with every row.

        Raises:
            UserError: Something of it cannot be read.
        """
        if self.schema is not None and self.output_type is not None:
            raise UserError('Give `--schema` or `--output-type`, and not both.')
        return RowJob(
            model=self.model,
            prompt=self.prompt,
            instructions=self.instructions,
            output_type=self._type(),
            schema=None if self.schema is None else JsonSchema(self.schema, _schema(self.schema)),
            id_column=self.id_column,
            input_column=self.input_column,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            model_settings=cast('Any', _object(self.settings)),
            verify=self.verify,
        )

    def _type(self) -> Any:
        if self.schema is not None:
            return StructuredDict(_schema(self.schema))
        return _named_type(self.output_type) if self.output_type is not None else str

    def kept(self) -> dict[str, Any]:
        """The options as a journal keeps them."""
        paths = {name: getattr(self, name) for name in ('rows', 'schema')} | {'output': self.to}
        # Whoever goes on with it may be in another folder.
        found = {name: os.path.abspath(path) for name, path in paths.items() if path not in (None, '-')}
        return {**asdict(self), 'output': self.to, **found}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> RunOptions:
        """Options that a journal has kept."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in kept.items() if name in known})


def split_suffix(path: str) -> tuple[str, str]:
    """A path without the suffixes of its format, and those."""
    suffix = ''
    while (ending := Path(path).suffix).lower() in _SUFFIXES and ending:
        suffix, path = ending + suffix, path[: -len(ending)]
    return path, suffix


def _object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise UserError(f'`--settings` is no JSON: {error}.') from error
    if not isinstance(found, dict):
        raise UserError('`--settings` must be a JSON object, such as `{"top_p": 0.9}`.')
    return cast('dict[str, Any]', found)


def _schema(path: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f'The schema {path} cannot be read: {error.strerror}.') from error
    except ValueError as error:
        raise UserError(f'The schema {path} is no JSON: {error}.') from error
    if not isinstance(found, dict) or cast('dict[str, Any]', found).get('type') != 'object':
        raise UserError(f'The schema {path} must be that of an object, with `"type": "object"`.')
    return cast('dict[str, Any]', found)


def _named_type(name: str) -> Any:
    module, colon, attribute = name.partition(':')
    if not colon or not module or not attribute:
        raise UserError(f'`--output-type` is a type as `module:Type`, and not {name!r}.')
    if (here := str(Path.cwd())) not in sys.path:
        # As `python -m` does, for a module beside the file of rows.
        sys.path.insert(0, here)
    try:
        found: Any = import_module(module)
        for part in attribute.split('.'):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(f'`--output-type {name}` cannot be found: {error}.') from error
    return found
