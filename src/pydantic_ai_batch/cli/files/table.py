"""The columns of an output: those of the input, and beside them what came of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from pydantic_ai_batch.rows.base import RowSource
from pydantic_ai_batch.rows.records import RowResult

_ANSWER = 'answer'
_ABOUT = ('status', 'error', 'input_tokens', 'output_tokens', 'cost')


@dataclass(frozen=True)
class Columns:
    """The columns of an output."""

    own: tuple[str, ...]
    """Those of the input."""

    fields: tuple[str, ...]
    """Those of the answers: the fields of their schema, or the answer as a whole."""

    names: dict[str, str]
    """What each of the columns that are added is called."""

    @classmethod
    def of(cls, source: RowSource, output_type: Any) -> Columns:
        """The columns for an input, and for answers of a type."""
        fields = _fields_of(output_type)
        taken, names = set(source.columns), dict[str, str]()
        for name in (*fields, *_ABOUT):
            ours = name
            while ours in taken:
                # The input has one of that name, which is copied as it is.
                ours = f'batch_{ours}'
            taken.add(ours)
            names[name] = ours
        return cls(source.columns, fields, names)

    @property
    def all(self) -> tuple[str, ...]:
        """All of them, in their order."""
        return (*self.own, *self.names.values())

    def row(self, result: RowResult[Any]) -> dict[str, Any]:
        """A result as a row of the output."""
        usage = result.usage
        about: dict[str, Any] = {
            'status': result.status,
            'error': _named_error(result),
            'input_tokens': usage.input_tokens if usage is not None else None,
            'output_tokens': usage.output_tokens if usage is not None else None,
            'cost': float(result.cost) if result.cost is not None else None,
        }
        return {**result.row, **{self.names[name]: value for name, value in {**self._answer(result), **about}.items()}}

    def _answer(self, result: RowResult[Any]) -> dict[str, Any]:
        if self.fields == (_ANSWER,):
            # An answer that was cut off is there as far as it goes.
            return {_ANSWER: result.text if result.output is None else _plain(result.output)}
        output = _plain(result.output)
        said = cast('dict[str, Any]', output) if isinstance(output, dict) else {}
        return {name: said.get(name) for name in self.fields}


def _plain(output: Any) -> Any:
    return output if isinstance(output, str) or output is None else TypeAdapter(Any).dump_python(output, mode='json')


def _fields_of(output_type: Any) -> tuple[str, ...]:
    if output_type is str:
        return (_ANSWER,)
    schema = TypeAdapter(output_type).json_schema() if _is_typed(output_type) else {}
    properties: Any = schema.get('properties')
    return tuple(cast('dict[str, Any]', properties)) if isinstance(properties, dict) and properties else (_ANSWER,)


def _is_typed(output_type: Any) -> bool:
    return isinstance(output_type, type)


def _named_error(result: RowResult[Any]) -> str | None:
    if result.error is None:
        return None if result.status == 'ok' else result.status
    return f'{result.error_class}: {result.error}' if result.error_class else result.error
