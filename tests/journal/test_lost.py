"""Batches of which nobody knows whether they were created, and batches that are gone: found, sent again, or said so."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lanes.harness import HARNESSES, MORE, Harness, echo
from pydantic_ai.exceptions import ModelAPIError

from pydantic_ai_batch import Journal, check_batch, collect_batch, submit_batch, wait_batch
from pydantic_ai_batch.exceptions import CreateUnsettled, JournalError
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import (
    ANSWERS,
    CREATE,
    ROWS,
    LaneModel,
    Way,
    Wire,
    billed,
    by_agents,
    by_list,
    counts,
    each_way,
    ended,
    forgotten,
    killed,
    killed_at,
    killed_while_waiting,
    outcome_of,
    query,
    requests_of,
)

lists_and_agents = pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
every_lane = pytest.mark.parametrize(
    'harness',
    # xAI's batches are filled after their creation, for which it has tests of its own.
    [harness.name for harness in [*HARNESSES, *MORE] if harness.lane != 'xai'],
    indirect=True,
)
one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)


def inputs_left(harness: Harness, fake: FakeProviders) -> int:
    """How many input files are still at the provider."""
    if harness.delete is None:
        return 0
    upload = 'upload_bytes' if harness.provider == 'google' else 'upload'
    deleted = {call.path for call in harness.fake(fake).calls if call.operation == harness.delete}
    return harness.fake(fake).count(upload) - len(deleted)


async def killed_at_the_create(
    when: str, way: Way, harness: Harness, model: Any, journal: Path, clock: ManualClock, wire: Wire
) -> None:
    """A process that is killed before the provider gets the call that creates a batch, or before its reply comes."""
    await killed_at(wire.hold(when, 'POST', CREATE[harness.provider]), way(model, ROWS, journal, clock), clock)
    wire.clear()


# Unsettled creates


@each_way
@every_lane
async def test_a_batch_whose_reply_was_lost_with_the_process_is_found_and_attached(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
):
    await killed_at_the_create('after', way, harness, lane_model(fake), path, clock, wire)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS
    assert inputs_left(harness, fake) == 0
    # Known by now, it is looked for no more.
    ended()
    listings = counts(harness, fake, 'list')
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'list') == listings


@each_way
@every_lane
async def test_a_batch_that_never_came_to_be_is_sent_once_the_listing_proves_that(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
):
    await killed_at_the_create('before', way, harness, lane_model(fake), path, clock, wire)
    options = {'max_requests': 6} if way is by_agents else {}
    killed_then = clock.now()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock, **options)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS
    assert inputs_left(harness, fake) == 0
    [create] = [call for call in harness.fake(fake).calls if call.operation == 'create']
    # Two minutes after it was intended, as a listing may be late.
    assert create.at - killed_then >= 120


@every_lane
async def test_a_batch_that_is_intended_is_on_the_disk_before_the_provider_hears_of_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    seen: list[Any] = []
    count = 'SELECT count(*) FROM requests r WHERE r.tag = b.tag'

    def look() -> None:
        seen.append(query(path, f'SELECT state, lane, requests, batch_id, ({count}) FROM batches b'))

    wire.before_any(look)
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    assert seen[0] == [('intended', harness.lane, 6, None, 6)]


@one_lane
async def test_a_lookup_that_a_process_was_killed_in_is_made_by_the_next_one(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    await killed_at_the_create('after', by_list, harness, lane_model(fake), path, clock, wire)
    await killed_at(wire.hold('after', 'GET', '/v1/batches'), by_list(lane_model(fake), ROWS, path, clock), clock)
    wire.clear()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


def listing_fails(harness: Harness, fake: FakeProviders) -> None:
    harness.fake(fake).inject('list', 'http', status=500, times=None)


@each_way
async def test_where_the_listing_cannot_tell_the_error_says_where_to_look_and_how_to_send_again(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    caplog: pytest.LogCaptureFixture,
):
    await killed_at_the_create('before', way, harness, lane_model(fake), path, clock, wire)
    [(tag,)] = query(path, 'SELECT tag FROM batches')
    listing_fails(harness, fake)
    outcomes = await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * 6
    assert len({id(outcome) for outcome in outcomes}) == 6
    assert tag in str(outcomes[0])
    assert 'resend_lost=True' in str(outcomes[0])
    assert counts(harness, fake, 'create') == [0]
    # They stay that way, until the listing can tell.
    ended()
    outcomes = await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * 6
    ended()
    harness.fake(fake).clear_faults()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


@each_way
async def test_resend_lost_sends_them_again(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    caplog: pytest.LogCaptureFixture,
):
    await killed_at_the_create('before', way, harness, lane_model(fake), path, clock, wire)
    listing_fails(harness, fake)
    journal = Journal(path, resend_lost=True)
    assert await clock.run(way(lane_model(fake), ROWS, journal, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]
    assert 'sent again, as `resend_lost` is set' in caplog.text


@lists_and_agents
async def test_a_create_that_stays_unsettled_while_it_is_made_is_settled_by_the_next_start(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    harness.fake(fake).inject('create', 'lose_reply')
    listing_fails(harness, fake)
    outcomes = await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert [type(outcome) for outcome in outcomes] == [CreateUnsettled] * 6
    assert 'resend_lost=True' in str(outcomes[0])
    harness.fake(fake).clear_faults()
    ended()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == ROWS


@lists_and_agents
async def test_requests_of_an_unsettled_batch_do_not_hold_up_others(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
):
    await killed_at_the_create('after', way, harness, lane_model(fake), path, clock, wire)
    listing_fails(harness, fake)
    others = [f'other {n}' for n in range(3)]
    options = {'max_requests': 3} if way is by_agents else {}
    task = asyncio.ensure_future(way(lane_model(fake), [*ROWS, *others], path, clock, **options))
    # The others are sent while the clock stands still, as they wait for nothing.
    for _ in range(3_000):
        if counts(harness, fake, 'create') == [2]:
            break
        await asyncio.sleep(0.01)
    outcomes = await clock.run(task)
    assert [type(outcome) for outcome in outcomes[:6]] == [CreateUnsettled] * 6
    assert outcomes[6:] == [f'answer to {other}' for other in others]
    assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_requests_of_several_unsettled_batches_are_settled_each_for_itself(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    held = 0
    both, never = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        nonlocal held
        held += 1
        if held == 2:
            both.set()
        await never.wait()

    wire.after('POST', CREATE['openai'], hold)
    await killed_at(both, by_list(lane_model(fake), ROWS, path, clock, max_requests=3), clock)
    wire.clear()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [2]


async def test_a_listing_that_is_late_does_not_make_a_second_batch(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    harness.fake(fake).inject('batch', 'hide', seconds=60)
    await killed_at_the_create('after', by_list, harness, lane_model(fake), path, clock, wire)
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


async def test_a_batch_is_found_by_another_key_of_the_project(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    harness.fake(fake).projects.update({'old': 'project', 'new': 'project'})
    await killed_at_the_create('after', by_list, harness, lane_model(fake, 'old'), path, clock, wire)
    assert await clock.run(by_list(lane_model(fake, 'new'), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


# Clocks


@pytest.mark.parametrize('when', ['before', 'after'])
@pytest.mark.parametrize('hours', [-1, 1, -5, 30])
async def test_a_clock_that_is_set_between_two_starts_loses_and_doubles_nothing(
    hours: int,
    when: str,
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
    path: Path,
    wire: Wire,
):
    provider = ManualClock()
    with FakeProviders(echo, clock=provider, processing=timedelta(0)) as fake:
        # The provider's clock goes right, whatever this machine's says.
        await killed_at_the_create(when, by_list, harness, lane_model(fake), path, clock, wire)
        clock.set_wall(hours * 3600)
        await provider.advance(1)
        assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
        assert counts(harness, fake, 'create') == [1]
        assert billed(harness, fake) == ROWS


@each_way
@pytest.mark.parametrize('hours', [-1, 1])
async def test_a_clock_that_is_set_while_a_batch_is_in_flight_loses_and_doubles_nothing(
    hours: int,
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    clock.set_wall(hours * 3600)
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]
    assert billed(harness, fake) == ROWS


# Batches that are gone


@lists_and_agents
async def test_a_batch_that_is_gone_fails_only_its_own_rows(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    forgotten(harness, fake)
    await clock.advance(3600)
    options = {'max_requests': 3} if way is by_agents else {}
    others = [f'other {n}' for n in range(3)]
    outcomes = await clock.run(way(lane_model(fake), [*ROWS, *others], path, clock, **options))
    assert all(isinstance(outcome, Exception) for outcome in outcomes[:6])
    assert outcomes[6:] == [f'answer to {other}' for other in others]
    # Nothing is paid for again by itself, by a later start neither.
    ended()
    await clock.run(way(lane_model(fake), [*ROWS, *others], path, clock, **options))
    assert counts(harness, fake, 'create') == [2]


async def submitted_and_collected(
    model: Any, rows: list[str], journal: Path | Journal, clock: ManualClock
) -> list[Any]:
    """What a job comes to that is collected an hour after it was submitted."""
    job = await clock.run(submit_batch(model, requests_of(rows), journal=journal, clock=clock))
    await clock.advance(3600)
    outcomes = await clock.run(collect_batch(job.id, model=model, journal=journal, clock=clock))
    return [outcome_of(outcome) for outcome in outcomes]


async def test_a_job_whose_batch_is_gone_fails_only_the_rows_of_that_batch(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(submit_batch(lane_model(fake), requests_of(ROWS[:3]), journal=path, clock=clock))
    ended()
    forgotten(harness, fake)
    outcomes = await submitted_and_collected(lane_model(fake), ROWS, path, clock)
    assert all(isinstance(outcome, ModelAPIError) for outcome in outcomes[:3])
    assert outcomes[3:] == ANSWERS[3:]


async def test_a_job_one_of_whose_batches_is_gone_waits_for_the_others(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    model = lane_model(fake)
    first = await clock.run(submit_batch(model, requests_of(ROWS[:3]), journal=path, clock=clock))
    ended()
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    batches = harness.fake(fake)._batches
    taken = first.batches[0].batch.id
    kept = batches.pop(taken)
    await clock.advance(3600)
    job = await clock.run(wait_batch(job.id, model, journal=path, clock=clock))
    assert (job.status, sorted(batch.status for batch in job.batches)) == ('ended', ['ended', 'gone'])
    # As with another project's key: with its own, it is there again.
    batches[taken] = kept
    job = await clock.run(check_batch(job.id, model, journal=path, clock=clock))
    assert [batch.status for batch in job.batches] == ['ended', 'ended']
    outcomes = await clock.run(collect_batch(job.id, model=model, journal=path, clock=clock))
    assert [outcome_of(outcome) for outcome in outcomes] == ANSWERS


@lists_and_agents
async def test_rows_of_a_batch_that_is_gone_are_sent_again_if_that_is_asked_for(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    forgotten(harness, fake)
    await clock.advance(3600)
    journal = Journal(path, resend_lost=True)
    options = {'max_wait': timedelta(hours=1)} if way is by_agents else {}
    assert await clock.run(way(lane_model(fake), ROWS, journal, clock, **options)) == ANSWERS
    assert billed(harness, fake) == ROWS
    ended()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert billed(harness, fake) == ROWS


async def test_a_job_that_is_submitted_with_resend_lost_sends_rows_of_a_batch_that_is_gone_again(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(submit_batch(lane_model(fake), requests_of(ROWS), journal=path, clock=clock))
    ended()
    forgotten(harness, fake)
    journal = Journal(path, resend_lost=True)
    # The first one may be what finds out that it is gone.
    await submitted_and_collected(lane_model(fake), ROWS, journal, clock)
    ended()
    assert await submitted_and_collected(lane_model(fake), ROWS, journal, clock) == ANSWERS


@lists_and_agents
async def test_a_batch_that_another_project_owns_fails_only_its_own_rows(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake, 'one'), ROWS, path, clock), clock)
    await clock.advance(3600)
    options = {'max_requests': 3} if way is by_agents else {}
    others = [f'other {n}' for n in range(3)]
    outcomes = await clock.run(way(lane_model(fake, 'two'), [*ROWS, *others], path, clock, **options))
    assert all(isinstance(outcome, Exception) for outcome in outcomes[:6])
    assert outcomes[6:] == [f'answer to {other}' for other in others]
    ended()
    # The project that owns it can still have its answers.
    assert await clock.run(way(lane_model(fake, 'one'), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [2]


# Input files

with_files = pytest.mark.parametrize('harness', ['responses', 'chat', 'google-file'], indirect=True)


@each_way
@with_files
async def test_an_input_file_is_deleted_by_the_successor_of_the_process_that_made_it(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake), ROWS, path, clock), clock)
    assert inputs_left(harness, fake) == 1
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert inputs_left(harness, fake) == 0
    ended()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, str(harness.delete)) == [1]


@lists_and_agents
@with_files
async def test_an_input_file_that_a_process_was_killed_before_deleting_is_deleted_by_the_next(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
):
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await never.wait()

    wire.before_delete(hold)
    await killed_at(reached, way(lane_model(fake), ROWS, path, clock), clock)
    wire.clear()
    assert inputs_left(harness, fake) == 1
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert inputs_left(harness, fake) == 0


@with_files
async def test_an_upload_that_no_batch_was_made_of_is_deleted_by_the_next_process(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    await killed_at_the_create('before', by_list, harness, lane_model(fake), path, clock, wire)
    assert inputs_left(harness, fake) == 1
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert inputs_left(harness, fake) == 0


@with_files
async def test_a_file_of_a_batch_that_nothing_asks_for_again_is_deleted_when_the_journal_is_next_used(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    reached, never = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        reached.set()
        await never.wait()

    wire.before_delete(hold)
    await killed_at(reached, by_list(lane_model(fake), ROWS, path, clock), clock)
    wire.clear()
    assert await clock.run(by_list(lane_model(fake), ['another'], path, clock)) == ['answer to another']
    assert inputs_left(harness, fake) == 0


# A disk that is full


class Disk:
    """A disk that the journal can be made to find full, for what comes from then on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._connections: list[sqlite3.Connection] = []
        connect = sqlite3.connect

        def connected(*args: Any, **options: Any) -> sqlite3.Connection:
            connection = connect(*args, **options)
            self._connections.append(connection)
            return connection

        monkeypatch.setattr(sqlite3, 'connect', connected)

    def fill(self) -> None:
        for connection in self._connections:
            connection.execute('PRAGMA max_page_count = 1')

    def free(self) -> None:
        for connection in self._connections:
            connection.execute('PRAGMA max_page_count = 1000000')


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def large_rows() -> list[str]:
    # Enough that they cannot be written into the pages that there are.
    return [f'row {n}' for n in range(200)]


@lists_and_agents
async def test_on_a_full_disk_nothing_is_sent(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, disk: Disk
):
    await clock.run(way(lane_model(fake), ['first'], path, clock))
    disk.fill()
    calls, rows = len(fake.calls), large_rows()
    if way is by_list:
        with pytest.raises(JournalError, match='full'):
            await clock.run(way(lane_model(fake), rows, path, clock))
    else:
        outcomes = await clock.run(way(lane_model(fake), rows, path, clock, max_wait=timedelta(minutes=1)))
        refused = [outcome for outcome in outcomes if isinstance(outcome, JournalError)]
        assert refused
        assert 'full' in str(refused[0])
        if len(refused) == len(rows):
            assert len(fake.calls) == calls
    disk.free()
    ended()
    options = {'max_wait': timedelta(minutes=1), 'max_requests': 1000} if way is by_agents else {}
    assert await clock.run(way(lane_model(fake), rows, path, clock, **options)) == [f'answer to {row}' for row in rows]
    assert billed(harness, fake) == sorted(['first', *rows])


@lists_and_agents
@pytest.mark.parametrize('moment', ['the handle', 'the results'])
async def test_a_disk_that_becomes_full_loses_and_doubles_nothing(
    moment: str,
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    disk: Disk,
    caplog: pytest.LogCaptureFixture,
):
    rows = [f'row {n:03}' for n in range(40)]

    def long(request: Any) -> str:
        import random

        chance = random.Random(request.text)
        return echo(request) + ' ' + ''.join(chance.choices('abcdefghijklmnopqrstuvwxyz', k=3000))

    with FakeProviders(long, clock=clock) as fake:
        if moment == 'the handle':
            wire.before('POST', CREATE[harness.provider], disk.fill)
        task = asyncio.ensure_future(way(lane_model(fake), rows, path, clock))
        await asyncio.wait((task, asyncio.ensure_future(clock.until_asleep())), return_when='FIRST_COMPLETED')
        disk.fill()
        first = await clock.run(task)
        assert all(str(outcome).startswith(f'answer to {row}') for outcome, row in zip(first, rows, strict=True))
        assert any(record.levelno == logging.ERROR and 'full' in record.getMessage() for record in caplog.records)
        disk.free()
        killed()
        wire.clear()
        assert await clock.run(way(lane_model(fake), rows, path, clock)) == first
        assert counts(harness, fake, 'create') == [1]
        assert billed(harness, fake) == rows


async def test_the_listing_of_another_project_proves_nothing(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    await killed_at_the_create('after', by_list, harness, lane_model(fake), path, clock, wire)
    outcomes = await clock.run(by_list(lane_model(fake, 'of another project'), ROWS, path, clock))
    assert {type(outcome) for outcome in outcomes} == {CreateUnsettled}
    ended()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == ROWS
