"""What the fakes of Gemini share, of its own API and of Google Cloud's: bodies, pages, errors and live requests."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol, TypeVar, cast

from starlette.responses import Response

from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.batches import FakeRow, RowResult
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.google_bodies import body_problem, endpoint_of, model_of, read_request, write_answer
from pydantic_ai_batch.testing.google_json import Json, error_body
from pydantic_ai_batch.testing.provider import B, FakeProvider, Incoming, Refusal
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import json_reply

VERSIONS = ('/v1beta', '/v1')
"""The versions of the API that are served, all alike: google-genai asks for one or the other, as its own version is."""


class _Named(Protocol):
    @property
    def id(self) -> str: ...


N = TypeVar('N', bound=_Named)


class GoogleService(FakeProvider[B]):
    """A fake of Gemini without its paths."""

    result_kinds = ('output',)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.projects: dict[str, str] = {}
        """API key, or access token, to the project that it belongs to, for keys that are to share one."""

    @property
    def _now(self) -> float:
        return self._scene.clock.now()

    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        """An error reply in Google's shape."""
        return json_reply(error_body(FakeError(status, code, message)), status)

    def model_of(self, endpoint: str, body: dict[str, Any]) -> str | None:
        """The model in the path, which a body need not name."""
        return model_of(endpoint)

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(body)

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The response body with that answer."""
        return write_answer(request, answer, size)

    def _refuse(self, status: int, message: str, *, code: str | None = None) -> NoReturn:
        raise Refusal(self.error(status, message, code=code))

    @abstractmethod
    def _project(self, call: Incoming) -> str:
        """The project that a call is for."""

    def _json(self, call: Incoming) -> Json:
        try:
            value = json.loads(call.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._refuse(400, 'The body must be a JSON object.')
        return cast('Json', value)

    def _page(
        self,
        call: Incoming,
        items: Sequence[N],
        *,
        most: int,
        default: int,
        shown: Callable[[N], bool] = lambda item: True,
    ) -> tuple[list[N], str | None]:
        """One page of a listing, and the token of the next.

        Args:
            call: Whose query says which page.
            items: Everything there is, in the order of the listing.
            most: The most items of a page; who asks for more gets that many.
            default: How many there are if nobody asks for a number.
            shown: Whether the listing shows an item. One that it does not is still a place to go on from.
        """
        text = call.query.get('pageSize', '0')
        if not text.isdecimal():
            self._refuse(400, 'The page size must be a number that is not negative.')
        size, start = min(int(text) or default, most), 0
        if token := call.query.get('pageToken'):
            start = next((place for place, item in enumerate(items, start=1) if digest(item.id) == token), 0)
            if not start:
                self._refuse(400, 'The page token is none of this listing.')
        listed = [item for item in items[start:] if shown(item)]
        page = listed[:size]
        return page, digest(page[-1].id) if size < len(listed) else None

    def run_row(self, endpoint: str, row: FakeRow, body: Json, batch_id: str) -> RowResult:
        """Answer a row of a batch, whose request is `body`."""
        key = row.custom_id or None
        if problem := body_problem(body):
            return RowResult(row, self.ask(endpoint, body, key), problem)
        return RowResult(row, *self.execute(endpoint, body, key, size=row.size, batch_id=batch_id))

    # Live

    def _answer(self, call: Incoming) -> Json:
        self._project(call)
        endpoint, body = endpoint_of(call.path['model']), self._json(call)
        answered = body_problem(body)
        if not answered:
            _, answered = self.execute(endpoint, body, None, size=len(call.body), batch_id=None)
        if answered is None:
            self._refuse(500, 'The answer function gave no answer.')
        if isinstance(answered, FakeError):
            raise Refusal(json_reply(error_body(answered), answered.status))
        return answered

    def _live(self, call: Incoming) -> Response:
        return json_reply(self._answer(call))

    def _live_stream(self, call: Incoming) -> Response:
        """The whole answer in the first and last piece of a stream."""
        piece = json_reply(self._answer(call))
        if call.query.get('alt') == 'sse':
            return Response(b'data: ' + bytes(piece.body) + b'\r\n\r\n', media_type='text/event-stream')
        return Response(b'[' + bytes(piece.body) + b']', media_type='application/json')
