"""Batch APIs in OpenAI's shape: a JSONL file goes up, a batch is made of it, two JSONL files come down.

Several providers have one, each with manners of its own, which are hooks here. What servers that only resemble OpenAI's
do differently is read on every lane: statuses in capitals, null counts, times as text, bodies as JSON in a string,
errors as plain text.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch import compat
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus

from .base import (
    TAG_KEY,
    UNKNOWN_TIME,
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
from .errors import json_object, said_of, sdk_headers, status_in, unreadable
from .lines import (
    as_object,
    counts_in,
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_number,
    parse_object,
    parse_time,
    read_line,
    split_lines,
    stray,
    unwrapped,
)
from .openai_client import OpenAIClientLane
from .paging import pages_of

STATUSES: Mapping[str, JobStatus] = {
    'validating': 'submitted',
    'in_progress': 'in_progress',
    'finalizing': 'in_progress',
    'cancelling': 'canceling',
    'completed': 'ended',
    'failed': 'failed',
    'expired': 'expired',
    'cancelled': 'canceled',
}
"""OpenAI's words for where a batch is, as all of the family write them, in whatever case."""

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

_REFUSED_CODES = {
    'unauthorized': 401,
    'authentication': 401,
    'api_key': 401,
    'forbidden': 403,
    'permission': 403,
    'not_found': 404,
    'invalid_model': 404,
}
"""What is in the codes of errors that say who or what was refused, with the status of a live request [guess]."""

_UNRUN_CODES = {'batch_expired': 'expired', 'batch_cancelled': 'canceled'}
"""The codes of error lines of requests that the batch ended without running."""

_REPEATS = 'x-litellm-'
"""What headers of LiteLLM's proxy begin with, which repeats a create whose reply it lost, and tells nobody."""

_PAGE = 100
_MAX_PAGES = 100


@dataclass
class OpenAIShapedLane(OpenAIClientLane):
    """A lane of an API in OpenAI's shape, asked through an SDK of the family that OpenAI's is of."""

    @property
    def batch_endpoint(self) -> str:
        """The endpoint as the call that creates a batch names it."""
        return self.endpoint

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
                endpoint=cast('Any', self.batch_endpoint),
                completion_window=cast('Any', self._window(payload)),
                extra_headers=sdk_headers(),
                **self._labels(payload),
            )
        payload.maybe_doubled = any(name.lower().startswith(_REPEATS) for name in response.http_response.headers)
        created = json_object(self.model.model_name, response.http_response.content)
        return self._batch(self._created(created), payload.group, payload.count)

    def _window(self, payload: Payload) -> str:
        """The window that a batch is to end in, in the provider's words."""
        return f'{compat.window_of(payload.group) or 24}h'

    def _labels(self, payload: Payload) -> dict[str, Any]:
        """What a batch carries its tag in."""
        return {'metadata': {TAG_KEY: payload.tag}}

    def _created(self, reply: Mapping[str, Any]) -> Mapping[str, Any]:
        """The batch in the reply to its creation."""
        return reply

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

    def unlisted(self, batch: Batch, custom_id: str) -> BatchResult | NotRun:
        """What the batch's own end means for a request without a line in its files."""
        line = (line_number(custom_id) or 0) + 1
        if own := [error for error in self._named(batch, custom_id) if _line(error) == line]:
            # Groq leaves out the lines that it names, and runs the others.
            return _failed(custom_id, 400, own)
        return super().unlisted(batch, custom_id)

    def _named(self, batch: Batch, custom_id: str) -> list[dict[str, Any]]:
        """The errors of a batch that name lines of its input, if a wire ID tells which line is its request's."""
        errors = _errors_of((batch.provider_details or {}).get('errors'))
        return [error for error in errors if _line(error)] if line_number(custom_id) is not None else []

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun | None:
        """What the failure of a batch means for a request in it."""
        details = batch.provider_details or {}
        errors, named = _errors_of(details.get('errors')), self._named(batch, custom_id)
        if not errors:
            return None
        if all(error.keys() == {'message'} for error in errors):
            # A text alone does not say whether it passes: sent again, the requests are not paid for twice.
            return NotRun(f'Batch {batch.id!r} failed: {errors[0]["message"]}')
        if named:
            return _failed_for_another(batch, custom_id, named[0])
        code = str(errors[0].get('code'))
        if _is_sent_back(details):
            return sent_back(batch, _failed(custom_id, 429, errors))
        failed = _failed(custom_id, status_in(code, _PASSING_CODES) or 400, errors)
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
        found: list[Batch] = []
        async with aclosing(self._pages()) as pages:
            async for items in pages:
                found += [
                    self._batch(item, payload.group, payload.count) for item in items if self._is_of(item, payload)
                ]
                created = parse_time(items[-1].get('created_at')) if items else None
                if created is not None and created < since:
                    break
        return sorted(found, key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The batches that the provider has for this model's credential, newest first."""
        group = await self.identity()
        async with aclosing(self._pages()) as pages:
            async for items in pages:
                for item in items:
                    model = item.get('model') or item.get('model_id')
                    batch = self._batch(item, group, 0)
                    yield replace(batch, model_name=model) if isinstance(model, str) else batch

    async def _pages(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """The listing of batches, newest first, a page at a time.

        Raises:
            ListingIncomplete: It is no listing, or not all of one.
        """
        check_allow_model_requests()
        async with aclosing(pages_of(self._listed, _MAX_PAGES)) as pages:
            async for items in pages:
                yield items

    async def _listed(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing of batches, newest first, and what the next one comes after, if there is one.

        Raises:
            ListingIncomplete: It is no listing.
        """
        query: dict[str, Any] = {'limit': _PAGE} if after is None else {'limit': _PAGE, 'after': after}
        page = json_object(self.model.model_name, await self._list_batches(query))
        batches = listed_batches(page.get('data'))
        return batches, (batches[-1]['id'] if batches else '') if page.get('has_more') else None

    async def _list_batches(self, query: Mapping[str, Any]) -> bytes:
        """The reply to a call that lists batches."""
        with self._errors('/batches'):
            response = await self.client.batches.with_raw_response.list(
                extra_headers=sdk_headers(), extra_query=query or None
            )
        return response.http_response.content

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
            files, after = await self._listed_files(after)
            for item in files:
                if item.get('filename') == f'{file_name(payload.tag)}.jsonl' and isinstance(item.get('id'), str):
                    payload.receipt['input_file_id'] = item['id']
                    return
            made = parse_time(files[-1].get('created_at')) if files else None
            if after is None or (made is not None and made < since):
                return

    async def _listed_files(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing of files, newest first, and what the next one comes after, if there is one."""
        query: dict[str, Any] = {'purpose': 'batch', 'order': 'desc', 'limit': _PAGE}
        page = json_object(self.model.model_name, await self._list_files(query | ({'after': after} if after else {})))
        files = list_of_objects(page.get('data'))
        last = files[-1].get('id') if files else None
        return files, last if page.get('has_more') and isinstance(last, str) else None

    async def _list_files(self, query: Mapping[str, Any]) -> bytes:
        """The reply to a call that lists files."""
        with self._errors('/files'):
            response = await self.client.files.with_raw_response.list(
                extra_headers=sdk_headers(), extra_query=query or None
            )
        return response.http_response.content

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
        counts = counts_in(object_in(item, 'request_counts'), total='total', completed='completed', failed='failed')
        details: dict[str, Any] = {'status': status, 'input_file_id': item.get('input_file_id') or ''}
        for name in ('output_file_id', 'error_file_id'):
            if isinstance(file_id := item.get(name), str) and file_id:
                details[name] = file_id
        if errors := _errors_of(item.get('errors')) or _errors_of(item.get('error')):
            details['errors'] = errors
        if counts:
            details['request_counts'] = counts
        known = self.info.statuses.get(status)
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
            request_count=max(request_count, counts.get('total') or 0),
            provider_details=details,
        )


def _errors_of(value: Any) -> list[dict[str, Any]]:
    """The errors of a batch, which come as a list, as an object that holds one, or as a text."""
    if isinstance(value, str) and value:
        return [{'message': value}]
    errors = list_of_objects(value) or list_of_objects(as_object(value).get('data'))
    return [{name: field for name, field in error.items() if field is not None} for error in errors]


def _is_sent_back(details: Mapping[str, Any]) -> bool:
    """Whether a batch failed as the queue had no room for it."""
    errors = _errors_of(details.get('errors')) if details.get('status') == 'failed' else []
    return bool(errors) and errors[0].get('code') == 'token_limit_exceeded'


def _status_of_row(code: str) -> int:
    """The status that a live request would get, of a row whose error has a code alone."""
    about_a_request = any(word in code for word in _REQUEST_CODES)
    return status_in(code, _PASSING_CODES) or status_in(code, _REFUSED_CODES) or (400 if about_a_request else 500)


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
    return parse_number(error.get('line'))


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
    body, status_code = unwrapped(response.get('body')), parse_number(response.get('status_code'))
    if status_code is None:
        status_code = 500 if error else 200
    if 200 <= status_code < 300:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(body))
    if body is None and error:
        body = {'error': said_of(error)}
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, body))


def _read_error(custom_id: str, error: Any) -> BatchResult:
    details = said_of(error)
    code = details.get('code')
    if isinstance(code, str) and (unrun := _UNRUN_CODES.get(code)):
        return BatchResult(custom_id=custom_id, status=cast('Any', unrun))
    status_code = _status_of_row(str(code or details.get('type') or ''))
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, {'error': details}))
