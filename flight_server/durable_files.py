"""DurableFiles: what a durable dataset has on disk, from its first synced segment to its last file.

Guarantee: after :meth:`DurableFiles.commit` the dataset is there after a crash, whole; after
:meth:`DurableFiles.forget` it is not, and never comes back. In between is one rename.

    not committed   segments as of any spilled dataset: they go with their slices
    committed       a manifest names the segments; they stay, whatever becomes of the objects in RAM
    forgotten       the manifest is gone, then the segments go with their slices again, so that readers
                    of a dataset that was dropped or replaced finish what they have begun

Order of writes
    segments → fsync each → fsync their directory and its parent → manifest under a temporary name →
    fsync → rename → fsync the directory. Forgetting: unlink the manifest → fsync the directory → then
    the segments. So wherever a crash comes, either a whole manifest names whole segments, or there is
    no manifest and the next start deletes what is left.

Concurrency
    ``turn`` is held by whoever awaits a step of :mod:`~flight_server.durability`, so one event loop
    writes one manifest at a time. ``sync``, ``commit`` and ``forget`` block and run in threads;
    ``commit`` and ``forget`` exclude each other, and after ``forget`` there is no ``commit``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .frames import DictionaryMessage
from .spill import DiskTrouble, Segment, SegmentSlice, trouble_with

MANIFEST_NAME = "manifest"
_UNFINISHED_NAME = "manifest.new"


class Forgotten(Exception):
    """The dataset was dropped or replaced while its manifest was being written."""


def sync_directory(path: Path) -> None:
    """The directory's entries are on the medium. Blocks.

    Raises:
        OSError: they may not be.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class DurableFiles:
    """See the module's text.

    Args:
        directory: where the dataset's segments are; its parent holds those of all datasets.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.turn = asyncio.Lock()
        # Partitions all of whose frames are in synced segments; and where the dictionaries are.
        self.synced: set[int] = set()
        self.begun = False  # a manifest was being written at least once
        self.dictionaries: dict[DictionaryMessage, SegmentSlice] = {}
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._committed = False
        self._forgotten = False

    @property
    def committed(self) -> bool:
        """A manifest is there, or may be."""
        return self._committed

    @classmethod
    def recovered(cls, directory: Path, segments: list[Segment]) -> DurableFiles:
        """Those of a dataset whose manifest was found at the start."""
        files = cls(directory)
        files._keep(segments)
        files._committed = True
        return files

    def sync(self, segments: Iterable[Segment]) -> None:
        """All that was appended to these is on the medium, under their names. Blocks.

        Raises:
            DiskTrouble: some of it may not be; such segments are ``suspect`` from now on.
        """
        for segment in segments:
            segment.sync()
            if not segment.in_place():
                segment.suspect = True
                raise DiskTrouble(f"{segment.path} has vanished", full=False)
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            if self.directory.exists():
                sync_directory(self.directory)
            sync_directory(self.directory.parent)
        except OSError as error:
            raise trouble_with(self.directory, error) from error

    def commit(self, manifest: bytes, segments: list[Segment]) -> None:
        """The dataset is this manifest and these segments from now on, also after a crash. Blocks.

        A second call changes nothing: what is sealed does not change.

        Raises:
            DiskTrouble: it is not, or not for certain; call it again.
            Forgotten: the dataset is gone.
        """
        with self._lock:
            if self._forgotten:
                raise Forgotten
            if self._committed:
                return
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
                _write(self.directory / _UNFINISHED_NAME, manifest)
                self._keep(segments)
                (self.directory / _UNFINISHED_NAME).rename(self.directory / MANIFEST_NAME)
                sync_directory(self.directory)
                sync_directory(self.directory.parent)
            except OSError as error:
                self._let_go()
                for name in (_UNFINISHED_NAME, MANIFEST_NAME):
                    with suppress(OSError):
                        (self.directory / name).unlink(missing_ok=True)
                with suppress(OSError):
                    self.directory.rmdir()
                raise trouble_with(self.directory, error) from error
            self._committed = True

    def forget(self) -> None:
        """The dataset does not come back. Its segments go when their last reader has left. Blocks.
        Twice is fine.

        Raises:
            DiskTrouble: it would come back after a crash; call it again.
        """
        with self._lock:
            self._forgotten = True
            if not self._committed:
                return
            try:
                (self.directory / MANIFEST_NAME).unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    sync_directory(self.directory)
            except OSError as error:
                raise trouble_with(self.directory, error) from error
            self._committed = False
            self._let_go()
            # A dataset without a row has no segment whose end would take the directory along.
            with suppress(OSError):
                self.directory.rmdir()

    def _keep(self, segments: list[Segment]) -> None:
        self._segments = segments
        for segment in segments:
            segment.keep = True

    def _let_go(self) -> None:
        for segment in self._segments:
            segment.keep = False
        self._segments = []
        self.dictionaries.clear()


def _write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.fsync(fd)
    finally:
        os.close(fd)
