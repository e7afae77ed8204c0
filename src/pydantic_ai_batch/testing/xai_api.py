"""The fake xAI: its batch API, and its Chat Completions and Responses endpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.loopback import client_options
from pydantic_ai_batch.testing.openai_bodies import CHAT, RESPONSES, read_request, write_answer
from pydantic_ai_batch.testing.provider import FakeProvider, Incoming, Refusal
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import json_reply
from pydantic_ai_batch.testing.xai_batches import WINDOW, WORDS, FakeXAIBatch

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ENDPOINTS = {'chat_get_completion': CHAT, 'responses': RESPONSES}
"""What a request in a batch can be, and the endpoint that answers it live."""

_PAGE = 100


class FakeXAI(FakeProvider[FakeXAIBatch]):
    """xAI's batch API, and its Chat Completions and Responses endpoints.

    Its manners: a batch is created empty and filled by further calls, runs what is in it at once, and can take more
    while it does. It has no status but counts. Results can be read while it runs, and come in the shape of Chat
    Completions whatever was asked.

    Operations: `create`, `add`, `status`, `list`, `download` for a page of results, `cancel`, and `live` for a request
    to one of the endpoints.

    Each API key is a team of its own, and sees nothing of the others', unless `teams` says otherwise.
    """

    name = 'xai'
    prefix = '/xai/v1'
    operations = frozenset({'create', 'add', 'status', 'list', 'download', 'cancel', 'live'})
    words = WORDS
    window = WINDOW
    result_kinds = ('output',)
    inapplicable: ClassVar[Mapping[str, str]] = {
        'delay_results': 'its batches are over when its counts say so',
        'expire': 'its batches have no window',
        'status_word': 'its batches have no status',
        'error_in_output': 'all its results come together',
        'string_body': 'its results have no `response.body`',
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.teams: dict[str, str] = {}
        """API key to the team that it belongs to, for keys that are to share one."""
        self.max_bytes = 25_000_000
        """Most bytes of a call that adds requests."""
        self.page_size = _PAGE
        """Most items on a page."""
        self.lag = 0.0
        """How long the counts of a batch do not show requests that are added, in seconds."""
        self.duplicates: tuple[int, str] | None = None
        """The status and message that a call is refused with which adds an ID that is in the batch already; `None`
        takes it, and leaves those requests out. What the real one does is not documented."""

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
        """The key. There is no variable for the address."""
        return {'XAI_API_KEY': 'test'}

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        return [
            self.route('POST', '/batches', 'create', self._create),
            self.route('GET', '/batches', 'list', self._list),
            self.route('POST', '/batches/{id}/requests', 'add', self._add),
            self.route('GET', '/batches/{id}/results', 'download', self._results),
            self.route('POST', '/batches/{id}:cancel', 'cancel', self._cancel),
            self.route('GET', '/batches/{id}', 'status', lambda call: self._shown(self._batch(call))),
            *(self.route('POST', path.removeprefix('/v1'), 'live', self._live(path)) for path in ENDPOINTS.values()),
            self.unknown_route(),
        ]

    # Batches

    def _create(self, call: Incoming) -> Response:
        team = self._team(call)
        name = self._json(call).get('name')
        if not isinstance(name, str) or not name:
            self._refuse(400, 'A batch needs a name.')
        id = f'batch_{uuid.uuid4()}'

        def execute(row: FakeRow) -> RowResult:
            endpoint = self._batches[id].endpoints[row.index]
            return RowResult(row, *self.execute(endpoint, row.body, row.custom_id, size=row.size, batch_id=id))

        batch = self._batches[id] = FakeXAIBatch(
            Submission(
                id=id,
                project=team,
                endpoint=CHAT,
                model=None,
                metadata=None,
                requests=(),
                errors=[],
                # Of the rows that a fault may go by, nothing is known yet.
                faults=self._faults.take_all('batch'),
                line_faults=self._faults.take_all('lines'),
            ),
            self._scene,
            number=len(self._batches),
            name=name,
            key_id=self._key_id(call),
            execute=execute,
        )
        return self._shown(batch)

    def _add(self, call: Incoming) -> Response:
        batch = self._batch(call)
        if len(call.body) > self.max_bytes:
            self._refuse(413, f'The body is larger than {self.max_bytes} bytes.')
        if batch.stopped_at is not None:
            self._refuse(400, 'The batch was cancelled.')
        known, rows = {row.custom_id for row in batch.requests}, list[tuple[str, FakeRow]]()
        for item in self._objects(self._json(call).get('batch_requests')):
            custom_id = item.get('batch_request_id') or str(uuid.uuid4())
            if custom_id in known:
                if self.duplicates is not None:
                    self._refuse(*self.duplicates)
                continue
            known.add(custom_id)
            endpoint, body = self._request(item.get('batch_request'))
            row = FakeRow(len(batch.requests) + len(rows), custom_id, body, len(json.dumps(body)))
            rows.append((endpoint, row))
        if rows:
            batch.add(rows, batch.faults_with(lambda fault: self._hits_any(fault, rows)), lag=self.lag)
        return json_reply(None)

    def _hits_any(self, fault: Any, rows: Sequence[tuple[str, FakeRow]]) -> bool:
        return any(self._hits(fault, endpoint, [row]) for endpoint, row in rows)

    def _request(self, value: Any) -> tuple[str, dict[str, Any]]:
        """The endpoint and the body of a request in a batch."""
        request = cast('dict[str, Any]', value) if isinstance(value, dict) else {}
        if len(request) != 1 or not request.keys() <= ENDPOINTS.keys():
            self._refuse(400, f'A request must be one of {", ".join(ENDPOINTS)}.')
        ((kind, body),) = request.items()
        if not isinstance(body, dict) or not isinstance(cast('dict[str, Any]', body).get('model'), str):
            self._refuse(400, 'The request names no model.')
        return ENDPOINTS[kind], cast('dict[str, Any]', body)

    def _batch(self, call: Incoming) -> FakeXAIBatch:
        team, batch = self._team(call), self._batches.get(call.path['id'])
        if batch is None or batch.project != team or self._now >= batch.expires_at:
            self._refuse(404, f'There is no batch {call.path["id"]!r}.')
        return batch

    def _shown(self, batch: FakeXAIBatch) -> Response:
        self.catch_up(batch)
        return json_reply(batch.to_json())

    def _list(self, call: Incoming) -> Response:
        team = self._team(call)
        batches = [
            batch
            for batch in reversed(self._batches.values())
            if batch.project == team and batch.hidden_until <= self._now < batch.expires_at
        ]
        page, token = self._page(call, batches)
        for batch in page:
            self.catch_up(batch)
        return json_reply({'batches': [batch.to_json() for batch in page], 'pagination_token': token})

    def _results(self, call: Incoming) -> Response:
        batch = self._batch(call)
        self.catch_up(batch)
        content = self.result_files(batch.lines(), batch, id_key='batch_request_id')['output']
        page, token = self._page(call, [_as_json(line) for line in content.split(b'\n') if line])
        reply = b'{"results":[%b],"pagination_token":%b}' % (b','.join(page), json.dumps(token).encode())
        return Response(reply, media_type='application/json')

    def _cancel(self, call: Incoming) -> Response:
        batch = self._batch(call)
        self.catch_up(batch)
        batch.cancel()
        return self._shown(batch)

    def catch_up(self, batch: FakeXAIBatch) -> None:
        """Run what has run by now."""
        batch.run()

    # Live

    def _live(self, endpoint: str) -> Callable[[Incoming], Response]:
        def answer(call: Incoming) -> Response:
            self._team(call)
            body = self._json(call)
            if not isinstance(body.get('model'), str):
                self._refuse(400, 'The body names no model.')
            if body.get('stream'):
                self._refuse(400, 'The fake does not stream.')
            _, answered = self.execute(endpoint, body, None, size=len(call.body), batch_id=None)
            if answered is None:
                return self.error(500, 'The answer function gave no answer.')
            if isinstance(answered, FakeError):
                return self.error(answered.status, answered.message, code=answered.code)
            return json_reply(answered)

        return answer

    # Shared

    @property
    def _now(self) -> float:
        return self._scene.clock.now()

    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        """An error reply in xAI's shape."""
        return json_reply({'code': code or f'error {status}', 'error': message}, status)

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(endpoint, body)

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The response body with that answer, which in a batch is a chat completion."""
        if request.custom_id is not None:
            request = replace(request, endpoint=CHAT)
        return write_answer(request, answer, size, now=self._now)

    def _refuse(self, status: int, message: str) -> NoReturn:
        raise Refusal(self.error(status, message))

    def _key_id(self, call: Incoming) -> str:
        """A digest of the call's API key."""
        scheme, _, key = call.headers.get('authorization', '').partition(' ')
        if scheme.lower() != 'bearer' or not key.strip():
            self._refuse(401, 'The request has no API key.')
        return digest(key)

    def _team(self, call: Incoming) -> str:
        """The team of the call's API key."""
        key_id = self._key_id(call)
        return next((team for key, team in self.teams.items() if digest(key) == key_id), key_id)

    def _json(self, call: Incoming) -> dict[str, Any]:
        try:
            value = json.loads(call.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._refuse(400, 'The body must be a JSON object.')
        return cast('dict[str, Any]', value)

    def _objects(self, value: Any) -> list[dict[str, Any]]:
        items = cast('list[Any]', value) if isinstance(value, list) else []
        if not items or not all(isinstance(item, dict) for item in items):
            self._refuse(400, 'There must be at least one request, and each must be an object.')
        return cast('list[dict[str, Any]]', items)

    def _page(self, call: Incoming, items: Sequence[Any]) -> tuple[Sequence[Any], str | None]:
        """A page of items, and the token of the next one, if there is one."""
        limit, token = call.query.get('limit', str(_PAGE)), call.query.get('pagination_token', '0')
        if not limit.isdecimal() or not int(limit) or not token.isdecimal():
            self._refuse(400, 'There is no such page.')
        start, end = int(token), int(token) + min(int(limit), self.page_size)
        return items[start:end], str(end) if end < len(items) else None


def _as_json(line: bytes) -> bytes:
    """A line as it stands in a page of results: one that is damaged is a text there."""
    try:
        json.loads(line)
    except ValueError:
        return json.dumps(line.decode('utf-8', 'replace')).encode()
    return line
