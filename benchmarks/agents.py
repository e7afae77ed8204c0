"""Concurrent agent runs: batched by us, by pydantic-ai's own capability, and sent live, on fakes in other processes."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.measure import (
    Figures,
    Meter,
    Ratio,
    Report,
    case_main,
    fake,
    lowest,
    middle,
    run_case,
    run_profile,
)

CASES = ('live, 50 at a time', 'live, all at once', 'built-in', 'ours')
_INSTRUCTIONS = 'You sort support tickets. Answer with one word: billing, bug, question or other.'


def run(*, quick: bool = False, profile: bool = False) -> Report:
    # The interval is longer than the built-in needs to go through its runs once, so that all of them take part in
    # every check; what it is does not change what a check costs.
    count, polls, repetitions, interval = (10, 4, 1, 0.02) if quick else (1000, 100, 3, 0.25)
    options = {'count': count, 'interval': interval}
    runs: dict[str, list[Figures]] = {case: [] for case in CASES}
    report = Report(
        'agents',
        f'{count:,} concurrent `agent.run`, of one batch that ends at its check number {polls}, in a fresh process for '
        f'each case, {repetitions} times in turn. CPU: lowest. Memory: median peak above imports and a warm-up.',
        ['CPU s', 'CPU ms a run', 'peak MB'],
    )
    for _ in range(repetitions):
        for case in CASES:
            with ExitStack() as stack:
                instant = stack.enter_context(fake())
                server = instant if case.startswith('live') else stack.enter_context(fake(polls))
                runs[case].append(run_case(__name__, case=case, url=server.url, instant=instant.url, **options))
                report.counts[case] = {'answers': runs[case][-1].pop('answers'), **server.counts()}
    for case in CASES:
        cpu = lowest(runs[case], 'cpu')
        report.rows[case] = [cpu, cpu / count * 1000, middle(runs[case], 'memory')]
    live, burst, built_in, ours = (report.rows[case][0] for case in CASES)
    report.ratios = [
        Ratio('CPU, ours to live, 50 at a time', ours / live, 1.1),
        Ratio('CPU, ours to live, all at once', ours / burst, 1.1),
        Ratio('CPU, ours to the built-in', ours / built_in),
    ]
    if profile:
        with fake() as instant, fake(polls) as server:
            report.profile = run_profile(__name__, case='ours', url=server.url, instant=instant.url, **options)
    return report


def _capabilities(case: str, count: int, interval: float) -> list[AbstractCapability[Any]]:
    from pydantic_ai.capabilities import BatchModelRequests as BuiltIn

    from pydantic_ai_batch import BatchModelRequests

    if case.startswith('live'):
        return []
    batching = BatchModelRequests if case == 'ours' else BuiltIn
    every = timedelta(seconds=interval)
    return [batching(max_requests=count, poll_interval=every, max_poll_interval=every)]


async def _case(options: dict[str, Any]) -> Figures:
    case, count, interval = options['case'], options['count'], options['interval']

    async def answer(url: str, count: int, at_once: int) -> list[str]:
        model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(base_url=url, api_key='test'))
        agent = Agent(model, instructions=_INSTRUCTIONS, capabilities=_capabilities(case, count, interval))
        turns = asyncio.Semaphore(at_once)

        async def one(number: int) -> str:
            async with turns:
                return (await agent.run(f'Ticket {number}: the invoice shows the wrong address.')).output

        async with agent:
            return list(await asyncio.gather(*[one(number) for number in range(count)]))

    # What is imported and built on first use is not what a run takes.
    await answer(options['instant'], 3, 3)
    meter = Meter()
    answers = await answer(options['url'], count, 50 if case.endswith('at a time') else count)
    figures = meter.read()
    figures['answers'] = sum(answer.startswith('Answer to: Ticket') for answer in answers)
    return figures


if __name__ == '__main__':
    case_main(_case)
