"""The providers that the demo goes to: a model of each, and the key it needs."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pydantic_ai.models import Model, infer_model


@dataclass(frozen=True)
class Provider:
    """A provider, as the demo needs to know it."""

    name: str
    """What pydantic-ai calls it, in responses and histories."""

    title: str

    prefix: str
    """What stands before the colon in the names of its models."""

    keys: tuple[str, ...]
    """The variables that its key may be in."""

    @property
    def variables(self) -> str:
        """The same, as words."""
        return ' or '.join(self.keys)

    @property
    def has_key(self) -> bool:
        """Whether a key is set."""
        return any(os.environ.get(key, '').strip() for key in self.keys)


PROVIDERS = (
    Provider('openai', 'OpenAI', 'openai-responses', ('OPENAI_API_KEY',)),
    Provider('anthropic', 'Anthropic', 'anthropic', ('ANTHROPIC_API_KEY',)),
    Provider('google', 'Google', 'google', ('GEMINI_API_KEY', 'GOOGLE_API_KEY')),
)


class UnknownProvider(ValueError):
    """A model is named whose provider the demo does not know."""


@dataclass(frozen=True)
class Triager:
    """A model that triages tickets."""

    provider: Provider
    model_name: str

    @property
    def id(self) -> str:
        """The name that pydantic-ai makes the model of."""
        return f'{self.provider.prefix}:{self.model_name}'


def triager(model: str) -> Triager:
    """The model with this name.

    Raises:
        UnknownProvider: It is none of the demo's providers.
    """
    prefix, _, name = model.partition(':')
    for provider in PROVIDERS:
        if prefix == provider.prefix and name:
            return Triager(provider, name)
    known = ', '.join(f'`{provider.prefix}:…`' for provider in PROVIDERS)
    raise UnknownProvider(f'The demo has no model {model!r}. It knows {known}.')


def triager_of(provider_name: str, model_name: str) -> Triager:
    """The model that a batch was submitted with, by what its handle says."""
    return Triager(next(provider for provider in PROVIDERS if provider.name == provider_name), model_name)


def titles(triagers: Iterable[Triager]) -> str:
    """The providers by their titles, as a list in a sentence."""
    *first, last = dict.fromkeys(triager.provider.title for triager in triagers)
    return f'{", ".join(first)} and {last}' if first else last


@asynccontextmanager
async def opened(triagers: Iterable[Triager]) -> AsyncGenerator[dict[Triager, Model]]:
    """The models, at the endpoints and with the keys that the environment names, until the block ends."""
    async with AsyncExitStack() as stack:
        yield {triager: await stack.enter_async_context(infer_model(triager.id)) for triager in triagers}
