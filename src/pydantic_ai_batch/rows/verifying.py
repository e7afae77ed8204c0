"""Proves on a sample that answers come back to their own rows: a token goes out with a prompt, and has to come back.

A model may forget to write it, which proves nothing either way. An answer with the token of another row is one that was
given to the wrong row, whoever mixed them up.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256

from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse, TextPart

from pydantic_ai_batch.exceptions import RowMismatch

from .base import RowSource
from .identity import id_of

_TOKEN = re.compile(r'\s*\[\[(row-[0-9a-f]{12})\]\]')


@dataclass
class Verification:
    """A sample of rows, and the token of each."""

    tokens: dict[int, str]
    """The tokens by the places of their rows."""

    proven: int = field(default=0, init=False)
    """How many rows came back with their own token."""

    silent: int = field(default=0, init=False)
    """How many came back without any."""

    @classmethod
    def of(cls, source: RowSource, id_column: str | None, count: int) -> Verification:
        """A sample that is spread over an input that was read.

        The same rows have the same tokens, so that a run that is started again makes the same requests.

        Args:
            source: The input.
            id_column: The column of the IDs.
            count: How many rows it has; all, where there are not so many.
        """
        rows = len(source)
        tokens: dict[int, str] = {}
        for place in {number * rows // count for number in range(min(count, rows))}:
            # What is wrong with an ID is told elsewhere.
            with suppress(UserError):
                name = f'{source.digest} {id_of(source[place], id_column)}'
                tokens[place] = f'row-{sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]}'
        return cls(tokens)

    def asking(self, place: int, prompt: str) -> str:
        """The prompt of a row, which asks for its token too if it is in the sample."""
        if (token := self.tokens.get(place)) is None:
            return prompt
        return f'{prompt}\n\nEnd your answer with a line of its own that says [[{token}]] and nothing else.'

    def read(self, place: int, row_id: str, response: ModelResponse) -> ModelResponse:
        """The answer to a row, without its token.

        Raises:
            RowMismatch: It has the token of another row.
        """
        own = self.tokens.get(place)
        text = response.text or ''
        found = set(_TOKEN.findall(text)) if '[[row-' in text else set[str]()
        others = found & (set(self.tokens.values()) - {own})
        if others or (own is not None and found and own not in found):
            raise RowMismatch(
                response.model_name or '',
                f'The answer to row {row_id!r} has the token of another row: it was given to the wrong one, and so may '
                'others have been.',
            )
        if own is None:
            return response
        if not found:
            self.silent += 1
            return response
        self.proven += 1
        parts = [
            replace(part, content=_TOKEN.sub('', part.content)) if isinstance(part, TextPart) else part
            for part in response.parts
        ]
        return replace(response, parts=parts)
