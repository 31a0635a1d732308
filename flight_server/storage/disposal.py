"""Disposal: the one thread that closes, deletes and quarantines the server's files, in the order of the calls.

Guarantee: files given to :meth:`Disposal.forget` are deleted or, if they are damaged and were not dropped, moved to
the quarantine. What the disk refuses is tried again at each :meth:`Disposal.forget_again`. Once the thread has ended,
because the server stops, callers do the work themselves, at once.

Finalizers
    :meth:`Disposal.dispose` is called by finalizers, and the collector runs these in any thread, inside any lock that
    the thread holds: an executor's, for one. So work is passed on by a ``SimpleQueue``, whose ``put`` waits for no lock
    and may interrupt another ``put`` of its thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog

from flight_server.memory import Reservation
from flight_server.protocol import DataQuarantined

from .durable_files import DurableFiles
from .quarantine import Quarantined, note_damage
from .segments import DiskTrouble, dispose_now

T = TypeVar("T")
Work = Callable[[], object]

_log = structlog.get_logger("flight_server.storage.disposal")


class Disposal:
    """See the module's text."""

    def __init__(self) -> None:
        self.quarantine: list[Quarantined] = []
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None ends the thread
        # It does not refer to this object, whose last reference ends it, too.
        self._thread = threading.Thread(
            target=_work_off, args=(self._work,), name="flight-server-disposal", daemon=True
        )
        self._thread.start()
        # What the disk refused to forget. Changed in the thread only.
        self._unforgotten: list[DurableFiles] = []
        self._closed = False

    def dispose(self, fd: int, path: Path | None, reservation: Reservation) -> None:
        """Call :func:`~flight_server.storage.segments.dispose_now` in the thread."""
        self._do(dispose_now, fd, path, reservation)

    def forget(self, files: DurableFiles) -> None:
        """Call :meth:`DurableFiles.forget` in the thread."""
        self._do(self._forget, files)

    def forget_again(self) -> None:
        """Try again what the disk has refused: a duty of the server."""
        if self._unforgotten:
            self._do(self._forget)

    def damaged(self, files: DurableFiles, said: Quarantined) -> None:
        """Note the first damage of the files, here and on disk; see ``quarantine``."""
        if files.damage is None:
            files.damage = said
            self.quarantine.append(said)
            self._do(note_damage, files.directory, said)

    def check_quarantine(self, name: str) -> None:
        """Raise DataQuarantined if damage of a dataset of that name is listed."""
        aside = [each for each in self.quarantine if each.dataset == name]
        if aside:
            where = "; ".join(f"{each.path}: {each.reason}" for each in aside)
            raise DataQuarantined(
                f"data loss: dataset {name!r} was found damaged on disk and is kept aside, nothing of it is deleted "
                f"({where}). Write it again, or have its files looked at",
                dataset=name,
                generation=aside[-1].generation,
                path=aside[-1].path,
            )

    async def settled(self) -> None:
        """Return when all earlier calls were tried and the segments that they released were deleted. Cancelling is
        safe, see :func:`to_its_end`.
        """
        loop = asyncio.get_running_loop()
        for _ in range(2):
            tried: asyncio.Future[None] = loop.create_future()
            self._do(loop.call_soon_threadsafe, tried.set_result, None)
            await to_its_end(tried)

    def close(self) -> None:
        """Try what is left, and end the thread. Blocks. Twice is fine."""
        if not self._closed:
            self.forget_again()
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
                _try(work)

    def _forget(self, *more: DurableFiles) -> None:
        waiting, self._unforgotten = [*self._unforgotten, *more], []
        for files in waiting:
            try:
                aside = files.forget()
            except DiskTrouble as trouble:
                _log.error("files_not_forgotten", directory=files.directory.name, trouble=str(trouble))
                self._unforgotten.append(files)
            except Exception as bug:  # noqa: BLE001  # the others must be forgotten, too
                _log.error("files_not_forgotten", directory=files.directory.name, exc_info=bug)
            else:
                damage = files.damage
                if damage is not None:
                    others = [each for each in self.quarantine if each is not damage]
                    self.quarantine = others if aside is None else [*others, aside]
                    files.damage = None


def _work_off(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        _try(work)
        del work  # not kept while the thread waits for the next


def _try(work: Work) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the thread must go on
        _log.error("disposal_failed", exc_info=error)


async def to_its_end(work: asyncio.Future[T]) -> T:
    """The result of the work. A cancellation is raised only when the work has ended."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not work.cancelled():
            work.exception()  # it is looked at, so that the loop does not report it
        try:
            raise cancelled
        finally:
            del cancelled  # its traceback has this frame: a cycle that would keep all that the callers hold
    return work.result()
