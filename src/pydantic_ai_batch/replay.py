"""Capture and replay: how a model without a batch codec of its own encodes and decodes.

A shadow of the model is the same model with another HTTP client under its SDK client. Asked to make a request, it
goes all the way that the live model goes, and the HTTP client takes the request down instead of sending it. Given a
provider's stored answer, or error, the HTTP client plays it back, and the shadow reads it as the live model would. So
no mapping is written twice, and a batched request, response or error is what the live one would have been.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from opentelemetry import context as otel
from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.settings import ModelSettings

from . import compat
from .codec import compact_json, is_a, refuse_settings, unreadable, without_max_retries
from .exceptions import RequestNotSendable
from .per_model import PerModel, innermost
from .replay_boto import silent_client, unstreamed

if TYPE_CHECKING:
    import httpx2

_SUPPRESS = 'suppress_instrumentation'
"""The key of OpenTelemetry's context by which instrumentations of SDKs and HTTP clients stay silent."""

_ON_HTTPX = frozenset({'groq'})
"""The SDKs that are built on the older of the two packages of httpx."""

_STREAM_KEYS = ('stream', 'stream_options')

_STUB: list[ModelMessage] = [ModelRequest.user_text_prompt('.')]
"""The history that answers are replayed to. The real one would be encoded, and what it links to fetched, once more."""


@dataclass
class _Exchange:
    """One request that a shadow makes, and the answer it is to get."""

    status_code: int
    body: bytes
    sent: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    """The path and body of each request that was made."""


_exchange: ContextVar[_Exchange] = ContextVar('pydantic_ai_batch_exchange')


_shadows: PerModel[Model] = PerModel()


def _shadow_of(model: Model) -> Model:
    inner = innermost(model)
    return _shadows.get(inner) or _shadows.keep(inner, with_client(inner, _shadow_client(inner)))


def with_client(model: Model, client: object) -> Model:
    """A copy of `model` whose public `client` is another one. The model itself is not touched."""
    shadow = copy.copy(model)
    shadow.__class__ = type(type(model).__name__, (type(model),), {'client': property(lambda _: client)})
    return shadow


def _shadow_client(model: Model) -> object:
    """The user's SDK client, with its settings, over an HTTP client that sends nothing."""
    client = cast('Any', model).client
    if _is_bedrock(model):
        return silent_client(client, _answered)
    http_client = _http_client(client)
    if type(client).__module__.split('.')[0] == 'google':
        from google.genai import Client
        from google.genai.types import HttpOptions, HttpRetryOptions

        # The SDK has no public way to copy a client. The key is not needed, as nothing is sent.
        options = HttpOptions(
            base_url=model.base_url, httpx_async_client=http_client, retry_options=HttpRetryOptions(attempts=1)
        )
        if client.vertexai:
            from google.oauth2.credentials import Credentials

            nobody: Any = Credentials(token='none')
            return Client(vertexai=True, project='none', location='none', credentials=nobody, http_options=options)
        return Client(api_key='none', http_options=options)
    if type(client).__module__.split('.')[0] == 'mistralai':
        from mistralai.client import Mistral

        # Nor has this one.
        return Mistral(api_key='none', server_url=model.base_url, async_client=http_client)
    return client.with_options(http_client=http_client, max_retries=0)


def _is_bedrock(model: Model) -> bool:
    return is_a(model, 'pydantic_ai.models.bedrock', 'BedrockConverseModel')


def _answered(path: str, body: bytes) -> tuple[int, bytes]:
    """Take a request down, and answer it."""
    exchange = _exchange.get()
    exchange.sent.append((path, body))
    return exchange.status_code, exchange.body


def _http_client(client: object) -> httpx2.AsyncClient:
    """What sends nothing for an SDK's client, of the HTTP package that the SDK is built on."""
    httpx = importlib.import_module('httpx' if type(client).__module__.split('.')[0] in _ON_HTTPX else 'httpx2')

    async def send(self: Any, request: Any, **_: Any) -> Any:
        status_code, body = _answered(request.url.path, await request.aread())
        headers = {'content-type': 'application/json'}
        return httpx.Response(status_code, content=body, headers=headers, request=request)

    # Answers before there is anything to log or trace, as nothing is sent.
    return cast('httpx2.AsyncClient', type('Client', (httpx.AsyncClient,), {'send': send})())


@contextmanager
def _played(exchange: _Exchange) -> Generator[None]:
    token = otel.attach(otel.set_value(_SUPPRESS, True))
    played = _exchange.set(exchange)
    try:
        yield
    finally:
        _exchange.reset(played)
        otel.detach(token)


async def capture(model: Model, request: BatchRequest) -> tuple[str, str]:
    """The path and body of the request that `model` would send live, without its wish to stream the answer.

    Raises:
        UserError: The request cannot be made.
        RequestNotSendable: It cannot be written down.
    """
    # Refusing is the quickest way for the SDK to be done with it; what the model makes of that is of no interest.
    exchange = _Exchange(400, b'{"error":{"message":"captured"}}')
    shadow = _shadow_of(model)
    try:
        with _played(exchange):
            await shadow.request(request.messages, _settings(shadow, request), request.model_request_parameters)
    except UserError:
        raise
    except Exception as error:
        if not exchange.sent:
            if isinstance(error, ModelAPIError):
                raise
            raise RequestNotSendable(model.model_name, f'The request cannot be encoded: {error}') from error
    path, content = exchange.sent[0]
    return path, _without_stream(content)


def _without_stream(content: bytes) -> str:
    text = content.decode()
    if not any(f'"{key}"' in text for key in _STREAM_KEYS):
        return text
    body = json.loads(text)
    for key in _STREAM_KEYS:
        body.pop(key, None)
    return compact_json(body)


async def replay(model: Model, request: BatchRequest, status_code: int, body: bytes) -> ModelResponse:
    """The response that `model` makes of a provider's answer, or the error that it raises for it."""
    shadow = _shadow_of(model)
    with _played(_Exchange(status_code, body)):
        return await shadow.request(_STUB, _settings(shadow, request), request.model_request_parameters)


def _settings(shadow: Model, request: BatchRequest) -> ModelSettings | None:
    settings = without_max_retries(request.model_settings)
    return unstreamed(shadow, settings) if _is_bedrock(shadow) else settings


class ReplayCodec:
    """The codec of models that have none of their own, by capture and replay.

    Args:
        group: Gives the group key of a model's requests, which such a model does not.
        group_at: Gives the group key of one request, by that and by the path that it is for, where they differ.
    """

    def __init__(
        self,
        group: Callable[[Model], Awaitable[str]],
        group_at: Callable[[str, str], str] = lambda group, path: group,
    ) -> None:
        self._group = group
        self._group_at = group_at

    async def group(self, model: Model) -> str:
        """The group key of the model's requests."""
        return await self._group(model)

    async def encode(self, model: Model, request: BatchRequest) -> EncodedBatchRequest:
        """The request as the model would send it live."""
        refuse_settings(model, request.model_settings)
        path, body = await capture(model, request)
        group = self._group_at(await self.group(model), path)
        return EncodedBatchRequest(custom_id=request.custom_id, group=group, body=body)

    async def decode(self, model: Model, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """The response the model would make of the result live."""
        try:
            status_code, body = compat.http_answer(model.model_name, result)
            response = await replay(model, request, status_code, body)
        except ModelAPIError:
            raise
        except Exception as error:
            raise unreadable(model, result, error) from error
        details = {**(response.provider_details or {}), compat.PROCESSING_KEY: 'batch'}
        return replace(response, provider_details=details)
