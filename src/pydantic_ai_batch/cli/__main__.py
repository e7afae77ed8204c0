"""`python -m pydantic_ai_batch.cli` is `pydantic-ai-batch`, also where scripts are not on the path."""

from . import app

app(prog_name='pydantic-ai-batch')
