"""Environments below `.bench`: one for each other software that does the same, and one for ours as a user has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).parents[1] / '.bench'


OURS = 'pydantic-ai-batch'


def python_of(package: str, *, install: bool) -> Path | None:
    """The Python that has a package, which is installed if it is not there; `None` if it is not to be, or cannot.

    Ours is the source here, without what its development needs, and which takes time and memory when it is imported.
    """
    python = ENVIRONMENTS / package / 'bin' / 'python'
    # What ours needs may be another thing by now.
    if not install or (python.exists() and package != OURS):
        return python if python.exists() else None
    try:
        if not python.exists():
            subprocess.run([sys.executable, '-m', 'venv', str(python.parents[1])], check=True)
        what = ['--editable', str(ENVIRONMENTS.parent)] if package == OURS else [package]
        pip = [str(python), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', *what]
        subprocess.run(pip, check=True)
    except subprocess.CalledProcessError:
        return None
    return python
