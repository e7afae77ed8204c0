"""Outputs of rows as JSON, in which they are kept, and as the type that was asked for again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from inspect import isfunction, ismethod
from typing import Any, Union, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_ai import NativeOutput, PromptedOutput, TextOutput, ToolOutput
from pydantic_core import to_jsonable_python

from pydantic_ai_batch.codec import compact_json


@dataclass
class Outputs:
    """The outputs of one type of output, as an agent takes it."""

    output_type: Any = str
    adapter: TypeAdapter[Any] | None = field(default=None, init=False)
    """What makes the type of JSON, where that can be done."""

    def __post_init__(self) -> None:
        if (plain := _plain(self.output_type)) is not None and plain is not str:
            try:
                self.adapter = TypeAdapter(plain)
            except (PydanticSchemaGenerationError, PydanticUserError):
                # A function, or a marker: what comes of it can only be kept as it is written.
                self.adapter = None

    @property
    def digest(self) -> str:
        """What tells one output type from another, in every process."""
        return _digest(self.output_type, self.adapter)

    def dump(self, output: Any) -> Any:
        """An output as JSON has it; where it has none, as it is written in Python."""
        if output is None or type(output) is str:
            return output
        try:
            if self.adapter is not None:
                return self.adapter.dump_python(output, mode='json', by_alias=False, round_trip=True, warnings=False)
            return to_jsonable_python(output, fallback=repr, by_alias=False)
        except (ValueError, TypeError):
            return repr(output)

    def load(self, output: Any) -> Any:
        """An output that was kept, as its type where that can be made of JSON."""
        if self.adapter is None:
            return output
        try:
            # As JSON, of which strict types take what their own kind is written as.
            return self.adapter.validate_json(compact_json(output), by_name=True, by_alias=False)
        except ValidationError:
            return output

    def is_lossy(self, output: Any, dumped: Any) -> bool:
        """Whether an output would come back as something else than it is."""
        if output is None or type(output) is str:
            return False
        loaded = self.load(dumped)
        return type(loaded) is not type(output) or loaded != output


def _plain(output_type: Any) -> Any:
    """The type inside the framework's markers; `None` for what is no type, such as a function."""
    if isinstance(output_type, ToolOutput):
        return _plain(output_type.output)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, NativeOutput | PromptedOutput):
        return _plain(output_type.outputs)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, list | tuple):
        types = [_plain(one) for one in cast('Sequence[Any]', output_type)]
        return None if not types or None in types else Union[tuple(types)]  # noqa: UP007 - as many as there are
    if isfunction(output_type) or ismethod(output_type) or isinstance(output_type, TextOutput):
        return None
    return output_type


def _digest(output_type: Any, adapter: TypeAdapter[Any] | None) -> str:
    if adapter is not None:
        return sha256(json.dumps(adapter.json_schema(), sort_keys=True).encode()).hexdigest()[:16]
    if isinstance(output_type, list | tuple):
        return ', '.join(_digest(one, Outputs(one).adapter) for one in cast('Sequence[Any]', output_type))
    if isinstance(output_type, ToolOutput):
        return _digest(output_type.output, None)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, NativeOutput | PromptedOutput):
        return _digest(output_type.outputs, None)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(output_type, TextOutput):
        return _digest(output_type.output_function, None)  # pyright: ignore[reportUnknownMemberType]
    # Without the address, which is another one in every process.
    return (
        f'{getattr(output_type, "__module__", "")}.{getattr(output_type, "__qualname__", type(output_type).__name__)}'
    )
