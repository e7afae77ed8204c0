"""A batch that runs by the clock.

Nothing runs in the background: a batch catches up with the clock whenever someone looks at it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai_batch.testing.answers import FakeError, FakeRequest
from pydantic_ai_batch.testing.faults import Fault
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.timetable import Phase, timetable


@dataclass(frozen=True)
class FakeRow:
    """One request of a batch, as it was submitted."""

    index: int
    """Its place in the input, from 0."""
    custom_id: str
    """The id it was given."""
    body: dict[str, Any]
    """The provider body."""
    size: int
    """Bytes of it in the input, of which tokens are estimated."""


@dataclass(frozen=True)
class RowResult:
    """How one row that was run came out."""

    row: FakeRow
    request: FakeRequest
    answer: dict[str, Any] | FakeError | None
    """The provider body of the answer, the failure, or `None` if the row is to be missing from the results."""


@dataclass(frozen=True)
class Submission:
    """A batch as it was handed in."""

    id: str
    project: str
    endpoint: str
    model: str | None
    metadata: dict[str, str] | None
    requests: Sequence[FakeRow]
    errors: list[dict[str, Any]]
    """What is wrong with the input, in the provider's words."""
    faults: Sequence[Fault]
    line_faults: Sequence[Fault]


class FakeBatch:
    """A batch that was created on a fake provider. What it says is true at the time the clock shows."""

    def __init__(
        self,
        submission: Submission,
        scene: Scene,
        *,
        number: int,
        window: float,
        words: Mapping[Phase, str],
        execute: Callable[[FakeRow], RowResult],
    ) -> None:
        self.id = submission.id
        """The provider's id of it."""
        self.project = submission.project
        """The project whose keys can see it."""
        self.endpoint = submission.endpoint
        """Path of the API that every row is for."""
        self.model = submission.model
        """The model of its rows, where a batch has but one."""
        self.metadata = submission.metadata
        """The labels it was created with."""
        self.requests = submission.requests
        """Its rows, in the order of the input. Empty if a line of the input is refused."""
        self.errors = submission.errors
        """What is wrong with the input, in the provider's words. Empty if it is valid."""
        self.created_at = scene.clock.now()
        """When it was created, in seconds since the epoch."""
        self.expires_at = self.created_at + window
        """When its window ends, in seconds since the epoch."""
        self.hidden_until = self.created_at
        """Until when a listing does not show it, in seconds since the epoch."""
        self.line_faults = submission.line_faults
        self._scene = scene
        self._words = dict(words)
        self._execute = execute
        self._results: list[RowResult] = []
        self._results_after: float | None = None
        self._timetable = timetable(
            len(self.requests),
            created_at=self.created_at,
            processing=scene.processing.total_seconds(),
            window=window,
            invalid=bool(self.errors),
            faults=submission.faults,
        )
        shuffle = None if scene.ordered else random.Random(f'{scene.seed}:{number}')
        self._order = _order(len(self.requests), self._timetable.done, shuffle)
        for fault in submission.faults:
            if fault.name == 'expire':
                self.expires_at = self._timetable.ended_at
            elif fault.name == 'hide':
                self.hidden_until = self.created_at + fault['seconds']
            elif fault.name == 'delay_results':
                self._results_after = fault['seconds']
            elif fault.name == 'status_word':
                replaced = fault['when'] or words[Phase.RUNNING]
                self._words = {phase: fault['word'] if word == replaced else word for phase, word in words.items()}

    @property
    def phase(self) -> Phase:
        """Where it is now."""
        return self._timetable.phase(self._scene.clock.now())

    @property
    def status(self) -> str:
        """The provider's word for where it is now."""
        return self._words[self.phase]

    @property
    def ended(self) -> bool:
        """Whether it is over, in whichever way."""
        return self._scene.clock.now() >= self._timetable.ended_at

    @property
    def has_results(self) -> bool:
        """Whether it is over, and its results are there."""
        return self._scene.clock.now() >= self._timetable.ended_at + (self._results_after or 0)

    @property
    def entered(self) -> dict[Phase, float]:
        """The phases that it has been in by now, and when it entered each, in seconds since the epoch."""
        return self._timetable.entered(self._scene.clock.now())

    def run(self) -> None:
        """Run the rows that are to be finished by now."""
        with self._scene.lock:
            done = self._timetable.done_by(self._scene.clock.now())
            for index in self._order[len(self._results) : done]:
                self._results.append(self._execute(self.requests[index]))

    @property
    def results(self) -> list[RowResult]:
        """The rows that are finished by now, in the order they finished, which is not that of the input."""
        with self._scene.lock:
            self.run()
            return list(self._results)

    @property
    def unfinished(self) -> list[FakeRow]:
        """The rows that have not run by now."""
        ran = {result.row.index for result in self.results}
        return [row for row in self.requests if row.index not in ran]

    @property
    def counts(self) -> dict[str, int]:
        """`total`, `completed` and `failed` rows as of now; all 0 until the input is valid, or if none are told."""
        if Phase.RUNNING not in self.entered or self._results_after is not None:
            return {'total': 0, 'completed': 0, 'failed': 0}
        results = self.results
        failed = sum(isinstance(result.answer, FakeError) for result in results)
        return {'total': len(self.requests), 'completed': len(results) - failed, 'failed': failed}

    def cancel(self) -> None:
        """Stop it now: no further row runs, and it is over after a tenth of its processing time.

        Nothing happens to a batch that is over or being cancelled already.
        """
        with self._scene.lock:
            if self.phase in (Phase.VALIDATING, Phase.RUNNING, Phase.FINALIZING):
                self._timetable = self._timetable.cancelled(self._scene.clock.now(), len(self.results))

    def __repr__(self) -> str:
        return f'<{type(self).__name__} {self.id} {self.status}, {len(self.requests)} requests>'


def _order(total: int, done: int, shuffle: random.Random | None) -> list[int]:
    """The order rows finish in.

    If it ends early, the rows that are finished are the first of the input, so that a test knows which.
    """
    first, rest = list(range(done)), list(range(done, total))
    if shuffle is not None:
        shuffle.shuffle(first)
        shuffle.shuffle(rest)
    return first + rest
