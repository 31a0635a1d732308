"""Disposal: the one thread that closes, deletes and quarantines the server's files, in the order of the calls.

Guarantee: files given to :meth:`Disposal.forget` are deleted or, if they are damaged and were not dropped, moved to the
quarantine. A refusal by the disk is logged once, and the call is tried again at each :meth:`Disposal.forget_again`;
such a round ends at its first refusal, so that a sick disk does not keep the thread from its other work. Generations
of one name are forgotten in the order of the calls. While the disk keeps one of them the last one stays, too, because
the next start would serve the earlier one otherwise. Once the thread has ended, because the server stops, callers do
the work themselves, at once.

Finalizers
    :meth:`Disposal.dispose` is called by finalizers, and the collector runs these in any thread, inside any lock that
    the thread holds: an executor's, for one. So work is passed on by a ``SimpleQueue``, whose ``put`` waits for no lock
    and may interrupt another ``put`` of its thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog

from flight_server.concurrency import to_its_end
from flight_server.memory import Reservation
from flight_server.protocol import DataQuarantined
from flight_server.records import DiskTrouble

from .durable_files import DurableFiles
from .quarantine import Quarantined, note_damage
from .segments import dispose_now

Work = Callable[[], object]

_log = structlog.get_logger("flight_server.storage.disposal")


class Disposal:
    """The thread and its queue of one server."""

    def __init__(self) -> None:
        self.quarantine: list[Quarantined] = []
        self._work: SimpleQueue[Work | None] = SimpleQueue()  # None ends the thread
        # It does not refer to this object, whose last reference ends it, too.
        self._thread = threading.Thread(
            target=_work_off, args=(self._work,), name="flight-server-disposal", daemon=True
        )
        self._thread.start()
        # By dataset the files that are still to be forgotten or withdrawn, because the disk refused the first of them;
        # datasets in the order of the next tries, files in that of the calls. Replaced in the thread only.
        self._refused: dict[str | None, list[DurableFiles]] = {}
        self._closed = False

    def dispose(self, fd: int, path: Path | None, reservation: Reservation) -> None:
        """Call :func:`~flight_server.storage.segments.dispose_now` in the thread."""
        self._do(dispose_now, fd, path, reservation)

    def delete(self, path: Path, reservation: Reservation) -> None:
        """Delete a file in the thread, and free its bytes; one that the disk keeps is deleted at the next start."""
        self._do(_delete, path, reservation)

    def forget(self, files: DurableFiles) -> None:
        """Call :meth:`DurableFiles.forget` in the thread. From now on no manifest of the files is written."""
        files.mark_forgotten()
        self._do(self._try, files)

    def withdraw(self, files: DurableFiles) -> None:
        """Call :meth:`DurableFiles.withdraw` in the thread, for a manifest that did not get the dataset its name."""
        files.mark_uncertain()
        if files.committed:
            self._do(self._try, files)

    def forget_again(self) -> None:
        """Try again the calls that the disk has refused: a duty of the server."""
        if self._refused:
            self._do(self._try_again)

    @property
    def refused(self) -> int:
        """How many generations have files that the disk has refused to delete or to withdraw."""
        return sum(map(len, self._refused.values()))

    def may_come_back(self, name: str) -> bool:
        """Whether the disk has refused to forget a generation of this name, so that the next start may find it."""
        return any(files.committed for files in self._refused.get(name, ()))

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
        safe, see :func:`~flight_server.concurrency.to_its_end`.
        """
        loop = asyncio.get_running_loop()
        for _ in range(2):
            tried: asyncio.Future[None] = loop.create_future()
            self._do(loop.call_soon_threadsafe, tried.set_result, None)
            await to_its_end(tried)

    def close(self) -> None:
        """Try the refused calls once more, and end the thread. Blocks. Twice is fine."""
        if not self._closed:
            self._do(self._try_all)
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

    def _try_again(self) -> None:
        all(self._try(files[-1]) for files in list(self._refused.values()))  # up to the first that is refused

    def _try_all(self) -> None:
        for files in list(self._refused.values()):
            self._try(files[-1])

    def _try(self, files: DurableFiles) -> bool:
        """Forget or withdraw the files, after those of the dataset that the disk has refused before. False if it
        refuses one; then the dataset is tried last the next time.
        """
        known = self._refused.get(files.dataset, [])
        waiting = known if files in known else [*known, files]
        others = {name: each for name, each in self._refused.items() if name != files.dataset}
        while waiting and self._try_one(waiting[0], known=waiting[0] in known):
            waiting = waiting[1:]
        if len(waiting) > 2 and waiting[-1].stays:
            between = [each for each in waiting[1:-1] if not self._try_one(each, known=each in known)]
            waiting = [waiting[0], *between, waiting[-1]]
        self._refused = {**others, files.dataset: waiting} if waiting else others
        return not waiting

    def _try_one(self, files: DurableFiles, *, known: bool) -> bool:
        facts = {"directory": files.directory.name}
        try:
            if files.forgotten:
                self._forget(files)
            else:
                files.withdraw()
        except DiskTrouble as trouble:
            if not known:
                _log.error("files_not_forgotten", **facts, trouble=str(trouble))
            return False
        except Exception as bug:  # noqa: BLE001  # the others must be forgotten, too
            _log.error("files_not_forgotten", **facts, exc_info=bug)
        else:
            if known:
                _log.info("files_forgotten", **facts)
        return True

    def _forget(self, files: DurableFiles) -> None:
        aside, damage = files.forget(), files.damage
        if damage is not None:
            others = [each for each in self.quarantine if each is not damage]
            self.quarantine = others if aside is None else [*others, aside]
            files.damage = None


def _work_off(queue: SimpleQueue[Work | None]) -> None:
    while (work := queue.get()) is not None:
        _do_safely(work)
        del work  # not kept while the thread waits for the next


def _delete(path: Path, reservation: Reservation) -> None:
    with suppress(OSError):
        path.unlink()
    reservation.free()


def _do_safely(work: Work) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001  # the thread must go on
        _log.error("disposal_failed", exc_info=error)
