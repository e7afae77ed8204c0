"""Runs the programs in a page of the documentation, as a reader would.

Each `python` block is a program of its own, and each `bash` block with a command of this package is a list of commands;
what stands in a `text` block right after it is what it prints, where `…` stands for anything. An HTML comment before
the block says more: `<!-- run: continue -->` goes on with the names of the block before, `later=3600` lets that many
seconds pass first, `raises=UserError` expects the program to end with that error, whose message counts as printed,
`pytest` hands the block to pytest, `exit=3` expects the last command to exit with that code, and `file=rows.csv` makes
the block, of whatever language, a file of that name, which later blocks find.
"""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from typer.testing import CliRunner

from pydantic_ai_batch import Journal
from pydantic_ai_batch.cli import app
from pydantic_ai_batch.clock import SystemClock

_BLOCK = re.compile(
    r'^(?:<!-- run: (?P<settings>[^>]*) -->\n+)?```(?P<language>python|bash|csv|jsonl?)\n(?P<code>.*?)^```\n'
    r'(?:\n*```text\n(?P<output>.*?)^```\n)?',
    re.MULTILINE | re.DOTALL,
)
_COMMAND = 'pydantic-ai-batch'
_OURS = re.compile(rf'^(?:.* \| )?{_COMMAND} ', re.MULTILINE)
_BATCH = re.compile(r'\bbatch_[0-9a-f]{32}\b')
"""What the fakes call a batch, which is another name each time."""

_LEFT = '3'
"""What a command exits with that leaves rows on their way."""


@dataclass(frozen=True)
class Program:
    """A block of code on a page."""

    path: Path
    line: int
    """The line of the page on which the code begins."""
    language: str
    code: str
    settings: dict[str, str]
    output: str | None

    def __str__(self) -> str:
        return f'{self.path.name}:{self.line}'


def programs(path: Path) -> list[Program]:
    """The programs on a page, in order."""
    page = path.read_text(encoding='utf-8')
    blocks = [
        Program(
            path,
            page.count('\n', 0, match.start('code')) + 1,
            match['language'],
            match['code'],
            {name: value for name, _, value in (word.partition('=') for word in (match['settings'] or '').split())},
            match['output'],
        )
        for match in _BLOCK.finditer(page)
    ]
    return [block for block in blocks if block.language == 'python' or block.settings or _is_ours(block)]


def _is_ours(block: Program) -> bool:
    return block.language == 'bash' and _OURS.search(block.code) is not None


class JumpingClock:
    """Real time, from which each sleep is cut out as soon as nothing else is about to happen."""

    def __init__(self) -> None:
        self.skipped = 0.0
        self.jumps = True
        """Whether it jumps. A command that leaves before its batches are over needs it not to."""
        self._due: list[float] = []

    def now(self) -> float:
        return time.time() + self.skipped

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped

    async def sleep(self, seconds: float) -> None:
        due = self.monotonic() + seconds
        self._due.append(due)
        try:
            while (left := due - self.monotonic()) > 0:
                for _ in range(50):
                    await asyncio.sleep(0)
                await asyncio.sleep(min(left, 0.01))
                if self.jumps and due == min(self._due):
                    self.skipped += max(0.0, due - self.monotonic())
        finally:
            self._due.remove(due)


@contextmanager
def jumping_clock() -> Generator[JumpingClock]:
    """Let every program, and the fake providers, go by a clock that jumps over what would be a wait."""
    clock = JumpingClock()
    with pytest.MonkeyPatch.context() as patch, Agent.using_sleep(clock.sleep):
        patch.setattr(SystemClock, 'now', lambda _: clock.now())
        patch.setattr(SystemClock, 'monotonic', lambda _: clock.monotonic())
        patch.setattr(SystemClock, 'sleep', lambda _, seconds: clock.sleep(seconds))
        yield clock


def run_page(path: Path, clock: JumpingClock) -> None:
    """Run the programs of a page, one after another, and compare what they print.

    Raises:
        AssertionError: A program failed, or printed something else.
    """
    names: dict[str, Any] = {}
    with asyncio.Runner() as runner:
        for program in programs(path):
            # The loop of `run_sync` and the like, which nobody would close otherwise. `asyncio.run` unsets it.
            asyncio.set_event_loop(runner.get_loop())
            if 'continue' not in program.settings:
                names = {'__name__': '__main__'}
            clock.skipped += float(program.settings.get('later', 0))
            if (file := program.settings.get('file')) is not None:
                Path(file).write_text(program.code, encoding='utf-8')
                continue
            if program.language == 'bash':
                clock.jumps = program.settings.get('exit') != _LEFT
                printed = _commands(program)
                clock.jumps = True
            else:
                printed = _pytest(program) if 'pytest' in program.settings else _run(program, names)
            if program.output is not None:
                assert like(_same(program.output), _same(printed)), f'{program} prints:\n{printed}'


def _run(program: Program, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    code = compile('\n' * (program.line - 1) + program.code, str(program.path), 'exec', dont_inherit=True)
    raised: Exception | None = None
    with redirect_stdout(printed):
        try:
            exec(code, names)
        except Exception as error:
            raised = error
            print(f'{type(error).__name__}: {error}')
    expected = program.settings.get('raises')
    assert (raised and type(raised).__name__) == expected, f'{program}: {"".join(traceback.format_exception(raised))}'
    return printed.getvalue()


def _commands(program: Program) -> str:
    """Run the commands of a block, those of this package in this process, whose clock jumps over waits."""
    commands = program.code.replace('\\\n', '').splitlines()
    printed, code = '', 0
    for command in commands:
        assert code == 0, f'{program} exits with {code}:\n{printed}'
        said, code = _pipeline(command)
        printed += said
    assert code == int(program.settings.get('exit', 0)), f'{program} exits with {code}:\n{printed}'
    return printed


def _pipeline(command: str) -> tuple[str, int]:
    """Run a command, or several with `|` between them, and return what shows of them and the last exit code."""
    words = shlex.shlex(command, posix=True, punctuation_chars='|')
    words.whitespace_split, words.commenters = True, ''
    stages: list[list[str]] = [[]]
    for word in words:
        if word == '|':
            stages.append([])
        else:
            stages[-1].append(word)
    shown, passed, code = '', b'', 0
    for stage in stages:
        if stage[0] == _COMMAND:
            result = CliRunner().invoke(app, stage[1:], input=passed, prog_name=_COMMAND)
            # The journals that it worked on are let go of, as when its process ends.
            for journal in Path().glob('*.journal'):
                Journal(journal).close()
            assert result.exception is None or isinstance(result.exception, SystemExit), traceback.format_exception(
                result.exception
            )
            last = stage is stages[-1]
            shown, passed, code = (
                shown + (result.output if last else result.stderr),
                b'' if last else result.stdout_bytes,
                result.exit_code,
            )
        else:
            run = subprocess.run(stage, input=passed, capture_output=True, timeout=60, check=False)
            passed, code = run.stdout, run.returncode
            shown += run.stderr.decode()
    return shown + passed.decode(), code


def _pytest(program: Program) -> str:
    Path('test_example.py').write_text(program.code, encoding='utf-8')
    command = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-W', 'error', 'test_example.py']
    run = subprocess.run(command, capture_output=True, encoding='utf-8', timeout=120, check=False)
    assert run.returncode == 0, f'{program}:\n{run.stdout}{run.stderr}'
    return run.stdout


def like(expected: str, printed: str) -> bool:
    """Whether something is printed as expected, where `…` stands for anything, but for spaces at the ends of lines."""
    first, *rest = _stripped(expected).split('…')
    printed = _stripped(printed)
    if not rest:
        return first == printed
    if not printed.startswith(first):
        return False
    at = len(first)
    for part in rest[:-1]:
        if (found := printed.find(part, at)) < 0:
            return False
        at = found + len(part)
    return printed.endswith(rest[-1]) and len(printed) - len(rest[-1]) >= at


def _same(text: str) -> str:
    """A text in which every batch has the same name, as tables of them cannot have a `…` in its place."""
    return _BATCH.sub('batch_0', text)


def _stripped(text: str) -> str:
    return '\n'.join(line.rstrip() for line in text.strip().splitlines())
