"""Checks answers against a JSON schema, which the framework hands to the model and does not hold it to."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
from pydantic_ai import ModelRetry
from pydantic_ai.exceptions import UserError

_SHOWN = 5
"""How many faults of an answer a model is told at once."""


class JsonSchema:
    """A schema that answers are held to."""

    def __init__(self, name: str, schema: dict[str, Any]) -> None:
        """Make the schema ready.

        Args:
            name: What it is called in messages, such as its file.
            schema: The schema. What it refers to must be in it: nothing is fetched.

        Raises:
            UserError: It is no schema. The message says where it is wrong.
        """
        try:
            jsonschema_rs.meta.validate(schema)
            self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
        except ValueError as error:
            where = ''.join(f'[{step!r}]' for step in getattr(error, 'instance_path', ()))
            reason = str(getattr(error, 'message', error)).split('\n', 1)[0]
            raise UserError(
                f'The schema {name} is none{f", at {where}" if where else ""}: {reason}. Nothing was sent.'
            ) from error

    def check(self, output: Any) -> Any:
        """An output that the schema allows.

        Raises:
            ModelRetry: It does not allow it. The model is told why, and asked again.
        """
        faults = [_told(error) for error in self._validator.iter_errors(output)]
        if faults:
            more = f'; and {len(faults) - _SHOWN} more' if len(faults) > _SHOWN else ''
            raise ModelRetry(f'The answer is not as the schema has it: {"; ".join(faults[:_SHOWN])}{more}.')
        return output


def _told(error: jsonschema_rs.ValidationError) -> str:
    path = '.'.join(str(step) for step in error.instance_path)
    return f'{path}: {error.message}' if path else error.message


def _refuse(address: str) -> Any:
    raise ValueError(f'{address} is elsewhere, and nothing is fetched')
