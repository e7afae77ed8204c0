"""What the fakes of one server share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.testing.answers import AnswerFunction
from pydantic_ai_batch.testing.calls import CallLog


@dataclass
class Scene:
    """The clock, the answers and the settings that hold for every provider, and the record of all calls."""

    clock: Clock
    answer: AnswerFunction
    processing: timedelta
    ordered: bool
    seed: int
    address: str | None = None
    """`http://127.0.0.1:PORT` while the server listens."""
    calls: CallLog = field(default_factory=CallLog)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while a call is answered, and while a test looks at a batch."""
    mistakes: list[Exception] = field(default_factory=list[Exception])
    """What the test's own functions raised."""
