"""Mistral's batch API: small batches go up inside the create call, larger ones as a JSONL file.

A job of inline requests has its answers in itself once it is over, and one of a file has them in files of their own;
either is read in either place. The calls are made over the HTTP client below the SDK's: the SDK reads replies into
types of its own, which refuse what they do not know, and it repeats calls if it is told to.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import Model, check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch import compat
from pydantic_ai_batch.per_model import innermost
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
    listed_batches,
    path_id,
)
from .credentials import OF_TRANSPORT, ClientLane, group_key
from .errors import said_of, status_in, unreadable
from .http import HTTP
from .lines import (
    as_list,
    counts_in,
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_number,
    parse_object,
    parse_time,
    read_line,
    stray,
    unwrapped,
)
from .paging import pages_of

INLINE_BYTES = 5_000_000
"""The largest batch that is sent inside the create call. Mistral documents no limit of it but that of the number."""

_INLINE_REQUESTS = 9_999
"""The most requests inside a create call: fewer than 10,000."""

_ENDPOINT = '/v1/chat/completions'
_FILES = '/v1/files'
_JOBS = '/v1/batch/jobs'

_STATUSES: Mapping[str, JobStatus] = {
    'QUEUED': 'submitted',
    'RUNNING': 'in_progress',
    'CANCELLATION_REQUESTED': 'canceling',
    'SUCCESS': 'ended',
    'FAILED': 'failed',
    'TIMEOUT_EXCEEDED': 'expired',
    'CANCELLED': 'canceled',
}

_PASSING_PHRASES = {
    'rate limit': 429,
    'too many requests': 429,
    'timed out': 408,
    'request timeout': 408,
    'service unavailable': 503,
    'temporarily unavailable': 503,
    'internal server error': 500,
}
"""What is in the messages of errors that pass, with the status that a live request would get [guess].

Whole phrases, as a single word may be about a request, which is as wrong the next time.
"""

_TIMEOUT = 300.0
"""How long a call may stand still, in seconds, where the client does not say: as long as the SDK lets it."""

_PAGE = 100
_MAX_PAGES = 100

INFO = LaneInfo(
    name='mistral',
    title='Mistral Batch API',
    models='`MistralModel`',
    endpoints=(_ENDPOINT,),
    transport='inline up to 5 MB and 9,999 requests, else file',
    max_requests=100_000,
    max_bytes=512_000_000,
    models_per_batch=1,
    statuses=_STATUSES,
    windows=(timedelta(hours=24), timedelta(hours=1), timedelta(hours=167)),
    window_step=timedelta(hours=1),
    expires=True,
    results_kept=timedelta(hours=24),
    discount=0.5,
    tag_field='metadata',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='files, or inline',
    reports_tier=False,
    key_variables=('MISTRAL_API_KEY',),
    verified=('recording', 'spec'),
    sources={
        'endpoints': "spec: Mistral's API description, August 2026",
        'transport': "spec: Mistral's API description, August 2026, up to 10,000 requests; the size is a guess",
        'max_requests': 'documentation: known limitations; the page on batches says a million for a whole workspace',
        'max_bytes': "spec: Mistral's API description, August 2026, 512 MB, read as 10^6",
        'models_per_batch': "spec: Mistral's API description, August 2026",
        'statuses': "spec: Mistral's API description, August 2026",
        'windows': 'documentation: batch processing, 24 hours unless asked for, and less than 7 days',
        'window_step': "spec: Mistral's API description, August 2026, whole hours",
        'expires': "spec: Mistral's API description, August 2026",
        'results_kept': 'documentation: known limitations; the page on batches says for ever, and the shorter is taken',
        'discount': 'documentation: batch processing',
        'tag_field': "spec: Mistral's API description, August 2026",
        'findable': "spec: the listing shows a batch's metadata",
        'listing_proves_absence': 'spec: the listing returns every batch, a page at a time',
        'ordered': 'guess: nothing promises it',
        'cancellable': "spec: Mistral's API description, August 2026",
        'repeatable': "spec: Mistral's API description, August 2026",
        'webhooks': 'guess: none was found',
        'results_while_running': 'documentation: batch processing',
        'results_as': 'recording: both were seen',
        'reports_tier': 'recording: `usage.service_tier` is null',
        'listable': "spec: Mistral's API description, August 2026",
    },
)


async def group(model: Model) -> str:
    """The group key of a model's requests: digests of what its SDK client sends with each call, and of where to."""
    configuration = cast('Any', innermost(model)).client.sdk_configuration
    sent = _key_header(configuration)
    http_client = configuration.async_client
    # Of one name, a header of the SDK's takes the place of the HTTP client's.
    headers = {name.lower(): value for name, value in getattr(http_client, 'headers', {}).items()} | sent
    told = sorted(item for item in headers.items() if item[0] not in OF_TRANSPORT)
    credential = [told, str(getattr(http_client, 'params', None) or '')]
    return group_key(model, credential, _base_url(configuration), _ENDPOINT)


@dataclass
class MistralLane(ClientLane):
    """The lane of Mistral's batch API."""

    info: ClassVar[LaneInfo] = INFO
    _outputs: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]], repr=False)
    """The answers in the jobs that a status just showed to have ended."""

    @property
    def http(self) -> HTTP:
        """Calls over the HTTP client of the user's own client, with its key."""
        configuration = cast('Any', self.model).client.sdk_configuration
        return HTTP(
            configuration.async_client,
            _base_url(configuration),
            _key_header(configuration),
            self.model.model_name,
            _TIMEOUT if configuration.timeout_ms is None else configuration.timeout_ms / 1000,
        )

    def _digest(self) -> None:
        """Nothing: the group key tells all that a call carries."""
        self._refuse_hidden_credential()

    def _hidden_credential(self) -> str | None:
        """What the client does, if its credential can change from call to call, or cannot be seen."""
        configuration = self._users_client.sdk_configuration
        if callable(configuration.security):
            return 'calls a function for its API key'
        if configuration.security is None and os.environ.get('MISTRAL_SA_TOKEN_PATH'):
            return 'reads a token from a file for each call'
        if configuration.security is not None and configuration.security.api_key == '':
            return 'has no API key of its own'
        if getattr(configuration.async_client, 'auth', None) is not None:
            return 'leaves its credential to the `auth` of its HTTP client'
        return None

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file."""
        return b'{"custom_id":"%b","body":%b}' % (custom_id.encode(), body)

    async def create(self, payload: Payload) -> Batch:
        """Create a batch with the tag in its metadata: of the requests themselves, or of a file of them."""
        check_allow_model_requests()
        order: dict[str, Any] = {
            'endpoint': _ENDPOINT,
            'model': self.model.model_name,
            'metadata': {TAG_KEY: payload.tag},
            'timeout_hours': compat.window_of(payload.group) or 24,
        }
        if payload.count <= _INLINE_REQUESTS and payload.size <= INLINE_BYTES:
            # Put into the call as they were encoded.
            requests = b','.join(line.rstrip(b'\n') for line in payload.open())
            content = b'%b,"requests":[%b]}' % (_json(order)[:-1], requests)
        else:
            input_file = payload.receipt.get('input_file')
            if input_file is None:
                try:
                    input_file = payload.receipt['input_file'] = await self._upload(payload)
                except ModelAPIError as error:
                    raise NotCreated from error
            content = _json({**order, 'input_files': [input_file]})
        created = await self.http.call('POST', _JOBS, content=content, headers={'Content-Type': 'application/json'})
        return self._batch(created, payload)

    async def _upload(self, payload: Payload) -> str:
        file = await self.http.call(
            'POST',
            _FILES,
            data={'purpose': 'batch'},
            files={'file': (f'{file_name(payload.tag)}.jsonl', payload.open(), 'application/jsonl')},
        )
        file_id = file.get('id')
        if not isinstance(file_id, str) or not file_id:
            raise unreadable(self.model.model_name, 'a file without an ID')
        return file_id

    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        check_allow_model_requests()
        job = await self.http.call('GET', f'{_JOBS}/{_id(batch.id)}')
        updated = self._batch({**job, 'id': batch.id}, batch)
        if updated.status == 'ended' and (outputs := as_list(job.get('outputs'))):
            self._outputs[batch.id] = outputs
        return updated

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """The answers in the job, or else in its output file, and then the lines of its error file."""
        check_allow_model_requests()
        details = batch.provider_details or {}
        outputs = self._outputs.pop(batch.id, [])
        files = [details.get('output_file'), details.get('error_file')]
        answers = compat.counts_of(batch).get('completed', 0)
        if (answers or not compat.is_counted(batch)) and not outputs and not files[0]:
            job = await self.http.call('GET', f'{_JOBS}/{_id(batch.id)}', params={'inline': 'true'})
            outputs = as_list(job.get('outputs'))
        if outputs and (len(outputs) >= answers or not files[0]):
            # The output file holds the same.
            files = files[1:]
            for item in outputs:
                yield read_line(dump_json(item).encode('utf-8', 'surrogatepass'), _read_line, 'custom_id')
        for file_id in files:
            if isinstance(file_id, str) and file_id:
                async with aclosing(self.http.lines(f'{_FILES}/{_id(file_id)}/content')) as lines:
                    async for line in lines:
                        yield read_line(line, _read_line, 'custom_id')

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun | None:
        """What the failure of a batch means for a request in it."""
        errors = list_of_objects((batch.provider_details or {}).get('errors'))
        if not errors:
            return None
        status_code = status_in(str(errors[0].get('message')).lower(), _PASSING_PHRASES) or 400
        message = '; '.join(str(error.get('message')) for error in errors)
        failed = BatchResult(
            custom_id=custom_id, status='errored', body=compat.error_body(status_code, {'message': message})
        )
        # An error says how many requests have it, and not which. One of all of them is every request's own.
        wrong = sum(count for error in errors if isinstance(count := error.get('count', 1), int))
        if status_code != 400 or wrong >= batch.request_count:
            return failed
        return failed_unnamed(batch, failed)

    async def cancel(self, batch: Batch) -> Batch:
        """Ask Mistral to stop the batch; what is finished by then stays collectable, and billed."""
        check_allow_model_requests()
        job = await self.http.call('POST', f'{_JOBS}/{_id(batch.id)}/cancel')
        return self._batch({**job, 'id': batch.id}, batch)

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for batches with the payload's tag, or made of its file, newest page first.

        The listing can be filtered by metadata too, which is not relied on: how the filter is written is not told.
        """
        found: dict[str, Batch] = {}
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                # One that was made meanwhile moves the others on, so that one can be on two pages.
                found |= {job['id']: self._batch(job, payload) for job in jobs if _is_of(job, payload)}
                created = parse_time(jobs[-1].get('created_at')) if jobs else None
                if created is not None and created < since:
                    break
        return sorted(found.values(), key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The batches that Mistral has for this model's key, newest first."""
        anything, seen = Sought('', await self.identity()), set[str]()
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                for job in jobs:
                    if job['id'] not in seen:
                        seen.add(job['id'])
                        model, batch = job.get('model'), self._batch(job, anything)
                        yield replace(batch, model_name=model) if isinstance(model, str) else batch

    async def _pages(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """The listing of batches, newest first, a page at a time.

        Raises:
            ListingIncomplete: It is no listing, or not all of one.
        """
        check_allow_model_requests()
        seen = total = 0

        async def read(number: int | None) -> tuple[list[dict[str, Any]], int | None]:
            nonlocal seen, total
            query: dict[str, Any] = {'page': number or 0, 'page_size': _PAGE, 'order_by': '-created'}
            page = await self.http.call('GET', _JOBS, params=query)
            # The spec lets an empty listing leave them out.
            jobs = listed_batches(page.get('data', [] if page.get('total') == 0 else None))
            listed = page.get('total')
            if not isinstance(listed, int) or listed < total:
                # Where a job was deleted meanwhile, another one has moved to a page that was read.
                raise ListingIncomplete('The provider does not say how many batches there are, or now says fewer.')
            seen, total = seen + len(jobs), listed
            if seen >= total:
                return jobs, None
            # After an empty page, none is told of on which the others are.
            return jobs, (number or 0) + 1 if jobs else 0

        async with aclosing(pages_of(read, _MAX_PAGES)) as pages:
            async for jobs in pages:
                yield jobs

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Find the input file by the name that it was uploaded with."""
        check_allow_model_requests()
        seen = 0
        for page in range(_MAX_PAGES):
            query: dict[str, Any] = {'page': page, 'page_size': _PAGE, 'purpose': 'batch'}
            listing = await self.http.call('GET', _FILES, params=query)
            files = list_of_objects(listing.get('data'))
            for item in files:
                if item.get('filename') == f'{file_name(payload.tag)}.jsonl' and isinstance(item.get('id'), str):
                    payload.receipt['input_file'] = item['id']
                    return
            seen += len(files)
            total = listing.get('total')
            if not files or (isinstance(total, int) and seen >= total):
                return

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no batch was made of."""
        if (file_id := payload.receipt.pop('input_file', None)) is not None:
            await self._delete(file_id)

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input file of a batch whose requests were all run."""
        file_id = (created.provider_details or {}).get('input_file')
        if self.word(ended) == 'SUCCESS' and isinstance(file_id, str):
            await self._delete(file_id)

    async def _delete(self, file_id: str) -> None:
        with suppress(ModelAPIError, UserError):
            await self.http.call('DELETE', f'{_FILES}/{_id(file_id)}')

    def _batch(self, job: Mapping[str, Any], known: Batch | Sought) -> Batch:
        batch_id = job.get('id')
        if not isinstance(batch_id, str) or not batch_id:
            raise unreadable(self.model.model_name, 'a batch without an ID')
        before, count = (known, known.request_count) if isinstance(known, Batch) else (None, known.count)
        given = before.provider_details or {} if before else cast('Sought', known).receipt
        word = job.get('status')
        details: dict[str, Any] = {'status': word.upper() if isinstance(word, str) else 'RUNNING'}
        if isinstance(input_file := given.get('input_file'), str):
            # The one that was uploaded. Mistral makes one of inline requests too, which is not ours to delete.
            details['input_file'] = input_file
        for name in ('output_file', 'error_file'):
            if isinstance(file_id := job.get(name), str) and file_id:
                details[name] = file_id
        if errors := list_of_objects(job.get('errors')):
            details['errors'] = errors
        counts = _counts(job)
        if counts:
            details['request_counts'] = counts
        status = _STATUSES.get(details['status'])
        if status is None:
            self.log_unknown_status(batch_id, str(word))
            status = 'ended' if _seems_over(job, counts) else 'in_progress'
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=known.group,
            status=FRAMEWORK[status],
            created_at=before.created_at if before else parse_time(job.get('created_at')) or UNKNOWN_TIME,
            request_count=max(count, counts.get('total', 0)),
            provider_details=details,
        )


def _key_header(configuration: Any) -> dict[str, str]:
    """The header with the key of an SDK client, which it looks for in the environment if it was given none."""
    security = configuration.security
    key = os.environ.get('MISTRAL_API_KEY') if security is None else security.api_key
    return {} if key is None else {'authorization': f'Bearer {key}'}


def _base_url(configuration: Any) -> str:
    """The URL that an SDK client puts before its paths."""
    return str(configuration.get_server_details()[0])


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(',', ':')).encode()


def _id(text: str) -> str:
    return path_id(text, 'a Mistral batch or file')


def _is_of(job: Mapping[str, Any], payload: Sought) -> bool:
    if object_in(job, 'metadata').get(TAG_KEY) == payload.tag:
        return True
    # The file was uploaded for this payload alone.
    return (file_id := payload.receipt.get('input_file')) is not None and file_id in as_list(job.get('input_files'))


def _counts(job: Mapping[str, Any]) -> dict[str, int]:
    """How many requests there are, and how many have an answer or an error by now: none, until the job has begun."""
    return counts_in(job, total='total_requests', completed='succeeded_requests', failed='failed_requests')


def _seems_over(job: Mapping[str, Any], counts: Mapping[str, int]) -> bool:
    """Whether a job with an unknown status must have ended, by its time, or by its counts and its results."""
    if job.get('completed_at'):
        return True
    written = any(job.get(name) for name in ('output_file', 'error_file', 'outputs'))
    done = counts.get('completed', 0) + counts.get('failed', 0)
    return written and 0 < counts.get('total', 0) <= done


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a line of a file, or an answer in a job, says of its request."""
    item = parse_object(line)
    if item is None:
        return damaged(line, 'custom_id')
    custom_id = item.get('custom_id')
    if not isinstance(custom_id, str) or not custom_id:
        return stray(line, 'it has no `custom_id`')
    response, error = object_in(item, 'response'), item.get('error')
    body, status_code = unwrapped(response.get('body')), parse_number(response.get('status_code'))
    if status_code is None:
        status_code = 200 if response and not error else 500
    if 200 <= status_code < 300 and body is not None:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(body))
    if body is None:
        body = said_of(error)
    status_code = status_code if status_code >= 400 else 500
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, body))
