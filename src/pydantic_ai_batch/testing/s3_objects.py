"""The part of S3 that batches need: objects by their keys, read, written, listed and deleted, in its own words."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.sax.saxutils import escape

from starlette.responses import Response

from pydantic_ai_batch.testing.wire import Download

CODES: Mapping[int, str] = {
    400: 'InvalidRequest',
    401: 'AccessDenied',
    403: 'AccessDenied',
    404: 'NoSuchKey',
    409: 'OperationAborted',
    429: 'SlowDown',
    500: 'InternalError',
    503: 'SlowDown',
}
"""What errors are called, by their status."""

_NAMESPACE = 'http://s3.amazonaws.com/doc/2006-03-01/'


@dataclass(frozen=True)
class FakeObject:
    """An object in a bucket."""

    content: bytes
    project: str
    """The account that it is of."""
    written_at: float
    """In seconds since the epoch."""


def sent(headers: Mapping[str, str], body: bytes) -> bytes:
    """The content of an upload, which may come in chunks with signatures or a checksum behind it.

    Raises:
        ValueError: The chunks are not whole.
    """
    if not headers.get('x-amz-content-sha256', '').startswith('STREAMING-'):
        return body
    content, rest = b'', body
    while True:
        head, found, rest = rest.partition(b'\r\n')
        size = int(head.partition(b';')[0], 16)
        if not found or len(rest) < size:
            raise ValueError('a chunk is not whole')
        if not size:
            return content
        content, rest = content + rest[:size], rest[size:].removeprefix(b'\r\n')


def error_reply(status: int, code: str, message: str) -> Response:
    """An error, in XML."""
    return _xml(f'<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>', status)


def object_reply(key: str, item: FakeObject) -> Response:
    """An object's content."""
    reply = Download(item.content, filename=key.rpartition('/')[2])
    reply.headers['etag'] = _etag(item)
    return reply


def written_reply(item: FakeObject) -> Response:
    """That an object was written."""
    return Response(status_code=200, headers={'etag': _etag(item)})


def listing_reply(
    objects: Mapping[str, FakeObject], *, bucket: str, prefix: str, token: str | None, most: int
) -> Response:
    """A page of the keys that begin with a prefix, in their order."""
    after = base64.urlsafe_b64decode(token).decode() if token else ''
    keys = sorted(key for key in objects if key.startswith(prefix) and key > after)
    page, truncated = keys[:most], len(keys) > most
    contents = ''.join(
        f'<Contents><Key>{escape(key)}</Key><LastModified>{_time(objects[key].written_at)}</LastModified>'
        f'<ETag>{escape(_etag(objects[key]))}</ETag><Size>{len(objects[key].content)}</Size></Contents>'
        for key in page
    )
    following = base64.urlsafe_b64encode(page[-1].encode()).decode() if truncated else ''
    more = f'<NextContinuationToken>{following}</NextContinuationToken>' if truncated else ''
    return _xml(
        f'<ListBucketResult xmlns="{_NAMESPACE}"><Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>'
        f'<KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys><IsTruncated>{str(truncated).lower()}</IsTruncated>'
        f'{more}{contents}</ListBucketResult>',
        200,
    )


def _xml(text: str, status: int) -> Response:
    return Response('<?xml version="1.0" encoding="UTF-8"?>\n' + text, status, media_type='application/xml')


def _etag(item: FakeObject) -> str:
    return f'"{hashlib.md5(item.content, usedforsecurity=False).hexdigest()}"'


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime('%Y-%m-%dT%H:%M:%S.000Z')
