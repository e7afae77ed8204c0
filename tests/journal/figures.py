"""`python -m tests.journal.figures` kills programs at random, and writes what came of it into docs/reliability.md."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from journal.kills import Outcome, expected, kill_at_random
from journal.program import ROWS

PAGE = Path(__file__).parents[2] / 'docs' / 'reliability.md'
_FIGURES = re.compile(r'(<!-- kills -->\n).*?(<!-- end -->)', re.DOTALL)
_HEAD = ('programs killed at random', 'starts', 'rows', 'answered once', 'billed once', 'batches created', 'needed')


def _play(seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        outcome = kill_at_random(Path(folder), seed)
    print('.', end='', flush=True)
    return outcome


def _table(outcomes: Sequence[Outcome]) -> str:
    names = ('openai', 'anthropic', 'google')
    answered = sum(
        all(answers[name][row] == expected(name)[row] for answers in outcome.answers)
        for outcome in outcomes
        for name in names
        for row in range(ROWS)
    )
    row = (
        len(outcomes),
        sum(outcome.starts for outcome in outcomes),
        len(outcomes) * len(names) * ROWS,
        answered,
        sum(outcome.billed[f'{name} {row}'] == 1 for outcome in outcomes for name in names for row in range(ROWS)),
        sum(outcome.creates for outcome in outcomes),
        len(outcomes) * len(names) * 2,
    )
    lines = (_HEAD, ['---'] * len(_HEAD), [f'{figure:,}' for figure in row])
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main(count: int) -> None:
    """Kill `count` programs."""
    with ThreadPoolExecutor(2) as pool:
        table = _table(list(pool.map(_play, range(count))))
    print(f'\n{table}')
    page = PAGE.read_text(encoding='utf-8')
    PAGE.write_text(_FIGURES.sub(lambda match: f'{match[1]}\n{table}\n\n{match[2]}', page), encoding='utf-8')


if __name__ == '__main__':
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
