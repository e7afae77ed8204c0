"""The fake DeepInfra: OpenAI's shape at its own address."""

from __future__ import annotations

from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.openai_bodies import CHAT


class FakeDeepInfra(FakeOpenAI):
    """DeepInfra's Files and Batch APIs, and its Chat Completions endpoint."""

    name = 'deepinfra'
    prefix = '/deepinfra/v1/openai'
    endpoints = (CHAT,)

    @property
    def environment(self) -> dict[str, str]:
        """The key. There is no variable for the address."""
        return {'DEEPINFRA_API_KEY': 'test'}

    def live_path(self, endpoint: str) -> str:
        """Where an endpoint answers live."""
        return endpoint.removeprefix('/v1')
