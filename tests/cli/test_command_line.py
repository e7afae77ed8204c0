"""The command line without its commands."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from pydantic_ai_batch.cli import app


def test_version_is_that_of_the_installed_package() -> None:
    result = CliRunner().invoke(app, ['--version'])
    assert (result.exit_code, result.output) == (0, f'pydantic-ai-batch {version("pydantic-ai-batch")}\n')


def test_help_lists_the_commands_and_not_the_inner_ones() -> None:
    result = CliRunner().invoke(app, ['--help'])
    assert result.exit_code == 0
    assert ' demo ' in result.output
    assert 'demo-collect' not in result.output
