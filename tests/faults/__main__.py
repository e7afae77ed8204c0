"""`python -m tests.faults` plays the fault matrix and prints its table; `--write` writes it into docs/details.md."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.table import main

main()
