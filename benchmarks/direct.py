"""A list of requests through our `model_request_batch` and pydantic-ai's own, on a fake OpenAI in another process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pydantic_ai.messages import ModelRequest, ModelResponse
from pydantic_ai.models.batch import BatchRequest
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from benchmarks.measure import (
    Fake,
    Figures,
    Meter,
    Ratio,
    Report,
    Timers,
    case_main,
    fake,
    lowest,
    middle,
    run_case,
    run_profile,
)

CASES = ('built-in', 'ours')
WARM_UP = 20
INTERVAL = timedelta(seconds=0.2)


def run(*, quick: bool = False, profile: bool = False) -> Report:
    count, repetitions = (30, 1) if quick else (10_000, 5)
    runs: dict[str, list[Figures]] = {case: [] for case in CASES}
    report = Report(
        'direct',
        f'{count:,} requests of 2 kB in one batch, in a fresh process for each case, {repetitions} times in turn. CPU: '
        'lowest. Memory: median peak above imports, a warm-up and the list of requests.',
        ['CPU s', 'CPU ms a request', 'peak MB'],
    )
    for _ in range(repetitions):
        for case in CASES:
            with fake() as server:
                runs[case].append(_run(server, case, count))
                report.counts[case] = {'answers': runs[case][-1].pop('answers'), **server.counts()}
    for case in CASES:
        cpu = lowest(runs[case], 'cpu')
        report.rows[case] = [cpu, cpu / count * 1000, middle(runs[case], 'memory')]
    cpus, memories = ([report.rows[case][column] for case in CASES] for column in (0, 2))
    report.ratios = [
        Ratio('CPU, ours to the built-in', cpus[1] / cpus[0], 1.0),
        Ratio('peak memory, ours to the built-in', memories[1] / max(memories[0], 0.001), 1.0),
    ]
    timed: dict[str, list[Figures]] = {case: [] for case in CASES}
    for _ in range((repetitions + 1) // 2):
        for case in CASES:
            with fake() as server:
                timed[case].append(_run(server, case, count, timed=True))
    for case, figures in timed.items():
        best = min(figures, key=lambda run: run['cpu'])
        report.breakdown[case] = {
            name.removeprefix('in '): seconds / count * 1000 for name, seconds in best.items() if name[:3] == 'in '
        }
    if profile:
        with fake() as server:
            report.profile = run_profile(__name__, case='ours', url=server.url, count=count)
    return report


def _run(server: Fake, case: str, count: int, **options: Any) -> Figures:
    return run_case(__name__, case=case, url=server.url, count=count, **options)


def prompts(count: int) -> list[BatchRequest]:
    """Requests of 2 kB of prompt each, no two the same."""
    text = 'The quick brown fox jumps over the lazy dog. ' * 50
    return [
        BatchRequest(custom_id=f'row-{number}', messages=[ModelRequest.user_text_prompt(f'{number} {text}'[:2000])])
        for number in range(count)
    ]


async def _case(options: dict[str, Any]) -> Figures:
    from pydantic_ai.direct import model_request_batch as built_in

    from pydantic_ai_batch import model_request_batch as ours

    send = ours if options['case'] == 'ours' else built_in
    model = OpenAIResponsesModel('gpt-5-mini', provider=OpenAIProvider(base_url=options['url'], api_key='test'))

    async def answer(requests: Sequence[BatchRequest]) -> list[Any]:
        return list(await send(model, requests, poll_interval=INTERVAL, max_poll_interval=INTERVAL))

    async with model:
        # What is imported and built on first use is not what a request takes.
        await answer(prompts(WARM_UP))
        requests = prompts(options['count'])
        timers = _timers(options['case'], model) if options.get('timed') else None
        meter = Meter()
        answers = await answer(requests)
        figures = meter.read()
    figures['answers'] = sum(isinstance(answer, ModelResponse) for answer in answers)
    if timers is not None:
        parts = dict(timers.seconds)
        parts['everything else, the timers too'] = figures['cpu'] - sum(parts.values())
        figures |= {f'in {name}': seconds for name, seconds in parts.items()}
    return figures


def _timers(case: str, model: OpenAIResponsesModel) -> Timers:
    """Timers of the same steps in each case. What is the framework's own code, each of them calls alike."""
    timers = Timers()
    if case == 'ours':
        _watch_ours(timers)
    else:
        _watch_built_in(timers, model)
    timers.watch("batch_encode (the framework's)", model, 'batch_encode')
    timers.watch("batch_decode (the framework's)", model, 'batch_decode')
    return timers


def _watch_ours(timers: Timers) -> None:
    from pydantic_ai_batch import chunks, creation, direct, lifecycle
    from pydantic_ai_batch.codec import NativeCodec
    from pydantic_ai_batch.lanes import openai, openai_shape
    from pydantic_ai_batch.lanes.base import Payload

    timers.watch('checking the call', direct, 'check_requests')
    timers.watch('preparing messages', chunks, 'prepared')
    timers.watch('around batch_encode', NativeCodec, 'encode')
    timers.watch('framing into the payload', Payload, 'add')
    timers.watch('upload and create', creation, 'submit')
    timers.watch('checks', openai.OpenAILane, 'status')
    timers.watch('parsing result lines', openai_shape, 'parse_object')
    timers.watch('reading results off them', openai_shape, '_read_line')
    timers.watch('around batch_decode', NativeCodec, 'decode')
    timers.watch('download, and the rest of reading', lifecycle.BatchWatch, '_read')


def _watch_built_in(timers: Timers, model: OpenAIResponsesModel) -> None:
    from pydantic_ai import direct

    timers.watch('checking the call', direct, 'refuse_pending_batch_request')
    if hasattr(direct, '_break_special_tokens'):  # Older versions of pydantic-ai have none.
        timers.watch('preparing messages', direct, '_break_special_tokens')
    timers.watch('preparing instructions', direct, '_ensure_instruction_parts')
    timers.watch('upload and create', model, 'batch_create')
    timers.watch('checks', model, 'batch_status')
    timers.watch('download, and the rest of reading', model, 'batch_results')


if __name__ == '__main__':
    case_main(_case)
