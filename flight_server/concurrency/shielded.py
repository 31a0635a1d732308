"""Work that a cancellation of its caller does not stop: what is being written is written to its end.

Guarantee: when the caller goes on, with a result or an error, no thread works for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

T = TypeVar("T")


async def in_thread(
    threads: Executor | None,
    work: Callable[..., T],
    *arguments: object,
    then: Callable[[], None] | None = None,
) -> T:
    """The result of blocking work; a cancellation comes after it, and after ``then``: see :func:`to_its_end`.
    ``threads``: None for the loop's own.
    """
    return await to_its_end(asyncio.get_running_loop().run_in_executor(threads, work, *arguments), then)


def _tell(ended: asyncio.Future[None], _work: object) -> None:
    if not ended.done():
        ended.set_result(None)


async def to_its_end(work: Awaitable[T], then: Callable[[], None] | None = None) -> T:
    """The result of the work. A cancellation is raised only when the work has ended. ``then``: called when the work has
    ended without an error, before a cancellation is raised.
    """
    cancelled: asyncio.CancelledError | None = None
    doing = asyncio.ensure_future(work)
    del work  # as below
    while not doing.done():
        ended = asyncio.get_running_loop().create_future()
        # Not ``asyncio.wait``, which takes several times as long.
        doing.add_done_callback(partial(_tell, ended))
        try:
            await ended
        except asyncio.CancelledError as error:
            cancelled = error
    # Looked at, so that the loop does not report it.
    failed = doing.cancelled() or doing.exception() is not None
    if then is not None and not failed:
        then()
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback has this frame: a cycle that would keep the callers' variables
    try:
        return doing.result()
    finally:
        del doing  # the same, if it raises
