"""What the fake Anthropic sends in pieces: a Message as server-sent events, and the results of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from pydantic_ai_batch.testing.anthropic_bodies import Json, as_object, as_objects
from pydantic_ai_batch.testing.lines import to_json
from pydantic_ai_batch.testing.wire import Download

_DELTA = 16
"""Characters of a text, or of a tool's arguments, that come in one event."""


class MessageStream(Response):
    """A Message, as a request with `stream: true` gets it."""

    media_type = 'text/event-stream'

    def __init__(self, message: Json) -> None:
        super().__init__(b''.join(_event(event) for event in _events(message)), headers={'cache-control': 'no-cache'})


class ResultStream(Download):
    """The results of a batch, whose length is not announced."""

    def __init__(self, content: bytes, *, filename: str) -> None:
        Response.__init__(
            self,
            content,
            media_type='application/x-jsonl',
            headers={'content-disposition': f"attachment; filename*=utf-8''{filename}"},
        )
        del self.headers['content-length']


def _event(event: Json) -> bytes:
    return b'event: %s\ndata: %s\n\n' % (event['type'].encode(), to_json(event))


def _events(message: Json) -> Iterator[Json]:
    usage = as_object(message.get('usage'))
    # What is known at the end alone, so that a client which forgets to read the end is seen.
    unknown: Json = {'content': [], 'stop_reason': None, 'stop_sequence': None}
    yield {'type': 'message_start', 'message': {**message, **unknown, 'usage': {**usage, 'output_tokens': 1}}}
    for index, block in enumerate(as_objects(message.get('content'))):
        opening, deltas = _pieces(block)
        yield {'type': 'content_block_start', 'index': index, 'content_block': opening}
        if not index:
            yield {'type': 'ping'}
        for delta in deltas:
            yield {'type': 'content_block_delta', 'index': index, 'delta': delta}
        yield {'type': 'content_block_stop', 'index': index}
    ending = {key: message.get(key) for key in ('container', 'stop_reason', 'stop_sequence', 'stop_details')}
    yield {'type': 'message_delta', 'delta': ending, 'usage': {'output_tokens': usage.get('output_tokens', 0)}}
    yield {'type': 'message_stop'}


def _pieces(block: Json) -> tuple[Json, list[Json]]:
    """A content block as it begins, and what is added to it. Blocks of other types come whole."""
    kind = block.get('type')
    if kind == 'text':
        return {**block, 'text': ''}, _deltas('text_delta', 'text', block.get('text'))
    if kind in ('tool_use', 'server_tool_use'):
        return {**block, 'input': {}}, _deltas('input_json_delta', 'partial_json', json.dumps(block.get('input')))
    if kind == 'thinking':
        signature = [{'type': 'signature_delta', 'signature': block.get('signature', '')}]
        opening = {**block, 'thinking': '', 'signature': ''}
        return opening, [*_deltas('thinking_delta', 'thinking', block.get('thinking')), *signature]
    return block, []


def _deltas(kind: str, key: str, text: Any) -> list[Json]:
    text = text if isinstance(text, str) else ''
    return [{'type': kind, key: text[start : start + _DELTA]} for start in range(0, len(text), _DELTA)]
