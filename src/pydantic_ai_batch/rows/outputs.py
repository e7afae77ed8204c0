"""Outputs of rows as JSON, in which they are kept, and as the type that was asked for again."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter
from pydantic_ai import NativeOutput, PromptedOutput, ToolOutput
from pydantic_core import to_jsonable_python


@dataclass
class Outputs:
    """The outputs of one type of output, as an agent takes it."""

    output_type: Any = str
    _adapter: TypeAdapter[Any] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if (plain := _plain(self.output_type)) is not None and plain is not str:
            try:
                self._adapter = TypeAdapter(plain)
            except (PydanticSchemaGenerationError, PydanticUserError):
                # A function, or a marker: what comes of it can only be kept as it is written.
                self._adapter = None

    @property
    def digest(self) -> str:
        """What tells one output type from another."""
        if self._adapter is None:
            return repr(self.output_type)
        return sha256(json.dumps(self._adapter.json_schema(), sort_keys=True).encode()).hexdigest()[:16]

    def dump(self, output: Any) -> Any:
        """An output as JSON has it."""
        if output is None or isinstance(output, str):
            return output
        return to_jsonable_python(output, fallback=str)

    def load(self, output: Any) -> Any:
        """An output that was kept, as its type where that can be made of JSON."""
        if output is None or self._adapter is None:
            return output
        return self._adapter.validate_python(output)


def _plain(output_type: Any) -> Any:
    """The type inside the framework's markers; `None` for what is no type, such as a function or several types."""
    if isinstance(output_type, ToolOutput):
        return _plain(output_type.output)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, NativeOutput | PromptedOutput):
        return _plain(output_type.outputs)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, list | tuple) or (callable(output_type) and not isinstance(output_type, type)):
        return None
    return output_type
