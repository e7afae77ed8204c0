"""The lane of Amazon Bedrock's batch inference, whose jobs read a file in S3 and write others there.

A job is ordered with a token, which is our tag, and carries it in its name. Ordered twice with one token, it is one
job; and the listing finds it by its name.

What no client tells is taken from the environment: the role that Bedrock reads and writes the files as, and where in S3
they are. The file of requests is deleted once it was run, and those of results are left to the owner of the bucket.

The facts are from AWS's published SDK and documentation; see `INFO.sources`.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast
from urllib.parse import unquote

from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.per_model import innermost
from pydantic_ai_batch.replay import ReplayCodec
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus

from .aws import AWS, S3Place, s3_place, services_of
from .base import (
    UNKNOWN_TIME,
    Lane,
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
from .credentials import group_key
from .errors import error_object, http_error, said_of, status_in, unreadable
from .lines import (
    as_object,
    counts_in,
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_json,
    parse_number,
    parse_object,
    read_line,
    stray,
)
from .paging import pages_of, token_in

ROLE_VARIABLE = 'AWS_BEDROCK_BATCH_ROLE_ARN'
"""The environment variable with the role that Bedrock reads and writes the files as."""

PLACE_VARIABLE = 'AWS_BEDROCK_BATCH_S3_URI'
"""The environment variable with the place in S3 that the files are below."""

_CONVERSE = '/model/{modelId}/converse'

_STATUSES: Mapping[str, JobStatus] = {
    'Submitted': 'submitted',
    'Validating': 'submitted',
    'Scheduled': 'submitted',
    'InProgress': 'in_progress',
    'Stopping': 'canceling',
    'Completed': 'ended',
    'PartiallyCompleted': 'ended',
    'Failed': 'failed',
    'Expired': 'expired',
    'Stopped': 'canceled',
}

_ERRORS = {
    400: 'ValidationException',
    403: 'AccessDeniedException',
    404: 'ResourceNotFoundException',
    408: 'ModelTimeoutException',
    424: 'ModelErrorException',
    429: 'ThrottlingException',
    500: 'InternalServerException',
    503: 'ServiceUnavailableException',
}
"""What the error of a live request is called, by its status."""

_PASSING_PHRASES = {
    'throttlingexception': 429,
    'too many requests': 429,
    'rate exceeded': 429,
    'number of requests exceeds the limit': 429,
    'modeltimeoutexception': 408,
    'request took too long to process': 408,
    'serviceunavailableexception': 503,
    "service isn't currently available": 503,
    'service unavailable': 503,
    'internalserverexception': 500,
    'internal server error': 500,
    'system encountered an unexpected error': 500,
}
"""What is in the messages of failures that pass, with the status that a live request would get [guess].

These are the names and the words that AWS has for such errors elsewhere, and whole ones: a single word may be about the
file, which is as wrong the next time.
"""

_TOO_FEW = ('minimum', 'at least', 'fewer', 'less than')
"""What is in a message about records if there are too few of them in a job [guess]."""

_MORE = (
    'Bedrock runs no job of fewer requests than a quota of the account says, which is 100 unless it was changed: '
    'gather more in a batch, with a larger `max_wait` or `max_requests`, or ask AWS for another quota.'
)

_ARN = re.compile(r'arn:aws(-[^:]+)?:bedrock:[a-z0-9-]{1,20}:[0-9]{12}:model-invocation-job/(?P<id>[a-z0-9]{12})')
_ROLE = re.compile(r'arn:aws(-[^:]+)?:iam::[0-9]{12}:role/.+')
_KEY = re.compile(r"[-!_*'().a-z0-9A-Z/]*")

_RESULTS = '.jsonl.out'
_PAGE = 1_000
_MAX_PAGES = 1_000

INFO = LaneInfo(
    name='bedrock',
    title='Amazon Bedrock batch inference',
    models='`BedrockConverseModel`',
    endpoints=(_CONVERSE,),
    transport='file in S3',
    max_requests=50_000,
    min_requests=100,
    max_bytes=1_000_000_000,
    models_per_batch=1,
    statuses=_STATUSES,
    windows=(timedelta(hours=24), timedelta(hours=168)),
    window_step=timedelta(hours=1),
    expires=True,
    results_kept=None,
    discount=0.5,
    tag_field='jobName',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='clientRequestToken',
    webhooks=False,
    results_while_running=True,
    results_as='files',
    allowlist=True,
    reports_tier=False,
    plan=f'a role and a place in S3, in `{ROLE_VARIABLE}` and `{PLACE_VARIABLE}`',
    refused='tools, and with them typed answers that are not `NativeOutput` or `PromptedOutput`',
    key_variables=('AWS_ACCESS_KEY_ID', 'AWS_PROFILE', 'AWS_BEARER_TOKEN_BEDROCK'),
    verified=('spec',),
    sources={
        'endpoints': "spec: AWS's SDK 1.44.8, `modelInvocationType`, which can be another one too",
        'transport': "spec: AWS's SDK 1.44.8",
        'max_requests': 'documentation: quotas, which differ by model and account; the lowest that was seen is taken',
        'min_requests': 'documentation: quotas, which differ by model and account; Bedrock is the judge',
        'max_bytes': 'documentation: quotas, 1 GB, read as 10^9',
        'models_per_batch': "spec: AWS's SDK 1.44.8, a job names one model",
        'statuses': "spec: AWS's SDK 1.44.8",
        'windows': "spec: AWS's SDK 1.44.8, any number of hours from 24 to 168",
        'window_step': "spec: AWS's SDK 1.44.8, whole hours",
        'expires': "spec: AWS's SDK 1.44.8, `Expired` if it has not begun by then, else `PartiallyCompleted`",
        'results_kept': 'documentation: the bucket is your own',
        'discount': 'documentation: Bedrock pricing',
        'tag_field': "spec: AWS's SDK 1.44.8",
        'findable': "spec: the listing is filtered by a job's name",
        'listing_proves_absence': 'spec: the listing has every job, a page at a time',
        'ordered': 'documentation: batch inference data, order is not promised',
        'cancellable': "spec: AWS's SDK 1.44.8",
        'listable': "spec: AWS's SDK 1.44.8",
        'repeatable': "spec: AWS's SDK 1.44.8, the call is declared idempotent",
        'webhooks': 'guess: state changes are events of EventBridge, and nothing calls back',
        'results_while_running': "spec: AWS's SDK 1.44.8, of `InProgress`",
        'results_as': 'documentation: batch inference results, a file for each of input, and a manifest',
        'allowlist': 'documentation: models and regions that batch inference supports',
        'reports_tier': 'guess: answers were not seen to',
        'plan': 'documentation: batch inference, a service role and a bucket',
        'refused': 'documentation: batch inference, a request of Converse with a `toolConfig` fails with a 400',
    },
)


@dataclass(frozen=True)
class _Configured:
    """What no client tells."""

    role: str
    place: S3Place
    """What the keys of all files begin with."""

    def input_of(self, tag: str) -> S3Place:
        """Where the file of the requests of a batch is."""
        return S3Place(self.place.bucket, f'{self.place.key}{file_name(tag)}.jsonl')


def _configured() -> _Configured:
    """What the environment says of batches.

    Raises:
        UserError: It does not, or says something else.
    """
    role, uri = (os.environ.get(name, '').strip() for name in (ROLE_VARIABLE, PLACE_VARIABLE))
    if not _ROLE.fullmatch(role):
        raise UserError(
            f'Set the environment variable `{ROLE_VARIABLE}` to the ARN of the service role that Bedrock is to read '
            'and write the files of batches as, such as `arn:aws:iam::123456789012:role/batches`.'
            + (f' It is {role!r}, which is none.' if role else '')
        )
    place = s3_place(uri.rstrip('/'))
    if place is None or not _KEY.fullmatch(place.key):
        raise UserError(
            f'Set the environment variable `{PLACE_VARIABLE}` to where in S3 the files of batches are to be, such as '
            '`s3://my-bucket/batches`.'
            + (f' It is {uri!r}, which is no place in S3: a bucket has no capitals.' if uri else '')
        )
    return _Configured(role, replace(place, key=f'{place.key}/' if place.key else ''))


async def _group(model: Model) -> str:
    """The group key of a model's requests: digests of who asks, and where, and of where the files are."""
    configured, services = _configured(), await services_of(model)
    inner = innermost(model)
    addresses = [cast('Any', inner).client, services.bedrock, services.s3]
    # A batch is looked for in the account and the region that it was made in, whoever asks, and nowhere else. The role
    # is of the account.
    account = configured.role.split(':')[4]
    where = [account, services.bedrock.meta.region_name, *(client.meta.endpoint_url for client in addresses)]
    credential = [services.who, configured.role, str(configured.place)]
    settings = cast('dict[str, Any]', model.settings or {})
    group = group_key(model, credential, ' '.join(where), _CONVERSE)
    return compat.with_model_id(group, settings.get('bedrock_inference_profile'))


def _group_at(group: str, path: str) -> str:
    """The group key of a request for a path, which says the model ID or inference profile that it is for."""
    found = re.search(r'/model/([^/]+)/converse$', path)
    return compat.with_model_id(group, unquote(found[1])) if found else group


def codec() -> ReplayCodec:
    """What encodes and decodes the requests of this lane."""
    return ReplayCodec(_group, _group_at)


@dataclass
class BedrockLane(Lane):
    """The lane of Amazon Bedrock, asked through AWS's SDK."""

    info: ClassVar[LaneInfo] = INFO
    complete: ClassVar[str | None] = 'Completed'

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live.

        Raises:
            UserError: It has tools, with which Bedrock fails each request in a batch.
        """
        encoded = await super().encode(request)
        if '"toolConfig"' in encoded.body and (config := object_in(parse_json(encoded.body), 'toolConfig')):
            specs = [object_in(tool, 'toolSpec') for tool in list_of_objects(config.get('tools'))]
            names = ', '.join(f'`{spec["name"]}`' for spec in specs if 'name' in spec)
            raise UserError(
                f'Bedrock runs no requests with tools in a batch{names and f", and this one has {names}"}: leave them '
                'out. For a typed answer use `NativeOutput` where the model supports it, or else `PromptedOutput`.'
            )
        return encoded

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result as the model would read it live, or raise the error, with what can be done about it."""
        try:
            return await super().decode(result, request)
        except ModelHTTPError as error:
            if not _is_too_few(str(error_object(error.body).get('message') or '')):
                raise
            raise self._hinted(error, _MORE) from error.__cause__

    async def _aws(self) -> AWS:
        return AWS(await services_of(self.model), self.model.model_name, PLACE_VARIABLE)

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file."""
        return b'{"recordId":"%b","modelInput":%b}' % (custom_id.encode(), body)

    # Creating

    async def create(self, payload: Payload) -> Batch:
        """Write the input file and order a job of it, with the tag as its token and in its name."""
        check_allow_model_requests()
        configured, aws = _configured(), await self._aws()
        source = s3_place(payload.receipt.get('input'))
        if source is None:
            source = configured.input_of(payload.tag)
            try:
                await aws.put(source, payload.open())
            except ModelAPIError as error:
                raise NotCreated from error
            payload.receipt['input'] = str(source)
        try:
            job = await aws.bedrock(
                'create_model_invocation_job',
                jobName=file_name(payload.tag),
                clientRequestToken=payload.tag,
                roleArn=configured.role,
                modelId=compat.model_id_of(payload.group) or self.model.model_name,
                modelInvocationType='Converse',
                inputDataConfig={'s3InputDataConfig': {'s3InputFormat': 'JSONL', 's3Uri': str(source)}},
                outputDataConfig={'s3OutputDataConfig': {'s3Uri': str(configured.place)}},
                timeoutDurationInHours=compat.window_of(payload.group) or 24,
            )
        except ModelHTTPError as error:
            raise self._refusal(error) from error.__cause__
        # The reply is the ARN alone.
        return self._batch({'status': 'Submitted', 'submitTime': datetime.now(UTC), **job}, payload)

    def is_repeatable(self, payload: Payload) -> bool:
        """Whether the input file is there already, so that the token is of the same order: that makes one job of it."""
        return 'input' in payload.receipt

    def _refusal(self, error: ModelHTTPError) -> ModelHTTPError:
        """The error of a create, with what can be done about it."""
        said = error_object(error.body)
        message = str(said.get('message') or '')
        if _is_too_few(message):
            return self._hinted(error, _MORE)
        if said.get('code') == 'ServiceQuotaExceededException' and not _is_about_the_file(message):
            # Of jobs at a time, which there will be fewer of. AWS answers a 400, and says to come again later.
            return http_error(self.model.model_name, 429, error.body, headers=error.headers)
        return error

    def _hinted(self, error: ModelHTTPError, hint: str) -> ModelHTTPError:
        return http_error(self.model.model_name, error.status_code, error.body, headers=error.headers, hint=hint)

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Know the input file by its key, which is made of the tag, if the place is still the one that it went to."""
        if compat.same_credential(payload.group, await self.identity()):
            payload.receipt.setdefault('input', str(_configured().input_of(payload.tag)))

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no job was made of."""
        await self._delete(payload.receipt.pop('input', None))

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input file of a job whose requests were all run. Its results are left to the bucket's owner."""
        if self.word(ended) == 'Completed':
            await self._delete((created.provider_details or {}).get('input'))

    async def _delete(self, uri: Any) -> None:
        if (place := s3_place(uri)) is not None:
            with suppress(ModelAPIError, UserError):
                await (await self._aws()).delete(place)

    # Finding

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for jobs of the name that the payload's was ordered with."""
        name = file_name(payload.tag)
        async with aclosing(self._pages(nameContains=name, submitTimeAfter=since)) as pages:
            listed = [(job.get('jobName'), job) async for jobs in pages for job in jobs]
        jobs = called(name, listed)
        for job in jobs:
            # The place may be another one by now: what the job reads was written for it alone, as its name tells.
            source = as_object(as_object(job.get('inputDataConfig')).get('s3InputDataConfig')).get('s3Uri')
            if isinstance(source, str) and source.endswith(f'/{name}.jsonl'):
                payload.receipt['input'] = source
        found = {job['jobArn']: self._batch(job, payload) for job in jobs}
        return sorted(found.values(), key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The jobs of the account in the region, newest first."""
        anything = Sought('', await self.identity())
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                for job in jobs:
                    model, batch = job.get('modelId'), self._batch(job, anything)
                    yield replace(batch, model_name=model) if isinstance(model, str) and model else batch

    async def _pages(self, **filters: Any) -> AsyncGenerator[list[dict[str, Any]]]:
        """The listing of jobs, newest first, a page at a time.

        Raises:
            ListingIncomplete: It is no listing, or not all of one.
        """
        check_allow_model_requests()
        aws = await self._aws()
        parameters = {**filters, 'maxResults': _PAGE, 'sortBy': 'CreationTime', 'sortOrder': 'Descending'}

        async def read(token: str | None) -> tuple[list[dict[str, Any]], str | None]:
            further = {'nextToken': token} if token else {}
            page = await aws.bedrock('list_model_invocation_jobs', **parameters, **further)
            return listed_batches(page.get('invocationJobSummaries'), key='jobArn'), token_in(page, 'nextToken')

        async with aclosing(pages_of(read, _MAX_PAGES)) as pages:
            async for jobs in pages:
                yield jobs

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the job of `payload` at Bedrock."""
        return f'look for a batch inference job that is called {file_name(payload.tag)}'

    # Reading

    async def status(self, batch: Batch) -> Batch:
        """The job as Bedrock describes it now."""
        check_allow_model_requests()
        aws = await self._aws()
        job = await aws.bedrock('get_model_invocation_job', jobIdentifier=_arn(batch.id))
        return replace(self._batch(job, batch), id=batch.id)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the lines of the files of results, which are below the output's place and the job's ID."""
        check_allow_model_requests()
        output = s3_place((batch.provider_details or {}).get('output'))
        if output is None:
            raise unreadable(self.model.model_name, 'a job without an output')
        aws = await self._aws()
        prefix = f'{output.key.rstrip("/")}/{_job_id(batch.id)}/'.lstrip('/')
        try:
            files = await aws.below(S3Place(output.bucket, prefix))
        except ListingIncomplete as error:
            raise ModelAPIError(self.model.model_name, str(error)) from error
        for file in sorted(files, key=str):
            if file.key.endswith(_RESULTS):
                async with aclosing(aws.lines(file)) as lines:
                    async for line in lines:
                        yield read_line(line, _read_line, 'recordId')

    def unlisted(self, batch: Batch, custom_id: str) -> BatchResult | NotRun:
        """What the job's own end means for a request without a result: what was not run in its time has expired."""
        if self.word(batch) == 'PartiallyCompleted':
            return BatchResult(custom_id=custom_id, status='expired')
        return super().unlisted(batch, custom_id)

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | None:
        """What the failure of a job means for a request in it."""
        message = (batch.provider_details or {}).get('message')
        if not isinstance(message, str) or not message:
            return None
        # Whether a request is right is not looked at before it is run: what a job fails for is the matter of all.
        status_code = status_in(message.lower(), _PASSING_PHRASES) or 400
        if _is_too_few(message):
            status_code = 400
        return _errored(custom_id, status_code, {'message': message})

    async def cancel(self, batch: Batch) -> Batch:
        """Ask Bedrock to stop the job; what is finished by then stays collectable, and billed."""
        check_allow_model_requests()
        aws = await self._aws()
        await aws.bedrock('stop_model_invocation_job', jobIdentifier=_arn(batch.id))
        details = {**(batch.provider_details or {}), 'status': 'Stopping'}
        return replace(batch, status='canceling', provider_details=details)

    def _batch(self, job: Mapping[str, Any], known: Batch | Sought) -> Batch:
        batch_id = job.get('jobArn')
        if not isinstance(batch_id, str) or not _ARN.fullmatch(batch_id):
            raise unreadable(self.model.model_name, 'a job without an ARN')
        before, count = (known, known.request_count) if isinstance(known, Batch) else (None, known.count)
        given = before.provider_details or {} if before else cast('Sought', known).receipt
        word = job.get('status')
        word = word if isinstance(word, str) and word else 'InProgress'
        details: dict[str, Any] = {'status': word}
        if isinstance(source := given.get('input'), str):
            # The one that was written here, which alone is ours to delete.
            details['input'] = source
        output = as_object(as_object(job.get('outputDataConfig')).get('s3OutputDataConfig')).get('s3Uri')
        if isinstance(output, str):
            details['output'] = output
        if counts := _counts(job):
            details['request_counts'] = counts
        status = _STATUSES.get(word)
        if status is None:
            self.log_unknown_status(batch_id, word)
            status = 'ended' if isinstance(job.get('endTime'), datetime) else 'in_progress'
        if status == 'failed' and isinstance(message := job.get('message'), str) and message:
            details['message'] = message
        submitted = job.get('submitTime')
        created_at = submitted if isinstance(submitted, datetime) else UNKNOWN_TIME
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=known.group,
            status=FRAMEWORK[status],
            created_at=before.created_at if before else created_at,
            request_count=max(count, counts.get('total', 0)),
            provider_details=details,
        )


def _arn(batch_id: str) -> str:
    """The ARN of a job, which a message history may have made up, as it can stand in a path."""
    if not _ARN.fullmatch(batch_id):
        raise UserError(f'{batch_id!r} is no ARN of a Bedrock job.')
    return batch_id


def _job_id(batch_id: str) -> str:
    return _arn(batch_id).rpartition('/')[2]


def _is_too_few(message: str) -> bool:
    """Whether a message says that a job has too few requests."""
    lowered = message.lower()
    return 'record' in lowered and any(word in lowered for word in _TOO_FEW)


def _is_about_the_file(message: str) -> bool:
    """Whether a quota is one of the requests in a job, and not of jobs."""
    lowered = message.lower()
    return any(word in lowered for word in ('record', 'size', 'file'))


def _counts(job: Mapping[str, Any]) -> dict[str, int]:
    """How many requests there are, and how many have an answer or an error by now, as far as it is told."""
    return counts_in(job, total='totalRecordCount', completed='successRecordCount', failed='errorRecordCount')


def _errored(custom_id: str, status_code: int, said: Mapping[str, Any]) -> BatchResult:
    """The result of a request that failed, with the body that a live one would be answered with."""
    named = {'__type': _ERRORS[status_code]} if status_code in _ERRORS else {}
    body = {**named, **said}
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, body))


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a line of a file says of its request."""
    item = parse_object(line)
    if item is None:
        return damaged(line, 'recordId')
    custom_id, answer, error = item.get('recordId'), item.get('modelOutput'), item.get('error')
    if not isinstance(custom_id, str) or not custom_id:
        if answer:
            return Stray('it has no `recordId`', line.decode('utf-8', 'replace'), keyless=True)
        return stray(line, 'it has no `recordId`')
    if answer and not error:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(answer))
    said = said_of(error)
    message = said.get('errorMessage') or said.get('message') or 'The provider gave no reason.'
    code = said.get('errorCode')
    status_code = parse_number(code)
    if status_code is not None and 400 <= status_code < 600:
        return _errored(custom_id, status_code, {'message': message})
    named = next((status for status, name in _ERRORS.items() if name == code), 500)
    return _errored(custom_id, named, {'message': message})
