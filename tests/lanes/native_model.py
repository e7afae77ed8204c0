"""A model that brings batch methods of its own, as a user's may, and the service behind it.

The service is a fake provider like the others, and goes by the same clock, answers, faults and records; only its calls
are made in the process. What would break on a wire reaches the lane as the error that such a model raises for it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeTool, FakeToolCall
from pydantic_ai_batch.testing.answers import Asked, token_estimate
from pydantic_ai_batch.testing.batches import FakeBatch, FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.calls import Call, digest, without_secrets
from pydantic_ai_batch.testing.lines import ResultLine
from pydantic_ai_batch.testing.provider import FakeProvider, Incoming, Refusal
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase
from pydantic_ai_batch.testing.wire import CutDownload, LostReply, Reset, json_reply

Json = dict[str, Any]

_WORDS: Mapping[Phase, str] = {
    **dict.fromkeys(Phase, 'ended'),
    **dict.fromkeys((Phase.VALIDATING, Phase.RUNNING, Phase.FINALIZING), 'in_progress'),
    Phase.CANCELLING: 'canceling',
}
_UNFINISHED = {Phase.EXPIRED: 'expired', Phase.CANCELLED: 'canceled'}
_INAPPLICABLE = {
    'fail': 'a batch never fails as a whole',
    'hide': 'it has no listing',
    'delay_results': 'it returns all its results at once',
    'error_in_output': 'answers and errors are in one list anyway',
    'string_body': 'its results hold no HTTP response',
}


class RowError(ModelHTTPError):
    """The model's own class for a request that failed, live or in a batch."""


class FakeService(FakeProvider[FakeBatch]):
    """What is behind the model. Each key is a project of its own, unless `projects` says otherwise."""

    name = 'native'
    prefix = ''
    operations = frozenset({'create', 'status', 'download', 'cancel', 'live'})
    words = _WORDS
    result_kinds = ('output',)
    inapplicable = _INAPPLICABLE
    retention = timedelta(days=29)
    """How long a batch can be seen after its creation."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.projects: dict[str, str] = {}
        """Key to the project that it belongs to, for keys that are to share one."""

    @classmethod
    def of(cls, fake: FakeProviders) -> FakeService:
        """The service that goes by the clock and the answers of `fake`, one for each."""
        service = fake.providers.get(cls.name)
        if not isinstance(service, cls):
            service = fake.providers[cls.name] = cls(fake._scene)
        return service

    def call(self, operation: str, key: str, *, batch_id: str = '', body: object = None) -> Response:
        """Answer a call, with the faults that are due."""
        handlers = {
            'create': self._create,
            'status': self._status,
            'download': self._download,
            'cancel': self._cancel,
            'live': self._live,
        }
        incoming = Incoming({'id': batch_id}, {}, {'api-key': key}, json.dumps(body).encode())
        with self._scene.lock:
            response = self._respond(operation, handlers[operation], incoming)
            self._scene.calls.add(
                Call(
                    provider=self.name,
                    operation=operation,
                    method='CALL',
                    path=batch_id,
                    query={},
                    headers=without_secrets(incoming.headers.items()),
                    body=incoming.body,
                    status=None if isinstance(response, LostReply | Reset | CutDownload) else response.status_code,
                    at=self._scene.clock.now(),
                )
            )
        return response

    def _create(self, call: Incoming) -> Response:
        submitted: list[Json] = json.loads(call.body)
        rows = [
            FakeRow(index, row['custom_id'], json.loads(row['body']), len(row['body']))
            for index, row in enumerate(submitted)
        ]
        id = f'job-{len(self._batches)}'

        def execute(row: FakeRow) -> RowResult:
            return RowResult(row, *self.execute('batch', row.body, row.custom_id, size=row.size, batch_id=id))

        faults, line_faults = self.batch_faults('batch', rows)
        self._batches[id] = batch = FakeBatch(
            Submission(
                id=id,
                project=self._project(call),
                endpoint='batch',
                model=None,
                metadata=None,
                requests=rows,
                errors=[],
                faults=faults,
                line_faults=line_faults,
            ),
            self._scene,
            number=len(self._batches),
            window=self.window,
            words=self.words,
            execute=execute,
        )
        return self._shown(batch)

    def _status(self, call: Incoming) -> Response:
        return self._shown(self._batch(call))

    def _cancel(self, call: Incoming) -> Response:
        batch = self._batch(call)
        batch.cancel()
        return self._shown(batch)

    def _download(self, call: Incoming) -> Response:
        batch = self._batch(call)
        if not batch.ended:
            raise Refusal(self.error(409, f'Batch {batch.id} has not ended.'))
        lines = [_line(result.row.index, result.request, result.answer) for result in batch.results]
        lines += [
            ResultLine(row.index, request, {'custom_id': row.custom_id, 'status': _UNFINISHED[batch.phase]}, 'output')
            for row in batch.unfinished
            for request in [self.ask('batch', row.body, row.custom_id)]
        ]
        return Response(self.result_files([line for line in lines if line], batch, id_key='custom_id')['output'])

    def _live(self, call: Incoming) -> Response:
        _, answer = self.execute('live', json.loads(call.body), None, size=len(call.body), batch_id=None)
        if isinstance(answer, FakeError):
            return self.error(answer.status, answer.message)
        return json_reply(answer) if answer else self.error(500, 'There is no answer.')

    def _batch(self, call: Incoming) -> FakeBatch:
        batch = self._batches.get(call.path['id'])
        kept_since = self._scene.clock.now() - self.retention.total_seconds()
        if batch is None or batch.project != self._project(call) or batch.created_at < kept_since:
            raise Refusal(self.error(404, 'There is no such batch.'))
        return batch

    def _project(self, call: Incoming) -> str:
        return self.projects.get(call.headers['api-key'], call.headers['api-key'])

    @staticmethod
    def _shown(batch: FakeBatch) -> Response:
        return json_reply(
            {
                'id': batch.id,
                'status': batch.status,
                'created_at': batch.created_at,
                'request_count': len(batch.requests),
            }
        )

    # What a fake provider has to have

    @property
    def environment(self) -> dict[str, str]:
        return {}

    @property
    def routes(self) -> list[Route]:
        return []

    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        return json_reply({'message': message, 'code': code}, status)

    def read_request(self, endpoint: str, body: Json) -> Asked:
        texts = [message['text'] for message in body['messages'] if message['role'] == 'user']
        return Asked(
            text=texts[-1] if texts else '',
            tools=tuple(FakeTool(tool['name'], tool['parameters']) for tool in body['tools']),
            forced_tool='*' if body['must_call'] else None,
            tool_results=sum(message['role'] == 'tool' for message in body['messages']),
            output_schema=body['output_schema'],
        )

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> Json:
        said = answer if isinstance(answer, str) else {'name': answer.name, 'arguments': answer.arguments}
        return {'said': said, 'tokens': [token_estimate(size), token_estimate(len(json.dumps(said)))]}

    def catch_up(self, batch: FakeBatch) -> None:
        batch.run()


def _line(index: int, request: FakeRequest, answer: Json | FakeError | None) -> ResultLine | None:
    if answer is None:
        return None
    if isinstance(answer, FakeError):
        status, body = 'errored', {'status': answer.status, 'message': answer.message}
    else:
        status, body = 'succeeded', answer
    value = {'custom_id': request.custom_id, 'status': status, 'body': json.dumps(body)}
    return ResultLine(index, request, value, 'output')


class NativeModel(FunctionModel):
    """A model of the service: what it is asked live or in a batch is answered by the same function."""

    def __init__(self, fake: FakeProviders, key: str) -> None:
        async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            body = self._body(messages, info.model_request_parameters)
            return self._response(await self._call('live', body=body))

        super().__init__(answer, model_name='native-1')
        self._service = FakeService.of(fake)
        self._key = key

    async def batch_encode(self, request: BatchRequest) -> EncodedBatchRequest:
        _, parameters = self.prepare_request(request.model_settings, request.model_request_parameters)
        # In the form of the framework's own groups, so that a key may be changed while a batch runs.
        group = {'model': self.model_name, 'credential': digest(self._key)}
        body = json.dumps(self._body(request.messages, parameters))
        return EncodedBatchRequest(custom_id=request.custom_id, group=json.dumps(group), body=body)

    async def batch_create(self, requests: Sequence[EncodedBatchRequest]) -> Batch:
        (group,) = {request.group for request in requests}
        rows = [{'custom_id': request.custom_id, 'body': request.body} for request in requests]
        return self._handle(await self._call('create', body=rows), group)

    async def batch_status(self, batch: Batch) -> Batch:
        return self._handle(await self._call('status', batch), batch.group)

    async def batch_results(self, batch: Batch) -> list[BatchResult]:
        content = await self._send('download', batch)
        return [BatchResult(**self._parsed(line)) for line in content.split(b'\n') if line]

    async def batch_cancel(self, batch: Batch) -> Batch:
        return self._handle(await self._call('cancel', batch), batch.group)

    def batch_decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        if result.body is None:
            raise ModelAPIError(self.model_name, f'The request is {result.status}.')
        body = json.loads(result.body)
        if result.status == 'errored':
            raise RowError(body['status'], self.model_name, body)
        return self._response(body)

    def _body(self, messages: list[ModelMessage], parameters: ModelRequestParameters) -> Json:
        tools = [*parameters.function_tools, *parameters.output_tools]
        native = parameters.output_object if parameters.output_mode == 'native' else None
        return {
            'model': self.model_name,
            'messages': [{'role': role, 'text': text} for role, text in _said(messages)],
            'tools': [{'name': tool.name, 'parameters': tool.parameters_json_schema} for tool in tools],
            'must_call': bool(tools) and not parameters.allow_text_output,
            'output_schema': native.json_schema if native else None,
        }

    def _response(self, body: Json) -> ModelResponse:
        said, (spent, made) = body['said'], body['tokens']
        part: ModelResponsePart = (
            TextPart(said) if isinstance(said, str) else ToolCallPart(said['name'], said['arguments'], uuid.uuid4().hex)
        )
        usage = RequestUsage(input_tokens=spent, output_tokens=made)
        return ModelResponse(parts=[part], usage=usage, model_name=self.model_name)

    def _handle(self, shown: Json, group: str) -> Batch:
        return Batch(
            id=shown['id'],
            model_name=self.model_name,
            provider_name=self.system,
            group=group,
            status=shown['status'],
            created_at=datetime.fromtimestamp(shown['created_at'], UTC),
            request_count=shown['request_count'],
        )

    async def _call(self, operation: str, batch: Batch | None = None, *, body: object = None) -> Json:
        return self._parsed(await self._send(operation, batch, body=body))

    async def _send(self, operation: str, batch: Batch | None = None, *, body: object = None) -> bytes:
        # Other tasks run meanwhile, as they do while a call is on its way.
        await asyncio.sleep(0)
        response = self._service.call(operation, self._key, batch_id=batch.id if batch else '', body=body)
        await asyncio.sleep(0)
        if isinstance(response, LostReply | Reset | CutDownload):
            self._broke('The connection broke.')
        content = bytes(response.body)
        if response.status_code >= 400:
            error_class = RowError if operation == 'live' else ModelHTTPError
            raise error_class(response.status_code, self.model_name, json.loads(content))
        return content

    def _parsed(self, content: bytes) -> Json:
        try:
            return json.loads(content)
        except ValueError as error:
            self._broke('The reply is no JSON.', error)

    def _broke(self, message: str, cause: Exception | None = None) -> NoReturn:
        raise ModelConnectionError(self.model_name, message, phase='read') from cause


def _said(messages: list[ModelMessage]) -> Iterator[tuple[str, str]]:
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=str(text)):
                    yield 'user', text
                case ToolReturnPart():
                    yield 'tool', part.model_response_str()
                case TextPart(content=text):
                    yield 'assistant', text
                case _:
                    pass
