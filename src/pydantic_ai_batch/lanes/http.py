"""Calls of a batch API over the HTTP client below an SDK, where the SDK itself would read too little of a reply.

The HTTP client is the user's own, of either package of httpx, with the proxy, limits and transport that it has. Each
call is sent once, and its errors are the framework's.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai.exceptions import ModelAPIError, UserError

from .errors import error_object, http_error, json_object, of_storage, sdk_headers, shown_url, transport_error
from .lines import parse_object, split_lines

_BUCKET = re.compile('storage/v1/b/([^/]+)/')
"""Where the bucket is in a path of Cloud Storage."""


@dataclass(frozen=True)
class HTTP:
    """Calls to one address, under one credential."""

    client: Any = field(repr=False)
    """The HTTP client."""

    base_url: str
    """What the paths come after."""

    headers: Mapping[str, str] = field(repr=False)
    """What each call carries, such as the key."""

    model_name: str
    """The model that the calls are made for."""

    timeout: float
    """How long a call may stand still, in seconds."""

    bucket_variable: str | None = None
    """The environment variable that names the bucket, where the calls are of Cloud Storage."""

    async def call(self, method: str, path: str, **content: Any) -> Mapping[str, Any]:
        """Make a call, and return the JSON object that it is answered with.

        Args:
            method: The HTTP method.
            path: The path below the base URL.
            content: What is sent, as the HTTP client's `build_request` takes it.
        """
        with self._errors():
            response = await self.client.send(self._request(method, path, content))
            self._check(path, response)
        return json_object(self.model_name, response.content)

    async def lines(self, path: str) -> AsyncGenerator[bytes]:
        """The lines of a file, as they arrive."""
        with self._errors():
            response = await self.client.send(self._request('GET', path, {}), stream=True)
            try:
                if not response.is_success:
                    await response.aread()
                    self._check(path, response)
                async for line in split_lines(response.aiter_bytes()):
                    yield line
            finally:
                await response.aclose()

    def _request(self, method: str, path: str, content: Mapping[str, Any]) -> Any:
        headers = {**sdk_headers(), **self.headers, **content.get('headers', {})}
        return self.client.build_request(
            method, self.base_url + path, timeout=self.timeout, **{**content, 'headers': headers}
        )

    def _check(self, path: str, response: Any) -> None:
        """Raise the error that a reply is, if it is one. A redirection that is not followed is one too."""
        if response.is_success:
            return
        status: int = response.status_code
        body = parse_object(response.content) or response.text
        hint: str | None = None
        if status == 405 or (status == 404 and _says_nothing(body)):
            resource = '/'.join(path.split('/')[:3])
            hint = f'The server at {shown_url(self.base_url)} may have no `{resource}`, which batches need.'
        error = http_error(self.model_name, status, body, headers=dict(response.headers), hint=hint)
        bucket = _BUCKET.search(path)
        raise of_storage(error, bucket[1], self.bucket_variable) if bucket and self.bucket_variable else error

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (ModelAPIError, UserError):
            raise
        except Exception as error:
            raise transport_error(self.model_name, error) from error


def _says_nothing(body: Any) -> bool:
    """Whether the body of a 404 is the one of a path that is not there, and not of what is looked for there."""
    error = error_object(body)
    return not error.get('message') and error.get('detail') in (None, 'Not Found')
