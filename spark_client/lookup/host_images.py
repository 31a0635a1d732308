"""A host's images of a content: one process fetches the changes, all map.

Guarantee: :meth:`HostImages.at` gives the image of exactly the version that is asked for, or raises. Of all processes
of a host that need a version at the same time, one asks the server; a process that was killed at any point leaves
nothing that is taken for more than it is (``hosts.host_files``).

Fetching
    A host that has an image of an earlier version fetches the deltas since then, and writes them as a layer. Otherwise,
    or if the server has compacted them, or if they cannot be applied (``images.Unsure``), it fetches the snapshot.

Merging
    Neighbouring delta layers are merged so that each is at least twice as large as the one above it: there are few,
    and a row is copied a logarithmic number of times. When they have more than an eighth of the whole layer's rows,
    a whole layer of the new version is written; above ``INLINE_ROWS`` by a thread, beside the tasks.

Removal
    A layer that the newest image does not need is removed ``old_seconds`` after it was last opened. Processes that map
    it keep it. A layer can also be removed to make room for another file (``hosts.host_files``): it is fetched again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from flight_server.protocol import (
    Compacted,
    FlightShuffleError,
    NotFound,
    OutOfBudget,
    PartitionFailed,
    Unavailable,
)
from spark_client.arrow import values
from spark_client.hosts import HostFile, HostFiles, OpenFiles, PartFile
from spark_client.lanes import CutRead

from .images import Image, LayerRows, Unsure, changed, merged
from .layers import Layer, write_layer
from .lookup_content import DIFF, LookupContent

FETCH_SECONDS = 600.0
"""How long a process waits for another of its host to fetch a version."""

OLD_SECONDS = 60.0
MERGE_PART = 8
"""Delta layers of more than one ``MERGE_PART``-th of the whole layer's rows are merged into it."""

INLINE_ROWS = 100_000

FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIES = 10

_log = logging.getLogger(__name__)


_KEY = re.compile(r"(?P<prefix>[0-9a-z]+-[0-9a-f]{20})(w|x(?P<after>[0-9a-f]{14}))(?P<version>[0-9a-f]{14})")


@dataclass(frozen=True)
class LayerName:
    """Of a layer among a host's files: the versions that it connects; ``after`` is None for a whole layer. So the names
    alone say which images a host has; no file says which one is current, and none can disagree with it.
    """

    after: int | None
    version: int

    def key(self, prefix: str) -> str:
        """The key of the host's file; ``prefix`` is the content's."""
        kind = "w" if self.after is None else f"x{self.after:014x}"
        return f"{prefix}{kind}{self.version:014x}"

    @classmethod
    def parse(cls, key: str) -> LayerName | None:
        parts = _KEY.fullmatch(key)
        if parts is None:
            return None
        after = None if parts["after"] is None else int(parts["after"], 16)
        return cls(after, int(parts["version"], 16))


def stack(names: Iterable[LayerName], version: int) -> list[LayerName] | None:
    """The layers that make the image of ``version``, or of the last version before it that they make; the lowest
    first. Of several stacks it is the one over the newest whole layer, and of these one with the fewest layers. None
    if there is none.
    """
    best: dict[int, list[LayerName]] = {}
    for name in sorted(names, key=lambda each: (each.version, -1 if each.after is None else each.after)):
        below = [] if name.after is None else best.get(name.after)
        if below is not None and name.version <= version:
            known, layers = best.get(name.version), [*below, name]
            if known is None or (-layers[0].version, len(layers)) < (-known[0].version, len(known)):
                best[name.version] = layers
    return best[max(best)] if best else None


_MAX_CHECKED = 1000


class OpenLayers:
    """The layers that this process has mapped, each once (``hosts.open_files``). A layer's file is held while an image
    has it, and checked the first time that the process opens it, unless the process has written it.

    Thread-safe; a forked child keeps what its parent had mapped.
    """

    def __init__(self) -> None:
        self._open: OpenFiles[Layer] = OpenFiles("lookups: closes files")
        self._checked: set[tuple[str, int]] = set()

    def get(self, files: HostFiles, key: str) -> Layer | None:
        """The layer in the host's file of this key; None if there is no file, or if it was damaged and is removed."""

        def layer_of(file: HostFile) -> Layer:
            # By its inode as well: a file of the same name may be another one.
            layer = Layer.over(file.map(), check=(key, file.inode) not in self._checked)
            self.trust(key, file)
            return layer

        try:
            return self._open.get(key, lambda: files.open(key), layer_of)
        except PartitionFailed as error:
            _log.warning("the file %s is removed, and fetched again: %s", key, error.message)
            files.remove(key)
            return None

    def trust(self, key: str, file: HostFile) -> None:
        """Take the file of this key, as it is now, for whole without a check."""
        if len(self._checked) > _MAX_CHECKED:
            self._checked = set()
        self._checked.add((key, file.inode))

    def close(self) -> None:
        """Close all files. Mapped ones stay readable."""
        self._open.close()


open_layers = OpenLayers()
"""This process's."""


@dataclass
class HostImages:
    """The images of one content on this host. Cheap to make; the files are shared."""

    content: LookupContent
    old_seconds: float = OLD_SECONDS
    _files: HostFiles = field(init=False)

    def __post_init__(self) -> None:
        self._files = HostFiles(self.content.copies)

    @property
    def prefix(self) -> str:
        return f"{self.content.application}-{self.content.digest}"

    def at(self, version: int) -> Image:
        """The image of ``version``, fetched if this host does not have it.

        Raises:
            Compacted: the server no longer has the version.
            NotFound: the changelog was dropped, or created again.
            Unavailable: the server, or the process that fetches, took too long.
            OutOfBudget: the host has no room for the rows.
        """
        for _ in range(_TRIES):
            if (image := self._open(version)) is not None and image.version == version:
                return image
            with self._files.locked(f"{self.prefix}f", FETCH_SECONDS):
                image = self._open(version)
                if image is None or image.version != version:
                    try:
                        self._fetch(image, version)
                    except CutRead as error:
                        _log.info("%s is fetched again: %s", self._what(version), error.message)
        raise Unavailable(
            f"{self._what(version)} could not be fetched in {_TRIES} tries: its connection broke each time, or it was "
            "removed at once, because this host has too little room; for which allow more by "
            "spark.flight.shuffle.copies.limitBytes"
        )

    def _open(self, version: int) -> Image | None:
        for _ in range(_TRIES):
            names = stack(self._names(), version)
            if names is None:
                return None
            layers = [open_layers.get(self._files, name.key(self.prefix)) for name in names]
            if all(layers):
                return Image([layer for layer in layers if layer is not None])
            # One was removed between the look at the names and its opening.
        return None

    def _names(self) -> list[LayerName]:
        keys = self._files.opened(self.prefix)
        return [name for key in keys if (name := LayerName.parse(key)) is not None]

    def _fetch(self, image: Image | None, version: int) -> None:
        try:
            if image is None or not self._fetch_deltas(image, version):
                self._fetch_snapshot(version)
        except Compacted as error:
            raise Compacted(
                f"{self._what(version)} is gone: the server has compacted it, because nothing held it for longer than "
                f"its lease ({error.message})",
                **error.detail,
            ) from error
        except NotFound as error:
            raise NotFound(
                f"{self._what(version)} is gone: the changelog is, or was created anew, since the lookup was "
                f"made; make the lookup, and start the query, again ({error.message})",
                **error.detail,
            ) from error
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise OutOfBudget(
                f"this host has no room for {self._what(version)} ({error}): free some in "
                f"{', '.join(map(str, self._files.bases))}, or name others by spark.flight.shuffle.copies.dirs"
            ) from error
        self._tidy(version)

    def _fetch_deltas(self, image: Image, version: int) -> bool:
        """Whether the deltas could be had and applied."""
        content = self.content
        try:
            with content.source.deltas(image.version, version) as batches:
                rows = pa.concat_batches([content.rows(batch) for batch in batches])
        except Compacted:
            return False
        diffs = values(rows.column(DIFF), "i8")
        rows = rows.remove_column(rows.num_columns - 1)
        try:
            kept, live = changed(image, rows, diffs)
        except Unsure as error:
            _log.info("%s is fetched as a snapshot: %s", self._what(version), error)
            return False
        self._write(LayerName(image.version, version), lambda: LayerRows(iter([kept]), live))
        return True

    def _fetch_snapshot(self, version: int) -> None:
        def rows() -> Iterator[pa.RecordBatch]:
            with self.content.source.snapshot(version) as batches:
                yield from map(self.content.rows, batches)

        self._write(LayerName(None, version), lambda: LayerRows(rows()))

    def _write(self, name: LayerName, rows: Callable[[], LayerRows], size_bytes: int = 0) -> None:
        key, written = name.key(self.prefix), list[int]()

        def write(part: PartFile) -> None:
            of = rows()
            write_layer(
                part,
                of.batches,
                self.content.layer_schema,
                keys=len(self.content.keys),
                after=name.after,
                version=name.version,
                live=of.live,
                index=of.index,
            )
            written.append(part.file.inode)

        with closing(self._files.open_or_make(key, size_bytes, write, FETCH_SECONDS)) as file:
            if file.inode in written:
                open_layers.trust(key, file)

    def _tidy(self, version: int) -> None:
        image = self._open(version)
        if image is None:
            return
        with contextlib.suppress(Unavailable), self._files.locked(f"{self.prefix}m", 0.0):
            # Not while a thread merges: the layers over its version must stay.
            self._remove_old(version)
        whole, *deltas = image.layers
        rows = sum(layer.rows for layer in deltas)
        if rows * MERGE_PART > whole.rows:
            if whole.rows + rows <= INLINE_ROWS:
                self._merge(image.layers)
            else:
                run = partial(self._merge_beside, image.layers)
                threading.Thread(target=run, name="lookups: merges layers", daemon=True).start()
        else:
            first = len(deltas)
            while first > 1 and deltas[first - 2].rows <= 2 * sum(
                layer.rows for layer in deltas[first - 1 :]
            ):
                first -= 1
            if first < len(deltas):
                self._merge(deltas[first - 1 :])

    def _merge_beside(self, layers: tuple[Layer, ...]) -> None:
        try:
            with self._files.locked(f"{self.prefix}m", 0.0):
                self._merge(layers)
        except (FlightShuffleError, OSError) as error:
            # Another process merges; or the next fetch, which finds the same layers, tries again.
            _log.info("the layers of %s stay: %s", self._what(layers[-1].version), error)

    def _merge(self, layers: tuple[Layer, ...] | list[Layer]) -> None:
        name = LayerName(layers[0].after, layers[-1].version)
        self._write(name, lambda: merged(layers), sum(layer.size_bytes for layer in layers))

    def _remove_old(self, version: int) -> None:
        opened = self._files.opened(self.prefix)
        names = {name: key for key in opened if (name := LayerName.parse(key)) is not None}
        needed = stack(names, version) or []
        for name, key in names.items():
            old = opened[key] <= time.time() - self.old_seconds
            if old and name not in needed and name.version <= version:
                self._files.remove(key)

    def _what(self, version: int) -> str:
        return f"version {version} of changelog {self.content.source.name!r}"
