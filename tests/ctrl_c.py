"""Programs that Ctrl-C is pressed in, once they say that their requests were submitted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping


def interrupted(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """What a program writes to standard error when Ctrl-C is pressed after it has printed `submitted`."""
    with subprocess.Popen(
        [sys.executable, '-c', textwrap.dedent(script), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != 'submitted\n':
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    return errors
