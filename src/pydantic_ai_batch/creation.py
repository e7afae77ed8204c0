"""A batch's creation: paid for once, and looked for if its reply is lost, by this process or a later one.

Agents' queues, list calls and jobs create their batches here, so that what must never go wrong is decided in one place.
Time comes in through a `Clock`, and what to conclude from an error is [`policy`][pydantic_ai_batch.policy]'s to say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models.batch import Batch

from . import compat
from .clock import Clock, sleep_until_due, utc
from .exceptions import CreateUnsettled, brief
from .journal.ledger import Ledger, is_kept
from .lanes.base import Lane, ListingIncomplete, NotCreated, NotReadYet, Payload, Sought, Undecided
from .lanes.errors import shown_url
from .lifecycle import give_up
from .policy import (
    NEVER_SENT_DELAYS,
    READ_DELAYS,
    SETTLE_INTERVALS,
    SETTLE_MARGIN,
    SETTLE_OFFSETS,
    create_outcome,
    full_queue,
    overdue,
    poll_delay,
    transient,
)
from .wording import counted

_log = logging.getLogger('pydantic_ai_batch')

_CLOCK_SKEW = timedelta(hours=1)
"""How far the provider's clock may be from ours before ours is believed."""

_CLOCK_SET = timedelta(days=1)
"""How far back the listing is read for a batch that another process intended."""

_REPEATABLE = timedelta(hours=1)
"""How long a create is taken to be known again by what it was sent with: providers keep that for some time only."""

_SEEN_THROUGH_SECONDS = 150
"""How long, in real seconds, a creation that is under way is seen through when its call is given up."""


async def submit(
    lane: Lane,
    payload: Payload,
    clock: Clock,
    ledger: Ledger | None = None,
    *,
    settling: Callable[[], None] = lambda: None,
) -> Batch:
    """Create a batch of `payload`, and pay for it once.

    With a journal, it is written down before the provider hears of it, and again when it is known what came of it.

    What was uploaded for it is deleted if the provider refuses the batch, but kept if only its queue is full, which is
    for the caller to try again or [`discard`][pydantic_ai_batch.creation.discard].

    The create is sent once. If it never reached the provider, it is sent again after a moment. If its reply was lost,
    the batch is looked for by its tag; only when the provider's listing shows that there is none is it sent again, and
    that once. Where the listing cannot tell, it is sent again where the provider makes no second batch of it.

    Args:
        lane: Its lane.
        payload: Its requests.
        clock: What time is read from and slept on.
        ledger: The journal, if there is one.
        settling: Called if the reply was lost, before the batch is looked for, which may take as long as it runs.

    Raises:
        CreateUnsettled: The reply was lost and the listing cannot tell whether there is a batch.
        ModelAPIError: The provider refused the batch, or could not be reached.
    """
    if ledger is None:
        return await _create(lane, payload, clock, settling)
    await ledger.intend(lane, payload, payload.entries)
    try:
        batch = await _create(lane, payload, clock, settling)
    except CreateUnsettled as error:
        ledger.unsettled(payload.tag)
        raise with_flag(error) from error.__cause__
    except ModelAPIError as error:
        # There is no batch: its requests failed, or wait for room in the provider's queue.
        await ledger.dropped(payload.tag, failed=full_queue(error) is None)
        raise
    except BaseException:
        ledger.unsettled(payload.tag)
        raise
    await ledger.submitted(payload.tag, batch)
    return batch


async def _create(lane: Lane, payload: Payload, clock: Clock, settling: Callable[[], None]) -> Batch:
    # From the first time on, as a batch of an earlier one may turn up late.
    since = utc(clock) - SETTLE_MARGIN
    never_sent = reads = 0
    proven_absent = repeated = False
    while True:
        try:
            batch = await lane.create(payload)
            if payload.maybe_doubled:
                batch = await _single(lane, payload, batch, since)
            return _submitted(lane, payload, batch, clock)
        except NotReadYet as unread:
            if reads == len(READ_DELAYS):
                await discard(lane, payload)
                raise ModelAPIError(lane.model.model_name, str(unread)) from unread
            _log.info('%s Looking again in %g s.', unread, READ_DELAYS[reads])
            await sleep_until_due(clock, READ_DELAYS[reads])
            reads += 1
            continue
        except NotCreated as upload:
            error = upload.__cause__
            assert isinstance(error, ModelAPIError)
            if not transient(error) or never_sent == len(NEVER_SENT_DELAYS):
                raise error from error.__cause__
        except ModelAPIError as error:
            # What comes of one that was sent again says nothing of the first.
            outcome = 'unknown' if repeated else create_outcome(error)
            if outcome == 'refused' or (outcome == 'never_sent' and never_sent == len(NEVER_SENT_DELAYS)):
                if full_queue(error) is None:
                    await discard(lane, payload)
                raise
            if outcome == 'unknown':
                _log.warning(
                    'The reply to the creation of a batch of %s at %s was lost (%s): looking for its tag %s.',
                    counted(payload.count, 'request'),
                    lane.info.title,
                    brief(error),
                    payload.tag,
                )
                settling()
                found, repeated = await _settle_or_repeat(lane, payload, since, clock, error, repeated=repeated)
                if found is not None:
                    return _submitted(lane, payload, found, clock)
                if proven_absent and not repeated:
                    raise
                proven_absent = proven_absent or not repeated
                continue
        except asyncio.CancelledError:
            _log_unsettled(lane, payload)
            raise
        _log.warning(
            'A batch of %s did not reach %s (%s): trying again in %g s.',
            counted(payload.count, 'request'),
            lane.info.title,
            shown_url(lane.model.base_url),
            NEVER_SENT_DELAYS[never_sent],
        )
        await sleep_until_due(clock, NEVER_SENT_DELAYS[never_sent])
        never_sent += 1


async def _settle_or_repeat(
    lane: Lane, payload: Payload, since: datetime, clock: Clock, lost: ModelAPIError, *, repeated: bool
) -> tuple[Batch | None, bool]:
    """What `_settle` finds, and whether the create is to be sent again although nobody can tell.

    It is if the provider makes no second batch of it, which was not relied on yet (`repeated`).

    Raises:
        CreateUnsettled: Nobody can tell, and it may make a second one.
    """
    try:
        return await _settle(lane, payload, since, clock, lost), False
    except CreateUnsettled:
        age = abs(utc(clock) - since - SETTLE_MARGIN)
        # To another account, it would be another create.
        if repeated or not lane.is_repeatable(payload) or age > _REPEATABLE or not await _asks_as_before(lane, payload):
            raise
        _log.warning(
            'The listing of %s cannot tell whether there is a batch with tag %s: its create is sent again, which makes '
            'no second one.',
            lane.info.title,
            payload.tag,
        )
        return None, True


def _submitted(lane: Lane, payload: Sought, batch: Batch, clock: Clock) -> Batch:
    what = counted(payload.count, 'request')
    _log.info('Batch %s of %s was submitted to %s.', batch.id, what, lane.info.title)
    return _with_plausible_time(batch, utc(clock))


def _with_plausible_time(batch: Batch, now: datetime) -> Batch:
    """The batch just created, with the time of its creation by our clock if the provider's makes no sense by it.

    How long it is waited for goes by that time, and some servers write none, or another machine's.
    """
    return batch if abs(batch.created_at - now) < _CLOCK_SKEW else replace(batch, created_at=now)


async def _settle(lane: Lane, payload: Sought, since: datetime, clock: Clock, lost: ModelAPIError) -> Batch | None:
    """Find the batch whose creation had no reply, or `None` when the provider's listing shows that there is none."""
    try:
        return await _look_for(lane, payload, since, clock, lost)
    except asyncio.CancelledError:
        _log_unsettled(lane, payload)
        raise


def _log_unsettled(lane: Lane, payload: Sought) -> None:
    _log.warning(
        'The creation of a batch at %s was cancelled while it was under way, so a batch may exist: %s.',
        lane.info.title,
        lane.where_to_look(payload),
    )


async def _look_for(lane: Lane, payload: Sought, since: datetime, clock: Clock, lost: ModelAPIError) -> Batch | None:
    lost_at = utc(clock)
    looks = 0
    running = False
    as_before = await _asks_as_before(lane, payload)
    while True:
        found: list[Batch] = []
        proven = False
        try:
            found = await lane.find(payload, since=since)
            proven, running = lane.info.listing_proves_absence and as_before, False
        except Undecided as undecided:
            running = True
            _log.info('The batch with tag %s is not found yet: %s', payload.tag, undecided)
        except (ModelAPIError, ListingIncomplete) as error:
            _log.warning('The listing of %s could not be read: %s', lane.info.name, brief(error))
        if found:
            return await _keep_one(lane, payload, found)
        looks += 1
        if looks < len(SETTLE_OFFSETS) and lane.info.findable:
            await sleep_until_due(clock, SETTLE_OFFSETS[looks] - SETTLE_OFFSETS[looks - 1])
        elif running and not overdue(lost_at, lane.window_of(payload.group), utc(clock)):
            # A batch that may be this one has to end first. Whoever waits would wait for it just as long.
            await sleep_until_due(clock, poll_delay(looks - len(SETTLE_OFFSETS), *SETTLE_INTERVALS))
        elif proven:
            return None
        else:
            requests = counted(payload.count, 'request')
            other = '' if as_before else ', as it is asked with another credential, maybe of another project'
            raise CreateUnsettled(
                lane.model.model_name,
                f'The reply to the creation of a batch of {requests} was lost ({brief(lost)}), and the '
                f'listing of {lane.info.title} cannot tell whether it exists{other}. The requests are not sent again, '
                f'as that could pay for them twice: {lane.where_to_look(payload)}.',
            ) from lost


async def _asks_as_before(lane: Lane, payload: Sought) -> bool:
    """Whether a batch is looked for under the credential that it was to be created with.

    Another one may be of another project, whose listing proves nothing about the batch.
    """
    try:
        return compat.same_credential(payload.group, await lane.identity())
    except (UserError, ModelAPIError):
        return False


async def _single(lane: Lane, payload: Sought, batch: Batch, since: datetime) -> Batch:
    """The batch of `payload` that goes on, where one was created, and another maybe before it without a reply."""
    try:
        found = await lane.find(payload, since=since)
    except (ModelAPIError, ListingIncomplete, Undecided) as error:
        _log.warning('Whether there is a second batch with tag %s could not be seen: %s', payload.tag, brief(error))
        return batch
    return await _without_doubles(lane, payload, found) if found else batch


async def _keep_one(lane: Lane, payload: Sought, found: list[Batch]) -> Batch:
    kept = await _without_doubles(lane, payload, found)
    _log.info('Batch %s, whose creation had no reply, was found and goes on.', kept.id)
    return kept


async def _without_doubles(lane: Lane, payload: Sought, found: list[Batch]) -> Batch:
    """The oldest of the batches with one tag. Others, of a transport that repeats calls by itself, are cancelled."""
    # A listing that changes while it is paged through may show a batch twice.
    kept, *doubles = {batch.id: batch for batch in found}.values()
    for double in doubles:
        _log.warning('Batch %s is a second one of tag %s: cancelling it.', double.id, payload.tag)
        with suppress(ModelAPIError):
            await lane.cancel(double)
    return kept


async def settle(lane: Lane, sought: Sought, intended_at: float, clock: Clock) -> Batch | None:
    """Find the batch that an earlier process intended to create, or `None` if the provider's listing shows none.

    What was uploaded for one that was not created is deleted.

    Raises:
        CreateUnsettled: The listing cannot tell whether there is a batch.
    """
    since = _intended_since(lane, intended_at, clock)
    lost = ModelAPIError(lane.model.model_name, 'the process that was to receive it ended')
    await _recall(lane, sought, since)
    batch = await _settle(lane, sought, since, clock, lost)
    if batch is None:
        # What was on its way when the process ended has come by now.
        await _recall(lane, sought, since)
        await discard(lane, sought)
        return None
    return _with_plausible_time(batch, utc(clock))


async def recognised(lane: Lane, sought: Sought, intended_at: float, clock: Clock) -> list[Batch]:
    """The batches that the provider shows as the one that an earlier process intended to create, by one look.

    Nothing is concluded where there is none, and nothing is cancelled where there are several.

    Raises:
        Undecided: One that is running may be it.
        ListingIncomplete: The listing could not be read far enough back.
        ModelAPIError: The provider could not be asked.
    """
    since = _intended_since(lane, intended_at, clock)
    await _recall(lane, sought, since)
    found = await lane.find(sought, since=since)
    return [_with_plausible_time(batch, utc(clock)) for batch in found]


def _intended_since(lane: Lane, intended_at: float, clock: Clock) -> datetime:
    """How far back to look for a batch that an earlier process intended.

    That process may have gone by another clock, or had its clock set. Where a tag tells batches apart, reading further
    back costs nothing else.
    """
    margin = _CLOCK_SET if lane.info.tag_field is not None else SETTLE_MARGIN
    return datetime.fromtimestamp(min(intended_at, clock.now()), UTC) - margin


async def _recall(lane: Lane, sought: Sought, since: datetime) -> None:
    try:
        await lane.recall(sought, since=since)
    except ModelAPIError as error:
        _log.info('The files at %s could not be listed: %s', lane.info.title, brief(error))


def with_flag(error: CreateUnsettled) -> CreateUnsettled:
    """The error with what a user of a journal can do about it."""
    return CreateUnsettled(
        error.model_name,
        f'{error.message} Once you know that there is none, or to send them again anyway, run with '
        '`Journal(path, resend_lost=True)`.',
    )


async def discard(lane: Lane, payload: Sought) -> None:
    """Delete what was uploaded for a payload that no batch was made of."""
    with suppress(ModelAPIError):
        await lane.discard(payload)


async def submit_owned(
    lane: Lane,
    payload: Payload,
    clock: Clock,
    ledger: Ledger | None = None,
    *,
    settling: Callable[[], None] = lambda: None,
) -> Batch:
    """Submit a batch that nobody but the caller, and its journal, knows of.

    If this is cancelled, the creation is seen through, and the batch cancelled unless the journal keeps it.
    """
    creation = asyncio.ensure_future(submit(lane, payload, clock, ledger, settling=settling))
    try:
        return await asyncio.shield(creation)
    except asyncio.CancelledError:
        # Not for ever: a lost reply may take as long to settle as the batch takes to end.
        try:
            await asyncio.wait((creation,), timeout=_SEEN_THROUGH_SECONDS)
        finally:
            settled = creation.done()
            creation.cancel()
            await asyncio.gather(creation, return_exceptions=True)
        if settled and creation.exception() is None and not await is_kept(creation.result(), ledger):
            await give_up(lane, creation.result())
        raise
