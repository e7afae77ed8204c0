"""The fake Vertex AI: batch prediction jobs, the part of Cloud Storage that they need, and live requests."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast
from urllib.parse import unquote

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.google_bodies import endpoint_of
from pydantic_ai_batch.testing.google_client import client_of
from pydantic_ai_batch.testing.google_json import Json, object_in, timestamp
from pydantic_ai_batch.testing.google_service import GoogleService
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase
from pydantic_ai_batch.testing.vertex_batches import (
    WINDOW,
    WORDS,
    FakeVertexBatch,
    failure,
    read_input,
    with_id,
    without_id,
)
from pydantic_ai_batch.testing.wire import Download, json_reply

if TYPE_CHECKING:
    from google.genai import Client

BUCKET = 'test-bucket'
"""The bucket that `environment` names."""

_JOBS = '/{version}/projects/{project}/locations/{location}/batchPredictionJobs'
_MODEL = '/{version}/projects/{project}/locations/{location}/publishers/google/models/{model}'
_OBJECTS = '/storage/v1/b/{bucket}/o'
_URI = re.compile('gs://([^/]+)/(.+)')
_FILTER = re.compile('display_name="([^"]*)"')


@dataclass(frozen=True)
class FakeObject:
    """An object in the fake Cloud Storage."""

    bucket: str
    name: str
    content: bytes
    created_at: float
    """In seconds since the epoch."""

    @property
    def uri(self) -> str:
        """Where it is."""
        return f'gs://{self.bucket}/{self.name}'

    def to_json(self) -> Json:
        """The provider's object resource."""
        return {
            'kind': 'storage#object',
            'name': self.name,
            'bucket': self.bucket,
            'size': str(len(self.content)),
            'timeCreated': timestamp(self.created_at),
        }


class FakeVertex(GoogleService[FakeVertexBatch]):
    """Vertex AI's batch prediction jobs, Cloud Storage as they use it, and `generateContent`.

    Operations: `upload`, `objects` (their listing), `download`, `delete` (all of Cloud Storage), `create`, `status`,
    `list`, `cancel`, and `live`.

    Each access token is a project of its own, whatever the path says, and sees nothing of the others', unless
    `projects` says otherwise. Every bucket is there.

    What was finished in a job that expires or is cancelled is in its results, and billed. One that fails has the first
    of `errors`, with the `code` of a `google.rpc.Status` as its number or its name.
    """

    name = 'vertex'
    prefix = '/vertex'
    words = WORDS
    window = WINDOW
    operations = frozenset({'upload', 'objects', 'download', 'delete', 'create', 'status', 'list', 'cancel', 'live'})
    inapplicable: ClassVar[Mapping[str, str]] = {
        'error_in_output': 'answers and errors stand in one file anyway',
        'string_body': 'its result lines hold no HTTP response',
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.max_requests = 200_000
        """Most requests of a job; one with more fails."""
        self.files = 1
        """How many files of predictions a job writes."""
        self._objects: dict[tuple[str, str], FakeObject] = {}

    def client(self, **settings: Any) -> Client:
        """An SDK client on this fake, for a project and location of Google Cloud.

        Close it when done: `async with fake.vertex.client().aio as client`.

        Args:
            settings: Further settings of `google.genai.Client`, such as `credentials` or `http_options`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        from google.oauth2.credentials import Credentials

        given: Any = {
            'api_key': None,
            'vertexai': True,
            'project': 'test-project',
            'location': 'us-central1',
            'credentials': Credentials(token='test'),
        }
        return client_of(self.base_url, {**given, **settings})

    @property
    def environment(self) -> dict[str, str]:
        """The place in Cloud Storage, and the variables that point at this fake. Credentials a program makes itself."""
        return {
            'GOOGLE_CLOUD_BATCH_GCS_URI': f'gs://{BUCKET}/batches',
            'STORAGE_EMULATOR_HOST': self.base_url,
            'GOOGLE_VERTEX_BASE_URL': self.base_url,
        }

    @property
    def objects(self) -> list[FakeObject]:
        """Everything in Cloud Storage, oldest first, whoever it belongs to."""
        with self._scene.lock:
            return list(self._objects.values())

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        job, item = f'{_JOBS}/{{id}}', f'{_OBJECTS}/{{object:path}}'
        return [
            self.route('POST', f'/upload{_OBJECTS}', 'upload', self._upload),
            self.route('GET', _OBJECTS, 'objects', self._list_objects),
            self.route('GET', item, 'download', self._download),
            self.route('DELETE', item, 'delete', self._delete_object),
            self.route('POST', _JOBS, 'create', self._create),
            self.route('GET', _JOBS, 'list', self._list),
            self.route('POST', f'{job}:cancel', 'cancel', self._cancel),
            self.route('GET', job, 'status', lambda call: json_reply(self._shown(self._batch(call)))),
            self.route('POST', f'{_MODEL}:generateContent', 'live', self._live),
            self.route('POST', f'{_MODEL}:streamGenerateContent', 'live', self._live_stream),
            self.unknown_route(),
        ]

    def _project(self, call: Incoming) -> str:
        """The project of the call's access token."""
        scheme, _, token = call.headers.get('authorization', '').partition(' ')
        if scheme != 'Bearer' or not token:
            self._refuse(401, 'The request has no access token.')
        return self.projects.get(token, digest(token))

    # Cloud Storage

    def _upload(self, call: Incoming) -> Response:
        project, name = self._project(call), call.query.get('name')
        if call.query.get('uploadType') != 'media' or not name:
            self._refuse(400, 'The fake takes uploads of the type `media`, with a name.')
        stored = FakeObject(call.path['bucket'], name, call.body, self._now)
        self._objects[project, stored.uri] = stored
        return json_reply(stored.to_json())

    def _object(self, call: Incoming) -> tuple[tuple[str, str], FakeObject]:
        key = self._project(call), f'gs://{call.path["bucket"]}/{unquote(call.path["object"])}'
        if (found := self._objects.get(key)) is None:
            self._refuse(404, f'There is no object {key[1]!r}.')
        return key, found

    def _list_objects(self, call: Incoming) -> Response:
        project, prefix = self._project(call), f'gs://{call.path["bucket"]}/{call.query.get("prefix", "")}'
        self._catch_up()
        found = [item for (owner, _), item in sorted(self._objects.items()) if owner == project]
        items = [item.to_json() for item in found if item.uri.startswith(prefix)]
        return json_reply({'kind': 'storage#objects', **({'items': items} if items else {})})

    def _download(self, call: Incoming) -> Response:
        _, found = self._object(call)
        if call.query.get('alt') != 'media':
            return json_reply(found.to_json())
        return Download(found.content, filename=found.name.rpartition('/')[2])

    def _delete_object(self, call: Incoming) -> Response:
        key, _ = self._object(call)
        del self._objects[key]
        return Response(status_code=204)

    # Jobs

    def _create(self, call: Incoming) -> Response:
        project, order = self._project(call), self._json(call)
        for name in ('displayName', 'model', 'inputConfig', 'outputConfig'):
            if not order.get(name):
                self._refuse(400, f'The job needs a `{name}`.')
        uris = cast('list[Any]', object_in(object_in(order, 'inputConfig'), 'gcsSource').get('uris') or [])
        prefix = object_in(object_in(order, 'outputConfig'), 'gcsDestination').get('outputUriPrefix')
        if len(uris) != 1 or not _URI.fullmatch(str(prefix)):
            self._refuse(400, 'The fake reads one file in Cloud Storage, and writes below a place there.')
        source = self._objects.get((project, str(uris[0])))
        if source is None:
            self._refuse(400, f'The input {uris[0]!r} cannot be read.')
        rows, errors = read_input(source.content)
        if len(rows) > self.max_requests:
            rows, errors = [], failure([{'code': 3, 'message': f'More than {self.max_requests} requests.'}])
        batch = self._submit(call, project, order, rows, errors, source.uri, str(prefix))
        self._batches[batch.id] = batch
        return json_reply(batch.to_json())

    def _submit(
        self,
        call: Incoming,
        project: str,
        order: Json,
        rows: list[FakeRow],
        errors: list[Json],
        input_file: str,
        output_prefix: str,
    ) -> FakeVertexBatch:
        # Answers name a project by its number, whatever the call named it by.
        number = int.from_bytes(call.path['project'].encode()) % 10**12
        id = f'projects/{number}/locations/{call.path["location"]}/batchPredictionJobs/{secrets.randbelow(10**18)}'
        model = str(order['model']).removeprefix('publishers/google/models/')
        endpoint = endpoint_of(model)
        faults, line_faults = self.batch_faults(endpoint, rows)
        for fault in faults:
            if fault.name == 'fail':
                errors = failure(fault['errors'])

        def execute(row: FakeRow) -> RowResult:
            # Of a row that is sent again, its ID alone is new.
            return self.run_row(endpoint, row, without_id(row.body), id)

        return FakeVertexBatch(
            Submission(
                id=id,
                project=project,
                endpoint=endpoint,
                model=model,
                metadata=order.get('labels'),
                requests=rows,
                errors=errors,
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            execute=execute,
            order=order,
            input_file=input_file,
            output_prefix=output_prefix,
        )

    def _batch(self, call: Incoming) -> FakeVertexBatch:
        project, id = self._project(call), call.path['id']
        found = next((batch for name, batch in self._batches.items() if name.endswith(f'/{id}')), None)
        if found is None or found.project != project or found.deleted:
            self._refuse(404, f'There is no batch prediction job {id!r}.')
        return found

    def _shown(self, batch: FakeVertexBatch) -> Json:
        self.catch_up(batch)
        return batch.to_json()

    def _list(self, call: Incoming) -> Response:
        """A page of the jobs, newest first."""
        project, wanted = self._project(call), call.query.get('filter')
        named = _FILTER.fullmatch(wanted) if wanted else None
        if wanted and named is None:
            self._refuse(400, 'The fake filters by `display_name` alone.')
        listed, token = self._page(
            call,
            [batch for batch in reversed(self._batches.values()) if batch.project == project],
            most=100,
            default=100,
            shown=lambda batch: (
                not batch.deleted
                and self._now >= batch.hidden_until
                and (named is None or batch.display_name == named[1])
            ),
        )
        page = {'batchPredictionJobs': [self._shown(batch) for batch in listed], 'nextPageToken': token}
        return json_reply({name: value for name, value in page.items() if value})

    def _cancel(self, call: Incoming) -> Response:
        # Documented as a request that may come to nothing, so that one which comes too late is no error.
        self._batch(call).cancel()
        return json_reply({})

    def _catch_up(self) -> None:
        for batch in self._batches.values():
            self.catch_up(batch)

    def catch_up(self, batch: FakeVertexBatch) -> None:
        """Run what has run by now; if it is over, write its files."""
        batch.run()
        if not batch.has_results or batch.settled:
            return
        batch.settled = True
        lines = batch.lines()
        if batch.phase is Phase.FAILED or (not lines and batch.phase is not Phase.COMPLETED):
            return
        content = self.result_files(lines, batch, id_key=with_id)['output']
        batch.output_directory = f'{batch.output_prefix}/prediction-model-{timestamp(batch.entered[batch.phase])}'
        written, size = content.splitlines(keepends=True), -(-content.count(b'\n') // self.files) or 1
        parts = [b''.join(written[start : start + size]) for start in range(0, len(written), size)] or [b'']
        for number, part in enumerate(parts):
            name = 'predictions.jsonl' if len(parts) == 1 else f'predictions_{number:05}.jsonl'
            self._store(batch, name, part)
        self._store(batch, 'errors_stats-00000-of-00001', b'')

    def _store(self, batch: FakeVertexBatch, file: str, content: bytes) -> None:
        bucket, _, folder = str(batch.output_directory).removeprefix('gs://').partition('/')
        stored = FakeObject(bucket, f'{folder}/{file}', content, self._now)
        self._objects[batch.project, stored.uri] = stored
