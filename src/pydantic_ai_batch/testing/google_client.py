"""The google-genai client of a test: the real SDK, on the fake and by no other way."""

from __future__ import annotations

import importlib
import ssl
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.genai import Client


def client_of(base_url: str, settings: dict[str, Any]) -> Client:
    """A client of `base_url`; what `settings` says, its `http_options` included, comes first."""
    from google.genai import Client
    from google.genai.types import HttpOptions

    given: Any = settings.pop('http_options', None) or {}
    if isinstance(given, HttpOptions):
        given = {name: getattr(given, name) for name in given.model_fields_set}
    # The fake has no TLS. Without a context the SDK loads certificates, which takes longer than most tests.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    options: dict[str, Any] = {
        'base_url': base_url,
        # A proxy that the environment names is not for a server on this machine.
        'client_args': {'trust_env': False, 'verify': tls},
        'async_client_args': {'trust_env': False, 'verify': tls, 'transport': _Direct(tls)},
        **given,
    }
    arguments: dict[str, Any] = {'api_key': 'test', 'vertexai': False, **settings}
    return Client(http_options=HttpOptions(**options), **arguments)


class _Direct:
    """A transport of whichever library the SDK asks with, httpx or httpx2.

    Without a transport the SDK asks with aiohttp where that is installed, and lets it go through the proxy.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._tls = tls
        self._transport: Any = None

    async def handle_async_request(self, request: Any) -> Any:
        if self._transport is None:
            library = importlib.import_module(type(request).__module__.partition('.')[0])
            self._transport = library.AsyncHTTPTransport(verify=self._tls)
        return await self._transport.handle_async_request(request)

    async def __aenter__(self) -> _Direct:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
