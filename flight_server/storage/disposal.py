"""Disposal: the one thread that closes and unlinks the files of segments, in the order of the calls.

Once the thread has ended, because the server stops, callers do the work themselves, at once.

A file whose unlink the disk refuses stays counted in the disk pool, and a duty of the server has it tried again
(:meth:`Disposal.try_again`) until it is gone. After a stop the next start deletes it.

A COMMIT that failed may count after a crash (``records.database``). Whether it does or not, the start needs the files
of that outcome. So while there is such a doubt, no file is deleted: it waits as those do that the disk has refused.

Finalizers
    :meth:`Disposal.dispose` is called by finalizers, and the collector runs these in any thread, inside any lock that
    the thread holds: an executor's, for one. So work is passed on by a ``SimpleQueue``, whose ``put`` waits for no lock
    and may interrupt another ``put`` of its thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog

from flight_server.concurrency import to_its_end
from flight_server.memory import Reservation

TRIED_AT_ONCE = 1000
"""Files that could not be deleted: some milliseconds, for which others wait."""

Work = Callable[[], object]

_log = structlog.get_logger("flight_server.storage.disposal")


class _Kept:
    """Files that could not be deleted yet; the thread changes them. ``in_doubt``: see the module's text."""

    def __init__(self) -> None:
        self.files: deque[tuple[Path, Reservation]] = deque()
        self.in_doubt: Callable[[], bool] = lambda: False


class Disposal:
    """The thread and its queue of one server."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None ends the thread
        # It does not refer to this object, whose last reference ends it, too.
        self._thread = threading.Thread(
            target=_work_off, args=(self._work,), name="flight-server-disposal", daemon=True
        )
        self._thread.start()
        self._kept = _Kept()
        self._closed = False

    def wait_while(self, in_doubt: Callable[[], bool]) -> None:
        """Delete nothing from now on while this is true: a COMMIT has failed that may count after a crash."""
        self._kept.in_doubt = in_doubt

    def dispose(self, fd: int, path: Path | None, reservation: Reservation) -> None:
        """Close a file in the thread; unless ``path`` is None, delete it. Free its bytes."""
        self._do(_dispose, fd, path, reservation, self._kept)

    def delete(self, path: Path, reservation: Reservation) -> None:
        """Delete a file in the thread, and free its bytes. One that is not counted is once the disk keeps it."""
        self._do(_delete, path, reservation, self._kept)

    def try_again(self) -> None:
        """Delete in the thread what could not be deleted."""
        if self._kept.files:
            self._do(_delete_kept, self._kept)

    async def wait_idle(self) -> None:
        """Return when the files of all earlier calls were deleted. Cancelling is safe, see :func:`to_its_end`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._do(loop.call_soon_threadsafe, done.set_result, None)
        await to_its_end(done)

    def close(self) -> None:
        """End the thread. Blocks. Twice is fine."""
        if not self._closed:
            self._work.put(None)
            self._thread.join()
            self._closed = True
            self._work_off_here()

    def __del__(self) -> None:
        self._work.put(None)

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        self._work.put(partial(work, *arguments))
        if self._closed:  # looked at after the put: else a close in between would leave it
            self._work_off_here()

    def _work_off_here(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                return
            if work is not None:
                _do_safely(work)


def _work_off(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        _do_safely(work)
        del work  # not kept while the thread waits for the next


def _dispose(fd: int, path: Path | None, reservation: Reservation, kept: _Kept) -> None:
    os.close(fd)
    if path is None:
        reservation.free()
    else:
        _delete(path, reservation, kept)


def _delete(path: Path, reservation: Reservation, kept: _Kept) -> None:
    try:
        if kept.in_doubt():
            raise OSError(errno.EAGAIN, "a commit of the records has failed, and may count after a crash")
        path.unlink(missing_ok=True)
    except OSError as error:
        if not reservation.size_bytes:
            with suppress(OSError):
                reservation.grow(path.stat().st_size)
        if not kept.files:
            _log.warning("file_not_deleted", path=str(path), trouble=str(error))
        kept.files.append((path, reservation))
    else:
        reservation.free()


def _delete_kept(kept: _Kept) -> None:
    for _ in range(min(len(kept.files), TRIED_AT_ONCE)):
        path, reservation = kept.files.popleft()
        _delete(path, reservation, kept)


def _do_safely(work: Work) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the thread must go on
        _log.error("disposal_failed", exc_info=error)
