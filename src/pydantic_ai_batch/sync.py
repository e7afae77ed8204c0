"""Runs a coroutine to its end from code that is not asynchronous, and finds a running event loop."""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import Coroutine
from functools import cache
from types import FrameType
from typing import Any, TypeVar

from pydantic_ai.exceptions import UserError

T = TypeVar('T')


def running_loop(what: str) -> asyncio.AbstractEventLoop:
    """The running event loop of asyncio, which `what` needs.

    Raises:
        UserError: There is none, as under Trio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise UserError(
            f'{what} needs the event loop of asyncio, and none is running here. Trio is not supported: use '
            '`asyncio.run`.'
        ) from None


def run_sync(work: Coroutine[Any, Any, T], *, instead: str) -> T:
    """Run `work` on this thread's event loop and return its result.

    The loop is kept open for the next call, as a model's HTTP client keeps connections that belong to it. Ctrl-C
    cancels the work, which may take a moment to tidy up behind it, such as cancelling batches; a second one leaves at
    once.

    Args:
        work: What to run.
        instead: The function to await in code that has a running event loop.

    Raises:
        UserError: An event loop is running on this thread.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise UserError(f'An event loop is running here already: use `await {instead}`.')
    loop = _event_loop()
    task = loop.create_task(work)
    interrupted = False

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        loop.call_soon_threadsafe(task.cancel)

    handled = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if handled:
        signal.signal(signal.SIGINT, interrupt)
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _event_loop() -> asyncio.AbstractEventLoop:
    try:
        with warnings.catch_warnings():
            # Python 3.12 deprecates making a loop this way, which is the only way to find the one that is set.
            warnings.simplefilter('ignore', DeprecationWarning)
            loop = asyncio.get_event_loop()
    except RuntimeError:
        loop = None
    if loop is None or loop.is_closed():
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
    return loop


def run_apart(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on an event loop in a thread of its own, whether or not one is running on this thread.

    It is for what asks no provider, such as encoding a request: this thread waits meanwhile.
    """
    return asyncio.run_coroutine_threadsafe(work, _loop_apart()).result()


@cache
def _loop_apart() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name='pydantic-ai-batch apart', daemon=True).start()
    return loop
