"""The demo's input: a file of support tickets of a shop that does not exist."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

_PLACES = (
    # Where the wheel puts the file, and where a checkout has it.
    Path(__file__).parents[1] / 'tickets.csv',
    Path(__file__).parents[4] / 'examples' / 'tickets.csv',
)


@dataclass(frozen=True)
class Ticket:
    """What a customer wrote."""

    id: str
    customer: str
    subject: str
    body: str

    @property
    def prompt(self) -> str:
        """The ticket as the agent gets it."""
        return f'Subject: {self.subject}\n\n{self.body}'


def load_tickets() -> list[Ticket]:
    """The tickets, in the order they came in."""
    path = next((place for place in _PLACES if place.is_file()), _PLACES[0])
    # Without `newline=''` the line breaks inside quoted fields would be rewritten.
    with path.open(encoding='utf-8', newline='') as file:
        return [Ticket(**row) for row in csv.DictReader(file)]
