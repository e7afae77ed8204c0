"""Attacks on result files: whatever bytes they hold, and wherever the network cuts them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pydantic_ai_batch.lanes.lines import damaged, dump_json, parse_json, parse_object, split_lines, stray

BOM = b'\xef\xbb\xbf'


def split(chunks: Iterable[bytes]) -> list[bytes]:
    async def arrive() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def collect() -> list[bytes]:
        return [line async for line in split_lines(arrive())]

    return asyncio.run(collect())


def plain(content: bytes) -> list[bytes]:
    return [line for line in content.removeprefix(BOM).split(b'\n') if line.strip()]


PIECES = st.sampled_from([b'\n', b'\r', BOM, b'\xe2\x80\xa8', b'\xc2\x85', b' ', b'{"a":1}', b'"', b'\x00', b'\xff'])


@given(
    content=st.one_of(st.binary(max_size=60), st.lists(PIECES, max_size=15).map(b''.join)),
    cuts=st.lists(st.integers(0, 80), max_size=12),
)
@example(content=BOM + b'{"a":1}\n{"b":2}', cuts=[1, 2, 3])
@example(content=b'\n\n', cuts=[1])
def test_bytes_cut_anywhere_are_the_lines_they_are_whole(content: bytes, cuts: list[int]):
    places = sorted({0, len(content), *(min(cut, len(content)) for cut in cuts)})
    chunks = [content[start:end] for start, end in pairwise(places)]
    assert b''.join(chunks) == content
    assert split(chunks) == plain(content)


@pytest.mark.parametrize('chunk', [1, 2, 3, 7])
def test_a_byte_order_mark_before_the_first_line_is_no_part_of_it(chunk: int):
    content = BOM + b'{"a":1}\n' + BOM + b'{"b":2}\n'
    lines = split(content[start : start + chunk] for start in range(0, len(content), chunk))
    assert lines == [b'{"a":1}', BOM + b'{"b":2}']


@pytest.mark.parametrize('text', ['\u2028', '\u2029', '\x85', '\x1c', '\x0b', '\x0c', '\r'])
def test_what_unicode_takes_for_a_line_end_is_none(text: str):
    line = f'{{"a":"x{text}y"}}'.encode()
    assert split([line + b'\n' + line]) == [line, line]


def test_a_line_that_arrives_in_very_many_pieces_takes_no_square_time():
    line = b'x' * 2_000_000
    assert split(line[start : start + 16] for start in range(0, len(line), 16)) == [line]


@given(st.binary(max_size=80))
@example(b'[' * 100_000)
@example(b'{"a":' * 100_000)
@example(b'1' * 10_000)
@example(b'{"a":1e999}')
def test_any_bytes_are_an_object_or_none(line: bytes):
    found = parse_object(line)
    assert found is None or isinstance(found, dict)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=[])),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)
def test_json_is_written_as_it_was_read_lone_surrogates_included(value: object):
    assert parse_json(dump_json(value)) == value
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ('line', 'custom_id'),
    [
        (b'{"custom_id":"tag-12","response":{"body":"cut', 'tag-12'),
        (b'{"custom_id" : "tag-12" , oops', 'tag-12'),
        (b'{"custom_id":"tag-12', None),
        (b'{"custom_id":"a","x":1}{"custom_id":"b"', None),
        (b'{"custom_id":null,', None),
        (b'{"custom_id":"' + b'x' * 65 + b'",', None),
        (b'{"id":"tag-12",', None),
        (b'\xff\xfe"custom_id":"tag-1"', 'tag-1'),
        (b'', None),
    ],
)
def test_a_damaged_line_is_somebodys_only_if_it_names_exactly_one(line: bytes, custom_id: str | None):
    assert damaged(line, 'custom_id').custom_id == custom_id


def test_a_line_that_is_set_aside_is_shown_in_part_and_one_that_was_paid_for_is_kept_whole():
    long = b'{"custom_id":"tag-1","x":"' + b'y' * 10_000
    assert len(stray(long, 'why').line) < 1_000
    assert damaged(long, 'custom_id').line == long.decode()
