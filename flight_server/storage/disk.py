"""Disk: the folder, the records and the quarantine of one data directory, and the threads that work on files.

Guarantee: seals and drops of one name take effect in the records and in the catalogue in the same order. A task holds
the name's :meth:`Disk.turn` while it drops a durable dataset, or commits a seal and installs the dataset. An expiry
takes no turn: it deletes one row, which a commit before it may have deleted.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flight_server.access import acting
from flight_server.memory import MemoryPool
from flight_server.protocol import Kind
from flight_server.records import Database, Quarantine

from .disposal import Disposal
from .file_header import FileHeader
from .folder import SEGMENTS_NAME, Folder
from .opened_records import damaged_records, open_records
from .segments import SegmentWriter

DEFAULT_SEGMENT_BYTES = 32 << 20
_OWNER = "0" * 16


class Disk:
    """The directories and threads of one server.

    Args:
        pool: counts segments.
        data_dir: as for :meth:`use`, with an owner that each start has; None if nothing can be spilled, or until
            :meth:`use`.

    Attributes:
        folder: where frames go; None without a data directory.
        records: what a restart needs to know; None if nothing outlives the process.
    """

    def __init__(
        self, pool: MemoryPool, data_dir: Path | None = None, *, segment_bytes: int = DEFAULT_SEGMENT_BYTES
    ) -> None:
        self.pool = pool
        self.data_dir: Path | None = None
        self.lasting = False
        self.folder: Folder | None = None
        self.records: Database | None = None
        self.quarantine = Quarantine()
        self.damaged_records: list[str] = []  # paths of those that were replaced, see ``opened_records``
        self.foreign: list[str] = []  # paths in the folder that are not this server's
        # The spiller uses one at a time; reading back and sealing use the others.
        self.io_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="flight-server-io")
        self.disposal = Disposal()
        self._segment_bytes = segment_bytes
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        if data_dir is not None:
            self.use(data_dir, owner=_OWNER, lasting=True)

    def use(
        self, data_dir: Path, *, owner: str, lasting: bool, held: Callable[[], bool] = lambda: True
    ) -> None:
        """Open the folder and the records there; called before the first dataset is made. Blocks. Raises OSError.

        Args:
            owner: for the names of files, see ``folder``.
            lasting: the directory outlives the process, so datasets can be durable.
            held: whether the directory is still this server's. Once it is not, nothing new is written there.
        """
        self.data_dir = data_dir
        self.lasting = lasting
        self.folder = Folder(data_dir / SEGMENTS_NAME, owner, held)
        if lasting:
            records = self.records = open_records(data_dir, self.folder)
            self.disposal.wait_while(lambda: records.in_doubt)
            self.quarantine = Quarantine(self.records)
            self.damaged_records = damaged_records(data_dir)

    def writer(
        self, name: str, generation: str, kind: Kind, *, durable: bool = False
    ) -> SegmentWriter | None:
        """The writer of a generation's segments, counted for the calling principal; None without ``data_dir``."""
        if self.folder is None:
            return None
        owner = acting.get()
        pool = self.pool if owner is None else owner.disk
        header = FileHeader(self.folder.owner, name, generation, kind.value, durable)
        return SegmentWriter(self.folder, header, pool, self._segment_bytes, self.disposal.dispose)

    def delete(self, path: Path) -> None:
        """Delete a file of the folder that no object holds, see ``disposal``."""
        self.disposal.delete(path, self.pool.empty())

    def turn(self, name: str) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    async def end_commits(self) -> None:
        """Let no further change into the records. When it has returned, the datasets are as the records say: nothing
        that a commit has changed is still to be changed in the catalogue.
        """
        if self.records is not None:
            await self.records.end()

    def close(self) -> None:
        """End the threads. Blocks until files are closed. Twice is fine."""
        self.io_threads.shutdown(wait=True, cancel_futures=True)
        self.disposal.close()
        if self.records is not None:
            self.records.close()
