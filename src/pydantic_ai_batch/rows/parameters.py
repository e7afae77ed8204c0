"""Where the parameters of a request come from: the row, its settings, the job and the job's settings.

No place has precedence. A parameter that has different values in two of them is a mistake somewhere, which nobody but
the user can decide, so that it is refused before anything is paid for.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.settings import ModelSettings, merge_model_settings

from pydantic_ai_batch.exceptions import ParameterConflict

from .strict_json import parse_object

SETTINGS_FIELD = 'settings'
"""The field of a row that holds its settings: an object, or one as JSON text where all is text."""

_NAMES = {
    'model': ('model',),
    'temperature': ('temperature',),
    'max_tokens': ('max_tokens', 'max_output_tokens', 'max_completion_tokens', 'maxOutputTokens'),
}
"""The names that each parameter goes by."""

_PARAMETERS = {name: parameter for parameter, names in _NAMES.items() for name in names} | {'stream': 'stream'}
"""The parameter that a name is of. `stream` is none that can be set, wherever it is."""

_NUMBER = re.compile(r'[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?', re.ASCII)
_WHOLE = re.compile(r'[+-]?\d+', re.ASCII)

_ROW = 'the row'
_ROW_SETTINGS = "the row's settings"
_JOB = 'the job'
_JOB_SETTINGS = "the job's settings"


def parameter_columns(columns: Collection[str]) -> list[str]:
    """The columns whose values set what their rows are asked with."""
    return [name for name in columns if name in _PARAMETERS or name == SETTINGS_FIELD]


Given = list[tuple[str, str, Any]]
"""Places, the names that something has there, and its values."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a row's request is made with."""

    model: str | None
    """The model; `None` if nothing names one."""

    settings: dict[str, Any] | None
    """The framework's `ModelSettings`; `None` if there are none."""


@dataclass(frozen=True, kw_only=True)
class JobParameters:
    """The parameters of all rows of a job.

    Raises:
        ParameterConflict: A parameter has different values here and in `settings`.
        UserError: A value is out of its range, or none that the parameter takes.
    """

    model: str | None = None
    """The model, as `provider:name`."""

    temperature: float | None = None
    """The temperature of the answers."""

    max_tokens: int | None = None
    """The most tokens of an answer."""

    settings: Mapping[str, Any] | None = None
    """The other settings, as the framework's `ModelSettings`, which may have these as well."""

    def __post_init__(self) -> None:
        _ = self.resolved

    @cached_property
    def given(self) -> Given:
        """Every parameter that is set for the job, with its place and its name there."""
        named = {name: getattr(self, name) for name in _NAMES}
        return [*_given(_JOB, named), *_given(_JOB_SETTINGS, self.settings or {})]

    @cached_property
    def resolved(self) -> Parameters:
        """What the request of a row is made with that sets nothing itself."""
        return _parameters(_chosen(self.given, None), _others(self.settings))


def resolve(fields: Mapping[str, Any], row_id: str, job: JobParameters) -> Parameters:
    """The parameters of one row.

    Columns of their names are parameters. A value of nothing, or blank text, does not set one. Of its other settings, a
    row's go over the job's.

    Args:
        fields: The values of the row.
        row_id: Its ID, for messages.
        job: The parameters of all rows.

    Raises:
        ParameterConflict: A parameter has different values in two places, or under two names in one.
        UserError: A value is out of its range, or none that the parameter takes; or `stream` is set.
    """
    settings = _row_settings(fields, row_id)
    given = [*_given(_ROW, fields), *_given(_ROW_SETTINGS, settings)]
    if not given and not settings:
        return Parameters(job.resolved.model, dict(job.resolved.settings or {}) or None)
    chosen = _chosen([*job.given, *given], row_id)
    return _parameters(chosen, merge_model_settings(_others(job.settings), _others(settings)))


def _parameters(chosen: dict[str, Any], others: ModelSettings | None) -> Parameters:
    model = chosen.pop('model', None)
    return Parameters(model, {**(others or {}), **chosen} or None)


def _others(settings: Mapping[str, Any] | None) -> ModelSettings | None:
    """The settings that are none of the parameters."""
    others = {name: value for name, value in (settings or {}).items() if name not in _PARAMETERS}
    return cast('ModelSettings', others) or None


def _row_settings(fields: Mapping[str, Any], row_id: str) -> dict[str, Any]:
    value = fields.get(SETTINGS_FIELD)
    if _unset(value):
        return {}
    if isinstance(value, Mapping):
        return dict(cast('Mapping[str, Any]', value))
    if not isinstance(value, str):
        raise UserError(f'`{SETTINGS_FIELD}` of row {row_id!r} must be an object, not {value!r}.')
    try:
        return parse_object(value)
    except ValueError as error:
        raise UserError(f'`{SETTINGS_FIELD}` of row {row_id!r} must be a JSON object: {error}.') from None


def _unset(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _given(place: str, values: Mapping[str, Any]) -> Given:
    return [(place, name, values[name]) for name in _PARAMETERS if name in values and not _unset(values[name])]


def _chosen(given: Given, row: str | None) -> dict[str, Any]:
    """The value of each parameter that is set: that of the first place, as all are equal."""
    values: dict[str, dict[str, Any]] = {}
    for place, name, value in given:
        where = f'`{name}` of {place}'
        if (parameter := _PARAMETERS[name]) == 'stream':
            if value is not False:
                raise UserError(
                    f'{_whose(row)}{where} cannot be used in a batch, whose answers come whole and when they are done: '
                    'leave it out.'
                )
            continue
        try:
            values.setdefault(parameter, {})[where] = _READERS[parameter](value)
        except ValueError as error:
            raise UserError(f'{_whose(row)}{where} must be {error}, not {value!r}.') from None
    for parameter, places in values.items():
        if len(set(places.values())) > 1:
            said = ', '.join(f'{value!r} in {place}' for place, value in places.items())
            raise ParameterConflict(
                f'{_whose(row)}`{parameter}` has different values: {said}. Nothing was sent: set it in one '
                'place, or rename the column if it is none of the request.',
                parameter=parameter,
                row=row,
                places=places,
            )
    return {parameter: next(iter(places.values())) for parameter, places in values.items()}


def _whose(row: str | None) -> str:
    return '' if row is None else f'Row {row!r}: '


def _model(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError('the name of a model, as `provider:name`')
    return value.strip()


def _temperature(value: Any) -> float:
    if (number := _number(value)) is None:
        raise ValueError('a number')
    return number


def _max_tokens(value: Any) -> int:
    number = _number(value)
    if number is None or number != int(number) or number < 1:
        raise ValueError('a whole number of at least 1')
    return int(number)


def _number(value: Any) -> float | None:
    """A number that is finite, or the text of one; `None` if it is neither."""
    if isinstance(value, str):
        text = value.strip()
        if _NUMBER.fullmatch(text) is None:
            return None
        value = int(text) if _WHOLE.fullmatch(text) and len(text) < 19 else float(text)
    if isinstance(value, bool) or not isinstance(value, Real | Decimal) or not math.isfinite(value):
        return None
    return value if isinstance(value, int | float) else float(value)


_READERS = {'model': _model, 'temperature': _temperature, 'max_tokens': _max_tokens}
