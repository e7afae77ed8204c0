"""The fake OpenAI: its Files and Batch APIs and its live endpoints."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, cast

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall, token_estimate
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.loopback import client_options
from pydantic_ai_batch.testing.multipart import read_form
from pydantic_ai_batch.testing.openai_batches import WORDS, FakeOpenAIBatch, error_body, metadata_problem
from pydantic_ai_batch.testing.openai_bodies import (
    CHAT,
    EMBEDDINGS,
    MODERATIONS,
    RESPONSES,
    read_request,
    write_answer,
)
from pydantic_ai_batch.testing.openai_files import PURPOSES, RETENTION, FakeFile, FileStore
from pydantic_ai_batch.testing.openai_input import Input, read_input
from pydantic_ai_batch.testing.provider import FakeProvider, Incoming, Refusal
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import Download, json_reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ENDPOINTS = (RESPONSES, CHAT, EMBEDDINGS, MODERATIONS)
"""What a batch can be for, and what answers live."""

_EXPIRES_AFTER = range(3600, 2_592_001)
"""The seconds that `expires_after` and `output_expires_after` may name."""

_DEFAULT_FAILURE = {'code': 'server_error', 'message': 'The batch failed.'}


class _Listed(Protocol):
    @property
    def id(self) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class _Described:
    id: str
    described: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.described


class FakeOpenAI(FakeProvider[FakeOpenAIBatch]):
    """OpenAI's Files and Batch APIs, and its Responses, Chat Completions, Embeddings and Moderations endpoints.

    Operations: `upload`, `files` (their listing), `file`, `download`, `delete`, `create`, `status`, `list`, `cancel`,
    and `live` for a request to one of the endpoints.

    Each API key is a project of its own, and sees nothing of the others', unless `projects` says otherwise.
    """

    name = 'openai'
    prefix = '/openai/v1'
    operations = frozenset(
        {'upload', 'files', 'file', 'download', 'delete', 'create', 'status', 'list', 'cancel', 'live'}
    )
    words = WORDS
    endpoints: ClassVar[tuple[str, ...]] = ENDPOINTS
    """What a batch can be for, and what answers live."""
    completion_window: ClassVar[str] = '24h'
    """A pattern of the windows that a batch can be given."""
    batch_class: ClassVar[type[FakeOpenAIBatch]] = FakeOpenAIBatch
    """What its batches are."""
    upload_path: ClassVar[str] = '/files'
    purpose: ClassVar[str] = 'batch'
    """What the input file of a batch is uploaded for."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.projects: dict[str, str] = {}
        """API key to the project that it belongs to, for keys that are to share one."""
        self.max_requests = 50_000
        """Most requests in one batch, and most inputs in one of embeddings."""
        self.max_file_bytes = 200_000_000
        """Largest batch input file, in bytes."""
        self.enqueued_token_limit: int | None = None
        """Most prompt tokens that the unfinished batches of a project and model may hold together, at a token for
        every four bytes of the input; the batch that goes beyond it fails. `None` for no limit."""
        self._files = FileStore()

    def client(self, **settings: Any) -> AsyncOpenAI:
        """An SDK client on this fake, with the API key `'test'`. Close it when done (`async with`).

        Args:
            settings: Further settings of `AsyncOpenAI`, such as `api_key` or `max_retries`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        if 'http_client' not in settings:
            settings['http_client'] = DefaultAsyncHttpxClient(**client_options())
        arguments: dict[str, Any] = {'api_key': 'test', 'base_url': self.base_url, **settings}
        return AsyncOpenAI(**arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point OpenAI's SDK at this fake, where the program gives it no other settings."""
        return {'OPENAI_BASE_URL': self.base_url, 'OPENAI_API_KEY': 'test'}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        return [
            self.route('POST', self.upload_path, 'upload', self._upload),
            self.route('GET', '/files', 'files', self._list_files),
            self.route('GET', '/files/{id}', 'file', lambda call: json_reply(self.describe_file(self._file(call)))),
            self.route('GET', '/files/{id}/content', 'download', self._download),
            self.route('DELETE', '/files/{id}', 'delete', self._delete),
            self.route('POST', '/batches', 'create', self._create),
            self.route('GET', '/batches/{id}', 'status', lambda call: self._shown(self._batch(call))),
            self.route('GET', '/batches', 'list', self._list_batches),
            self.route('POST', '/batches/{id}/cancel', 'cancel', self._cancel),
            *(self.route('POST', self.live_path(path), 'live', self._live(path)) for path in self.endpoints),
            self.unknown_route(),
        ]

    def live_path(self, endpoint: str) -> str:
        """Where an endpoint answers live."""
        return endpoint.removeprefix('/v1')

    # Files

    def _upload(self, call: Incoming) -> Response:
        project = self._project(call)
        try:
            form = read_form(call.headers.get('content-type', ''), call.body)
            file, purpose = form['file'], form['purpose'].content.decode()
        except (KeyError, ValueError):
            self._refuse(400, 'The upload needs the multipart fields `file` and `purpose`.')
        if purpose not in PURPOSES | {self.purpose}:
            self._refuse(400, f'{purpose!r} is no purpose of a file.', param='purpose')
        if purpose == self.purpose and len(file.content) > self.max_file_bytes:
            self._refuse(400, f'The file is larger than {self.max_file_bytes} bytes.', param='file')
        given = {
            key: form[f'expires_after[{key}]'].content
            for key in ('anchor', 'seconds')
            if f'expires_after[{key}]' in form
        }
        expires_after = given and {
            'anchor': given.get('anchor', b'').decode(),
            'seconds': int(given['seconds']) if given.get('seconds', b'').isdigit() else None,
        }
        made = self._files.add(
            project,
            purpose=purpose,
            filename=file.filename or 'upload',
            content=file.content,
            created_at=self._now,
            lifetime=self._lifetime(expires_after, 'expires_after', RETENTION if purpose == self.purpose else None),
        )
        return json_reply(self.describe_file(made))

    def describe_file(self, file: FakeFile) -> dict[str, Any]:
        """The provider's File object, as of now."""
        return file.to_json()

    def _list_files(self, call: Incoming) -> Response:
        project, purpose = self._project(call), call.query.get('purpose')
        for batch in self._batches.values():
            self.catch_up(batch)
        files = [file for file in self._files.of(project, self._now) if purpose in (None, file.purpose)]
        if call.query.get('order') != 'asc':
            files.reverse()
        return self._page(call, files, most=10_000, default=10_000)

    def _file(self, call: Incoming) -> FakeFile:
        file = self._files.get(call.path['id'], self._project(call), self._now)
        if file is None:
            self._refuse(404, f'There is no file {call.path["id"]!r}.', param='id')
        return file

    def _download(self, call: Incoming) -> Response:
        file = self._file(call)
        return Download(file.content, filename=file.filename)

    def _delete(self, call: Incoming) -> Response:
        file = self._file(call)
        self._files.delete(file)
        return json_reply({'id': file.id, 'object': 'file', 'deleted': True})

    # Batches

    def _create(self, call: Incoming) -> Response:
        order = self._json(call)
        endpoint, metadata = self._ordered_endpoint(order), order.get('metadata')
        if endpoint not in self.endpoints:
            self._refuse(400, f'{endpoint!r} is no endpoint that batches run on.', param='endpoint')
        if not re.fullmatch(self.completion_window, str(order.get('completion_window'))):
            self._refuse(400, f'The completion window must be {self.completion_window}.', param='completion_window')
        if problem := metadata_problem(metadata):
            self._refuse(400, problem, param='metadata')
        file = self._input_file(call, order)
        lifetime = self._lifetime(order.get('output_expires_after'), 'output_expires_after', RETENTION)
        batch = self._submit(file, endpoint, metadata, lifetime, self._window(str(order['completion_window'])))
        self._batches[batch.id] = batch
        return self._shown(batch)

    def _ordered_endpoint(self, order: dict[str, Any]) -> Any:
        """The endpoint that a batch is to be for, as its lines name it."""
        return order.get('endpoint')

    def _input_file(self, call: Incoming, order: dict[str, Any]) -> FakeFile:
        """The file that a batch is to be made of."""
        file = self._files.get(order.get('input_file_id'), self._project(call), self._now)
        if file is None:
            self._refuse(400, f'There is no file {order.get("input_file_id")!r}.', param='input_file_id')
        if file.purpose != self.purpose:
            self._refuse(400, f'A file for {file.purpose!r} is no input of a batch.', param='input_file_id')
        return file

    def _submit(
        self, file: FakeFile, endpoint: str, metadata: dict[str, str] | None, lifetime: float | None, window: float
    ) -> FakeOpenAIBatch:
        read = self.read_input(file.content, endpoint)
        errors = read.errors or self._token_limit_error(file.project, read.model, read.rows)
        faults, line_faults = self.batch_faults(endpoint, read.rows)
        for fault in faults:
            if fault.name == 'fail':
                nothing = dict.fromkeys(('code', 'message', 'param', 'line'))
                errors = [nothing | error for error in fault['errors'] or [_DEFAULT_FAILURE]]
        id = self.new_id()

        def execute(row: FakeRow) -> RowResult:
            return RowResult(row, *self.execute(endpoint, row.body, row.custom_id, size=row.size, batch_id=id))

        return self.batch_class(
            Submission(
                id=id,
                project=file.project,
                endpoint=endpoint,
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
            output_lifetime=lifetime,
        )

    def _window(self, text: str) -> float:
        """The seconds that a batch is given, by its order."""
        if not isfinite(self.window):
            return self.window
        return int(text[:-1]) * (86400.0 if text.endswith('d') else 3600.0)

    def read_input(self, content: bytes, endpoint: str) -> Input:
        """The rows of an input file, or what is wrong with it."""
        return read_input(content, endpoint=endpoint, max_requests=self.max_requests)

    def new_id(self) -> str:
        """The ID of a batch."""
        return f'batch_{uuid.uuid4().hex}'

    def _token_limit_error(self, project: str, model: str | None, rows: Sequence[FakeRow]) -> list[dict[str, Any]]:
        if self.enqueued_token_limit is None:
            return []
        queued = [
            batch.requests
            for batch in self._batches.values()
            if (batch.project, batch.model) == (project, model) and not batch.ended and not batch.errors
        ]
        tokens = sum(token_estimate(row.size) for batch_rows in [*queued, rows] for row in batch_rows)
        if tokens <= self.enqueued_token_limit:
            return []
        message = f'The limit of {self.enqueued_token_limit} enqueued tokens for {model} is reached.'
        return [{'code': 'token_limit_exceeded', 'message': message, 'param': None, 'line': None}]

    def _batch(self, call: Incoming) -> FakeOpenAIBatch:
        project, batch = self._project(call), self._batches.get(call.path['id'])
        if batch is None or batch.project != project:
            self._refuse(404, f'There is no batch {call.path["id"]!r}.')
        return batch

    def _shown(self, batch: FakeOpenAIBatch) -> Response:
        self.catch_up(batch)
        return json_reply(self.describe(batch))

    def describe(self, batch: FakeOpenAIBatch) -> dict[str, Any]:
        """The provider's Batch object, as of now."""
        return batch.to_json()

    def _list_batches(self, call: Incoming) -> Response:
        project = self._project(call)
        batches = [
            batch
            for batch in reversed(self._batches.values())
            if batch.project == project and self._now >= batch.hidden_until
        ]
        for batch in batches:
            self.catch_up(batch)
        return self._listed(call, batches)

    def _listed(self, call: Incoming, batches: Sequence[FakeOpenAIBatch]) -> Response:
        """A page of the listing of batches."""
        return self._page(call, [_Described(batch.id, self.describe(batch)) for batch in batches], most=100, default=20)

    def _cancel(self, call: Incoming) -> Response:
        batch = self._batch(call)
        if batch.ended:
            self._refuse(400, f'A batch with status {batch.status!r} cannot be cancelled.')
        batch.cancel()
        return self._shown(batch)

    def catch_up(self, batch: FakeOpenAIBatch) -> None:
        """Run what has run by now; if it is over, write its result files."""
        batch.run()
        if not batch.has_results or batch.settled:
            return
        batch.settled = True
        lines = batch.lines(lambda row: self.ask(batch.endpoint, row.body, row.custom_id))
        ids: dict[str, str] = {}
        for kind, content in self.result_files(lines, batch, id_key='custom_id').items():
            if content or self.keeps_empty(kind):
                file = self._files.add(
                    batch.project,
                    purpose='batch_output',
                    filename=f'{batch.id}_{kind}.jsonl',
                    content=content,
                    created_at=batch.entered[batch.phase],
                    lifetime=batch.output_lifetime,
                )
                ids[kind] = file.id
        batch.output_file_id, batch.error_file_id = ids.get('output'), ids.get('error')

    def keeps_empty(self, kind: str) -> bool:
        """Whether a result file without a line is made."""
        return False

    # Live

    def _live(self, endpoint: str) -> Callable[[Incoming], Response]:
        def answer(call: Incoming) -> Response:
            self._project(call)
            body = self._json(call)
            if not isinstance(body.get('model'), str):
                self._refuse(400, 'The body names no model.', param='model')
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

    @property
    def _now(self) -> float:
        return self._scene.clock.now()

    def error(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> Response:
        """An error reply in OpenAI's shape."""
        return json_reply(error_body(FakeError(status, code, message, param=param)), status)

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(endpoint, body)

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The response body with that answer."""
        return write_answer(request, answer, size, now=self._now)

    def _refuse(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> NoReturn:
        raise Refusal(self.error(status, message, code=code, param=param))

    def _project(self, call: Incoming) -> str:
        """The project of the call's API key."""
        scheme, _, key = call.headers.get('authorization', '').partition(' ')
        if scheme.lower() != 'bearer' or not key.strip():
            self._refuse(401, 'The request has no API key.', code='invalid_api_key')
        return self.projects.get(key, digest(key))

    def _json(self, call: Incoming) -> dict[str, Any]:
        try:
            value = json.loads(call.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._refuse(400, 'The body must be a JSON object.')
        return cast('dict[str, Any]', value)

    def _lifetime(self, expires_after: Any, param: str, default: float | None) -> float | None:
        """The seconds that an `expires_after` object names."""
        if not expires_after:
            return default
        given = cast('dict[str, Any]', expires_after) if isinstance(expires_after, dict) else {}
        seconds = given.get('seconds')
        if given.get('anchor') != 'created_at' or not isinstance(seconds, int) or seconds not in _EXPIRES_AFTER:
            self._refuse(400, f"{param} needs the anchor 'created_at' and from 3600 to 2592000 seconds.", param=param)
        return float(seconds)

    def _page(self, call: Incoming, items: Sequence[_Listed], *, most: int, default: int) -> Response:
        """One page of a listing: `items` after the one that the query names."""
        text = call.query.get('limit', str(default))
        limit = int(text) if text.isdecimal() else 0
        if not 1 <= limit <= most:
            self._refuse(400, f'The limit must be from 1 to {most}.', param='limit')
        start = 0
        if after := call.query.get('after'):
            start = next((place for place, item in enumerate(items, start=1) if item.id == after), 0)
            if not start:
                self._refuse(404, f'There is no {after!r} to list after.', param='after')
        page = items[start : start + limit]
        return json_reply(
            {
                'object': 'list',
                'data': [item.to_json() for item in page],
                'first_id': page[0].id if page else None,
                'last_id': page[-1].id if page else None,
                'has_more': start + limit < len(items),
            }
        )
