"""The lane of Fireworks' batch inference, whose jobs read a dataset and write another.

A job has the ID that it was ordered with, which is made of our tag. So it is found again with one call, and a create
that is sent twice makes one job: the second is refused, as the ID is taken, and the job is read instead.

Its results are files of the output dataset, behind URLs that are signed. Those are downloaded without the key, which is
nobody's business there. Both datasets belong to the account. The input is deleted once it was run, and the output is
left to its owner.

Batch calls name the account that they are for, which neither the key nor the framework's provider tells: it is taken
from the environment variable `FIREWORKS_ACCOUNT_ID`.

The facts are from Fireworks' published SDK and documentation; see `INFO.sources`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, cast
from urllib.parse import urlsplit

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.codec import compact_json
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus

from .base import (
    UNKNOWN_TIME,
    LaneInfo,
    ListingIncomplete,
    NotCreated,
    NotReadYet,
    NotRun,
    Payload,
    Sought,
    Stray,
    failed_unnamed,
    file_name,
    fits_path,
    listed_batches,
    path_id,
)
from .credentials import digest_of
from .errors import (
    error_object,
    http_error,
    json_object,
    said_of,
    sdk_headers,
    status_in,
    transport_error,
    unreadable,
)
from .lines import (
    as_object,
    counts_in,
    damaged,
    dump_json,
    object_in,
    parse_json,
    parse_number,
    parse_object,
    parse_time,
    read_line,
    split_lines,
    stray,
    unwrapped,
)
from .openai_client import CHAT_COMPLETIONS, OpenAIClientLane
from .paging import pages_of, token_in

ACCOUNT_VARIABLE = 'FIREWORKS_ACCOUNT_ID'
"""The environment variable with the account that batch calls are made for."""

_LIVE = '/inference/v1'
"""What the base URL of live requests ends with. Batch calls go to `/v1` beside it."""

_STATUSES: dict[str, JobStatus] = {
    'UNSPECIFIED': 'submitted',
    'CREATING': 'submitted',
    'CREATING_INPUT_DATASET': 'submitted',
    'VALIDATING': 'submitted',
    'PENDING': 'submitted',
    'RUNNING': 'in_progress',
    'RE_QUEUEING': 'in_progress',
    'IDLE': 'in_progress',
    'PAUSED': 'in_progress',
    'WRITING_RESULTS': 'in_progress',
    'CANCELLING': 'canceling',
    'DELETING': 'canceling',
    'DELETING_CLEANING_UP': 'canceling',
    'COMPLETED': 'ended',
    'EARLY_STOPPED': 'ended',
    'FAILED': 'failed',
    'EXPIRED': 'expired',
    'CANCELLED': 'canceled',
}

_HTTP_STATUSES = {
    'CANCELLED': 408,
    'INVALID_ARGUMENT': 400,
    'DEADLINE_EXCEEDED': 504,
    'NOT_FOUND': 404,
    'ALREADY_EXISTS': 409,
    'PERMISSION_DENIED': 403,
    'RESOURCE_EXHAUSTED': 429,
    'FAILED_PRECONDITION': 400,
    'ABORTED': 409,
    'OUT_OF_RANGE': 400,
    'UNAVAILABLE': 503,
    'UNAUTHENTICATED': 401,
}
"""The status that a live request would get, by gRPC's word for its error."""

_WORDS = {
    'rate_limit': 429,
    'overloaded': 503,
    'unavailable': 503,
    'timeout': 504,
    'unauthorized': 401,
    'authentication': 401,
    'forbidden': 403,
    'permission': 403,
    'not_found': 404,
    'invalid': 400,
}
"""The same by what is in the code or the type of an error that is in the words of live requests [guess]."""

_NOT_OF_A_REQUEST = ('model', 'account', 'permission', 'quota', 'billing', 'deployment')
"""What is in the messages of failures that are about all requests of a job, and not about one of them [guess]."""

_OF_TRANSPORT = frozenset({'accept', 'accept-encoding', 'connection', 'host', 'user-agent'})
"""Headers that a download carries: none that says who asks."""

_PAGE = 200
_MAX_PAGES = 100

INFO = LaneInfo(
    name='fireworks',
    title='Fireworks batch inference',
    models='`OpenAIChatModel` with `FireworksProvider`',
    endpoints=(CHAT_COMPLETIONS,),
    transport='file',
    max_requests=None,
    max_bytes=150_000_000,
    models_per_batch=1,
    statuses=_STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=None,
    discount=0.5,
    tag_field='batchInferenceJobId',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=False,
    repeatable='the ID of the job',
    webhooks=False,
    results_while_running=False,
    results_as='files',
    allowlist=True,
    key_variables=('FIREWORKS_API_KEY',),
    verified=('spec',),
    sources={
        'endpoints': 'documentation: Fireworks batch guide',
        'transport': "spec: Fireworks' SDK 1.2.30, a dataset",
        'max_bytes': 'documentation: upload of dataset files, 150 MB in one call, read as 10^6; a dataset holds more',
        'models_per_batch': "spec: Fireworks' SDK 1.2.30, a job names one model",
        'statuses': "spec: Fireworks' SDK 1.2.30, after `JOB_STATE_`; what some mean is a guess",
        'windows': 'documentation: 24 hours unless another is chosen, for which the create call has no field',
        'expires': 'documentation: Fireworks batch guide',
        'results_kept': 'documentation: the output dataset belongs to the account',
        'discount': 'documentation: Fireworks batch guide',
        'tag_field': "spec: Fireworks' SDK 1.2.30",
        'findable': 'spec: a job is read by the ID that it was ordered with',
        'listing_proves_absence': 'spec: a job that is not there by its ID is answered with 404',
        'ordered': 'guess: nothing is promised',
        'cancellable': "spec: Fireworks' SDK 1.2.30 has no such call; the console can",
        'listable': "spec: Fireworks' SDK 1.2.30",
        'repeatable': 'guess: an ID that is taken is refused, as is the rule for APIs of this design',
        'webhooks': 'guess: none was found',
        'results_while_running': 'guess: nothing is promised',
        'results_as': 'documentation: Fireworks batch guide, a file of results and one of errors',
        'allowlist': 'documentation: Fireworks batch guide, a model says whether it can be batched',
    },
)


@dataclass
class FireworksLane(OpenAIClientLane):
    """The lane of Fireworks, asked through OpenAI's SDK."""

    info: ClassVar[LaneInfo] = INFO
    complete: ClassVar[str | None] = 'COMPLETED'

    @cached_property
    def account(self) -> str:
        """The account that batch calls are made for.

        Raises:
            UserError: The environment does not say, or says something that is no ID.
        """
        account = os.environ.get(ACCOUNT_VARIABLE, '').strip().removeprefix('accounts/')
        if not fits_path(account):
            raise UserError(
                f'Set the environment variable `{ACCOUNT_VARIABLE}` to the ID of your Fireworks account: batch calls '
                'name the account, and the API key does not tell it.'
            )
        return account

    def _digest(self) -> str:
        """A digest of what the calls carry, and of the account they are for, which the client does not tell."""
        return digest_of([super()._digest(), self.account])

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input dataset."""
        return b'{"custom_id":"%b","body":%b}' % (custom_id.encode(), body)

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live, without the model, which the job names."""
        encoded = await super().encode(request)
        body = parse_json(encoded.body.encode('utf-8', 'surrogatepass'))
        body.pop('model', None)
        return replace(encoded, body=compact_json(body))

    # Creating

    async def create(self, payload: Payload) -> Batch:
        """Upload the input dataset and create a job of it, whose ID is made of the tag."""
        check_allow_model_requests()
        if 'ready' not in payload.receipt:
            try:
                await self._upload(payload)
            except ModelAPIError as error:
                raise NotCreated from error
        name = file_name(payload.tag)
        order = {
            'displayName': name,
            'model': self.model.model_name,
            'inputDatasetId': self._resource('datasets', name),
            'outputDatasetId': self._resource('datasets', _output_of(name)),
        }
        try:
            job = await self._post('batchInferenceJobs', order, {'batchInferenceJobId': name})
        except ModelHTTPError as error:
            if not _is_taken(error):
                raise
            job = await self._own(name)
        return self._batch(job, payload)

    # `is_repeatable` is left as it is: that an ID which is taken is refused is a guess.

    async def _own(self, name: str) -> Mapping[str, Any]:
        """The job that has our ID already, so that it was made by a call whose reply was lost.

        Raises:
            ModelConnectionError: It cannot be read, whatever the reason: it was not refused.
        """
        try:
            return await self._get(f'batchInferenceJobs/{name}')
        except ModelAPIError as error:
            raise ModelConnectionError(self.model.model_name, str(error)) from error

    async def _upload(self, payload: Payload) -> None:
        """Make the dataset, fill it with the requests, and see that it was read, each step once."""
        receipt, name = payload.receipt, file_name(payload.tag)
        ready, in_doubt = False, 'dataset' in receipt
        if in_doubt:
            # It may have been filled by a call whose reply was lost. Filled twice, each request would be run twice.
            ready = (await self._state_of(name)).endswith('READY')
        else:
            try:
                await self._post('datasets', {'datasetId': name, 'dataset': {'userUploaded': {}}})
            except ModelHTTPError as error:
                if not _is_taken(error):
                    raise
            receipt['dataset'] = name
        if not ready:
            if 'uploaded' not in receipt:
                try:
                    await self._fill(payload)
                except ModelHTTPError as error:
                    # Refused as it has its file, which is being read.
                    if not in_doubt or error.status_code not in (400, 409):
                        raise
                receipt['uploaded'] = True
            if (await self._state_of(name)).endswith('UPLOADING'):
                raise NotReadYet(f'Fireworks is still reading the dataset {name}.')
        receipt['ready'] = True

    async def _state_of(self, name: str) -> str:
        """The state of a dataset, in capitals."""
        return str((await self._get(f'datasets/{name}')).get('state') or '').upper()

    async def _fill(self, payload: Payload) -> None:
        import httpx2

        name = file_name(payload.tag)
        with self._errors():
            await self.client.post(
                self._url(f'datasets/{name}:upload'),
                cast_to=httpx2.Response,
                body={},
                files={'file': (f'{name}.jsonl', payload.open(), 'application/jsonl')},
                options={'headers': {**sdk_headers(), 'Content-Type': 'multipart/form-data'}},
            )

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Know the dataset by its name, which is made of the tag."""
        payload.receipt.setdefault('dataset', file_name(payload.tag))

    async def discard(self, payload: Sought) -> None:
        """Delete the dataset that no job was made of."""
        name = payload.receipt.pop('dataset', None)
        payload.receipt.pop('uploaded', None)
        payload.receipt.pop('ready', None)
        if name is not None:
            await self._delete(name)

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input dataset of a job whose requests were all run. Its results are left to the account."""
        name = (created.provider_details or {}).get('input_dataset')
        if self.word(ended) == 'COMPLETED' and isinstance(name, str) and name:
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        import httpx2

        with suppress(ModelAPIError, UserError), self._errors():
            await self.client.delete(
                self._url(f'datasets/{_id(name)}'), cast_to=httpx2.Response, options={'headers': sdk_headers()}
            )

    # Finding

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Read the job that has the ID that the payload's was ordered with."""
        check_allow_model_requests()
        name = file_name(payload.tag)
        try:
            job = await self._get(f'batchInferenceJobs/{name}')
        except ModelHTTPError as error:
            if error.status_code != 404:
                raise
            if not error_object(error.body).get('message'):
                raise ListingIncomplete('The 404 does not come from Fireworks.') from error
            return []
        return [self._batch(job, payload)]

    async def listing(self) -> AsyncGenerator[Batch]:
        """The jobs of the account, in the order of its listing, which is not stated."""
        check_allow_model_requests()
        anything = Sought('', await self.identity())
        async with aclosing(pages_of(self._listed, _MAX_PAGES)) as pages:
            async for jobs in pages:
                for job in jobs:
                    model, batch = job.get('model'), self._batch(job, anything)
                    yield replace(batch, model_name=model) if isinstance(model, str) and model else batch

    async def _listed(self, token: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing of jobs, and the token of the next one."""
        page = await self._get('batchInferenceJobs', {'pageSize': _PAGE, **({'pageToken': token} if token else {})})
        # An empty list is left out.
        return listed_batches(page.get('batchInferenceJobs', []), key='name'), token_in(page, 'nextPageToken')

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the job of `payload` at Fireworks."""
        return f'look for a batch inference job that is called {file_name(payload.tag)}'

    # Reading

    async def status(self, batch: Batch) -> Batch:
        """The job as Fireworks describes it now."""
        check_allow_model_requests()
        job = await self._get(f'batchInferenceJobs/{_id(batch.id)}')
        return self._batch({**job, 'name': batch.id}, batch)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the lines of the files of the output dataset, those of errors last."""
        check_allow_model_requests()
        output = (batch.provider_details or {}).get('output_dataset')
        path = f'datasets/{_id(output if isinstance(output, str) else _output_of(batch.id))}:getDownloadEndpoint'
        nothing_done = self.word(batch) in ('FAILED', 'EXPIRED', 'CANCELLED') and not compat.counted(batch)
        try:
            signed = object_in(await self._get(path), 'filenameToSignedUrls')
        except ModelHTTPError as error:
            if error.status_code == 404 and nothing_done:
                # It ended before there was anything to write.
                return
            raise
        if not signed and not nothing_done:
            raise unreadable(self.model.model_name, 'an output dataset without files')
        for name in sorted(signed, key=lambda name: ('error' in name.lower(), name)):
            if not isinstance(url := signed[name], str):
                raise unreadable(self.model.model_name, 'an output dataset without URLs')
            async with aclosing(self._lines(url)) as lines:
                async for line in lines:
                    yield read_line(line, _read_line, 'custom_id')

    async def _lines(self, url: str) -> AsyncGenerator[bytes]:
        """The lines of a file behind a signed URL, over the HTTP client of the user's, without what says who asks."""
        http_client = cast('Any', self.client)._client
        try:
            request = http_client.build_request('GET', url, headers=sdk_headers(), timeout=self.client.timeout)
            # The client may add to the query, which is signed.
            request.url = type(request.url)(url)
            for name in [name for name in request.headers if name.lower() not in _OF_TRANSPORT]:
                del request.headers[name]
            response = await http_client.send(request, stream=True, auth=None, follow_redirects=True)
            try:
                if not response.is_success:
                    # The URL, which lets anyone read the file, is told to nobody.
                    raise http_error(self.model.model_name, response.status_code, None, headers=dict(response.headers))
                async for line in split_lines(response.aiter_bytes()):
                    yield line
            finally:
                await response.aclose()
        except (ModelAPIError, UserError):
            raise
        except Exception as error:
            raise transport_error(self.model.model_name, error) from error

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun | None:
        """What the failure of a job means for a request in it."""
        error = object_in(batch.provider_details, 'error')
        if not error:
            return None
        status_code, message = _status_of(error.get('code'), 400), str(error.get('message') or '')
        body = compat.error_body(status_code, {'error': error})
        failed = BatchResult(custom_id=custom_id, status='errored', body=body)
        about_all = any(word in message.lower() for word in _NOT_OF_A_REQUEST)
        if status_code != 400 or about_all or batch.request_count == 1:
            return failed
        return failed_unnamed(batch, failed)

    async def cancel(self, batch: Batch) -> Batch:
        """There is no such call.

        Raises:
            ModelAPIError: Always.
        """
        raise ModelAPIError(self.model.model_name, f'{self.info.title} has no call that cancels a batch.')

    def _batch(self, job: Mapping[str, Any], known: Batch | Sought) -> Batch:
        batch_id = self._id_in(job.get('name'))
        if isinstance(known, Batch):
            before, count, name = known, known.request_count, (known.provider_details or {}).get('input_dataset')
        else:
            before, count, name = None, known.count, known.receipt.get('dataset')
        said = job.get('state')
        word = said.upper().removeprefix('JOB_STATE_') if isinstance(said, str) else 'UNSPECIFIED'
        output = job.get('outputDatasetId')
        details: dict[str, Any] = {
            'status': word,
            'output_dataset': self._id_in(output) if isinstance(output, str) and output else _output_of(batch_id),
        }
        if isinstance(name, str):
            # The one that was uploaded here, which alone is ours to delete.
            details['input_dataset'] = name
        counts = _counts(object_in(job, 'jobProgress'))
        if counts:
            details['request_counts'] = counts
        status = _STATUSES.get(word)
        if status is None:
            self.log_unknown_status(batch_id, str(said))
            status = 'in_progress'
        error = {name: value for name, value in object_in(job, 'status').items() if name in ('code', 'message')}
        if status == 'failed' and any(error.values()):
            details['error'] = error
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=known.group,
            status=FRAMEWORK[status],
            created_at=before.created_at if before else parse_time(job.get('createTime')) or UNKNOWN_TIME,
            request_count=max(count, counts.get('total', 0)),
            provider_details=details,
        )

    # Calls

    def _resource(self, collection: str, name: str) -> str:
        """The full name of something of the account."""
        return f'accounts/{self.account}/{collection}/{name}'

    def _url(self, path: str) -> str:
        """Where a batch call goes: to the host of the live ones, beside their path."""
        base = str(self.client.base_url).rstrip('/')
        parts = urlsplit(base)
        root = base.removesuffix(_LIVE) if base.endswith(_LIVE) else f'{parts.scheme}://{parts.netloc}'
        return f'{root}/v1/accounts/{self.account}/{path}'

    async def _get(self, path: str, query: Mapping[str, object] | None = None) -> Mapping[str, Any]:
        import httpx2

        with self._errors():
            response = await self.client.get(
                self._url(path), cast_to=httpx2.Response, options={'headers': sdk_headers(), 'params': query or {}}
            )
        return json_object(self.model.model_name, response.content)

    async def _post(
        self, path: str, body: Mapping[str, Any], query: Mapping[str, object] | None = None
    ) -> Mapping[str, Any]:
        import httpx2

        with self._errors():
            response = await self.client.post(
                self._url(path),
                cast_to=httpx2.Response,
                body=body,
                options={'headers': sdk_headers(), 'params': query or {}},
            )
        return json_object(self.model.model_name, response.content)

    def _id_in(self, name: Any) -> str:
        """The ID at the end of a resource's full name, which stands in paths."""
        found = name.rpartition('/')[2] if isinstance(name, str) else ''
        if not fits_path(found):
            raise unreadable(self.model.model_name, 'a batch without an ID')
        return found


def _id(name: str) -> str:
    return path_id(name, 'a Fireworks job or dataset')


def _output_of(name: str) -> str:
    """The ID of the dataset that a job's results are written to."""
    return f'{name}-out'


def _is_taken(error: ModelHTTPError) -> bool:
    """Whether something was refused as its ID is taken [guess]: by the status, or by gRPC's code or word for it."""
    said = error_object(error.body)
    return (
        error.status_code == 409 or said.get('code') in (6, 'ALREADY_EXISTS') or said.get('status') == 'ALREADY_EXISTS'
    )


def _counts(progress: Mapping[str, Any]) -> dict[str, int]:
    """How many requests there are, and how many have an answer or an error by now, as far as it is told."""
    return counts_in(
        progress, total='totalInputRequests', completed='successfullyProcessedRequests', failed='failedRequests'
    )


def _status_of(code: Any, otherwise: int = 500) -> int:
    """The HTTP status of an error, whose code is one, or gRPC's word, or one of live errors."""
    if (number := parse_number(code)) is not None:
        return number if 400 <= number < 600 else otherwise
    if not isinstance(code, str) or not code:
        return otherwise
    return _HTTP_STATUSES.get(code.upper()) or status_in(code.lower(), _WORDS) or 500


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a line of a file says of its request, whose answer may be wrapped in a `body` or not [guess]."""
    item = parse_object(line)
    if item is None:
        return damaged(line, 'custom_id')
    custom_id = item.get('custom_id')
    answer, error = as_object(unwrapped(item.get('response'))), item.get('error')
    if not isinstance(custom_id, str) or not custom_id:
        if answer:
            return Stray('it has no `custom_id`', line.decode('utf-8', 'replace'), keyless=True)
        return stray(line, 'it has no `custom_id`')
    body: Any = answer
    if 'body' in answer and 'choices' not in answer:
        body = unwrapped(answer['body'])
    error = error or object_in(answer, 'error') or object_in(body, 'error')
    status_code = _status_of(answer.get('status_code') or item.get('status_code'), 0)
    if body and not error and not status_code:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(body))
    said = said_of(error)
    status_code = status_code or _status_of(said.get('code') or item.get('code') or said.get('type'))
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, {'error': said}))
