"""What a progress display adds up and shows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.batch import Batch
from rich.console import Console

from pydantic_ai_batch import BatchModelRequests, BatchRequest, model_request_batch
from pydantic_ai_batch.events import BatchEvent, EventKind, Reporter, Tally
from pydantic_ai_batch.progress import TerminalProgress, listener_of
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, FakeToolCall, ManualClock


def batch(name: str = 'batch_1', status: str = 'in_progress', **counts: int) -> Batch:
    return Batch(
        id=name,
        model_name='gpt-5-mini',
        provider_name='openai',
        group='g',
        status='in_progress',
        created_at=datetime(2030, 1, 1, tzinfo=UTC),
        request_count=3,
        provider_details={'status': status, 'request_counts': counts},
    )


def event(kind: EventKind, count: int = 1, of: Batch | None = None) -> BatchEvent:
    return BatchEvent(kind=kind, lane='openai', model_name='gpt-5-mini', count=count, batch=of)


def tally(*events: BatchEvent) -> Tally:
    counts = Tally()
    for happened in events:
        counts(happened)
    return counts


# Adding up


def test_requests_are_queued_until_they_are_in_a_batch_or_refused_or_withdrawn():
    counts = tally(event('queued', 10), event('withdrawn', 2), event('refused', 3), event('submitted', 4, batch()))
    assert (counts.queued, counts.failed, counts.submitted) == (1, 3, 4)


@pytest.mark.parametrize('kind', ['answered', 'failed', 'resubmitted', 'left'])
def test_an_outcome_counts_for_the_whole_and_for_its_batch(kind: EventKind):
    of = batch()
    counts = tally(event('queued', 3), event('submitted', 3, of), event(kind, 1, of), event(kind, 2, of))
    assert getattr(counts, kind) == 3
    assert getattr(counts.batches['batch_1'], kind) == 3
    assert counts.batches['batch_1'].done


def test_a_batch_is_done_when_all_of_its_requests_are_accounted_for():
    of = batch()
    counts = tally(event('submitted', 4, of), *[event(k, 1, of) for k in ('answered', 'failed', 'resubmitted')])
    assert not counts.batches['batch_1'].done
    counts(event('left', 1, of))
    assert counts.batches['batch_1'].done


def test_a_check_shows_the_batch_as_it_is_now():
    counts = tally(event('submitted', 3, batch()), event('checked', 1, batch(status='finalizing')))
    details = counts.batches['batch_1'].batch.provider_details
    assert details is not None
    assert details['status'] == 'finalizing'


def test_events_of_a_batch_of_another_process_add_no_batch():
    counts = tally(event('checked', 1, batch()), event('answered', 1, batch()))
    assert counts.answered == 1
    assert counts.batches == {}


def test_a_listener_that_raises_is_not_called_again(caplog: pytest.LogCaptureFixture):
    calls: list[BatchEvent] = []

    def listener(happened: BatchEvent) -> None:
        calls.append(happened)
        raise ValueError('broken display')

    report = Reporter(listener)
    for _ in range(3):
        report(BatchEvent(kind='queued', lane='openai', model_name='m'))
    assert len(calls) == 1
    assert 'broken display' in caplog.text


def test_a_batch_whose_requests_are_taken_over_one_by_one_counts_them_all():
    of = batch()
    counts = tally(event('submitted', 1, of), event('submitted', 1, of), event('answered', 1, of))
    assert counts.batches['batch_1'].submitted == 2
    assert not counts.batches['batch_1'].done


@pytest.mark.parametrize('kind', ['answered', 'failed', 'resubmitted', 'held', 'left'])
def test_the_events_of_requests_bring_their_batch_as_it_was_last_read(kind: EventKind):
    created, ended = batch(), replace(batch(status='completed'), status='ended')
    heard: list[BatchEvent] = []
    report = Reporter(heard.append)
    for happened in (event('submitted', 1, created), event('checked', 1, ended), event(kind, 1, created)):
        report(happened)
    assert heard[-1].batch == ended


def test_the_event_of_a_request_that_knows_more_than_the_last_check_did_is_left_as_it_is():
    created, ended = batch(), replace(batch(status='completed'), status='ended')
    heard: list[BatchEvent] = []
    report = Reporter(heard.append)
    for happened in (event('checked', 1, created), event('failed', 1, ended), event('failed', 1, created)):
        report(happened)
    assert [happened.batch for happened in heard] == [created, ended, ended]


def test_a_reporter_does_not_remember_every_batch_for_ever():
    report = Reporter(lambda happened: None)
    for n in range(3000):
        report(event('submitted', 1, batch(f'batch_{n}')))
    assert len(report._last_read) <= 1000


async def test_no_event_of_a_run_says_less_of_its_batch_than_the_one_before(clock: ManualClock, model_of: ModelOf):
    heard: list[BatchEvent] = []
    with FakeProviders(lambda request: FakeError(503, None, 'x') if not request.attempt else 'ok', clock=clock) as fake:
        agent = Agent(
            model_of(fake), capabilities=[BatchModelRequests(max_requests=2, progress=heard.append, clock=clock)]
        )
        await clock.run(asyncio.gather(agent.run('a'), agent.run('b')))
    outcomes = [happened for happened in heard if happened.kind in ('answered', 'resubmitted')]
    assert len(outcomes) == 4
    assert all(happened.batch is not None and happened.batch.status == 'ended' for happened in outcomes)


async def test_no_event_of_a_list_call_says_less_of_its_batch_than_the_one_before(
    clock: ManualClock, model_of: ModelOf
):
    heard: list[BatchEvent] = []
    with FakeProviders(lambda request: FakeError(503, None, 'x') if not request.attempt else 'ok', clock=clock) as fake:
        rows = [BatchRequest(custom_id=name, messages=[ModelRequest.user_text_prompt(name)]) for name in 'ab']
        await clock.run(model_request_batch(model_of(fake), rows, progress=heard.append, clock=clock))
    outcomes = [happened for happened in heard if happened.kind in ('answered', 'resubmitted')]
    assert len(outcomes) == 4
    assert all(happened.batch is not None and happened.batch.status == 'ended' for happened in outcomes)


# Functions that would do nothing


async def coroutine_function(happened: BatchEvent) -> None: ...


async def async_generator(happened: BatchEvent) -> AsyncIterator[BatchEvent]:
    yield happened


def generator(happened: BatchEvent) -> Iterator[BatchEvent]:
    yield happened


class Awaited:
    async def __call__(self, happened: BatchEvent) -> None: ...


NOT_PLAIN: dict[str, Any] = {
    'a function': coroutine_function,
    'a generator': generator,
    'an async generator': async_generator,
    'an object': Awaited(),
    'a method': Awaited().__call__,
    'a part': functools.partial(coroutine_function),
    'a part of an object': functools.partial(Awaited()),
}


@pytest.mark.parametrize('progress', NOT_PLAIN.values(), ids=NOT_PLAIN.keys())
def test_an_async_function_is_refused_before_anything_is_sent(progress: Any):
    with pytest.raises(UserError, match='pass a plain function'):
        BatchModelRequests(progress=progress)


@pytest.mark.parametrize('progress', [print, Tally(), [].append, functools.partial(print, 'x'), lambda event: None])
def test_a_plain_callable_is_taken_as_it_is(progress: Callable[[BatchEvent], None]):
    assert listener_of(progress) is progress


@pytest.mark.filterwarnings('error')
def test_a_function_that_turns_out_to_be_async_is_told_of_once_and_called_no_more(caplog: pytest.LogCaptureFixture):
    calls: list[BatchEvent] = []

    def listener(happened: BatchEvent) -> Any:
        calls.append(happened)
        return coroutine_function(happened)

    report = Reporter(listener)
    for _ in range(3):
        report(event('queued'))
    assert len(calls) == 1
    assert 'pass a plain function' in caplog.text


# Showing


def shown(*events: BatchEvent, width: int = 120, height: int = 24, clock: ManualClock | None = None) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, record=True)
    display = TerminalProgress(console, clock=clock or ManualClock())
    for happened in events:
        display.take(happened)
    console.print(display.render())
    return console.export_text()


def test_the_display_says_what_is_queued_submitted_answered_and_failed_in_each_batch():
    one, two = batch('batch_1'), batch('batch_2', 'finalizing', total=2, completed=1)
    text = shown(
        event('queued', 9),
        event('submitted', 3, one),
        event('submitted', 2, two),
        event('answered', 2, one),
        event('failed', 1, one),
        event('checked', 1, two),
    )
    head, first, second, *_ = text.splitlines()
    assert head.split() == ['queued', '4', 'submitted', '5', 'answered', '2', 'failed', '1']
    assert first.split()[:2] == ['batch_1', 'gpt-5-mini']
    assert first.rstrip().endswith('3/3  0:00:00  done, 1 failed')
    assert second.rstrip().endswith('1/2  0:00:00  finalizing')


def test_what_was_submitted_again_and_what_was_left_is_said():
    of = batch()
    text = shown(event('queued', 3), event('submitted', 3, of), event('resubmitted', 1, of), event('left', 2, of))
    assert 'resubmitted 1' in text
    assert '2 not waited for' in text


def many(*, running: int = 0, done: int = 0, failed: int = 0) -> list[BatchEvent]:
    events: list[BatchEvent] = []
    for kind, number in (('done', done), ('running', running), ('failed', failed)):
        for n in range(number):
            of = batch(f'{kind}_{n:02}')
            events.append(event('submitted', 1, of))
            if kind != 'running':
                events.append(event('answered' if kind == 'done' else 'failed', 1, of))
    return events


def test_of_many_batches_those_with_failures_and_those_under_way_come_first_and_the_others_are_counted():
    _, *lines = shown(*many(done=30, running=7, failed=3), width=80).splitlines()
    kinds = [line.split('_')[0] for line in lines]
    assert kinds == [*['failed'] * 3, *['running'] * 7, *['done'] * 2, '… and 28 more: 28 done']
    assert [line.split()[0] for line in lines[-3:-1]] == ['done_29', 'done_28']


def test_what_is_left_out_of_many_batches_is_told_by_kind():
    assert shown(*many(running=40), width=80).splitlines()[-1] == '… and 28 more: 28 under way'
    assert shown(*many(failed=14, running=1), width=80).splitlines()[-1] == '… and 3 more: 1 under way, 2 done'


@pytest.mark.parametrize('height', [4, 10, 24, 100])
def test_the_display_fits_on_the_terminal_and_cuts_nothing_off_without_saying_so(height: int):
    lines = shown(*many(running=40), width=80, height=height).splitlines()
    assert len(lines) < max(height, 4)
    assert '… and ' in lines[-1]


def test_batches_that_there_is_room_for_stay_in_their_order():
    _, *lines = shown(*many(done=4, running=4, failed=4)).splitlines()
    assert [line.split('_')[0] for line in lines] == [*['done'] * 4, *['running'] * 4, *['failed'] * 4]


LONG = batch('batch_6a8f0c1d2e3f4a5b6c7d8e9f0a1b2c3d')


@pytest.mark.parametrize('model_name', ['gpt-5-mini', 'claude-sonnet-4-5-20250929'])
@pytest.mark.parametrize('width', [40, 60, 80, 120])
def test_every_batch_has_one_line_however_narrow_the_terminal(width: int, model_name: str):
    batches = [replace(LONG, id=f'{n}{LONG.id}', model_name=model_name) for n in range(5)]
    events: list[BatchEvent] = []
    for of in batches:
        outcomes: list[EventKind] = ['failed', 'resubmitted', 'held', 'left']
        events += [event('submitted', 3000, of), *[event(kind, 750, of) for kind in outcomes]]
    lines = shown(*events, width=width).splitlines()
    assert [line[:2] for line in lines[-5:]] == ['0b', '1b', '2b', '3b', '4b']
    assert all('2250/3000  0:00:00' in line for line in lines[-5:])


@pytest.mark.parametrize('width', [60, 80])
def test_what_became_of_a_batch_is_said_before_its_whole_id_is(width: int):
    of = replace(LONG, model_name='claude-haiku-4-5')
    last = shown(event('submitted', 3, of), event('left', 3, of), width=width).splitlines()[-1]
    assert last.startswith('batch_6a8')
    assert last.rstrip().endswith('3 not waited for')


@pytest.mark.parametrize(
    ('outcomes', 'said'),
    [
        ({'answered': 3}, 'done'),
        ({'failed': 3}, 'done, 3 failed'),
        ({'resubmitted': 3}, '3 resubmitted'),
        ({'held': 3}, '3 waiting for room'),
        ({'left': 3}, '3 not waited for'),
        ({'answered': 1, 'resubmitted': 2}, 'done, 2 resubmitted'),
        ({'answered': 2, 'left': 1}, '1 not waited for'),
        ({'failed': 1, 'left': 2}, '1 failed, 2 not waited for'),
    ],
)
def test_a_batch_that_is_over_says_what_became_of_its_requests(outcomes: dict[EventKind, int], said: str):
    of = batch()
    text = shown(event('submitted', 3, of), *[event(kind, count, of) for kind, count in outcomes.items()])
    assert text.rstrip().endswith(f'/3  0:00:00  {said}')


async def test_the_age_of_a_batch_is_shown_and_stands_still_when_it_is_done(clock: ManualClock):
    console = Console(file=io.StringIO(), width=100)
    display = TerminalProgress(console, clock=clock)
    of = replace(batch(), created_at=datetime.fromtimestamp(clock.now(), UTC))

    def said() -> str:
        with console.capture() as capture:
            console.print(display.render())
        return capture.get()

    await clock.advance(7)
    display.take(event('submitted', 1, of))
    assert '0:00:07' in said()
    await clock.advance(26 * 3600)
    assert '26:00:07' in said()
    display.take(event('answered', 1, of))
    await clock.advance(3600)
    assert '26:00:07' in said()


@pytest.mark.parametrize(
    'created',
    [datetime(1970, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, 1, tzinfo=UTC), datetime(2029, 1, 1)],  # noqa: DTZ001
    ids=['unknown', 'ahead of the clock', 'in no time zone'],
)
async def test_a_batch_whose_creation_is_not_to_be_believed_is_as_old_as_it_is_known(
    created: datetime, clock: ManualClock
):
    console = Console(file=io.StringIO(), width=100, record=True)
    display = TerminalProgress(console, clock=clock)
    display.take(event('submitted', 1, replace(batch(), created_at=created)))
    await clock.advance(timedelta(minutes=5))
    console.print(display.render())
    assert '0:05:00' in console.export_text()


def test_it_is_drawn_once_a_second_and_at_once_when_it_begins():
    display = terminal()
    display(event('queued'))
    assert 'queued 1' in plain(display)
    assert display._live is not None
    assert display._live.refresh_per_second == 1
    display.stop()


def plain(display: TerminalProgress) -> str:
    """What was written to the terminal, without its colours."""
    assert isinstance(display.console.file, io.StringIO)
    return re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]', '', display.console.file.getvalue())


def test_what_was_left_behind_is_not_drawn_again_when_more_comes():
    display = terminal()
    for turn in range(4):
        before = len(plain(display))
        of = batch(f'batch_{turn}')
        for happened in (event('queued'), event('submitted', 1, of), event('answered', 1, of)):
            display(happened)
        assert display._live is None
        drawn = plain(display)[before:]
        assert [n for n in range(4) if f'batch_{n}' in drawn] == [turn]
        assert drawn.count(f'batch_{turn}') == 1
    assert (display.tally.submitted, display.tally.answered) == (4, 4)
    assert display.tally.batches == {}


def test_what_is_still_under_way_when_it_is_stopped_is_drawn_again():
    display = terminal()
    for happened in (event('submitted', 1, batch('batch_1')), event('submitted', 1, batch('batch_2'))):
        display(happened)
    display(event('answered', 1, batch('batch_1')))
    display.stop()
    before = len(plain(display))
    display(event('queued'))
    assert 'batch_2' in plain(display)[before:]
    assert 'batch_1' not in plain(display)[before:]
    display.stop()


async def test_each_turn_of_an_agent_leaves_its_batch_once(clock: ManualClock, model_of: ModelOf):
    def calls_twice(request: FakeRequest) -> str | FakeToolCall:
        calls = [item for item in request.body['input'] if item.get('type') == 'function_call']
        return FakeToolCall('look', {}) if len(calls) < 2 else 'done'

    with FakeProviders(calls_twice, clock=clock) as fake:
        display = terminal()
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_requests=1, progress=display, clock=clock)])

        @agent.tool_plain
        def look() -> str:
            return 'seen'

        await clock.run(agent.run('x'))
        drawn = plain(display)
        assert len(fake.openai.batches) == 3
        assert [drawn.count(f'{batch_id[:20]}') for batch_id in fake.openai.batches] == [1, 1, 1]


def test_a_provider_that_counts_more_than_was_sent_fills_the_bar_and_no_more():
    text = shown(event('submitted', 3, batch(completed=900)), event('checked', 1, batch(completed=900)))
    assert '3/3' in text


def test_names_from_the_provider_are_no_markup():
    assert '[red]x[/red]' in shown(event('submitted', 1, batch('[red]x[/red]')))


def test_a_log_gets_a_line_when_a_batch_is_submitted_and_one_when_it_has_come_back():
    file = io.StringIO()
    display = TerminalProgress(Console(file=file, width=40))
    of = batch()
    for happened in (
        event('queued', 3),
        event('submitted', 3, of),
        *[event('checked', 1, of)] * 5,
        event('answered', 2, of),
        event('failed', 1, of),
        event('checked', 1, of),
    ):
        display(happened)
    assert file.getvalue().splitlines() == [
        'batch batch_1: 3 requests of gpt-5-mini submitted',
        'batch batch_1: 2 answered, 1 failed, 0 resubmitted',
    ]


def test_the_setting_asks_for_a_display_or_a_callable_or_nothing():
    calls: list[BatchEvent] = []
    assert listener_of(False) is None
    assert isinstance(listener_of(True), TerminalProgress)
    assert listener_of(calls.append) == calls.append


# Ending, with real runs


def terminal() -> TerminalProgress:
    return TerminalProgress(Console(file=io.StringIO(), force_terminal=True, width=100))


def echo(request: FakeRequest) -> str | FakeError:
    return FakeError(400, 'invalid_prompt', 'no') if request.text == 'bad' else request.text


async def test_the_display_ends_with_the_last_answer(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        display = terminal()
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(progress=display, clock=clock)])
        runs = [agent.run(text) for text in ('a', 'bad', 'b')]
        await clock.run(asyncio.gather(*runs, return_exceptions=True))
        assert display.idle
        assert display._live is None
        assert (display.tally.answered, display.tally.failed) == (2, 1)


@pytest.mark.parametrize('moment', ['queued', 'waiting'])
async def test_the_display_ends_when_its_runs_are_cancelled(moment: str, clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        display = terminal()
        batching = BatchModelRequests(max_requests=2, max_wait=None, progress=display, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(1 if moment == 'queued' else 2)]
        if moment == 'queued':
            await clock.advance(1)
        else:
            await clock.until_asleep()
        assert not display.idle
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        assert display.idle
        assert display._live is None


async def test_the_display_ends_when_its_runs_end_pending(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        display = terminal()
        batching = BatchModelRequests(max_requests=1, progress=display, clock=clock)
        agent: Agent[None, Any] = Agent(
            model_of(fake), output_type=[str, PendingModelResponse], capabilities=[batching]
        )
        await clock.run(agent.run('x'))
        assert display.idle
        assert display._live is None


async def test_the_display_ends_with_the_runs_that_go_on_after_the_block(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake, Agent.using_sleep(clock.sleep):
        display = terminal()
        batching = BatchModelRequests(max_requests=2, max_wait=None, progress=display, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
            await clock.until_asleep()
        await clock.run(asyncio.gather(*runs))
        assert display.idle
        assert display._live is None
        assert display.tally.answered == 2


async def test_the_display_ends_when_a_check_fails_for_good(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('status', 'http', status=403)
        display = terminal()
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_requests=2, progress=display, clock=clock)])
        await clock.run(asyncio.gather(agent.run('a'), agent.run('b'), return_exceptions=True))
        assert display.idle
        assert display._live is None
        assert display.tally.failed == 2


async def test_the_display_ends_when_runs_are_cancelled_during_the_create(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        fake.openai.inject('create', 'lose_reply')
        fake.openai.inject('batch', 'hide', seconds=20)
        display = terminal()
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_requests=2, progress=display, clock=clock)])
        goes, stays = asyncio.ensure_future(agent.run('goes')), asyncio.ensure_future(agent.run('stays'))
        await clock.until_asleep()
        goes.cancel()
        await clock.run(stays)
        assert display.idle
        assert display._live is None


# In a program

SCRIPT = """
    import sys
    from datetime import timedelta
    from pydantic_ai import ModelRequest
    from pydantic_ai_batch import BatchRequest, model_request_batch_sync

    rows = [BatchRequest(custom_id=text, messages=[ModelRequest.user_text_prompt(text)]) for text in ('a', 'bad', 'b')]
    brief = timedelta(milliseconds=20)
    outcomes = model_request_batch_sync(
        'openai-responses:gpt-5-mini', rows, poll_interval=brief, max_poll_interval=brief, progress=sys.argv[1] == 'on'
    )
    print(len(outcomes), 'outcomes')
"""


def command(fake: FakeProviders, setting: str) -> dict[str, Any]:
    """How the program is started, in an environment in which rich goes by what it sees."""
    told = ('FORCE_COLOR', 'NO_COLOR', 'TTY_COMPATIBLE', 'TTY_INTERACTIVE')
    environment = {name: value for name, value in os.environ.items() if name not in told}
    environment |= {**fake.openai.environment, 'TERM': 'xterm', 'COLUMNS': '120', 'LINES': '40'}
    return {'args': [sys.executable, '-c', textwrap.dedent(SCRIPT), setting], 'env': environment, 'text': True}


def on_a_terminal(fake: FakeProviders, setting: str) -> tuple[str, str]:
    """What the program prints, and what it draws on the terminal that its standard error is."""
    pty = pytest.importorskip('pty', reason='there are no such terminals here')
    ours, theirs = pty.openpty()
    with subprocess.Popen(**command(fake, setting), stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        drawn = b''
        # When nobody has the terminal any more, reading it is an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 4096):
                drawn += chunk
        os.close(ours)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 0, drawn
    return printed, drawn.decode()


def test_a_list_call_draws_its_progress_in_the_terminal():
    with FakeProviders(echo, processing=timedelta(seconds=0.5)) as fake:
        printed, drawn = on_a_terminal(fake, 'on')
        assert printed == '3 outcomes\n'
        [batch_id] = fake.openai.batches
        text = re.sub(r'\x1b\[[\d;?]*[A-Za-z]', '', drawn)
        # Drawn over, in place.
        assert '\x1b[2K' in drawn
        assert 'queued 3  submitted 0  answered 0  failed 0' in text
        assert batch_id[:20] in text
        last = [line.strip() for line in text.splitlines() if line.strip()][-2:]
        assert last[0].startswith('queued 0  submitted 3  answered 2  failed 1')
        assert re.search(r'3/3  0:00:\d\d  done, 1 failed$', last[1])


def test_a_list_call_writes_its_progress_into_a_log_in_lines():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        done = subprocess.run(**command(fake, 'on'), capture_output=True, timeout=60, check=True)
        [batch_id] = fake.openai.batches
        assert done.stdout == '3 outcomes\n'
        assert done.stderr.splitlines() == [
            f'batch {batch_id}: 3 requests of gpt-5-mini submitted',
            f'batch {batch_id}: 2 answered, 1 failed, 0 resubmitted',
        ]


def test_a_list_call_that_is_not_asked_shows_nothing():
    with FakeProviders(echo, processing=timedelta(0)) as fake:
        assert on_a_terminal(fake, 'off') == ('3 outcomes\n', '')
