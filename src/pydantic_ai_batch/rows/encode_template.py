"""Requests that differ in their prompt alone, encoded once: the prompt of each row is put in where it stands.

Encoding takes a model a good third of a millisecond, and more where it is done by capture and replay. What is around
the prompt is the same for all rows with the same settings, which is found out by encoding several prompts that are
hard to write, and looked at again now and then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import BatchRequest, EncodedBatchRequest

from pydantic_ai_batch.chunks import is_plain, prepared
from pydantic_ai_batch.codec import compact_json
from pydantic_ai_batch.lanes.base import Lane

_log = logging.getLogger('pydantic_ai_batch')

_HARD = ('', ' "quoted" \\ / <b>&amp;</b> \n\r\t\x7f\u2028\x85 é ß 漢字 😀 ', "  {braces} 'and' `more` ")
"""What is in the prompts that a template is made with, besides what tells them apart."""

_LOOKED_AT = 1_000
"""After how many requests that were made with a template one is encoded by the model, to compare them."""


def _ascii(text: str) -> str:
    return json.dumps(text)


_WRITERS: tuple[Callable[[str], str], ...] = (compact_json, _ascii)
"""The ways that models write a text into a body."""


@dataclass
class EncodeTemplate:
    """A request around its prompt."""

    group: str
    before: str
    after: str
    write: Callable[[str], str]
    made: int = 0
    """How many requests were made with it."""

    def body(self, prompt: str) -> str:
        """The body of a request with a prompt."""
        return f'{self.before}{self.write(prompt)}{self.after}'


class EncodeTemplates:
    """The templates of one input, by lane and by what rows have in common."""

    def __init__(self) -> None:
        self._templates: dict[tuple[int, str], EncodeTemplate | None] = {}

    async def encode(
        self, lane: Lane, common: str, prompt: str, request: Callable[[str], BatchRequest]
    ) -> EncodedBatchRequest:
        """The request with a prompt as the lane sends it.

        Args:
            lane: The lane.
            common: What tells requests apart besides their prompt, such as their settings.
            prompt: The prompt.
            request: Makes the request of a prompt.

        Raises:
            UserError: It cannot be sent.
        """
        key = id(lane), common
        if key not in self._templates:
            self._templates[key] = await _template(lane, request)
        if (template := self._templates[key]) is None:
            return await _encoded(lane, request(prompt))
        template.made += 1
        if template.made % _LOOKED_AT == 1:
            real = await _encoded(lane, request(prompt))
            if real.body != template.body(prompt) or real.group != template.group:
                _log.warning(
                    'Requests of %s do not differ in their prompts alone: each is encoded by itself from here on.',
                    lane.model.model_name,
                )
                self._templates[key] = None
            return real
        return EncodedBatchRequest(custom_id='', group=template.group, body=template.body(prompt))


async def _template(lane: Lane, request: Callable[[str], BatchRequest]) -> EncodeTemplate | None:
    """The template of requests, or `None` if they differ in more than their prompt, as far as that can be seen."""
    prompts = [f'{token_hex(8)}{hard}{token_hex(8)}' for hard in _HARD]
    if not is_plain(lane.model, request(prompts[0]).messages):
        return None
    try:
        encoded = [await _encoded(lane, request(prompt)) for prompt in prompts]
    except (UserError, ModelAPIError):
        # What is wrong is told with the row that it is wrong with.
        return None
    if len({one.group for one in encoded}) > 1:
        return None
    for write in _WRITERS:
        around = {_around(one.body, write(prompt)) for one, prompt in zip(encoded, prompts, strict=True)}
        if len(around) == 1 and (found := around.pop()) is not None:
            return EncodeTemplate(encoded[0].group, *found, write)
    return None


def _around(body: str, written: str) -> tuple[str, str] | None:
    """What is before and after a text that stands in a body once."""
    before, found, after = body.partition(written)
    return (before, after) if found and written not in after else None


async def _encoded(lane: Lane, request: BatchRequest) -> EncodedBatchRequest:
    return await lane.encode(prepared(lane.model, request))
