"""Replies as they go over the connection: whole ones in pieces, and the ways a connection breaks."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pydantic_ai_batch.testing.lines import to_json

PIECE = 256 * 1024
"""Bytes that are handed to the connection at a time, so that a large file is not copied into its buffer at once."""

TRANSPORT = 'pydantic_ai_batch.transport'
"""Key under which the loopback server puts the connection's `asyncio.Transport` into the ASGI scope."""


def json_reply(value: Any, status: int = 200) -> Response:
    """A JSON reply; unlike Starlette's, it can say a lone surrogate."""
    return Response(to_json(value), status, media_type='application/json')


class Download(Response):
    """A file, sent piece by piece with its length announced."""

    def __init__(self, content: bytes, *, filename: str) -> None:
        super().__init__(
            content,
            media_type='application/octet-stream',
            headers={'content-disposition': f'attachment; filename="{filename}"'},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        await self._send_up_to(len(self.body), send)
        await send({'type': 'http.response.body', 'body': b'', 'more_body': False})

    async def _send_up_to(self, end: int, send: Send) -> None:
        await send({'type': 'http.response.start', 'status': self.status_code, 'headers': self.raw_headers})
        view = memoryview(self.body)[:end]
        for start in range(0, end, PIECE):
            await send({'type': 'http.response.body', 'body': bytes(view[start : start + PIECE]), 'more_body': True})


class CutDownload(Download):
    """A file of which only the first `fraction` arrives.

    If the end was `announced`, by a length or in chunks, the connection closes short of it. If not, the reply ends as a
    whole one does, and nothing on the wire tells that something is missing.
    """

    def __init__(self, whole: Response, *, fraction: float, announced: bool) -> None:
        Response.__init__(self, bytes(whole.body), status_code=whole.status_code, headers=dict(whole.headers))
        self._end = int(len(self.body) * fraction)
        self.announced = announced
        # Starlette announces the length of every body; a whole reply in chunks has none.
        if not announced or 'content-length' not in whole.headers:
            del self.headers['content-length']

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send a part of it."""
        await self._send_up_to(self._end, send)
        if self.announced:
            await _close(scope, receive)
        else:
            await send({'type': 'http.response.body', 'body': b'', 'more_body': False})


class LostReply(Response):
    """No reply: the connection closes, as when a proxy in between gives up."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Close the connection."""
        await _close(scope, receive)


class Reset(Response):
    """No reply: the connection is reset, which the client sees as an error of the socket."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reset the connection."""
        transport: asyncio.Transport = scope[TRANSPORT]
        # To linger for no time is what makes the kernel send RST instead of an orderly FIN.
        linger = struct.pack('hh' if sys.platform == 'win32' else 'ii', 1, 0)
        transport.get_extra_info('socket').setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
        await _gone(receive)


async def _close(scope: Scope, receive: Receive) -> None:
    """Close the connection once what was written is sent."""
    transport: asyncio.Transport = scope[TRANSPORT]
    transport.close()
    await _gone(receive)


async def _gone(receive: Receive) -> None:
    """Wait until the server knows that the connection is gone: it then wants no reply for this request."""
    while (await receive())['type'] != 'http.disconnect':
        pass
