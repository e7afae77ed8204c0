"""Tells that a request was made before: the same body, for the same model at the same endpoint.

The credential is left out, as a project's key is rotated while its batches run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pydantic_ai.messages import ModelMessage, ModelResponse

from pydantic_ai_batch.compat import group_of
from pydantic_ai_batch.exceptions import JournalError

_MADE_UP_ID = re.compile(rb'pyd_ai_[0-9a-f]{32}')
"""The tool-call IDs that the framework makes up where a provider gives none, anew each time it reads an answer."""


@dataclass(frozen=True)
class Fingerprint:
    """What a request is recognised by."""

    digest: bytes
    """Of all of it, but for the credential."""

    family: str
    """Of all but the body: what it shares with the requests that it could stand for if its prompt were another."""

    depth: int
    """How many answers its messages hold: an agent's second request comes only after the answer to its first."""

    group: str
    """Its group key, with the digest of its credential."""


def fingerprint(scope: str, group: str, body: bytes, depth: int) -> Fingerprint:
    """The fingerprint of an encoded request.

    Args:
        scope: The scope of its lane.
        group: Its group key: endpoint, credential, and what else it shares with its batch.
        body: Its body.
        depth: How many answers its messages hold.
    """
    family = _family(scope, group)
    digest = hashlib.sha256(family.encode())
    digest.update(_with_stable_ids(body))
    return Fingerprint(digest.digest(), family, depth, group)


def depth_of(messages: Sequence[ModelMessage]) -> int:
    """How many answers messages hold."""
    return sum(isinstance(message, ModelResponse) for message in messages)


@lru_cache(maxsize=256)
def _family(scope: str, group: str) -> str:
    # Another key may ask for the same, and a batch that is there is as good in whatever window.
    parts = {name: value for name, value in group_of(group).items() if name not in ('credential', 'window')}
    if not parts:
        raise JournalError('The model does not say what its requests have in common, so they cannot be recognised.')
    return hashlib.sha256(json.dumps([scope, parts], sort_keys=True).encode()).hexdigest()[:32]


def _with_stable_ids(body: bytes) -> bytes:
    """The body with each distinct ID that was made up replaced by its number, in the order they come in."""
    if b'pyd_ai_' not in body:
        return body
    numbers: dict[bytes, bytes] = {}

    def number(match: re.Match[bytes]) -> bytes:
        return numbers.setdefault(match.group(), b'pyd_ai_%d' % len(numbers))

    return _MADE_UP_ID.sub(number, body)
