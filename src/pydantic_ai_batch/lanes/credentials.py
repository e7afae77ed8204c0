"""What a client's requests are sent with, as far as it decides which of them may share a batch.

A batch is made, checked and read under one credential, which the framework's group keys hold a digest of: of the
headers and the query that the SDK's client puts on each call. Two things they do not see. A credential that is made
for each call, of which there is nothing to see beforehand, is refused. What the HTTP client below the SDK's adds, as
for a proxy that has keys of its own, counts as a part of the credential here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.per_model import innermost

from .base import Lane

OF_TRANSPORT = frozenset({'accept', 'accept-encoding', 'connection', 'content-type', 'user-agent'})
"""Headers that say nothing of who asks."""

_TOLD_BY_GOOGLES = OF_TRANSPORT | {'authorization', 'x-goog-api-client', 'x-goog-api-key', 'x-server-timeout'}
"""Those, with the ones of Google's SDK that the framework's group keys tell, or that it makes up for each call."""

_GOOGLES_VERSION = 'v1beta'
"""The version of the Gemini API that its SDK asks for by itself."""


@dataclass
class ClientLane(Lane):
    """A lane whose calls are made with the SDK client of the model."""

    _seen: tuple[object, str | None] | None = field(default=None, init=False, repr=False, compare=False)
    """The client that was looked at last, and the digest of what else its calls carry."""

    _groups: dict[str, str] = field(default_factory=dict[str, str], init=False, repr=False, compare=False)
    """The framework's group keys with that digest in them."""

    made_per_call: ClassVar[Mapping[str, str]] = {}
    """What a client of the SDK holds if it makes its credential for each call, and what it does then."""

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live.

        Raises:
            UserError: The client's credential can change from call to call, or cannot be seen.
        """
        digest = self._digest()
        encoded = await super().encode(request)
        return encoded if digest is None else replace(encoded, group=self._with(digest, encoded.group))

    async def identity(self) -> str:
        """The group of this model's requests: a digest of its endpoint and credential, and what else they share.

        Raises:
            UserError: The client's credential can change from call to call, or cannot be seen.
        """
        digest = self._digest()
        group = await super().identity()
        return group if digest is None else self._with(digest, group)

    def _digest(self) -> str | None:
        """A digest of what the client's calls carry and the framework does not see; `None` if that is nothing.

        It is made once for a client, as a lane lives no longer than a call, and a list may have many requests.
        """
        client = self._users_client
        if self._seen is None or self._seen[0] is not client:
            self._refuse_hidden_credential()
            additions = _additions(client)
            digest = digest_of(sorted(additions)) if additions else None
            self._seen = client, digest
            self._groups.clear()
        return self._seen[1]

    def _with(self, digest: str, group: str) -> str:
        if (known := self._groups.get(group)) is None:
            known = self._groups[group] = compat.with_credential(group, digest)
        return known

    @property
    def _users_client(self) -> Any:
        return cast('Any', innermost(self.model)).client

    def _refuse_hidden_credential(self) -> None:
        """Refuse a client whose credential can change from call to call, or cannot be seen.

        Requests of different credentials could share a batch, which one of them could not read, or should not.
        """
        if (does := self._hidden_credential()) is not None:
            raise UserError(
                f'Model {self.model.model_id!r} cannot be batched: its client {does}, which may differ from call to '
                'call, and a batch is made and read under one credential. Give the client an API key that stays the '
                'same.'
            )

    def _hidden_credential(self) -> str | None:
        """What the client does, if its credential can change from call to call, or cannot be seen."""
        client = self._users_client
        does = next(
            (does for name, does in self.made_per_call.items() if getattr(client, name, None) is not None), None
        )
        if does is None and getattr(client, 'api_key', None) == '':
            # What a client that asks a function for its key shows.
            does = 'has no API key of its own'
        if does is None and getattr(_http_client(client), 'auth', None) is not None:
            does = 'leaves its credential to the `auth` of its HTTP client'
        if does is None and getattr(_googles_options(client), 'aiohttp_client', None) is not None:
            does = 'asks through an `aiohttp_client`, which may add a credential of its own'
        return does


_OF_SDK = ('user-agent', 'accept', 'content-type', 'x-stainless-')
"""What the names of headers begin with that say nothing of who asks."""


async def client_group(model: Model, endpoint: str) -> str:
    """The group key of the requests of a model that the framework has none for, by what its SDK client sends.

    It holds digests alone: of the headers and the query of each call, and of the base URL.

    Args:
        model: The model, whose client is of the family that OpenAI's SDK is of.
        endpoint: The path that its requests are for.
    """
    client = cast('Any', innermost(model)).client
    layers = (client.default_headers, client.auth_headers)
    headers = {name.lower(): value for layer in layers for name, value in layer.items() if isinstance(value, str)}
    told = [item for item in headers.items() if not item[0].startswith(_OF_SDK)]
    # Azure's client puts its key on each call by itself.
    secrets = [client.api_key, getattr(client, '_azure_ad_token', None)]
    credential = [sorted(told), secrets, sorted(map(repr, client.default_query.items()))]
    return group_key(model, credential, str(client.base_url), endpoint)


def group_key(model: Model, credential: object, base_url: str, endpoint: str) -> str:
    """The group key of a model's requests, with digests of what they are sent with and where to."""
    key = {
        'credential': digest_of(credential),
        'endpoint': digest_of(base_url),
        'model': model.model_name,
        'url': endpoint,
    }
    return json.dumps(key, sort_keys=True)


def digest_of(value: object) -> str:
    """A digest of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _additions(client: Any) -> list[tuple[str, str]]:
    """What goes with each call of a client, and decides who it is from, without the framework's seeing it."""
    http_client = _http_client(client)
    options = _googles_options(client)
    told = OF_TRANSPORT if options is None else _TOLD_BY_GOOGLES
    # Of one name, a header of the SDK's takes the place of the HTTP client's.
    headers = {name.lower(): value for name, value in getattr(http_client, 'headers', {}).items()}
    added = {name: value for name, value in headers.items() if name not in told}
    if options is not None:
        of_sdk = cast('Mapping[str, str]', options.headers or {})
        added |= {name.lower(): value for name, value in of_sdk.items() if name.lower() not in told}
        if options.api_version != _GOOGLES_VERSION:
            added['version'] = str(options.api_version)
    elif added:
        for name in _set_by_sdk(client):
            added.pop(name, None)
    if params := getattr(http_client, 'params', None):
        added['query'] = str(params)
    return list(added.items())


def _set_by_sdk(client: Any) -> set[str]:
    """The headers that the SDK sets on each call, without those that it was told to leave out."""
    names: set[str] = set()
    for layer in (client.auth_headers, client.default_headers):
        for name, value in layer.items():
            (names.add if isinstance(value, str) else names.discard)(name.lower())
    return names


def _http_client(client: Any) -> Any:
    """The HTTP client that an SDK's client asks through."""
    google = getattr(client, '_api_client', None)
    return getattr(client, '_client', None) if google is None else getattr(google, '_async_httpx_client', None)


def _googles_options(client: Any) -> Any:
    """The HTTP options of a client of Google's SDK; `None` for any other."""
    return getattr(getattr(client, '_api_client', None), '_http_options', None)
