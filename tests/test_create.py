"""A batch is created once and paid once, whatever becomes of the calls that create it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from conftest import ModelOf
from ctrl_c import interrupted
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelAPIError, ModelConnectionError, ModelHTTPError, UserError
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from pydantic_ai_batch import BatchModelRequests
from pydantic_ai_batch.exceptions import CreateUnsettled
from pydantic_ai_batch.testing import FakeBatch, FakeProviders, ManualClock

ROWS = [str(n) for n in range(5)]


async def run_all(clock: ManualClock, model: OpenAIResponsesModel, **settings: Any) -> list[object]:
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock, **settings)])
    results = await clock.run(asyncio.gather(*[agent.run(row) for row in ROWS], return_exceptions=True))
    return [getattr(result, 'output', result) for result in results]


def tag_of(batch: FakeBatch) -> str:
    assert batch.metadata is not None
    return batch.metadata['pydantic_ai_batch']


def billed_once(fake: FakeProviders) -> bool:
    return Counter(row.text for row in fake.openai.billed) == Counter(ROWS)


@pytest.mark.parametrize('fault', ['lose_reply', 'garbage'])
async def test_a_lost_create_reply_is_found_by_its_tag_and_paid_once(
    fault: str, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', fault)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert fake.openai.count('create') == 1
    assert fake.openai.count('list') == 1
    assert billed_once(fake)


@pytest.mark.parametrize('status', [500, 502, 503, 504, 408])
async def test_a_server_error_after_the_batch_was_made_is_a_lost_reply(
    status: int, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=status, done=True)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert fake.openai.count('create') == 1
    assert billed_once(fake)


async def test_a_batch_that_the_listing_shows_late_is_still_found(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('batch', 'hide', seconds=20)
    await run_all(clock, model)
    assert fake.openai.count('create') == 1
    assert fake.openai.count('list') == 3
    lost = next(call.at for call in fake.openai.calls if call.operation == 'create')
    assert [call.at - lost for call in fake.openai.calls if call.operation == 'list'] == [0, 5, 30]
    assert billed_once(fake)


async def test_a_batch_among_hundreds_is_found(fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock):
    agent = Agent(model, capabilities=[BatchModelRequests(max_requests=1, clock=clock)])
    fake.openai.inject('create', 'lose_reply', after=0)
    await clock.run(asyncio.gather(*[agent.run(str(n)) for n in range(130)]))
    assert fake.openai.count('create') == 130
    assert Counter(row.text for row in fake.openai.billed) == Counter(str(n) for n in range(130))


async def test_a_create_that_provably_made_nothing_is_sent_again_once(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=503)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert fake.openai.count('create') == 2
    assert fake.openai.count('upload') == 1
    assert fake.openai.count('list') == 4
    assert billed_once(fake)


async def test_a_create_that_makes_nothing_twice_fails_with_the_providers_error(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=503, times=2)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, ModelHTTPError) and output.status_code == 503 for output in outputs)
    assert fake.openai.count('create') == 2
    assert fake.openai.billed == []


async def test_when_the_listing_cannot_tell_nothing_is_sent_again_and_the_error_says_where_to_look(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('list', 'http', status=500, times=None)
    outputs = await run_all(clock, model)
    (batch,) = fake.openai.batches.values()
    tag = tag_of(batch)
    assert all(isinstance(output, CreateUnsettled) for output in outputs)
    assert len({id(output) for output in outputs}) == len(ROWS)
    assert f'`metadata` `pydantic_ai_batch` = `{tag}`' in str(outputs[0])
    assert fake.openai.count('create') == 1
    assert fake.openai.count('list') == 4


@pytest.mark.parametrize('status', [400, 401, 403, 409, 413])
async def test_a_refused_create_is_not_repeated_and_its_file_is_deleted(
    status: int, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=status)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, ModelHTTPError) and output.status_code == status for output in outputs)
    assert [call.operation for call in fake.calls] == ['upload', 'create', 'delete']


async def test_a_refused_create_fails_its_own_requests_only(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('create', 'http', status=400)
    outputs = await run_all(clock, model, max_requests=3)
    assert sum(isinstance(output, ModelHTTPError) for output in outputs) == 3
    assert sum(isinstance(output, str) for output in outputs) == 2


async def test_a_failed_upload_is_repeated_as_it_costs_nothing(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('upload', 'reset')
    fake.openai.inject('upload', 'http', status=502)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert fake.openai.count('upload') == 3
    assert fake.openai.count('create') == 1


async def test_a_provider_that_cannot_be_reached_is_tried_four_times(clock: ManualClock):
    with FakeProviders(clock=clock) as fake:
        base_url = fake.openai.base_url
    provider = OpenAIProvider(base_url=base_url, api_key='test')
    model = OpenAIResponsesModel('gpt-5-mini', provider=provider)
    started = clock.now()
    async with model:
        outputs = await run_all(clock, model)
    assert all(isinstance(output, ModelConnectionError) and output.phase == 'connect' for output in outputs)
    assert clock.now() - started == 30 + 1 + 5 + 25
    await provider.client.close()


async def test_the_sdks_own_retries_are_off_for_creates(clock: ManualClock):
    with FakeProviders(clock=clock) as fake:
        client = fake.openai.client(max_retries=5)
        model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(openai_client=client))
        # Which an SDK repeats by itself.
        fake.openai.inject('create', 'http', status=409)
        outputs = await run_all(clock, model)
        assert all(isinstance(output, ModelHTTPError) for output in outputs)
        assert fake.openai.count('create') == 1
        await client.close()


async def test_a_second_batch_of_one_tag_is_cancelled(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    # As a transport of the user's that retries by itself below the SDK does: two creates, and the reply is lost.
    model.client._client.event_hooks = {'request': [Twice()]}
    fake.openai.inject('create', 'lose_reply', after=1)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert len(fake.openai.batches) == 2
    assert fake.openai.count('cancel') == 1
    assert billed_once(fake)


class Twice:
    """A request hook that sends a create a first time, without a word of it."""

    def __init__(self) -> None:
        self.done = False

    async def __call__(self, request: httpx2.Request) -> None:
        if request.url.path.endswith('/batches') and request.method == 'POST' and not self.done:
            self.done = True
            async with httpx2.AsyncClient() as other:
                await other.post(request.url, content=request.content, headers=dict(request.headers))


async def as_litellm(response: httpx2.Response) -> None:
    """A response hook: what LiteLLM's proxy adds to every reply."""
    response.headers['x-litellm-call-id'] = '1'


async def test_behind_a_proxy_that_repeats_creates_unseen_the_second_batch_is_cancelled(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    model.client._client.event_hooks = {'request': [Twice()], 'response': [as_litellm]}
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert len(fake.openai.batches) == 2
    assert fake.openai.count('list') == 1
    assert fake.openai.count('cancel') == 1
    assert billed_once(fake)


@pytest.mark.parametrize('fault', [None, 'http', 'garbage', 'reset'])
async def test_behind_such_a_proxy_a_single_batch_goes_on_whatever_its_listing_says(
    fault: str | None, fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    model.client._client.event_hooks = {'response': [as_litellm]}
    if fault:
        fake.openai.inject('list', fault)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, str) for output in outputs)
    assert fake.openai.count('create') == 1
    assert fake.openai.count('list') == 1
    assert fake.openai.count('cancel') == 0
    assert billed_once(fake)


async def test_every_create_has_a_tag_of_its_own_and_ids_that_carry_it(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    await run_all(clock, model, max_requests=2)
    tags = [tag_of(batch) for batch in fake.openai.batches.values()]
    assert len(set(tags)) == 3
    for tag, batch in zip(tags, fake.openai.batches.values(), strict=True):
        assert len(tag) == 20
        assert set(tag) <= set('abcdefghijklmnopqrstuvwxyz234567')
        assert [row.custom_id for row in batch.requests] == [f'{tag}-{n}' for n in range(len(batch.requests))]
        upload = next(call for call in fake.openai.calls if call.operation == 'upload' and tag.encode() in call.body)
        assert f'pab-{tag}.jsonl'.encode() in upload.body


async def test_a_run_cancelled_while_its_batch_is_created_is_withdrawn_from_it(clock: ManualClock, model_of: ModelOf):
    with FakeProviders(clock=clock) as fake:
        fake.openai.inject('create', 'lose_reply')
        fake.openai.inject('batch', 'hide', seconds=20)
        agent = Agent(model_of(fake), capabilities=[BatchModelRequests(max_requests=1, clock=clock)])
        run = asyncio.ensure_future(agent.run('x'))
        await clock.until_asleep()  # It sleeps between two looks at the listing.
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        while not fake.openai.count('cancel'):
            await clock.run(asyncio.sleep(0.01))
        assert fake.openai.count('create') == 1


async def test_a_block_left_during_a_create_fails_its_requests_and_says_that_a_batch_may_exist(
    clock: ManualClock, model_of: ModelOf, caplog: pytest.LogCaptureFixture
):
    with FakeProviders(clock=clock) as fake:
        fake.openai.inject('create', 'lose_reply')
        fake.openai.inject('batch', 'hide', seconds=20)
        batching = BatchModelRequests(max_requests=1, clock=clock)
        agent = Agent(model_of(fake), capabilities=[batching])
        async with batching:
            run = asyncio.ensure_future(agent.run('x'))
            await clock.until_asleep()
        with pytest.raises(UserError, match='exited'):
            await run
        (batch,) = fake.openai.batches.values()
        assert tag_of(batch) in caplog.text


async def test_nothing_is_sent_where_model_requests_are_not_allowed(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr('pydantic_ai.models.ALLOW_MODEL_REQUESTS', False)
    outputs = await run_all(clock, model)
    assert all(isinstance(output, RuntimeError) for output in outputs)
    assert fake.calls == []


async def test_logs_hold_no_payload_and_no_key(
    fake: FakeProviders, model_of: ModelOf, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG, logger='pydantic_ai_batch')
    fake.openai.inject('create', 'lose_reply')
    fake.openai.inject('lines', 'damage', rows=1, how='null_id')
    agent = Agent(model_of(fake, api_key='sk-secret'), capabilities=[BatchModelRequests(clock=clock)])
    await clock.run(asyncio.gather(*[agent.run(f'payload-{n}') for n in range(3)], return_exceptions=True))
    ours = '\n'.join(record.getMessage() for record in caplog.records if record.name == 'pydantic_ai_batch')
    assert ours
    assert 'sk-secret' not in ours
    assert 'payload-' not in ours


async def test_a_window_that_passes_without_an_end_is_a_bounded_wait(
    fake: FakeProviders, model: OpenAIResponsesModel, clock: ManualClock
):
    fake.openai.inject('batch', 'stick', done=0)
    started = clock.now()
    outputs = await run_all(clock, model)
    assert all(isinstance(output, ModelAPIError) and 'window' in str(output) for output in outputs)
    assert timedelta(hours=30) <= timedelta(seconds=clock.now() - started) < timedelta(hours=31)
    assert fake.openai.count('cancel') == 0


@pytest.mark.parametrize('runs', [1, 3])
def test_ctrl_c_in_a_program_that_gathers_runs_cancels_their_batch(runs: int):
    script = """
        import asyncio, sys
        from pydantic_ai import Agent
        from pydantic_ai_batch import BatchModelRequests

        async def main(runs):
            def tell(event):
                print(event.kind, flush=True)
            batching = BatchModelRequests(max_requests=runs, progress=tell)
            agent = Agent('openai-responses:gpt-5-mini', capabilities=[batching])
            await asyncio.gather(*[agent.run(str(n)) for n in range(runs)])

        asyncio.run(main(int(sys.argv[1])))
    """
    with FakeProviders(processing=timedelta(hours=1)) as fake:
        errors = interrupted(script, str(runs), environment=fake.openai.environment)
        assert 'KeyboardInterrupt' in errors
        (batch,) = fake.openai.batches
        assert batch in errors
        assert fake.openai.count('cancel') >= 1
