"""`python -m benchmarks`: all of them, or those that are named."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import ModuleType
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import agents, direct, files, journal
from benchmarks.measure import Report, machine

BENCHMARKS: dict[str, ModuleType] = {'direct': direct, 'agents': agents, 'journal': journal, 'files': files}


def main(
    names: Annotated[list[str] | None, typer.Argument(help=f'Of {", ".join(BENCHMARKS)}; all by default.')] = None,
    quick: Annotated[bool, typer.Option('--quick', help='Tiny sizes: whether it works, not how fast it is.')] = False,
    profile: Annotated[bool, typer.Option('--profile', help='Also show where our CPU goes, function by function.')] = (
        False
    ),
    as_json: Annotated[bool, typer.Option('--json', help='Print JSON instead of tables.')] = False,
) -> None:
    """Measure against other ways to do the same, side by side, and show the ratios."""
    if unknown := set(names or ()) - set(BENCHMARKS):
        raise typer.BadParameter(f'Unknown: {", ".join(sorted(unknown))}. Known: {", ".join(BENCHMARKS)}.')
    reports: list[Report] = []
    console = Console()
    if not as_json:
        console.print(machine(), highlight=False)
    for name in names or BENCHMARKS:
        reports.append(BENCHMARKS[name].run(quick=quick, profile=profile))
        if not as_json:
            show(console, reports[-1])
    if as_json:
        print(json.dumps({'machine': machine(), 'reports': [asdict(report) for report in reports]}))


def show(console: Console, report: Report) -> None:
    console.print(f'\n[bold]{report.name}[/]: {report.work}', highlight=False)
    ratios = Table('ratio', 'is', 'wanted')
    for ratio in report.ratios:
        ratios.add_row(ratio.name, f'{ratio.value:.2f}', '' if ratio.wanted is None else f'at most {ratio.wanted}')
    figures = Table('case', *report.columns)
    for case, values in report.rows.items():
        figures.add_row(case, *(f'{value:.3f}' for value in values))
    console.print(ratios)
    console.print(figures)
    if report.breakdown:
        parts = Table('where the CPU goes, ms a request', *report.breakdown)
        for name in dict.fromkeys(name for figures in report.breakdown.values() for name in figures):
            values = (figures.get(name) for figures in report.breakdown.values())
            parts.add_row(name, *('' if value is None else f'{value:.4f}' for value in values))
        console.print(parts)
    if report.profile:
        console.print(report.profile, highlight=False, markup=False, soft_wrap=True)


if __name__ == '__main__':
    typer.run(main)
