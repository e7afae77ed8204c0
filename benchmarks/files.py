"""A file of prompts, to a file of answers: our command line and batchlane's, on a fake OpenAI in another process.

What is measured is the whole process, its start included, as whoever runs a command waits for it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Fake, Figures, Ratio, Report, fake, lowest, middle
from benchmarks.peers import OURS, python_of

_BATCHLANE = """
import dataclasses, os, sys
from batchlane import cli
from batchlane.adapters import openai_shaped
row = openai_shaped.ROWS['openai']
openai_shaped.ROWS['openai'] = dataclasses.replace(row, base_url=os.environ['OPENAI_BASE_URL'])
sys.exit(cli.main(sys.argv[1:]))
"""
"""Its command line, which has no option for the address that it asks."""


def run(*, quick: bool = False, profile: bool = False) -> Report:
    count, large, repetitions = (20, 0, 1) if quick else (10_000, 100_000, 3)
    ours = python_of(OURS, install=not quick) or Path(sys.executable)
    peer = python_of('batchlane', install=not quick)
    pythons = {'ours': ours, 'ours, on Responses': ours, 'batchlane': peer}
    cases = [case for case, python in pythons.items() if python is not None]
    report = Report(
        'files',
        f'{count:,} rows of 80 B in a JSONL file, chat completions in one batch, answers to another file; whole '
        f'processes, {repetitions} times in turn. CPU: lowest. Memory: median peak.'
        + (f' And {large:,} rows of 1 kB, once.' if large else ''),
        ['CPU s', 'wall s', 'CPU ms a row', 'peak MB'],
    )
    runs: dict[str, list[Figures]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / 'rows.jsonl', count, 80)
        for _ in range(repetitions):
            for case in cases:
                with fake() as server:
                    runs[case].append(_run(case, server, folder, 'rows.jsonl', pythons[case]))
                    report.counts[case] = {'answers': runs[case][-1].pop('answers'), **server.counts()}
        for case in cases:
            cpu = lowest(runs[case], 'cpu')
            wall = middle(runs[case], 'wall')
            report.rows[case] = [cpu, wall, cpu / count * 1000, middle(runs[case], 'memory')]
        if large:
            _write(folder / 'large.jsonl', large, 1000)
            with fake() as server:
                figures = _run('ours', server, folder, 'large.jsonl', ours)
            report.rows[f'ours, {large:,} rows of 1 kB'] = [
                figures['cpu'],
                figures['wall'],
                figures['cpu'] / large * 1000,
                figures['memory'],
            ]
    if peer is not None:
        (cpu, wall, _, memory), theirs = report.rows['ours'], report.rows['batchlane']
        report.ratios = [
            Ratio("CPU, ours to batchlane's", cpu / theirs[0], 0.5),
            Ratio("wall time, ours to batchlane's", wall / theirs[1], 0.5),
            Ratio("peak memory, ours to batchlane's", memory / theirs[3], 0.5),
        ]
    return report


def _write(path: Path, count: int, size: int) -> None:
    text = 'The quick brown fox jumps over the lazy dog. ' * (size // 40 + 1)
    with path.open('w', encoding='utf-8') as stream:
        for number in range(count):
            stream.write(json.dumps({'id': f'row-{number}', 'prompt': f'{number} {text}'[:size]}) + '\n')


def _run(case: str, server: Fake, folder: Path, rows: str, python: Path | None) -> Figures:
    """Run a command over a file in a process of its own."""
    out = folder / 'out.jsonl'
    for left in folder.glob('out.jsonl*'):
        left.unlink()
    common = ['run', rows, '--model']
    if case == 'batchlane':
        options = ['openai/gpt-5-mini', '--prompt-field', 'prompt', '--id-field', 'id', '-o', out.name]
        command = [str(python), '-c', _BATCHLANE, *common, *options, '--poll-interval', '0.2']
    else:
        model = 'openai-responses:gpt-5-mini' if 'Responses' in case else 'openai-chat:gpt-5-mini'
        options = [model, '--input-column', 'prompt', '-o', out.name, '--poll', '0.2', '--quiet']
        command = [str(python), '-m', 'pydantic_ai_batch.cli', *common, *options]
    # It asks for a list of prices at its start, and waits for that where there is no network.
    quiet = {'LITELLM_LOCAL_MODEL_COST_MAP': 'True'}
    environment = os.environ | quiet | {'OPENAI_BASE_URL': server.url, 'OPENAI_API_KEY': 'test'}
    began = time.monotonic()
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f'{case} ended with {process.returncode}')
    with out.open('rb') as stream:
        answers = sum(1 for line in stream if line.strip())
    wall = time.monotonic() - began
    cpu = usage.ru_utime + usage.ru_stime
    return {'cpu': cpu, 'wall': wall, 'memory': _megabytes(usage), 'answers': float(answers)}


def _megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == 'darwin' else 1e3)
