"""The fake Fireworks: its datasets and batch inference jobs, and its Chat Completions endpoint."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import FakeError
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.fireworks_batches import GRPC, WORDS, FakeDataset, FakeFireworksBatch
from pydantic_ai_batch.testing.lines import to_json
from pydantic_ai_batch.testing.multipart import read_form
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch, error_body
from pydantic_ai_batch.testing.openai_bodies import CHAT
from pydantic_ai_batch.testing.openai_input import Input, read_input
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import Download, json_reply

_FILES = {'output': 'BIJOutputSet.jsonl', 'error': 'error-data.jsonl'}
"""What the files of results are called."""

_ACCOUNT = '/v1/accounts/{account}'
_ID = r'[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?'
_PAGE = 50
_MOST = 200


class FakeFireworks(FakeOpenAI):
    """Fireworks' datasets and batch inference jobs, and its Chat Completions endpoint.

    Its manners: a job has the ID that the call names, reads a dataset, writes another, and cannot be cancelled by a
    call. The files of a dataset are behind signed URLs, which refuse calls with a key. Errors of batch calls are in
    gRPC's words.

    Operations: `dataset` (its creation), `upload`, `dataset_status`, `files` (the URLs of its files), `download`,
    `delete`, `create`, `status`, `list`, and `live`. No path is that of `cancel`, so that its calls are always 0.

    Each API key sees what it made, and nothing of the others', unless `projects` says otherwise.
    """

    name = 'fireworks'
    prefix = '/fireworks'
    operations = frozenset(
        {
            'dataset',
            'upload',
            'dataset_status',
            'files',
            'download',
            'delete',
            'create',
            'status',
            'list',
            'cancel',
            'live',
        }
    )
    words = WORDS
    endpoints = (CHAT,)
    batch_class = FakeFireworksBatch
    inapplicable: ClassVar[Mapping[str, str]] = {'string_body': 'its results have no `response.body`'}

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.account = 'test'
        """The account that calls must name."""
        self.max_requests = 10_000_000
        self.max_file_bytes = 150_000_000
        """Largest file that can be uploaded in one call, in bytes."""
        self.reading = 0.0
        """How long after its upload a dataset can be used, in seconds."""
        self.wrapped = False
        """Whether an answer in the results stands in a `body`."""
        self._datasets: dict[str, FakeDataset] = {}
        self._signed: dict[str, tuple[FakeDataset, str]] = {}

    @property
    def base_url(self) -> str:
        """The URL to give to an SDK's client.

        Raises:
            RuntimeError: The fakes are not started.
        """
        return super().base_url + '/inference/v1'

    @property
    def environment(self) -> dict[str, str]:
        """The key and the account. There is no variable for the address."""
        return {'FIREWORKS_API_KEY': 'test', 'FIREWORKS_ACCOUNT_ID': self.account}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        dataset, jobs = f'{_ACCOUNT}/datasets/{{id}}', f'{_ACCOUNT}/batchInferenceJobs'
        return [
            self.route('POST', f'{_ACCOUNT}/datasets', 'dataset', self._create_dataset),
            self.route('POST', f'{dataset}:upload', 'upload', self._upload),
            self.route('GET', f'{dataset}:getDownloadEndpoint', 'files', self._sign),
            self.route('GET', dataset, 'dataset_status', lambda call: self._described(self._dataset(call))),
            self.route('DELETE', dataset, 'delete', self._delete),
            self.route('GET', '/storage/{id}', 'download', self._download),
            self.route('POST', jobs, 'create', self._create),
            self.route('GET', f'{jobs}/{{id}}', 'status', lambda call: self._shown(self._batch(call))),
            self.route('GET', jobs, 'list', self._list_batches),
            self.route('POST', f'/inference{CHAT}', 'live', self._live(CHAT)),
            self.unknown_route(),
        ]

    # Datasets

    @property
    def datasets(self) -> dict[str, FakeDataset]:
        """Every dataset that there is now, by its ID."""
        with self._scene.lock:
            return dict(self._datasets)

    def _create_dataset(self, call: Incoming) -> Response:
        project, order = self._project(call), self._json(call)
        id = order.get('datasetId')
        if not isinstance(id, str) or not re.fullmatch(_ID, id):
            self._refuse(400, f'{id!r} is no ID of a dataset.')
        if id in self._datasets:
            self._refuse(409, f'There is a dataset {id!r} already.')
        self._datasets[id] = dataset = FakeDataset(id, project, self._now, {})
        return self._described(dataset)

    def _upload(self, call: Incoming) -> Response:
        dataset = self._dataset(call)
        try:
            file = read_form(call.headers.get('content-type', ''), call.body)['file']
        except (KeyError, ValueError):
            self._refuse(400, 'The upload needs the multipart field `file`.')
        if len(file.content) > self.max_file_bytes:
            self._refuse(400, f'The file is larger than {self.max_file_bytes} bytes.')
        if dataset.files:
            self._refuse(400, f'The dataset {dataset.id!r} has its file already.')
        name = file.filename or 'upload.jsonl'
        dataset.files[name] = file.content
        dataset.ready_at = self._now + self.reading
        return json_reply(
            {
                'id': dataset.id,
                'object': 'file',
                'bytes': len(file.content),
                'created_at': int(self._now),
                'filename': name,
                'purpose': 'fine-tune',
            }
        )

    def _dataset(self, call: Incoming) -> FakeDataset:
        project = self._project(call)
        for batch in self._batches.values():
            self.catch_up(batch)
        dataset = self._datasets.get(call.path['id'])
        if dataset is None or dataset.project != project:
            self._refuse(404, f'There is no dataset {call.path["id"]!r}.')
        return dataset

    def _described(self, dataset: FakeDataset) -> Response:
        return json_reply(dataset.to_json(self.account, self._now))

    def _sign(self, call: Incoming) -> Response:
        dataset, signed = self._dataset(call), dict[str, str]()
        root = self.base_url.removesuffix('/inference/v1')
        for name in dataset.files:
            token = uuid.uuid4().hex
            self._signed[token] = dataset, name
            signed[name] = f'{root}/storage/{token}?signature={uuid.uuid4().hex}'
        return json_reply({'filenameToSignedUrls': signed})

    def _download(self, call: Incoming) -> Response:
        if 'authorization' in call.headers or set(call.query) != {'signature'}:
            self._refuse(400, 'A signed URL is called as it is.')
        dataset, name = self._signed.get(call.path['id'], (None, ''))
        if dataset is None or dataset.id not in self._datasets:
            self._refuse(404, 'There is no such file.')
        return Download(dataset.files[name], filename=name)

    def _delete(self, call: Incoming) -> Response:
        del self._datasets[self._dataset(call).id]
        return json_reply({})

    # Jobs

    def _create(self, call: Incoming) -> Response:
        project, order = self._project(call), self._json(call)
        id = call.query.get('batchInferenceJobId') or uuid.uuid4().hex[:12]
        if not re.fullmatch(_ID, id):
            self._refuse(400, f'{id!r} is no ID of a job.')
        if id in self._batches:
            self._refuse(409, f'There is a job {id!r} already.')
        if not isinstance(model := order.get('model'), str):
            self._refuse(400, 'The job names no model.')
        input_id = self._own(order.get('inputDatasetId'))
        dataset = self._datasets.get(input_id)
        if dataset is None or dataset.project != project:
            self._refuse(404, f'There is no dataset {input_id!r}.')
        if dataset.ready_at is None or self._now < dataset.ready_at:
            self._refuse(400, f'The dataset {input_id!r} is not ready.')
        output_id = self._own(order.get('outputDatasetId') or f'accounts/{self.account}/datasets/{uuid.uuid4().hex}')
        if output_id in self._datasets:
            self._refuse(409, f'There is a dataset {output_id!r} already.')
        batch = self._ordered(id, dataset, model)
        batch.account, batch.output_id, batch.wrapped = self.account, output_id, self.wrapped
        batch.display_name = str(order.get('displayName') or '')
        self._batches[id] = batch
        return self._shown(batch)

    def _own(self, name: Any) -> str:
        """The ID in the full name of a dataset of the account."""
        prefix = f'accounts/{self.account}/datasets/'
        if not isinstance(name, str) or not name.startswith(prefix):
            self._refuse(400, f'{name!r} is no dataset of the account.')
        return name.removeprefix(prefix)

    def _ordered(self, id: str, dataset: FakeDataset, model: str) -> FakeFireworksBatch:
        read = _read(b''.join(dataset.files.values()), model, self.max_requests)
        errors = read.errors
        faults, line_faults = self.batch_faults(CHAT, read.rows)
        for fault in faults:
            if fault.name == 'fail':
                errors = fault['errors'] or [{'code': 'INTERNAL', 'message': 'The batch failed.'}]

        def execute(row: FakeRow) -> RowResult:
            return RowResult(row, *self.execute(CHAT, row.body, row.custom_id, size=row.size, batch_id=id))

        return FakeFireworksBatch(
            Submission(
                id=id,
                project=dataset.project,
                endpoint=CHAT,
                model=model,
                metadata=None,
                requests=read.rows,
                errors=errors,
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            window=self.window,
            words=self.words,
            execute=execute,
            input_file_id=dataset.id,
            output_lifetime=None,
        )

    def _list_batches(self, call: Incoming) -> Response:
        project = self._project(call)
        batches = [
            batch
            for batch in reversed(self._batches.values())
            if batch.project == project and self._now >= batch.hidden_until
        ]
        size, start = call.query.get('pageSize', str(_PAGE)), call.query.get('pageToken', '0')
        if not size.isdecimal() or not 0 < int(size) <= _MOST or not start.isdecimal():
            self._refuse(400, f'`pageSize` must be from 1 to {_MOST}.')
        end = int(start) + int(size)
        for batch in batches:
            self.catch_up(batch)
        return json_reply(
            {
                'batchInferenceJobs': [self.describe(batch) for batch in batches[int(start) : end]],
                'nextPageToken': str(end) if end < len(batches) else '',
                'totalSize': len(batches),
            }
        )

    def catch_up(self, batch: FakeOpenAIBatch) -> None:
        """Run what has run by now; if it is over, write its output dataset, unless it failed."""
        batch.run()
        if not batch.has_results or batch.settled:
            return
        batch.settled = True
        job = cast('FakeFireworksBatch', batch)
        lines = batch.lines(lambda row: self.ask(batch.endpoint, row.body, row.custom_id))
        files = {
            _FILES[kind]: content
            for kind, content in self.result_files(lines, batch, id_key='custom_id').items()
            if content
        }
        if files:
            ended_at = batch.entered[batch.phase]
            self._datasets[job.output_id] = FakeDataset(job.output_id, batch.project, ended_at, files, ended_at)

    # Shared

    def _project(self, call: Incoming) -> str:
        """The project of the call's API key."""
        project = super()._project(call)
        if call.path.get('account', self.account) != self.account:
            self._refuse(403, f'The key is not one of the account {call.path["account"]!r}.')
        return project

    def _live(self, endpoint: str) -> Callable[[Incoming], Response]:
        answer = super()._live(endpoint)

        def answered(call: Incoming) -> Response:
            response = answer(call)
            if response.status_code == 200 or b'"error"' in bytes(response.body):
                return response
            message = json.loads(bytes(response.body))['message']
            return json_reply(error_body(FakeError(response.status_code, None, message)), response.status_code)

        return answered

    def error(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
        """An error reply of the batch API."""
        return json_reply({'code': GRPC.get(status, 2), 'message': message, 'details': []}, status)


def _read(content: bytes, model: str, max_requests: int) -> Input:
    """The rows of a dataset, whose lines name no model, for the model of their job."""
    lines: list[bytes] = []
    for line in content.split(b'\n'):
        try:
            row = json.loads(line)
            row['body']['model'] = model
            lines.append(to_json(row))
        except (ValueError, TypeError, KeyError):
            lines.append(line)
    return read_input(b'\n'.join(lines), endpoint=CHAT, max_requests=max_requests, addressed=False)
