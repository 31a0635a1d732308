"""DurableFiles: what a durable dataset has on disk, from its first synced segment to its last file.

Guarantee: after :meth:`DurableFiles.commit` the dataset is there after a crash, whole; after
:meth:`DurableFiles.forget` it is not, and never comes back. In between is one rename.

    not committed   segments as of any spilled dataset: they go with their slices
    committed       a manifest names the segments; they stay, whatever becomes of the objects in RAM
    forgotten       the manifest is gone, then the segments go with their slices again, so that readers
                    of a dataset that was dropped or replaced finish what they have begun

A manifest that could neither be finished nor removed is *uncertain*: it counts as committed, its segments
stay, and both verbs can be called again. What is proven to be damaged is not deleted, see ``quarantine``.

Order of writes
    segments → fsync each → fsync their directory and its parent → manifest under a temporary name →
    fsync → rename → fsync the directory. Forgetting: unlink the manifest → fsync the directory → then
    the segments. So wherever a crash comes, either a whole manifest names whole segments, or there is
    no manifest and the next start deletes what is left.

Concurrency
    ``turn`` is held by whoever awaits a step of :mod:`~flight_server.tiering.durability`, so one event loop
    writes one manifest at a time. ``sync``, ``commit`` and ``forget`` block and run in threads;
    ``commit`` and ``forget`` exclude each other, and after ``forget`` there is no ``commit``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Literal, Protocol

from .disk_files import sync_directory, sync_file, write_file
from .ownership import DIRECTORY_LOCK, MARKER_NAME, Marker, make_dataset_directory, remove_unused_directory
from .quarantine import DAMAGE_NAME, Quarantined, put_aside
from .segments import DiskTrouble, Segment, SegmentSlice, trouble_with

Leaving = Literal["dropped", "expired", "retired"]
"""How a dataset leaves the catalogue: by ``drop``, because its lease ended, or because its retention did."""

MANIFEST_NAME = "manifest"
_UNFINISHED_NAME = "manifest.new"


class Forgotten(Exception):
    """The dataset was dropped or replaced while its manifest was being written."""


class _Manifest(Enum):
    """Whether the next start would find one."""

    ABSENT = auto()
    UNCERTAIN = auto()  # it was being written or removed, and the disk refused
    PRESENT = auto()


class StoredDictionary(Protocol):
    """A dictionary message of the dataset; see ``frames``."""

    @property
    def sequence(self) -> int: ...

    @property
    def crc32c(self) -> int: ...


class DurableFiles:
    """See the module's text.

    Args:
        directory: where the dataset's segments are; its parent holds those of all datasets.
        marker: what makes the directory this server's, see ``ownership``.
    """

    def __init__(self, directory: Path, marker: Marker | None = None) -> None:
        self.directory = directory
        self.turn = asyncio.Lock()
        # Partitions all of whose frames are in synced segments; and where the dictionaries are.
        self.synced: set[int] = set()
        self.dictionaries: dict[StoredDictionary, SegmentSlice] = {}
        # How the dataset leaves the catalogue as soon as its manifest is gone; None while it stays.
        self.leaving: Leaving | None = None
        self.damage: Quarantined | None = None
        self._marker = marker
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._manifest = _Manifest.ABSENT
        self._forgotten = False

    @property
    def committed(self) -> bool:
        """A manifest is there, or may be."""
        return self._manifest is not _Manifest.ABSENT

    @property
    def forgotten(self) -> bool:
        """:meth:`forget` was called: nothing is committed any more."""
        return self._forgotten

    @classmethod
    def recovered(
        cls, directory: Path, segments: list[Segment], marker: Marker, damage: Quarantined | None
    ) -> DurableFiles:
        """Those of a dataset whose manifest was found at the start."""
        files = cls(directory, marker)
        files._keep(segments)
        files._manifest = _Manifest.PRESENT
        files.damage = damage
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
            if self._manifest is _Manifest.PRESENT:
                return
            try:
                self._write(manifest)
                self._keep(segments)
                self._manifest = _Manifest.UNCERTAIN
                (self.directory / _UNFINISHED_NAME).rename(self.directory / MANIFEST_NAME)
                sync_directory(self.directory)
                sync_directory(self.directory.parent)
            except OSError as error:
                with suppress(OSError):
                    self._take_back()
                raise trouble_with(self.directory, error) from error
            self._manifest = _Manifest.PRESENT

    def forget(self) -> Quarantined | None:
        """The dataset does not come back. Its segments go when their last reader has left; damaged ones
        that were not dropped are put aside, and where is returned. Blocks. Twice is fine.

        Raises:
            DiskTrouble: it would come back after a crash; call it again.
        """
        with self._lock:
            self._forgotten = True
            if self._manifest is _Manifest.ABSENT:
                return None
            if self.damage is not None and self.leaving != "dropped":
                aside = put_aside(self.directory, self.damage)
                if aside.path == self.damage.path:
                    raise DiskTrouble(f"{self.directory} could not be put aside", full=False)
                self._manifest = _Manifest.ABSENT
                return aside
            try:
                self._take_back()
            except OSError as error:
                raise trouble_with(self.directory, error) from error
            self.dictionaries.clear()
            return None

    def _write(self, manifest: bytes) -> None:
        unfinished = self.directory / _UNFINISHED_NAME
        with DIRECTORY_LOCK:
            make_dataset_directory(self.directory, self._marker)
            write_file(unfinished, b"", sync=False)  # so that the directory is not unused
        if self._marker is not None:
            sync_file(self.directory / MARKER_NAME)
        write_file(unfinished, manifest)

    def _take_back(self) -> None:
        """No manifest is there. After an OSError one may be, and the segments that it names stay."""
        for name in (_UNFINISHED_NAME, MANIFEST_NAME):
            (self.directory / name).unlink(missing_ok=True)
        if self._manifest is not _Manifest.ABSENT:
            with suppress(FileNotFoundError):
                sync_directory(self.directory)
        self._manifest = _Manifest.ABSENT
        for segment in self._segments:
            segment.keep = False
        self._segments = []
        # A dataset without a row has no segment whose end would take the directory along.
        with suppress(OSError), DIRECTORY_LOCK:
            if self.damage is not None:
                (self.directory / DAMAGE_NAME).unlink(missing_ok=True)
            remove_unused_directory(self.directory)

    def _keep(self, segments: list[Segment]) -> None:
        self._segments = segments
        for segment in segments:
            segment.keep = True
