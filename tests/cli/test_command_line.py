"""The command line without its commands."""

from __future__ import annotations

import json
from importlib.metadata import version

from pydantic import TypeAdapter
from typer.testing import CliRunner

from pydantic_ai_batch import LANES, LaneInfo
from pydantic_ai_batch.cli import app


def test_version_is_that_of_the_installed_package() -> None:
    result = CliRunner().invoke(app, ['--version'])
    assert (result.exit_code, result.output) == (0, f'pydantic-ai-batch {version("pydantic-ai-batch")}\n')


def test_help_lists_the_commands_and_not_the_inner_ones() -> None:
    result = CliRunner().invoke(app, ['--help'])
    assert result.exit_code == 0
    assert ' demo ' in result.output
    assert 'demo-collect' not in result.output


def test_lanes_are_listed_with_their_limits() -> None:
    result = CliRunner().invoke(app, ['lanes'], env={'COLUMNS': '80'})
    assert result.exit_code == 0
    rows = [[cell.strip() for cell in line.split('│')] for line in result.output.splitlines() if line.startswith('│')]
    assert [row[1] for row in rows] == list(LANES)
    assert ['openai', '50,000', '200 MB', '24 h', '30 d', '50%', 'yes'] in [row[1:-1] for row in rows]
    assert 'bedrock: at least 100' in result.output


def test_a_lane_is_shown_with_all_that_is_known_and_where_from() -> None:
    result = CliRunner().invoke(app, ['lanes', 'claude'], env={'COLUMNS': '200'})
    assert result.exit_code == 0
    assert 'anthropic: Anthropic Message Batches' in result.output
    assert all(source in result.output for source in set(LANES['anthropic'].sources.values()))
    assert 'ANTHROPIC_API_KEY' in result.output


def test_the_windows_of_a_lane_are_told_in_hours() -> None:
    result = CliRunner().invoke(app, ['lanes', 'mistral'], env={'COLUMNS': '200'})
    assert '24 hours, 1 hour, 167 hours' in result.output


def test_lanes_are_written_as_json() -> None:
    result = CliRunner().invoke(app, ['lanes', '--json'])
    described = json.loads(result.output)
    assert [lane['name'] for lane in described] == list(LANES)
    assert TypeAdapter(list[LaneInfo]).validate_python(described) == list(LANES.values())
    assert json.loads(CliRunner().invoke(app, ['lanes', 'gpt', '--json']).output) == described[0]


def test_a_lane_that_is_none_is_an_error_that_lists_them() -> None:
    result = CliRunner().invoke(app, ['lanes', 'nowhere'])
    assert result.exit_code == 2
    assert "There is no lane 'nowhere'. There are openai," in result.output
