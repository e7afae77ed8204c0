"""`FakeProviders`: providers on loopback, for tests."""

from __future__ import annotations

from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from starlette.applications import Starlette

from pydantic_ai_batch.clock import SYSTEM_CLOCK, Clock
from pydantic_ai_batch.testing.answers import AnswerFunction
from pydantic_ai_batch.testing.anthropic_api import FakeAnthropic
from pydantic_ai_batch.testing.auto import auto_answer
from pydantic_ai_batch.testing.azure_api import FakeAzure
from pydantic_ai_batch.testing.bedrock_api import FakeBedrock
from pydantic_ai_batch.testing.calls import Call
from pydantic_ai_batch.testing.deepinfra_api import FakeDeepInfra
from pydantic_ai_batch.testing.fireworks_api import FakeFireworks
from pydantic_ai_batch.testing.google_api import FakeGoogle
from pydantic_ai_batch.testing.groq_api import FakeGroq
from pydantic_ai_batch.testing.loopback import LoopbackServer
from pydantic_ai_batch.testing.mistral_api import FakeMistral
from pydantic_ai_batch.testing.openai_api import FakeOpenAI
from pydantic_ai_batch.testing.provider import FakeProvider
from pydantic_ai_batch.testing.scene import Scene
from pydantic_ai_batch.testing.together_api import FakeTogether
from pydantic_ai_batch.testing.vertex_api import FakeVertex
from pydantic_ai_batch.testing.xai_api import FakeXAI


class FakeProviders:
    """Batch APIs of providers, served on 127.0.0.1 in a thread, for tests without keys, cost or waiting.

    ```python
    with FakeProviders(clock=clock, processing=timedelta(minutes=5)) as fake:
        async with fake.openai.client() as client:
            ...
        assert fake.openai.count('create') == 1
    ```

    What a fake shows follows from the clock alone: a batch is created, runs and ends as the clock goes by, whether
    anyone looks or not, and with a hand-moved clock nothing takes time.
    """

    def __init__(
        self,
        answer: AnswerFunction | None = None,
        *,
        clock: Clock | None = None,
        processing: timedelta = timedelta(seconds=90),
        ordered: bool = False,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        """Nothing listens before `start()`, or the `with` block.

        Args:
            answer: Answers the requests; `None` is [`auto_answer`][pydantic_ai_batch.testing.auto_answer].
            clock: What time goes by; `None` is the machine's clock.
            processing: How long a batch takes: a tenth of it to validate the input, a tenth at the end to write the
                results. Longer than the provider's window, and batches expire.
            ordered: Whether results come in the order of the requests. By default they come in another, except for
                Gemini's, where it is promised that they do (see `google.ordered`).
            seed: What that other order is drawn from.
            port: Port to listen on; 0 is a free one.
        """
        self._scene = Scene(clock or SYSTEM_CLOCK, answer or auto_answer, processing, ordered, seed)
        self._port = port
        self._server: LoopbackServer | None = None
        self.openai = FakeOpenAI(self._scene)
        """The fake OpenAI."""
        self.anthropic = FakeAnthropic(self._scene)
        """The fake Anthropic."""
        self.google = FakeGoogle(self._scene)
        """The fake Gemini API."""
        self.groq = FakeGroq(self._scene)
        """The fake Groq."""
        self.mistral = FakeMistral(self._scene)
        """The fake Mistral."""
        self.azure = FakeAzure(self._scene)
        """The fake Azure OpenAI."""
        self.deepinfra = FakeDeepInfra(self._scene)
        """The fake DeepInfra."""
        self.together = FakeTogether(self._scene)
        """The fake Together."""
        self.fireworks = FakeFireworks(self._scene)
        """The fake Fireworks."""
        self.xai = FakeXAI(self._scene)
        """The fake xAI."""
        self.vertex = FakeVertex(self._scene)
        """The fake Vertex AI."""
        self.bedrock = FakeBedrock(self._scene)
        """The fake Amazon Bedrock."""
        fakes: tuple[FakeProvider[Any], ...] = (
            self.openai,
            self.anthropic,
            self.google,
            self.groq,
            self.mistral,
            self.azure,
            self.deepinfra,
            self.together,
            self.fireworks,
            self.xai,
            self.vertex,
            self.bedrock,
        )
        self.providers: dict[str, FakeProvider[Any]] = {fake.name: fake for fake in fakes}
        """Every fake by its name."""

    @property
    def calls(self) -> list[Call]:
        """Every call to any of the fakes, in the order they were answered."""
        return self._scene.calls.of()

    @property
    def answer(self) -> AnswerFunction:
        """Answers the requests that are run from now on."""
        return self._scene.answer

    @answer.setter
    def answer(self, answer: AnswerFunction | None) -> None:
        self._scene.answer = answer or auto_answer

    @property
    def processing(self) -> timedelta:
        """How long a batch takes that is created from now on."""
        return self._scene.processing

    @processing.setter
    def processing(self, processing: timedelta) -> None:
        self._scene.processing = processing

    def start(self) -> None:
        """Listen, in a thread. What was stopped goes on at the same port, and has forgotten nothing.

        Raises:
            RuntimeError: They are started already.
            OSError: The port is taken.
        """
        if self._server is not None:
            raise RuntimeError('`FakeProviders` is started already.')
        self._server = LoopbackServer(
            Starlette(routes=[route for fake in self.providers.values() for route in fake.routes]), port=self._port
        )
        self._server.start()
        self._port = self._server.port
        self._scene.address = f'http://127.0.0.1:{self._port}'

    def stop(self) -> None:
        """Close every connection and end the thread. What was recorded stays; nothing happens if they are stopped.

        Raises:
            Exception: What the answer function raised, the first time it did.
        """
        self._close()
        if self._scene.mistakes:
            raise self._scene.mistakes.pop(0)

    def _close(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None
            self._scene.address = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)
