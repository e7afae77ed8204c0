"""Which model each row is for: that of the job, or one that the row names itself."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model

from pydantic_ai_batch.lanes.base import Lane
from pydantic_ai_batch.named_model import lane_of_model

from .raw_requests import on_endpoint


@dataclass
class Targets:
    """The lanes of the rows of an input, each made once."""

    model: Model | str | None
    """The model of the job, or its name; `None` if each row names its own."""

    ask: Callable[[Lane], Lane]
    """Makes settings of the job known to a lane, such as the window."""

    lanes: list[Lane] = field(default_factory=list[Lane])
    """Those of the rows, in the order of their first row."""

    names: list[str] = field(default_factory=list[str])
    """The names of their models as they were given."""

    of_row: array[int] = field(default_factory=lambda: array('H'))
    """Which of them each row is for."""

    _known: dict[tuple[str | None, str | None], int | UserError] = field(
        default_factory=dict[tuple[str | None, str | None], int | UserError]
    )

    def add(self, name: str | None, endpoint: str | None = None) -> Lane:
        """Note what the next row is for, and return its lane.

        Args:
            name: The name of the model, as resolved of the row and the job.
            endpoint: The path of the API, if the row names one.

        Raises:
            UserError: Nothing names a model, or it is none.
            NoBatchLane: It cannot be batched.
        """
        if (place := self._known.get((name, endpoint))) is None:
            place = self._known[name, endpoint] = self._made(name, endpoint)
        if isinstance(place, UserError):
            raise place
        self.of_row.append(place)
        return self.lanes[place]

    def check(self, *, raw: bool) -> None:
        """Refuse a model of the job that is none, or cannot be batched.

        Args:
            raw: Whether the rows are requests as they are sent, for which the name of a provider will do.

        Raises:
            UserError: It is none, or takes no such rows.
            NoBatchLane: It cannot.
        """
        if self.model is None or (raw and isinstance(self.model, str) and ':' not in self.model):
            return
        lane = lane_of_model(self.model)
        if raw:
            on_endpoint(lane, '')

    def _made(self, name: str | None, endpoint: str | None) -> int | UserError:
        asked = self.model if isinstance(self.model, Model) else name
        if asked is None:
            return UserError('it names no model, and the job does not either: give one (`model`, `--model`)')
        try:
            lane = self.ask(lane_of_model(asked))
            lane = lane if endpoint is None else on_endpoint(lane, endpoint)
        except UserError as error:
            # The same for each of its rows, and looked at once.
            return error
        self.lanes.append(lane)
        self.names.append(asked if isinstance(asked, str) else asked.model_id)
        return len(self.lanes) - 1

    def places(self, target: int) -> list[int]:
        """The rows that are for one of the lanes."""
        return [place for place, of in enumerate(self.of_row) if of == target]
