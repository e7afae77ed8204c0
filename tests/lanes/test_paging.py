"""How the pages of a listing are walked through, whatever they say of the next one."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import pytest

from pydantic_ai_batch.lanes.base import ListingIncomplete
from pydantic_ai_batch.lanes.paging import pages_of, token_in


class Listing:
    """Pages by the tokens that lead to them, and which were asked for."""

    def __init__(self, pages: dict[str | None, str | None]) -> None:
        self.pages = pages
        self.asked: list[str | None] = []

    async def read(self, token: str | None) -> tuple[str, str | None]:
        self.asked.append(token)
        return f'after {token}', self.pages[token]


async def test_pages_are_read_as_far_as_there_are_more():
    listing = Listing({None: 'a', 'a': 'b', 'b': None})
    assert [page async for page in pages_of(listing.read, 3)] == ['after None', 'after a', 'after b']


async def test_a_page_is_read_only_when_it_is_asked_for():
    listing = Listing({None: 'a', 'a': None})
    async with aclosing(pages_of(listing.read, 3)) as pages:
        assert await anext(pages) == 'after None'
    assert listing.asked == [None]


async def test_more_pages_than_are_read_make_no_whole_listing():
    listing = Listing({None: 'a', 'a': 'a'})
    with pytest.raises(ListingIncomplete, match='The shelf was read 2 pages deep'):
        assert [page async for page in pages_of(listing.read, 2, of='The shelf')]
    assert listing.asked == [None, 'a']


async def test_a_page_that_says_that_there_is_more_and_not_where_is_the_last_that_is_shown():
    listing = Listing({None: ''})
    pages = pages_of(listing.read, 3)
    assert await anext(pages) == 'after None'
    with pytest.raises(ListingIncomplete, match='does not say where'):
        await anext(pages)


@pytest.mark.parametrize(
    ('page', 'token'),
    [({}, None), ({'next': None}, None), ({'next': ''}, None), ({'next': 'a'}, 'a'), ({'next': 7}, '')],
)
def test_a_token_that_is_none_is_no_end(page: dict[str, Any], token: str | None):
    assert token_in(page, 'next') == token
