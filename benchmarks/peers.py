"""Other software that does the same, each in an environment of its own below `.bench`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parents[1] / '.bench'


def python_of(package: str, *, install: bool) -> Path | None:
    """The Python that has a package, which is installed if it is not there; `None` if it is not to be, or cannot."""
    python = ENVIRONMENTS / package / 'bin' / 'python'
    if python.exists() or not install:
        return python if python.exists() else None
    try:
        subprocess.run([sys.executable, '-m', 'venv', str(python.parents[1])], check=True)
        pip = [str(python), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', package]
        subprocess.run(pip, check=True)
    except subprocess.CalledProcessError:
        return None
    return python
