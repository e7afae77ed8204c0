"""AWS's services as a lane asks them: with clients made after the user's own, a call at a time, in threads.

The user's model holds a client of one service, `bedrock-runtime`. Those of the others get its credentials, its region,
its proxies and its time-outs. Each call is sent once, and its errors are the framework's.
"""

# The SDK comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, TypeVar, cast

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.models import Model, get_user_agent

from pydantic_ai_batch.per_model import PerModel, innermost
from pydantic_ai_batch.replay_boto import new_session

from .errors import connection_error, http_error, of_storage, without_passwords
from .lines import list_of_objects, split_lines
from .paging import pages_of, token_in

T = TypeVar('T')

_KEPT = (
    'client_cert',
    'connect_timeout',
    'ignore_configured_endpoint_urls',
    'max_pool_connections',
    'proxies',
    'proxies_config',
    'read_timeout',
    'tcp_keepalive',
    'use_dualstack_endpoint',
    'use_fips_endpoint',
    'user_agent_appid',
)
"""What the clients that are made have of the settings of the user's."""

_API_KEY_VARIABLE = 'AWS_BEARER_TOKEN_BEDROCK'
"""The environment variable with an API key of Bedrock, which the SDK signs with where it is not told otherwise."""

_CHUNK = 1 << 20
_MAX_PAGES = 1_000

_S3_URI = re.compile(r's3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<key>.*))?')


@dataclass(frozen=True)
class S3Place:
    """A bucket, and a key in it or what keys begin with."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f's3://{self.bucket}/{self.key}'


def s3_place(uri: Any) -> S3Place | None:
    """The place that a URI names, or `None` if it is none of S3's."""
    found = _S3_URI.fullmatch(uri) if isinstance(uri, str) else None
    return found and S3Place(found['bucket'], found['key'] or '')


@dataclass(frozen=True)
class Services:
    """Clients of the services that batches need."""

    bedrock: Any
    """The one that makes jobs and tells of them."""

    s3: Any

    who: str | None = field(repr=False)
    """Who asks, as far as that stays the same while a batch runs; `None` for temporary credentials."""


_services: PerModel[Services] = PerModel()
_making = threading.Lock()


async def services_of(model: Model) -> Services:
    """The clients for a model, made once for the client that it holds.

    Raises:
        UserError: There are no credentials for S3.
    """
    inner = innermost(model)
    return _services.get(inner) or await asyncio.to_thread(_kept_services, inner)


def _kept_services(inner: Model) -> Services:
    with _making:
        return _services.get(inner) or _services.keep(inner, _services_like(cast('Any', inner).client))


def _services_like(client: Any) -> Services:
    """Clients with the credentials and the settings of the user's.

    The SDK shows neither the credentials of a client nor the certificates that it trusts. Where they are not found, the
    new clients have what the SDK finds by itself.
    """
    from botocore.config import Config

    meta, signer = client.meta, getattr(client, '_request_signer', None)
    session = new_session()
    credentials = getattr(signer, '_credentials', None)
    if credentials is not None:
        session.register_component('credential_provider', _Held(credentials))
    else:
        credentials = session.get_credentials()
    if credentials is None:
        raise UserError(
            'Batches on Amazon Bedrock are written to and read from S3, and there are no AWS credentials for it: an '
            'API key of Bedrock is none. Set `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or whatever else the '
            'SDK finds credentials in.'
        )
    kept: dict[str, Any] = {name: getattr(meta.config, name) for name in _KEPT}
    kept['user_agent_extra'] = f'{meta.config.user_agent_extra or ""} {get_user_agent()}'.strip()
    kept['retries'] = {'total_max_attempts': 1}
    signature, token = meta.config.signature_version, None
    # One that was asked for is no plain text. If none was, the SDK goes by whether the environment has an API key.
    signed = {'signature_version': signature} if signature == 'bearer' or type(signature) is not str else {}
    if signature == 'bearer' or (not signed and os.environ.get(_API_KEY_VARIABLE)):
        token = getattr(signer, '_auth_token', None)
    if token is not None:
        session.register_component('token_provider', _Held(token))
    http_session = getattr(getattr(client, '_endpoint', None), 'http_session', None)
    verify = getattr(http_session, '_verify', None)
    make = partial(session.create_client, region_name=meta.region_name, verify=None if verify is True else verify)
    bedrock = make('bedrock', config=Config(**kept, **signed))
    return Services(bedrock, make('s3', config=Config(**kept)), _who(credentials, token))


class _Held:
    """Gives what was found already to a session of the SDK, which looks for credentials and tokens by itself."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def load_credentials(self) -> Any:
        return self._held

    def load_token(self, **_: Any) -> Any:
        return self._held


def _who(credentials: Any, token: Any) -> str | None:
    """Who the credentials are of, as far as that stays the same while a batch runs.

    Temporary credentials, with a session token, are others every hour, which must not keep anyone from the batches that
    they had before. All of a process have one account all the same: the role that reads the requests is of one.
    """
    from botocore.credentials import RefreshableCredentials

    if token is not None:
        return str(getattr(token, 'get_frozen_token', lambda: token)().token)
    # Asked for anything, those that refresh themselves may call a service for it.
    if isinstance(credentials, RefreshableCredentials) or credentials.token:
        return None
    return str(credentials.access_key)


@dataclass(frozen=True)
class AWS:
    """Calls of AWS's services for a model."""

    services: Services
    model_name: str

    place_variable: str
    """The environment variable that names the bucket."""

    async def bedrock(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """Make a call of Bedrock's."""
        return await self._call(partial(getattr(self.services.bedrock, operation), **parameters))

    async def put(self, place: S3Place, file: IO[bytes]) -> None:
        """Write an object."""
        await self._s3('put_object', place, Key=place.key, Body=file)

    async def delete(self, place: S3Place) -> None:
        """Delete an object. It need not be there."""
        await self._s3('delete_object', place, Key=place.key)

    async def below(self, place: S3Place) -> list[S3Place]:
        """The objects whose keys begin with that of a place.

        Raises:
            ListingIncomplete: It is not all of a listing.
        """

        async def read(token: str | None) -> tuple[list[S3Place], str | None]:
            further = {'ContinuationToken': token} if token else {}
            page = await self._s3('list_objects_v2', place, Prefix=place.key, **further)
            keys = [item.get('Key') for item in list_of_objects(page.get('Contents'))]
            found = [S3Place(place.bucket, key) for key in keys if isinstance(key, str)]
            return found, (token_in(page, 'NextContinuationToken') or '') if page.get('IsTruncated') else None

        async with aclosing(pages_of(read, _MAX_PAGES, of=f'The listing of {place}')) as pages:
            return [found async for page in pages for found in page]

    async def lines(self, place: S3Place) -> AsyncGenerator[bytes]:
        """The lines of an object, as they arrive."""
        reply = await self._s3('get_object', place, Key=place.key)
        body: Any = reply['Body']
        try:
            async for line in split_lines(self._chunks(body)):
                yield line
        finally:
            body.close()

    async def _chunks(self, body: Any) -> AsyncIterator[bytes]:
        while chunk := await self._call(partial(body.read, _CHUNK)):
            yield chunk

    async def _s3(self, operation: str, place: S3Place, **parameters: Any) -> Mapping[str, Any]:
        """Make a call of S3's, about what is in the bucket of a place."""
        try:
            return await self._call(partial(getattr(self.services.s3, operation), Bucket=place.bucket, **parameters))
        except ModelHTTPError as error:
            raise of_storage(error, place.bucket, self.place_variable) from error.__cause__

    async def _call(self, call: Callable[[], T]) -> T:
        with _errors(self.model_name):
            return await asyncio.to_thread(call)


@contextmanager
def _errors(model_name: str) -> Generator[None]:
    """Raise the framework's errors for those of AWS's SDK and the transport below it."""
    from botocore.exceptions import ClientError, InvalidEndpointConfigurationError, ParamValidationError

    try:
        yield
    except ClientError as error:
        reply = cast('dict[str, Any]', error.response)
        metadata: dict[str, Any] = reply.get('ResponseMetadata', {})
        said: dict[str, Any] = reply.get('Error', {})
        raise http_error(
            model_name,
            metadata.get('HTTPStatusCode', 500),
            {'error': {'code': said.get('Code'), 'message': said.get('Message')}},
            headers=metadata.get('HTTPHeaders'),
        ) from error
    except ParamValidationError as error:
        raise UserError(f'The installed `boto3` makes no such call, and a newer one may: {error}') from error
    except InvalidEndpointConfigurationError as error:
        raise UserError(without_passwords(str(error))) from error
    except (ModelAPIError, UserError):
        raise
    except Exception as error:
        raise connection_error(model_name, error) from error
