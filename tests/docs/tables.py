"""The tables of the pages that are made from the code; `python tests/docs/tables.py` writes them into them.

A table stands between `<!-- table: NAME ARGUMENTS -->` and `<!-- end -->`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic_ai_batch import LANES, BatchModelRequests, LaneInfo
from pydantic_ai_batch.journal import schema
from pydantic_ai_batch.lanes.facts import shown
from pydantic_ai_batch.statuses import FRAMEWORK
from pydantic_ai_batch.testing import FakeProviders

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / 'src' / 'pydantic_ai_batch'
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]

_TABLE = re.compile(r'(<!-- table: (\w+) ?([^>]*?) -->\n).*?(<!-- end -->)', re.DOTALL)


def with_tables(page: str) -> str:
    """The text of a page with its tables as the code has them now."""
    return _TABLE.sub(lambda match: f'{match[1]}\n{TABLES[match[2]](*match[3].split())}\n\n{match[4]}', page)


def settings() -> str:
    """The settings of the capability, with their defaults."""
    docs = _field_docs(BatchModelRequests)
    fields = [field for field in dataclasses.fields(BatchModelRequests) if field.init and field.name in docs]
    rows = ((f'`{field.name}`', _shown(field.default), docs[field.name]) for field in fields)
    return _table(('setting', 'default', 'what it is'), rows)


def lanes() -> str:
    """Every lane in a line."""
    head = ('lane', 'models', 'at least', 'requests', 'size', 'window', 'results kept', 'discount')
    facts = ('min_requests', 'max_requests', 'max_bytes', 'windows', 'results_kept', 'discount')
    rows = (
        (f'`{info.name}`', info.models, *(_fact(fact, getattr(info, fact)) for fact in facts))
        for info in LANES.values()
    )
    return _table(head, rows)


def retention() -> str:
    """How long each lane's results can be collected."""
    rows = ((info.title, _fact('results_kept', info.results_kept)) for info in LANES.values() if info.results_kept)
    return _table(('provider', 'results kept'), rows)


def statuses() -> str:
    """Each lane's words for the state of a batch, in ours and the framework's."""
    head = ('status', "the framework's", *(f'`{info.name}`' for info in LANES.values()))
    rows = (
        (
            f'`{status}`',
            f'`{theirs}`',
            *(
                ', '.join(f'`{word}`' for word, meant in info.statuses.items() if meant == status) or '–'
                for info in LANES.values()
            ),
        )
        for status, theirs in FRAMEWORK.items()
    )
    return _table(head, rows)


def served() -> str:
    """The models that have a lane."""
    return _table(('models', 'served by'), ((info.models, info.title) for info in LANES.values()))


def facts(name: str) -> str:
    """All facts about a lane, with what each is known from."""
    docs, info = _field_docs(LaneInfo), LANES[name]
    known = [field.name for field in dataclasses.fields(info) if field.name in info.sources]
    rows = [(docs[fact], _fact(fact, getattr(info, fact)), info.sources[fact]) for fact in known]
    ours = [(fact, getattr(info, fact)) for fact in ('key_variables', 'verified') if getattr(info, fact)]
    rows += [(docs[fact], ', '.join(f'`{item}`' for item in value), '') for fact, value in ours]
    return _table(('fact', 'value', 'known from'), rows)


def operations() -> str:
    """The HTTP operations of each fake."""
    fakes = FakeProviders().providers.values()
    rows = ((f'`fake.{fake.name}`', ', '.join(f'`{name}`' for name in sorted(fake.operations))) for fake in fakes)
    return _table(('fake', 'operations'), rows)


def modules(*names: str) -> str:
    """What each module is responsible for, as its first sentence says."""
    rows = ((f'`{_module(name).relative_to(PACKAGE)}`', _first_sentence(_module(name))) for name in names)
    return _table(('module', 'responsible for'), rows)


def faults(title: str) -> str:
    """The faults that `FakeProviders` injects into one kind of target, from the documentation of `inject`."""
    doc = inspect.getdoc(FakeProviders().openai.inject) or ''
    (items,) = [part for part in re.split(r'\n\n(?=\S)(?!- )', doc) if part.startswith(title)]
    bullets = re.findall(r'^- `(\w+)`(?: \((.*?)\))?: (.*?)(?=^- |\Z)', items, re.MULTILINE | re.DOTALL)
    rows = ((f'`{name}`', options.replace('\n', ' '), ' '.join(what.split())) for name, options, what in bullets)
    return _table(('fault', 'options', 'what happens'), rows)


def inapplicable() -> str:
    """The faults that a provider cannot have."""
    fakes = FakeProviders().providers.values()
    rows = ((f'`fake.{fake.name}`', f'`{name}`', why) for fake in fakes for name, why in fake.inapplicable.items())
    return _table(('fake', 'fault', 'why not'), rows)


def journal() -> str:
    """The tables of a journal, and their columns, with the comments that the schema has."""
    rows: list[tuple[str, str, str]] = []
    for table, body in re.findall(r'CREATE TABLE (\w+) \((.*?)\n\)', '\n'.join(schema.STEPS), re.DOTALL):
        for column, comment in re.findall(r'^    "?([a-z]\w*)"? [A-Z][^\n]*?(?:-- ([^\n]*))?$', body, re.MULTILINE):
            rows.append((f'`{table}`', f'`{column}`', comment[:1].upper() + comment[1:]))
    return _table(('table', 'column', 'what it is'), rows)


TABLES: Mapping[str, Callable[..., str]] = {
    function.__name__: function
    for function in (
        settings,
        lanes,
        served,
        retention,
        statuses,
        facts,
        modules,
        operations,
        faults,
        inapplicable,
        journal,
    )
}


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ['---'] * len(head), *([cell.replace('|', r'\|') for cell in row] for row in rows)]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        units = ((3600, 'hour'), (60, 'minute'), (0, 'second'))
        size, unit = next((size or 1, unit) for size, unit in units if value >= timedelta(seconds=size))
        count = value / timedelta(seconds=size)
        return f'{count:g} {unit}{"s" * (count != 1)}'
    if value is None or isinstance(value, bool):
        return f'`{value}`'
    return f'{value:,}' if isinstance(value, int) else f'`{type(value).__name__}()`'


def _fact(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ', '.join(f'`{word}`: {meaning}' for word, meaning in value.items())
    if value and name in ('endpoints', 'tag_field'):
        return ', '.join(f'`{item}`' for item in ([value] if isinstance(value, str) else value))
    return shown(name, value)


def _field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a class, in a line."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: _plain(doc.value.value)
        for field, doc in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


def _first_sentence(path: Path) -> str:
    doc = ast.get_docstring(ast.parse(path.read_text(encoding='utf-8'))) or ''
    return _plain(doc.split('\n\n')[0])


def _plain(text: str) -> str:
    """Text in a line, with cross-references as plain code."""
    return re.sub(r'\[(`[^`]+`)\]\[[\w.]+\]', r'\1', ' '.join(text.split()))


def _module(name: str) -> Path:
    path = PACKAGE / name
    return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


if __name__ == '__main__':
    for page in PAGES:
        page.write_text(with_tables(page.read_text(encoding='utf-8')), encoding='utf-8')
