"""Importing the package brings in nothing that its user did not ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pydantic_ai_batch

HEAVY = (
    'openai',
    'anthropic',
    'google.genai',
    'mistralai',
    'groq',
    'boto3',
    'botocore',
    'typer',
    'rich',
    'starlette',
    'uvicorn',
    'pytest',
)


def loaded_by(code: str, *, after: str = '') -> set[str]:
    """The modules that running `code` adds to those that `after` had loaded."""
    program = f'import sys\n{after}\nbefore = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))'
    ran = subprocess.run([sys.executable, '-W', 'error', '-c', program], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def test_importing_the_package_imports_neither_the_framework_nor_an_sdk_nor_a_display():
    assert loaded_by('import pydantic_ai_batch') & {*HEAVY, 'pydantic_ai'} == set()


def test_no_public_name_imports_an_sdk_or_a_display():
    # What the framework imports by itself is not ours to say.
    framework = 'import pydantic_ai, pydantic_ai.models.batch, pydantic_ai.capabilities, pydantic_ai.direct'
    names = ', '.join((*pydantic_ai_batch.__all__, 'testing', 'exceptions', 'events', 'compat', 'progress'))
    ours = loaded_by(f'from pydantic_ai_batch import {names}', after=framework)
    assert ours & {*HEAVY} == set()
    assert 'pydantic_ai_batch.pool' in ours


def test_every_public_name_is_there_and_listed():
    assert set(pydantic_ai_batch.__all__) <= set(dir(pydantic_ai_batch))
    assert all(getattr(pydantic_ai_batch, name) is not None for name in pydantic_ai_batch.__all__)


def test_a_name_that_is_none_of_ours_is_an_attribute_error():
    with pytest.raises(AttributeError, match='no_such_name'):
        _ = pydantic_ai_batch.no_such_name
