"""Lists the batches that a provider has, of whatever program made them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic_ai.exceptions import ModelAPIError, UserError
from pydantic_ai.models import KnownModelName, Model
from pydantic_ai.models.batch import Batch

from .exceptions import NoBatchLane
from .lanes import LANES, Lane, lane_for
from .lanes.base import ListingIncomplete
from .lanes.names import canonical, model_of_lane
from .sync import running_loop


async def list_batches(model_or_lane: Model | KnownModelName | str) -> AsyncGenerator[Batch]:
    """The batches that a provider has for a credential, newest first. Makes a request for each page of its listing.

    What is listed are the batches of all programs, and of all models where the provider lists them together. Break off
    when you have seen enough.

    Args:
        model_or_lane: A model, its name, or the name of a lane, whose key is then taken from the environment.

    Raises:
        NoBatchLane: The model cannot be batched.
        UserError: There is no such model or lane, or no key, or the lane has no listing.
        ModelAPIError: The provider could not be asked, or its listing not be read to the end.
    """
    running_loop('`list_batches`')
    lane = lane_named(model_or_lane)
    try:
        async with lane.model, aclosing(lane.listing()) as batches:
            async for batch in batches:
                yield batch
    except ListingIncomplete as error:
        raise ModelAPIError(lane.model.model_name, f'The listing of {lane.info.title} is not whole: {error}') from error


def lane_named(model_or_lane: Model | KnownModelName | str) -> Lane:
    """The lane of a model or of a name, which may be that of the lane itself.

    Raises:
        NoBatchLane: The model cannot be batched.
        UserError: There is no such model or lane, or no key.
    """
    if isinstance(model_or_lane, str) and (name := canonical(model_or_lane)) in LANES:
        return lane_for(model_of_lane(name))
    try:
        return lane_for(model_or_lane)
    except NoBatchLane:
        raise
    except UserError as error:
        if not isinstance(model_or_lane, str) or ':' in model_or_lane:
            raise
        raise UserError(f'{error}. It is no lane either: there are {", ".join(LANES)}.') from error
