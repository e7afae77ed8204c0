"""Batch prediction jobs of Gemini on Google Cloud (Vertex AI), which read a file in Cloud Storage and write others.

A row has no ID of its own there. Ours stands among the labels of its request, which each line of the results repeats.
The files are in a bucket of the user's, which neither the model nor its client tells: where they go is taken from the
environment variable `GOOGLE_CLOUD_BATCH_GCS_URI`. The input is deleted once it was run; results are left to the owner
of the bucket.

Calls are made over the HTTP client below the SDK's, with its credentials: the SDK reads jobs into types of its own,
which stumble over what they do not know, and has no calls for Cloud Storage.

The facts are from Google's published description of the API and its documentation; see `INFO.sources`.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast
from urllib.parse import quote

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.codec import compact_json
from pydantic_ai_batch.per_model import innermost
from pydantic_ai_batch.statuses import FRAMEWORK

from .base import (
    TAG_KEY,
    UNKNOWN_TIME,
    LaneInfo,
    NotCreated,
    NotRun,
    Payload,
    Sought,
    Stray,
    called,
    file_name,
    listed_batches,
)
from .credentials import ClientLane, digest_of, group_key
from .errors import RPC_STATUSES, status_in, unreadable
from .gemini import STATES, because_of, check_answer, state_of
from .http import HTTP
from .lines import (
    as_list,
    as_object,
    chunks_of,
    damaged,
    dump_json,
    list_of_objects,
    object_in,
    parse_count,
    parse_json,
    parse_number,
    parse_object,
    parse_time,
    read_line,
    unwrapped,
)
from .paging import pages_of, token_in

STORAGE_VARIABLE = 'GOOGLE_CLOUD_BATCH_GCS_URI'
"""The environment variable with the place in Cloud Storage where input files and results go."""

ENDPOINT = 'publishers/*/models/*:generateContent'

_EMULATOR_VARIABLE = 'STORAGE_EMULATOR_HOST'
"""The variable by which Google's own libraries find a server that stands in for Cloud Storage."""

_STORAGE = 'https://storage.googleapis.com'
_TIMEOUT = 300.0
_PAGE = 100
_MAX_PAGES = 100

_NAME = '[A-Za-z0-9][A-Za-z0-9:._-]*'
_JOB = re.compile(f'projects/{_NAME}/locations/{_NAME}/batchPredictionJobs/{_NAME}')
_URI = re.compile(r'gs://([a-z0-9][a-z0-9._-]+[a-z0-9])(?:/(.*))?')

_LABELS = b'{"labels":{'
"""What each body begins with, so that the ID of its row has a known place."""

_OURS = b'"%b":' % TAG_KEY.encode()
"""The name of our label, as it stands in a body."""

_LABEL = re.compile(r'[\w-]{1,63}')
"""What the name of a label is, and its value if it is not empty. Letters may be of any language, and no capitals."""

_MOST_LABELS = 64
"""How many labels a request may have: Google's rule for labels of any resource."""

_HTTP_STATUSES = {**RPC_STATUSES, 1: 499, 12: 501}
"""The status that a live request would get, by gRPC's number of its error."""

_WORDS = {
    'bad request': 400,
    'invalid': 400,
    'unauthenticated': 401,
    'permission': 403,
    'forbidden': 403,
    'not found': 404,
    'not_found': 404,
    'exhausted': 429,
    'quota': 429,
    'too many': 429,
    'deadline': 504,
    'timeout': 504,
    'unavailable': 503,
}
"""The same by what is in the status of a row that is no JSON [guess]."""

INFO = LaneInfo(
    name='vertex',
    title='Vertex AI batch prediction',
    models='`GoogleModel` on Google Cloud',
    endpoints=(ENDPOINT,),
    transport='file',
    max_requests=200_000,
    max_bytes=1_000_000_000,
    models_per_batch=1,
    statuses=STATES,
    windows=(timedelta(hours=96),),
    expires=True,
    results_kept=None,
    discount=0.5,
    tag_field='displayName',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='files',
    allowlist=True,
    refused='API keys of the express mode',
    plan=f'a project with a place in Cloud Storage, in `{STORAGE_VARIABLE}`',
    key_variables=('GOOGLE_APPLICATION_CREDENTIALS',),
    verified=('spec',),
    sources={
        'endpoints': "spec: Google's API description of Vertex AI, v1",
        'transport': "spec: Google's API description of Vertex AI, v1, a file in Cloud Storage",
        'max_requests': 'documentation: batch prediction for Gemini; the page on embeddings says a million',
        'max_bytes': 'documentation: batch prediction for Gemini, 1 GB, read as 10^9',
        'models_per_batch': "spec: Google's API description of Vertex AI, v1",
        'statuses': "spec: Google's API description of Vertex AI, v1",
        'windows': 'documentation: batch prediction for Gemini, up to 72 hours in the queue and 24 hours from then on',
        'expires': 'documentation: batch prediction for Gemini; what was finished by then is kept, and billed',
        'results_kept': 'documentation: the bucket belongs to the user',
        'discount': 'documentation: pricing of Vertex AI',
        'tag_field': "spec: Google's API description of Vertex AI, v1",
        'findable': 'spec: the listing is filtered by display name',
        'listing_proves_absence': 'spec: the listing returns every job with that display name',
        'ordered': 'guess: nothing promises it',
        'cancellable': "spec: Google's API description of Vertex AI, v1",
        'listable': "spec: Google's API description of Vertex AI, v1",
        'repeatable': "spec: Google's API description of Vertex AI, v1, which has no such field",
        'webhooks': "spec: Google's API description of Vertex AI, v1, which has no such field",
        'results_while_running': 'guess: nothing is promised',
        'results_as': "spec: Google's API description of Vertex AI, v1",
        'allowlist': 'documentation: batch prediction for Gemini lists the models',
        'refused': 'guess: such a key opens no bucket',
        'plan': 'documentation: batch prediction for Gemini',
    },
)


async def group(model: Model) -> str:
    """The group key of a model's requests: digests of the project, of who asks, of where to, and of the bucket."""
    client = cast('Any', innermost(model)).client
    api = client._api_client
    if api.api_key or not (api.project and api.location):
        has = 'an API key (express mode), which opens no bucket' if api.api_key else 'no project and location'
        raise UserError(
            f'Model {model.model_id!r} cannot be batched: its client has {has}. Batch jobs and Cloud Storage need a '
            'Google Cloud project, a location and credentials: use `GoogleCloudProvider(project=..., location=...)`, '
            'or set `GOOGLE_CLOUD_PROJECT` and `GOOGLE_CLOUD_LOCATION`, without an API key in `GOOGLE_API_KEY`.'
        )
    who = _who(await _credentials(model.model_name, api))
    # A batch is looked for in the project and the location that it was made in, whoever asks, and nowhere else.
    address = f'{api._http_options.base_url} {api.project} {api.location}'
    return group_key(model, [storage_uri(), who], address, ENDPOINT)


async def _credentials(model_name: str, api: Any) -> Any:
    """The credentials of a client of the SDK, which looks for them when it needs them first."""
    if api._credentials is None:
        await _token(model_name, api)
    return api._credentials


async def _token(model_name: str, api: Any) -> str:
    """A token for the next call.

    Raises:
        UserError: There are no credentials, or they cannot be read.
        ModelConnectionError: They could not be renewed, so that nothing was sent.
    """
    from google.auth import exceptions

    held = api._credentials is not None
    try:
        return await api._async_access_token()
    except (ModelAPIError, UserError):
        raise
    except exceptions.DefaultCredentialsError as error:
        raise UserError(f'There are no credentials for Google Cloud: {error}') from error
    except Exception as error:
        # Beside its own errors, the library raises plain ones for a file or a reply that it cannot read.
        if not held and not isinstance(error, exceptions.GoogleAuthError | OSError):
            raise UserError(
                f'The credentials for Google Cloud cannot be read: {error} Set `GOOGLE_APPLICATION_CREDENTIALS` to a '
                'file that is whole, or run `gcloud auth application-default login`.'
            ) from error
        raise ModelConnectionError(
            model_name, f'The credentials for Google Cloud could not be renewed: {error}', phase='connect'
        ) from error


def _who(credentials: Any) -> str:
    """A digest of who asks, which stays the same when an access token is renewed."""
    from google.auth import compute_engine
    from google.oauth2.credentials import Credentials

    of_machine = isinstance(credentials, compute_engine.Credentials)
    for name in ('service_account_email', 'refresh_token', 'audience', '_audience'):
        # A machine's say whose they are once they were renewed, and not before.
        if not of_machine and isinstance(value := getattr(credentials, name, None), str) and value:
            return digest_of([name, value])
    # A token that nothing renews is all there is to know its owner by.
    fixed = type(credentials) is Credentials and getattr(credentials, 'refresh_handler', None) is None
    token: Any = getattr(credentials, 'token', None) if fixed else None
    return digest_of([type(credentials).__name__, token])


def storage_uri() -> str:
    """The place in Cloud Storage where input files and results go, without a slash at its end.

    Raises:
        UserError: The environment does not say, or says something that is no such place.
    """
    uri = os.environ.get(STORAGE_VARIABLE, '').strip().rstrip('/')
    if not _URI.fullmatch(uri):
        wrong = f' It is {uri!r}, which is none: a bucket has small letters and digits.' if uri else ''
        raise UserError(
            f'Set the environment variable `{STORAGE_VARIABLE}` to a place in Cloud Storage, as `gs://bucket/folder`: '
            f'batch jobs of Google Cloud read their requests there, and write their results to it.{wrong}'
        )
    return uri


@dataclass
class VertexLane(ClientLane):
    """The lane of Gemini on Google Cloud."""

    info: ClassVar[LaneInfo] = INFO
    complete: ClassVar[str | None] = 'SUCCEEDED'
    # It goes as the value of a label.
    wire_ids: ClassVar[re.Pattern[str]] = re.compile('[a-z0-9_-]{1,63}')
    wire_ids_are: ClassVar[str] = '1 to 63 small letters, digits, hyphens and underscores'

    async def _http(self, *, storage: bool = False) -> HTTP:
        """Calls over the HTTP client of the user's own client, with its credentials: to Vertex AI, or to Storage."""
        api: Any = self._users_client._api_client
        options, name = api._http_options, self.model.model_name
        headers = {'Authorization': f'Bearer {await _token(name, api)}'}
        if project := getattr(api._credentials, 'quota_project_id', None):
            headers['x-goog-user-project'] = project
        if storage:
            base_url = os.environ.get(_EMULATOR_VARIABLE) or _STORAGE
            base_url = base_url if '://' in base_url else f'http://{base_url}'
        else:
            base_url = f'{str(options.base_url).rstrip("/")}/{options.api_version}'
            # What the user's client adds to its calls is for where those go.
            headers |= cast('Mapping[str, str]', options.headers or {})
        timeout = _TIMEOUT if options.timeout is None else options.timeout / 1000
        bucket_variable = STORAGE_VARIABLE if storage else None
        return HTTP(api._async_httpx_client, f'{base_url.rstrip("/")}/', headers, name, timeout, bucket_variable)

    @property
    def _jobs(self) -> str:
        api: Any = self._users_client._api_client
        return f'projects/{api.project}/locations/{api.location}/batchPredictionJobs'

    # Encoding

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A line of the input file, with the ID of the row among the labels of its request."""
        if not body.startswith(_LABELS) or _OURS in body:
            # A body that is not of our making, with a label of that name maybe, or none, which is only measured.
            body = _labelled(as_object(parse_object(body))).encode('utf-8', 'surrogatepass')
        labels = body[len(_LABELS) :]
        comma = b'' if labels.startswith(b'}') else b','
        return b'{"request":%b%b"%b"%b%b}' % (_LABELS, _OURS, custom_id.encode(), comma, labels)

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live, its labels first.

        Raises:
            UserError: Google would fail the job, or the request in it, for one of its labels, or for their number.
        """
        encoded = await super().encode(request)
        body = parse_json(encoded.body.encode('utf-8', 'surrogatepass'))
        _check_labels(object_in(body, 'labels'))
        return replace(encoded, body=_labelled(body))

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result, unless it is a success that holds no answer, which would be read as an empty one."""
        check_answer(self.model.model_name, result)
        return await super().decode(result, request)

    # Creating

    async def create(self, payload: Payload) -> Batch:
        """Upload the input file and create a job of it, with the tag in its display name and its labels."""
        check_allow_model_requests()
        name, place = file_name(payload.tag), storage_uri()
        if 'input_file' not in payload.receipt:
            try:
                await self._upload(payload, f'{place}/{name}.jsonl')
            except ModelAPIError as error:
                raise NotCreated from error
        order = {
            'displayName': name,
            'model': _resource(self.model.model_name),
            'labels': {TAG_KEY: payload.tag},
            'inputConfig': {'instancesFormat': 'jsonl', 'gcsSource': {'uris': [payload.receipt['input_file']]}},
            'outputConfig': {
                'predictionsFormat': 'jsonl',
                'gcsDestination': {'outputUriPrefix': f'{place}/{name}'},
            },
        }
        job = await (await self._http()).call('POST', self._jobs, json=order)
        return self._batch(job, payload)

    async def _upload(self, payload: Payload, uri: str) -> None:
        bucket, name = _object(uri)
        http = await self._http(storage=True)
        await http.call(
            'POST',
            f'upload/storage/v1/b/{bucket}/o',
            params={'uploadType': 'media', 'name': name},
            content=chunks_of(payload.open()),
            headers={'Content-Type': 'application/jsonl', 'Content-Length': str(payload.size)},
        )
        payload.receipt['input_file'] = uri

    async def recall(self, payload: Sought, *, since: datetime) -> None:
        """Know the input file by its name, which is made of the tag, if the place is still the one that it went to."""
        if compat.same_credential(payload.group, await self.identity()):
            payload.receipt.setdefault('input_file', f'{storage_uri()}/{file_name(payload.tag)}.jsonl')

    async def discard(self, payload: Sought) -> None:
        """Delete the input file that no job was made of."""
        if (uri := payload.receipt.pop('input_file', None)) is not None:
            await self._delete(uri)

    async def clean_up(self, created: Batch, ended: Batch) -> None:
        """Delete the input file that the job was created of. Its results are left to the owner of the bucket."""
        if isinstance(uri := (created.provider_details or {}).get('input_file'), str):
            await self._delete(uri)

    async def _delete(self, uri: str) -> None:
        bucket, name = _object(uri)
        with suppress(ModelAPIError, UserError):
            http = await self._http(storage=True)
            await http.call('DELETE', f'storage/v1/b/{bucket}/o/{quote(name, safe="")}')

    # Finding

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for jobs with the payload's tag in their display name."""
        name = file_name(payload.tag)
        async with aclosing(self._pages(filter=f'display_name="{name}"')) as pages:
            listed = [(job.get('displayName'), job) async for jobs in pages for job in jobs]
        jobs = called(name, listed)
        for job in jobs:
            # The place may be another one by now: what the job reads was written for it alone, as its name tells.
            for uri in as_list(object_in(object_in(job, 'inputConfig'), 'gcsSource').get('uris')):
                if isinstance(uri, str) and _URI.fullmatch(uri) and uri.endswith(f'/{name}.jsonl'):
                    payload.receipt['input_file'] = uri
        found = {job['name']: self._batch(job, payload) for job in jobs}
        return sorted(found.values(), key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The jobs of the project in this location, in the order of its listing, which is not stated."""
        anything, seen = Sought('', await self.identity()), set[str]()
        async with aclosing(self._pages()) as pages:
            async for jobs in pages:
                for job in jobs:
                    if job['name'] not in seen:
                        seen.add(job['name'])
                        model, batch = job.get('model'), self._batch(job, anything)
                        yield replace(batch, model_name=_named(model)) if isinstance(model, str) else batch

    async def _pages(self, **query: str) -> AsyncGenerator[list[dict[str, Any]]]:
        """The listing of jobs, a page at a time.

        Raises:
            ListingIncomplete: It is no listing, or not all of one.
        """
        check_allow_model_requests()

        async def read(token: str | None) -> tuple[list[dict[str, Any]], str | None]:
            params = {'pageSize': _PAGE, **query, **({'pageToken': token} if token else {})}
            page = await (await self._http()).call('GET', self._jobs, params=params)
            # An empty list is left out.
            return listed_batches(page.get('batchPredictionJobs', []), key='name'), token_in(page, 'nextPageToken')

        async with aclosing(pages_of(read, _MAX_PAGES)) as pages:
            async for jobs in pages:
                yield jobs

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the job of `payload` on Google Cloud."""
        return f'look for a batch prediction job that is called {file_name(payload.tag)}'

    # Reading

    async def status(self, batch: Batch) -> Batch:
        """The job as Google describes it now."""
        check_allow_model_requests()
        job = await (await self._http()).call('GET', _id(batch.id))
        if not job.keys() & {'state', 'createTime', 'displayName'}:
            raise unreadable(self.model.model_name, 'something that is no batch')
        return self._batch({**job, 'name': batch.id}, batch)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the lines of the job's files of predictions, wherever below its place in the bucket they are."""
        check_allow_model_requests()
        place = (batch.provider_details or {}).get('output_directory')
        names = await self._files(place) if isinstance(place, str) else []
        if not names:
            if self.word(batch).endswith('SUCCEEDED') and batch.request_count:
                raise unreadable(self.model.model_name, 'a batch without files of results')
            return
        bucket, _ = _object(cast('str', place))
        for name in names:
            http = await self._http(storage=True)
            async with aclosing(http.lines(f'storage/v1/b/{bucket}/o/{quote(name, safe="")}?alt=media')) as lines:
                async for line in lines:
                    yield read_line(line, _read_line, TAG_KEY)

    async def _files(self, place: str) -> list[str]:
        """The names of the files of predictions below a place, those that are said to be whole first."""
        bucket, folder = _object(place)
        names, token = set[str](), ''
        for _ in range(_MAX_PAGES):
            params = {'prefix': f'{folder}/', **({'pageToken': token} if token else {})}
            page = await (await self._http(storage=True)).call('GET', f'storage/v1/b/{bucket}/o', params=params)
            names |= {str(item.get('name')) for item in list_of_objects(page.get('items'))}
            token = str(page.get('nextPageToken') or '')
            if not token:
                found = [name for name in names if name.endswith('.jsonl') and 'predictions' in name.rpartition('/')[2]]
                return sorted(found, key=lambda name: ('incremental' in name, name))
        raise unreadable(self.model.model_name, 'a folder with more files than can be read')

    def failure(self, batch: Batch, custom_id: str) -> BatchResult | NotRun | None:
        """What the failure of a job means for a request in it."""
        error = object_in(batch.provider_details, 'error')
        if not error:
            return None
        code = parse_number(error.get('code'))
        body = compat.error_body(_http_status(code), {'error': error})
        return because_of(code, batch, BatchResult(custom_id=custom_id, status='errored', body=body))

    async def cancel(self, batch: Batch) -> Batch:
        """Ask Google to stop the job; what is finished by then stays collectable, and billed."""
        check_allow_model_requests()
        await (await self._http()).call('POST', f'{_id(batch.id)}:cancel', json={})
        return await self.status(batch)

    def word(self, batch: Batch) -> str:
        """The provider's own word for where the job is, without its prefix."""
        return state_of(str((batch.provider_details or {}).get('state') or ''))

    def _batch(self, job: Mapping[str, Any], known: Batch | Sought) -> Batch:
        name = job.get('name')
        if not isinstance(name, str) or not name:
            raise unreadable(self.model.model_name, 'a batch without a name')
        before, count = (known, known.request_count) if isinstance(known, Batch) else (None, known.count)
        given = before.provider_details or {} if before else cast('Sought', known).receipt
        word = str(job.get('state') or '')
        state = state_of(word.upper())
        details: dict[str, Any] = {'state': f'JOB_STATE_{state or "UNSPECIFIED"}'}
        if isinstance(input_file := given.get('input_file'), str):
            details['input_file'] = input_file
        if error := object_in(job, 'error'):
            details['error'] = error
        written = object_in(job, 'outputInfo').get('gcsOutputDirectory')
        written = written or object_in(object_in(job, 'outputConfig'), 'gcsDestination').get('outputUriPrefix')
        if isinstance(written, str) and _URI.fullmatch(written):
            details['output_directory'] = written.rstrip('/')
        if counts := _counts(job):
            details['request_counts'] = counts
        status = STATES.get(state or 'UNSPECIFIED')
        if status is None:
            self.log_unknown_status(name, word)
            status = 'ended' if job.get('endTime') else 'in_progress'
        return Batch(
            id=name,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=known.group,
            status=FRAMEWORK[status],
            created_at=before.created_at if before else parse_time(job.get('createTime')) or UNKNOWN_TIME,
            request_count=max(count, counts.get('total', 0)),
            provider_details=details,
        )


def _check_labels(labels: Mapping[str, Any]) -> None:
    """Refuse labels that Google does not take.

    Raises:
        UserError: One is wrong, or they are too many.
    """
    theirs = {name: value for name, value in labels.items() if name != TAG_KEY}
    for name, value in theirs.items():
        if not (_is_label(name) and name[0].isalpha() and (value == '' or _is_label(value))):
            raise UserError(
                f'The label {name!r}: {value!r} in `google_labels` is none that Google takes in a batch: names and '
                'values have small letters, digits, hyphens and underscores, 63 at most, and names begin with a letter.'
            )
    if len(theirs) >= _MOST_LABELS:
        raise UserError(
            f'A request in a batch has at most {_MOST_LABELS - 1} labels in `google_labels`, and not {len(theirs)}: '
            f'Google takes {_MOST_LABELS}, and one is the ID of its row.'
        )


def _is_label(text: object) -> bool:
    return isinstance(text, str) and text == text.lower() and _LABEL.fullmatch(text) is not None


def _labelled(body: Mapping[str, Any]) -> str:
    """A body as JSON whose labels come first, also if it has none, and none of them is ours."""
    labels = {name: value for name, value in object_in(body, 'labels').items() if name != TAG_KEY}
    ordered = {'labels': labels, **{name: body[name] for name in body if name != 'labels'}}
    return compact_json(ordered)


def _resource(model_name: str) -> str:
    """The resource that a model is, as the SDK makes one of a name."""
    if model_name.startswith(('projects/', 'publishers/', 'models/')):
        return model_name
    publisher, slash, name = model_name.partition('/')
    return f'publishers/{publisher}/models/{name}' if slash else f'publishers/google/models/{model_name}'


def _named(resource: str) -> str:
    """The name of a model that is a resource."""
    return resource.removeprefix('publishers/google/models/')


def _id(text: str) -> str:
    """The name of a job, which a message history may have made up, as it can stand in a path."""
    if not _JOB.fullmatch(text):
        raise UserError(f'{text!r} is no name of a batch prediction job.')
    return text


def _object(uri: str) -> tuple[str, str]:
    """The bucket and the name of an object, which a message history may have made up."""
    if (found := _URI.fullmatch(uri)) is None:
        raise UserError(f'{uri!r} is no place in Cloud Storage.')
    return found[1], found[2] or ''


def _http_status(code: int | None) -> int:
    """The HTTP status that an error's code stands for, which may be one already."""
    return code if code is not None and code >= 400 else _HTTP_STATUSES.get(code or 0, 500)


def _counts(job: Mapping[str, Any]) -> dict[str, int]:
    """How many requests there are, and how many have an answer or an error by now; empty if none of it is told."""
    stats = object_in(job, 'completionStats')
    told = [parse_count(stats.get(name)) for name in ('successfulCount', 'failedCount', 'incompleteCount')]
    if not any(told):
        return {}
    # A zero is left out.
    done, failed, rest = (count or 0 for count in told)
    return {'total': done + failed + rest, 'completed': done, 'failed': failed}


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a line of a file of predictions says of its request."""
    item = parse_object(line)
    if item is None:
        return damaged(line, TAG_KEY)
    custom_id = object_in(object_in(item, 'request'), 'labels').get(TAG_KEY)
    if not isinstance(custom_id, str) or not custom_id:
        raw = line.decode('utf-8', 'replace')
        return Stray('its request has no label of ours', raw, keyless='response' in item or 'status' in item)
    response, status = unwrapped(item.get('response')), item.get('status')
    if response and (not status or {'candidates', 'promptFeedback'} & as_object(response).keys()):
        if not isinstance(response, dict):
            return Stray('its response is no object', line.decode('utf-8', 'replace'), custom_id)
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(response))
    status_code, error = _error_in(status)
    return BatchResult(custom_id=custom_id, status='errored', body=compat.error_body(status_code, {'error': {**error}}))


def _error_in(status: Any) -> tuple[int, Mapping[str, Any]]:
    """The HTTP status and the error in the status of a row: a text, which may have the error's JSON in it."""
    found = as_object(status)
    if isinstance(status, str):
        found = as_object(unwrapped(status[status.find('{') :])) if '{' in status else {}
    found = object_in(found, 'error') or found
    message = str(found.get('message') or status or 'The provider returned neither a response nor an error.')
    status_code = (
        _http_status(code)
        if (code := parse_number(found.get('code'))) is not None
        else status_in(message.lower(), _WORDS) or 500
    )
    return status_code, {'code': status_code, **found, 'message': message}
