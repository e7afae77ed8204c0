"""What one process knows of batches: one record each, forgotten when nobody needs it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic_ai.models.batch import Batch, BatchResult

from pydantic_ai_batch.flights import FlightKey, Flights

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def batch(name: str = 'b') -> Batch:
    return Batch(
        id=name,
        model_name='m',
        provider_name='p',
        group='g',
        status='in_progress',
        created_at=NOW,
        request_count=2,
        provider_details=None,
    )


def key(name: str = 'b', group: str = 'g') -> FlightKey:
    return 'openai', group, name


def result(custom_id: str, body: str = '{}') -> BatchResult:
    return BatchResult(custom_id=custom_id, status='succeeded', body=body)


def collected(flights: Flights, name: str, *custom_ids: str, body: str = '{}') -> None:
    """Let a batch of another process be read to its end."""
    for custom_id in custom_ids:
        flights.read(key(name), result(custom_id, body), taken=False)
    flights.ended(key(name), batch(name))


# Statuses


def test_a_status_is_served_only_if_it_was_read_after_the_one_that_asks():
    flights = Flights()
    assert flights.status(key(), 'asker 1', newer_than=None) is None
    flights.checked(key(), batch(), NOW)
    assert flights.status(key(), 'asker 2', newer_than=None) == (batch(), NOW)
    assert flights.status(key(), 'asker 3', newer_than=NOW - timedelta(seconds=1)) == (batch(), NOW)
    assert flights.status(key(), 'asker 4', newer_than=NOW) is None
    assert flights.status(key(), 'asker 5', newer_than=NOW + timedelta(days=1)) is None


def test_a_status_is_served_to_the_credential_that_read_it_alone():
    flights = Flights()
    flights.checked(key(group='one'), batch(), NOW)
    assert flights.status(key(group='two'), 'asker 6', newer_than=None) is None


def test_a_batch_that_was_only_submitted_has_no_status_to_serve():
    flights = Flights()
    flights.submitted(key(), batch(), ['a'])
    assert flights.status(key(), 'asker 7', newer_than=None) is None


def test_the_status_of_an_ended_batch_is_not_served_as_a_running_one():
    flights = Flights()
    flights.checked(key(), batch(), NOW)
    flights.ended(key(), batch())
    assert flights.status(key(), 'asker 8', newer_than=None) is None


# Results


def test_results_are_found_once_all_were_read():
    flights = Flights()
    flights.read(key(), result('a'), taken=False)
    assert flights.find(key(), 'a') is None
    flights.ended(key(), batch())
    assert flights.find(key(), 'a') == (batch(), result('a'), False)
    assert flights.find(key(), 'b') == (batch(), None, False)


def test_a_result_that_was_taken_is_not_mistaken_for_one_that_is_missing():
    flights = Flights()
    flights.read(key(), result('a'), taken=True)
    flights.ended(key(), batch())
    assert flights.find(key(), 'a') is None


def test_the_first_result_of_an_id_is_kept():
    flights = Flights()
    flights.read(key(), result('a', 'first'), taken=False)
    flights.read(key(), result('a', 'second'), taken=False)
    flights.ended(key(), batch())
    found = flights.find(key(), 'a')
    assert found is not None
    assert found[1] == result('a', 'first')


def test_results_are_found_by_the_credential_that_read_them_alone():
    flights = Flights()
    flights.read(key(group='one'), result('a'), taken=False)
    flights.ended(key(group='one'), batch())
    assert flights.find(key(group='two'), 'a') is None


# Withdrawing and leaving


def test_the_last_request_that_is_withdrawn_gives_the_batch_up_once():
    flights = Flights()
    flights.submitted(key(), batch(), ['a', 'b'])
    assert flights.withdraw(key(), 'a') is None
    assert flights.withdraw(key(), 'a') is None
    assert flights.withdraw(key(), 'b') == batch()
    assert flights.withdraw(key(), 'b') is None


def test_a_batch_that_others_made_is_never_given_up():
    flights = Flights()
    flights.checked(key(), batch(), NOW)
    assert flights.withdraw(key(), 'a') is None


def test_an_id_that_is_not_in_the_batch_gives_nothing_up():
    flights = Flights()
    flights.submitted(key(), batch(), ['a'])
    assert flights.withdraw(key(), 'not in it') is None
    assert flights.withdraw(key(group='of another key'), 'a') is None


def test_a_request_that_is_left_keeps_its_batch_from_being_given_up():
    flights = Flights()
    flights.submitted(key(), batch(), ['a', 'b'])
    flights.leave(key(), 'a')
    assert flights.withdraw(key(), 'b') is None


def test_an_ended_batch_is_not_given_up():
    flights = Flights()
    flights.submitted(key(), batch(), ['a'])
    flights.ended(key(), batch())
    assert flights.withdraw(key(), 'a') is None


def test_an_answered_request_wants_its_batch_no_more():
    flights = Flights()
    flights.submitted(key(), batch(), ['a', 'b'])
    flights.collected(key(), 'a')
    assert flights.withdraw(key(), 'b') == batch()


def test_what_was_made_here_is_said_once_at_its_end():
    flights = Flights()
    flights.submitted(key(), batch(), ['a'])
    assert flights.ended(key(), batch())
    assert not flights.ended(key(), batch())
    assert not flights.ended(key('of others'), batch('of others'))


# Forgetting


def test_the_batches_that_ended_longest_ago_are_forgotten():
    flights = Flights()
    for n in range(33):
        collected(flights, f'b{n}', 'a')
    assert flights.find(key('b0'), 'a') is None
    assert all(flights.find(key(f'b{n}'), 'a') for n in range(1, 33))


def test_a_batch_that_was_asked_for_lately_outlasts_others():
    flights = Flights()
    for n in range(32):
        collected(flights, f'b{n}', 'a')
    assert flights.find(key('b0'), 'a') is not None
    collected(flights, 'b32', 'a')
    assert flights.find(key('b0'), 'a') is not None
    assert flights.find(key('b1'), 'a') is None


def test_large_results_are_forgotten_earlier(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr('pydantic_ai_batch.flights._MAX_ENDED_BYTES', 1_000)
    flights = Flights()
    for n in range(4):
        collected(flights, f'b{n}', 'a', body='x' * 400)
    assert flights.find(key('b1'), 'a') is None
    assert flights.find(key('b2'), 'a') is not None
    assert flights.find(key('b3'), 'a') is not None


def test_a_batch_that_a_run_waits_for_is_never_forgotten():
    flights = Flights()
    flights.submitted(key('mine'), batch('mine'), ['a'])
    for n in range(2_000):
        flights.checked(key(f'running {n}'), batch(f'running {n}'), NOW)
        collected(flights, f'ended {n}', 'a')
    assert flights.wanted(key('mine'), 'a') == batch('mine')
    assert flights.withdraw(key('mine'), 'a') == batch('mine')


def test_the_running_batches_checked_longest_ago_are_forgotten():
    flights = Flights()
    for n in range(1_025):
        flights.checked(key(f'b{n}'), batch(f'b{n}'), NOW)
    assert flights.status(key('b0'), 'asker 9', newer_than=None) is None
    assert flights.status(key('b1'), 'asker 10', newer_than=None) is not None


def test_a_status_serves_each_request_once_so_that_every_check_makes_progress():
    flights = Flights()
    flights.checked(key(), batch(), NOW)
    assert flights.status(key(), 'r1', newer_than=None) is not None
    assert flights.status(key(), 'r1', newer_than=None) is None
    assert flights.status(key(), 'r2', newer_than=None) is not None
    flights.checked(key(), batch(), NOW)
    assert flights.status(key(), 'r1', newer_than=None) is not None
