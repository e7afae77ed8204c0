"""Records of rows as they are kept: compressed JSON, without the row itself, which the input has."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.codec import compact_json

from .records import RowResult

_USAGE: TypeAdapter[RequestUsage] = TypeAdapter(RequestUsage)

_PLAIN = ('id', 'status', 'text', 'model', 'finish_reason', 'error_class', 'error', 'batch_id', 'raw')
"""The fields that JSON has as they are."""

_PRICES = ('cost', 'live_cost')


def pack(result: RowResult[Any], output: Any) -> bytes:
    """A record as it is kept.

    Args:
        result: The record.
        output: Its output as JSON has it.
    """
    kept: dict[str, Any] = {name: value for name in _PLAIN if (value := getattr(result, name)) is not None}
    if result.status == 'ok' and output != result.text:
        kept['output'] = output
    if result.usage is not None:
        kept['usage'] = _USAGE.dump_python(result.usage, mode='json', exclude_defaults=True)
    kept |= {name: str(price) for name in _PRICES if (price := getattr(result, name)) is not None}
    return zlib.compress(compact_json(kept).encode('utf-8', 'surrogatepass'), 1)


def unpack(kept: bytes) -> tuple[RowResult[Any], bool]:
    """A record that was kept, its output as JSON has it, and whether that is its text."""
    found: dict[str, Any] = json.loads(zlib.decompress(kept).decode('utf-8', 'surrogatepass'))
    plain: Mapping[str, Any] = {name: found[name] for name in _PLAIN if name in found}
    prices: dict[str, Any] = {name: Decimal(found[name]) for name in _PRICES if name in found}
    is_text = 'output' not in found and found['status'] == 'ok'
    return RowResult(
        **plain,
        output=found.get('text') if is_text else found.get('output'),
        usage=_USAGE.validate_python(found['usage']) if 'usage' in found else None,
        **prices,
    ), is_text
