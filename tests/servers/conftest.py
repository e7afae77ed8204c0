"""The servers, each started once, when the first test asks for it; and what their tests have in common."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from pydantic_ai_batch.testing import FakeProviders

from . import postgres
from .install import AIMOCK, ENGINES, HERE, LITELLM, MOTO, OGX, Server
from .running import free_port, running

LITELLM_KEY = 'sk-0123456789abcdef0123456789abcdef'
"""Short ones are refused."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get('PYDANTIC_AI_BATCH_SERVERS') == '1':
        return
    # As a mark, of which pytest shows one line for each file.
    left_out = pytest.mark.skip(reason='run by `make test-servers`, which installs the servers')
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(left_out)


def _needs(server: Server) -> None:
    if (reason := server.reason) is not None:
        pytest.skip(reason)


@dataclass(frozen=True)
class Aimock:
    """A running aimock."""

    address: str

    @property
    def base_url(self) -> str:
        return f'{self.address}/v1'

    def count(self, method: str, path: str) -> int:
        """How many calls of that path it has answered since it was started, by its own journal."""
        entries = httpx2.get(f'{self.address}/__aimock/journal', trust_env=False).json()
        return sum(entry['method'] == method and entry['path'].split('?')[0] == path for entry in entries)

    @property
    def created(self) -> int:
        return self.count('POST', '/v1/batches')


@pytest.fixture(scope='session')
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aimock]:
    """aimock, whose batches end at the second check of them."""
    _needs(AIMOCK)
    home, port = tmp_path_factory.mktemp('aimock'), free_port()
    (home / 'fixtures').mkdir()
    (home / 'aimock.json').write_text('{"llm": {"fixtures": "./fixtures"}}')
    program = AIMOCK.folder / 'node_modules/@copilotkit/aimock/dist/aimock-cli.js'
    command = ['node', str(program), '--config', 'aimock.json', '--host', '127.0.0.1', '--port', str(port)]
    with running(command, home, f'http://127.0.0.1:{port}/health'):
        yield Aimock(f'http://127.0.0.1:{port}')


@pytest.fixture(scope='session')
def upstream_port() -> int:
    """Where the servers that ask a provider ask it."""
    return free_port()


def _upstream(port: int) -> FakeProviders:
    return FakeProviders(processing=timedelta(seconds=0.5), port=port)


@pytest.fixture
def upstream(upstream_port: int) -> Iterator[FakeProviders]:
    """The provider behind the servers that ask one: our fake, new for each test."""
    with _upstream(upstream_port) as fake:
        yield fake


@pytest.fixture(scope='session')
def ogx(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[str]:
    """The address of OGX, which runs the requests of its batches live at the upstream."""
    _needs(OGX)
    home, port = tmp_path_factory.mktemp('ogx'), free_port()
    with _upstream(upstream_port) as fake:
        (home / 'ogx.yaml').write_text(json.dumps(_ogx_settings(home, port, fake.openai.base_url)))
    command = [str(OGX.folder / 'bin' / 'ogx'), 'run', 'ogx.yaml', '--insecure']
    address = f'http://127.0.0.1:{port}'
    with running(command, home, f'{address}/v1/health'):
        yield address


def _ogx_settings(home: Path, port: int, upstream_url: str) -> dict[str, Any]:
    """OGX's configuration: batches of both kinds, kept in two files of SQLite's, and one provider of models."""

    def table(name: str) -> dict[str, str]:
        return {'table_name': name, 'backend': 'sql'}

    return {
        'version': 2,
        'distro_name': 'tests',
        'apis': ['batches', 'files', 'inference', 'messages'],
        'providers': {
            'inference': [
                {
                    'provider_id': 'upstream',
                    'provider_type': 'remote::openai',
                    'config': {'base_url': upstream_url, 'api_key': 'test', 'allowed_models': ['gpt-5-mini']},
                }
            ],
            'files': [
                {
                    'provider_id': 'files',
                    'provider_type': 'inline::localfs',
                    'config': {'storage_dir': str(home / 'files'), 'metadata_store': table('files')},
                }
            ],
            'messages': [
                {
                    'provider_id': 'messages',
                    'provider_type': 'inline::builtin',
                    'config': {'kvstore': {'namespace': 'messages', 'backend': 'kv'}},
                }
            ],
            'batches': [
                {
                    'provider_id': 'batches',
                    'provider_type': 'inline::reference',
                    'config': {'sqlstore': table('batches')},
                }
            ],
        },
        'storage': {
            'backends': {
                'kv': {'type': 'kv_sqlite', 'db_path': str(home / 'kv.sqlite')},
                'sql': {'type': 'sql_sqlite', 'db_path': str(home / 'sql.sqlite')},
            },
            'stores': {
                'metadata': {'namespace': 'registry', 'backend': 'kv'},
                **{name: table(name) for name in ('inference', 'conversations', 'prompts', 'connectors')},
            },
        },
        'registered_resources': {
            'models': [
                {
                    'model_id': 'gpt-5-mini',
                    'provider_id': 'upstream',
                    'provider_model_id': 'gpt-5-mini',
                    'model_type': 'llm',
                }
            ]
        },
        'server': {'host': '127.0.0.1', 'port': port},
    }


@pytest.fixture(scope='session')
def litellm(tmp_path_factory: pytest.TempPathFactory, upstream_port: int) -> Iterator[str]:
    """The address of LiteLLM's proxy in front of the upstream."""
    _needs(LITELLM)
    home, port = tmp_path_factory.mktemp('litellm'), free_port()
    upstream = {'api_base': f'http://127.0.0.1:{upstream_port}{FakeProviders().openai.prefix}', 'api_key': 'test'}
    settings = {
        'model_list': [
            {'model_name': 'gpt-5-mini', 'litellm_params': {'model': 'openai/gpt-5-mini', 'max_retries': 0, **upstream}}
        ],
        'files_settings': [{'custom_llm_provider': 'openai', **upstream}],
        'general_settings': {'master_key': LITELLM_KEY},
    }
    (home / 'litellm.yaml').write_text(json.dumps(settings))
    program = str(LITELLM.folder / 'bin' / 'litellm')
    command = [program, '--config', 'litellm.yaml', '--host', '127.0.0.1', '--port', str(port), '--telemetry', 'False']
    address = f'http://127.0.0.1:{port}'
    # Or it would fetch a list of prices.
    with running(command, home, f'{address}/health/liveliness', {'LITELLM_LOCAL_MODEL_COST_MAP': 'True'}):
        yield address


@pytest.fixture(scope='session')
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of moto, which plays AWS."""
    _needs(MOTO)
    home, port = tmp_path_factory.mktemp('moto'), free_port()
    address = f'http://127.0.0.1:{port}'
    command = [str(MOTO.folder / 'bin' / 'moto_server'), '-H', '127.0.0.1', '-p', str(port)]
    with running(command, home, f'{address}/moto-api/data.json'):
        yield address


@pytest.fixture(scope='session')
def engines() -> Path:
    """The Python that durable engines are installed for."""
    _needs(ENGINES)
    return ENGINES.python


@pytest.fixture(scope='session')
def postgres_address() -> Iterator[str]:
    """The address of a PostgreSQL server."""
    if (missing := postgres.reason()) is not None:
        pytest.skip(missing)
    with postgres.postgres() as address:
        yield address


@pytest.fixture(params=['SQLite', 'PostgreSQL'])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a database of DBOS's that is not there yet."""
    if request.param == 'SQLite':
        return f'sqlite:///{tmp_path}/runs.sqlite'
    return f'{request.getfixturevalue("postgres_address")}/runs_{uuid.uuid4().hex}'
