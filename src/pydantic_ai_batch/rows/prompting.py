"""What a row asks: its prompt, from a template or a column, as messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError
from pydantic_ai import ModelMessagesTypeAdapter
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    UserPromptPart,
)

from .base import InputRow
from .template import Template

DEFAULT_INPUT_COLUMN = 'input'

Message = tuple[str, str]
"""The role and the text of a message in a row."""


@dataclass(frozen=True)
class Prompting:
    """How a row becomes the messages of its request."""

    template: Template | None = None
    """What the prompt is made with; `None` takes it from a column."""

    input_column: str = DEFAULT_INPUT_COLUMN
    """The column of the prompt, or of a list of messages, without a template."""

    instructions: str | None = None
    """The instructions of every row."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that prompts are made of."""
        return (self.input_column,) if self.template is None else self.template.names

    def check(self, name: str, columns: Collection[str]) -> None:
        """Refuse columns that the input does not have.

        Args:
            name: The name of the input.
            columns: Those that it has.

        Raises:
            UserError: A column is not there. The message lists those that are.
        """
        if self.template is not None:
            self.template.check(columns)
        elif self.input_column not in columns:
            listing = ', '.join(f'`{column}`' for column in columns) or 'none'
            raise UserError(
                f'{name} has no column `{self.input_column}` to take the prompts from. Its columns are {listing}: name '
                'the one that has the prompts (`input_column`, `--input-column`), or make the prompts of them with a '
                'template, as `Summarise: {{ text }}` (`prompt`, `--prompt`).'
            )

    def messages(self, row: InputRow) -> list[ModelMessage]:
        """The messages of a row.

        Raises:
            UserError: It has none, in words that follow the line of a row.
        """
        value: Any = self.prompt(row)
        if isinstance(value, str):
            return self.asking(value)
        messages = _messages(value)
        last = messages[-1]
        if not isinstance(last, ModelRequest):
            raise UserError(f'the last message in `{self.input_column}` is an answer, so that nothing is asked')
        if self.instructions is not None:
            last.instructions = self.instructions
        return messages

    def asking(self, prompt: str) -> list[ModelMessage]:
        """The messages of a prompt."""
        return [ModelRequest(parts=[UserPromptPart(content=prompt)], instructions=self.instructions)]

    def prompt(self, row: InputRow) -> str | list[Any]:
        """The prompt of a row, or its list of messages.

        Raises:
            UserError: It has none, in words that follow the line of a row.
        """
        if self.template is not None:
            text = self.template.render(row.fields)
            if not text.strip():
                raise UserError('the prompt that the template makes of it is blank')
            return text
        value = row.fields.get(self.input_column)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list) and value:
            return cast('list[Any]', value)
        if value is None or value in ('', []) or isinstance(value, str):
            raise UserError(f'the prompt in `{self.input_column}` is blank')
        raise UserError(f'the prompt in `{self.input_column}` is neither text nor a list of messages')


def _messages(items: list[Any]) -> list[ModelMessage]:
    """The messages of a list in a row: of roles and contents, or of the framework's own."""
    if all(isinstance(item, dict) and 'kind' in item for item in items):
        try:
            return ModelMessagesTypeAdapter.validate_python(items)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise UserError(
                f'the messages cannot be read: {".".join(map(str, first["loc"]))}: {first["msg"]}'
            ) from None
    messages: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for role, content in map(_said, items):
        if role == 'assistant':
            if parts:
                messages.append(ModelRequest(parts=parts))
                parts = []
            messages.append(ModelResponse(parts=[TextPart(content=content)]))
        else:
            parts.append(UserPromptPart(content=content) if role == 'user' else SystemPromptPart(content=content))
    if parts:
        messages.append(ModelRequest(parts=parts))
    return messages


def _said(item: Any) -> Message:
    if isinstance(item, Mapping):
        message = cast('Mapping[str, Any]', item)
        role, content = message.get('role'), message.get('content')
        if role in ('system', 'developer', 'user', 'assistant') and isinstance(content, str) and content:
            return str(role), content
    raise UserError(
        'a message is none: it needs a `role` (`system`, `user` or `assistant`) and a `content` that is text, or be '
        'one of the framework as its `ModelMessagesTypeAdapter` writes them'
    )
