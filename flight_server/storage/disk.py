"""Disk: the directories of all datasets, and the threads that write, read and delete files in them.

Guarantee: manifests and drops of one name take effect on disk and in the catalogue in the same order. A task holds
the name's :meth:`Disk.turn` while it drops a durable dataset, or draws a manifest's number, writes the manifest and
installs the dataset. An expiry is one synchronous step and takes no turn.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from flight_server.access import acting
from flight_server.memory import MemoryPool
from flight_server.protocol import directory_name
from flight_server.records import Database, Quarantine, trouble_with

from .disk_files import is_real_directory
from .disposal import Disposal
from .folder import SEGMENTS_NAME, Folder
from .ownership import DATASETS_NAME, Marker, read_marker
from .segments import SegmentWriter

DEFAULT_SEGMENT_BYTES = 32 << 20
_OWNER = "0" * 16

_log = structlog.get_logger("flight_server.storage.disk")


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
        self.owner = ""
        self.folder: Folder | None = None
        self.records: Database | None = None
        self.quarantine = Quarantine()
        self._held: Callable[[], bool] = lambda: True
        self.foreign: list[str] = []  # paths that are not this server's, see own_directories
        # The spiller uses one at a time; reading back and sealing use the others.
        self.io_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="flight-server-io")
        self.disposal = Disposal()
        self._segment_bytes = segment_bytes
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._sequence = 0
        if data_dir is not None:
            self.use(data_dir, owner=_OWNER, lasting=True)

    def use(
        self, data_dir: Path, *, owner: str, lasting: bool, held: Callable[[], bool] = lambda: True
    ) -> None:
        """Open the folder and the records there; called before the first dataset is made. Blocks. Raises OSError;
        Damaged: the records are.

        Args:
            owner: for the names of files, see ``folder``.
            lasting: the directory outlives the process, so datasets can be durable.
            held: whether the directory is still this server's. Once it is not, nothing new is written there.
        """
        self.data_dir = data_dir
        self.owner = owner
        self.lasting = lasting
        self._held = held
        self.folder = Folder(data_dir / SEGMENTS_NAME, owner, held)
        if lasting:
            self.records = Database(data_dir, before_commit=self.folder.sync)
            self.quarantine = Quarantine(self.records)

    def check_held(self) -> None:
        """Raise DiskTrouble if the data directory is not this server's any more. Blocks."""
        try:
            Marker("data", self.owner, held=self._held).check_held()
        except OSError as error:
            raise trouble_with(self.data_dir or Path(), error) from error

    def marker(self, name: str, generation: str) -> Marker:
        return Marker("dataset", self.owner, name, generation, self._held)

    def own_directories(self, base: Path) -> Iterator[tuple[Path, Marker]]:
        """The directories of this server's datasets below ``base``, by name. Others stay as they are, and are logged
        and listed as ``foreign``. Blocks.
        """
        for directory in sorted(base.iterdir()):
            marker = read_marker(directory) if is_real_directory(directory) else None
            if marker is None or (marker.kind, marker.owner) != ("dataset", self.owner):
                self.foreign.append(str(directory))
                _log.warning("foreign_files_left_alone", path=str(directory))
            else:
                yield directory, marker

    @property
    def datasets_dir(self) -> Path | None:
        return None if self.data_dir is None else self.data_dir / DATASETS_NAME

    def writer(self, name: str, generation: str, kind: object = None) -> SegmentWriter | None:
        """The writer of a generation's segments, in a directory of their own; None without ``data_dir``. They count for
        the principal whose call asks.
        """
        if self.datasets_dir is None:
            return None
        owner = acting.get()
        pool = self.pool if owner is None else owner.disk
        directory = self.datasets_dir / f"{directory_name(name)}-{generation}"
        return SegmentWriter(
            directory, pool, self._segment_bytes, self.disposal.dispose, self.marker(name, generation)
        )

    def turn(self, name: str) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    def next_sequence(self) -> int:
        """A number higher than that of every manifest so far."""
        self._sequence += 1
        return self._sequence

    def recovered(self, sequence: int) -> None:
        self._sequence = max(self._sequence, sequence)

    def close(self) -> None:
        """End the threads. Blocks until files are closed. Twice is fine."""
        self.io_threads.shutdown(wait=True, cancel_futures=True)
        self.disposal.close()
        if self.records is not None:
            self.records.close()
