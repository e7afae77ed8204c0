"""The demo's tickets, and how its fake provider answers them."""

from __future__ import annotations

from collections import Counter

import pytest

from pydantic_ai_batch.cli.demo.answers import answer_triage, triage_by_keywords
from pydantic_ai_batch.cli.demo.tickets import Ticket, load_tickets
from pydantic_ai_batch.cli.demo.triage import Category, Triage
from pydantic_ai_batch.testing import FakeRequest, FakeTool, FakeToolCall

TICKETS = {ticket.id: ticket for ticket in load_tickets()}


def asked(ticket: Ticket, **given: object) -> FakeRequest:
    fields: dict[str, object] = {
        'provider': 'openai',
        'endpoint': '/v1/responses',
        'custom_id': 'a-0',
        'model': 'gpt-5-mini',
        'body': {},
        'text': ticket.prompt,
        'attempt': 0,
    }
    return FakeRequest(**{**fields, **given})  # pyright: ignore[reportArgumentType]


def test_there_are_enough_tickets_and_none_is_twice() -> None:
    assert len(TICKETS) == len(load_tickets()) == 36
    assert len({ticket.prompt for ticket in TICKETS.values()}) == 36
    assert all(ticket.customer and ticket.subject and ticket.body for ticket in TICKETS.values())


def test_tickets_keep_line_breaks_commas_quotes_and_every_script() -> None:
    bodies = ''.join(ticket.body for ticket in TICKETS.values())
    assert TICKETS['T-009'].body.count('\n') >= 5
    assert 'I, write, like, this' in bodies
    assert '"label created"' in bodies
    assert '💰' in bodies
    assert '注文番号' in bodies


def test_the_fake_understands_every_ticket_but_the_two_that_say_nothing() -> None:
    answers = {id: triage_by_keywords(ticket.prompt) for id, ticket in TICKETS.items()}
    assert [id for id, triage in answers.items() if triage.category is Category.OTHER] == ['T-005', 'T-026']
    assert set(Counter(triage.category for triage in answers.values())) == set(Category)
    assert {triage.priority for triage in answers.values()} == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ('id', 'category', 'priority', 'summary'),
    [
        ('T-001', 'billing', 2, 'Was charged twice and wants one charge refunded (order 20417).'),
        ('T-004', 'hardware', 1, 'Reports a device that smoked (TB-200).'),
        ('T-009', 'hardware', 2, 'Got a broken device, needs a correct invoice and cannot log in (H2, order 20533).'),
        ('T-020', 'sales', 4, 'Asks when a product is back in stock (K7).'),
        ('T-035', 'shipping', 3, 'Wants a delivery two weeks later (order 20688).'),
    ],
)
def test_the_fake_triages_as_a_person_would(id: str, category: str, priority: int, summary: str) -> None:
    triage = triage_by_keywords(TICKETS[id].prompt)
    assert (triage.category, triage.priority, triage.summary) == (category, priority, summary)


def test_the_fake_answers_in_the_way_the_request_asks_for() -> None:
    ticket = TICKETS['T-001']
    called = answer_triage(asked(ticket, tools=(FakeTool('final_result', {}),)))
    assert isinstance(called, FakeToolCall)
    assert called.name == 'final_result'
    text = answer_triage(asked(ticket, output_schema={'type': 'object'}))
    assert isinstance(text, str)
    assert Triage.model_validate(called.arguments) == Triage.model_validate_json(text)
