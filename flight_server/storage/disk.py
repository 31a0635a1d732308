"""Disk: the directories of all datasets, and the threads that write, read and delete files in them.

Guarantee: disk and catalogue change in one order. A task that installs or removes a durable dataset holds
:meth:`Disk.turn` of its name meanwhile, and draws the number of its manifest there (:meth:`Disk.next_sequence`).
"""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flight_server.memory import MemoryPool
from flight_server.protocol import directory_name

from .disposal import Disposal
from .ownership import DATASETS_NAME, Marker
from .segments import SegmentWriter

DEFAULT_SEGMENT_BYTES = 32 << 20


class Disk:
    """See the module's text.

    Args:
        pool: where segments are counted.
        data_dir: where segments go; None if nothing can be spilled, or :meth:`use` will say it.
        segment_bytes: size of a segment file, the unit in which disk space comes back.
    """

    def __init__(
        self, pool: MemoryPool, data_dir: Path | None = None, *, segment_bytes: int = DEFAULT_SEGMENT_BYTES
    ) -> None:
        self.pool = pool
        self.data_dir = data_dir
        self.lasting = data_dir is not None
        self.owner = ""
        self.foreign: list[str] = []  # among the datasets' directories, and not this server's
        # Spilling is one thread's work; reading back may overlap with it.
        self.io_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="flight-server-io")
        self.disposal = Disposal()
        self._segment_bytes = segment_bytes
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._sequence = 0

    def use(self, data_dir: Path, *, owner: str, lasting: bool) -> None:
        """Put segments there from now on. Call it before the first dataset is made.

        Args:
            owner: of the directories that are made there, see ``ownership``.
            lasting: the directory outlives the process, so datasets can be durable.
        """
        self.data_dir = data_dir
        self.owner = owner
        self.lasting = lasting

    @property
    def datasets_dir(self) -> Path | None:
        """What holds the directories of all datasets."""
        return None if self.data_dir is None else self.data_dir / DATASETS_NAME

    def writer(self, name: str, generation: str) -> SegmentWriter | None:
        """Writes a dataset's segments, into a directory of its own for each generation; None without a directory."""
        if self.datasets_dir is None:
            return None
        directory = self.datasets_dir / f"{directory_name(name)}-{generation}"
        marker = Marker("dataset", self.owner, name, generation)
        return SegmentWriter(directory, self.pool, self._segment_bytes, self.disposal.dispose, marker)

    def turn(self, name: str) -> asyncio.Lock:
        """Held by a task while it installs or removes a durable dataset of that name."""
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock

    def next_sequence(self) -> int:
        """A number that is higher than that of every manifest so far."""
        self._sequence += 1
        return self._sequence

    def recovered(self, sequence: int) -> None:
        """A manifest with this number was found."""
        self._sequence = max(self._sequence, sequence)

    def close(self) -> None:
        """End the threads. Blocks until files are closed. Twice is fine."""
        self.io_threads.shutdown(wait=True, cancel_futures=True)
        self.disposal.close()
