"""Goes over all rows before anything is sent, so that whatever is wrong with them is said at once and costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import Model
from pydantic_ai.models.batch import BatchRequest

from pydantic_ai_batch.codec import refuse_settings
from pydantic_ai_batch.exceptions import NoBatchLane, ParameterConflict
from pydantic_ai_batch.lanes.base import Lane
from pydantic_ai_batch.wording import listed

from .base import RowSource
from .identity import check_ids, id_of
from .problems import SHOWN, Problem, problems_error
from .raw_requests import RawRequests
from .row_requests import FaultyRows, RowRequests
from .targets import Targets

_TURN = 1000
"""How many rows are looked at before other tasks get their turn."""

_WITHOUT_EFFECT = frozenset({'parallel_tool_calls', 'tool_choice', 'timeout', 'extra_headers'})
"""Settings that a request may lack for good reasons, or that are refused elsewhere."""


@dataclass
class Prepared:
    """Rows that can be sent."""

    source: RowSource
    requests: FaultyRows
    targets: Targets
    faults: list[Problem] = field(default_factory=list[Problem])
    """Rows that cannot, and get that for their error."""


async def prepare(
    source: RowSource, requests: RowRequests, model: Model | str | None, ask: Callable[[Lane], Lane]
) -> Prepared:
    """Look at every row, and refuse an input with which something is wrong.

    Args:
        source: The input, which was read.
        requests: Its requests.
        model: The model of the job, or its name; `None` if each row names its own.
        ask: Makes settings of the job known to a lane.

    Raises:
        InputProblems: Rows cannot be sent as they are. The message lists them.
        ParameterConflict: A parameter of a row has different values in two places.
        UserError: A model would silently drop a setting, or cannot be had.
        NoBatchLane: A model cannot be batched.
    """
    problems = [problem for problem in source.read() if problem.place is None]
    faults = [problem for problem in source.read() if problem.place is not None]
    problems += check_ids(source, requests.id_column)
    targets = Targets(model, ask)
    # What is wrong with the model of the job is wrong with no row.
    targets.check(raw=isinstance(requests, RawRequests))
    settings: dict[tuple[int, str], int] = {}
    conflicts: list[ParameterConflict] = []
    faulty = {problem.place for problem in faults}
    for row in source:
        if row.place % _TURN == _TURN - 1:
            await asyncio.sleep(0)
        try:
            parameters = requests.resolved(row, _id_or_number(source, row.place, requests.id_column))
            if row.place not in faulty:
                requests.check(row)
            targets.add(requests.model(row, parameters.model), requests.endpoint(row))
            target = targets.of_row[-1]
            for name in parameters.settings or ():
                settings.setdefault((target, name), row.place)
        except NoBatchLane:
            raise
        except ParameterConflict as conflict:
            conflicts.append(conflict)
            problems.append(Problem(row.line, conflict.message))
        except UserError as error:
            problems.append(Problem(row.line, error.message))
    if problems:
        alone = len(conflicts) == len(problems)
        raise _all_of(conflicts) if alone else problems_error(source, problems)
    for target, lane in enumerate(targets.lanes):
        refuse_settings(lane.model, None)
        await requests.begin(lane, targets.of_row.index(target))
    await _refuse_dropped(requests, targets, settings)
    named = {problem.place: problem.at(source) for problem in faults if problem.place is not None}
    return Prepared(source, FaultyRows(requests, named), targets, faults)


def _all_of(conflicts: Sequence[ParameterConflict]) -> ParameterConflict:
    """One error for all conflicts, which stands for the first."""
    first = conflicts[0]
    if len(conflicts) == 1:
        return first
    lines = [conflict.message for conflict in conflicts[:SHOWN]]
    if len(conflicts) > SHOWN:
        lines.append(f'… and {len(conflicts) - SHOWN:,} more')
    message = '\n'.join([f'{len(conflicts):,} rows have conflicting parameters:', *lines])
    return ParameterConflict(message, parameter=first.parameter, row=first.row, places=first.places)


def _id_or_number(source: RowSource, place: int, id_column: str | None) -> str:
    try:
        return id_of(source[place], id_column)
    except UserError:
        # What is wrong with it is told elsewhere.
        return str(place + 1)


async def _refuse_dropped(requests: RowRequests, targets: Targets, settings: dict[tuple[int, str], int]) -> None:
    """Refuse settings that make no difference to what a model sends.

    Raises:
        UserError: There are some, or some that a batch cannot honour.
    """
    dropped: dict[str, list[str]] = {}
    for (target, name), place in settings.items():
        lane = targets.lanes[target]
        try:
            request = await requests.request(lane, place)
            refuse_settings(lane.model, request.model_settings)
            if name in _WITHOUT_EFFECT or await _makes_a_difference(lane, request, name):
                continue
        except ModelAPIError:
            # What is wrong with the row itself is its own error, when it is sent.
            continue
        dropped.setdefault(targets.names[target], []).append(f'`{name}`')
    if dropped:
        said = '; '.join(f'{model!r} takes no {listed(names)}' for model, names in dropped.items())
        raise UserError(f'A setting would be dropped without a word: {said}. Leave it out. Nothing was sent.')


async def _makes_a_difference(lane: Lane, request: BatchRequest, name: str) -> bool:
    settings = dict(request.model_settings or {})
    settings.pop(name, None)
    if name in (lane.model.settings or {}):
        # The model's own takes its place, which may be the same.
        return True
    bare = replace(request, model_settings=settings or None)
    return (await lane.encode(request)) != (await lane.encode(bare))
