"""How Google writes JSON: field names in two spellings, times, and errors as a `google.rpc.Status`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

from pydantic_ai_batch.testing.answers import FakeError

Json = dict[str, Any]

RPC_CODES = {
    'CANCELLED': 1,
    'UNKNOWN': 2,
    'INVALID_ARGUMENT': 3,
    'DEADLINE_EXCEEDED': 4,
    'NOT_FOUND': 5,
    'ALREADY_EXISTS': 6,
    'PERMISSION_DENIED': 7,
    'RESOURCE_EXHAUSTED': 8,
    'FAILED_PRECONDITION': 9,
    'ABORTED': 10,
    'OUT_OF_RANGE': 11,
    'UNIMPLEMENTED': 12,
    'INTERNAL': 13,
    'UNAVAILABLE': 14,
    'DATA_LOSS': 15,
    'UNAUTHENTICATED': 16,
}
"""The numbers of `google.rpc.Code` by their names."""

_BY_STATUS = {
    400: 'INVALID_ARGUMENT',
    401: 'UNAUTHENTICATED',
    403: 'PERMISSION_DENIED',
    404: 'NOT_FOUND',
    409: 'ABORTED',
    429: 'RESOURCE_EXHAUSTED',
    499: 'CANCELLED',
    500: 'INTERNAL',
    501: 'UNIMPLEMENTED',
    503: 'UNAVAILABLE',
    504: 'DEADLINE_EXCEEDED',
}
"""The name of the code that goes with an HTTP status."""


def field(value: Json, name: str) -> Any:
    """The field `name` of a message; readers of Protobuf's JSON take `displayName` and `display_name` alike."""
    return value[name] if name in value else value.get(_snake(name))


def object_in(value: Json, name: str) -> Json:
    """The field `name` of a message if it is an object, else an empty one."""
    found = field(value, name)
    return cast('Json', found) if isinstance(found, dict) else {}


def objects_in(value: Json, name: str) -> list[Json]:
    """The objects in the list that the field `name` of a message is; a lone object is a list of one."""
    found = field(value, name)
    items = cast('list[Any]', found) if isinstance(found, list) else [found]
    return [cast('Json', item) for item in items if isinstance(item, dict)]


def timestamp(at: float) -> str:
    """A time as Google writes it, in nanoseconds, which are more digits than `datetime` reads."""
    return f'{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%f}162Z'


def status_name(error: FakeError) -> str:
    """The name of an error's code: the one it gives, if it is one of Google's, or what goes with its HTTP status."""
    if error.code in RPC_CODES:
        return error.code
    return _BY_STATUS.get(error.status, 'INTERNAL' if error.status >= 500 else 'INVALID_ARGUMENT')


def rpc_status(error: FakeError) -> Json:
    """An error as a row or a job reports it: with the number of its code, which is no HTTP status."""
    return {'code': RPC_CODES[status_name(error)], 'message': error.message}


def error_body(error: FakeError) -> Json:
    """The body of an error reply: with the HTTP status, and the name of its code."""
    return {'error': {'code': error.status, 'message': error.message, 'status': status_name(error)}}


def _snake(name: str) -> str:
    return re.sub('[A-Z]', lambda letter: f'_{letter[0].lower()}', name)
