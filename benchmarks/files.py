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
from pathlib import Path

from benchmarks.measure import Fake, Figures, Ratio, Report, fake, lowest, middle
from benchmarks.peers import python_of

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
    peer = python_of('batchlane', install=not quick)
    cases = ['ours', *(['batchlane'] if peer is not None else [])]
    report = Report(
        'files',
        f'{count:,} rows of 80 B in a JSONL file, chat completions in one batch, answers to another file; whole '
        f'processes, {repetitions} times in turn. CPU: lowest. Memory: median peak.'
        + (f' And {large:,} rows of 1 kB, once.' if large else ''),
        ['CPU s', 'CPU ms a row', 'peak MB'],
    )
    runs: dict[str, list[Figures]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write(folder / 'rows.jsonl', count, 80)
        for _ in range(repetitions):
            for case in cases:
                with fake() as server:
                    runs[case].append(_run(case, server, folder, 'rows.jsonl', peer))
                    report.counts[case] = {'answers': runs[case][-1].pop('answers'), **server.counts()}
        for case in cases:
            cpu = lowest(runs[case], 'cpu')
            report.rows[case] = [cpu, cpu / count * 1000, middle(runs[case], 'memory')]
        if large:
            _write(folder / 'large.jsonl', large, 1000)
            with fake() as server:
                figures = _run('ours', server, folder, 'large.jsonl', peer)
            report.rows[f'ours, {large:,} rows of 1 kB'] = [
                figures['cpu'],
                figures['cpu'] / large * 1000,
                figures['memory'],
            ]
    if peer is not None:
        (ours, _, memory), (theirs, _, their_memory) = report.rows['ours'], report.rows['batchlane']
        report.ratios = [
            Ratio("CPU, ours to batchlane's", ours / theirs, 0.5),
            Ratio("peak memory, ours to batchlane's", memory / their_memory, 0.5),
        ]
    return report


def _write(path: Path, count: int, size: int) -> None:
    text = 'The quick brown fox jumps over the lazy dog. ' * (size // 40 + 1)
    with path.open('w', encoding='utf-8') as stream:
        for number in range(count):
            stream.write(json.dumps({'id': f'row-{number}', 'prompt': f'{number} {text}'[:size]}) + '\n')


def _run(case: str, server: Fake, folder: Path, rows: str, peer: Path | None) -> Figures:
    """Run a command over a file in a process of its own."""
    out = folder / 'out.jsonl'
    for left in folder.glob('out.jsonl*'):
        left.unlink()
    common = ['run', rows, '--model']
    if case == 'ours':
        options = ['openai-chat:gpt-5-mini', '--input-column', 'prompt', '-o', out.name, '--poll', '0.2', '--quiet']
        command = [sys.executable, '-m', 'pydantic_ai_batch.cli', *common, *options]
    else:
        options = ['openai/gpt-5-mini', '--prompt-field', 'prompt', '--id-field', 'id', '-o', out.name]
        command = [str(peer), '-c', _BATCHLANE, *common, *options, '--poll-interval', '0.2']
    # It asks for a list of prices at its start, and waits for that where there is no network.
    quiet = {'LITELLM_LOCAL_MODEL_COST_MAP': 'True'}
    environment = os.environ | quiet | {'OPENAI_BASE_URL': server.url, 'OPENAI_API_KEY': 'test'}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f'{case} ended with {process.returncode}')
    with out.open('rb') as stream:
        answers = sum(1 for line in stream if line.strip())
    return {'cpu': usage.ru_utime + usage.ru_stime, 'memory': _megabytes(usage), 'answers': float(answers)}


def _megabytes(usage: resource.struct_rusage) -> float:
    return usage.ru_maxrss / (1e6 if sys.platform == 'darwin' else 1e3)
