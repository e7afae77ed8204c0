"""Walks through the pages of a listing, to its end or until it cannot be told how it goes on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

from .base import ListingIncomplete

Page = TypeVar('Page')
Token = TypeVar('Token', str, int)


async def pages_of(
    read: Callable[[Token | None], Awaitable[tuple[Page, Token | None]]], most: int, *, of: str = 'The listing'
) -> AsyncGenerator[Page]:
    """The pages of a listing, each of which is read when it is asked for.

    Args:
        read: Reads the page that a token leads to, or the first for `None`. Returns it with the token of the next one:
            `None` where there is none, and an empty one where there is and nothing says how to get there.
        most: How many pages are read.
        of: What is listed, for the error.

    Raises:
        ListingIncomplete: There is more than was read.
    """
    token: Token | None = None
    for _ in range(most):
        page, token = await read(token)
        yield page
        if token is None:
            return
        if not token:
            raise ListingIncomplete(f'{of} has more, and does not say where.')
    raise ListingIncomplete(f'{of} was read {most} pages deep.')


def token_in(page: Mapping[str, Any], name: str) -> str | None:
    """The token of the next page that a page tells under a name: `None` if it is the last, and empty if it is odd."""
    token = page.get(name)
    return (token if isinstance(token, str) else '') if token else None
