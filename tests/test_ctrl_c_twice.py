"""Ctrl-C a second time, while the program still tidies up behind the first."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest

from pydantic_ai_batch.testing import FakeProviders

SCRIPT = """
    import asyncio
    from pydantic_ai import ModelRequest
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai_batch import BatchRequest, model_request_batch_sync

    async def hold(request):
        # The way to the provider is stuck just when the batch is to be cancelled.
        if request.url.path.endswith('/cancel'):
            print('cancelling', flush=True)
            await asyncio.Event().wait()

    def tell(event):
        print(event.kind, flush=True)

    model = OpenAIResponsesModel('gpt-5-mini')
    model.client._client.event_hooks = {'request': [hold]}
    row = BatchRequest(custom_id='1', messages=[ModelRequest.user_text_prompt('hello')])
    model_request_batch_sync(model, [row], progress=tell)
"""


def test_a_second_ctrl_c_leaves_at_once(monkeypatch: pytest.MonkeyPatch):
    with FakeProviders(processing=timedelta(hours=1)) as fake:
        monkeypatch.setenv('OPENAI_API_KEY', 'test')
        monkeypatch.setenv('OPENAI_BASE_URL', fake.openai.base_url)
        with subprocess.Popen(
            [sys.executable, '-c', textwrap.dedent(SCRIPT)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            try:
                for said in ('submitted\n', 'cancelling\n'):
                    # Each time once the program has come that far.
                    while process.stdout.readline() != said:
                        assert process.poll() is None
                    process.send_signal(signal.SIGINT)
                # Without the second it would wait for a reply that does not come.
                _, errors = process.communicate(timeout=15)
            finally:
                process.kill()
        assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)
        assert '\nKeyboardInterrupt\n' in errors
        assert fake.openai.count('cancel') == 0
