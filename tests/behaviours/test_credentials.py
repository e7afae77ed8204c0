"""Requests share a batch under one credential, whatever makes it up. Where it cannot be told, none are batched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from lanes.harness import Harness, echo
from pydantic_ai import Agent
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from pydantic_ai_batch import BatchModelRequests, lane_for, model_request_batch
from pydantic_ai_batch.testing import FakeProviders, ManualClock

from .scenes import (
    AT_ONCE,
    BOTH,
    PROVIDERS,
    Batching,
    LaneModel,
    Make,
    batched,
    can_batch,
    full_batches,
    rows,
)

OPENAI = pytest.mark.parametrize('kind', ['responses', 'chat'])
KINDS = pytest.mark.parametrize('kind', PROVIDERS)


async def refusals(model: Model, clock: ManualClock) -> list[str]:
    """What an agent and a list call say to the model."""
    said: list[str] = []
    for attempt in (
        Agent(model, capabilities=[BatchModelRequests(clock=clock)]).run('x'),
        model_request_batch(model, rows('x'), clock=clock),
    ):
        with pytest.raises(UserError) as refused:
            await clock.run(attempt)
        said.append(str(refused.value))
    return said


def http_client(**settings: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(trust_env=False, verify=False, **settings)


def below(kind: str, **settings: Any) -> dict[str, Any]:
    """The settings of a client that asks through an HTTP client with `settings`."""
    client = http_client(**settings)
    return {'http_options': {'httpx_async_client': client}} if kind == 'google' else {'http_client': client}


# Credentials that can vary, or cannot be seen


async def token() -> str:
    raise AssertionError('Nothing is sent, so nobody asks for a token.')


def access_token(*, force_refresh: bool = False) -> Any:
    raise AssertionError('Nothing is sent, so nobody asks for a token.')


def identity() -> Any:
    provider = {'get_token': lambda: 'subject', 'token_type': 'jwt'}
    return {'identity_provider_id': 'i', 'service_account_id': 's', 'provider': provider}


@OPENAI
@pytest.mark.parametrize(
    ('settings', 'does'),
    [
        (lambda: {'api_key': token}, 'calls a function for its API key'),
        (lambda: {'api_key': None, 'workload_identity': identity()}, 'signs in with a workload identity'),
        (lambda: {'http_client': http_client(auth=('me', 'secret'))}, '`auth` of its HTTP client'),
    ],
    ids=['API-key callback', 'workload identity', 'auth'],
)
async def test_clients_of_openai_whose_credential_can_vary_are_refused(
    kind: str, settings: Callable[[], Any], does: str, fake: FakeProviders, make: Make, clock: ManualClock
):
    for said in await refusals(make(kind, fake, **settings()), clock):
        assert does in said
        assert 'Give the client an API key that stays the same' in said
        assert 'secret' not in said
    assert fake.calls == []


def azure() -> openai.AsyncOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint='http://127.0.0.1:9', api_version='2026-01-01', azure_ad_token_provider=token
    )


def on_vertex() -> openai.AsyncOpenAI:
    from openai.providers import vertex

    return openai.AsyncOpenAI(provider=vertex(base_url='http://127.0.0.1:9', token_provider=token))


@pytest.mark.parametrize('client', [azure], ids=['Azure AD token provider'])
async def test_a_client_that_asks_for_a_token_at_each_call_is_refused(
    client: Callable[[], openai.AsyncOpenAI], clock: ManualClock
):
    # Azure has no lane by default, so its flag is on here, as for a resource with batch deployments.
    profile = OpenAIModelProfile(openai_supports_batch_api=True)
    provider = OpenAIProvider(openai_client=client())
    for said in await refusals(OpenAIResponsesModel('gpt-5-mini', provider=provider, profile=profile), clock):
        assert 'calls a function for its Azure AD token' in said
    await refusals(OpenAIChatModel('gpt-5-mini', provider=provider, profile=profile), clock)


@OPENAI
async def test_a_client_that_leaves_its_credential_to_a_provider_of_the_sdk_is_refused(kind: str, clock: ManualClock):
    client = on_vertex()
    provider = OpenAIProvider(openai_client=client)
    model_class = OpenAIChatModel if kind == 'chat' else OpenAIResponsesModel
    for said in await refusals(model_class('gpt-5-mini', provider=provider), clock):
        assert 'leaves its credential to a `provider`' in said


@pytest.mark.parametrize(
    ('client', 'said'),
    [
        (lambda: anthropic.AsyncAnthropic(credentials=access_token, base_url='http://127.0.0.1:9'), 'access tokens'),
        (
            lambda: anthropic.AsyncAnthropicGoogleCloud(project='p', workspace_id='w', token_provider=token),
            'static Anthropic API credentials',
        ),
        (
            lambda: anthropic.AsyncAnthropicAWS(
                aws_access_key='a', aws_secret_key='b', aws_region='us-east-1', workspace_id='w'
            ),
            'static Anthropic API credentials',
        ),
        (
            lambda: anthropic.AsyncAnthropic(
                api_key='k', base_url='http://127.0.0.1:9', http_client=http_client(auth=('me', 'secret'))
            ),
            '`auth` of its HTTP client',
        ),
    ],
    ids=['access tokens', 'Google Cloud tokens', 'AWS signatures', 'auth'],
)
async def test_clients_of_anthropic_whose_credential_can_vary_are_refused(
    client: Callable[[], Any], said: str, clock: ManualClock
):
    sdk = client()
    model = AnthropicModel('claude-haiku-4-5', provider=AnthropicProvider(anthropic_client=sdk))
    for refusal in await refusals(model, clock):
        assert said in refusal
        assert 'secret' not in refusal
    await sdk.close()


async def test_a_client_of_google_whose_credential_is_left_to_its_http_client_is_refused(
    fake: FakeProviders, make: Make, clock: ManualClock
):
    for said in await refusals(make('google', fake, **below('google', auth=('me', 'secret'))), clock):
        assert '`auth` of its HTTP client' in said
        assert 'secret' not in said
    assert fake.calls == []


async def test_a_client_of_google_that_asks_through_aiohttp_is_refused(
    fake: FakeProviders, make: Make, clock: ManualClock
):
    model: Any = make('google', fake)
    # The SDK takes one only where aiohttp is installed.
    model.client._api_client._http_options.aiohttp_client = object()
    for said in await refusals(model, clock):
        assert '`aiohttp_client`' in said
    assert fake.calls == []


@KINDS
async def test_a_wrapped_models_client_is_looked_at_too(kind: str, fake: FakeProviders, make: Make, clock: ManualClock):
    from pydantic_ai.models.instrumented import InstrumentedModel

    model = InstrumentedModel(make(kind, fake, **below(kind, auth=('me', 'secret'))))
    for said in await refusals(model, clock):
        assert '`auth` of its HTTP client' in said
    assert fake.calls == []


HEADERS = ModelSettings(extra_headers={'x-team': 'a'})


async def test_headers_of_a_single_request_are_refused_wherever_they_are_set(
    harness: Harness, lane_model: LaneModel, clock: ManualClock
):
    with FakeProviders(echo, clock=clock) as fake:
        model = lane_model(fake)
        batching = BatchModelRequests(clock=clock)
        for attempt in (
            Agent(model, capabilities=[batching], model_settings=HEADERS).run('x'),
            Agent(model, capabilities=[batching]).run('x', model_settings=HEADERS),
            model_request_batch(model, rows('a', settings=HEADERS), clock=clock),
        ):
            with pytest.raises(UserError, match=r'`extra_headers`.* set them on the client instead'):
                await clock.run(attempt)
        assert harness.fake(fake).calls == []


@KINDS
async def test_headers_of_a_models_own_settings_are_refused_too(
    kind: str, fake: FakeProviders, make: Make, clock: ManualClock
):
    for said in await refusals(make(kind, fake, settings=HEADERS), clock):
        assert '`extra_headers`' in said
    assert fake.calls == []


@pytest.mark.parametrize(
    'headers', [{'anthropic-beta': 'a', 'x-team': 'a'}, {'x-api-key': 'k'}, {'Authorization': 'k'}], ids=str
)
async def test_of_headers_only_beta_flags_are_taken(
    headers: dict[str, str], fake: FakeProviders, make: Make, clock: ManualClock
):
    settings = ModelSettings(extra_headers=headers)
    for said in await refusals(make('anthropic', fake, settings=settings), clock):
        assert '`extra_headers`' in said
    assert fake.calls == []


# Credentials that count


async def shared(capability: type[Batching], fake: FakeProviders, kind: str, models: list[Model]) -> list[list[str]]:
    """What goes in which batch when four requests are made with two models, by turns."""
    agent = Agent(capabilities=[full_batches(capability, 2)])
    await asyncio.gather(*[agent.run(f'{"ab"[n % 2]}{n}', model=models[n % 2]) for n in range(4)])
    return batched(getattr(fake, PROVIDERS[kind]))


APART = [['a0', 'a2'], ['b1', 'b3']]
TOGETHER = [['a0', 'b1'], ['a2', 'b3']]

OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'openai key': ({'default_headers': {'Authorization': 'Bearer x'}}, {}),
    'openai key in other letters': ({'default_headers': {'authorization': 'Bearer x'}}, {}),
    'openai organization': ({'organization': 'org-a'}, {'organization': 'org-b'}),
    'openai project': ({'project': 'proj-a'}, {'project': 'proj-b'}),
    'openai proxy header': ({'default_headers': {'x-proxy-key': 'a'}}, {'default_headers': {'x-proxy-key': 'b'}}),
    'openai query': ({'default_query': {'key': 'a'}}, {'default_query': {'key': 'b'}}),
    'anthropic key': ({'default_headers': {'X-Api-Key': 'x'}}, {}),
    'anthropic token': ({'default_headers': {'authorization': 'Bearer x'}}, {}),
    'anthropic proxy header': ({'default_headers': {'x-proxy-key': 'a'}}, {'default_headers': {'x-proxy-key': 'b'}}),
    'anthropic query': ({'default_query': {'key': 'a'}}, {'default_query': {'key': 'b'}}),
    'google key': ({'http_options': {'headers': {'x-goog-api-key': 'x'}}}, {}),
    'google token': ({'http_options': {'headers': {'Authorization': 'Bearer x'}}}, {}),
}


@BOTH
@pytest.mark.parametrize(
    ('kind', 'override'),
    [(kind, name) for kind in PROVIDERS for name in OVERRIDES if name.startswith(PROVIDERS[kind])],
)
async def test_clients_that_differ_only_in_what_overrides_their_key_do_not_share_a_batch(
    kind: str, override: str, capability: type[Batching], make: Make
):
    can_batch(capability, kind)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake, **settings) for settings in OVERRIDES[override]]
        assert await shared(capability, fake, kind, models) == APART


BELOW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'header': ({'headers': {'x-proxy-key': 'a'}}, {'headers': {'x-proxy-key': 'b'}}),
    'header of one': ({'headers': {'x-proxy-key': 'a'}}, {}),
    'query': ({'params': {'key': 'a'}}, {'params': {'key': 'b'}}),
}


@KINDS
@pytest.mark.parametrize('difference', BELOW)
async def test_clients_that_differ_only_in_their_http_clients_do_not_share_a_batch(
    kind: str, difference: str, make: Make
):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake, **below(kind, **settings)) for settings in BELOW[difference]]
        assert await shared(BatchModelRequests, fake, kind, models) == APART


@OPENAI
async def test_a_header_that_the_sdk_leaves_out_counts_where_the_http_client_has_it(kind: str, make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake, **below(kind, headers={'OpenAI-Organization': name})) for name in ('a', 'b')]
        assert await shared(BatchModelRequests, fake, kind, models) == APART


@pytest.mark.parametrize('options', [{'headers': {'x-goog-user-project': 'b'}}, {'api_version': 'v1alpha'}], ids=str)
async def test_clients_of_google_that_differ_only_in_their_options_do_not_share_a_batch(
    options: dict[str, Any], fake: FakeProviders, make: Make
):
    models = [make('google', fake), make('google', fake, http_options=options)]
    one, other = [await lane_for(model).identity() for model in models]
    assert one != other


@BOTH
@KINDS
async def test_two_clients_of_one_credential_share_a_batch(kind: str, capability: type[Batching], make: Make):
    can_batch(capability, kind)
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake), make(kind, fake, **below(kind, headers={'user-agent': 'mine'}))]
        assert await shared(capability, fake, kind, models) == TOGETHER


@OPENAI
async def test_a_header_of_the_http_client_that_the_sdk_replaces_does_not_count(kind: str, make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        models = [make(kind, fake), make(kind, fake, **below(kind, headers={'Authorization': 'Bearer other'}))]
        assert await shared(BatchModelRequests, fake, kind, models) == TOGETHER


@KINDS
async def test_what_a_group_is_told_apart_by_is_the_frameworks_unless_there_is_more(
    kind: str, fake: FakeProviders, make: Make
):
    if kind == 'chat':
        pytest.skip('the framework has no groups for chat models')
    model = make(kind, fake)
    request = rows('x')[0]
    assert (await lane_for(model).encode(request)).group == (await model.batch_encode(request)).group
    more = make(kind, fake, **below(kind, headers={'x-proxy-key': 'hidden'}))
    group = (await lane_for(more).encode(request)).group
    assert group == await lane_for(more).identity() != (await model.batch_encode(request)).group
    assert 'hidden' not in group


class Tenants(OpenAIChatModel):
    """A chat model with a client of its own in place of its provider's."""

    own: openai.AsyncOpenAI

    @property
    def client(self) -> openai.AsyncOpenAI:
        return self.own


async def test_a_chat_model_with_a_client_of_its_own_counts_with_that(make: Make):
    with FakeProviders(echo, processing=AT_ONCE) as fake:
        provider: Any = make('chat', fake).provider
        models: list[Model] = []
        for key in ('a', 'b'):
            model = Tenants('gpt-5-mini', provider=provider)
            model.own = provider.client.with_options(api_key=key)
            models.append(model)
        assert await shared(BatchModelRequests, fake, 'chat', models) == APART


async def test_a_chat_models_own_client_is_refused_as_its_providers_would_be(
    fake: FakeProviders, make: Make, clock: ManualClock
):
    provider: Any = make('chat', fake).provider
    model = Tenants('gpt-5-mini', provider=provider)
    model.own = provider.client.with_options(api_key=token)
    for said in await refusals(model, clock):
        assert 'calls a function for its API key' in said


@KINDS
async def test_a_key_that_is_exchanged_on_the_client_counts_from_the_next_request_on(
    kind: str, make: Make, clock: ManualClock
):
    if kind == 'google':
        pytest.skip('a client of Google keeps the key that it was made with')
    with FakeProviders(echo, clock=clock) as fake:
        model: Any = make(kind, fake)
        agent = Agent(model, capabilities=[BatchModelRequests(clock=clock)])
        before = asyncio.ensure_future(agent.run('before'))
        # It waits in the queue.
        await clock.until_asleep()
        model.client.api_key = 'another'
        await clock.run(asyncio.gather(before, agent.run('after')))
        assert batched(getattr(fake, PROVIDERS[kind])) == [['after'], ['before']]
