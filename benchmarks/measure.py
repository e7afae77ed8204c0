"""What the benchmarks share: cases in fresh processes, their CPU time and memory, and the tables that come of it."""

from __future__ import annotations

import cProfile
import gc
import json
import os
import platform
import pstats
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

Figures = dict[str, float]

_STATUS = Path('/proc/self/status')
_TIMEOUT = 600


@dataclass(frozen=True)
class Ratio:
    """A figure of one case in relation to that of another."""

    name: str
    value: float
    wanted: float | None = None
    """At most this much is wanted of it."""


@dataclass
class Report:
    """What a benchmark found."""

    name: str
    work: str
    """What was done, and how it was measured."""
    columns: list[str]
    rows: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    ratios: list[Ratio] = field(default_factory=list[Ratio])
    breakdown: dict[str, Figures] = field(default_factory=dict[str, Figures])
    """Where the CPU of each case went, in milliseconds for each request."""
    counts: dict[str, Figures] = field(default_factory=dict[str, Figures])
    """What each case came to, which is the same in every run."""
    profile: str = ''


# In the process that runs all


class Fake:
    """The fake providers of one measurement."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def counts(self) -> Figures:
        """How many calls it got since it was started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write('\n')
        self._process.stdin.flush()
        counts = self._process.stdout.readline().split()
        return dict(zip(('creates', 'checks', 'live'), map(float, counts), strict=True))


@contextmanager
def fake(polls: int = 0) -> Generator[Fake]:
    """A fake whose batches end at their check number `polls`, or at once."""
    command = [sys.executable, '-m', 'benchmarks.fake', str(polls)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield Fake(process, process.stdout.readline().strip())
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def run_case(module: str, **options: Any) -> Figures:
    """Run a case of a benchmark in a fresh process, and return its figures."""
    return json.loads(_output(module, options))


def run_profile(module: str, **options: Any) -> str:
    """Run a case under the profiler, and return where its time went."""
    return _output(module, {**options, 'profile': True})


def _output(module: str, options: Mapping[str, Any]) -> str:
    return subprocess.run(
        [sys.executable, '-m', module, json.dumps(options)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT,
        env={**os.environ, 'NO_PROXY': '127.0.0.1', 'no_proxy': '127.0.0.1'},
    ).stdout


def lowest(runs: list[Figures], name: str) -> float:
    """The lowest of a figure, which whatever else runs on the machine disturbs least."""
    return min(run[name] for run in runs)


def middle(runs: list[Figures], name: str) -> float:
    """The median of a figure."""
    return statistics.median(run[name] for run in runs)


def machine() -> str:
    """What the figures were taken on."""
    names = ('pydantic-ai-slim', 'pydantic', 'openai', 'pydantic-ai-batch')
    versions = ', '.join(f'{name} {version(name)}' for name in names)
    cores, system = os.cpu_count(), f'{platform.system()} {platform.machine()}'
    return f'{_processor()}, {cores} cores, {system}, Python {platform.python_version()}; {versions}'


def _processor() -> str:
    path = Path('/proc/cpuinfo')
    text = path.read_text() if path.exists() else ''
    found = re.search(r'model name\s*:\s*(.+)', text)
    return found[1].strip() if found else platform.processor() or 'unknown processor'


# In the process of a case


class Meter:
    """CPU seconds of this process, and the most memory it took above what it had before."""

    def __init__(self) -> None:
        gc.collect()
        self._resident = _resident()
        _forget_peak()
        self._cpu = time.process_time()

    def read(self) -> Figures:
        """The figures since the meter was made; memory in MB."""
        cpu = time.process_time() - self._cpu
        return {'cpu': cpu, 'memory': max(0.0, _peak() - self._resident)}


def _resident() -> float:
    """MB in memory now; the most there ever was, where the system tells no more."""
    return _field('VmRSS') or _peak()


def _peak() -> float:
    """The most MB in memory at once."""
    unit = 1e6 if sys.platform == 'darwin' else 1e3
    return _field('VmHWM') or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def _field(name: str) -> float:
    found = re.search(rf'^{name}:\s+(\d+) kB', _STATUS.read_text(), re.MULTILINE) if _STATUS.exists() else None
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def _forget_peak() -> None:
    """Make the peak what is in memory now, where the system can."""
    if _STATUS.exists():
        Path('/proc/self/clear_refs').write_text('5')


class Timers:
    """CPU seconds in named functions, which are wrapped where they are looked up; a nested one counts for itself."""

    def __init__(self) -> None:
        self.seconds: Figures = {}
        self._nested = [0.0]

    def watch(self, name: str, holder: Any, function: str) -> None:
        """Count what a function takes under `name`. One that awaits counts all that the process does meanwhile."""
        inner = getattr(holder, function)
        self.seconds[name] = 0.0

        @contextmanager
        def counted() -> Generator[None]:
            started = time.process_time()
            self._nested.append(0.0)
            try:
                yield
            finally:
                taken = time.process_time() - started
                self.seconds[name] += taken - self._nested.pop()
                self._nested[-1] += taken

        def plain(*arguments: Any, **options: Any) -> Any:
            with counted():
                return inner(*arguments, **options)

        async def awaited(*arguments: Any, **options: Any) -> Any:
            with counted():
                return await inner(*arguments, **options)

        is_async = inner.__code__.co_flags & 0x80
        setattr(holder, function, awaited if is_async else plain)


def case_main(run: Callable[[dict[str, Any]], Coroutine[Any, Any, Figures]]) -> None:
    """The main function of a benchmark's module, when it is started for one case."""
    import asyncio

    options: dict[str, Any] = json.loads(sys.argv[1])
    if not options.pop('profile', False):
        print(json.dumps(asyncio.run(run(options))))
        return
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(asyncio.run, run(options))
    stats = pstats.Stats(profiler, stream=sys.stdout)
    stats.sort_stats('cumulative').print_stats('pydantic_ai_batch', 30)
    stats.print_stats(45)
