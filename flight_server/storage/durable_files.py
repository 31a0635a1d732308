"""DurableFiles: the files of a durable dataset, from its first synced segment to its last file.

Guarantee: after :meth:`DurableFiles.commit` the whole dataset survives a crash; after :meth:`DurableFiles.forget` it
never comes back. Between the two states is one rename or one unlink.

    not committed   each segment is deleted with its last slice or record, as of any spilled dataset
    committed       a manifest names the segments, and they stay
    forgotten       the manifest is gone, and segments are deleted as before the commit, so that readers finish

A manifest that could neither be finished nor removed is *uncertain*: it counts as committed, and all verbs can be
called again. One that was written and did not get the dataset its name is uncertain, too, until
:meth:`DurableFiles.withdraw` has deleted it or another ``commit`` has replaced it. A damaged dataset that was not
dropped is moved instead, see ``quarantine``.

Order of writes
    segments → fsync each → fsync their directory and its parent → fsync the marker → manifest under a temporary name
    → fsync → rename → fsync the directory and its parent. Forgetting: unlink the manifest → fsync the directory → the
    segments. So after a crash a whole manifest names whole segments, or there is none and the next start deletes what
    is left.

Concurrency
    :meth:`Durability.persist` holds ``turn``, so one task at a time writes a dataset. The verbs block and run in
    threads; they exclude each other.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import Any, Literal

from flight_server.records import DiskTrouble, trouble_with

from .disk_files import sync_directory, sync_file, write_file
from .ownership import DIRECTORY_LOCK, MARKER_NAME, Marker, make_dataset_directory, remove_unused_directory
from .quarantine import DAMAGE_NAME, Quarantined, put_aside
from .segments import Segment, SegmentSlice

Leaving = Literal["dropped", "expired", "retired"]
"""How a dataset leaves the catalogue: by ``drop``, or because its lease or its retention ended."""

MANIFEST_NAME = "manifest"
_UNFINISHED_NAME = "manifest.new"


class Forgotten(Exception):
    """The dataset was dropped or replaced before its manifest was written."""


class _Manifest(Enum):
    """Whether the next start would find a manifest."""

    ABSENT = auto()
    UNCERTAIN = auto()  # the disk refused to write or remove it, or it is to be withdrawn
    PRESENT = auto()


class DurableFiles:
    """The files of one generation. ``directory`` holds its segments."""

    def __init__(self, directory: Path, marker: Marker | None = None) -> None:
        self.directory = directory
        self.found_at_start = (
            False  # an earlier process has accepted the frames, perhaps without --full-validation
        )
        self.turn = asyncio.Lock()
        # The partitions whose frames are all in synced segments; the places of its dictionary messages.
        self.synced: set[int] = set()
        self.dictionaries: dict[Any, SegmentSlice] = {}
        # How the dataset leaves the catalogue once its manifest is gone; None while it stays.
        self.leaving: Leaving | None = None
        self.damage: Quarantined | None = None
        self._marker = marker
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._manifest = _Manifest.ABSENT
        self._forgotten = False

    @property
    def committed(self) -> bool:
        """Whether a manifest is there, or may be."""
        return self._manifest is not _Manifest.ABSENT

    @property
    def stays(self) -> bool:
        """Whether a manifest is there for sure."""
        return self._manifest is _Manifest.PRESENT

    @property
    def forgotten(self) -> bool:
        """Whether no manifest may be written any more."""
        return self._forgotten

    @property
    def dataset(self) -> str | None:
        """The dataset's name, if it has a marker."""
        return None if self._marker is None else self._marker.dataset

    @classmethod
    def recovered(
        cls, directory: Path, segments: list[Segment], marker: Marker, damage: Quarantined | None
    ) -> DurableFiles:
        files = cls(directory, marker)
        files.found_at_start = True
        files._keep(segments)
        files._manifest = _Manifest.PRESENT
        files.damage = damage
        return files

    def mark_present(self) -> None:
        """The file that makes the dataset durable is there, or may be."""
        self._manifest = _Manifest.PRESENT

    def mark_absent(self) -> None:
        self._manifest = _Manifest.ABSENT

    def mark_forgotten(self) -> None:
        """From now on :meth:`commit` raises Forgotten. :meth:`forget` is still to be called."""
        self._forgotten = True

    def mark_uncertain(self) -> None:
        """The manifest, if there is one, did not get the dataset its name: :meth:`withdraw` is to be called."""
        if self._manifest is _Manifest.PRESENT:
            self._manifest = _Manifest.UNCERTAIN

    def sync(self, segments: Iterable[Segment]) -> None:
        """Write the segments' bytes and names to the medium. Blocks. After DiskTrouble some of them may not be there;
        segments that failed are ``suspect``.
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
        """Write the manifest, which makes these segments the dataset. Blocks. After a success a further call changes
        nothing.

        Raises:
            DiskTrouble: the manifest is not there, or not for certain, or not in the data directory that this server
                has locked; call it again.
            Forgotten: see :meth:`mark_forgotten`.
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
                self.check_held()
            except OSError as error:
                with suppress(OSError):
                    self._take_back()
                raise trouble_with(self.directory, error) from error
            self._manifest = _Manifest.PRESENT

    def forget(self) -> Quarantined | None:
        """Delete the manifest, or quarantine a damaged dataset that was not dropped and return its note. Blocks. Twice
        is fine. Raises DiskTrouble: the dataset would come back after a crash; call it again.
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

    def check_held(self) -> None:
        if self._marker is not None:
            self._marker.check_held()

    def withdraw(self) -> None:
        """Delete an uncertain manifest. Blocks. Twice is fine, also after a later :meth:`commit`, whose manifest stays.
        Raises DiskTrouble: the dataset may come back after a crash; call it again.
        """
        with self._lock:
            if self._manifest is _Manifest.UNCERTAIN:
                try:
                    self._take_back()
                except OSError as error:
                    raise trouble_with(self.directory, error) from error

    def _write(self, manifest: bytes) -> None:
        unfinished = self.directory / _UNFINISHED_NAME
        with DIRECTORY_LOCK:
            make_dataset_directory(self.directory, self._marker)
            write_file(unfinished, b"", sync=False)  # so that the directory is not unused
        if self._marker is not None:
            sync_file(self.directory / MARKER_NAME)
        write_file(unfinished, manifest)

    def _take_back(self) -> None:
        """Delete the manifest. After an OSError it and the segments that it names may be there."""
        for name in (_UNFINISHED_NAME, MANIFEST_NAME):
            (self.directory / name).unlink(missing_ok=True)
        if self._manifest is not _Manifest.ABSENT:
            with suppress(FileNotFoundError):
                sync_directory(self.directory)
        self._manifest = _Manifest.ABSENT
        for segment in self._segments:
            segment.keep = False
        self._segments = []
        # A dataset without rows has no segment whose deletion would remove the directory.
        with suppress(OSError), DIRECTORY_LOCK:
            if self.damage is not None:
                (self.directory / DAMAGE_NAME).unlink(missing_ok=True)
            remove_unused_directory(self.directory)

    def _keep(self, segments: list[Segment]) -> None:
        self._segments = segments
        for segment in segments:
            segment.keep = True
