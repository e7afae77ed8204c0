"""An ASGI server on 127.0.0.1 in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from pydantic_ai_batch.testing.wire import TRANSPORT


def client_options() -> dict[str, Any]:
    """Options of an HTTP client for a server on this machine: past the proxy that the environment may name.

    And without the certificates, which are not needed for it and take 30 ms to load.
    """
    return {'trust_env': False, 'verify': ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}


class LoopbackServer:
    """Serves `app` on 127.0.0.1 until it is stopped. It can be started once."""

    def __init__(self, app: ASGIApp, *, port: int = 0) -> None:
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        """The port it listens on, from the moment it is made."""
        config = uvicorn.Config(
            app,
            interface='asgi3',
            loop='asyncio',
            http=_Connection,
            ws='none',
            lifespan='off',
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
        )
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._run, name='pydantic-ai-batch fake providers', daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self._thread.start()
        self._server.ready.wait()
        if not self._server.started:
            raise RuntimeError('The loopback server did not start.')

    def stop(self) -> None:
        """Close every connection and wait for the thread to end."""
        self._server.end()
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        finally:
            # `start` must not wait for ever on a server that could not start.
            self._server.ready.set()


def _listening(port: int) -> socket.socket:
    """A listening socket that names its protocol, which `socket.create_server` leaves open.

    Only then asyncio turns Nagle's algorithm off for its connections, and a reply does not wait 40 ms for an ACK.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if sys.platform != 'win32':
            # There it would let two servers have one port; elsewhere it lets a fake that was stopped start again.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(('127.0.0.1', port))
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


class _Connection(H11Protocol):
    """Gives the application the connection itself, so that a reply can break it."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Put the transport into the scope of every request on it."""
        super().connection_made(transport)
        app = self.app

        async def with_transport(scope: Any, receive: Any, send: Any) -> None:
            scope[TRANSPORT] = transport
            await app(scope, receive, send)

        self.app = with_transport


class _Server(uvicorn.Server):
    """Ends the moment it is told to.

    uvicorn looks ten times a second whether it should, and then gives open connections time to finish, which would
    add a fifth of a second to every test that starts a fake.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()

    def end(self) -> None:
        """Leave the main loop; may be called from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._end.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.ready.set()
        await self._end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)
        for server in self.servers:
            await server.wait_closed()
