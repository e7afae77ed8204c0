"""What a progress display adds up and shows."""

from __future__ import annotations

import asyncio
import io
from datetime import UTC, datetime
from typing import Any

import pytest
from conftest import ModelOf
from pydantic_ai import Agent, PendingModelResponse
from pydantic_ai.models.batch import Batch
from rich.console import Console

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.events import BatchEvent, EventKind, Reporter, Tally
from pydantic_ai_batch.progress import TerminalProgress, listener_of
from pydantic_ai_batch.testing import FakeError, FakeProviders, FakeRequest, ManualClock


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


# Showing


def shown(*events: BatchEvent, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, record=True)
    display = TerminalProgress(console)
    for happened in events:
        display.tally(happened)
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
    assert first.rstrip().endswith('3/3  done, 1 failed')
    assert second.rstrip().endswith('1/2  finalizing')


def test_what_was_submitted_again_and_what_was_left_is_said():
    of = batch()
    text = shown(event('queued', 3), event('submitted', 3, of), event('resubmitted', 1, of), event('left', 2, of))
    assert 'resubmitted 1' in text
    assert '2 not waited for' in text


def test_of_many_batches_those_that_go_on_are_shown():
    events: list[BatchEvent] = []
    for n in range(40):
        of = batch(f'batch_{n:02}')
        events.append(event('submitted', 1, of))
        if n % 2:
            events.append(event('answered', 1, of))
    lines = shown(*events).splitlines()[1:]
    assert 0 < len(lines) <= 12
    assert all(int(line.split()[0].removeprefix('batch_')) % 2 == 0 for line in lines)


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


async def test_the_display_ends_when_the_block_does(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(echo, clock=clock) as fake:
        display = terminal()
        batching = BatchModelRequests(max_requests=2, max_wait=None, progress=display, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        async with batching:
            runs = [asyncio.ensure_future(agent.run(str(n))) for n in range(2)]
            await clock.until_asleep()
        await clock.advance(0)
        assert display.idle
        assert display._live is None
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)


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
