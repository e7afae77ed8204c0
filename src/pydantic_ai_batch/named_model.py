"""Finds the lane of the model that a call was given, by itself or by its name, and says what is wrong if it cannot."""

from __future__ import annotations

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model

from .lanes import Lane, lane_for


def lane_of_model(model: Model | KnownModelName | str) -> Lane:
    """The lane of a model that a call was given.

    Raises:
        UserError: It is no model, or the name of none.
        NoBatchLane: It cannot be batched.
    """
    if not isinstance(model, Model | str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UserError(f'A model, or its name, comes first, and not a `{type(model).__name__}`.')
    return lane_for(model)


def lane_of_job(name: str, job_id: str) -> Lane:
    """The lane of the model that a job was submitted with, by its name.

    Raises:
        UserError: The name alone does not make the model.
    """
    try:
        return lane_of_model(name)
    except UserError as error:
        raise UserError(
            f'Job {job_id!r} was submitted with {name!r}, which cannot be made from its name here ({error}): pass '
            '`model=` with the model that it was submitted with.'
        ) from error
