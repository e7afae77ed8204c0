"""The file of a journal: who can read it, what is not in it, what it is refused for, and what becomes of it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import stat
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from behaviours.scenes import Make
from lanes.harness import Harness, echo
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.exceptions import UserError

from pydantic_ai_batch import BatchModelRequests, BatchRequest, Journal, model_request_batch
from pydantic_ai_batch.exceptions import JournalError
from pydantic_ai_batch.journal import schema
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, ManualClock

from .scenes import (
    ANSWERS,
    ROWS,
    LaneModel,
    Way,
    all_over,
    billed,
    by_agents,
    by_list,
    bytes_of,
    counts,
    each_way,
    ended,
    killed,
    killed_while_waiting,
    query,
)

one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)


async def refusal(way: Way, model: Any, journal: Path | Journal, clock: ManualClock) -> str:
    """What a call says of a journal that cannot be used."""
    if way is by_agents:
        errors = await clock.run(way(model, ROWS, journal, clock))
        assert [type(error) for error in errors] == [JournalError] * 6, errors
        return str(errors[0])
    with pytest.raises(JournalError) as raised:
        await clock.run(way(model, ROWS, journal, clock))
    return str(raised.value)


# What is in it

SECRETS = [b'sk-very-secret', b'a-secret-header', b'very private prompt', b'a private instruction']


@each_way
async def test_no_key_no_header_and_no_request_is_in_the_file(way: Way, make: Make, clock: ManualClock, path: Path):
    with FakeProviders(lambda request: 'done', clock=clock) as fake:
        for kind in ('responses', 'chat', 'anthropic', 'google'):
            headers: dict[str, Any] = {'X-Mine': 'a-secret-header'}
            # The fake makes Google's client with options of its own.
            client: dict[str, Any] = {} if kind == 'google' else {'default_headers': headers}
            model = make(kind, fake, api_key='sk-very-secret', **client)
            assert await clock.run(way(model, ['very private prompt', 'and another'], path, clock)) == ['done'] * 2
            assert not [secret for secret in SECRETS if secret in bytes_of(path)]
        ended()
        assert not [secret for secret in SECRETS if secret in bytes_of(path)]


@each_way
async def test_no_request_is_in_the_file_of_a_process_that_was_killed(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(way(lane_model(fake, 'sk-very-secret'), ['very private prompt'], path, clock), clock)
    assert len(bytes_of(path)) > 1000
    assert not [secret for secret in SECRETS if secret in bytes_of(path)]


async def test_results_are_stored_compressed_as_the_provider_wrote_them(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(lambda request: 'the same words ' * 2_000, clock=clock) as fake:
        await clock.run(by_list(lane_model(fake), ROWS, path, clock))
        rows = query(path, 'SELECT status, body FROM results')
        assert [status for status, _ in rows] == ['succeeded'] * 6
        for _, body in rows:
            text = zlib.decompress(body)
            assert b'the same words' in text
            assert len(body) < len(text) / 10


async def test_results_are_on_the_disk_before_anyone_gets_them(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    on_disk: list[int] = []

    def told(event: Any) -> None:
        if event.kind == 'answered':
            on_disk.append(query(path, 'SELECT count(*) FROM results')[0][0])

    await clock.run(by_list(lane_model(fake), ROWS, path, clock, progress=told))
    assert len(on_disk) == 6
    assert on_disk[0] >= 1
    assert on_disk == [6] * 6


@one_lane
async def test_a_result_that_is_damaged_on_the_disk_is_read_from_the_provider(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    query(path, "UPDATE results SET body = x'00' WHERE request = 1")
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]
    ended()
    query(path, "UPDATE results SET body = x'00' WHERE request = 1")
    assert await clock.run(by_agents(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


# The file itself


async def test_only_its_owner_can_read_what_belongs_to_a_journal(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    mask = os.umask(0)
    try:
        await killed_while_waiting(by_list(lane_model(fake), ROWS, path, clock), clock)
    finally:
        os.umask(mask)
    files = sorted(path.parent.iterdir())
    assert [file.suffix for file in files if file.suffix.startswith('.db')] == ['.db', '.db-shm', '.db-wal']
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


@one_lane
async def test_it_is_in_wal_mode_and_leaves_nothing_beside_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    assert query(path, 'PRAGMA journal_mode') == [('wal',)]
    assert query(path, 'PRAGMA user_version') == [(len(schema.STEPS),)]
    ended()
    assert list(path.parent.iterdir()) == [path]


@one_lane
async def test_locks_of_processes_that_were_killed_are_cleared_away(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for _ in range(3):
        await clock.run(by_list(lane_model(fake), ROWS, path, clock))
        killed()
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    all_over()
    assert list(path.parent.iterdir()) == [path]


@each_way
@one_lane
async def test_a_journal_of_a_later_version_is_refused_before_anything_is_sent(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    query(path, f'PRAGMA user_version = {len(schema.STEPS) + 1}')
    calls = len(fake.calls)
    assert 'upgrade the package' in await refusal(way, lane_model(fake), path, clock)
    assert len(fake.calls) == calls


@one_lane
async def test_a_journal_of_an_earlier_version_is_brought_forward_with_all_that_is_in_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    steps = (*schema.STEPS, 'ALTER TABLE jobs ADD COLUMN note TEXT;\nCREATE TABLE notes (note TEXT);\n')
    with pytest.raises(JournalError, match='duplicate column'):
        schema.connect(path, (*steps, 'CREATE TABLE more (n);\nALTER TABLE jobs ADD COLUMN note TEXT;\n'))
    # All of it or nothing: it is as it was.
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    ended()
    for _ in range(2):
        schema.connect(path, steps).close()
        assert query(path, 'PRAGMA user_version') == [(len(steps),)]
        assert query(path, 'SELECT count(*), (SELECT count(note) FROM notes) FROM results') == [(len(ROWS), 0)]
    with pytest.raises(JournalError, match='upgrade the package'):
        schema.connect(path)
    assert counts(harness, fake, 'create') == [1]


@each_way
@one_lane
async def test_a_file_of_something_else_is_refused_before_anything_is_sent_and_left_as_it_is(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    query(path, 'CREATE TABLE mine (n)')
    before = path.read_bytes()
    assert 'something else' in await refusal(way, lane_model(fake), path, clock)
    assert path.read_bytes() == before
    path.write_text('These are my notes, and no database.\n' * 100)
    before = path.read_bytes()
    assert str(path) in await refusal(way, lane_model(fake), path, clock)
    assert path.read_bytes() == before
    assert fake.calls == []


@each_way
@one_lane
async def test_a_place_where_no_file_can_be_is_refused_before_anything_is_sent(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, tmp_path: Path
):
    assert str(tmp_path) in await refusal(way, lane_model(fake), tmp_path, clock)
    missing = tmp_path / 'no such folder' / 'journal.db'
    assert str(missing) in await refusal(way, lane_model(fake), missing, clock)
    assert fake.calls == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('journal', [7, b'journal.db', True])
def test_what_is_no_path_is_refused(journal: Any):
    with pytest.raises(UserError, match='path'):
        BatchModelRequests(journal=journal)
    with pytest.raises(UserError, match='on_cancel'):
        Journal('journal.db', on_cancel='stop')  # pyright: ignore[reportArgumentType]


async def as_nobody(path: Path, environment: dict[str, str]) -> str:
    """What a program that is not root's says, for which root's file is read-only."""
    processes = multiprocessing.get_context('fork')
    theirs, ours = processes.Pipe()

    def run() -> None:
        try:
            os.setuid(65534)
            os.environ.update(environment)

            async def call() -> None:
                requests = [BatchRequest(custom_id='0', messages=[ModelRequest.user_text_prompt('x')])]
                await model_request_batch('openai-responses:gpt-5-mini', requests, journal=path)

            asyncio.run(call())
            ours.send('sent')
        except BaseException as error:
            ours.send(f'{type(error).__name__}: {error}')
        os._exit(0)

    process = processes.Process(target=run)
    process.start()
    try:
        assert await asyncio.to_thread(theirs.poll, 30)
        return theirs.recv()
    finally:
        process.kill()
        process.join()


@pytest.mark.skipif(os.name != 'posix' or os.getuid() != 0, reason='only root can be somebody else')
@pytest.mark.parametrize('harness', ['responses'], indirect=True)
async def test_a_file_that_is_read_only_is_refused_before_anything_is_sent(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    folder = Path('/tmp') / f'journal-{os.getpid()}'
    folder.mkdir()
    try:
        folder.chmod(0o777)
        copy = folder / 'journal.db'
        shutil.copy(path, copy)
        copy.chmod(0o444)
        calls = len(fake.calls)
        said = await as_nobody(copy, fake.openai.environment)
        assert said.startswith('JournalError')
        assert str(copy) in said
        # Nor is one that could be written, in a folder where nothing can be.
        copy.chmod(0o666)
        folder.chmod(0o555)
        said = await as_nobody(copy, fake.openai.environment)
        assert said.startswith('JournalError')
        folder.chmod(0o555)
        copy.unlink()
        said = await as_nobody(copy, fake.openai.environment)
        assert said.startswith('JournalError')
        assert len(fake.calls) == calls
    finally:
        shutil.rmtree(folder)


@one_lane
async def test_a_file_that_is_removed_under_a_running_process_is_said_before_anything_is_sent(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    path.unlink()
    calls = len(fake.calls)
    assert 'removed' in await refusal(by_list, lane_model(fake), path, clock)
    assert 'removed' in await refusal(by_agents, lane_model(fake), path, clock)
    assert len(fake.calls) == calls


# Damage


async def large(lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path) -> list[str]:
    rows = [f'row {n:03}' for n in range(200)]
    await clock.run(by_list(lane_model(fake), rows, path, clock))
    ended()
    assert path.stat().st_size > 16 * 4096
    return rows


@each_way
@one_lane
@pytest.mark.parametrize('page', [1, 2, 3, 5, 8])
async def test_a_page_that_was_overwritten_is_an_error_before_anything_is_sent_or_does_not_matter(
    page: int, way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    rows = await large(lane_model, fake, clock, path)
    with path.open('r+b') as file:
        file.seek(page * 4096)
        file.write(b'\xa5' * 4096)
    said = ''
    try:
        outcomes = await clock.run(way(lane_model(fake), rows, path, clock))
    except JournalError as error:
        said = str(error)
    else:
        if any(isinstance(outcome, JournalError) for outcome in outcomes):
            said = str(outcomes[0])
        else:
            assert outcomes == [f'answer to {row}' for row in rows]
    assert not said or str(path) in said
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == rows


@each_way
@one_lane
@pytest.mark.parametrize('bytes_lost', [1, 2048, 4096, 3 * 4096])
async def test_a_last_page_that_is_torn_is_an_error_before_anything_is_sent_or_does_not_matter(
    bytes_lost: int,
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
):
    rows = await large(lane_model, fake, clock, path)
    os.truncate(path, path.stat().st_size - bytes_lost)
    said = ''
    try:
        outcomes = await clock.run(way(lane_model(fake), rows, path, clock))
    except JournalError as error:
        said = str(error)
    else:
        if any(isinstance(outcome, JournalError) for outcome in outcomes):
            said = str(outcomes[0])
        else:
            assert outcomes == [f'answer to {row}' for row in rows]
    assert not said or str(path) in said
    assert counts(harness, fake, 'create') == [1]
    assert billed(harness, fake) == rows


@each_way
@one_lane
@pytest.mark.parametrize('share', [0.3, 0.6, 0.9, 0.99])
async def test_a_write_ahead_log_that_is_torn_loses_and_doubles_nothing_or_says_so(
    share: float, way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    # A torn log is that of a crash: what a sync had reported to be on the disk is never torn. Here it may be.
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    killed()
    copy = path.with_name('copy.db')
    shutil.copy(path, copy)
    log = path.with_name('journal.db-wal').read_bytes()
    copy.with_name('copy.db-wal').write_bytes(log[: int(len(log) * share)])
    try:
        outcomes = await clock.run(way(lane_model(fake), ROWS, copy, clock))
    except JournalError:
        outcomes = ANSWERS
    # With what was lost of it, it may be sent again, but never be mixed up.
    assert [str(outcome) for outcome in outcomes] == ANSWERS or any(
        isinstance(outcome, JournalError) for outcome in outcomes
    )


# Pruning, and its size


@pytest.fixture
def today() -> ManualClock:
    """A clock that shows the machine's time, by which the age of what is pruned goes."""
    return ManualClock(datetime.now(UTC) - timedelta(hours=3))


async def test_what_is_pruned_is_sent_again_and_what_is_younger_is_not(
    harness: Harness, lane_model: LaneModel, today: ManualClock, path: Path
):
    with FakeProviders(echo, clock=today) as fake:
        await today.run(by_list(lane_model(fake), ROWS[:3], path, today))
        await today.advance(timedelta(hours=2))
        await today.run(by_list(lane_model(fake), ROWS[3:], path, today))
        ended()
        assert Journal(path).prune(older_than=timedelta(hours=1, minutes=30)) == 3
        ended()
        assert await today.run(by_list(lane_model(fake), ROWS, path, today)) == ANSWERS
        assert counts(harness, fake, 'create') == [3]
        assert billed(harness, fake) == sorted([*ROWS[:3], *ROWS])


async def test_what_is_in_flight_or_claimed_is_not_pruned(
    harness: Harness, lane_model: LaneModel, today: ManualClock, path: Path
):
    with FakeProviders(echo, clock=today) as fake:
        await today.run(by_list(lane_model(fake), ROWS, path, today))
        # This process still has them.
        assert Journal(path).prune() == 0
        ended()
        await killed_while_waiting(by_list(lane_model(fake), ['in flight'], path, today), today)
        assert Journal(path).prune() == 6
        ended()
        assert await today.run(by_list(lane_model(fake), ['in flight'], path, today)) == ['answer to in flight']
        assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_pruning_gives_the_room_back_and_the_size_shows_it(
    harness: Harness, lane_model: LaneModel, today: ManualClock, path: Path
):
    assert Journal(path).size == 0
    with FakeProviders(lambda request: os.urandom(3000).hex(), clock=today) as fake:
        batching = BatchModelRequests(journal=path, max_requests=100, max_wait=None, clock=today)
        assert batching.stats().journal_bytes == 0
        agent = Agent(lane_model(fake), capabilities=[batching])
        await today.run(asyncio.gather(*[agent.run(str(n)) for n in range(100)]))
        size = batching.stats().journal_bytes
        assert size is not None
        assert size > 100 * 3000
        assert Journal(path).size == size
        ended()
        assert Journal(path).prune(older_than=timedelta(0)) == 100
        assert Journal(path).size < 120_000


@one_lane
async def test_pruning_an_empty_journal_forgets_nothing(path: Path, harness: Harness):
    assert Journal(path).prune(older_than=timedelta(days=1)) == 0


# Where a journal can be given


async def test_a_journal_is_refused_for_models_whose_lost_batches_could_not_be_found(
    clock: ManualClock, path: Path, fake: FakeProviders
):
    from lanes.native_model import NativeModel

    model = NativeModel(fake, 'key')
    with pytest.raises(UserError, match='leave `journal=` out'):
        await clock.run(by_list(model, ROWS, path, clock))
    errors = await clock.run(by_agents(model, ROWS, path, clock))
    assert [type(error) for error in errors] == [UserError] * 6
    assert not path.exists()


async def test_an_agent_spec_gives_the_path_of_a_journal(
    make: Make, fake: FakeProviders, clock: ManualClock, path: Path
):
    batching = BatchModelRequests.from_spec(journal=str(path), max_requests=1)
    assert batching.journal == str(path)
    agent = Agent.from_spec(
        {
            'model': 'test',
            'capabilities': [{'BatchModelRequests': {'journal': str(path), 'max_requests': 1}}],
        },
        custom_capability_types=[BatchModelRequests],
    )
    assert 'journal' in repr(agent.root_capability)


@one_lane
async def test_a_path_and_a_journal_are_the_same(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for journal in (str(path), path, Journal(path), Journal(str(path))):
        outcomes = await clock.run(by_list(lane_model(fake), ROWS, journal, clock))
        assert outcomes == ANSWERS
        ended()
    assert counts(harness, fake, 'create') == [1]


@one_lane
async def test_a_journal_is_one_file_whatever_its_path_is_written_like(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(path.parent)
    await clock.run(by_list(lane_model(fake), ['one'], Path(path.name), clock))
    (path.parent / 'folder').mkdir()
    await clock.run(by_list(lane_model(fake), ['two'], path.parent / 'folder' / '..' / path.name, clock))
    assert query(path, 'SELECT count(*) FROM sessions') == [(1,)]


@one_lane
async def test_a_file_name_may_hold_what_it_likes(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, tmp_path: Path
):
    odd = tmp_path / "a 'job' of 100% ?mode=ro#é.sqlite"
    for _ in range(2):
        assert await clock.run(by_list(lane_model(fake), ROWS, odd, clock)) == ANSWERS
        ended()
    assert counts(harness, fake, 'create') == [1]
    assert list(tmp_path.iterdir()) == [odd]


async def test_the_path_of_an_answer_with_half_a_character_is_the_same_from_the_disk(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def odd(request: FakeRequest) -> str:
        return f'{request.text}: \u2028 \x00 \U0001f600 \x7f'

    with FakeProviders(odd, clock=clock) as fake:
        first = await clock.run(by_list(lane_model(fake), ROWS, path, clock))
        ended()
        assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == first
        assert counts(harness, fake, 'create') == [1]
