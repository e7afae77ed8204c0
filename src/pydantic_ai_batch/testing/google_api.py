"""The fake Gemini API: its Batch Mode and its live endpoints, on top of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import token_estimate
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.google_batches import (
    WINDOW,
    WORDS,
    FakeGoogleBatch,
    Manners,
    OutputPlace,
    failure,
    with_id,
)
from pydantic_ai_batch.testing.google_bodies import endpoint_of
from pydantic_ai_batch.testing.google_client import client_of
from pydantic_ai_batch.testing.google_files import FakeFile, new_id
from pydantic_ai_batch.testing.google_input import Input, read_file, read_inline
from pydantic_ai_batch.testing.google_json import Json, field, object_in
from pydantic_ai_batch.testing.google_service import VERSIONS
from pydantic_ai_batch.testing.google_uploads import GoogleFiles
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase
from pydantic_ai_batch.testing.wire import json_reply

if TYPE_CHECKING:
    from google.genai import Client


class FakeGoogle(GoogleFiles):
    """The Gemini API's files and batches, and its `generateContent` with and without a stream.

    Operations: `upload` (which begins one), `upload_bytes`, `files` (their listing), `file`, `download`,
    `delete_file`, `create`, `status`, `list`, `cancel`, `delete` (of a batch), and `live`.

    Each API key is a project of its own, and sees nothing of the others', unless `projects` says otherwise.

    Some faults have a form of their own here. A batch that expires or is cancelled has no results at all, though the
    rows that were `done` are billed; one that fails has the first of `errors`, with the `code` of a `google.rpc.Status`
    as its number or its name. Results of inline requests are a list of JSON values, so that a damaged one is a string
    in that list, and `rewrite_results` gets them as if they were lines of a file.

    A [`FakeError`][pydantic_ai_batch.testing.FakeError] is told by the code that goes with its `status`, or that its
    `code` names, such as `'FAILED_PRECONDITION'`.
    """

    name = 'google'
    prefix = '/google'
    words = WORDS
    window = WINDOW
    operations = frozenset(
        {'create', 'status', 'list', 'cancel', 'delete', 'live'}
        | {'upload', 'upload_bytes', 'files', 'file', 'download', 'delete_file'}
    )
    inapplicable: ClassVar[Mapping[str, str]] = {
        'delay_results': 'its results are named by the reply that tells of its end',
        'error_in_output': 'answers and errors stand in one file anyway',
        'string_body': 'its result lines hold no HTTP response',
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.max_inline_bytes = 20_000_000
        """Largest body of a call that creates a batch, in bytes."""
        self.max_jobs = 100
        """Most batches of a project that may be unfinished at a time; the create beyond it is answered 429."""
        self.enqueued_token_limit: int | None = None
        """Most prompt tokens that the unfinished batches of a project and model may hold together, at a token for
        every four bytes of the input; the create that goes beyond it is answered 429. `None` for no limit."""
        self.ordered = True
        """Whether results come in the order of the requests, as Google promises."""
        self.output_in: OutputPlace = 'both'
        """Where a batch that is over holds its output: `'metadata'` (as `metadata.output`), `'response'` or both."""
        self.answers_inline = False
        """Whether batches of a file are answered as those of inline requests are, with `metadata.key`."""
        self.echo_metadata = True
        """Whether inline results repeat their `metadata`. Those of old batches did not: they had an order alone."""
        self.error_key: Literal['error', 'status'] = 'error'
        """What a failed row has instead of a `response`."""
        self.key_in: Literal['key', 'metadata'] = 'key'
        """Where a line of a result file has its key: `'metadata'` is `metadata.key`."""
        self.output_delay = 0.0
        """For how long a batch says that it succeeded, but not yet which file its results are in, in seconds."""
        self.partial_results = False
        """Whether a batch that was cancelled or expired has the results of what was finished. Nothing tells for sure
        that one ever has."""

    def client(self, **settings: Any) -> Client:
        """An SDK client on this fake, with the API key `'test'`.

        Close it when done: `async with fake.google.client().aio as client`, or `with` for the one that blocks.

        Args:
            settings: Further settings of `google.genai.Client`, such as `api_key` or `http_options`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        return client_of(self.base_url, settings)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Google's SDK at this fake, where the program gives it no other settings."""
        return {'GOOGLE_GEMINI_BASE_URL': self.base_url, 'GOOGLE_API_KEY': 'test'}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        routes = self.file_routes
        for version in VERSIONS:
            model, batch = version + '/models/{model}', version + '/batches/{id}'
            routes += [
                self.route('POST', f'{model}:batchGenerateContent', 'create', self._create),
                self.route('GET', f'{version}/batches', 'list', self._list),
                self.route('POST', f'{batch}:cancel', 'cancel', self._cancel),
                self.route('GET', batch, 'status', lambda call: self._shown(self._batch(call))),
                self.route('DELETE', batch, 'delete', self._delete),
                self.route('POST', f'{model}:generateContent', 'live', self._live),
                self.route('POST', f'{model}:streamGenerateContent', 'live', self._live_stream),
            ]
        return [*routes, self.unknown_route()]

    def _project(self, call: Incoming) -> str:
        """The project of the call's API key."""
        key = call.headers.get('x-goog-api-key') or call.query.get('key')
        if not key:
            self._refuse(403, 'The request has no API key.')
        return self.projects.get(key, digest(key))

    # Batches

    def _create(self, call: Incoming) -> Response:
        project, order = self._project(call), object_in(self._json(call), 'batch')
        if len(call.body) > self.max_inline_bytes:
            self._refuse(400, f'The body of the call is larger than {self.max_inline_bytes} bytes.')
        name = field(order, 'displayName')
        if not isinstance(name, str) or not name:
            self._refuse(400, 'The batch needs a `displayName`.')
        config = object_in(order, 'inputConfig')
        file_name, requests = field(config, 'fileName'), field(object_in(config, 'requests'), 'requests')
        if (file_name is None) == (requests is None):
            self._refuse(400, 'The `inputConfig` needs either a `fileName` or `requests`.')
        if requests is not None:
            read = read_inline(requests)
            if read.errors or not read.rows:
                self._refuse(400, read.errors[0]['message'] if read.errors else 'The batch has no requests.')
        else:
            file = self._files.get(str(file_name).removeprefix('files/'), project, self._now)
            if file is None:
                self._refuse(404, f'There is no file {file_name!r}.')
            read = read_file(file.content)
        self._check_queue(project, call.path['model'], read.rows)
        batch = self._submit(project, call.path['model'], read, name, file_name)
        self._batches[batch.id] = batch
        return self._shown(batch)

    def _check_queue(self, project: str, model: str, rows: Sequence[FakeRow]) -> None:
        jobs = [batch for batch in self._batches.values() if batch.project == project and not batch.ended]
        if len(jobs) >= self.max_jobs:
            self._refuse(429, f'At most {self.max_jobs} batches may be unfinished at a time.')
        queued = [row for batch in jobs if batch.model == model for row in batch.requests]
        tokens = sum(token_estimate(row.size) for row in [*queued, *rows])
        if self.enqueued_token_limit is not None and tokens > self.enqueued_token_limit:
            self._refuse(429, f'The limit of {self.enqueued_token_limit} enqueued tokens for {model} is reached.')

    def _submit(self, project: str, model: str, read: Input, name: str, file_name: str | None) -> FakeGoogleBatch:
        id, errors = f'batches/{new_id(36)}', read.errors
        endpoint, rows = endpoint_of(model), read.rows
        faults, line_faults = self.batch_faults(endpoint, rows)
        for fault in faults:
            if fault.name == 'fail':
                errors = failure(fault['errors'])

        def execute(row: FakeRow) -> RowResult:
            return self.run_row(endpoint, row, row.body, id)

        return FakeGoogleBatch(
            Submission(
                id=id,
                project=project,
                endpoint=endpoint,
                model=model,
                metadata=None,
                requests=rows,
                errors=errors,
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            execute=execute,
            rows=rows,
            display_name=name,
            input_file=file_name,
        )

    def _batch(self, call: Incoming) -> FakeGoogleBatch:
        project, batch = self._project(call), self._batches.get(f'batches/{call.path["id"]}')
        if batch is None or batch.project != project or batch.deleted:
            self._refuse(404, f'There is no batch {call.path["id"]!r}.')
        return batch

    def _to_json(self, batch: FakeGoogleBatch, *, listed: bool = False) -> Json:
        self.catch_up(batch)
        return batch.to_json(now=self._now, place=self.output_in, delay=self.output_delay, listed=listed)

    def _shown(self, batch: FakeGoogleBatch) -> Response:
        return json_reply(self._to_json(batch))

    def _list(self, call: Incoming) -> Response:
        """A page of the batches, newest first. A `filter` is passed over: its language is not published."""
        project = self._project(call)
        listed, token = self._page(
            call,
            [batch for batch in reversed(self._batches.values()) if batch.project == project],
            most=1000,
            default=50,
            shown=lambda batch: not batch.deleted and self._now >= batch.hidden_until,
        )
        page = {'operations': [self._to_json(batch, listed=True) for batch in listed], 'nextPageToken': token}
        return json_reply({name: value for name, value in page.items() if value})

    def _cancel(self, call: Incoming) -> Response:
        # Documented as a request that may come to nothing, so that one which comes too late is no error.
        self._batch(call).cancel()
        return json_reply({})

    def _delete(self, call: Incoming) -> Response:
        batch = self._batch(call)
        batch.cancel()
        batch.deleted = True
        return json_reply({})

    def catch_up(self, batch: FakeGoogleBatch) -> None:
        """Run what has run by now; if it is over, make its output."""
        batch.run()
        if not batch.ended or batch.settled:
            return
        batch.settled = True
        manners = Manners(
            inline=batch.input_file is None or self.answers_inline,
            ordered=self.ordered,
            error_key=self.error_key,
            key_in=self.key_in,
            echo=self.echo_metadata,
            partial=self.partial_results,
        )
        lines = batch.lines(manners)
        if not lines and batch.phase is not Phase.COMPLETED:
            return
        content = self.result_files(lines, batch, id_key=with_id)['output']
        if manners.inline:
            results = [_inline_result(line) for line in content.split(b'\n')[:-1]]
            batch.output = {'inlinedResponses': {'inlinedResponses': results}}
            return
        file = FakeFile(
            id=batch.id.replace('batches/', 'batch-'),
            project=batch.project,
            display_name=None,
            mime_type='application/jsonl',
            content=content,
            created_at=batch.entered[batch.phase],
            generated=True,
        )
        self._files.add(file)
        batch.output = {'responsesFile': f'files/{file.id}'}


def _inline_result(line: bytes) -> Any:
    """A result as it stands in the list of an operation, where what is no JSON can only be a string."""
    try:
        return json.loads(line)
    except ValueError:
        return line.decode('utf-8', 'replace')
