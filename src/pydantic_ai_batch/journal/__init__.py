"""The journal: a file that says what was sent, so that a program that was killed carries on where it was.

Give its path as `journal=`. The same program, started again with the same file, takes over the batches that are in
flight and the answers that were read, and sends, and pays for, only what is new. One journal is one job: a new
experiment takes a new file.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, get_args

from pydantic_ai.exceptions import UserError

from pydantic_ai_batch.clock import Clock
from pydantic_ai_batch.lanes.base import Lane

from .ledger import Ledger
from .pruning import prune
from .store import close, store_of

OnCancel = Literal['keep', 'cancel']


@dataclass(frozen=True)
class Journal:
    """A durable record of what was sent and answered, in an SQLite file on a disk of this machine.

    Several processes may use one file at the same time. It holds no key and no request, but what models answered, and
    is readable by its owner only.

    Raises:
        UserError: A setting is none of its values.
    """

    path: str | os.PathLike[str]
    """The file, which is made if there is none."""

    share: bool = False
    """Whether processes that run at the same time give equal requests one place. If not, each process's requests are
    its own while it runs, and only later processes take them over."""

    strict: bool = False
    """Whether to refuse new requests while the file has others, of an earlier run for the same model, that nothing has
    matched: something in the requests probably changes from run to run. If not, that is a warning."""

    on_cancel: OnCancel = 'keep'
    """What a run or call that is cancelled, as by Ctrl-C, does to its batches: `keep` leaves them running for the next
    start, `cancel` cancels them as it would be without a journal."""

    resend_lost: bool = False
    """Whether requests are sent again that may be lost: those of a batch of which nobody can tell whether it was
    created, and of a batch that the provider no longer has. They may be paid for twice."""

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(f'The `path` of a journal must be a path, not {self.path!r}.')
        if not os.fspath(self.path) or '\0' in os.fsdecode(self.path):
            raise UserError(f'The `path` of a journal must be that of a file, not {os.fspath(self.path)!r}.')
        for name in ('share', 'strict', 'resend_lost'):
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(f'`{name}` of a journal must be `True` or `False`, not {value!r}.')
        if self.on_cancel not in get_args(OnCancel):
            raise UserError(f"`on_cancel` must be 'keep' or 'cancel', not {self.on_cancel!r}.")

    @property
    def size(self) -> int:
        """The bytes that it takes up on the disk; 0 if there is no file yet."""
        path = Path(self.path).expanduser()
        parts = (path, path.with_name(f'{path.name}-wal'))
        return sum(part.stat().st_size for part in parts if part.exists())

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return Path(self.path).expanduser().exists()

    def close(self) -> None:
        """End this process's session with the file. It is opened again when it is next used.

        What this process makes after that takes over what it was answered before, as a new process would: call it
        before the cell of a notebook is run again. Nothing may be running on the journal.
        """
        close(Path(self.path))

    def prune(self, *, older_than: timedelta = timedelta(0)) -> int:
        """Forget requests whose batch has ended and was read, and with them their answers.

        A later run that makes them again sends, and pays for, them again. What is in flight, and what a process that
        runs now has claimed, stays.

        Args:
            older_than: How long ago the batch must have ended.

        Returns:
            How many requests were forgotten.

        Raises:
            UserError: `older_than` is no `timedelta`, or is negative.
            JournalError: The journal cannot be used.
        """
        if not (isinstance(older_than, timedelta) and older_than >= timedelta(0)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UserError(
                f'`older_than` must be a `timedelta` that is not negative, such as `timedelta(days=30)`, not '
                f'{older_than!r}.'
            )
        if not self.exists:
            return 0
        return prune(store_of(Path(self.path)), older_than)


JournalLike = Journal | str | os.PathLike[str]
"""What `journal=` takes: a journal, or its path."""


def journal_of(journal: JournalLike | None) -> Journal | None:
    """The journal that `journal=` stands for."""
    return journal if journal is None or isinstance(journal, Journal) else Journal(journal)


def refuse_unfindable(lane: Lane) -> None:
    """Refuse to keep a journal for a lane where it would promise too much.

    Raises:
        UserError: A batch of the lane whose creation was cut off could never be found again.
    """
    if not lane.info.findable:
        raise UserError(
            f'A journal cannot be kept for {lane.info.title}, where a batch whose creation was cut off can never be '
            'found again: leave `journal=` out.'
        )


async def ledger_of(journal: Journal | None, clock: Clock, lane: Lane | None = None) -> Ledger | None:
    """What is recorded in a journal, opened off the event loop, for requests of a lane if one is given.

    Raises:
        JournalError: It cannot be used. Nothing was sent.
        UserError: A lost batch of the lane could never be found again, so that the journal would promise too much.
    """
    if journal is None:
        return None
    if lane is not None:
        refuse_unfindable(lane)
    store = await asyncio.to_thread(store_of, Path(journal.path))
    return Ledger(
        store,
        clock,
        share=journal.share,
        strict=journal.strict,
        keeps=journal.on_cancel == 'keep',
        resend_lost=journal.resend_lost,
    )
