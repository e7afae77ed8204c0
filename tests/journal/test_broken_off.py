"""What is cut off, cancelled or fails at an awkward moment is neither lost nor paid for twice."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lanes.harness import Harness, echo
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelRequestTimeout, UnexpectedModelBehavior, UserError
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import (
    BatchModelRequests,
    Journal,
    cancel_batch,
    check_batch,
    collect_batch,
    submit_batch,
    wait_batch,
)
from pydantic_ai_batch.exceptions import BatchNotCancellable, JournalError, JournalMiss
from pydantic_ai_batch.journal import store as stores
from pydantic_ai_batch.journal.ledger import Ledger
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock

from .scenes import (
    ANSWERS,
    CREATE,
    ROWS,
    LaneModel,
    Way,
    Wire,
    another_process,
    back_to,
    billed,
    by_agents,
    by_job,
    by_list,
    counts,
    ended,
    forgotten,
    given_up,
    killed,
    killed_while_waiting,
    outcome_of,
    query,
    requests_of,
    settled,
    stepped_until,
    until_waiting,
)

one_lane = pytest.mark.parametrize('harness', ['responses'], indirect=True)


class Breaking:
    """A connection that fails at one statement, while it is told to."""

    def __init__(self, store: stores.Store, statement: str) -> None:
        self.broken = True
        self._connection: Any = store._connection
        self._statement = statement
        store._connection = self  # pyright: ignore[reportAttributeAccessIssue]

    def execute(self, sql: str, *values: Any) -> Any:
        if self.broken and sql == self._statement:
            raise sqlite3.OperationalError('database or disk is full')
        return self._connection.execute(sql, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def down_at_first(request: FakeRequest) -> str | FakeError:
    return echo(request) if request.attempt else FakeError(500, 'server_error', 'Down.')


def two_turns(request: FakeRequest) -> str | FakeToolCall:
    return echo(request) if request.tool_results else FakeToolCall('look_up', {'number': 7})


def look_up(number: int) -> str:
    """Look a number up."""
    return f'number {number}'


# Runs


@one_lane
async def test_a_run_that_is_cancelled_before_its_batch_is_written_down_is_not_in_it(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(by_list(lane_model(fake), ['of an earlier run'], path, clock), clock)
    batching = BatchModelRequests(journal=path, max_requests=2, max_wait=None, clock=clock)
    agent = Agent(lane_model(fake), capabilities=[batching])
    # The batch waits for a moment, as the journal has a request that none has matched.
    runs = [asyncio.ensure_future(agent.run(row)) for row in ROWS[:2]]
    await clock.until_asleep()
    await settled()
    await given_up(runs[0])
    assert (await clock.run(runs[1])).output == ANSWERS[1]
    assert ROWS[0] not in billed(harness, fake)
    assert await clock.run(by_agents(lane_model(fake), ROWS[:1], path, clock)) == ANSWERS[:1]
    assert billed(harness, fake) == ['of an earlier run', *ROWS[:2]]


@one_lane
@pytest.mark.parametrize('later', [False, True], ids=['in the same process', 'by the next start'])
async def test_a_run_that_is_cancelled_while_its_batch_is_written_down_is_paid_for_once(
    later: bool,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    intend, task = Ledger.intend, asyncio.ensure_future(asyncio.sleep(0))

    async def late(self: Ledger, *values: Any) -> None:
        task.cancel()
        await asyncio.sleep(0.05)
        await intend(self, *values)

    monkeypatch.setattr(Ledger, 'intend', late)
    agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(journal=path, max_requests=1, clock=clock)])
    task = asyncio.ensure_future(agent.run(ROWS[0]))
    await asyncio.gather(clock.run(asyncio.wait((task,))), return_exceptions=True)
    await asyncio.sleep(0.2)
    monkeypatch.setattr(Ledger, 'intend', intend)
    if later:
        ended()
    assert (await clock.run(agent.run(ROWS[0]))).output == ANSWERS[0]
    assert billed(harness, fake) == ROWS[:1]


async def test_a_run_that_times_out_in_its_second_turn_is_made_again_without_paying_for_the_first(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path, hurry: Callable[[float], None]
):
    with FakeProviders(two_turns, clock=clock) as fake:
        batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
        limit = ModelSettings(request_timeout=60)
        agent = Agent(lane_model(fake), tools=[look_up], capabilities=[batching], model_settings=limit)
        run = asyncio.ensure_future(agent.run('row 0'))
        await stepped_until(lambda: counts(harness, fake, 'create') == [2], run, clock)
        await settled()
        hurry(60)
        with pytest.raises(ModelRequestTimeout):
            await run
        again = await clock.run(Agent(lane_model(fake), tools=[look_up], capabilities=[batching]).run('row 0'))
        assert again.output == 'answer to row 0'
        assert counts(harness, fake, 'create', 'cancel') == [2, 0]


async def test_a_run_that_a_tool_fails_is_made_again_without_paying_for_its_first_turn(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    broken = True

    def look_up(number: int) -> str:
        """Look a number up."""
        if broken:
            raise KeyError(number)
        return f'number {number}'

    with FakeProviders(two_turns, clock=clock) as fake:
        batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
        agent = Agent(lane_model(fake), tools=[look_up], capabilities=[batching])
        with pytest.raises(KeyError):
            await clock.run(agent.run('row 0'))
        broken = False
        assert (await clock.run(agent.run('row 0'))).output == 'answer to row 0'
        assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_run_that_fails_for_what_it_was_answered_is_answered_anew(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
    agent = Agent(lane_model(fake), output_type=int, retries=0, capabilities=[batching])
    for _ in range(2):
        with pytest.raises(UnexpectedModelBehavior):
            await clock.run(agent.run('row 0'))
    assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_run_inside_a_tool_that_outlives_the_run_around_it_is_let_go_of_too(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeToolCall:
        asks = request.text == 'row 0' and not request.tool_results
        return FakeToolCall('ask', {'what': 'this'}) if asks else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        batching = BatchModelRequests(journal=path, max_requests=1, clock=clock)
        inner_agent, inner = Agent(lane_model(fake), capabilities=[batching]), list[asyncio.Future[Any]]()

        async def ask(what: str) -> str:
            """Ask somebody."""
            inner.append(asyncio.ensure_future(inner_agent.run(what)))
            return (await asyncio.shield(inner[-1])).output

        outer = Agent(lane_model(fake), tools=[ask], capabilities=[batching])
        run = asyncio.ensure_future(outer.run('row 0'))
        await stepped_until(lambda: counts(harness, fake, 'create') == [2], run, clock)
        await given_up(run)
        await clock.run(inner[0])
        assert (await clock.run(outer.run('row 0'))).output == 'answer to row 0'
        assert counts(harness, fake, 'create') == [3]


@one_lane
@pytest.mark.parametrize('share', [False, True], ids=['each its own', 'share'])
async def test_a_request_that_cannot_be_encoded_again_is_let_go_of(
    share: bool,
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    with FakeProviders(down_at_first, clock=clock) as fake:
        model = lane_model(fake)
        batching = BatchModelRequests(journal=Journal(path, share=share), max_requests=1, clock=clock)
        agent = Agent(model, capabilities=[batching])
        encode, calls = type(model).batch_encode, list[int]()

        async def failing(self: Any, request: Any) -> Any:
            calls.append(len(calls))
            if len(calls) == 2:
                raise ConnectionError('an image of the prompt cannot be fetched any more')
            return await encode(self, request)

        monkeypatch.setattr(type(model), 'batch_encode', failing)
        with pytest.raises(Exception, match='cannot be fetched'):
            await clock.run(agent.run('row 0'))
        if share:
            other = another_process()
            began = clock.monotonic()
            assert await clock.run(by_list(model, ['row 0'], Journal(path, share=True), clock)) == ['answer to row 0']
            assert clock.monotonic() - began < 3600
            back_to(other)
        else:
            assert (await clock.run(agent.run('row 0'))).output == 'answer to row 0'
        assert billed(harness, fake) == ['row 0']


# Lists and jobs


@one_lane
@pytest.mark.parametrize('way', [by_list, by_job], ids=['list', 'job'])
async def test_a_call_that_is_cancelled_twice_lets_go_of_its_requests(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    caplog: pytest.LogCaptureFixture,
):
    reached, opened = wire.gate('after', 'POST', harness)
    task = asyncio.ensure_future(way(lane_model(fake), ROWS, path, clock))
    await reached.wait()
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.05)
    wire.clear()
    opened.set()
    await asyncio.gather(task, return_exceptions=True)
    await settled()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert billed(harness, fake) == ROWS


@one_lane
async def test_a_job_that_cannot_be_written_down_is_returned_all_the_same(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    caplog: pytest.LogCaptureFixture,
):
    disk = Breaking(stores.store_of(path), 'COMMIT')
    disk.broken = False
    wire.before('POST', CREATE[harness.provider], lambda: setattr(disk, 'broken', True))
    model = lane_model(fake)
    job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
    for call in (check_batch, wait_batch):
        job = await clock.run(call(job, model, journal=path, clock=clock))
    assert 'database or disk is full' in caplog.text
    disk.broken = False
    outcomes = await clock.run(collect_batch(job, requests_of(ROWS), model, journal=path, clock=clock))
    assert [outcome_of(outcome) for outcome in outcomes] == ANSWERS
    assert counts(harness, fake, 'create') == [1]


@one_lane
async def test_a_submission_that_is_cancelled_while_its_job_is_written_down_is_found_again(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    keep_job, task = Ledger.keep_job, asyncio.ensure_future(asyncio.sleep(0))

    async def cancelled(self: Ledger, *values: Any) -> None:
        task.cancel()
        await keep_job(self, *values)

    monkeypatch.setattr(Ledger, 'keep_job', cancelled)
    task = asyncio.ensure_future(submit_batch(lane_model(fake), requests_of(ROWS), journal=path, clock=clock))
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    monkeypatch.setattr(Ledger, 'keep_job', keep_job)
    assert await clock.run(by_job(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [1]


@one_lane
async def test_one_404_does_not_send_the_requests_of_a_job_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=5)) as fake:
        await clock.run(submit_batch(lane_model(fake), requests_of(ROWS), journal=path, clock=clock))
        ended()
        await clock.advance(60)
        harness.fake(fake).inject('status', 'http', status=404)
        journal = Journal(path, resend_lost=True)
        await clock.run(submit_batch(lane_model(fake), requests_of(ROWS), journal=journal, clock=clock))
        assert counts(harness, fake, 'create') == [1]


async def test_a_job_that_was_gone_for_another_key_can_be_cancelled(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    harness.needs('cancel')
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=10)) as fake:
        model = lane_model(fake, 'one')
        job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
        for _ in range(6):
            await clock.advance(360)
            job = await check_batch(job.id, lane_model(fake, 'two'), journal=path, clock=clock)
        assert job.status == 'gone'
        await cancel_batch(job.id, model, journal=path, clock=clock)
        assert counts(harness, fake, 'cancel') == [1]


# What others have to do with it


@one_lane
async def test_an_answer_to_a_request_that_another_reader_gave_up_is_found_again(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    def answer(request: FakeRequest) -> str | FakeError:
        return down_at_first(request) if request.text == 'row 0' else echo(request)

    with FakeProviders(answer, clock=clock) as fake:
        model = lane_model(fake)
        job = await clock.run(submit_batch(model, requests_of(ROWS), journal=path, clock=clock))
        ended()
        slow = {'poll_interval': timedelta(hours=1), 'max_poll_interval': timedelta(hours=2)}
        task = await until_waiting(by_list(model, ROWS, path, clock, **slow), clock)
        await clock.advance(1800)
        # For this one, the failure stands; the list sends the request again.
        [first, *_] = await collect_batch(job.id, model=model, journal=path, clock=clock)
        assert isinstance(first, Exception)
        assert await clock.run(task) == ANSWERS
        ended()
        assert await clock.run(by_list(model, ROWS, path, clock)) == ANSWERS
        assert billed(harness, fake) == ROWS


@one_lane
async def test_what_was_sent_goes_before_an_equal_request_that_was_not(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    # A clock of its own, which stands still: `clock.run` would jump over its wait while a request is on its way.
    its_own = ManualClock()
    batching = BatchModelRequests(journal=path, max_requests=100, max_wait=timedelta(hours=5), clock=its_own)
    agent = Agent(lane_model(fake), capabilities=[batching])
    queued = await until_waiting(asyncio.gather(*[agent.run(row) for row in ROWS]), its_own)
    first = another_process()
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    back_to(first)
    killed()
    await given_up(queued)
    assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert billed(harness, fake) == ROWS


async def test_the_same_prompts_with_the_keys_of_two_projects_are_each_found_with_its_own(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(echo, clock=clock) as fake:
        models = [lane_model(fake, key) for key in ('one', 'two')]
        await killed_while_waiting(
            asyncio.wait([asyncio.ensure_future(by_list(model, ROWS[:2], path, clock)) for model in models]), clock
        )
        for model in reversed(models):
            assert await clock.run(by_list(model, ROWS[:2], path, clock)) == ANSWERS[:2]
        assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_batch_that_another_process_waits_for_is_not_cancelled(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path, wire: Wire
):
    journal = Journal(path, share=True, on_cancel='cancel')
    reached, opened = wire.gate('after', 'POST', harness)
    first = asyncio.ensure_future(by_list(lane_model(fake), ROWS, journal, clock))
    await reached.wait()
    store = another_process()
    second = asyncio.ensure_future(by_list(lane_model(fake), ROWS, journal, clock))
    await clock.until_asleep()
    first.cancel()
    await asyncio.sleep(0.05)
    wire.clear()
    opened.set()
    await asyncio.gather(first, return_exceptions=True)
    store.close()
    assert await clock.run(second) == ANSWERS
    assert counts(harness, fake, 'create', 'cancel') == [1, 0]


@one_lane
async def test_a_job_in_a_batch_that_another_process_waits_for_is_not_cancelled(
    harness: Harness, lane_model: LaneModel, clock: ManualClock, path: Path
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=5)) as fake:
        await killed_while_waiting(by_list(lane_model(fake), ROWS, path, clock), clock)
        waiting = await until_waiting(by_list(lane_model(fake), ROWS[1:], path, clock), clock)
        store = another_process()
        job = await clock.run(submit_batch(lane_model(fake), requests_of(ROWS[:1]), journal=path, clock=clock))
        with pytest.raises(BatchNotCancellable, match='Another process waits'):
            await cancel_batch(job, lane_model(fake), journal=path, clock=clock)
        back_to(store)
        assert await clock.run(waiting) == ANSWERS[1:]
        assert counts(harness, fake, 'create', 'cancel') == [1, 0]


# The file


@one_lane
async def test_a_batch_that_could_not_be_written_down_is_once_it_can_be(
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
    path: Path,
    wire: Wire,
    caplog: pytest.LogCaptureFixture,
):
    with FakeProviders(echo, clock=clock, processing=timedelta(hours=3)) as fake:
        disk = Breaking(stores.store_of(path), 'COMMIT')
        disk.broken = False
        wire.before('POST', CREATE[harness.provider], lambda: setattr(disk, 'broken', True))
        task = asyncio.ensure_future(by_list(lane_model(fake), ROWS, path, clock))
        await stepped_until(lambda: counts(harness, fake, 'status')[0] >= 2, task, clock)
        disk.broken = False
        wire.clear()
        assert await clock.run(task) == ANSWERS
        ended()
        forgotten(harness, fake)
        await clock.advance(timedelta(days=40))
        assert await clock.run(by_list(lane_model(fake), ROWS, path, clock)) == ANSWERS
        assert counts(harness, fake, 'create') == [1]


@one_lane
async def test_an_operation_that_fails_undoes_nothing_of_those_that_share_its_transaction(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    store = stores.store_of(path)
    gate, inside = threading.Event(), threading.Event()
    store.post(lambda connection: (inside.set(), gate.wait()))
    inside.wait()
    # What is asked for from now on is done together.
    task = asyncio.ensure_future(by_list(lane_model(fake), ROWS, path, clock))
    for _ in range(500):
        if not store._operations.empty():
            break
        await asyncio.sleep(0.01)

    def failing(connection: sqlite3.Connection) -> None:
        raise JournalError('as of a strict journal')

    failed, room = store.post(failing), store.compact()
    gate.set()
    assert await clock.run(task) == ANSWERS
    assert str(failed.exception()) == 'as of a strict journal'
    assert room.exception() is None
    assert counts(harness, fake, 'create') == [1]
    assert len(query(path, 'SELECT id FROM requests')) == len(ROWS)


@one_lane
async def test_pruning_for_which_there_is_no_room_forgets_and_says_so(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    ended()
    Breaking(stores.store_of(path), 'VACUUM')
    await clock.run(by_list(lane_model(fake), ['new'], path, clock))
    await clock.advance(timedelta(days=1))
    pruned = await asyncio.to_thread(Journal(path).prune)
    assert pruned in (0, len(ROWS))
    assert 'could not be given back' in caplog.text


@one_lane
async def test_jobs_in_flight_are_not_pruned(harness: Harness, lane_model: LaneModel, path: Path):
    clock = ManualClock(datetime.now(UTC) - timedelta(hours=3))
    with FakeProviders(echo, clock=clock) as fake:
        job = await clock.run(submit_batch(lane_model(fake), requests_of(ROWS), journal=path, clock=clock))
        ended()
        assert Journal(path).prune() == 0
        job = await clock.run(wait_batch(job.id, lane_model(fake), journal=path, clock=clock))
        outcomes = await clock.run(collect_batch(job.id, model=lane_model(fake), journal=path, clock=clock))
        assert [outcome_of(outcome) for outcome in outcomes] == ANSWERS
        ended()
        # When its requests are forgotten, so is it.
        assert Journal(path).prune() == len(ROWS)
        with pytest.raises(UserError, match='has no job'):
            await check_batch(job.id, lane_model(fake), journal=path, clock=clock)


@one_lane
async def test_a_strict_journal_refuses_after_an_equal_call_was_cancelled_and_made_again(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    await killed_while_waiting(by_list(lane_model(fake), ['a', 'b'], path, clock), clock)
    journal = Journal(path, strict=True)
    for _ in range(3):
        await given_up(await until_waiting(by_list(lane_model(fake), ['a'], journal, clock), clock))
    with pytest.raises(JournalMiss):
        await clock.run(by_list(lane_model(fake), ['b of today'], journal, clock))


@one_lane
@pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
async def test_requests_that_were_never_sent_are_no_miss(
    way: Way, harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    batching = BatchModelRequests(journal=path, max_requests=100, max_wait=timedelta(hours=5), clock=clock)
    agent = Agent(lane_model(fake), capabilities=[batching])
    queued = await until_waiting(asyncio.gather(*[agent.run(row) for row in ROWS]), clock)
    killed()
    await given_up(queued)
    outcomes = await clock.run(way(lane_model(fake), ['another'], Journal(path, strict=True), clock))
    assert outcomes == ['answer to another']


# What is said


@one_lane
@pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
async def test_a_request_that_is_made_again_after_its_answer_is_warned_of_and_close_takes_it_over(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert 'answered before' not in caplog.text
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert caplog.text.count('equal to one which this process was answered before') == 1
    assert counts(harness, fake, 'create') == [2]
    Journal(path).close()
    assert await clock.run(way(lane_model(fake), ROWS, path, clock)) == ANSWERS
    assert counts(harness, fake, 'create') == [2]


@one_lane
async def test_a_process_that_makes_the_requests_of_another_one_that_runs_is_told(
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    store = another_process()
    await clock.run(by_list(lane_model(fake), ROWS, path, clock))
    assert caplog.text.count('with `Journal(path, share=True)` they would share them') == 1
    back_to(store)


@one_lane
@pytest.mark.parametrize('way', [by_list, by_agents], ids=['list', 'agents'])
async def test_what_is_taken_over_and_what_goes_on_is_said_once_for_each_batch(
    way: Way,
    harness: Harness,
    lane_model: LaneModel,
    fake: FakeProviders,
    clock: ManualClock,
    path: Path,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level('INFO', logger='pydantic_ai_batch')
    await given_up(await until_waiting(way(lane_model(fake), ROWS, path, clock), clock))
    assert caplog.text.count('goes on: run this again with the same journal to collect it') == 1
    ended()
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert caplog.text.count('of an earlier run is taken over from the journal journal.db') == 1
    ended()
    await clock.run(way(lane_model(fake), ROWS, path, clock))
    assert caplog.text.count('are read from the journal journal.db') == 1


@one_lane
async def test_answers_from_the_journal_cost_nothing_again(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders, clock: ManualClock, path: Path
):
    for start in range(3):
        batching = BatchModelRequests(journal=path, max_requests=len(ROWS), max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS]))
        stats = batching.stats()
        assert (stats.answered, stats.stored, stats.unpriced) == (len(ROWS), len(ROWS) if start else 0, 0)
        assert bool(stats.cost) == (not start)
        ended()
