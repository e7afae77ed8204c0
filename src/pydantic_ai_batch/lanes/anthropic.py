"""Anthropic's Message Batches API: the requests go up inside the create call, the results come down as JSON lines.

A batch carries no label of ours, only the IDs of its requests, and those are shown once it has ended. So after a lost
reply a batch is known by when it was made and how many requests it holds, and proven ours by its first result.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.models import check_allow_model_requests
from pydantic_ai.models.batch import Batch, BatchResult, BatchResultStatus

from pydantic_ai_batch import compat
from pydantic_ai_batch.exceptions import brief
from pydantic_ai_batch.statuses import FRAMEWORK, JobStatus
from pydantic_ai_batch.wording import counted

from .base import (
    UNKNOWN_TIME,
    LaneInfo,
    ListingIncomplete,
    Payload,
    Sought,
    Stray,
    Undecided,
    listed_batches,
    path_id,
)
from .credentials import ClientLane
from .errors import http_error, json_object, sdk_errors, sdk_headers, unreadable
from .lines import (
    chunks_of,
    counts_in,
    damaged,
    dump_json,
    object_in,
    parse_object,
    parse_time,
    read_line,
    split_lines,
    stray,
)
from .paging import pages_of, token_in

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

_PATH = '/v1/messages/batches'
_BETA = {'beta': 'true'}
"""The framework makes its requests through the beta resources of the API, which take everything the others do."""

_STATUSES: dict[str, JobStatus] = {'in_progress': 'in_progress', 'canceling': 'canceling', 'ended': 'ended'}
_RESULTS: dict[str, BatchResultStatus] = {
    'succeeded': 'succeeded',
    'errored': 'errored',
    'expired': 'expired',
    'canceled': 'canceled',
}
_COUNTS = ('processing', 'succeeded', 'errored', 'canceled', 'expired')
_PAGE = 100
_MAX_PAGES = 100
_CLOCK_SKEW = timedelta(minutes=55)
"""How much further back a batch is looked for than elsewhere, as at first only time and size tell it from others."""

_log = logging.getLogger('pydantic_ai_batch')

INFO = LaneInfo(
    name='anthropic',
    title='Anthropic Message Batches',
    models='`AnthropicModel`',
    endpoints=('/v1/messages',),
    transport='inline',
    max_requests=100_000,
    max_bytes=256_000_000,
    models_per_batch=0,
    statuses=_STATUSES,
    windows=(timedelta(hours=24),),
    expires=True,
    results_kept=timedelta(days=29),
    discount=0.5,
    tag_field=None,
    findable=True,
    listing_proves_absence=True,
    ordered=False,
    cancellable=True,
    repeatable='nothing',
    webhooks=False,
    results_while_running=False,
    results_as='a stream',
    allowlist=False,
    reports_tier=True,
    refused='`stream`, fast mode, threads, `max_tokens` of 0',
    key_variables=('ANTHROPIC_API_KEY',),
    verified=('recording', 'spec', 'independent server'),
    sources={
        'endpoints': "spec: Anthropic's API description, version 195",
        'transport': "spec: Anthropic's API description, version 195",
        'max_requests': 'documentation: batch processing, August 2026',
        'max_bytes': 'documentation: batch processing, August 2026, 256 MB, read as 10^6',
        'models_per_batch': 'documentation: batch processing, August 2026',
        'statuses': "spec: Anthropic's SDK, August 2026",
        'windows': 'documentation: batch processing, August 2026',
        'expires': 'documentation: batch processing, August 2026',
        'results_kept': 'documentation: batch processing, August 2026, from the creation',
        'discount': 'documentation: batch processing, August 2026',
        'findable': 'spec: the listing shows times and counts, the results the IDs',
        'listing_proves_absence': 'spec: the listing returns every batch with its time and its counts',
        'ordered': "spec: Anthropic's API description, version 195",
        'cancellable': "spec: Anthropic's API description, version 195",
        'repeatable': "spec: Anthropic's API description, version 195",
        'webhooks': "spec: Anthropic's SDK, August 2026",
        'results_while_running': 'recording: the results of a running batch are a 404',
        'results_as': "spec: Anthropic's API description, version 195",
        'allowlist': 'documentation: batch processing, August 2026',
        'reports_tier': 'recording: `usage.service_tier` is `batch`',
        'refused': 'documentation: batch processing, August 2026',
        'listable': "spec: Anthropic's API description, version 195",
    },
)


@dataclass
class AnthropicLane(ClientLane):
    """The lane of Anthropic's own API."""

    info: ClassVar[LaneInfo] = INFO
    made_per_call: ClassVar[Mapping[str, str]] = {'credentials': 'gets access tokens from its `credentials`'}
    prefix: ClassVar[bytes] = b'{"requests":['
    separator: ClassVar[bytes] = b','
    suffix: ClassVar[bytes] = b']}'

    @property
    def client(self) -> AsyncAnthropic:
        """The user's own client, without its retries: what a failure means is decided above."""
        client: AsyncAnthropic = cast('Any', self.model).client
        return client.with_options(max_retries=0)

    def frame(self, custom_id: str, body: bytes) -> bytes:
        """An item of the create call."""
        return b'{"custom_id":"%b","params":%b}' % (custom_id.encode(), body)

    async def create(self, payload: Payload) -> Batch:
        """Create a batch of the payload's requests, under the beta flags that they share."""
        import httpx2

        check_allow_model_requests()
        headers = {**sdk_headers(), 'Content-Type': 'application/json'}
        if betas := compat.betas_of(payload.group):
            headers['anthropic-beta'] = ','.join(betas)
        headers['Content-Length'] = str(payload.size)
        with self._errors():
            response = await self.client.post(
                _PATH,
                cast_to=httpx2.Response,
                content=chunks_of(payload.open()),
                options={'headers': headers, 'params': _BETA},
            )
        return self._batch(json_object(self.model.model_name, response.content), payload.group)

    async def status(self, batch: Batch) -> Batch:
        """The batch as the provider describes it now."""
        import httpx2

        check_allow_model_requests()
        with self._errors():
            response = await self.client.get(
                f'{_PATH}/{_id(batch)}', cast_to=httpx2.Response, options={'headers': sdk_headers(), 'params': _BETA}
            )
        return self._batch(
            {**json_object(self.model.model_name, response.content), 'id': batch.id}, batch.group, known=batch
        )

    async def results(self, batch: Batch) -> AsyncGenerator[BatchResult | Stray]:
        """Stream the result lines, from the path that they always have: a batch names a host that a proxy is not."""
        import httpx2
        from anthropic import AsyncStream

        check_allow_model_requests()
        if (batch.provider_details or {}).get('archived_at'):
            raise http_error(self.model.model_name, 404, {'error': {'message': 'The results are archived.'}})
        with self._errors():
            # Asked for as a stream of events, the answer is handed over unread.
            answer: Any = await self.client.get(
                f'{_PATH}/{_id(batch)}/results',
                cast_to=httpx2.Response,
                options={'headers': {**sdk_headers(), 'Accept': 'application/binary'}, 'params': _BETA},
                stream=True,
                stream_cls=AsyncStream[object],
            )
            response = cast('httpx2.Response', answer)
            try:
                async for line in split_lines(response.aiter_bytes()):
                    yield read_line(line, _read_line, 'custom_id')
            finally:
                await response.aclose()

    async def cancel(self, batch: Batch) -> Batch:
        """Ask Anthropic to stop the batch; requests that have begun are finished, and billed."""
        import httpx2

        check_allow_model_requests()
        with self._errors():
            response = await self.client.post(
                f'{_PATH}/{_id(batch)}/cancel',
                cast_to=httpx2.Response,
                options={'headers': sdk_headers(), 'params': _BETA},
            )
        return self._batch(json_object(self.model.model_name, response.content), batch.group, known=batch)

    async def find(self, payload: Sought, *, since: datetime) -> list[Batch]:
        """Look for a batch of as many requests that was made since, and know it by the IDs in its results.

        Raises:
            Undecided: One of them has not ended, so that its IDs do not show yet.
        """
        running = unclear = False
        found: list[Batch] = []
        async for batch in self._made_since(since - _CLOCK_SKEW, payload.group):
            # A batch that says nothing of its size may be of any.
            if batch.request_count not in (payload.count, 0):
                continue
            if batch.status != 'ended':
                running = True
                continue
            try:
                first = await self._first_id(batch)
            except ModelAPIError as error:
                _log.warning('The results of batch %s could not be read: %s', batch.id, brief(error))
                first = None
            if first is None:
                unclear = True
            elif first.startswith(f'{payload.tag}-'):
                found.append(batch)
        if running and not found:
            raise Undecided('A batch of as many requests is running, whose IDs show only when it has ended.')
        if unclear and not found:
            raise ListingIncomplete('A batch of as many requests does not show whose it is.')
        return sorted(found, key=lambda batch: batch.created_at)

    async def listing(self) -> AsyncGenerator[Batch]:
        """The batches that Anthropic has for this model's workspace, newest first."""
        async for batch in self._made_since(UNKNOWN_TIME, await self.identity()):
            yield batch

    async def _made_since(self, since: datetime, group: str) -> AsyncIterator[Batch]:
        check_allow_model_requests()
        async with aclosing(pages_of(self._listed, _MAX_PAGES)) as pages:
            async for items in pages:
                for item in items:
                    batch = self._batch(item, group)
                    if UNKNOWN_TIME < batch.created_at < since:
                        return
                    yield batch

    async def _listed(self, after: str | None) -> tuple[list[dict[str, Any]], str | None]:
        """A page of the listing of batches, newest first, and what the next one comes after."""
        import httpx2

        query: dict[str, object] = {**_BETA, 'limit': _PAGE, **({'after_id': after} if after else {})}
        with self._errors():
            response = await self.client.get(
                _PATH, cast_to=httpx2.Response, options={'headers': sdk_headers(), 'params': query}
            )
        page = json_object(self.model.model_name, response.content)
        return listed_batches(page.get('data')), (token_in(page, 'last_id') or '') if page.get('has_more') else None

    async def _first_id(self, batch: Batch) -> str | None:
        async with aclosing(self.results(batch)) as results:
            async for result in results:
                if result.custom_id is not None:
                    return result.custom_id
        return None

    def job_status(self, batch: Batch) -> JobStatus:
        """Where the batch is. Anthropic's own word at its end is always the same: the counts say what stopped it."""
        status = super().job_status(batch)
        unrun: dict[str, int] = (batch.provider_details or {}).get('unrun') or {}
        if status == 'ended' and unrun:
            return 'canceled' if 'canceled' in unrun else 'expired'
        return status

    def where_to_look(self, payload: Sought) -> str:
        """How a person finds the batch of `payload` at the provider."""
        requests = counted(payload.count, 'request')
        return f'look for a batch of {requests}, in whose results the IDs begin with `{payload.tag}`'

    def _batch(self, item: Mapping[str, Any], group: str, *, known: Batch | None = None) -> Batch:
        batch_id = item.get('id')
        if not isinstance(batch_id, str) or not batch_id:
            raise unreadable(self.model.model_name, 'a batch without an ID')
        word = str(item.get('processing_status') or '').lower()
        counts = counts_in(object_in(item, 'request_counts'), **{name: name for name in _COUNTS})
        total = sum(counts.values())
        # Until the batch has ended, every request counts as processing.
        failed = counts.get('errored', 0) + counts.get('canceled', 0) + counts.get('expired', 0)
        details: dict[str, Any] = {
            'status': word,
            'request_counts': {'total': total, 'completed': counts.get('succeeded', 0), 'failed': failed},
        }
        unrun: dict[str, int] = {name: counts[name] for name in ('canceled', 'expired') if counts.get(name)}
        if unrun:
            details['unrun'] = unrun
        for name in ('archived_at', 'expires_at'):
            if item.get(name):
                details[name] = item[name]
        status = _STATUSES.get(word)
        if status is None:
            self.log_unknown_status(batch_id, word)
            status = 'ended' if item.get('ended_at') else 'in_progress'
        return Batch(
            id=batch_id,
            model_name=self.model.model_name,
            provider_name=self.model.system,
            group=group,
            status=FRAMEWORK[status],
            created_at=known.created_at if known else parse_time(item.get('created_at')) or UNKNOWN_TIME,
            request_count=max(known.request_count if known else 0, total),
            provider_details=details,
        )

    def _errors(self) -> AbstractContextManager[None]:
        import anthropic

        return sdk_errors(anthropic, self.model.model_name)


def _id(batch: Batch) -> str:
    return path_id(batch.id, 'an Anthropic batch')


def _read_line(line: bytes) -> BatchResult | Stray:
    """What a result line says of its request."""
    item = parse_object(line)
    if item is None:
        return damaged(line, 'custom_id')
    custom_id, result = item.get('custom_id'), item.get('result')
    if not isinstance(custom_id, str) or not custom_id:
        return stray(line, 'it has no `custom_id`')
    if not isinstance(result, dict):
        return Stray('it has no `result`', line.decode('utf-8', 'replace'), custom_id)
    outcome = cast('dict[str, Any]', result)
    status = _RESULTS.get(str(outcome.get('type')))
    if status is None:
        return Stray(f'its result is of the unknown type {outcome.get("type")!r}', dump_json(item), custom_id)
    body = dump_json(outcome) if status in ('succeeded', 'errored') else None
    return BatchResult(custom_id=custom_id, status=status, body=body)
