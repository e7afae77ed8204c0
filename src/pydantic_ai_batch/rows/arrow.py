"""The optional library for Parquet, imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pydantic_ai.exceptions import UserError


def arrow_modules() -> tuple[Any, Any]:
    """The modules `pyarrow` and `pyarrow.parquet`.

    Raises:
        UserError: They are not installed. The message names the extra that installs them.
    """
    try:
        return import_module('pyarrow'), import_module('pyarrow.parquet')
    except ImportError as error:
        raise UserError(
            'Parquet files need `pyarrow`: install it with `pip install "pydantic-ai-batch[parquet]"`.'
        ) from error
