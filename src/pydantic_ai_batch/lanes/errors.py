"""The framework's errors for what a provider or the transport answered to a call of a batch API.

The framework maps a live request's errors by private code of each model class; a batch API's own calls are fewer, and
their errors need fewer words. Status and provider code decide the category, as they do there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    TransportPhase,
    UserError,
)
from pydantic_ai.models import get_user_agent

from .lines import as_object, parse_object

_QUOTA_CODES = frozenset(
    {'insufficient_quota', 'billing_hard_limit_reached', 'billing_error', 'enforced_spend_limit_reached'}
)

_PHASES: dict[str, TransportPhase] = {
    'PoolTimeout': 'pool',
    'ConnectError': 'connect',
    'ConnectTimeout': 'connect',
    'WriteError': 'write',
    'WriteTimeout': 'write',
    'ReadError': 'read',
    'ReadTimeout': 'read',
    'RemoteProtocolError': 'read',
}
"""The phase each transport error of httpx, in either of its packages, happens in."""

_BOTO_PHASES: dict[str, TransportPhase] = {
    'ConnectTimeoutError': 'connect',
    'EndpointConnectionError': 'connect',
    'ProxyConnectionError': 'connect',
    'ReadTimeoutError': 'read',
    'ConnectionClosedError': 'read',
    'IncompleteReadError': 'read',
    'ResponseStreamingError': 'read',
    # There was nothing to sign a call with, so that none was made.
    'NoCredentialsError': 'connect',
    'PartialCredentialsError': 'connect',
    'CredentialRetrievalError': 'connect',
    'TokenRetrievalError': 'connect',
    'SSOTokenLoadError': 'connect',
    'UnauthorizedSSOTokenError': 'connect',
}
"""The same for AWS's SDK, which has transport errors of its own."""

_PHASES_OF = {'httpx': _PHASES, 'httpx2': _PHASES, 'botocore': _BOTO_PHASES}
"""The phases of transport errors, by the package that they are of."""


RPC_STATUSES = {3: 400, 4: 504, 5: 404, 6: 409, 7: 403, 8: 429, 9: 400, 10: 409, 11: 400, 14: 503, 16: 401}
"""The status that a live request would get, by gRPC's number of its error."""


def error_object(body: Any) -> dict[str, Any]:
    """The error object of a provider's error body, which some wrap in `error`; empty if there is none."""
    whole = as_object(body)
    inner = whole.get('error')
    return cast('dict[str, Any]', inner) if isinstance(inner, dict) else whole


def said_of(error: Any) -> dict[str, Any]:
    """What a provider says of a request that failed, as an object: some say it in a text, and some nothing."""
    return as_object(error) or {'message': str(error or 'The provider gave no reason.')}


def status_in(text: str, words: Mapping[str, int]) -> int | None:
    """The status that a live request would get, by the first of the words that is in a text; `None` if none is."""
    return next((status for word, status in words.items() if word in text), None)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def http_error(
    model_name: str, status_code: int, body: Any, *, headers: Mapping[str, str] | None = None, hint: str | None = None
) -> ModelHTTPError:
    """The error for an HTTP error status of a batch API's call, in the category the framework gives a live one."""
    error = error_object(body)
    code, error_type = _text(error.get('code')) or _text(error.get('error_code')), _text(error.get('type'))
    if status_code in (401, 403):
        category = ModelAuthenticationError
    elif status_code == 404:
        category = ModelNotFoundError
    elif status_code == 402 or code in _QUOTA_CODES or error_type in _QUOTA_CODES:
        category = ModelQuotaExceededError
    elif status_code == 429:
        category = ModelRateLimitError
    elif status_code == 529:
        category = ModelOverloadedError
    elif status_code == 503:
        category = ModelUnavailableError
    elif status_code >= 500:
        category = ModelServerError
    elif status_code in (400, 422):
        category = ModelRequestRejectedError
    else:
        category = None
    return ModelHTTPError.for_category(
        category,
        status_code=status_code,
        model_name=model_name,
        body=body,
        headers=headers,
        hint=hint,
        provider_error_code=code,
        provider_error_type=error_type,
    )


def of_storage(error: ModelHTTPError, bucket: str, variable: str) -> ModelHTTPError:
    """The error of a call of a cloud's storage, with the bucket and the variable that it is from, if it is about them.

    A 404 is none about a model there.
    """
    if error.status_code not in (403, 404):
        return error
    wrong = 'the credentials may not use it' if error.status_code == 403 else 'it, or the file in it, is not there'
    return ModelHTTPError.for_category(
        ModelAuthenticationError if error.status_code == 403 else None,
        status_code=error.status_code,
        model_name=error.model_name,
        body=error.body,
        headers=error.headers,
        hint=f'This is about the bucket {bucket!r}: {wrong}. See to that, or set `{variable}` to another place.',
        provider_error_code=error.provider_error_code,
        provider_error_type=error.provider_error_type,
    )


def sdk_headers() -> dict[str, str]:
    """The headers of each call of a batch API, by which it is known to come from the framework."""
    return {'User-Agent': get_user_agent()}


@contextmanager
def sdk_errors(
    sdk: Any, model_name: str, *, hint: Callable[[int, Any], str | None] = lambda status, body: None
) -> Generator[None]:
    """Raise the framework's errors for those of an SDK of the family that OpenAI's and Anthropic's are of.

    Args:
        sdk: The SDK's package, with its exception classes.
        model_name: The model the call is made for.
        hint: Says, for a status and a body, what may help, if anything.
    """
    try:
        yield
    except sdk.APIStatusError as error:
        raise http_error(
            model_name,
            error.status_code,
            error.body,
            headers=dict(error.response.headers),
            hint=hint(error.status_code, error.body),
        ) from error
    except sdk.APIConnectionError as error:
        raise connection_error(model_name, error) from error
    except sdk.APIError as error:
        raise ModelAPIError(model_name, error.message) from error
    except (ModelAPIError, UserError):
        raise
    except Exception as error:
        raise transport_error(model_name, error) from error


def transport_error(model_name: str, error: Exception) -> ModelAPIError:
    """The error for what reaches us as the transport raised it: what breaks while a body is streamed, for one."""
    if (response := _given_up_on(error)) is not None:
        return http_error(model_name, response.status_code, None, headers=dict(response.headers))
    # A transport of the user's may raise anything. Whatever it is, nobody knows what the provider did.
    return connection_error(model_name, error)


def _given_up_on(error: Exception) -> Any:
    """The response with a status that a retrying transport of the user's gave up on, and raised itself; else `None`."""
    package, _, _ = type(error).__module__.partition('.')
    if package not in ('httpx', 'httpx2') or type(error).__name__ != 'HTTPStatusError':
        return None
    return getattr(error, 'response', None)


def connection_error(model_name: str, error: BaseException) -> ModelConnectionError:
    """The error for a transport that failed, with the phase in which it did.

    SDKs wrap the transport's exception, some more than once, so the chain of causes is searched for it.
    """
    phase: TransportPhase | None = None
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        phases = _PHASES_OF.get(type(cause).__module__.split('.')[0], {})
        if (phase := phases.get(type(cause).__name__)) is not None:
            break
        cause = cause.__cause__ or cause.__context__
    timed_out = 'Timeout' in type(cause or error).__name__
    error_class = ModelTimeoutError if timed_out else ModelConnectionError
    return error_class(model_name, without_passwords(str(error)) or type(error).__name__, phase=phase)


_PASSWORD = re.compile(r'(?<=://)[^/\s"\']*@')


def without_passwords(text: str) -> str:
    """A text without the users and passwords of the URLs in it."""
    return _PASSWORD.sub('', text)


def shown_url(url: str | None) -> str:
    """A URL without the user and password that may stand in it."""
    return without_passwords(url or '')


def json_object(model_name: str, content: bytes) -> Mapping[str, Any]:
    """The JSON object that a reply is.

    Raises:
        ModelConnectionError: It is none, which says nothing about what was done.
    """
    if (found := parse_object(content)) is None:
        raise unreadable(model_name, 'something that is no JSON object')
    return found


def unreadable(model_name: str, what: str) -> ModelConnectionError:
    """The error for a reply that says success and is none, as of a proxy in between: nobody knows what was done."""
    return ModelConnectionError(model_name, f'The provider answered with {what}.', phase='read')
