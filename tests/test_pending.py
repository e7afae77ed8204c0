"""Runs that end while their request waits, and are taken up again from their stored history."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import ModelOf
from pydantic import BaseModel
from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import ModelHTTPError, SuspendedResponseExpired, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.models.wrapper import WrapperModel

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.exceptions import batch_of
from pydantic_ai_batch.testing import FakeProviders, FakeRequest, FakeToolCall, ManualClock


def batched(clock: ManualClock, **settings: Any) -> BatchModelRequests:
    return BatchModelRequests(clock=clock, **settings)


def pending_agent(model: Model, *capabilities: AbstractCapability[Any]) -> Agent[None, str | PendingModelResponse]:
    return Agent(model, output_type=[str, PendingModelResponse], capabilities=capabilities)


def stored(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The history as a database or a queue gives it back."""
    return ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(messages))


async def submit(
    clock: ManualClock, agent: Agent[None, str | PendingModelResponse], *prompts: str
) -> list[list[ModelMessage]]:
    results = await clock.run(asyncio.gather(*[agent.run(prompt) for prompt in prompts]))
    assert all(isinstance(result.output, PendingModelResponse) for result in results)
    return [stored(result.all_messages()) for result in results]


async def test_a_run_that_allows_it_ends_after_the_submission(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    (history,) = await submit(clock, pending_agent(model, batched(clock)), 'hello')
    assert [call.operation for call in fake.calls] == ['upload', 'create']
    response = history[-1]
    assert isinstance(response, ModelResponse)
    assert response.state == 'suspended'
    assert next(iter(fake.openai.batches)) in (response.provider_response_id or '')


async def test_a_stored_history_is_collected_by_another_instance(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: f'about {request.text}', clock=clock) as fake:
        histories = await submit(clock, pending_agent(model_of(fake), batched(clock)), 'cats', 'dogs')
        await clock.advance(timedelta(hours=1))
        agent = pending_agent(model_of(fake), batched(clock))
        results = [await agent.run(message_history=history) for history in histories]
        assert [result.output for result in results] == ['about cats', 'about dogs']
        assert fake.openai.count('create') == 1


async def test_a_run_that_finds_its_batch_running_ends_pending_again_after_one_check(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    agent = pending_agent(model, batched(clock))
    (history,) = await submit(clock, agent, 'hello')
    result = await agent.run(message_history=history)
    assert isinstance(result.output, PendingModelResponse)
    assert fake.openai.count('status') == 1
    assert len(result.all_messages()) == len(history)


async def test_a_resumed_run_that_does_not_allow_pending_waits_for_the_answer(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    (history,) = await submit(clock, pending_agent(model, batched(clock)), 'hello')
    agent = Agent(model, capabilities=[batched(clock)])
    with Agent.using_sleep(clock.sleep):
        result = await clock.run(agent.run(message_history=history))
    assert isinstance(result.output, str)
    assert fake.openai.count('create') == 1


async def test_going_through_many_stored_histories_costs_one_status_request_a_sweep_and_one_download(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(lambda request: request.text, clock=clock, processing=timedelta(hours=2)) as fake:
        histories = await submit(clock, pending_agent(model_of(fake), batched(clock)), *map(str, range(30)))
        agent = pending_agent(model_of(fake), batched(clock))
        for sweep in range(1, 4):
            await clock.advance(timedelta(minutes=20))
            results = [await agent.run(message_history=history) for history in histories]
            histories = [stored(result.all_messages()) for result in results]
            assert fake.openai.count('status') == sweep
        await clock.advance(timedelta(hours=2))
        results = [await agent.run(message_history=history) for history in histories]
        assert [result.output for result in results] == [str(n) for n in range(30)]
        assert fake.openai.count('status') == 4
        assert fake.openai.count('download') == 1


async def test_a_sweep_costs_one_status_request_also_when_the_clock_was_set_back(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock, processing=timedelta(hours=5)) as fake:
        histories = await submit(clock, pending_agent(model_of(fake), batched(clock)), *map(str, range(10)))
        agent = pending_agent(model_of(fake), batched(clock))
        for sweep in range(1, 4):
            clock.set_wall(-600)
            results = [await agent.run(message_history=history) for history in histories]
            histories = [stored(result.all_messages()) for result in results]
            assert fake.openai.count('status') <= sweep * 10
            await clock.advance(timedelta(minutes=20))


async def test_histories_resumed_together_share_one_check(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        histories = await submit(clock, pending_agent(model_of(fake), batched(clock)), *map(str, range(20)))
        await clock.advance(timedelta(hours=1))
        agent = pending_agent(model_of(fake), batched(clock))
        results = await asyncio.gather(*[agent.run(message_history=history) for history in histories])
        assert [result.output for result in results] == [str(n) for n in range(20)]
        assert fake.openai.count('status') == 1
        assert fake.openai.count('download') == 1


async def test_another_key_asks_the_provider_itself(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        batching = batched(clock)
        (history,) = await submit(clock, pending_agent(model_of(fake), batching), 'secret')
        await clock.advance(timedelta(hours=1))
        await pending_agent(model_of(fake), batching).run(message_history=history)
        other = pending_agent(model_of(fake, api_key='someone else'), batching)
        for _ in range(3):
            history = stored((await other.run(message_history=history)).all_messages())
        with pytest.raises(SuspendedResponseExpired, match='another project'):
            await other.run(message_history=history)


async def test_a_rotated_key_of_the_same_project_collects(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        fake.openai.projects = {'old': 'project', 'new': 'project'}
        (history,) = await submit(clock, pending_agent(model_of(fake, api_key='old'), batched(clock)), 'mine')
        await clock.advance(timedelta(hours=1))
        result = await pending_agent(model_of(fake, api_key='new'), batched(clock)).run(message_history=history)
        assert result.output == 'mine'


async def test_no_key_is_in_a_stored_history(fake: FakeProviders, model_of: ModelOf, clock: ManualClock):
    key = 'sk-very-secret'
    (history,) = await submit(clock, pending_agent(model_of(fake, api_key=key), batched(clock)), 'hello')
    assert key not in ModelMessagesTypeAdapter.dump_json(history).decode()


async def test_a_pending_history_is_never_sent_live_without_the_capability(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    (history,) = await submit(clock, pending_agent(model, batched(clock)), 'hello')
    with pytest.raises(UserError, match='BatchModelRequests'):
        await Agent(model).run(message_history=history)
    assert fake.openai.count('live') == 0


async def test_a_history_that_another_model_submitted_names_it(
    fake: FakeProviders, model_of: ModelOf, clock: ManualClock
):
    (history,) = await submit(clock, pending_agent(model_of(fake), batched(clock)), 'hello')
    with pytest.raises(UserError, match=r"'gpt-5-mini'.*pass `model="):
        await pending_agent(model_of(fake, 'gpt-5-nano'), batched(clock)).run(message_history=history)
    assert fake.openai.count('status') == 0


async def test_requests_that_expired_meanwhile_are_submitted_again_by_the_run_that_resumes(
    clock: ManualClock, model_of: ModelOf
):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        fake.openai.inject('batch', 'expire', done=0)
        (history,) = await submit(clock, pending_agent(model_of(fake), batched(clock)), 'hello')
        await clock.advance(timedelta(hours=25))
        agent = pending_agent(model_of(fake), batched(clock))
        again = await clock.run(agent.run(message_history=history))
        assert isinstance(again.output, PendingModelResponse)
        await clock.advance(timedelta(hours=1))
        result = await agent.run(message_history=stored(again.all_messages()))
        assert result.output == 'hello'
        assert fake.openai.count('create') == 2


async def test_a_download_that_fails_leaves_the_history_collectable(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        (history,) = await submit(clock, pending_agent(model_of(fake), batched(clock)), 'hello')
        await clock.advance(timedelta(hours=1))
        fake.openai.inject('download', 'http', status=500, times=4)
        agent = pending_agent(model_of(fake), batched(clock))
        for _ in range(3):
            result = await agent.run(message_history=history)
            assert isinstance(result.output, PendingModelResponse)
            history = stored(result.all_messages())
        with pytest.raises(ModelHTTPError) as raised:
            await agent.run(message_history=history)
        batch = batch_of(raised.value)
        assert batch is not None
        assert batch.id in fake.openai.batches
        assert fake.openai.count('cancel') == 0
        result = await agent.run(message_history=history)
        assert result.output == 'hello'


async def test_a_check_that_fails_for_good_does_not_cancel_the_paid_batch(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        agent = Agent(model_of(fake), capabilities=[batched(clock)])
        fake.openai.inject('status', 'http', status=403)
        results = await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(3)], return_exceptions=True))
        assert all(isinstance(result, ModelHTTPError) for result in results)
        assert len({id(result) for result in results}) == 3
        assert fake.openai.count('cancel') == 0


async def test_a_pending_response_that_a_hook_rejects_is_withdrawn(clock: ManualClock, model_of: ModelOf):
    class Rejects(AbstractCapability[Any]):
        async def after_model_request(
            self, ctx: Any, *, request_context: Any, response: ModelResponse
        ) -> ModelResponse:
            raise RuntimeError('not this one')

    with FakeProviders(clock=clock) as fake:
        agent = pending_agent(model_of(fake), Rejects(), batched(clock))
        with pytest.raises(RuntimeError, match='not this one'):
            await clock.run(agent.run('hello'))
        assert fake.openai.count('cancel') == 1


async def test_a_batch_with_a_request_left_for_later_is_never_cancelled(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        batching = batched(clock, max_requests=2, max_wait=None)
        model = model_of(fake)
        left, waits = (
            asyncio.ensure_future(pending_agent(model, batching).run('left')),
            asyncio.ensure_future(Agent(model, capabilities=[batching]).run('waits')),
        )
        await left
        await clock.until_asleep()
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert fake.openai.count('cancel') == 0


class Records(AbstractCapability[Any]):
    """Keeps the pending responses that a batched model returns, as anything around it can."""

    def __init__(self) -> None:
        self.pending: list[ModelResponse] = []

    def get_wrapper_model(self, model: Model) -> Model:
        pending = self.pending

        class Recording(WrapperModel):
            async def request(self, *args: Any, **kwargs: Any) -> ModelResponse:
                response = await super().request(*args, **kwargs)
                if response.state == 'suspended':
                    pending.append(response)
                return response

        return Recording(model)


async def test_a_copy_of_a_history_cannot_cancel_the_batch_of_a_run_that_waits(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(lambda request: request.text, clock=clock) as fake:
        batching, records, model = batched(clock, max_requests=1), Records(), model_of(fake)
        run = asyncio.ensure_future(Agent(model, capabilities=[records, batching]).run('mine'))
        await clock.until_asleep()
        wrapper = batching.get_wrapper_model(model)
        assert wrapper is not None
        await wrapper.cancel_suspended_response(records.pending[0])
        assert fake.openai.count('cancel') == 0
        assert (await clock.run(run)).output == 'mine'


async def test_a_history_cannot_cancel_a_batch_of_another_process(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(clock=clock) as fake:
        (history,) = await submit(clock, pending_agent(model_of(fake), batched(clock)), 'hello')
        wrapper = batched(clock).get_wrapper_model(model_of(fake))
        assert wrapper is not None
        assert isinstance(history[-1], ModelResponse)
        await wrapper.cancel_suspended_response(history[-1])
        assert fake.openai.count('cancel') == 0


async def test_a_history_left_pending_by_the_built_in_capability_is_collected(model_of: ModelOf):
    with FakeProviders(lambda request: request.text, processing=timedelta(0)) as fake:
        theirs = BuiltIn(max_requests=2)
        agent = pending_agent(model_of(fake), theirs)
        results = await asyncio.gather(agent.run('one'), agent.run('two'))
        histories = [stored(result.all_messages()) for result in results]
        ours = pending_agent(model_of(fake), BatchModelRequests())
        collected = [await ours.run(message_history=history) for history in histories]
        assert [result.output for result in collected] == ['one', 'two']
        assert fake.openai.count('create') == 1


async def test_a_history_left_pending_by_us_is_collected_by_the_built_in_capability(model_of: ModelOf):
    with FakeProviders(lambda request: request.text, processing=timedelta(0)) as fake:
        agent = pending_agent(model_of(fake), BatchModelRequests(max_requests=1))
        history = stored((await agent.run('mine')).all_messages())
        result = await pending_agent(model_of(fake), BuiltIn()).run(message_history=history)
        assert result.output == 'mine'
        assert fake.openai.count('create') == 1


class Label(BaseModel):
    name: str


COLLECT = """
    import asyncio, sys
    from pathlib import Path
    from pydantic import BaseModel
    from pydantic_ai import Agent, ModelMessagesTypeAdapter, PendingModelResponse
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai_batch import BatchModelRequests

    class Label(BaseModel):
        name: str

    async def main(base_url, path):
        provider = OpenAIProvider(base_url=base_url, api_key='test')
        agent = Agent(
            OpenAIResponsesModel('gpt-5-mini', provider=provider),
            output_type=[Label, PendingModelResponse],
            capabilities=[BatchModelRequests()],
        )
        history = ModelMessagesTypeAdapter.validate_json(Path(path).read_bytes())
        result = await agent.run(message_history=history)
        print(repr(result.output))

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_pending_history_survives_json_and_a_process(clock: ManualClock, model_of: ModelOf, tmp_path: Path):
    def answer(request: FakeRequest) -> FakeToolCall:
        return FakeToolCall('final_result', {'name': f'label of {request.text}'})

    with FakeProviders(answer, clock=clock) as fake:
        agent = Agent(model_of(fake), output_type=[Label, PendingModelResponse], capabilities=[batched(clock)])
        result = await clock.run(agent.run('a cat'))
        file = tmp_path / 'history.json'
        file.write_bytes(result.all_messages_json())
        await clock.advance(timedelta(hours=1))
        collected = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, '-c', textwrap.dedent(COLLECT), fake.openai.base_url, str(file)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert collected.returncode == 0, collected.stderr
        assert collected.stdout.strip() == "Label(name='label of a cat')"
        assert fake.openai.count('create') == 1
