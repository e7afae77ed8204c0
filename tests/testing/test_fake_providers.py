from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from datetime import timedelta

import httpx2
import pytest
from openai import APIConnectionError, OpenAI, RateLimitError

from pydantic_ai_batch.testing import FakeProviders, ManualClock
from pydantic_ai_batch.testing.__main__ import inject


def fake_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if 'fake providers' in thread.name]


async def test_stopping_leaves_nothing_behind() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        async with FakeProviders() as fake, httpx2.AsyncClient() as client:
            url = fake.openai.base_url
            assert fake_threads()
            # The connection stays open, as the pool of an SDK's client keeps it.
            assert (await client.get(f'{url}/files')).status_code == 401
        assert not fake_threads()
        gc.collect()
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)


async def test_what_was_recorded_stays_after_stopping() -> None:
    with FakeProviders() as fake:
        httpx2.get(f'{fake.openai.base_url}/nothing?key=secret')
    assert [(call.operation, call.path, call.status) for call in fake.calls] == [('unknown', '/openai/v1/nothing', 404)]
    fake.stop()


async def test_fakes_that_were_stopped_go_on_where_they_were() -> None:
    fake = FakeProviders()
    fake.start()
    url = fake.openai.base_url
    with OpenAI(base_url=url, api_key='test', max_retries=0) as client:
        file = client.files.create(file=b'{}', purpose='batch')
        fake.stop()
        with pytest.raises(APIConnectionError):
            client.files.list()
        fake.start()
        assert fake.openai.base_url == url
        assert [kept.id for kept in client.files.list().data] == [file.id]
    fake.stop()


def test_fakes_are_started_once_and_have_no_url_before() -> None:
    fake = FakeProviders()
    with pytest.raises(RuntimeError, match='not started'):
        _ = fake.openai.base_url
    with fake, pytest.raises(RuntimeError, match='started already'):
        fake.start()


def test_a_port_that_is_taken_is_told_at_once() -> None:
    with FakeProviders() as fake:
        port = int(fake.openai.base_url.split(':')[2].split('/')[0])
        second = FakeProviders(port=port)
        with pytest.raises(OSError, match=r'in use|permitted'):
            second.start()
    second.start()
    second.stop()


async def test_calls_show_what_was_sent_but_no_secret(fake: FakeProviders, clock: ManualClock) -> None:
    await clock.advance(5)
    async with fake.openai.client(api_key='very-secret') as client:
        await client.batches.list(limit=3, extra_query={'key': 'very-secret'})
        await client.batches.list(limit=3)
    first, second = fake.calls
    assert (first.provider, first.operation, first.method, first.path) == (
        'openai',
        'list',
        'GET',
        '/openai/v1/batches',
    )
    assert first.query['limit'] == '3'
    assert (first.status, first.body, first.at) == (200, b'', clock.now())
    assert first.headers['authorization'] == second.headers['authorization']
    assert first.headers['authorization'].startswith('sha256:')
    assert 'very-secret' not in repr(first)


async def test_many_clients_at_once_are_all_recorded(fake: FakeProviders) -> None:
    async with fake.openai.client() as client:
        await asyncio.gather(*(client.batches.list() for _ in range(50)))
    assert fake.openai.count('list') == 50


async def test_fakes_go_by_the_real_clock_unless_told_otherwise() -> None:
    with FakeProviders(processing=timedelta(0)) as fake:
        async with fake.openai.client() as client:
            file = await client.files.create(file=b'{}', purpose='batch')
    assert abs(file.created_at - time.time()) < 60


async def test_a_large_file_is_taken_and_given_back_whole(fake: FakeProviders) -> None:
    content = b'0123456789abcdef' * 2**20
    async with fake.openai.client() as client:
        file = await client.files.create(file=('large.jsonl', content), purpose='batch')
        assert file.bytes == len(content)
        assert (await client.files.content(file.id)).content == content


async def test_the_environment_is_enough_for_the_sdk(fake: FakeProviders, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in fake.openai.environment.items():
        monkeypatch.setenv(name, value)
    with OpenAI() as client:
        assert client.batches.list().data == []


async def test_the_fixtures_are_there_for_whoever_has_the_package(
    fake_providers: FakeProviders, manual_clock: ManualClock
) -> None:
    async with fake_providers.openai.client() as client:
        file = await client.files.create(file=b'{}', purpose='batch')
    assert file.created_at == int(manual_clock.now())


WITHOUT_THE_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name == 'starlette':
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)

sys.meta_path.insert(0, Missing())
from pydantic_ai_batch.testing import ManualClock, auto_answer
import pydantic_ai_batch.testing.plugin
try:
    from pydantic_ai_batch.testing import FakeProviders
except ImportError as error:
    print(error)
"""

IMPORTS_NOTHING = """
import sys
import pydantic_ai_batch.testing.plugin
print([name for name in ('starlette', 'uvicorn', 'pydantic_ai_batch.testing.fakes') if name in sys.modules])
"""


def run(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_without_the_extra_the_error_names_it() -> None:
    assert run('-c', WITHOUT_THE_EXTRA) == (
        "`FakeProviders` needs starlette: `pip install 'pydantic-ai-batch[testing]'`."
    )


@pytest.mark.parametrize(('name', 'sdk'), [('groq', 'groq'), ('mistral', 'mistralai'), ('bedrock', 'boto3')])
def test_a_client_without_its_sdk_names_the_extra_and_the_other_fakes_work(name: str, sdk: str) -> None:
    program = f"""
import sys

sys.modules[{sdk!r}] = None
from pydantic_ai_batch.exceptions import LaneDependencyMissing
from pydantic_ai_batch.testing import FakeProviders

with FakeProviders() as fake:
    fake.openai.client()
    try:
        fake.{name}.client()
    except LaneDependencyMissing as missing:
        print(missing)
"""
    assert f"pip install 'pydantic-ai-batch[{name}]'" in run('-c', program)


def test_the_plugin_imports_no_server() -> None:
    assert run('-c', IMPORTS_NOTHING) == '[]'


@pytest.mark.skipif(sys.platform == 'win32', reason='needs SIGTERM')
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_told_to_end(number: signal.Signals) -> None:
    command = [sys.executable, '-u', '-m', 'pydantic_ai_batch.testing', '--fault', 'openai.list:http,status=418']
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, 'NO_COLOR': '1'}) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix('openai: ').strip()
        reply = httpx2.get(f'{url}/batches', headers={'Authorization': 'Bearer x'})
        assert reply.status_code == 418
        process.send_signal(number)
        assert f'OPENAI_BASE_URL={url}' in process.stdout.read()
        assert process.wait(30) == 0


@pytest.mark.parametrize('text', ['create', 'openai:reset', 'other.create:reset', 'openai.create:http,status'])
def test_a_fault_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='is not'):
        inject(FakeProviders(), text)


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('openai.lines:drop,rows=abc', 'the number of the first rows'),
        ('openai.batch:fail,rows=3', 'only Python can pass'),
        ('openai.status:http,status=abc', 'an HTTP status'),
        ('openai.status:http,times=abc', 'at least 1'),
        ('openai.status:http,after=abc', 'not negative'),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused_with_what_it_takes(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        inject(FakeProviders(), text)


async def test_text_needs_no_quotes_on_the_command_line_even_if_it_is_a_number(fake: FakeProviders) -> None:
    inject(fake, 'openai.list:http,status=429,code=17,message=Slow down.')
    inject(fake, 'openai.list:http,status=429,code=null,message="17"')
    async with fake.openai.client(max_retries=0) as client:
        for code, message in (('17', 'Slow down.'), (None, '17')):
            with pytest.raises(RateLimitError, match=message) as caught:
                await client.batches.list()
            assert caught.value.code == code


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'pydantic_ai_batch.testing', *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


def test_the_command_says_in_one_line_that_its_port_is_taken() -> None:
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        ended = command('--port', str(port))
    assert (ended.returncode, ended.stdout) == (2, '')
    assert ended.stderr == f'Error: port {port} is taken: pass another `--port`, or leave it out for a free one.\n'


@pytest.mark.parametrize('port', ['99999', '-3'])
def test_the_command_says_in_one_line_that_there_is_no_such_port(port: str) -> None:
    ended = command('--port', port)
    assert (ended.returncode, ended.stdout) == (2, '')
    assert ended.stderr == (
        f'Error: there is no port {port}: pass a `--port` from 1 to 65535, or leave it out for a free one.\n'
    )
