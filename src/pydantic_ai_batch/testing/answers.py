"""What a fake provider is asked, and what may be answered: the words between a test and a fake provider."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class FakeTool:
    """A function that the request lets the model call."""

    name: str
    """The tool's name."""
    parameters: dict[str, Any]
    """JSON schema of its arguments; `{}` if the request gives none."""


@dataclass(frozen=True)
class FakeToolCall:
    """An answer that calls one of the request's tools."""

    name: str
    """The tool to call."""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments, sent as the provider sends them (JSON text for OpenAI)."""


@dataclass(frozen=True)
class FakeError:
    """An answer that is a failure: an error line in a batch, an HTTP error of a live request. It is never billed."""

    status: int
    """HTTP status, such as 400 or 429."""
    code: str | None
    """The provider's error code, such as `'invalid_prompt'`."""
    message: str
    """What went wrong, in words."""
    type: str | None = None
    """The provider's error type; `None` is the one that goes with `status`."""
    param: str | None = None
    """The parameter at fault."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a provider body asks for, whatever the provider."""

    text: str
    """The last text that a user says in it; `''` if there is none."""
    tools: tuple[FakeTool, ...] = ()
    """The function tools that may be called."""
    forced_tool: str | None = None
    """The tool that must be called: its name, or `'*'` if any will do."""
    tool_results: int = 0
    """How many tool results the conversation holds already."""
    output_schema: dict[str, Any] | None = None
    """JSON schema that the answer's text must satisfy, if the request sets one."""


@dataclass(frozen=True, kw_only=True)
class FakeRequest(Asked):
    """One model request, as a fake provider is about to answer it."""

    provider: str
    """Which fake was asked, such as `'openai'`."""
    endpoint: str
    """Path of the API that the request is for, such as `'/v1/responses'`."""
    custom_id: str | None
    """Its id in the batch; `None` for a live request."""
    model: str | None
    """The model it names."""
    body: dict[str, Any]
    """The whole provider body."""
    attempt: int
    """How many times this provider ran the very same body before, live or in any batch."""


Answer: TypeAlias = 'str | dict[str, Any] | FakeToolCall | FakeError | None'
"""A `str` becomes a well-formed text answer of the endpoint with plausible usage, a `dict` is the provider's whole
body as it is, a [`FakeToolCall`][pydantic_ai_batch.testing.FakeToolCall] calls a tool, a
[`FakeError`][pydantic_ai_batch.testing.FakeError] fails, and `None` leaves the row out of the results without a word
(a live request that is answered `None` gets a 500)."""

AnswerFunction: TypeAlias = Callable[[FakeRequest], Answer]
"""Answers requests. It runs in the fake's own thread, and must not call the fake over HTTP."""


@dataclass(frozen=True)
class BilledRow:
    """One request that was run and charged. A request that is run twice is in the list twice."""

    batch_id: str | None
    """The batch it ran in; `None` for a live request."""
    custom_id: str | None
    """Its id in that batch."""
    body: dict[str, Any]
    """The provider body that was run."""
    text: str
    """The last user text of the body."""


def token_estimate(size: int) -> int:
    """Tokens in `size` bytes or characters: a quarter of it, and never none."""
    return max(1, size // 4)
