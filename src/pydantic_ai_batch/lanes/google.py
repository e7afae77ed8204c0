"""The Gemini API's batch mode: small batches go up inside the create call, larger ones as a JSONL file.

A batch is a long-running operation. What it came to stands in the operation, under `response` and under
`metadata.output`, as the answers themselves or as the name of a file that holds them; either place and either form is
read for either kind of batch. States are matched by their last word, as `BATCH_STATE_SUCCEEDED` on the wire and
`JOB_STATE_SUCCEEDED` in the documentation are one.
"""

from __future__ import annotations

import json
import logging
import re
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import urlencode

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult

from pydantic_ai_batch.statuses import FRAMEWORK, TERMINAL

from .base import (
    UNKNOWN_TIME,
    LaneInfo,
    ListingIncomplete,
    NotCreated,
    NotRun,
    Payload,
    Sought,
    Stray,
    called,
    file_name,
    listed_batches,
)
from .credentials import ClientLane
from .errors import connection_error, http_error, unreadable
from .gemini import STATES, because_of, check_answer, state_of
from .lines import (
    chunks_of,
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_count,
    parse_object,
    parse_time,
    read_line,
    split_lines,
)
from .paging import pages_of, token_in

if TYPE_CHECKING:
    from google.genai import Client

_log = logging.getLogger('pydantic_ai_batch')

INLINE_BYTES = 19_000_000
"""The largest batch that is sent inside the create call. Google's limit is 20 MB for the call as a whole."""

_PAGE = 100
_MAX_PAGES = 100
_SPOOL_BYTES = 32_000_000

INFO = LaneInfo(
    name='google',
    title='Gemini API batch mode',
    models='`GoogleModel` on the Gemini API',
    endpoints=('models/*:generateContent',),
    transport='inline up to 19 MB, else file',
    max_requests=None,
    max_bytes=2_000_000_000,
    models_per_batch=1,
    statuses=STATES,
    windows=(timedelta(hours=48),),
    expires=True,
    results_kept=timedelta(weeks=6),
    discount=0.5,
    tag_field='displayName',
    findable=True,
    listing_proves_absence=True,
    ordered=True,
    cancellable=True,
    repeatable='nothing',
    webhooks=True,
    results_while_running=False,
    results_as='files, or inline',
    allowlist=True,
    reports_tier=False,
    refused='streaming, and image and video models but those of Gemini',
    plan='a paid tier',
    key_variables=('GEMINI_API_KEY', 'GOOGLE_API_KEY'),
    verified=('recording', 'spec'),
    sources={
        'endpoints': "spec: Google's API description, December 2025",
        'transport': 'documentation: Gemini batch API, 20 MB inline',
        'max_bytes': 'documentation: Gemini batch API, 2 GB, read as 10^9',
        'models_per_batch': "spec: the model is in the create call's path",
        'statuses': "spec: Google's API description, December 2025",
        'windows': 'documentation: Gemini batch API; 24 hours are aimed at, after 48 it expires',
        'expires': 'documentation: Gemini batch API, without any results',
        'results_kept': 'documentation: Gemini batch API',
        'discount': 'documentation: Gemini batch API',
        'tag_field': "spec: Google's API description, December 2025",
        'findable': 'spec: the listing shows display names',
        'listing_proves_absence': 'spec: the listing returns every batch with its display name',
        'ordered': "spec: Google's API description, December 2025",
        'cancellable': "spec: Google's API description, December 2025",
        'repeatable': 'documentation: Gemini batch API, two calls make two jobs',
        'webhooks': "spec: Google's SDK, November 2026",
        'results_while_running': 'documentation: Gemini batch API',
        'results_as': 'recording: both were seen',
        'allowlist': 'documentation: Gemini batch API',
        'reports_tier': 'recording: `serviceTier` is `standard`',
        'refused': 'documentation: Gemini batch API',
        'plan': 'code: other packages say that there is no free tier',
        'listable': "spec: Google's API description, December 2025",
    },
)


@dataclass
class GoogleLane(ClientLane):
    """The lane of the Gemini API."""

    info: ClassVar[LaneInfo] = INFO
    _outputs: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, 'Mapping[str, Any]'], repr=False)
    """The operations of batches that a status just showed to have ended: their results may stand in them."""

    @property
    def client(self) -> Client:
        """The user's own client."""
        return cast('Any', self.model).client

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file."""
        return b'{"key":"%b","request":%b}' % (custom_id.encode(), body)

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result, unless it is a success that holds no answer, which would be read as an empty one."""
        check_answer(self.model.model_name, result)
        return await super().decode(result, request)

    async def create(self, payload: Payload) -> Batch:
        """Create a batch with the tag in its display name: of the requests themselves, or of a file of them."""
        check_allow_model_requests()
        options: dict[str, Any] = {'retry_options': {'attempts': 1}}
        source: Any = []
        if (inline := _inline(payload)) is not None:
            # Put into the call as they were encoded: the SDK's own types for them would convert each once more.
            options['extra_body'] = {'batch': {'inputConfig': {'requests': {'requests': inline}}}}
        else:
            source = payload.receipt.get('input_file')
            if source is None:
                try:
                    source = payload.receipt['input_file'] = await self._upload(payload)
                except ModelAPIError as error:
                    raise NotCreated from error
        with self._errors():
            job = await self.client.aio.batches.create(
                model=self.model.model_name,
                src=source,
                config={'display_name': file_name(payload.tag), 'http_options': cast('Any', options)},
            )
        if not job.name:
            raise unreadable(self.model.model_name, 'a batch without a name')
        details: dict[str, Any] = {'state': 'JOB_STATE_PENDING'}
        if input_file := payload.receipt.get('input_file'):
            details['input_file'] = input_file
        return Batch(
            id=job.name,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=payload.group,
            status='in_progress',
            created_at=job.create_time or UNKNOWN_TIME,
            request_count=payload.count,
            provider_details=details,
        )

    async def _upload(self, payload: Payload) -> str:
        with self._errors():
            file = await self.client.aio.files.upload(
                file=cast('Any', payload.open()),
                config={
                    'mime_type': 'application/jsonl',
                    'display_name': file_name(payload.tag),
                    'http_options': {'retry_options': {'attempts': 1}},
                },
            )
        if not file.name:
            raise unreadable(self.model.model_name, 'a file without a name')
        return file.name

    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        check_allow_model_requests()
        operation = await self._operation(_name(batch))
        if 'metadata' not in operation:
            raise unreadable(self.model.model_name, 'something that is no batch')
        updated = self._batch(operation, batch)
        if updated.status == 'ended':
            self._outputs[batch.id] = operation
        return updated

    async def _operation(self, name: str) -> Mapping[str, Any]:
        with self._errors():
            found = await self.client.aio.operations.get(
                _raw_operation(name), config={'http_options': {'retry_options': {'attempts': 1}}}
            )
        raw: object = found.raw
        if not isinstance(raw, dict):
            raise unreadable(self.model.model_name, 'something that is no JSON object')
        return cast('dict[str, Any]', raw)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """The results, wherever the operation has them."""
        check_allow_model_requests()
        operation = self._outputs.pop(batch.id, None) or await self._operation(_name(batch))
        output = _output(operation)
        file = output.get('responsesFile')
        if isinstance(file, str) and file:
            with tempfile.SpooledTemporaryFile[bytes](max_size=_SPOOL_BYTES) as content:
                with self._errors():
                    # Straight to the download: asking for the file itself fails for the long IDs of result files.
                    await self.client.aio.files.download(
                        file=file,
                        destination=cast('Any', content),
                        config={'http_options': {'retry_options': {'attempts': 1}}},
                    )
                content.seek(0)
                async for line in split_lines(chunks_of(content)):
                    yield read_line(line, _read_line, 'key')
        answers = list_of_objects(object_in(output, 'inlinedResponses').get('inlinedResponses'))
        if answers and not any(_key(answer) for answer in answers):
            # Jobs of old carry no keys. Their order is promised, so it is believed when nothing is missing.
            for answer in self._by_place(answers, operation, batch):
                yield answer
            return
        for answer in answers:
            yield _read(answer, dump_json(answer))

    def _by_place(
        self, answers: Sequence[Mapping[str, Any]], operation: Mapping[str, Any], batch: Batch
    ) -> list[BatchResult | Stray]:
        _, _, tag = str(object_in(operation, 'metadata').get('displayName')).partition(file_name(''))
        if not tag or len(answers) != batch.request_count:
            return [Stray('it carries no key', dump_json(answer), keyless=True) for answer in answers]
        _log.warning(
            'Batch %s returned its results without keys: they are taken in the order of the requests.', batch.id
        )
        return [_result(f'{tag}-{place}', answer) for place, answer in enumerate(answers)]

    def readable(self, batch: Batch) -> int:
        """How many results a batch should have: none if it expired, failed or was cancelled, whatever it had run."""
        succeeded = str((batch.provider_details or {}).get('state')).endswith('SUCCEEDED')
        # The counts of a batch that was just seen to succeed can be old.
        return max(super().readable(batch), batch.request_count) if succeeded else 0

    def lacks_results(self, batch: Batch, results: int, run: int) -> bool:
        """Whether it has more results than were read. They are named by the same reply that tells of the end."""
        return run < self.readable(batch)

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun:
        """What the failure of a batch means for a request in it."""
        why = {'code': 13, 'message': 'The batch failed, and the provider does not say why.'}
        error = object_in(batch.provider_details, 'error') or why
        failed = BatchResult(custom_id=custom_id, status='errored', body=dump_json(error))
        return because_of(error.get('code'), batch, failed)

    async def cancel(self, batch: Batch) -> Batch:
        """Ask Google to stop the batch. Its results are lost, those of requests that were run too."""
        check_allow_model_requests()
        with self._errors():
            await self.client.aio.batches.cancel(
                name=_name(batch), config={'http_options': {'retry_options': {'attempts': 1}}}
            )
        return await self.status(batch)

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for batches with the payload's tag in their display name, newest first."""
        listed: list[tuple[Any, Mapping[str, Any]]] = []
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                listed += [(object_in(job, 'metadata').get('displayName'), job) for job in jobs]
                oldest = parse_time(object_in(jobs[-1], 'metadata').get('createTime')) if jobs else None
                if oldest is not None and oldest < since:
                    break
        stub = self._stub(payload.group, since, payload.count)
        if 'input_file' in payload.receipt:
            stub = replace(stub, provider_details={'input_file': payload.receipt['input_file']})
        found = called(file_name(payload.tag), listed)
        return sorted((self._batch(job, stub) for job in found), key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The batches that Google has for this model's project, newest first."""
        group = await self.identity()
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                for job in jobs:
                    batch = self._batch(job, self._stub(group, UNKNOWN_TIME, 0))
                    model = object_in(job, 'metadata').get('model')
                    yield replace(batch, model_name=model.removeprefix('models/')) if isinstance(model, str) else batch

    async def _pages(self) -> AsyncGenerator[list[dict[str, Any]]]:
        """The listing of batches, newest first, a page at a time."""
        check_allow_model_requests()
        async with aclosing(pages_of(self._listed, _MAX_PAGES)) as pages:
            async for jobs in pages:
                yield jobs

    async def _listed(self, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing of batches, newest first, and the token of the next one."""
        page = await self._operation(f'batches?{urlencode({"pageSize": _PAGE, "pageToken": token or ""})}')
        # An empty listing is an empty object. So is what the SDK makes of no reply at all, which is not told apart.
        return listed_batches(page.get('operations', []), key='name'), token_in(page, 'nextPageToken')

    def _stub(self, group: str, created_at: datetime, request_count: int) -> Batch:
        """What is taken of a batch that its description does not tell."""
        return Batch(
            id='',
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=group,
            status='in_progress',
            created_at=created_at,
            request_count=request_count,
            provider_details={},
        )

    def word(self, batch: Batch) -> str:
        """The provider's own word for where the batch is, without its prefix."""
        return state_of(str((batch.provider_details or {}).get('state') or ''))

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Find the input file by the name that it was uploaded with."""
        check_allow_model_requests()
        token = ''
        for _ in range(_MAX_PAGES):
            page = await self._operation(f'files?{urlencode({"pageSize": _PAGE, "pageToken": token})}')
            for item in list_of_objects(page.get('files')):
                if item.get('displayName') == file_name(payload.tag) and isinstance(item.get('name'), str):
                    payload.receipt['input_file'] = item['name']
                    return
            if not (token := page.get('nextPageToken') or ''):
                return

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no batch was made of."""
        if (name := payload.receipt.pop('input_file', None)) is not None:
            await self._delete(name)

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input file that the batch was created of."""
        if isinstance(name := (created.provider_details or {}).get('input_file'), str):
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        with suppress(ModelAPIError), self._errors():
            await self.client.aio.files.delete(name=name, config={'http_options': {'retry_options': {'attempts': 1}}})

    def _batch(self, operation: Mapping[str, Any], known: Batch) -> Batch:
        metadata = object_in(operation, 'metadata')
        word = str(metadata.get('state') or '')
        state = state_of(word)
        stats = object_in(metadata, 'batchStats')
        status = STATES.get(state)
        if status is None:
            self.log_unknown_status(known.id, word)
            status = 'ended' if operation.get('done') else 'in_progress'
        if operation.get('done') and status not in TERMINAL:
            status = 'ended'
        details = {**(known.provider_details or {}), 'state': f'JOB_STATE_{state}'}
        if error := object_in(operation, 'error'):
            details['error'] = dict(error)
        if isinstance(file := _output(operation).get('responsesFile'), str) and file:
            details['responses_file'] = file
        if stats:
            details['request_counts'] = {
                'total': _count(stats, 'requestCount'),
                'completed': _count(stats, 'successfulRequestCount'),
                'failed': _count(stats, 'failedRequestCount'),
            }
        return Batch(
            id=str(operation.get('name') or known.id),
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=known.group,
            status=FRAMEWORK[status],
            created_at=known.created_at if known.id else parse_time(metadata.get('createTime')) or UNKNOWN_TIME,
            request_count=known.request_count or _count(stats, 'requestCount'),
            provider_details=details,
        )

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Raise the framework's errors for those of the SDK and the transport below it."""
        import httpx2
        from google.genai import errors

        name = self.model.model_name
        try:
            yield
        except errors.APIError as error:
            answer: Any = error
            headers = getattr(answer.response, 'headers', None)
            raise http_error(name, error.code, answer.details, headers=dict(headers or {})) from error
        except httpx2.HTTPStatusError as error:
            raise http_error(name, error.response.status_code, None, headers=dict(error.response.headers)) from error
        except (ModelAPIError, UserError, ListingIncomplete):
            raise
        except (errors.UnknownApiResponseError, ValueError) as error:
            # The SDK parses every reply as JSON, whatever it is.
            raise unreadable(name, f'something that is no reply of its API ({error})') from error
        except Exception as error:
            # A transport of the user's may raise anything. Whatever it is, nobody knows what the provider did.
            raise connection_error(name, error) from error


def _name(batch: Batch) -> str:
    """The batch's name, which a message history may have made up, as it can stand in a path."""
    if not re.fullmatch(r'batches/[A-Za-z0-9_-]+', batch.id):
        raise UserError(f'{batch.id!r} is no name of a Gemini batch.')
    return batch.id


def _raw_operation(name: str) -> Any:
    """An operation that keeps the provider's answer as it is: the SDK's own type for batches reads only half of it."""
    from google.genai import types

    class RawOperation(types.Operation):
        raw: Any

        @classmethod
        def from_api_response(cls, api_response: Any, is_vertex_ai: bool = False) -> RawOperation:
            operation = cls()
            operation.raw = api_response
            return operation

    operation = RawOperation()
    operation.name = name
    return operation


def _inline(payload: Payload) -> list[dict[str, Any]] | None:
    """The requests as they are put into a create call, or `None` if that would be too large.

    What counts is how the SDK writes the call, with spaces and each character that is not ASCII escaped.
    """
    if payload.size > INLINE_BYTES:
        return None
    lines = [parse_object(line) or {} for line in payload.open()]
    requests = [{'request': line['request'], 'metadata': {'key': line['key']}} for line in lines]
    return requests if len(json.dumps(requests)) <= INLINE_BYTES else None


def _output(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    return object_in(operation, 'response') or object_in(object_in(operation, 'metadata'), 'output')


def _count(stats: Mapping[str, Any], name: str) -> int:
    """A count, which Google writes as text and leaves out where it is zero."""
    return parse_count(stats.get(name)) or 0


def _key(answer: Mapping[str, Any]) -> str | None:
    key = answer.get('key') or object_in(answer, 'metadata').get('key')
    return key if isinstance(key, str) and key else None


def _read_line(line: bytes) -> BatchResult | Stray:
    answer = parse_object(line)
    if answer is None:
        return damaged(line, 'key')
    return _read(answer, line.decode('utf-8', 'replace'))


def _read(answer: Mapping[str, Any], raw: str) -> BatchResult | Stray:
    """What a line of a result file, or an inlined response, says of its request."""
    key = _key(answer)
    if key is None:
        return Stray('it carries no key', raw, keyless='response' in answer or 'error' in answer)
    return _result(key, answer)


def _result(custom_id: str, answer: Mapping[str, Any]) -> BatchResult | Stray:
    if isinstance(answer.get('response'), dict):
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(answer['response']))
    if answer.get('response') is not None:
        return Stray('its response is no object', dump_json(answer), custom_id)
    error = object_in(answer, 'error') or object_in(answer, 'status')
    return BatchResult(
        custom_id=custom_id,
        status='errored',
        body=dump_json(error or {'code': 13, 'message': 'The provider returned neither a response nor an error.'}),
    )
