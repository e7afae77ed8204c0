"""The lane of xAI's batch API, whose batches are made empty and filled with requests by further calls.

A batch starts to run what is in it at once, and nothing says when it is whole. So:

- It carries our tag as its name. A batch without requests costs nothing, and counts as none.
- Requests are added in portions. A portion whose reply was lost is added again once the batch's own counts do not show
  it; their IDs, which are unique in a batch, keep those that did arrive from being run twice. The batch counts as
  created when the last portion was taken. Until then a lost reply is looked into by `find`, which adds what is missing.
- If xAI takes a portion and refuses a later one, or fails to take it a second time, the batch is kept for what it has.
  Its other requests have no result when it ends, and are sent again.
- A later process has no bodies to add. It reads a batch with a part of its requests for what it has, in the same way.
  An empty one it cancels, so that nothing that is still on its way is run in it, and whether it stayed empty is looked
  at once more before its requests are sent again.

xAI gives a batch no status, so that is derived from its counts. They may lag behind: a batch that is done with fewer
requests than it was made of is looked at a few times more before the others count as not run.

The results of requests for the Responses API come in the shape of Chat Completions. They are turned into the body that
the live endpoint answers with, so that the user's own model reads them.

The facts are from xAI's published protocol, its documentation and recorded traffic; see `INFO.sources`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, cast

from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult, EncodedBatchRequest

from pydantic_ai_batch import compat
from pydantic_ai_batch.exceptions import RequestNotSendable, brief
from pydantic_ai_batch.policy import create_outcome
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus
from pydantic_ai_batch.wording import counted

from .base import (
    UNKNOWN_TIME,
    LaneInfo,
    Payload,
    Sought,
    Stray,
    called,
    file_name,
    fits_path,
    listed_batches,
    path_id,
)
from .errors import RPC_STATUSES, json_object, sdk_headers, status_in, unreadable
from .lines import as_object, dump_json, list_of_objects, object_in, parse_count, parse_json, parse_number, parse_time
from .openai_client import CHAT_COMPLETIONS, RESPONSES, OpenAIClientLane
from .paging import pages_of, token_in
from .xai_responses import as_response

PORTION_BYTES = 10_000_000
"""The size above which the requests of a batch are added in several calls: well below what a call may hold."""

_MAX_CALL_BYTES = 25_000_000
"""The most bytes of a call that adds requests."""

_ADDED_AS = {CHAT_COMPLETIONS: 'chat_get_completion', RESPONSES: 'responses'}
"""What a request for an endpoint is called in a batch."""

_STATUSES: dict[str, JobStatus] = {
    'empty': 'submitted',
    'running': 'in_progress',
    'cancelling': 'canceling',
    'completed': 'ended',
    'cancelled': 'canceled',
    'failed': 'failed',
}
"""Our own words, as xAI has none."""

_CANCELLED = 1
"""gRPC's code of a request that was cancelled."""

_WORDS = {
    'invalid': 400,
    'not supported': 400,
    'permission': 403,
    'not found': 404,
    'exhausted': 429,
    'rate limit': 429,
    'unavailable': 503,
}
"""The same by what is in the text of an error without a code that is known [guess]."""

_REPEATED = ('duplicate', 'already exist', 'already been added', 'not unique', 'be unique')
"""What is in the text of the refusal of an ID that is in the batch already [guess]."""

_PAGE = 100
_MAX_PAGES = 100

_log = logging.getLogger('pydantic_ai_batch')

INFO = LaneInfo(
    name='xai',
    title='xAI batch API',
    models='`OpenAIChatModel`, `OpenAIResponsesModel` with `XAILanguageProvider`',
    endpoints=(CHAT_COMPLETIONS, RESPONSES),
    transport='inline',
    max_requests=1_000_000,
    max_bytes=200_000_000,
    models_per_batch=1,
    statuses=_STATUSES,
    windows=(timedelta(hours=24),),
    expires=False,
    results_kept=timedelta(days=30),
    discount=0.2,
    tag_field='name',
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='the ID of each request, within its batch',
    webhooks=False,
    results_while_running=True,
    results_as='pages',
    allowlist=True,
    key_variables=('XAI_API_KEY',),
    verified=('recording',),
    sources={
        'endpoints': 'documentation: xAI batch guide, October 2026',
        'transport': 'recording: requests are added to an empty batch',
        'max_requests': 'documentation: xAI batch guide, more may be slowed down',
        'max_bytes': 'guess: that of an input file, as none is stated for requests that are added',
        'models_per_batch': 'documentation: xAI batch guide allows several; a batch here has those of one model',
        'statuses': "guess: derived from a batch's counts and the time of its cancellation, as it has no status",
        'windows': 'documentation: xAI batch guide, 24 hours as a rule',
        'expires': 'documentation: xAI batch guide promises no end',
        'results_kept': 'recording: a batch expires 30 days after its creation',
        'discount': 'code: the price lists of litellm and genai-prices',
        'tag_field': 'recording: a batch shows its name',
        'findable': 'spec: the listing shows the name of each batch',
        'listing_proves_absence': 'spec: the listing returns every batch of the team',
        'ordered': "spec: xAI's protocol",
        'cancellable': "spec: xAI's protocol",
        'listable': "spec: xAI's protocol",
        'repeatable': 'documentation: xAI batch guide',
        'webhooks': 'guess: none was found',
        'results_while_running': 'documentation: xAI batch guide',
        'results_as': 'recording: results come in pages',
        'allowlist': 'documentation: xAI batch guide',
    },
)


@dataclass
class XAILane(OpenAIClientLane):
    """The lane of xAI, asked through OpenAI's SDK."""

    info: ClassVar[LaneInfo] = INFO
    complete: ClassVar[str | None] = 'completed'
    responses_prefix: ClassVar[str | None] = 'xai-responses'

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """A request as it is added to a batch. One stands on each line, so that they can be divided into portions."""
        return b'{"batch_request_id":"%b","batch_request":{"%b":%b}}' % (
            custom_id.encode(),
            _ADDED_AS[self.endpoint].encode(),
            body,
        )

    async def encode(self, request: BatchRequest) -> EncodedBatchRequest:
        """Encode a request as the model would send it live.

        Raises:
            RequestNotSendable: No call could hold it.
        """
        encoded = await super().encode(request)
        # A character may be four bytes, but few requests are so long that they have to be counted.
        if len(encoded.body) > _MAX_CALL_BYTES // 5:
            size = self.request_size(encoded.body.encode('utf-8', 'surrogatepass')) + len(_adding([]))
            if size > _MAX_CALL_BYTES:
                raise RequestNotSendable(
                    self.model.model_name, f'The request has {size} bytes, and {_MAX_CALL_BYTES} is the most.'
                )
        return encoded

    async def decode(self, result: BatchResult, request: BatchRequest) -> ModelResponse:
        """Decode a result, as the answer of the live endpoint if it comes in the shape of another."""
        if self.endpoint == RESPONSES and result.status == 'succeeded':
            result = replace(result, body=as_response(result.body))
        return await super().decode(result, request)

    # Creating

    async def create(self, payload: Payload) -> Batch:
        """Create a batch with the tag as its name, and add its requests."""
        check_allow_model_requests()
        if 'batch_id' not in payload.receipt:
            created = await self._post('/batches', dump_json({'name': file_name(payload.tag)}).encode())
            payload.receipt['batch_id'] = self._id_in(json_object(self.model.model_name, created))
        return await self._fill(payload)

    def is_repeatable(self, payload: Payload) -> bool:
        """Whether no batch is known of, so that no request was added: another empty one costs nothing."""
        return 'batch_id' not in payload.receipt

    async def _fill(self, payload: Payload, *, again: bool = False) -> Batch:
        """Add what the payload's batch lacks, as far as is known from the replies so far, and from its counts.

        Args:
            payload: Its requests. Its receipt says how many were taken, and whether the reply to more was lost.
            again: Whether this was tried before. If it fails again, the batch is left as it is, unless it is empty.
        """
        receipt = payload.receipt
        batch_id: str = receipt['batch_id']
        try:
            if receipt.get('in_doubt'):
                receipt['added'] = max(receipt.get('added', 0), await self._size_of(batch_id))
            for portion, end in _portions(payload):
                if end > receipt.get('added', 0):
                    await self._add(batch_id, portion)
                    receipt['added'] = end
                    receipt.pop('in_doubt', None)
        except ModelAPIError as error:
            if not self._ends_there(payload, error, again=again):
                raise
        state = {'num_requests': payload.count, 'num_pending': payload.count}
        return self._batch({'batch_id': batch_id, 'state': state}, payload.group, payload.count)

    def _ends_there(self, payload: Payload, error: ModelAPIError, *, again: bool) -> bool:
        """Whether a batch is to do with the portions before one that failed, as those are being run.

        Raises:
            ModelConnectionError: The portion never arrived. The batch did, so that must not count as never sent.
        """
        outcome, added = create_outcome(error), payload.receipt.get('added', 0)
        if outcome == 'unknown':
            payload.receipt['in_doubt'] = True
        if not added:
            return False
        if outcome == 'refused' or again:
            _log.warning(
                'Only %d of %s are known to be in batch %s, as xAI failed to take more (%s): those without a result '
                'when it ends are sent again.',
                added,
                counted(payload.count, 'request'),
                payload.receipt['batch_id'],
                brief(error),
            )
            return True
        if outcome == 'never_sent':
            raise self._unknown(error) from error
        return False

    async def _add(self, batch_id: str, portion: list[bytes]) -> None:
        """Add requests to a batch, which takes those that it has already for what they are."""
        try:
            reply = await self._post(f'/batches/{batch_id}/requests', _adding(portion))
        except ModelAPIError as error:
            if not _is_repeated(error):
                raise
            return
        try:
            parse_json(reply or b'null')
        except (ValueError, RecursionError):
            raise unreadable(self.model.model_name, 'something that is no JSON') from None

    async def _size_of(self, batch_id: str) -> int:
        """How many requests are in a batch.

        Raises:
            ModelConnectionError: It cannot be told, whatever the reason: nothing is concluded from that.
        """
        try:
            return _counts(await self._get_batch(batch_id)).get('num_requests', 0)
        except ModelAPIError as error:
            raise self._unknown(error) from error

    def _unknown(self, error: ModelAPIError) -> ModelConnectionError:
        """An error that leaves open what the provider did."""
        return ModelConnectionError(self.model.model_name, str(error))

    async def discard(self, payload: Sought) -> None:
        """Cancel the batch that none of the payload's requests got into. It is empty, and cannot be deleted."""
        payload.receipt.pop('added', None)
        payload.receipt.pop('in_doubt', None)
        if (batch_id := payload.receipt.pop('batch_id', None)) is not None:
            with suppress(ModelAPIError):
                await self._post(f'/batches/{batch_id}:cancel')

    # Finding

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for the batch with the payload's tag, and make it whole if the requests are at hand."""
        check_allow_model_requests()
        if isinstance(payload, Payload) and 'batch_id' in payload.receipt:
            return await self._made_whole(payload)
        name = file_name(payload.tag)
        # All pages are read, as the order of the listing is not stated.
        listed = [(item.get('name'), item) async for item in self._listed()]
        named = {item['batch_id']: await self._with_counts(item) for item in called(name, listed)}
        filled = [item for item in named.values() if _counts(item).get('num_requests')]
        empty = [item for item in named.values() if item not in filled and not item.get('cancel_time')]
        if isinstance(payload, Payload):
            if not (filled or empty):
                return []
            payload.receipt |= {'batch_id': self._id_in((filled or empty)[0]), 'in_doubt': True}
            return await self._made_whole(payload)
        if not filled:
            closed = [await self._closed(item) for item in empty]
            filled = [item for item in closed if _counts(item).get('num_requests')]
        found = [self._batch(item, payload.group, payload.count) for item in filled]
        return sorted(found, key=lambda batch: batch.created_at)

    async def _made_whole(self, payload: Payload) -> list[Batch]:
        """The payload's batch with all its requests in it; none if xAI refuses them, and so has none of them."""
        try:
            return [await self._fill(payload, again=True)]
        except ModelAPIError as error:
            if create_outcome(error) == 'refused':
                return []
            raise

    async def _closed(self, item: dict[str, Any]) -> dict[str, Any]:
        """An empty batch, cancelled so that nothing is run in it that is still on its way there."""
        path = f'/batches/{self._id_in(item)}'
        with suppress(ModelAPIError):
            await self._post(f'{path}:cancel')
        return await self._get_batch(self._id_in(item))

    async def listing(self) -> AsyncGenerator[Batch]:
        """The batches that xAI has for this model's team, in the order of its listing, which is not stated."""
        check_allow_model_requests()
        group = await self.identity()
        async with aclosing(self._listed()) as items:
            async for item in items:
                yield self._batch(await self._with_counts(item), group, 0)

    async def _listed(self) -> AsyncGenerator[dict[str, Any]]:
        async def read(token: str | None) -> tuple[list[dict[str, Any]], str | None]:
            page = await self._page('/batches', token)
            return listed_batches(page.get('batches'), key='batch_id'), token_in(page, 'pagination_token')

        async with aclosing(pages_of(read, _MAX_PAGES)) as pages:
            async for items in pages:
                for item in items:
                    yield item

    async def _with_counts(self, item: dict[str, Any]) -> dict[str, Any]:
        """A batch as it is listed, or as it is shown by itself if the listing leaves out its counts."""
        return item if _counts(item) else await self._get_batch(self._id_in(item))

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the batch of `payload` at the provider."""
        return f'look for a batch that is called {file_name(payload.tag)}'

    # Reading

    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        check_allow_model_requests()
        return self._batch(await self._get_batch(_id(batch)), batch.group, batch.request_count, known=batch)

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the results, page by page."""
        check_allow_model_requests()
        path, token, read = f'/batches/{_id(batch)}/results', None, set[str]()
        while True:
            page = await self._page(path, token)
            if not isinstance(items := page.get('results'), list | None):
                raise unreadable(self.model.model_name, 'results that are no list')
            for item in cast('list[Any]', items or []):
                yield _read(item)
            token = _next(page)
            if token is None:
                return
            if token in read:
                raise unreadable(self.model.model_name, 'the same pages of results over and over')
            read.add(token)

    def readable(self, batch: Batch) -> int:
        """How many results a batch should have: those that were made before xAI stopped it count too."""
        return compat.counted(batch) if self.word(batch) == 'failed' else super().readable(batch)

    def failure(self, batch: Batch, custom_id: str) -> BatchResult:
        """What it means for a request that xAI cancelled its batch."""
        message = (batch.provider_details or {}).get('message')
        body = compat.error_body(400, {'error': {'message': f'xAI cancelled the batch: {message}'}})
        return BatchResult(custom_id=custom_id, status='errored', body=body)

    async def cancel(self, batch: Batch) -> Batch:
        """Ask xAI to stop the batch; what is finished by then stays collectable, and billed."""
        check_allow_model_requests()
        reply = json_object(self.model.model_name, await self._post(f'/batches/{_id(batch)}:cancel'))
        return self._batch({**reply, 'batch_id': batch.id}, batch.group, batch.request_count, known=batch)

    def _batch(self, item: Mapping[str, Any], group: str, request_count: int, *, known: Batch | None = None) -> Batch:
        counts, batch_id = _counts(item), self._id_in(item)
        total = request_count or counts.get('num_requests', 0)
        details: dict[str, Any] = {'status': (word := _word(item, counts))}
        if counts:
            details['request_counts'] = {
                'total': total,
                'completed': counts.get('num_success', 0),
                'failed': counts.get('num_error', 0),
            }
        if item.get('cancel_by_xai_message'):
            details['message'] = item['cancel_by_xai_message']
        if item.get('expire_time'):
            details['expires_at'] = item['expire_time']
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=group,
            status=FRAMEWORK[_STATUSES[word]],
            created_at=known.created_at if known else parse_time(item.get('create_time')) or UNKNOWN_TIME,
            request_count=total,
            provider_details=details,
        )

    # Calls

    async def _get_batch(self, batch_id: str) -> dict[str, Any]:
        reply = json_object(self.model.model_name, await self._get(f'/batches/{batch_id}', {}))
        return {**reply, 'batch_id': batch_id}

    async def _page(self, path: str, token: str | None) -> Mapping[str, Any]:
        query: dict[str, object] = {'limit': _PAGE, **({'pagination_token': token} if token else {})}
        return json_object(self.model.model_name, await self._get(path, query))

    async def _get(self, path: str, query: dict[str, object]) -> bytes:
        import httpx2

        with self._errors():
            response = await self.client.get(
                path, cast_to=httpx2.Response, options={'headers': sdk_headers(), 'params': query}
            )
        return response.content

    async def _post(self, path: str, content: bytes | None = None) -> bytes:
        import httpx2

        headers = sdk_headers() if content is None else {**sdk_headers(), 'Content-Type': 'application/json'}
        with self._errors():
            response = await self.client.post(
                path, cast_to=httpx2.Response, content=content, options={'headers': headers}
            )
        return response.content

    def _id_in(self, item: Mapping[str, Any]) -> str:
        """The ID of a batch as it is described, which stands in paths."""
        batch_id = item.get('batch_id')
        if not fits_path(batch_id):
            raise unreadable(self.model.model_name, 'a batch without an ID')
        return batch_id


def _id(batch: Batch) -> str:
    return path_id(batch.id, 'an xAI batch')


def _adding(portion: list[bytes]) -> bytes:
    """The body of a call that adds requests."""
    return b'{"batch_requests":[%b]}' % b','.join(portion)


def _portions(payload: Payload) -> Iterator[tuple[list[bytes], int]]:
    """The requests of a payload, as many at once as a call is to add, and how many those and all before them are."""
    portion, size, end = list[bytes](), 0, 0
    for line in payload.open():
        request = line.rstrip(b'\n')
        if portion and size + len(request) > PORTION_BYTES:
            yield portion, end
            portion, size = [], 0
        portion.append(request)
        size += len(request) + 1
        end += 1
    if portion:
        yield portion, end


def _is_repeated(error: ModelAPIError) -> bool:
    """Whether requests were refused for being in the batch already, which xAI does not say how it says [guess]."""
    said = f'{error} {getattr(error, "body", "")}'.lower()
    return create_outcome(error) == 'refused' and (any(word in said for word in _REPEATED))


def _next(page: Mapping[str, Any]) -> str | None:
    """The token of the page after one."""
    token = page.get('pagination_token')
    return token if isinstance(token, str) and token else None


def _counts(item: Mapping[str, Any]) -> dict[str, int]:
    """The counts of a batch, which gRPC's own JSON would write as text; empty where they are not shown."""
    counts = {name: parse_count(count) for name, count in object_in(item, 'state').items()}
    return {name: count for name, count in counts.items() if count is not None}


def _word(item: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """Where a batch is, in our words."""
    # What was finished when it was stopped shows only when nothing is pending any more.
    pending = counts.get('num_pending', 0) > 0 or not counts
    if item.get('cancel_time') or item.get('cancel_by_xai_message'):
        return 'cancelling' if pending else 'failed' if item.get('cancel_by_xai_message') else 'cancelled'
    if pending:
        return 'running'
    return 'completed' if counts.get('num_requests') else 'empty'


def _read(value: Any) -> BatchResult | Stray:
    """What an item of a page of results says of its request."""
    item = as_object(value)
    result, custom_id = object_in(item, 'batch_result'), item.get('batch_request_id')
    answers = list_of_objects(list(object_in(result, 'response').values()))
    if not isinstance(custom_id, str) or not custom_id:
        return Stray('it has no `batch_request_id`', dump_json(value), keyless=bool(answers))
    if answers:
        return BatchResult(custom_id=custom_id, status='succeeded', body=dump_json(answers[0]))
    error = object_in(result, 'error') or {'message': result.get('error') or item.get('error_message')}
    if not error.get('message') and error.get('code') is None:
        return Stray('it has neither a response nor an error', dump_json(value), custom_id)
    if error.get('code') == _CANCELLED:
        return BatchResult(custom_id=custom_id, status='canceled')
    body = compat.error_body(_status_of(error), {'error': error})
    return BatchResult(custom_id=custom_id, status='errored', body=body)


def _status_of(error: Mapping[str, Any]) -> int:
    """The HTTP status of a request's error, whose code is gRPC's, or an HTTP status, or a text."""
    code = error.get('code')
    if (number := parse_number(code)) is not None:
        return number if 400 <= number < 600 else RPC_STATUSES.get(number, 500)
    return status_in(f'{code} {error.get("message")}'.lower(), _WORDS) or 500
