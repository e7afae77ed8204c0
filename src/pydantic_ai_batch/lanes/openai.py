"""The OpenAI Batch API: a JSONL file goes up, a batch is made of it, two JSONL files come down.

The facts are from OpenAI's published API description, its documentation and recorded traffic; see `INFO.sources`. What
servers that only resemble OpenAI's do differently is read as well: statuses in capitals, null counts, times as text,
bodies as JSON in a string, errors as plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import Model, check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch import compat
from pydantic_ai_batch.codec import NativeCodec
from pydantic_ai_batch.per_model import PerModel, innermost
from pydantic_ai_batch.replay import with_client
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus

from .base import (
    TAG_KEY,
    UNKNOWN_TIME,
    LaneInfo,
    ListingIncomplete,
    NotCreated,
    NotRun,
    Payload,
    Sought,
    Stray,
    failed_unnamed,
    file_name,
    line_number,
    listed_batches,
    sent_back,
)
from .credentials import ClientLane
from .errors import error_object, json_object, sdk_errors, sdk_headers, shown_url, unreadable
from .lines import (
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_json,
    parse_object,
    parse_time,
    read_line,
    split_lines,
    stray,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_STATUSES: dict[str, JobStatus] = {
    'validating': 'submitted',
    'in_progress': 'in_progress',
    'finalizing': 'in_progress',
    'cancelling': 'canceling',
    'completed': 'ended',
    'failed': 'failed',
    'expired': 'expired',
    'cancelled': 'canceled',
}

_REQUEST_CODES = ('duplicate', 'invalid', 'malformed', 'mismatch', 'missing', 'required', 'too_long', 'unsupported')
"""What is in the codes of errors that are about a request, which is searched for if it is not named [guess]."""

_WHOLE_BATCH_CODES = (
    'endpoint',
    'file',
    'model',
    # About who asks: a part of the batch would be refused as the whole is.
    'account',
    'api_key',
    'auth',
    'country',
    'organization',
    'permission',
    'project',
    'region',
    'scope',
)
"""What is in the codes among those that are about all of them [guess]."""

_PASSING_CODES = {
    'rate_limit': 429,
    'timeout': 408,
    'conflict': 409,
    'overloaded': 503,
    'unavailable': 503,
    'server_error': 500,
    'internal': 500,
}
"""What is in the codes of errors that pass, with the status that a live request would get [guess]."""

_UNRUN_CODES = {'batch_expired': 'expired', 'batch_cancelled': 'canceled'}
"""The codes of error lines of requests that the batch ended without running."""

_PAGE = 100
_MAX_PAGES = 100

INFO = LaneInfo(
    name='openai',
    title='OpenAI Batch API',
    models='`OpenAIResponsesModel`, `OpenAIChatModel` with `OpenAIProvider`',
    endpoints=('/v1/responses', '/v1/chat/completions'),
    transport='file',
    max_requests=50_000,
    max_bytes=200_000_000,
    models_per_batch=1,
    statuses=_STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=timedelta(days=30),
    discount=0.5,
    tag_field='metadata',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    sources={
        'endpoints': 'spec: openai-openapi, August 2026',
        'transport': 'spec: openai-openapi, August 2026',
        'max_requests': 'documentation: OpenAI batch guide',
        'max_bytes': 'documentation: OpenAI batch guide, 200 MB, read as 10^6',
        'models_per_batch': 'documentation: OpenAI batch guide',
        'statuses': 'spec: openai-openapi, August 2026',
        'windows': 'spec: openai-openapi, August 2026',
        'expires': 'documentation: OpenAI batch guide',
        'results_kept': 'documentation: OpenAI batch guide, 30 days after completion',
        'discount': 'documentation: OpenAI batch guide',
        'tag_field': 'spec: openai-openapi, August 2026',
        'findable': "spec: the listing shows a batch's metadata",
        'listing_proves_absence': 'spec: the listing returns every batch with its metadata',
        'ordered': 'documentation: OpenAI batch guide',
        'cancellable': 'spec: openai-openapi, August 2026',
    },
)


RESPONSES = '/v1/responses'
CHAT_COMPLETIONS = '/v1/chat/completions'

_twins: PerModel[Model] = PerModel()


def responses_twin(model: Model) -> Model:
    """The model of the same name on the Responses API through the same provider and client.

    The framework batches that one, and so knows for it what it does not say for a chat model: whether the provider has
    a batch API, whether the credential may change from call to call, and a digest of it.
    """
    from pydantic_ai.models.openai import OpenAIResponsesModel

    inner = innermost(model)
    if (twin := _twins.get(inner)) is None:
        responses = OpenAIResponsesModel(inner.model_name, provider=cast('Any', inner.provider))
        # Its own client, where a model has another than its provider's: that is the one that the calls are made with.
        twin = _twins.keep(inner, with_client(responses, cast('Any', inner).client))
    return twin


async def chat_group(model: Model) -> str:
    """The group key of a chat model's requests: that of its twin, told apart by the endpoint, which a file is for."""
    group = compat.group_of(await NativeCodec().group(responses_twin(model)))
    return json.dumps({**group, 'url': CHAT_COMPLETIONS}, sort_keys=True)


@dataclass
class OpenAILane(ClientLane):
    """The lane of OpenAI's own endpoint, and of servers that speak its language."""

    info: ClassVar[LaneInfo] = INFO
    made_per_call: ClassVar[Mapping[str, str]] = {
        '_api_key_provider': 'calls a function for its API key',
        'workload_identity': 'signs in with a workload identity',
        '_azure_ad_token_provider': 'calls a function for its Azure AD token',
        '_provider': 'leaves its credential to a `provider`',
    }
    endpoint: str = RESPONSES

    @property
    def client(self) -> AsyncOpenAI:
        """The user's own client, without its retries: what a failure means is decided above."""
        client: AsyncOpenAI = cast('Any', self.model).client
        return client.with_options(max_retries=0)

    @property
    def model_reference(self) -> str:
        """The name by which the framework finds a model of this class again."""
        kind = 'openai-chat' if self.endpoint == CHAT_COMPLETIONS else 'openai-responses'
        return f'{kind}:{self.model.model_name}' if self.model.system == 'openai' else self.model.model_id

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file."""
        return b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}' % (
            custom_id.encode(),
            self.endpoint.encode(),
            body,
        )

    async def create(self, payload: Payload) -> Batch:
        """Upload the input file and create a batch of it, with the tag in its metadata."""
        check_allow_model_requests()
        input_file_id = payload.receipt.get('input_file_id')
        if input_file_id is None:
            try:
                input_file_id = payload.receipt['input_file_id'] = await self._upload(payload)
            except ModelAPIError as error:
                raise NotCreated from error
        with self._errors('/batches'):
            response = await self.client.batches.with_raw_response.create(
                input_file_id=input_file_id,
                endpoint=cast('Any', self.endpoint),
                completion_window='24h',
                metadata={TAG_KEY: payload.tag},
                extra_headers=sdk_headers(),
            )
        return self._batch(
            json_object(self.model.model_name, response.http_response.content), payload.group, payload.count
        )

    async def _upload(self, payload: Payload) -> str:
        with self._errors('/files'):
            response = await self.client.files.with_raw_response.create(
                file=(f'{file_name(payload.tag)}.jsonl', payload.open(), 'application/jsonl'),
                purpose='batch',
                extra_headers=sdk_headers(),
            )
        file_id = json_object(self.model.model_name, response.http_response.content).get('id')
        if not isinstance(file_id, str) or not file_id:
            raise unreadable(self.model.model_name, 'a file without an ID')
        return file_id

    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        check_allow_model_requests()
        with self._errors('/batches'):
            response = await self.client.batches.with_raw_response.retrieve(batch.id, extra_headers=sdk_headers())
        found = json_object(self.model.model_name, response.http_response.content)
        return self._batch({**found, 'id': batch.id}, batch.group, batch.request_count, created_at=batch.created_at)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the lines of the output file, then those of the error file."""
        check_allow_model_requests()
        details = batch.provider_details or {}
        for name in ('output_file_id', 'error_file_id'):
            file_id = details.get(name)
            if not isinstance(file_id, str) or not file_id:
                continue
            with self._errors('/files'):
                async with self.client.files.with_streaming_response.content(
                    file_id, extra_headers=sdk_headers()
                ) as response:
                    async for line in split_lines(response.iter_bytes()):
                        yield read_line(line, _read_line, 'custom_id')

    def readable(self, batch: Batch) -> int:
        """How many results a batch should have: none if it failed, whatever it counts."""
        return 0 if self.word(batch) == 'failed' else super().readable(batch)

    def unlisted(self, batch: Batch, custom_id: str) -> BatchResult | NotRun:
        """What the batch's own end means for a request without a line in its files."""
        details = batch.provider_details or {}
        status = details.get('status')
        if status == 'expired':
            return BatchResult(custom_id=custom_id, status='expired')
        if status == 'cancelled':
            return BatchResult(custom_id=custom_id, status='canceled')
        if status != 'failed':
            return NotRun(f'Batch {batch.id!r} ended without a result for the request.')
        errors = _errors_of(details.get('errors'))
        if not errors:
            return NotRun(f'Batch {batch.id!r} failed, and the provider does not say why.')
        if (named := [error for error in errors if _line(error)]) and (place := line_number(custom_id)) is not None:
            own = [error for error in named if _line(error) == place + 1]
            return _failed(custom_id, 400, own) if own else _failed_for_another(batch, custom_id, named[0])
        code = str(errors[0].get('code'))
        if _is_sent_back(details):
            return sent_back(batch, _failed(custom_id, 429, errors))
        failed = _failed(custom_id, _status_of(code), errors)
        about_a_request = any(word in code for word in _REQUEST_CODES) and not any(
            word in code for word in _WHOLE_BATCH_CODES
        )
        if batch.request_count == 1 or not about_a_request:
            return failed
        return failed_unnamed(batch, failed)

    async def cancel(self, batch: Batch) -> Batch:
        """Ask OpenAI to stop the batch; what is finished by then stays collectable, and billed."""
        check_allow_model_requests()
        with self._errors('/batches'):
            response = await self.client.batches.with_raw_response.cancel(batch.id, extra_headers=sdk_headers())
        return self._batch(
            json_object(self.model.model_name, response.http_response.content), batch.group, batch.request_count
        )

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for batches with the payload's tag, or made of its file, newest page first."""
        check_allow_model_requests()
        found: list[Batch] = []
        after: str | None = None
        for _ in range(_MAX_PAGES):
            query: dict[str, Any] = {'limit': _PAGE} if after is None else {'limit': _PAGE, 'after': after}
            with self._errors('/batches'):
                response = await self.client.batches.with_raw_response.list(extra_headers=sdk_headers(), **query)
            page = json_object(self.model.model_name, response.http_response.content)
            batches = listed_batches(page.get('data'))
            found += [self._batch(item, payload.group, payload.count) for item in batches if self._is_of(item, payload)]
            if not page.get('has_more'):
                break
            if not batches:
                raise ListingIncomplete('The listing has more, and does not say where.')
            if (created := parse_time(batches[-1].get('created_at'))) is not None and created < since:
                break
            after = batches[-1]['id']
        else:
            raise ListingIncomplete(f'The listing was read {_MAX_PAGES} pages deep.')
        return sorted(found, key=lambda batch: batch.created_at)

    @staticmethod
    def _is_of(item: Mapping[str, Any], payload: Sought) -> bool:
        if object_in(item, 'metadata').get(TAG_KEY) == payload.tag:
            return True
        # A server may drop the metadata; the file was uploaded for this payload alone.
        file_id = payload.receipt.get('input_file_id')
        return file_id is not None and item.get('input_file_id') == file_id

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Find the input file by the name that it was uploaded with."""
        check_allow_model_requests()
        after: str | None = None
        for _ in range(_MAX_PAGES):
            query: dict[str, Any] = {'limit': _PAGE} if after is None else {'limit': _PAGE, 'after': after}
            with self._errors('/files'):
                response = await self.client.files.with_raw_response.list(
                    purpose='batch', order='desc', extra_headers=sdk_headers(), **query
                )
            page = json_object(self.model.model_name, response.http_response.content)
            files = list_of_objects(page.get('data'))
            for item in files:
                if item.get('filename') == f'{file_name(payload.tag)}.jsonl' and isinstance(item.get('id'), str):
                    payload.receipt['input_file_id'] = item['id']
                    return
            made = parse_time(files[-1].get('created_at')) if files else None
            after = files[-1].get('id') if files else None
            if not page.get('has_more') or not isinstance(after, str) or (made is not None and made < since):
                return

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no batch was made of, which OpenAI would otherwise keep for 30 days."""
        if (file_id := payload.receipt.pop('input_file_id', None)) is not None:
            await self._delete(file_id)

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input file of a batch whose requests were all run, or none, as a full queue sent it back."""
        file_id = (created.provider_details or {}).get('input_file_id')
        details = ended.provider_details or {}
        done = details.get('status') == 'completed' or _is_sent_back(details)
        if done and isinstance(file_id, str) and file_id:
            await self._delete(file_id)

    async def _delete(self, file_id: str) -> None:
        with suppress(ModelAPIError), self._errors('/files'):
            await self.client.files.with_raw_response.delete(file_id, extra_headers=sdk_headers())

    def _batch(
        self, item: Mapping[str, Any], group: str, request_count: int, *, created_at: datetime | None = None
    ) -> Batch:
        batch_id = item.get('id')
        if not isinstance(batch_id, str) or not batch_id:
            raise unreadable(self.model.model_name, 'a batch without an ID')
        word = item.get('status')
        status = word.lower() if isinstance(word, str) else 'in_progress'
        counts = {name: count for name, count in object_in(item, 'request_counts').items() if isinstance(count, int)}
        details: dict[str, Any] = {'status': status, 'input_file_id': item.get('input_file_id') or ''}
        for name in ('output_file_id', 'error_file_id'):
            if isinstance(file_id := item.get(name), str) and file_id:
                details[name] = file_id
        if errors := _errors_of(item.get('errors')):
            details['errors'] = errors
        if counts:
            details['request_counts'] = counts
        known = _STATUSES.get(status)
        if known is None:
            self.log_unknown_status(batch_id, status)
            known = 'ended' if _seems_over(item, counts) else 'in_progress'
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=group,
            status=FRAMEWORK[known],
            created_at=created_at or parse_time(item.get('created_at')) or UNKNOWN_TIME,
            request_count=counts.get('total') or request_count,
            provider_details=details,
        )

    def _errors(self, resource: str) -> AbstractContextManager[None]:
        """Raise the framework's errors for those of the SDK and the transport below it."""
        import openai

        def hint(status: int, body: Any) -> str | None:
            if status == 405 or (status == 404 and not error_object(body).get('message')):
                return f'The server at {shown_url(self.model.base_url)} may have no `{resource}`, which batches need.'
            return None

        return sdk_errors(openai, self.model.model_name, hint=hint)


def _errors_of(value: Any) -> list[dict[str, Any]]:
    """The errors of a batch, which come as a list or as an object that holds one."""
    errors = list_of_objects(value) or list_of_objects(object_in({'errors': value}, 'errors').get('data'))
    return [{name: field for name, field in error.items() if field is not None} for error in errors]


def _is_sent_back(details: Mapping[str, Any]) -> bool:
    """Whether a batch failed as the queue had no room for it."""
    errors = _errors_of(details.get('errors')) if details.get('status') == 'failed' else []
    return bool(errors) and errors[0].get('code') == 'token_limit_exceeded'


def _status_of(code: str) -> int:
    return next((status for word, status in _PASSING_CODES.items() if word in code), 400)


def _failed(custom_id: str, status_code: int, errors: list[dict[str, Any]]) -> BatchResult:
    """The result of a request whose batch failed, without the lines: they count in a file that nobody has seen."""
    shown = [{name: value for name, value in error.items() if name != 'line'} for error in errors]
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, {'errors': shown}))


def _failed_for_another(batch: Batch, custom_id: str, error: Mapping[str, Any]) -> NotRun:
    tag, _, _ = custom_id.rpartition('-')
    return NotRun(
        f'Batch {batch.id!r} failed for another request in it ({error.get("message") or error.get("code")}), and ran '
        'none.',
        culprit=f'{tag}-{(_line(error) or 0) - 1}',
    )


def _line(error: Mapping[str, Any]) -> int | None:
    line = error.get('line')
    if isinstance(line, str) and line.isdecimal():
        return int(line)
    return line if isinstance(line, int) else None


def _seems_over(item: Mapping[str, Any], counts: Mapping[str, int]) -> bool:
    """Whether a batch with an unknown status must have ended, by its times or its counts."""
    if any(item.get(name) for name in ('completed_at', 'failed_at', 'expired_at', 'cancelled_at')):
        return True
    total = counts.get('total', 0)
    return total > 0 and counts.get('completed', 0) + counts.get('failed', 0) >= total


_SUCCESS = re.compile(
    rb'\s*\{\s*"id"\s*:\s*"[^"\\]*"\s*,\s*"custom_id"\s*:\s*"([A-Za-z0-9_-]+)"\s*,\s*"response"\s*:\s*'
    rb'\{\s*"status_code"\s*:\s*2\d\d\s*,\s*"request_id"\s*:\s*"[^"\\]*"\s*,\s*"body"\s*:\s*(?=\{)'
)
_SUCCESS_ENDS = (b'}}, "error": null}', b'}},"error":null}')


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a line of an output or error file says of its request."""
    # A line as OpenAI writes it is cut open and its body left as it is: decoding the answer parses that anyway.
    if line.endswith(_SUCCESS_ENDS) and (head := _SUCCESS.match(line)):
        end = len(_SUCCESS_ENDS[0 if line.endswith(_SUCCESS_ENDS[0]) else 1]) - 1
        try:
            return BatchResult(custom_id=head[1].decode(), status='succeeded', body=line[head.end() : -end].decode())
        except UnicodeDecodeError:
            pass
    item = parse_object(line)
    if item is None:
        return damaged(line, 'custom_id')
    custom_id = item.get('custom_id')
    if not isinstance(custom_id, str) or not custom_id:
        return stray(line, 'it has no `custom_id`')
    response = item.get('response')
    if isinstance(response, dict):
        return _read_response(custom_id, cast('dict[str, Any]', response), item.get('error'))
    return _read_error(custom_id, item.get('error'))


def _read_response(custom_id: str, response: dict[str, Any], error: Any) -> BatchResult:
    body = response.get('body')
    if isinstance(body, str):
        with suppress(ValueError, RecursionError):
            body = parse_json(body)
    status_code = response.get('status_code')
    if isinstance(status_code, str) and status_code.isdecimal():
        status_code = int(status_code)
    if not isinstance(status_code, int):
        status_code = 500 if error else 200
    if 200 <= status_code < 300:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(body))
    if body is None and error:
        body = {'error': object_in({'error': error}, 'error') or {'message': str(error)}}
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, body))


def _read_error(custom_id: str, error: Any) -> BatchResult:
    details = object_in({'error': error}, 'error') or {'message': str(error or 'The provider gave no reason.')}
    code = details.get('code')
    if isinstance(code, str) and (unrun := _UNRUN_CODES.get(code)):
        return BatchResult(custom_id=custom_id, status=cast('Any', unrun))
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(500, {'error': details}))
