"""The fake Amazon Bedrock: its batch inference, the part of S3 that this needs, and its Converse endpoint."""

# The SDK comes without types.
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, NoReturn, cast

from starlette.responses import Response
from starlette.routing import Route

from pydantic_ai_batch.exceptions import sdk_missing
from pydantic_ai_batch.replay_boto import new_session
from pydantic_ai_batch.testing import s3_objects
from pydantic_ai_batch.testing.answers import Asked, FakeError, FakeRequest, FakeToolCall
from pydantic_ai_batch.testing.batches import FakeRow, RowResult, Submission
from pydantic_ai_batch.testing.bedrock_batches import WORDS, FakeBedrockBatch, Order, read_rows
from pydantic_ai_batch.testing.bedrock_bodies import ERRORS, read_request, write_answer
from pydantic_ai_batch.testing.calls import digest
from pydantic_ai_batch.testing.provider import UNKNOWN, FakeProvider, Handler, Incoming, Refusal
from pydantic_ai_batch.testing.s3_objects import FakeObject
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.wire import json_reply

_OF_S3 = frozenset({'upload', 'objects', 'head', 'download', 'delete'})
"""The operations of S3, which speaks XML."""

_NAME = re.compile(r'[a-zA-Z0-9]{1,63}(-*[a-zA-Z0-9+.-]){0,63}')
_TOKEN = re.compile(r'[a-zA-Z0-9]{1,256}(-*[a-zA-Z0-9]){0,256}')
_URI = re.compile(r"s3://([a-z0-9][-.a-z0-9]{1,61}[a-z0-9])(?:/([-!_*'().a-z0-9A-Z/]*))?")
_ROLE = re.compile(r'arn:aws(-[^:]+)?:iam::([0-9]{12})?:role/.+')
_EVER, _NEVER = '0001-01-01T00:00:00Z', '9999-12-31T00:00:00Z'
_PAGE = 1_000


class FakeBedrock(FakeProvider[FakeBedrockBatch]):
    """Amazon Bedrock's batch inference, the part of S3 that this needs, and its Converse endpoint.

    Its manners: a job reads a file in S3, and writes a file of results there, and a manifest beside it. Ordered again
    with the same token, it is the same job. What is asked in its rows is not looked at before they are run, and those
    with tools fail then.

    Operations: `upload`, `objects` (a listing), `head`, `download` and `delete` of S3; `create`, `status`, `list` and
    `cancel` of jobs; and `live` for a Converse request.

    Each access key, and each API key, is an account of its own, and sees nothing of the others', unless `projects`
    says otherwise. Signatures are not checked.
    """

    name = 'bedrock'
    prefix = '/bedrock'
    operations = _OF_S3 | {'create', 'status', 'list', 'cancel', 'live'}
    words = WORDS
    result_kinds = ('output',)
    inapplicable: ClassVar[Mapping[str, str]] = {
        'error_in_output': 'answers and errors are in one file anyway',
        'string_body': 'its results have no `response.body`',
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.projects: dict[str, str] = {}
        """Access key, or API key, to the account that it belongs to, for keys that are to share one."""
        self.region = 'us-east-1'
        """The region that it is in."""
        self.bucket = 'test-batches'
        """The one bucket that there is."""
        self.role = 'arn:aws:iam::123456789012:role/batches'
        """The role that `environment` names."""
        self.min_records = 1
        """The fewest rows of a job; AWS says 100 unless an account's quota says otherwise."""
        self.max_records = 50_000
        """The most rows of a job."""
        self.output_files = 1
        """How many files the results of a job are in."""
        self.page_size = _PAGE
        """The most items on a page of a listing, of jobs and of objects."""
        self._objects: dict[str, FakeObject] = {}
        self._ids: dict[str, str] = {}
        self._operation = UNKNOWN

    def client(self, **settings: Any) -> Any:
        """A `bedrock-runtime` client of boto3 on this fake, with the access key `'test'`, that repeats no call.

        What batches need besides is where `environment` says.

        Args:
            settings: Further settings of the client, such as `aws_access_key_id` or `config`.

        Raises:
            RuntimeError: The fakes are not started.
            LaneDependencyMissing: The SDK is not installed. The message names the extra that installs it.
        """
        try:
            import boto3
            from botocore.config import Config
        except ImportError as error:
            raise sdk_missing('bedrock') from error

        # Past the proxy that the environment may name, and the API key, which the SDK sends to no fake.
        config: Any = Config(proxies={}, signature_version='v4', retries={'total_max_attempts': 1})
        arguments: dict[str, Any] = {
            'region_name': self.region,
            'endpoint_url': self.base_url,
            'aws_access_key_id': 'test',
            'aws_secret_access_key': 'test',
            **settings,
            'config': config.merge(settings['config']) if 'config' in settings else config,
        }
        # With a session of its own, as the one that all share is not made for threads.
        session = cast('Any', boto3.Session(botocore_session=new_session()))
        return session.client('bedrock-runtime', **arguments)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that point AWS's SDK at this fake, with credentials and what batches need."""
        return {
            'AWS_ENDPOINT_URL_BEDROCK_RUNTIME': self.base_url,
            'AWS_ENDPOINT_URL_BEDROCK': self.base_url,
            'AWS_ENDPOINT_URL_S3': f'{self.base_url}/s3',
            'AWS_ACCESS_KEY_ID': 'test',
            'AWS_SECRET_ACCESS_KEY': 'test',
            'AWS_DEFAULT_REGION': self.region,
            'AWS_BEDROCK_BATCH_ROLE_ARN': self.role,
            'AWS_BEDROCK_BATCH_S3_URI': f's3://{self.bucket}/batches',
        }

    @property
    def routes(self) -> list[Route]:
        """The paths it serves."""
        job, bucket = '/model-invocation-job', '/s3/{bucket}'
        item = f'{bucket}/{{key:path}}'
        return [
            self.route('POST', job, 'create', self._create),
            self.route('GET', '/model-invocation-jobs', 'list', self._list),
            self.route('POST', f'{job}/{{id:path}}/stop', 'cancel', self._stop),
            self.route('GET', f'{job}/{{id:path}}', 'status', lambda call: json_reply(self._job(call).to_json())),
            self.route('POST', '/model/{model:path}/converse', 'live', self._live),
            self.route('GET', bucket, 'objects', self._list_objects),
            self.route('PUT', item, 'upload', self._put),
            # Before `GET`, which Starlette takes `HEAD` for too.
            self.route('HEAD', item, 'head', lambda call: s3_objects.object_reply('', self._object(call))),
            self.route('GET', item, 'download', self._get),
            self.route('DELETE', item, 'delete', self._delete),
            self.unknown_route(),
        ]

    # Objects

    @property
    def objects(self) -> dict[str, bytes]:
        """The content of every object in the bucket, by its key."""
        with self._scene.lock:
            self._catch_up_all()
            return {key: item.content for key, item in self._objects.items()}

    def _put(self, call: Incoming) -> Response:
        account = self._account(call)
        self._check_bucket(call)
        try:
            content = s3_objects.sent(call.headers, call.body)
        except ValueError:
            self._refuse(400, 'The body is not whole.')
        self._objects[call.path['key']] = item = FakeObject(content, account, self._now)
        return s3_objects.written_reply(item)

    def _get(self, call: Incoming) -> Response:
        item = self._object(call)
        return s3_objects.object_reply(call.path['key'], item)

    def _delete(self, call: Incoming) -> Response:
        account = self._account(call)
        self._check_bucket(call)
        item = self._objects.get(call.path['key'])
        if item is not None and item.project == account:
            del self._objects[call.path['key']]
        return Response(status_code=204)

    def _object(self, call: Incoming) -> FakeObject:
        account = self._account(call)
        self._check_bucket(call)
        self._catch_up_all()
        item = self._objects.get(call.path['key'])
        if item is None or item.project != account:
            self._refuse(404, 'The specified key does not exist.')
        return item

    def _list_objects(self, call: Incoming) -> Response:
        account = self._account(call)
        self._check_bucket(call)
        self._catch_up_all()
        most = min(int(call.query.get('max-keys', _PAGE)), self.page_size)
        return s3_objects.listing_reply(
            {key: item for key, item in self._objects.items() if item.project == account},
            bucket=self.bucket,
            prefix=call.query.get('prefix', ''),
            token=call.query.get('continuation-token'),
            most=most,
        )

    def _check_bucket(self, call: Incoming) -> None:
        if call.path['bucket'] != self.bucket:
            self._refuse(404, 'The specified bucket does not exist.', code='NoSuchBucket')

    # Jobs

    def _create(self, call: Incoming) -> Response:
        account, asked = self._account(call), self._json(call)
        order, model = self._order(asked), asked.get('modelId')
        if not isinstance(model, str) or not model:
            self._refuse(400, 'The job names no model.')
        if asked.get('modelInvocationType') != 'Converse':
            self._refuse(400, 'The fake runs jobs of the type `Converse` alone.')
        for batch in self._batches.values():
            if order.token is not None and (batch.project, batch.order.token) == (account, order.token):
                return json_reply({'jobArn': batch.id})
        batch = self._ordered(account, order, model)
        self._batches[batch.id] = batch
        return json_reply({'jobArn': batch.id})

    def _order(self, asked: dict[str, Any]) -> Order:
        name, token, role = asked.get('jobName'), asked.get('clientRequestToken'), asked.get('roleArn')
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._refuse(400, f'{name!r} is no name of a job.')
        if token is not None and (not isinstance(token, str) or not _TOKEN.fullmatch(token)):
            self._refuse(400, 'The token is none.')
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            self._refuse(400, f'{role!r} is no ARN of a role.')
        hours = asked.get('timeoutDurationInHours', 24)
        if not isinstance(hours, int) or not 24 <= hours <= 168:
            self._refuse(400, '`timeoutDurationInHours` must be from 24 to 168.')
        source = self._uri(asked, 'inputDataConfig', 's3InputDataConfig')
        target = self._uri(asked, 'outputDataConfig', 's3OutputDataConfig')
        return Order(name, token, role, source, target, hours)

    def _uri(self, asked: dict[str, Any], config: str, inner: str) -> str:
        outer = asked.get(config)
        given = cast('dict[str, Any]', outer).get(inner) if isinstance(outer, dict) else None
        uri = cast('dict[str, Any]', given).get('s3Uri') if isinstance(given, dict) else None
        if not isinstance(uri, str) or not _URI.fullmatch(uri):
            self._refuse(400, f'{uri!r} is no place in S3.')
        return uri

    def _ordered(self, account: str, order: Order, model: str) -> FakeBedrockBatch:
        rows, errors = self._rows(account, order.input_uri)
        endpoint = f'/model/{model}/converse'
        faults, line_faults = self.batch_faults(endpoint, rows)
        for fault in faults:
            if fault.name == 'fail':
                errors = fault['errors'] or [{'message': 'The job failed.'}]
        number = int(digest(account).removeprefix('sha256:'), 16) % 10**12
        unique = ''.join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(12))
        id = f'arn:aws:bedrock:{self.region}:{number:012}:model-invocation-job/{unique}'
        self._ids[unique] = id

        def execute(row: FakeRow) -> RowResult:
            if 'toolConfig' in row.body:
                error = FakeError(400, None, 'Tool calling is not supported in batch inference with Converse.')
                return RowResult(row, self.ask(endpoint, row.body, row.custom_id), error)
            return RowResult(row, *self.execute(endpoint, row.body, row.custom_id, size=row.size, batch_id=id))

        return FakeBedrockBatch(
            Submission(
                id=id,
                project=account,
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
            order=order,
            words=self.words,
            execute=execute,
        )

    def _rows(self, account: str, uri: str) -> tuple[list[FakeRow], list[dict[str, Any]]]:
        """The rows of a job's input, and what it fails for."""
        bucket, key = self._place(uri)
        item = self._objects.get(key)
        if bucket != self.bucket or item is None or item.project != account:
            return [], [{'message': f'There is no object at {uri}, or the role may not read it.'}]
        if not key.endswith('.jsonl'):
            return [], [{'message': 'The input is no .jsonl file.'}]
        rows, errors = read_rows(item.content)
        if not errors and len(rows) < self.min_records:
            message = f'{len(rows)} records are less than the minimum of {self.min_records} records in a job.'
            return [], [{'message': message}]
        if len(rows) > self.max_records:
            return [], [{'message': f'{len(rows)} records are more than the {self.max_records} of a job.'}]
        return rows, errors

    def _job(self, call: Incoming) -> FakeBedrockBatch:
        account, id = self._account(call), call.path['id']
        batch = self._batches.get(self._ids.get(id, id))
        if batch is None or batch.project != account:
            self._refuse(404, 'The specified job does not exist.')
        self.catch_up(batch)
        return batch

    def _stop(self, call: Incoming) -> Response:
        batch = self._job(call)
        if batch.ended:
            self._refuse(400, f'A job that is {batch.status} cannot be stopped.', code='ConflictException')
        batch.cancel()
        return json_reply({})

    def _list(self, call: Incoming) -> Response:
        account, query = self._account(call), call.query
        jobs: list[dict[str, Any]] = []
        for batch in self._batches.values():
            if batch.project == account and self._now >= batch.hidden_until:
                self.catch_up(batch)
                jobs.append(batch.to_json())
        after, before = _time(query.get('submitTimeAfter', _EVER)), _time(query.get('submitTimeBefore', _NEVER))
        jobs = [
            job
            for job in jobs
            if query.get('nameContains', '') in job['jobName']
            and query.get('statusEquals') in (None, job['status'])
            and after <= _time(job['submitTime']) <= before
        ]
        if query.get('sortOrder', 'Descending') == 'Descending':
            jobs.reverse()
        size, start = query.get('maxResults', '100'), query.get('nextToken', '0')
        if not size.isdecimal() or not 0 < int(size) <= _PAGE or not start.isdecimal():
            self._refuse(400, f'`maxResults` must be from 1 to {_PAGE}.')
        end = int(start) + min(int(size), self.page_size)
        page: dict[str, Any] = {'invocationJobSummaries': jobs[int(start) : end]}
        return json_reply({**page, 'nextToken': str(end)} if end < len(jobs) else page)

    def catch_up(self, batch: FakeBedrockBatch) -> None:
        """Run what has run by now; if it is over, write its results, unless it failed."""
        batch.run()
        if not batch.has_results or batch.settled:
            return
        batch.settled = True
        if not batch.requests:
            return
        bucket, prefix = self._place(batch.order.output_uri)
        if bucket != self.bucket:
            return
        content = self.result_files(batch.lines(), batch, id_key='recordId')['output']
        lines = content.splitlines(keepends=True) if self.output_files > 1 else [content]
        below = '/'.join(filter(None, (prefix.rstrip('/'), batch.id.rpartition('/')[2])))
        name = batch.order.input_uri.rpartition('/')[2]
        at = batch.entered[batch.phase]
        for number in range(self.output_files):
            part = b''.join(lines[number :: self.output_files])
            key = f'{below}/{name}.out' if not number else f'{below}/{number}-{name}.out'
            self._objects[key] = FakeObject(part, batch.project, at)
        self._objects[f'{below}/manifest.json.out'] = FakeObject(batch.manifest(), batch.project, at)

    def _catch_up_all(self) -> None:
        for batch in self._batches.values():
            self.catch_up(batch)

    # Live

    def _live(self, call: Incoming) -> Response:
        self._account(call)
        endpoint = f'/model/{call.path["model"]}/converse'
        _, answered = self.execute(endpoint, self._json(call), None, size=len(call.body), batch_id=None)
        if answered is None:
            return self.error(500, 'The answer function gave no answer.')
        if isinstance(answered, FakeError):
            return self.error(answered.status, answered.message, code=answered.code)
        return json_reply(answered)

    # Shared

    @property
    def _now(self) -> float:
        return self._scene.clock.now()

    def _respond(self, operation: str, handler: Handler, incoming: Incoming) -> Response:
        self._operation = operation
        return super()._respond(operation, handler, incoming)

    def error(self, status: int, message: str, *, code: str | None = None) -> Response:
        """An error reply in the words of the service that is asked."""
        if self._operation in _OF_S3:
            return s3_objects.error_reply(status, code or s3_objects.CODES.get(status, 'InternalError'), message)
        response = json_reply({'message': message}, status)
        response.headers['x-amzn-ErrorType'] = code or ERRORS.get(status, 'InternalServerException')
        return response

    def read_request(self, endpoint: str, body: dict[str, Any]) -> Asked:
        """What the body asks for."""
        return read_request(body)

    def model_of(self, endpoint: str, body: dict[str, Any]) -> str | None:
        """The model that an endpoint is of: no body names one."""
        return endpoint.removeprefix('/model/').removesuffix('/converse')

    def write_answer(self, request: FakeRequest, answer: str | FakeToolCall, size: int) -> dict[str, Any]:
        """The response body with that answer."""
        return write_answer(answer, size)

    def _refuse(self, status: int, message: str, *, code: str | None = None) -> NoReturn:
        raise Refusal(self.error(status, message, code=code))

    def _account(self, call: Incoming) -> str:
        """The account of the call's access key, or of its API key."""
        scheme, _, rest = call.headers.get('authorization', '').partition(' ')
        found = re.search(r'Credential=([^/]+)/', rest) if scheme == 'AWS4-HMAC-SHA256' else None
        key = found[1] if found else rest if scheme == 'Bearer' else ''
        if not key:
            self._refuse(403, 'The request has no credentials.', code='MissingAuthenticationTokenException')
        return self.projects.get(key, digest(key))

    def _json(self, call: Incoming) -> dict[str, Any]:
        try:
            value = json.loads(call.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._refuse(400, 'The body must be a JSON object.')
        return cast('dict[str, Any]', value)

    @staticmethod
    def _place(uri: str) -> tuple[str, str]:
        """The bucket and the key of a place in S3."""
        found = _URI.fullmatch(uri)
        assert found is not None
        return found[1], found[2] or ''


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
