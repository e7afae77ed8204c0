"""What the fakes of all providers have in common: routes, faults, the record of calls, running a request."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing.answers import Asked, BilledRow, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow
from pydantic_ai_batch.testing.calls import Call, without_secrets
from pydantic_ai_batch.testing.faults import Fault, Faults
from pydantic_ai_batch.testing.lines import IdKey, ResultFile, ResultLine, written
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase
from pydantic_ai_batch.testing.wire import CutDownload, LostReply, Reset

B = TypeVar('B', bound=FakeBatch)

UNKNOWN = 'unknown'
"""Operation of a call to a path that a fake does not serve."""


@dataclass(frozen=True)
class Incoming:
    """A call whose body has arrived."""

    path: dict[str, str]
    """The parameters in the path."""
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes


class Refusal(Exception):
    """Ends a handler with an error reply."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


Handler = Callable[[Incoming], Response]


class FakeProvider(ABC, Generic[B]):
    """One provider's API, served by [`FakeProviders`][pydantic_ai_batch.testing.FakeProviders]."""

    name: ClassVar[str]
    prefix: ClassVar[str]
    """Path of the API on the server."""
    operations: ClassVar[frozenset[str]]
    """The names of its HTTP operations."""
    words: ClassVar[Mapping[Phase, str]]
    """Its words for where a batch is."""
    window: ClassVar[float] = 86400.0
    """How long after its creation a batch expires, in seconds."""
    result_kinds: ClassVar[tuple[ResultFile, ...]] = ('output', 'error')
    """The result files that a batch of it has."""
    inapplicable: ClassVar[Mapping[str, str]] = {}
    """The faults of batches and lines that it cannot have, and why."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._faults = Faults(self.operations)
        self._batches: dict[str, B] = {}
        self._billed: list[BilledRow] = []
        self._attempts: Counter[bytes] = Counter()
        self.rewrite_results: Callable[[list[bytes], ResultFile], list[bytes]] | None = None
        """Called with the lines of each result file (`'output'` or `'error'`) when it is made; returns the lines to
        serve instead. For what no fault has a name for."""

    # For tests

    @property
    def base_url(self) -> str:
        """The URL to give to an SDK's client, such as `http://127.0.0.1:PORT/openai/v1`.

        Raises:
            RuntimeError: The fakes are not started.
        """
        if self._scene.address is None:
            raise RuntimeError('`FakeProviders` is not started: use it in a `with` block, or call `start()`.')
        return self._scene.address + self.prefix

    @property
    @abstractmethod
    def environment(self) -> dict[str, str]:
        """The environment variables that point the provider's SDK at this fake.

        Raises:
            RuntimeError: The fakes are not started.
        """

    @property
    def calls(self) -> list[Call]:
        """Every call so far, oldest first."""
        return self._scene.calls.of(self.name)

    def count(self, operation: str) -> int:
        """How many calls of an operation there were, those that a fault answered included.

        Raises:
            ValueError: There is no such operation.
        """
        if operation not in self.operations | {UNKNOWN}:
            raise ValueError(f'Unknown operation {operation!r}. Known: {", ".join(sorted(self.operations))}.')
        return sum(call.operation == operation for call in self.calls)

    @property
    def batches(self) -> dict[str, B]:
        """Every batch that was created, by its id, oldest first."""
        with self._scene.lock:
            return dict(self._batches)

    @property
    def billed(self) -> list[BilledRow]:
        """Every request that was run and charged by now, in the order they ran; failed ones are not charged."""
        with self._scene.lock:
            for batch in self._batches.values():
                self.catch_up(batch)
            return list(self._billed)

    def inject(self, operation: str, fault: str, *, times: int | None = 1, after: int = 0, **options: Any) -> None:
        """Make something go wrong.

        An HTTP call is hit by one fault at most, by the one injected first of those that are due; a batch by all that
        are due. In the lists, options stand with their defaults.

        Any HTTP operation:

        - `http` (`status=500`, `code=None`, `message='…'`, `headers={}`, `done=False`): it is answered with an error
          in the provider's shape; with `done=True` only after it took effect.
        - `reset`: the connection is reset before anything is done.
        - `lose_reply`: it takes effect, then the connection closes without a reply.
        - `garbage` (`body=b'<html>…'`): it takes effect, then a 200 is answered whose body is not JSON.

        `download` also:

        - `cut` (`fraction=0.5`, `announced=True`): the connection closes after that part of the file. With
          `announced=False` the reply ends as a whole one does, so that nothing on the wire shows what is missing.

        `batch`, which is the next batch that is created; where `done` rows are finished, they are the first of the
        input:

        - `expire` (`done=0`, `seconds=86400`): it expires that long after its creation; the provider's own window is
          the default.
        - `cancel` (`done=0`): it is cancelled by somebody else.
        - `fail` (`errors=None`, `rows=None`): it fails when it is validated, with that list of `code`, `message`,
          `param`, `line`; with `rows`, a function from [`FakeRequest`][pydantic_ai_batch.testing.FakeRequest] to
          whether it is wrong, only if it has a wrong row.
        - `stick` (`done=0`): it does not end before it is cancelled.
        - `status_word` (`word='weird'`, `when=None`): it says `word` instead of the provider's word `when`; `None` is
          the word for running.
        - `hide` (`seconds=60`): a listing does not show it for that long.
        - `delay_results` (`seconds=60`): it tells no counts, and its results are there only that long after its end.

        `lines`, which is the results of the next batch that is created. `rows` is how many of the first rows of its
        input are meant, or a function from [`FakeRequest`][pydantic_ai_batch.testing.FakeRequest] to whether it is, or
        `None` for all:

        - `drop` (`rows=1`): they are missing from the results, though they ran and were billed.
        - `damage` (`rows=1`, `how='truncate'`): their lines are cut in the middle (`truncate`), text that is not JSON
          (`not_json`), without an id (`null_id`), an empty list (`list`), not UTF-8 (`bad_utf8`), or whole but after
          an empty line (`blank`).
        - `duplicate` (`rows=1`): their lines come twice.
        - `unknown_id` (`rows=1`): their lines are followed by the like with an id that nobody sent.
        - `error_in_output` (`rows=None`): error lines stand among the answers.
        - `string_body` (`rows=None`): `response.body` is JSON in a string.

        Args:
            operation: One of the provider's operations, `'batch'` or `'lines'`.
            fault: Name of the fault.
            times: How many calls, or batches, it hits; `None` for all from now on.
            after: How many it lets pass first.
            options: The fault's options.

        Raises:
            ValueError: An unknown operation, fault or option; the message lists the known ones. Or a value that an
                option does not take; the message says what it takes. Or a fault that the provider cannot have; the
                message says why.
        """
        if reason := self.inapplicable.get(fault):
            raise ValueError(f'Fault {fault!r} does not apply to {self.name}: {reason}.')
        words = [*self.words.values()]
        if fault == 'status_word' and (when := options.get('when')) is not None and when not in words:
            raise ValueError(f'Unknown word {when!r}. Known: {", ".join(words)}.')
        if fault == 'expire':
            options = {'seconds': self.window, **options}
        with self._scene.lock:
            self._faults.add(operation, fault, times=times, after=after, options=options)

    def clear_faults(self) -> None:
        """Forget the faults that are still due."""
        with self._scene.lock:
            self._faults.clear()

    # For a provider

    @property
    @abstractmethod
    def routes(self) -> list[Route]:
        """The paths it serves, made with `route`."""

    @abstractmethod
    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        """An error reply in the provider's shape."""

    @abstractmethod
    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What a body asks for."""

    def model_of(self, endpoint: str, body: dict[str, Any]) -> str | None:
        """The model that a body of that endpoint is for."""
        model = body.get('model')
        return model if isinstance(model, str) else None

    @abstractmethod
    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The provider's reply with that answer; `size` is that of the request in bytes."""

    @abstractmethod
    def catch_up(self, batch: B) -> None:
        """Run what a batch has run by now, and make its results if it is over."""

    def route(self, method: str | Sequence[str], path: str, operation: str, handler: Handler) -> Route:
        """A path of the API, with faults and the record of calls around its handler."""

        async def endpoint(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=499)
            incoming = Incoming(dict(request.path_params), dict(request.query_params), request.headers, body)
            with self._scene.lock:
                response = self._respond(operation, handler, incoming)
                cut = isinstance(response, LostReply | Reset | CutDownload)
                self._scene.calls.add(
                    Call(
                        provider=self.name,
                        operation=operation,
                        method=request.method,
                        path=request.url.path,
                        query=without_secrets(request.query_params.multi_items()),
                        headers=without_secrets(request.headers.items()),
                        body=body,
                        status=None if cut and getattr(response, 'announced', True) else response.status_code,
                        at=self._scene.clock.now(),
                    )
                )
            return response

        return Route(self.prefix + path, endpoint, methods=[method] if isinstance(method, str) else method)

    def unknown_route(self) -> Route:
        """What answers every other path of the API: 404, recorded as `'unknown'`."""

        def refuse(incoming: Incoming) -> Response:
            return self.error(404, 'There is nothing at this path.')

        return self.route(('GET', 'POST', 'PUT', 'PATCH', 'DELETE'), '/{path:path}', UNKNOWN, refuse)

    def _respond(self, operation: str, handler: Handler, incoming: Incoming) -> Response:
        fault = self._faults.take(operation)
        if fault is None:
            return self._handle(handler, incoming)
        if fault.name == 'reset':
            return Reset()
        if fault.name == 'http' and not fault['done']:
            return self._http_fault(fault)
        response = self._handle(handler, incoming)
        if fault.name == 'http':
            return self._http_fault(fault)
        if fault.name == 'cut':
            return CutDownload(response, fraction=fault['fraction'], announced=fault['announced'])
        if fault.name == 'garbage':
            return Response(fault['body'], media_type='text/html')
        return LostReply()

    def _handle(self, handler: Handler, incoming: Incoming) -> Response:
        try:
            return handler(incoming)
        except Refusal as refusal:
            return refusal.response
        except Exception as error:
            self._scene.mistakes.append(error)
            return self.error(500, f'The fake failed: {error!r}.')

    def _http_fault(self, fault: Fault) -> Response:
        response = self.error(fault['status'], fault['message'], code=fault['code'])
        response.headers.update(fault['headers'])
        return response

    def batch_faults(self, endpoint: str, rows: Sequence[FakeRow]) -> tuple[list[Fault], list[Fault]]:
        """The faults that hit the batch which is being created: of itself, and of its result lines."""
        faults = [fault for fault in self._faults.take_all('batch') if self._hits(fault, endpoint, rows)]
        return faults, self._faults.take_all('lines')

    def _hits(self, fault: Fault, endpoint: str, rows: Sequence[FakeRow]) -> bool:
        if fault.name != 'fail' or fault['rows'] is None:
            return True
        return any(fault['rows'](self.ask(endpoint, row.body, row.custom_id)) for row in rows)

    def ask(self, endpoint: str, body: dict[str, Any], custom_id: str | None, key: bytes | None = None) -> FakeRequest:
        """A body as the request that it is; `key` is its digest, if that is known."""
        return FakeRequest(
            provider=self.name,
            endpoint=endpoint,
            custom_id=custom_id,
            model=self.model_of(endpoint, body),
            body=body,
            attempt=self._attempts[key or _body_digest(body)],
            **vars(self.read_request(endpoint, body)),
        )

    def result_files(self, lines: Sequence[ResultLine], batch: B, *, id_key: IdKey) -> dict[ResultFile, bytes]:
        """The result files of a batch with its faults in them; a file without a line is empty."""
        files = written(lines, batch.line_faults, id_key=id_key)
        if self.rewrite_results is not None:
            for kind in self.result_kinds:
                files[kind] = self.rewrite_results(files[kind], kind)
        return {kind: b''.join(line + b'\n' for line in content) for kind, content in files.items()}

    def execute(
        self, endpoint: str, body: dict[str, Any], custom_id: str | None, *, size: int, batch_id: str | None
    ) -> tuple[FakeRequest, dict[str, Any] | FakeError | None]:
        """Answer a request, and bill it if it did not fail; `size` is that of the request in bytes."""
        key = _body_digest(body)
        request = self.ask(endpoint, body, custom_id, key)
        try:
            answer = self._scene.answer(request)
            if isinstance(answer, str | FakeToolCall):
                answer = self.write_answer(request, answer, size)
        except Exception as error:
            # A mistake in the test, not a provider's: it is raised when the fakes stop.
            self._scene.mistakes.append(error)
            answer = FakeError(500, 'answer_function_failed', f'The answer function raised {error!r}.')
        self._attempts[key] += 1
        if not isinstance(answer, FakeError):
            self._billed.append(BilledRow(batch_id, custom_id, body, request.text))
        return request, answer


def _body_digest(body: dict[str, Any]) -> bytes:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
