"""The command line, as `python -m pydantic_ai_batch`."""

from .cli import app

app(prog_name='pydantic-ai-batch')
