"""Links names of pydantic-ai to its own documentation.

mkdocstrings would take the addresses from an inventory that it downloads, and a build here needs no network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files

_SITE = 'https://pydantic.dev/docs/ai/api'
_REFERENCE = re.compile(r'\]\[(pydantic_ai\.[\w.]+)\]')


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Register each name of pydantic-ai that a page or a docstring refers to."""
    root = Path(config.config_file_path).parent
    sources = [*root.glob('docs/**/*.md'), *root.glob('src/**/*.py')]
    autorefs: Any = config.plugins['autorefs']
    names = {name for path in sources for name in _REFERENCE.findall(path.read_text(encoding='utf-8'))}
    for name in names:
        _, *module, _ = name.split('.')
        page = '/'.join(module if module[0] == 'models' else ['pydantic-ai', *module])
        autorefs.register_url(name, f'{_SITE}/{page}/#{name}')
