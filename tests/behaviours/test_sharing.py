"""Which requests share a batch, when it is full, and whose capability they come through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from lanes.harness import Harness, echo
from lanes.native_model import FakeService, NativeModel
from pydantic_ai import Agent, ModelRequest
from pydantic_ai.agent.spec import AgentSpec
from pydantic_ai.capabilities import AbstractCapability, CombinedCapability
from pydantic_ai.capabilities import BatchModelRequests as BuiltIn
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, BatchRequest, lane_for, model_request_batch
from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.lanes.base import Payload
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import (
    AT_ONCE,
    BOTH,
    PROVIDERS,
    Batching,
    LaneModel,
    Make,
    as_sent,
    batched,
    can_batch,
    full_batches,
    rows,
    sent_live,
)

ONE, TWO = 'extended-cache-ttl-2025-04-11', 'context-management-2025-06-27'
KINDS = pytest.mark.parametrize('kind', PROVIDERS)


async def run_all(runs: Sequence[Any]) -> None:
    for result in await asyncio.gather(*runs):
        assert result.output.startswith('answer to ')


# Groups


@BOTH
async def test_requests_of_one_group_share_a_batch(capability: type[Batching], harness: Harness, lane_model: LaneModel):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(lane_model(fake), capabilities=[full_batches(capability, 4)])
        await run_all([agent.run(f'{n}') for n in range(4)])
        assert batched(harness.fake(fake)) == [['0', '1', '2', '3']]
        assert sent_live(fake) == 0


@BOTH
async def test_settings_may_differ_within_a_batch(capability: type[Batching], harness: Harness, lane_model: LaneModel):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(lane_model(fake), capabilities=[full_batches(capability, 3)])
        given = [ModelSettings(max_tokens=100), ModelSettings(max_tokens=200, parallel_tool_calls=False), None]
        await run_all([agent.run(f'{n}', model_settings=settings) for n, settings in enumerate(given)])
        assert batched(harness.fake(fake)) == [['0', '1', '2']]


@BOTH
async def test_requests_under_two_keys_do_not_share_a_batch(
    capability: type[Batching], harness: Harness, lane_model: LaneModel
):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(capabilities=[full_batches(capability, 2)])
        models = [lane_model(fake, 'one'), lane_model(fake, 'two')]
        await run_all([agent.run(f'{"ab"[n % 2]}{n}', model=models[n % 2]) for n in range(4)])
        assert batched(harness.fake(fake)) == [['a0', 'a2'], ['b1', 'b3']]


@BOTH
@KINDS
async def test_requests_for_two_endpoints_do_not_share_a_batch(kind: str, capability: type[Batching], make: Make):
    can_batch(capability, kind)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        provider = getattr(fake, PROVIDERS[kind])
        elsewhere = provider.base_url.replace('127.0.0.1', 'localhost')
        there: Any = {'http_options': {'base_url': elsewhere}} if kind == 'google' else {'base_url': elsewhere}
        models = [make(kind, fake), make(kind, fake, **there)]
        agent = Agent(capabilities=[full_batches(capability, 2)])
        await run_all([agent.run(f'{"ab"[n % 2]}{n}', model=models[n % 2]) for n in range(4)])
        assert batched(provider) == [['a0', 'a2'], ['b1', 'b3']]


@BOTH
@pytest.mark.parametrize(
    ('kind', 'names'),
    [
        ('responses', ('gpt-5-mini', 'gpt-5-nano')),
        ('chat', ('gpt-5-mini', 'gpt-5-nano')),
        ('google', ('gemini-2.5-flash', 'gemini-2.5-pro')),
    ],
)
async def test_requests_for_two_models_of_openai_or_google_do_not_share_a_batch(
    kind: str, names: tuple[str, str], capability: type[Batching], make: Make
):
    can_batch(capability, kind)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake, name) for name in names]
        agent = Agent(capabilities=[full_batches(capability, 2)])
        await run_all([agent.run(f'{"ab"[n % 2]}{n}', model=models[n % 2]) for n in range(4)])
        assert batched(getattr(fake, PROVIDERS[kind])) == [['a0', 'a2'], ['b1', 'b3']]


@BOTH
async def test_requests_for_two_models_of_anthropic_share_a_batch(capability: type[Batching], make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make('anthropic', fake, name) for name in ('claude-haiku-4-5', 'claude-opus-4-5')]
        agent = Agent(capabilities=[full_batches(capability, 4)])
        await run_all([agent.run(f'{n}', model=models[n % 2]) for n in range(4)])
        assert batched(fake.anthropic) == [['0', '1', '2', '3']]


@BOTH
async def test_requests_of_anthropic_share_a_batch_only_under_the_same_beta_flags(
    capability: type[Batching], make: Make
):
    flags = {'none': [], 'one': [ONE], 'both': [ONE, TWO], 'both again': [TWO, ONE]}
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(make('anthropic', fake), capabilities=[full_batches(capability, 2)])
        runs = [
            agent.run(f'{name} {n}', model_settings=AnthropicModelSettings(anthropic_betas=betas) if betas else None)
            for n in range(2)
            for name, betas in flags.items()
            if n == 0 or 'both' not in name
        ]
        await run_all(runs)
        assert batched(fake.anthropic) == [['both 0', 'both again 0'], ['none 0', 'none 1'], ['one 0', 'one 1']]


@BOTH
async def test_beta_flags_that_are_named_in_extra_headers_count_with_the_others(capability: type[Batching], make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(make('anthropic', fake), capabilities=[full_batches(capability, 2)])
        given = [AnthropicModelSettings(anthropic_betas=[ONE]), ModelSettings(extra_headers={'anthropic-beta': ONE})]
        await run_all([agent.run(f'{n}', model_settings=settings) for n, settings in enumerate(given)])
        assert batched(fake.anthropic) == [['0', '1']]
        assert [batch.betas for batch in fake.anthropic.batches.values()] == [(ONE,)]


async def test_the_two_apis_of_openai_do_not_share_a_batch(make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make('responses', fake), make('chat', fake)]
        agent = Agent(capabilities=[full_batches(BatchModelRequests, 2)])
        await run_all([agent.run(f'{"ab"[n % 2]}{n}', model=models[n % 2]) for n in range(4)])
        assert batched(fake.openai) == [['a0', 'a2'], ['b1', 'b3']]
        assert sorted(batch.endpoint for batch in fake.openai.batches.values()) == [
            '/v1/chat/completions',
            '/v1/responses',
        ]


async def test_one_instance_serves_every_lane_at_once(make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = {kind: make(kind, fake) for kind in PROVIDERS}
        agent = Agent(capabilities=[full_batches(BatchModelRequests, 2)])
        await run_all([agent.run(f'{kind} {n}', model=model) for n in range(2) for kind, model in models.items()])
        sent = [batch for provider in ('openai', 'anthropic', 'google') for batch in batched(getattr(fake, provider))]
        assert sorted(sent) == sorted([f'{kind} 0', f'{kind} 1'] for kind in PROVIDERS)


class Elsewhere(NativeModel):
    """A model of another provider, whose group keys happen to be the same: they are only told apart within one."""

    @property
    def system(self) -> str:
        return 'elsewhere'


@BOTH
@pytest.mark.parametrize('max_requests', [2, 1], ids=['queued together', 'ended together'])
async def test_models_with_batch_methods_of_their_own_share_nothing_across_providers(
    max_requests: int, capability: type[Batching]
):
    with FakeProviders(echo, processing=AT_ONCE) as fake, FakeProviders(echo, processing=AT_ONCE) as other:
        agent = Agent(capabilities=[full_batches(capability, max_requests)])
        prompts = ['0', '1'] if max_requests == 2 else ['0']
        models = {'a': NativeModel(fake, 'test'), 'b': Elsewhere(other, 'test')}
        await run_all([agent.run(f'{name}{n}', model=model) for n in prompts for name, model in models.items()])
        assert batched(FakeService.of(fake)) == [[f'a{n}' for n in prompts]]
        assert batched(FakeService.of(other)) == [[f'b{n}' for n in prompts]]


@pytest.mark.parametrize('kind', ['responses', 'chat'])
async def test_a_body_that_names_another_model_than_its_batch_is_refused(
    kind: str, clock: ManualClock, fake: FakeProviders, make: Make
):
    model = make(kind, fake)
    other = ModelSettings(extra_body={'model': 'gpt-5-nano'})
    agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)], model_settings=other)
    with pytest.raises(UserError, match="`model` cannot be set to 'gpt-5-nano'"):
        await clock.run(agent.run('x'))
    with pytest.raises(UserError, match=r"`model` cannot be set to 'gpt-5-nano'.* Rows: 'a'"):
        await clock.run(model_request_batch(model, rows('a', settings=other), clock=clock))
    assert fake.calls == []
    same = ModelSettings(extra_body={'model': 'gpt-5-mini'})
    await clock.run(model_request_batch(model, rows('a', settings=same), clock=clock))


async def test_a_body_may_name_another_model_where_a_batch_may_hold_several(
    clock: ManualClock, fake: FakeProviders, make: Make
):
    other = ModelSettings(extra_body={'model': 'claude-opus-4-5'})
    requests = [*rows('a'), *rows('b', settings=other)]
    await clock.run(model_request_batch(make('anthropic', fake), requests, clock=clock))
    assert batched(fake.anthropic) == [['a', 'b']]


# Splitting


@BOTH
async def test_a_batch_splits_at_the_number_of_requests(
    capability: type[Batching], harness: Harness, lane_model: LaneModel
):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        agent = Agent(lane_model(fake), capabilities=[full_batches(capability, 2)])
        await run_all([agent.run(f'{n}') for n in range(6)])
        assert [len(batch) for batch in batched(harness.fake(fake))] == [2, 2, 2]


class FewResponses(OpenAIResponsesModel):
    @property
    def batch_max_requests(self) -> int:
        return 2


class FewMessages(AnthropicModel):
    @property
    def batch_max_requests(self) -> int:
        return 2


class FewContents(GoogleModel):
    @property
    def batch_max_requests(self) -> int:
        return 2


@BOTH
@pytest.mark.parametrize(
    ('kind', 'model_class'), [('responses', FewResponses), ('anthropic', FewMessages), ('google', FewContents)]
)
async def test_a_models_own_limit_caps_that_of_its_lane_and_the_capabilitys(
    kind: str, model_class: Any, capability: type[Batching], make: Make
):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        plain: Any = make(kind, fake)
        model = model_class(plain.model_name, provider=plain.provider)
        agent = Agent(model, capabilities=[full_batches(capability, 1000)])
        await run_all([agent.run(f'{n}') for n in range(4)])
        assert [len(batch) for batch in batched(getattr(fake, PROVIDERS[kind]))] == [2, 2]


async def encoded_size(model: Model, prompt: str) -> int:
    lane = lane_for(model)
    request = BatchRequest(custom_id='', messages=[ModelRequest.user_text_prompt(prompt)])
    return lane.request_size((await lane.encode(request)).body.encode())


TEXTS = pytest.mark.parametrize('text', ['plain', 'ü€🙂', 'line\n"quoted"\\\u2028'], ids=['ascii', 'utf-8', 'escaped'])


@TEXTS
@pytest.mark.parametrize(('spare', 'sizes'), [(0, [2, 2, 2]), (-1, [1] * 6)], ids=['fits', 'a byte too much'])
async def test_a_batch_splits_before_it_would_pass_the_byte_limit_as_encoded(
    spare: int,
    sizes: list[int],
    text: str,
    harness: Harness,
    lane_model: LaneModel,
    clock: ManualClock,
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        lane = lane_for(model)
        enclosing = len(lane.prefix) + len(lane.suffix) - len(lane.separator)
        limit = 2 * await encoded_size(model, text * 50) + enclosing + spare
        agent = Agent(model, capabilities=[BatchModelRequests(max_bytes=limit, clock=clock)])
        await clock.run(run_all([agent.run(text * 50) for _ in range(6)]))
        assert [len(batch) for batch in batched(harness.fake(fake))] == sizes
        in_lists = [
            BatchRequest(custom_id=f'{n}', messages=[ModelRequest.user_text_prompt(text * 50)]) for n in range(6)
        ]
        await clock.run(model_request_batch(model, in_lists, max_bytes=limit, clock=clock))
        assert sorted(len(batch) for batch in batched(harness.fake(fake))) == sorted(sizes * 2)


@TEXTS
async def test_no_batch_is_larger_on_the_wire_than_its_limit(
    text: str, harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    if harness.name in ('google-inline', 'native'):
        pytest.skip('what goes over the wire is not the encoded batch')
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(max_bytes=2_000, clock=clock)])
        await clock.run(run_all([agent.run(text * n) for n in range(1, 40)]))
        sent = as_sent(harness, fake)
        assert len(sent) > 1
        assert max(map(len, sent)) <= 2_000


async def test_what_fits_in_a_batch_by_its_requests_fits_with_what_encloses_them(
    harness: Harness, lane_model: LaneModel, fake: FakeProviders
):
    if harness.name == 'native':
        pytest.skip('its model counts as it likes')
    lane = lane_for(lane_model(fake))
    # IDs as long as in a batch of ten million requests, which are the longest that sizes are counted with.
    room, body = lane.room(10_000), b'{"x":""}'
    with Payload(lane, await lane.identity()) as payload:
        taken = 0
        while taken + (size := lane.request_size(body)) <= room:
            payload.add(body)
            taken += size
        assert payload.size <= 10_000
    assert lane.room(None) == lane.max_bytes <= (lane.info.max_bytes or 0)
    assert lane.room(10**12) == lane.max_bytes


async def test_a_request_that_would_pass_the_byte_limit_sends_the_batch_off_and_starts_the_next(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        # Nothing but their size sends these requests off.
        batching = BatchModelRequests(
            max_requests=1000, max_bytes=2 * await encoded_size(model, 'x') + 50, max_wait=None, clock=clock
        )
        agent = Agent(model, capabilities=[batching])
        runs = [asyncio.ensure_future(agent.run('x')) for _ in range(5)]
        await clock.until_asleep(2)
        assert [len(batch) for batch in batched(harness.fake(fake))] == [2, 2]
        await batching.flush()
        await clock.run(run_all(runs))
        assert [len(batch) for batch in batched(harness.fake(fake))] == [1, 2, 2]


# Time


async def test_later_requests_join_the_batch_and_never_extend_its_wait(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        agent = Agent(lane_model(fake), capabilities=[BatchModelRequests(max_wait=timedelta(seconds=10), clock=clock)])
        # The first request that is encoded for a client may wait for a thread, which a clock by hand would overtake.
        await clock.run(agent.run('warm'))
        started = clock.now()
        runs = [asyncio.ensure_future(agent.run('0'))]
        await clock.until_asleep()
        for n in range(1, 4):
            await clock.advance(3)
            runs.append(asyncio.ensure_future(agent.run(f'{n}')))
        await clock.run(run_all(runs))
        calls = [call for call in harness.fake(fake).calls if call.operation == 'create']
        assert [call.at - started for call in calls[1:]] == [10]
        assert batched(harness.fake(fake)) == [['0', '1', '2', '3'], ['warm']]


@pytest.mark.parametrize('withdrawn_at', [15, 5], ids=['before another came', 'while another waited'])
async def test_a_request_that_was_withdrawn_does_not_shorten_the_wait_of_others(
    withdrawn_at: int, fake: FakeProviders, make: Make, clock: ManualClock
):
    batching = BatchModelRequests(max_wait=timedelta(seconds=30), clock=clock)
    agent = Agent(make('responses', fake), capabilities=[batching])
    started = clock.now()
    withdrawn = asyncio.ensure_future(agent.run('withdrawn'))
    await clock.until_asleep()
    await clock.advance(20 - withdrawn_at)
    if withdrawn_at == 15:
        withdrawn.cancel()
        await clock.advance(withdrawn_at)
        waits = asyncio.ensure_future(agent.run('waits'))
    else:
        waits = asyncio.ensure_future(agent.run('waits'))
        await clock.advance(withdrawn_at)
        withdrawn.cancel()
    await asyncio.gather(withdrawn, return_exceptions=True)
    made = clock.now() if withdrawn_at == 15 else clock.now() - withdrawn_at
    await clock.run(waits)
    (create,) = [call for call in fake.openai.calls if call.operation == 'create']
    assert create.at - made == 30 > made - started


async def test_a_request_that_is_made_after_a_batch_went_off_starts_the_next(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        batching = BatchModelRequests(max_requests=2, max_wait=None, clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        first = [asyncio.ensure_future(agent.run(text)) for text in ('a', 'b')]
        # The check of the batch waits: it is made, and has not ended.
        await clock.until_asleep()
        later = [asyncio.ensure_future(agent.run(text)) for text in ('c', 'd')]
        await clock.run(run_all([*first, *later]))
        assert batched(harness.fake(fake)) == [['a', 'b'], ['c', 'd']]


async def test_a_request_that_is_sent_again_joins_the_batch_that_is_collecting(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        harness.fake(fake).inject('lines', 'drop', rows=1)
        batching = BatchModelRequests(max_requests=2, max_wait=timedelta(hours=12), clock=clock)
        agent = Agent(lane_model(fake), capabilities=[batching])
        runs = [asyncio.ensure_future(agent.run(text)) for text in ('a', 'a')]
        await clock.until_asleep()
        await clock.run(run_all([*runs, agent.run('new')]))
        assert batched(harness.fake(fake)) == [['a', 'a'], ['a', 'new']]


# One instance, several agents


@BOTH
async def test_one_instance_serves_several_agents_and_runs_that_get_it_for_themselves(
    capability: type[Batching], harness: Harness, lane_model: LaneModel
):
    can_batch(capability, harness.name)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        model = lane_model(fake)
        batching = full_batches(capability, 4)
        agents = [Agent(model, capabilities=[batching], instructions=f'agent {n}') for n in range(2)]
        plain = Agent(model)
        await run_all(
            [
                *[agent.run(f'{n}') for n, agent in enumerate(agents)],
                plain.run('2', capabilities=[batching]),
                plain.run('3', capabilities=[batching]),
            ]
        )
        assert batched(harness.fake(fake)) == [['0', '1', '2', '3']]
        # What a run got for itself is gone with it.
        await plain.run('4')
        assert len(harness.fake(fake).batches) == 1
        assert sent_live(fake) == 1


async def test_an_instance_that_comes_from_the_agent_and_from_the_run_is_one(
    clock: ManualClock, fake: FakeProviders, make: Make
):
    batching = BatchModelRequests(max_requests=1, clock=clock)
    agent = Agent(make('responses', fake), capabilities=[batching])
    await clock.run(agent.run('x', capabilities=[batching]))
    assert batched(fake.openai) == [['x']]


# Agent specs


def named(given: Any) -> dict[str, Any]:
    return {'capabilities': [{'BatchModelRequests': given}]}


def batching_of(agent: Agent[Any, Any]) -> list[BatchModelRequests]:
    found: list[AbstractCapability[Any]] = []
    agent.root_capability.apply(found.append)
    return [capability for capability in found if isinstance(capability, BatchModelRequests)]


@pytest.mark.parametrize(
    ('given', 'max_wait', 'poll_interval'),
    [
        ({'max_wait': 'PT5M'}, timedelta(minutes=5), timedelta(seconds=30)),
        ({'max_wait': 300, 'poll_interval': 'PT1M'}, timedelta(minutes=5), timedelta(minutes=1)),
        ({'max_wait': None}, None, timedelta(seconds=30)),
        ({}, timedelta(seconds=30), timedelta(seconds=30)),
    ],
    ids=['ISO 8601', 'seconds', 'none', 'defaults'],
)
def test_a_spec_says_how_to_batch(given: Any, max_wait: timedelta | None, poll_interval: timedelta):
    agent = Agent.from_spec(named(given), model='test', custom_capability_types=[BatchModelRequests])
    (batching,) = batching_of(agent)
    assert (batching.max_wait, batching.poll_interval) == (max_wait, poll_interval)


def test_a_spec_in_a_file_says_how_to_batch(tmp_path: Path):
    path = tmp_path / 'agent.yaml'
    path.write_text('model: test\ncapabilities:\n  - BatchModelRequests: {max_wait: PT5M}\n')
    (batching,) = batching_of(Agent.from_file(path, custom_capability_types=[BatchModelRequests]))
    assert batching.max_wait == timedelta(minutes=5)


def test_a_spec_names_the_built_in_capability_unless_ours_is_given():
    agent = Agent.from_spec(named({}), model='test')
    assert batching_of(agent) == []


def test_ours_in_a_spec_is_named_as_it_would_be_without_settings():
    agent = Agent.from_spec(
        {'capabilities': ['BatchModelRequests']}, model='test', custom_capability_types=[BatchModelRequests]
    )
    assert len(batching_of(agent)) == 1


def test_a_setting_that_is_wrong_in_a_spec_is_named():
    with pytest.raises(ValueError, match='`max_requests`'):
        Agent.from_spec(named({'max_requests': 0}), model='test', custom_capability_types=[BatchModelRequests])


def test_the_schema_of_specs_knows_the_settings_of_ours():
    schema = AgentSpec.model_json_schema_with_capabilities(custom_capability_types=[BatchModelRequests])
    assert 'max_bytes' in str(schema)


def on_clock(clock: Clock) -> type[BatchModelRequests]:
    """Ours, as a spec builds it, on a clock that a spec has no name for."""

    @dataclass
    class OnClock(BatchModelRequests):
        @classmethod
        def get_serialization_name(cls) -> str:
            return 'BatchModelRequests'

        @classmethod
        def from_spec(cls, **given: Any) -> BatchModelRequests:
            batching = BatchModelRequests.from_spec(**given)
            return BatchModelRequests(max_requests=batching.max_requests, max_wait=batching.max_wait, clock=clock)

    return OnClock


async def test_each_agent_of_a_spec_has_an_instance_and_batches_of_its_own(
    clock: ManualClock, fake: FakeProviders, make: Make
):
    model = make('responses', fake)
    spec = named({'max_wait': 'PT5M'})
    agents = [Agent.from_spec(spec, model=model, custom_capability_types=[on_clock(clock)]) for _ in range(2)]
    assert batching_of(agents[0])[0] is not batching_of(agents[1])[0]
    started = clock.now()
    await clock.run(asyncio.gather(*[agent.run(f'{"ab"[n]}{i}') for n, agent in enumerate(agents) for i in range(2)]))
    assert batched(fake.openai) == [['a0', 'a1'], ['b0', 'b1']]
    assert min(call.at - started for call in fake.openai.calls if call.operation == 'create') == 300


# Both capabilities


Place = Callable[[Model, Any, Any], tuple[Agent[Any, str], list[Any]]]
"""An agent with the first capability, and what its run gets besides."""


def on_the_agent(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model, capabilities=[first, second]), []


def on_the_run(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model, capabilities=[first]), [second]


def all_on_the_run(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model), [first, second]


def in_a_group(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model, capabilities=[CombinedCapability([first]), CombinedCapability([second])]), []


def in_wrappers(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model, capabilities=[first.prefix_tools('a'), second.prefix_tools('b')]), []


def made_for_the_run(model: Model, first: Any, second: Any) -> tuple[Agent[Any, str], list[Any]]:
    return Agent(model, capabilities=[lambda ctx: first, lambda ctx: second]), []


@pytest.mark.parametrize('ours_first', [True, False], ids=['ours first', 'built-in first'])
@pytest.mark.parametrize('place', [on_the_agent, on_the_run, all_on_the_run, in_a_group, in_wrappers, made_for_the_run])
async def test_both_capabilities_are_refused_whichever_is_first_and_however_they_come(
    place: Place, ours_first: bool, fake: FakeProviders, make: Make, clock: ManualClock
):
    ours, built_in = BatchModelRequests(max_requests=1, clock=clock), BuiltIn(max_requests=1)
    agent, of_the_run = place(make('responses', fake), *([ours, built_in] if ours_first else [built_in, ours]))
    said = 'two `BatchModelRequests`, of `pydantic_ai` and of `pydantic_ai_batch`'
    with pytest.raises(UserError, match=said):
        await clock.run(agent.run('x', capabilities=of_the_run))
    with pytest.raises(UserError, match=said):
        async with agent.run_stream('x', capabilities=of_the_run):
            pass
    with pytest.raises(UserError, match=said):
        async with agent.iter('x', capabilities=of_the_run):
            pass
    assert fake.calls == []
