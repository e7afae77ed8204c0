"""Adopts a batch that no journal knows: joins it to the run that it is proven to be of, or writes out its results.

Nothing is cancelled or deleted at the provider.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models.batch import Batch, BatchRequest, BatchResult
from rich.console import Console

from pydantic_ai_batch import creation
from pydantic_ai_batch.clock import Clock, sleep_until_due
from pydantic_ai_batch.compat import counts_of, provider_body
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.journal import Journal, ledger_of
from pydantic_ai_batch.journal.overview import overview_of
from pydantic_ai_batch.lanes import Lane
from pydantic_ai_batch.lanes.base import ListingIncomplete, Undecided
from pydantic_ai_batch.lanes.openai_shape import OpenAIShapedLane
from pydantic_ai_batch.lifecycle import BatchWatch
from pydantic_ai_batch.rows.atomic_file import AtomicFile, Output, StreamOutput
from pydantic_ai_batch.rows.kept_results import KeptResults
from pydantic_ai_batch.rows.outcomes import status_of_answer, unfinished, words_of
from pydantic_ai_batch.rows.raw_answers import response_of
from pydantic_ai_batch.rows.record_json import unpack
from pydantic_ai_batch.settings import BatchSettings
from pydantic_ai_batch.wording import counted

_STATUSES = {'succeeded': 'ok', 'errored': 'error', 'expired': 'expired', 'canceled': 'cancelled'}
_STUB: list[ModelMessage] = [ModelRequest.user_text_prompt('.')]
"""What stands for the requests, which nobody has any more: answers are read without them."""

OK, FAILED, LEFT = 0, 1, 3


async def join(batch_id: str, lane: Lane, provider: str, path: Path, console: Console, clock: Clock) -> int:
    """Join a batch to the run of a journal, and return the exit code.

    It is one of the run's if the provider shows it with the tag, or the IDs, of a batch that the journal has as begun,
    and of which it does not know what came.

    Raises:
        JournalError: There is no journal, or it cannot be used.
        UserError: The batch is not proven to be one of the run's. The journal is as it was.
        ModelAPIError: The provider could not be asked.
    """
    overview = overview_of(path)
    if any(known.batch is not None and known.batch.id == batch_id for known in overview.batches):
        await _reopen_unsettled(path)
        console.print(f'{path} has batch {batch_id} already. Its answers: pydantic-ai-batch collect {path}', **_PLAIN)
        return OK
    begun = [known for known in overview.batches if known.batch is None and known.lane == lane.info.name]
    if not begun:
        raise UserError(
            f'{path} lacks no batch of {lane.info.title}: it knows what came of each that was begun, so {batch_id} is '
            f'not of its run. Its results alone: {_alone(batch_id, provider)}'
        )
    journal = Journal(path)
    ledger = await ledger_of(journal, clock, lane)
    assert ledger is not None
    unclear: list[str] = []
    try:
        for known in begun:
            unsettled = await ledger.settling(known.tag)
            if unsettled is None:
                unclear.append('a process that is running finds out about one of them by itself')
                continue
            batch: Batch | None = None
            try:
                async with lane.model:
                    found = await creation.recognised(lane, unsettled.sought, unsettled.intended_at, clock)
                batch = next((batch for batch in found if batch.id == batch_id), None)
            except Undecided as undecided:
                unclear.append(f'one that is running shows only at its end whose it is ({undecided})')
            except ListingIncomplete as error:
                unclear.append(f'the listing could not be read: {error}')
            finally:
                if batch is None:
                    ledger.unsettled(known.tag)
            if batch is not None:
                await ledger.submitted(known.tag, batch)
                await _reopen_unsettled(path)
                requests = counted(unsettled.sought.count, 'request')
                console.print(
                    f'Batch {batch_id} carries the tag {known.tag}, which {path} wrote down for {requests}: it is '
                    f'joined to its run. To read its answers:\n  pydantic-ai-batch collect {path}',
                    **_PLAIN,
                )
                return OK
    finally:
        journal.close()
    if unclear:
        raise UserError(
            f'Whether batch {batch_id} is of the run in {path} is not proven: {"; ".join(unclear)}. The journal is as '
            'it was. Try again later.'
        )
    raise UserError(
        f'Batch {batch_id} is not of the run in {path}: it carries none of the tags that wait for a batch there. The '
        f'journal is as it was. Its results alone: {_alone(batch_id, provider)}'
    )


async def write_results(
    batch_id: str,
    lane: Lane,
    provider: str,
    to: str,
    console: Console,
    clock: Clock,
    *,
    wait: float | None,
    settings: BatchSettings,
) -> int:
    """Write the results of a batch, whoever made it, as JSON lines under their own IDs, and return the exit code.

    Args:
        batch_id: The provider's ID of the batch.
        lane: The lane that holds it.
        provider: What that was called on the command line.
        to: The file, which must not be there yet, or `-`.
        console: What is said goes here.
        clock: What time is read from and slept on.
        wait: Seconds to wait for the batch to end; `None` for no wait.
        settings: How often it is looked at meanwhile.

    Raises:
        UserError: The lane does not know the batch, or it is not over, or the file is there. Nothing was written.
        ModelAPIError: The provider could not be asked.
    """
    _refuse_existing(to)
    deadline = None if wait is None else clock.monotonic() + wait
    async with lane.model:
        batch = await _listed(lane, batch_id, provider)
        output: Output = StreamOutput(sys.stdout.buffer) if to == '-' else AtomicFile(to)
        written = _Written(lane, output)
        watch = BatchWatch(lane, batch, settings, clock, written.take)
        try:
            while not await watch.look():
                left = None if deadline is None else deadline - clock.monotonic()
                if watch.batch.status != 'ended' and (left is None or left <= 0):
                    output.discard()
                    return _not_over(lane, watch.batch, provider, to, console, waited=wait is not None)
                over = left is None or watch.batch.status == 'ended'
                await sleep_until_due(clock, watch.delay if over else min(watch.delay, cast('float', left)))
            for stray in watch.strays:
                written.put({'id': stray.custom_id, 'status': 'error', 'text': None, 'error': stray.reason}, stray.line)
        except BaseException:
            output.discard()
            raise
        output.commit()
    count = written.statuses.total()
    said = ', '.join(f'{number:,} {status}' for status, number in written.statuses.most_common())
    console.print(f'Batch {batch_id}: {counted(count, "result")}{f": {said}" if said else ""}', **_PLAIN)
    if (lacking := watch.batch.request_count - count) > 0:
        console.print(f'{counted(lacking, "request")} of it without a result.', **_PLAIN)
    if to != '-':
        console.print(f'Written to {to}', **_PLAIN)
    return OK if count and written.statuses['ok'] == count and lacking <= 0 else FAILED


_PLAIN: dict[str, Any] = {'highlight': False, 'markup': False, 'soft_wrap': True}


async def _reopen_unsettled(path: Path) -> None:
    """Have rows that failed as nobody knew of their batch wait for it again.

    Rows of other such batches do so as well, which sends none: each is looked for by its tag first.
    """
    kept = KeptResults(path)
    try:
        unsettled = [
            place async for place, record in kept.all() if unpack(record)[0].error_class == CreateUnsettled.__name__
        ]
        await kept.forget_places(unsettled)
    finally:
        kept.close()


def _refuse_existing(to: str) -> None:
    if to != '-' and os.path.lexists(to):
        raise UserError(f'{to} is there already, and is left as it is: give another `--output`.')


def _alone(batch_id: str, provider: str) -> str:
    return f'pydantic-ai-batch adopt {batch_id} --provider {provider}'


async def _listed(lane: Lane, batch_id: str, provider: str) -> Batch:
    """A batch as the listing has it, which tells of batches of any program what a check of them takes."""
    try:
        async with aclosing(lane.listing()) as batches:
            async for batch in batches:
                if batch.id == batch_id:
                    return batch
    except ListingIncomplete as error:
        raise ModelAPIError(
            lane.model.model_name,
            f'Batch {batch_id} was not found before the listing of {lane.info.title} broke off: {error}',
        ) from error
    raise UserError(
        f'{lane.info.title} has no batch {batch_id} for the key in the environment. To see what it has: '
        f'pydantic-ai-batch jobs --provider {provider}'
    )


def _not_over(lane: Lane, batch: Batch, provider: str, to: str, console: Console, *, waited: bool) -> int:
    counts = counts_of(batch)
    done = counts.get('completed', 0) + counts.get('failed', 0)
    far = f', {done:,} of {counted(batch.request_count, "request")} done' if batch.request_count else ''
    again = f'{_alone(batch.id, provider)}{"" if to == "-" else f" -o {to}"} --wait 24h'
    message = f'Batch {batch.id} is not over: {lane.job_status(batch)}{far}. To wait for it: {again}'
    if not waited:
        raise UserError(message)
    console.print(message, **_PLAIN)
    return LEFT


@dataclass
class _Written:
    """What was written of a batch."""

    lane: Lane
    output: Output

    def __post_init__(self) -> None:
        self.statuses = Counter[str]()

    async def take(self, result: BatchResult) -> None:
        """Write a result."""
        status, text, error = _STATUSES[result.status], None, None
        try:
            response = await _response(self.lane, result)
        except ModelAPIError as failure:
            if result.status != 'succeeded' or _says_failed(result):
                status = 'error' if status == 'ok' else status
                error = f'{type(failure).__name__}: {words_of(failure)}'
        except Exception:
            # Another program may have asked for anything. The body is there to be read.
            pass
        else:
            status, text = status_of_answer(response.finish_reason), response.text
            error = unfinished(status, response)
        self.put({'id': result.custom_id, 'status': status, 'text': text, 'error': error}, provider_body(result))

    def put(self, about: dict[str, Any], raw: Any) -> None:
        """Write a line."""
        self.statuses[about['status']] += 1
        self.output.stream.write(json.dumps({**about, 'raw': raw}).encode() + b'\n')


def _says_failed(result: BatchResult) -> bool:
    body = provider_body(result)
    return isinstance(body, dict) and cast('dict[str, Any]', body).get('status') in ('failed', 'cancelled')


async def _response(lane: Lane, result: BatchResult) -> ModelResponse:
    """What a result says, as far as that can be read without its request."""
    found: Any = provider_body(result) if result.status == 'succeeded' else None
    body = cast('dict[str, Any]', found) if isinstance(found, dict) else {}
    # Of these two a lane's batches may have either, and the lane that was named reads one.
    has_shape = isinstance(body.get('choices'), list) or isinstance(body.get('output'), list)
    if isinstance(lane, OpenAIShapedLane) and has_shape:
        return response_of(lane, '', body)
    try:
        return await lane.decode(result, BatchRequest(custom_id=result.custom_id, messages=_STUB))
    except Exception:
        if not has_shape:
            raise
        return response_of(lane, '', body)
