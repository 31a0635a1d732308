"""Disposal: the one thread that closes, deletes and quarantines the server's files, in the order of the calls.

Guarantee: files given to :meth:`Disposal.forget` are deleted or, if they are damaged and were not dropped, moved to
the quarantine. What the disk refuses is tried again at each :meth:`Disposal.forget_again`. Once the thread has ended,
because the server stops, callers do the work themselves, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import structlog

from flight_server.memory import Reservation
from flight_server.protocol import DataQuarantined

from .durable_files import DurableFiles
from .quarantine import Quarantined, note_damage
from .segments import DiskTrouble, dispose_now

T = TypeVar("T")

_log = structlog.get_logger("flight_server.storage.disposal")


class Disposal:
    """See the module's text."""

    def __init__(self) -> None:
        self.quarantine: list[Quarantined] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="flight-server-disposal")
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
        for _ in range(2):
            try:
                tried = asyncio.get_running_loop().run_in_executor(self._thread, lambda: None)
            except RuntimeError:  # it was closed
                tried = asyncio.ensure_future(asyncio.to_thread(self._thread.shutdown))
            await to_its_end(tried)

    def close(self) -> None:
        """Try what is left, and end the thread. Blocks. Twice is fine."""
        if not self._closed:
            self.forget_again()
            self._closed = True
            self._thread.shutdown(wait=True)

    def _do(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            self._thread.submit(work, *arguments)
        except RuntimeError:  # it was closed, or the interpreter is going down
            work(*arguments)

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
            # This frame is in its traceback: the cycle would keep what the caller holds.
            del cancelled
    try:
        return work.result()
    finally:
        del work  # the same, if it raises
