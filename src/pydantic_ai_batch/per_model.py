"""Keeps what was made for a model, such as its shadow, for as long as the model lives."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic_ai.models import Model
from pydantic_ai.models.wrapper import WrapperModel

T = TypeVar('T')


def innermost(model: Model) -> Model:
    """The model inside any wrappers, such as one for instrumentation."""
    while isinstance(model, WrapperModel):
        model = model.wrapped
    return model


@dataclass(frozen=True)
class _Kept(Generic[T]):
    model: weakref.ref[Model]
    client: object
    value: T


class PerModel(Generic[T]):
    """A value for each model, by its identity, as models cannot be hashed. Safe to use from several threads.

    A model whose client was exchanged counts as another one.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept[T]] = {}

    def get(self, model: Model) -> T | None:
        """What is kept for `model`, if anything."""
        with self._lock:
            kept = self._kept.get(id(model))
        if kept is None or kept.model() is not model or kept.client is not _client(model):
            return None
        return kept.value

    def keep(self, model: Model, value: T) -> T:
        """Keep `value` for `model`, and return it."""
        key = id(model)
        alive = weakref.ref(model, lambda _: self._kept.pop(key, None))
        with self._lock:
            self._kept[key] = _Kept(alive, _client(model), value)
        return value


def _client(model: Model) -> object:
    return getattr(model, 'client', None)
