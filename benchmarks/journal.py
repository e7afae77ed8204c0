"""What a journal costs a list of requests, and how fast the same list is read from it after a restart."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelResponse
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.direct import INTERVAL, WARM_UP, prompts
from benchmarks.measure import Fake, Figures, Meter, Ratio, Report, case_main, fake, lowest, middle, run_case
from pydantic_ai_batch import Journal, lane_for, model_request_batch
from pydantic_ai_batch.clock import SYSTEM_CLOCK
from pydantic_ai_batch.journal import ledger_of
from pydantic_ai_batch.journal.digests import fingerprint

CASES = ('without', 'with a journal', 'again', 'claims and reads alone')
_AT_ONCE = 200
_WANTED_RATE = 20_000
"""Requests a second that a restart is to claim and read, what it takes to encode and decode them apart."""


def run(*, quick: bool = False, profile: bool = False) -> Report:
    count, repetitions = (30, 1) if quick else (50_000, 3)
    runs: dict[str, list[Figures]] = {case: [] for case in CASES}
    report = Report(
        'journal',
        f'{count:,} requests of 2 kB through `model_request_batch`, in a fresh process for each case, {repetitions} '
        'times in turn; `again` is the same call after that with a journal, in another process, then what that does '
        'with the journal alone. CPU: lowest. Memory: median peak above imports, a warm-up and the list of requests.',
        ['CPU s', 'CPU ms a request', 'peak MB'],
    )
    for _ in range(repetitions):
        with fake() as server, tempfile.TemporaryDirectory() as folder:
            for case in CASES:
                runs[case].append(_run(server, case, count, Path(folder)))
                report.counts[case] = {'answers': runs[case][-1].pop('answers'), **server.counts()}
    for case in CASES:
        cpu = lowest(runs[case], 'cpu')
        report.rows[case] = [cpu, cpu / count * 1000, middle(runs[case], 'memory')]
    plain, journaled, _, alone = (report.rows[case] for case in CASES)
    report.ratios = [
        Ratio('CPU, with a journal to without', journaled[0] / plain[0], 1.35),
        Ratio('peak memory with a journal less that without, in 50 MB', (journaled[2] - plain[2]) / 50, 1.0),
        Ratio(f'claims and reads at {_WANTED_RATE:,} a second, to ours', alone[0] * _WANTED_RATE / count, 1.0),
    ]
    return report


def _run(server: Fake, case: str, count: int, folder: Path) -> Figures:
    journal = None if case == 'without' else str(folder / 'journal.db')
    return run_case(__name__, url=server.url, count=count, journal=journal, apart=case == CASES[-1])


async def _case(options: dict[str, Any]) -> Figures:
    model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(base_url=options['url'], api_key='test'))
    async with model:
        if options['apart']:
            return await _claims_and_reads(model, options['count'], options['journal'])
        # What is imported and built on first use is not what a request takes.
        await model_request_batch(model, prompts(WARM_UP), poll_interval=INTERVAL, max_poll_interval=INTERVAL)
        requests = prompts(options['count'])
        meter = Meter()
        answers = await model_request_batch(
            model, requests, poll_interval=INTERVAL, max_poll_interval=INTERVAL, journal=options['journal']
        )
        figures = meter.read()
    figures['answers'] = sum(isinstance(answer, ModelResponse) for answer in answers)
    return figures


async def _claims_and_reads(model: OpenAIResponsesModel, count: int, journal: str) -> Figures:
    """What the call does with its journal after a restart, without encoding requests and decoding answers."""
    lane = lane_for(model)
    encoded = [await lane.encode(request) for request in prompts(count)]
    bodies = [(request.group, request.body.encode()) for request in encoded]
    meter = Meter()
    ledger = await ledger_of(Journal(journal), SYSTEM_CLOCK, lane)
    assert ledger is not None
    wanted: dict[str, list[str]] = {}
    for start in range(0, count, _AT_ONCE):
        prints = [fingerprint(lane.scope, group, body, 0) for group, body in bodies[start : start + _AT_ONCE]]
        for claim in await ledger.claim(prints):
            assert claim.place is not None
            wanted.setdefault(claim.place.tag, []).append(claim.place.custom_id)
    answers = 0
    for tag, custom_ids in wanted.items():
        async for _ in ledger.results(tag, custom_ids):
            answers += 1
    return {**meter.read(), 'answers': answers}


if __name__ == '__main__':
    case_main(_case)
