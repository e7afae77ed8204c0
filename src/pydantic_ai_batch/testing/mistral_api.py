"""The fake Mistral: its Files and Batch APIs and its Chat Completions endpoint."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.exceptions import sdk_missing
from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.lines import to_json
from pydantic_ai_batch.testing.loopback import client_options
from pydantic_ai_batch.testing.mistral_batches import (
    RESULT_RETENTION,
    WORDS,
    FakeMistralBatch,
    MistralFiles,
    describe_file,
    metadata_problem,
    outputs_of,
)
from pydantic_ai_batch.testing.mistral_bodies import error_body, read_request, write_answer
from pydantic_ai_batch.testing.mistral_input import error, read_files, read_inline
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_batches import FakeOpenAIBatch
from pydantic_ai_batch.testing.openai_bodies import CHAT
from pydantic_ai_batch.testing.openai_files import RETENTION, FakeFile
from pydantic_ai_batch.testing.openai_input import Input
from pydantic_ai_batch.testing.provider import Incoming
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import json_reply

if TYPE_CHECKING:
    from mistralai.client import Mistral

_MAX_HOURS = 168
"""The longest window of a job, in hours."""


class FakeMistral(FakeOpenAI):
    """Mistral's Files and Batch APIs, and its Chat Completions endpoint.

    Its manners: a job is made of files or of requests inside the create call, lines name no URL, listings come in
    pages with numbers, and the answers of a job of inline requests are in the job itself once it is over.
    """

    name = 'mistral'
    prefix = '/mistral'
    words = WORDS
    endpoints = (CHAT,)
    batch_class = FakeMistralBatch
    upload_path = '/v1/files'

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.max_requests = 100_000
        self.max_file_bytes = 512_000_000
        self.max_inline_requests = 10_000
        """Most requests inside a create call."""
        self._files = MistralFiles()

    def client(self, **settings: Any) -> Mistral:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An SDK client on this fake, with the API key `'test'`. Close it when done (`async with`).

        Args:
            settings: Further settings of `Mistral`, such as `api_key` or `retry_config`.

        Raises:
            RuntimeError: The fakes are not started.
            LaneDependencyMissing: The SDK is not installed. The message names the extra that installs it.
        """
        import httpx2

        try:
            from mistralai.client import Mistral
        except ImportError as error:
            raise sdk_missing('mistral') from error

        made: dict[str, Any] = {
            name: http_client(**client_options())
            for name, http_client in (('client', httpx2.Client), ('async_client', httpx2.AsyncClient))
            if name not in settings
        }
        arguments: dict[str, Any] = {'api_key': 'test', 'server_url': self.base_url, **made, **settings}
        client = Mistral(**arguments)
        for name in made:
            # So that it is closed with the SDK's client.
            setattr(client.sdk_configuration, f'{name}_supplied', False)
        return client

    @property
    def environment(self) -> dict[str, str]:
        """The key. There is no variable for the address."""
        return {'MISTRAL_API_KEY': 'test'}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        return [
            self.route('POST', '/v1/files', 'upload', self._upload),
            self.route('GET', '/v1/files', 'files', self._list_files),
            self.route('GET', '/v1/files/{id}', 'file', lambda call: json_reply(self.describe_file(self._file(call)))),
            self.route('GET', '/v1/files/{id}/content', 'download', self._download),
            self.route('DELETE', '/v1/files/{id}', 'delete', self._delete),
            self.route('POST', '/v1/batch/jobs', 'create', self._create),
            self.route('GET', '/v1/batch/jobs/{id}', 'status', self._status),
            self.route('GET', '/v1/batch/jobs', 'list', self._list_batches),
            self.route('POST', '/v1/batch/jobs/{id}/cancel', 'cancel', self._cancel),
            self.route('POST', CHAT, 'live', self._live(CHAT)),
            self.unknown_route(),
        ]

    # Files

    def describe_file(self, file: FakeFile) -> dict[str, Any]:
        """The provider's File object, as of now."""
        return describe_file(file)

    def _list_files(self, call: Incoming) -> Response:
        project, purpose = self._project(call), call.query.get('purpose')
        for batch in self._batches.values():
            self.catch_up(batch)
        files = [self.describe_file(file) for file in reversed(self._files.of(project, self._now))]
        return self._numbered(call, [file for file in files if purpose in (None, file['purpose'])])

    # Batches

    def _create(self, call: Incoming) -> Response:
        project, order = self._project(call), self._json(call)
        endpoint, metadata, model = order.get('endpoint'), order.get('metadata'), order.get('model')
        if endpoint not in self.endpoints:
            self._refuse(400, f'{endpoint!r} is no endpoint that batches run on.', param='endpoint')
        hours = order.get('timeout_hours', 24)
        if not isinstance(hours, int) or not 1 <= hours <= _MAX_HOURS:
            self._refuse(400, f'`timeout_hours` must be from 1 to {_MAX_HOURS}.', param='timeout_hours')
        if problem := metadata_problem(metadata):
            self._refuse(400, problem, param='metadata')
        requests, names = order.get('requests'), order.get('input_files')
        if bool(requests) == bool(names):
            self._refuse(400, 'The job needs either `input_files` or `requests`.')
        if requests:
            file, read = self._made_of(project, requests, model)
        else:
            files = [self._named(project, name) for name in _items(names)]
            file = files[0]
            read = read_files((each.content for each in files), model=model, max_requests=self.max_requests)
        batch = self._ordered(file, read, metadata, 3600.0 * hours)
        batch.inline = bool(requests)
        self._batches[batch.id] = batch
        return self._shown(batch)

    def _made_of(self, project: str, requests: Any, model: str | None) -> tuple[FakeFile, Input]:
        """The input file that is made of the requests in a create call, and what was read of them."""
        items = _items(requests)
        if len(items) > self.max_inline_requests:
            self._refuse(422, f'At most {self.max_inline_requests} requests can be inline.', param='requests')
        read = read_inline(items, model=model, max_requests=self.max_requests)
        file = self._files.add(
            project,
            purpose='batch',
            filename=f'{uuid.uuid4()}.jsonl',
            content=b''.join(to_json(item) + b'\n' for item in items),
            created_at=self._now,
            lifetime=RETENTION,
        )
        return file, read

    def _named(self, project: str, name: Any) -> FakeFile:
        file = self._files.get(name, project, self._now)
        if file is None or file.purpose != 'batch':
            self._refuse(404, f'There is no input file {name!r}.', param='input_files')
        return file

    def _ordered(self, file: FakeFile, read: Input, metadata: dict[str, str] | None, window: float) -> FakeMistralBatch:
        errors = read.errors
        faults, line_faults = self.batch_faults(CHAT, read.rows)
        for fault in faults:
            if fault.name == 'fail':
                given: list[dict[str, Any]] = fault['errors'] or [{}]
                errors = [error(item.get('message') or 'The batch failed.', item.get('count', 1)) for item in given]
        id = self.new_id()

        def execute(row: FakeRow) -> RowResult:
            custom_id = row.custom_id or None
            return RowResult(row, *self.execute(CHAT, row.body, custom_id, size=row.size, batch_id=id))

        return FakeMistralBatch(
            Submission(
                id=id,
                project=file.project,
                endpoint=CHAT,
                model=read.model,
                metadata=metadata,
                requests=read.rows,
                errors=errors,
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            window=window,
            words=self.words,
            execute=execute,
            input_file_id=file.id,
            output_lifetime=RESULT_RETENTION,
        )

    def new_id(self) -> str:
        """The ID of a batch."""
        return str(uuid.uuid4())

    def _status(self, call: Incoming) -> Response:
        batch = cast('FakeMistralBatch', self._batch(call))
        self.catch_up(batch)
        described = self.describe(batch)
        file = self._files.get(batch.output_file_id, batch.project, self._now)
        if file is not None and (batch.inline or call.query.get('inline') == 'true'):
            described['outputs'] = outputs_of(file)
        return json_reply(described)

    def _listed(self, call: Incoming, batches: Sequence[FakeOpenAIBatch]) -> Response:
        described = [self.describe(batch) for batch in batches]
        model, statuses = call.query.get('model'), call.query.get('status')
        described = [job for job in described if model in (None, job['model']) and statuses in (None, job['status'])]
        if call.query.get('order_by') == 'created':
            described.reverse()
        return self._numbered(call, described)

    def _numbered(self, call: Incoming, items: Sequence[dict[str, Any]]) -> Response:
        """The page of a listing that the query names."""
        page, size = call.query.get('page', '0'), call.query.get('page_size', '100')
        if not page.isdecimal() or not size.isdecimal():
            self._refuse(422, '`page` and `page_size` must be numbers.')
        start = int(page) * int(size)
        return json_reply({'object': 'list', 'data': items[start : start + int(size)], 'total': len(items)})

    # Live

    def _live(self, endpoint: str) -> Callable[[Incoming], Response]:
        def answer(call: Incoming) -> Response:
            self._project(call)
            body = self._json(call)
            if not isinstance(body.get('model'), str):
                self._refuse(422, 'The body names no model.', param='model')
            if body.get('stream'):
                self._refuse(400, 'The fake does not stream.', param='stream')
            _, answered = self.execute(endpoint, body, None, size=len(call.body), batch_id=None)
            if answered is None:
                return self.error(500, 'The answer function gave no answer.')
            if isinstance(answered, FakeError):
                return json_reply(error_body(answered), answered.status)
            return json_reply(answered)

        return answer

    # Shared

    def error(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
        """An error reply in Mistral's shape."""
        return json_reply(error_body(FakeError(status, code, message, param=param)), status)

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(endpoint, body)

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The response body with that answer."""
        return write_answer(request, answer, size, now=self._now)


def _items(value: Any) -> list[Any]:
    return cast('list[Any]', value) if isinstance(value, list) else [value]
