"""The fake Anthropic: its Message Batches API and its live endpoint."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, NoReturn

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.anthropic_batches import WORDS, FakeAnthropicBatch, error_body
from pydantic_ai_batch.testing.anthropic_bodies import (
    MESSAGES,
    batch_problem,
    body_problem,
    read_request,
    write_answer,
)
from pydantic_ai_batch.testing.anthropic_input import InputProblem, read_json, read_requests
from pydantic_ai_batch.testing.anthropic_stream import MessageStream, ResultStream
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.loopback import client_options
from pydantic_ai_batch.testing.provider import FakeProvider, Incoming, Refusal
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import json_reply

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

BATCHES = f'{MESSAGES}/batches'
"""Path of the batch API."""

_RETRY_AFTER = '10'
"""The seconds that the status of a batch which is not over says to wait."""


INAPPLICABLE = {
    'delay_results': 'its batches are over when its counts say so',
    'fail': 'a batch never fails as a whole, its rows do: answer them with a `FakeError`',
    'error_in_output': 'answers and errors are in one file anyway',
    'string_body': 'its lines hold no HTTP response',
}
"""The faults that Anthropic cannot have, and why."""


class FakeAnthropic(FakeProvider[FakeAnthropicBatch]):
    """Anthropic's Message Batches API and its Messages endpoint, which streams if it is asked to.

    Operations: `create`, `status`, `list`, `cancel`, `download` (the results of a batch), `delete` (a batch), and
    `live` for a request to the endpoint.

    Each API key is a workspace of its own, and sees nothing of the others', unless `projects` says otherwise. A batch
    never fails as a whole: what is wrong with a request makes it an errored one.
    """

    name = 'anthropic'
    prefix = '/anthropic'
    operations = frozenset({'create', 'status', 'list', 'cancel', 'download', 'delete', 'live'})
    words = WORDS
    result_kinds = ('output',)
    inapplicable = INAPPLICABLE

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.projects: dict[str, str] = {}
        """API key to the workspace that it belongs to, for keys that are to share one."""
        self.max_requests = 100_000
        """Most requests in one batch."""
        self.max_bytes = 256_000_000
        """Largest body of a call that creates a batch, in bytes."""

    def client(self, **settings: Any) -> AsyncAnthropic:
        """An SDK client on this fake, with the API key `'test'`. Close it when done (`async with`).

        Args:
            settings: Further settings of `AsyncAnthropic`, such as `api_key` or `max_retries`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        if 'http_client' not in settings:
            settings['http_client'] = DefaultAsyncHttpxClient(**client_options())
        arguments: dict[str, Any] = {'api_key': 'test', 'base_url': self.base_url, **settings}
        return AsyncAnthropic(**arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point Anthropic's SDK at this fake, where the program gives it no other settings."""
        return {'ANTHROPIC_BASE_URL': self.base_url, 'ANTHROPIC_API_KEY': 'test'}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        return [
            self.route('POST', BATCHES, 'create', self._create),
            self.route('GET', BATCHES, 'list', self._list),
            self.route('GET', BATCHES + '/{id}', 'status', self._status),
            self.route('DELETE', BATCHES + '/{id}', 'delete', self._delete),
            self.route('POST', BATCHES + '/{id}/cancel', 'cancel', self._cancel),
            self.route('GET', BATCHES + '/{id}/results', 'download', self._download),
            self.route('POST', MESSAGES, 'live', self._live),
            self.unknown_route(),
        ]

    # Batches

    def _create(self, call: Incoming) -> Response:
        # The size is looked at by what stands before the API, which knows nothing of keys.
        if len(call.body) > self.max_bytes:
            self._refuse(413, f'The body is larger than {self.max_bytes} bytes.')
        project = self._project(call)
        try:
            rows = read_requests(read_json(call.body), max_requests=self.max_requests)
        except InputProblem as problem:
            self._refuse(problem.status, problem.message)
        betas = [beta.strip() for beta in call.headers.get('anthropic-beta', '').split(',')]
        batch = self._submit(project, rows, tuple(beta for beta in betas if beta))
        self._batches[batch.id] = batch
        return self._shown(batch)

    def _submit(self, project: str, rows: list[FakeRow], betas: tuple[str, ...]) -> FakeAnthropicBatch:
        faults, line_faults = self.batch_faults(MESSAGES, rows)
        id = f'msgbatch_{uuid.uuid4().hex[:24]}'

        def execute(row: FakeRow) -> RowResult:
            if problem := batch_problem(row.body):
                return RowResult(row, self.ask(MESSAGES, row.body, row.custom_id), FakeError(400, None, problem))
            return RowResult(row, *self.execute(MESSAGES, row.body, row.custom_id, size=row.size, batch_id=id))

        return FakeAnthropicBatch(
            Submission(
                id=id,
                project=project,
                endpoint=MESSAGES,
                model=None,
                metadata=None,
                requests=rows,
                errors=[],
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            execute=execute,
            betas=betas,
        )

    def _batch(self, call: Incoming) -> FakeAnthropicBatch:
        project, batch = self._project(call), self._batches.get(call.path['id'])
        if batch is None or batch.project != project or batch.deleted:
            self._refuse(404, f'There is no Message Batch {call.path["id"]!r}.')
        return batch

    def _status(self, call: Incoming) -> Response:
        batch = self._batch(call)
        response = self._shown(batch)
        if not batch.ended:
            response.headers['retry-after'] = _RETRY_AFTER
        return response

    def _shown(self, batch: FakeAnthropicBatch) -> Response:
        return json_reply(self._to_json(batch))

    def _to_json(self, batch: FakeAnthropicBatch) -> dict[str, Any]:
        self.catch_up(batch)
        return batch.to_json(f'{self.base_url}{BATCHES}/{batch.id}/results')

    def _list(self, call: Incoming) -> Response:
        project = self._project(call)
        text = call.query.get('limit', '20')
        limit = int(text) if text.isdecimal() else 0
        if not 1 <= limit <= 1000:
            self._refuse(400, 'limit: it must be from 1 to 1000.')
        # Newest first. What is hidden or deleted still is a place to go on from.
        batches = [batch for batch in reversed(self._batches.values()) if batch.project == project]
        after, before = call.query.get('after_id'), call.query.get('before_id')
        if after and before:
            self._refuse(400, 'after_id, before_id: only one of them can be given.')
        if after:
            batches = batches[self._place(batches, after) + 1 :]
        elif before:
            batches = batches[: self._place(batches, before)]
        listed = [batch for batch in batches if not batch.deleted and self._now >= batch.hidden_until]
        page = listed[-limit:] if before else listed[:limit]
        return json_reply(
            {
                'data': [self._to_json(batch) for batch in page],
                'has_more': len(listed) > limit,
                'first_id': page[0].id if page else None,
                'last_id': page[-1].id if page else None,
            }
        )

    def _place(self, batches: list[FakeAnthropicBatch], id: str) -> int:
        place = next((place for place, batch in enumerate(batches) if batch.id == id), None)
        if place is None:
            self._refuse(400, f'There is no Message Batch {id!r} to list from.')
        return place

    def _cancel(self, call: Incoming) -> Response:
        batch = self._batch(call)
        if batch.ended:
            self._refuse(400, f'Message Batch {batch.id} has ended and cannot be canceled.')
        batch.cancel()
        return self._shown(batch)

    def _download(self, call: Incoming) -> Response:
        batch = self._batch(call)
        self.catch_up(batch)
        if batch.content is None or not batch.available:
            self._refuse(404, f'Message Batch {batch.id} has no available results.')
        return ResultStream(batch.content, filename=f'{batch.id}_results.jsonl')

    def _delete(self, call: Incoming) -> Response:
        batch = self._batch(call)
        self.catch_up(batch)
        if not batch.ended:
            self._refuse(400, f'Message Batch {batch.id} has not ended and cannot be deleted.')
        batch.deleted = True
        return json_reply({'id': batch.id, 'type': 'message_batch_deleted'})

    def catch_up(self, batch: FakeAnthropicBatch) -> None:
        """Run what has run by now; if it is over, write its results."""
        batch.run()
        if not batch.ended or batch.content is not None:
            return
        lines = batch.lines(lambda row: self.ask(MESSAGES, row.body, row.custom_id))
        batch.content = self.result_files(lines, batch, id_key='custom_id')['output']

    # Live

    def _live(self, call: Incoming) -> Response:
        self._project(call)
        try:
            body = read_json(call.body)
        except InputProblem as problem:
            self._refuse(problem.status, problem.message)
        if problem := body_problem(body):
            self._refuse(400, problem)
        _, answered = self.execute(MESSAGES, body, None, size=len(call.body), batch_id=None)
        if answered is None:
            return self.error(500, 'The answer function gave no answer.')
        if isinstance(answered, FakeError):
            return self._error(answered)
        return MessageStream(answered) if body.get('stream') else json_reply(answered)

    # Shared

    @property
    def _now(self) -> float:
        return self._scene.clock.now()

    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        """An error reply in Anthropic's shape."""
        return self._error(FakeError(status, code, message))

    def _error(self, error: FakeError) -> Response:
        request_id = f'req_{uuid.uuid4().hex[:24]}'
        response = json_reply(error_body(error, request_id), error.status)
        response.headers['request-id'] = request_id
        return response

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(body)

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The Message with that answer."""
        return write_answer(request, answer, size)

    def _refuse(self, status: int, message: str) -> NoReturn:
        raise Refusal(self.error(status, message))

    def _project(self, call: Incoming) -> str:
        """The workspace of the call's API key."""
        key = call.headers.get('x-api-key', '')
        if not key:
            scheme, _, token = call.headers.get('authorization', '').partition(' ')
            key = token.strip() if scheme.lower() == 'bearer' else ''
        if not key:
            self._refuse(401, 'The request has no API key.')
        if 'anthropic-version' not in call.headers:
            self._refuse(400, 'anthropic-version: the header is required.')
        return self.projects.get(key, digest(key))
