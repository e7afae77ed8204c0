"""Turns the framework's requests into provider bodies, and provider bodies into its responses.

No message mapping is written again: the framework's own model classes do it. For a model that has the public
`batch_encode` and `batch_decode`, [`NativeCodec`][pydantic_ai_batch.codec.NativeCodec] asks those.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any, Protocol, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.settings import ModelSettings, merge_model_settings

from .exceptions import RequestNotSendable, ResultUnreadable
from .per_model import innermost

_REFUSED_SETTINGS = {
    'timeout': 'the provider runs a batched request in its own time; set the timeout of the client instead',
    'extra_headers': 'all requests of a batch travel under the headers of one call; set them on the client instead',
}
_BACKGROUND_SETTINGS = ('openai_background',)
_STREAM_KEYS = ('stream', 'stream_options', 'background')

_STUB = BatchRequest(custom_id='', messages=[ModelRequest.user_text_prompt('.')])


class Codec(Protocol):
    """Encodes and decodes for one kind of model."""

    async def group(self, model: Model) -> str:
        """The group key of the model's requests."""
        ...

    async def encode(self, model: Model, request: BatchRequest) -> EncodedBatchRequest:
        """The request as the model would send it live.

        Raises:
            UserError: The request asks for what a batch cannot do. The message says what to change.
            RequestNotSendable: The request cannot be written down.
        """
        ...

    async def decode(self, model: Model, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """The response the model would make of the result live.

        Raises:
            ModelAPIError: The error that the model would raise live.
            ResultUnreadable: The result is none that the model can read.
        """
        ...


def refuse_settings(model: Model, settings: ModelSettings | None) -> None:
    """Refuse settings that a batch cannot honour, merged with the model's own, before anything is encoded.

    `max_retries` only says how often a client repeats a live request, so it is left out with a warning.

    Raises:
        UserError: A setting cannot be honoured. The message names it, and what to do instead.
    """
    if not settings and not model.settings:
        return
    merged = cast('dict[str, Any]', merge_model_settings(model.settings, settings) or {})
    for name, reason in _REFUSED_SETTINGS.items():
        if merged.get(name) is not None and not (name == 'extra_headers' and _only_beta_flags(model, merged[name])):
            raise UserError(f'The setting `{name}` cannot be used in a batch: {reason}.')
    for name in _BACKGROUND_SETTINGS:
        if merged.get(name):
            raise UserError(
                f'The setting `{name}` cannot be used in a batch, which runs in the background as it is: leave it out.'
            )
    extra_body = merged.get('extra_body')
    _refuse_another_model(model, extra_body)
    for name in _STREAM_KEYS:
        if merged.get(name) or (isinstance(extra_body, dict) and cast('dict[str, Any]', extra_body).get(name)):
            raise UserError(
                f'`{name}` cannot be used in a batch, whose answers come whole and when they are done: leave it out.'
            )


def _only_beta_flags(model: Model, headers: Any) -> bool:
    """Whether all that headers do is to name Anthropic's beta flags, which the framework puts with the others."""
    names = {name.lower() for name in cast('dict[str, Any]', headers)}
    return names == {'anthropic-beta'} and is_a(innermost(model), 'pydantic_ai.models.anthropic', 'AnthropicModel')


def _refuse_another_model(model: Model, extra_body: Any) -> None:
    """Refuse a body that names another model than its batch is of, where a batch is of one."""
    if not isinstance(extra_body, dict) or 'model' not in extra_body:
        return
    if not is_a(innermost(model), 'pydantic_ai.models.openai', 'OpenAIChatModel', 'OpenAIResponsesModel'):
        return
    named = cast('dict[str, Any]', extra_body)['model']
    if named != model.model_name:
        raise UserError(
            f'`model` cannot be set to {named!r} with `extra_body` in a batch, all of whose requests are for one '
            f'model, which is {model.model_name!r} here: use another model instead.'
        )


def is_a(thing: object, module: str, *names: str) -> bool:
    """Whether something is of a class, without importing the module, and with it the SDK, that defines it."""
    home = sys.modules.get(module)
    classes = tuple(cls for name in names if (cls := getattr(home, name, None)) is not None)
    return isinstance(thing, classes)


def without_max_retries(settings: ModelSettings | None) -> ModelSettings | None:
    """`settings` without `max_retries`, which older versions of the framework refuse in a batch."""
    if not settings or 'max_retries' not in settings:
        return settings
    return cast('ModelSettings', {name: value for name, value in settings.items() if name != 'max_retries'})


def sets_max_retries(model: Model, settings: ModelSettings | None) -> bool:
    """Whether `max_retries` is set for a request, which a batch ignores."""
    return 'max_retries' in (merge_model_settings(model.settings, settings) or {})


def unreadable(model: Model, result: BatchResult, error: Exception) -> ResultUnreadable:
    """The error for a result on which the code that reads live answers failed."""
    return ResultUnreadable(
        model.model_name,
        f'The provider returned a result that cannot be read ({type(error).__name__}: {error}).',
        body=result.body,
    )


class NativeCodec:
    """The codec of models with the framework's public `batch_encode` and `batch_decode`."""

    async def group(self, model: Model) -> str:
        """The group key of the model's requests, read off a request that is not sent."""
        return (await model.batch_encode(_STUB)).group

    async def encode(self, model: Model, request: BatchRequest) -> EncodedBatchRequest:
        """The request as the model would send it live."""
        refuse_settings(model, request.model_settings)
        if (settings := without_max_retries(request.model_settings)) is not request.model_settings:
            request = replace(request, model_settings=settings)
        if not request.custom_id.isascii():
            # It is never sent, and half a character in it could not be written down.
            request = replace(request, custom_id='')
        try:
            return await model.batch_encode(request)
        except (UserError, ModelAPIError):
            raise
        except Exception as error:
            # A lone surrogate, an object that is no JSON, a file that cannot be fetched: whatever it is, it is this
            # request's trouble and no other's.
            raise RequestNotSendable(model.model_name, f'The request cannot be encoded: {error}') from error

    async def decode(self, model: Model, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """The response the model would make of the result live."""
        return self.read(model, result, request)

    def read(self, model: Model, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """The same, for code that is not asynchronous: nothing is waited for."""
        try:
            return model.batch_decode(result, request)
        except ModelAPIError:
            raise
        except Exception as error:
            if (body := _without_halves(result.body)) is not None:
                return self.read(model, replace(result, body=body), request)
            # A body that the provider never sends live meets code that was written for those it does.
            raise unreadable(model, result, error) from error


_HALF = re.compile('[\ud800-\udfff]')


def _without_halves(body: str | None) -> str | None:
    """The body with U+FFFD for each half of a surrogate pair, which some parsers refuse, or `None` if it has none."""
    try:
        text = json.dumps(json.loads(body or ''), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    whole = _HALF.sub('\ufffd', text)
    return whole if whole != text else None


def compact_json(value: Any) -> str:
    """Write JSON without spaces, with characters as they are but for halves of one, which UTF-8 has not."""
    text = json.dumps(value, ensure_ascii=False, separators=(',', ':'))
    try:
        # Several times as fast as a search for halves, on every body there is.
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(',', ':'))
    return text
