"""Rows that are requests as the provider takes them, with an endpoint and a body, as in OpenAI's batch files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import FinishReason, ModelResponse, TextPart
from pydantic_ai.models.batch import BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.usage import RequestUsage

from pydantic_ai_batch.codec import compact_json
from pydantic_ai_batch.compat import provider_body
from pydantic_ai_batch.lanes.base import Lane, NotRun
from pydantic_ai_batch.lanes.openai_shape import OpenAIShapedLane
from pydantic_ai_batch.wording import listed

from .base import InputRow
from .identity import id_of
from .parameters import Parameters
from .row_requests import RowRequests

_FLAVORS = {'/v1/chat/completions': 'chat', '/v1/responses': 'responses', '/v1/embeddings': 'embeddings'}
"""The endpoints whose usage `genai-prices` reads, with its word for each."""

_FINISHES: dict[str, FinishReason] = {
    'stop': 'stop',
    'length': 'length',
    'content_filter': 'content_filter',
    'tool_calls': 'tool_call',
    'function_call': 'tool_call',
}


_LIMITS = ('max_output_tokens', 'max_completion_tokens', 'max_tokens')

_WITHOUT_OUTPUT = frozenset({'/v1/embeddings', '/v1/moderations'})
"""The endpoints whose answers are no tokens."""


def is_raw(columns: Collection[str]) -> bool:
    """Whether rows with these columns are requests as they are sent."""
    return {'url', 'body'} <= set(columns)


@dataclass
class RawRequests(RowRequests):
    """Requests whose bodies the rows have."""

    _groups: dict[int, str] = field(default_factory=dict[int, str])

    def resolved(self, row: InputRow, row_id: str) -> Parameters:
        """The model alone, as all else is in the body."""
        parameters = super().resolved(row, row_id)
        if parameters.settings:
            raise UserError(
                f'{listed([f"`{name}`" for name in parameters.settings])} of the row would change nothing: set it in '
                'the `body`'
            )
        return parameters

    def limit(self, lane: Lane, place: int) -> int | None:
        """The most tokens of the answer to a row."""
        row = self.source[place]
        if self.endpoint(row) in _WITHOUT_OUTPUT:
            return 0
        body = _object(row.fields.get('body'))
        limits = [body[name] for name in _LIMITS if isinstance(body.get(name), int)]
        return limits[0] if limits else None

    def check(self, row: InputRow) -> None:
        """Refuse a row that is no request."""
        if not isinstance(row.fields.get('body'), dict):
            raise UserError('the `body` is no object, as one of a request is')
        self.endpoint(row)
        if (method := row.fields.get('method', 'POST')) != 'POST':
            raise UserError(f'the `method` is {method!r}, and batches take POST alone')
        if not isinstance(model := row.fields['body'].get('model'), str) or not model.strip():
            raise UserError('the `body` names no model, which its endpoint needs')
        if row.fields['body'].get('stream'):
            raise UserError('`stream` cannot be used in a batch, whose answers come whole: leave it out of the `body`')

    def endpoint(self, row: InputRow) -> str:
        """The path of the API that a row is for."""
        url = row.fields.get('url')
        if not isinstance(url, str) or not url.startswith('/'):
            raise UserError(f'the `url` is no path of an API, such as `/v1/responses`, but {url!r}')
        return url

    def model(self, row: InputRow, name: str | None) -> str | None:
        """The model that a row names in its body, of the provider that the job names."""
        body = row.fields.get('body')
        own = cast('dict[str, Any]', body).get('model') if isinstance(body, dict) else None
        if name is None or not isinstance(own, str) or not own:
            return name
        provider, colon, asked = name.partition(':')
        if colon and asked != own:
            raise UserError(
                f'the `body` is for the model {own!r}, and the job for {asked!r}: give one, or the provider'
            )
        return f'{provider}:{own}'

    async def request(self, lane: Lane, place: int) -> BatchRequest:
        """A request that stands for the row, by which its error is read."""
        return BatchRequest(custom_id=self.custom_id(place), messages=[])

    async def encode(self, lane: Lane, place: int) -> tuple[EncodedBatchRequest, int]:
        """The body of a row, as it is."""
        row = self.source[place]
        if (group := self._groups.get(id(lane))) is None:
            group = self._groups[id(lane)] = json.dumps(
                {**json.loads(await lane.identity()), 'url': self.endpoint(row)}, sort_keys=True
            )
        body = compact_json(row.fields['body'])
        return EncodedBatchRequest(custom_id=id_of(row, self.id_column), group=group, body=body), 0

    async def outcome(self, lane: Lane, place: int, result: BatchResult | NotRun) -> ModelResponse:
        """What an answer says, as far as that can be read without knowing its endpoint."""
        if isinstance(result, NotRun) or result.status != 'succeeded':
            return await super().outcome(lane, place, result)
        body = provider_body(result)
        if not isinstance(body, dict):
            raise ModelAPIError(lane.model.model_name, 'The provider returned a body that is no object.')
        return response_in(lane, self.endpoint(self.source[place]), cast('dict[str, Any]', body))


def on_endpoint(lane: Lane, endpoint: str) -> Lane:
    """A lane for requests of an endpoint.

    Raises:
        UserError: The lane's batches take no bodies of other endpoints.
    """
    if not isinstance(lane, OpenAIShapedLane):
        raise UserError(
            f'Rows with `url` and `body` go to batch APIs of the shape of OpenAI, and {lane.info.title} is none: '
            'give the prompts as text (`--prompt`, `--input-column`).'
        )
    return replace(lane, endpoint=endpoint)


def response_in(lane: Lane, endpoint: str, body: dict[str, Any]) -> ModelResponse:
    """What a body says, as far as it is one of Chat Completions or Responses; of others their usage alone.

    Raises:
        ModelAPIError: It says that the request failed.
    """
    if body.get('status') in ('failed', 'cancelled'):
        said = _object(body.get('error')).get('message') or f'its status is {body["status"]!r}'
        raise ModelAPIError(lane.model.model_name, f'The provider could not answer the request: {said}')
    text, finish, refusal = _said(body)
    return ModelResponse(
        parts=[TextPart(content=text)] if text else [],
        usage=_usage(lane, endpoint, body),
        model_name=model if isinstance(model := body.get('model'), str) else lane.model.model_name,
        provider_name=lane.model.system,
        provider_url=lane.model.base_url,
        provider_details={'refusal': refusal} if refusal else None,
        finish_reason=finish,
    )


def _usage(lane: Lane, endpoint: str, body: dict[str, Any]) -> RequestUsage:
    if not (usage := _object(body.get('usage'))):
        return RequestUsage()
    if (flavor := _FLAVORS.get(endpoint)) is not None:
        with warnings.catch_warnings():
            # Usage that cannot be read is no reason to lose the answer.
            warnings.simplefilter('ignore')
            return RequestUsage.extract(
                body,
                provider=lane.model.system,
                provider_url=lane.model.base_url or '',
                provider_fallback='openai',
                api_flavor=flavor,
            )
    return RequestUsage(
        input_tokens=_count(usage.get('prompt_tokens') or usage.get('input_tokens')),
        output_tokens=_count(usage.get('completion_tokens') or usage.get('output_tokens')),
    )


def _said(body: dict[str, Any]) -> tuple[str, FinishReason | None, str | None]:
    """The text of a body, why it ends, and in what words the model refused."""
    if choices := _objects(body.get('choices')):
        message = _object(choices[0].get('message'))
        refusal = _text(message.get('refusal'))
        finish = _FINISHES.get(str(choices[0].get('finish_reason')))
        return _text(message.get('content')), 'content_filter' if refusal else finish, refusal or None
    if not isinstance(body.get('output'), list):
        return '', None, None
    items = _objects(body['output'])
    parts = [part for item in items for part in _objects(item.get('content'))]
    text = ''.join(_text(part.get('text')) for part in parts if part.get('type') == 'output_text')
    refusal = ''.join(_text(part.get('refusal')) for part in parts if part.get('type') == 'refusal')
    if refusal:
        return text, 'content_filter', refusal
    if body.get('status') == 'incomplete':
        reason = _object(body.get('incomplete_details')).get('reason')
        return text, 'content_filter' if reason == 'content_filter' else 'length', None
    return text, 'tool_call' if any(item.get('type') == 'function_call' for item in items) else 'stop', None


def _object(value: Any) -> dict[str, Any]:
    return cast('dict[str, Any]', value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    return [_object(item) for item in cast('list[Any]', value)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ''


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
