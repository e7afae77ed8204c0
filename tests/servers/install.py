"""Installs the servers that others wrote into `.servers`, as far as this machine can have them.

`python -m tests.servers.install` does what is not done yet. A server that cannot be had, as there is no Node or no
Python that is new enough, leaves its reason behind, with which its tests are skipped. Any other failure is one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INSTALLED = ROOT / '.servers'

_NO_SUCH_PACKAGE = ('No matching distribution found', 'code E404', 'code ETARGET')
"""What pip and npm say of a package that their registry does not have."""

_PYTHONS = ('python3.12', 'python3.13', 'python3.14', 'python3')
_SECONDS = 600


class Missing(Exception):
    """A server cannot be had on this machine."""


class Failed(Exception):
    """A command failed."""


@dataclass(frozen=True)
class Server(ABC):
    """One server, and how to install it."""

    name: str

    @property
    def folder(self) -> Path:
        return INSTALLED / self.name

    @property
    def _stamp(self) -> Path:
        return INSTALLED / f'{self.name}.installed'

    @property
    def _missing(self) -> Path:
        return INSTALLED / f'{self.name}.missing'

    @property
    @abstractmethod
    def pins(self) -> Path:
        """The file that says which versions are installed."""

    @abstractmethod
    def build(self) -> None:
        """Install it into its folder.

        Raises:
            Missing: It cannot be had here.
            Failed: It could not be installed.
        """

    @abstractmethod
    def runs(self) -> bool:
        """Whether what it runs on still does: a Python can be uninstalled below its environment."""

    @property
    def reason(self) -> str | None:
        """Why it cannot be started; `None` if it can."""
        if self._missing.exists():
            return self._missing.read_text(encoding='utf-8')
        return None if self.installed else f'{self.name} is not installed: `make test-servers` does it'

    @property
    def installed(self) -> bool:
        return self._stamp.exists() and self._stamp.read_text(encoding='utf-8') == self._state and self.runs()

    @property
    def _state(self) -> str:
        # With its path, which an environment names in its scripts.
        return f'{self.folder}\n{self.pins.read_text(encoding="utf-8")}'

    def install(self) -> str:
        """Install it if it is not yet, and say what came of it."""
        if self.installed:
            return f'{self.name}: is installed'
        began = monotonic()
        INSTALLED.mkdir(exist_ok=True)
        for record in (self._stamp, self._missing):
            record.unlink(missing_ok=True)
        try:
            self.build()
        except Missing as missing:
            self._missing.write_text(f'{self.name} {missing}', encoding='utf-8')
            return f'{self.name}: left out, as it {missing}'
        self._stamp.write_text(self._state, encoding='utf-8')
        return f'{self.name}: installed in {monotonic() - began:.0f} s'


@dataclass(frozen=True)
class NodeServer(Server):
    """A package of npm's, installed as its lock file says."""

    @property
    def pins(self) -> Path:
        return HERE / self.name / 'package-lock.json'

    def build(self) -> None:
        for program in ('node', 'npm'):
            if not _answers(program, '--version'):
                raise Missing(f'needs {program}, which is not on this machine')
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        for name in ('package.json', 'package-lock.json'):
            shutil.copy(self.pins.with_name(name), self.folder)
        _run(['npm', 'ci', '--no-audit', '--no-fund', '--ignore-scripts'], self.folder)

    def runs(self) -> bool:
        return (self.folder / 'node_modules').is_dir() and _answers('node', '--version')


@dataclass(frozen=True)
class PythonServer(Server):
    """Packages in a Python environment of their own."""

    least: tuple[int, int]
    """The oldest Python that it runs on."""

    @property
    def pins(self) -> Path:
        return HERE / f'{self.name}.txt'

    @property
    def python(self) -> Path:
        return self.folder / 'bin' / 'python'

    def build(self) -> None:
        found = next((python for python in _pythons() if _is_new_enough(python, self.least)), None)
        if found is None:
            raise Missing(f'needs Python {self.least[0]}.{self.least[1]} or newer, which is not on this machine')
        _run([found, '-m', 'venv', '--clear', str(self.folder)], INSTALLED)
        _run([*self._pip, '-r', str(self.pins)], INSTALLED)

    @property
    def _pip(self) -> list[str]:
        options = ['-qq', '--disable-pip-version-check', '--no-input', '--no-compile']
        return [str(self.python), '-m', 'pip', 'install', *options]

    def runs(self) -> bool:
        return _is_new_enough(str(self.python), self.least)


@dataclass(frozen=True)
class Engines(PythonServer):
    """Durable engines, and this package beside them."""

    def build(self) -> None:
        super().build()
        _run([*self._pip, '--editable', f'{ROOT}[testing]'], INSTALLED)


AIMOCK = NodeServer('aimock')
OGX = PythonServer('ogx', (3, 12))
LITELLM = PythonServer('litellm', (3, 11))
MOTO = PythonServer('moto', (3, 11))
ENGINES = Engines('engines', (3, 11))
SERVERS: tuple[Server, ...] = (AIMOCK, OGX, LITELLM, MOTO, ENGINES)


def _pythons() -> Iterator[str]:
    """The Pythons there may be: this one, those on the path, and those that pyenv has and does not show."""
    yield sys.executable
    yield from _PYTHONS
    versions = Path(os.environ.get('PYENV_ROOT') or Path.home() / '.pyenv') / 'versions'
    yield from (str(python) for python in sorted(versions.glob('3.*/bin/python')))


def _is_new_enough(python: str, least: tuple[int, int]) -> bool:
    # By running it: pyenv has a command for each version that one of its Pythons has, which fails if that is not on.
    return _answers(python, '-c', f'import sys, venv; sys.exit(sys.version_info < {least})')


def _answers(*command: str) -> bool:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except OSError:
        return False
    return done.returncode == 0


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return
    absent = [line for line in done.stdout.splitlines() if any(words in line for words in _NO_SUCH_PACKAGE)]
    if absent:
        raise Missing(f'cannot be had from the package registry: {absent[-1].strip()}')
    raise Failed(f'{" ".join(command)}\n{done.stdout}')


def main() -> int:
    failures = 0
    # As many at a time as CI has processors.
    with ThreadPoolExecutor(2) as threads:
        for server, install in [(server, threads.submit(server.install)) for server in SERVERS]:
            try:
                print(install.result(), flush=True)
            except (Failed, OSError, subprocess.TimeoutExpired) as failure:
                failures += 1
                print(f'{server.name}: could not be installed: {failure}', flush=True)
    return min(failures, 1)


if __name__ == '__main__':
    sys.exit(main())
