"""The layers that this process has mapped, each once.

A Spark worker that is used again outlives its tasks, and a file that it holds cannot be removed for another one. So a
thread forgets a layer ``KEEP_SECONDS`` after its last use, as for broadcasts; its file is held while an image has it.
A file is checked the first time that the process opens it, unless the process has written it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass

from flight_server.protocol import PartitionFailed
from spark_client.hosts import HostFile, HostFiles

from .layers import Layer

KEEP_SECONDS = 5.0
_POLL_SECONDS = 0.5
_MAX_CHECKED = 1000

_log = logging.getLogger(__name__)


@dataclass
class _Open:
    file: HostFile
    layer: Layer
    used: float


class OpenLayers:
    """See the module. Thread-safe; a forked child keeps what its parent had mapped."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._checked: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forked)

    def get(self, files: HostFiles, key: str) -> Layer | None:
        """The layer in the host's file of this key; None if there is no file, or if it was damaged and is removed."""
        with self._lock:
            known = self._open.get(key)
            if known is not None and known.file.is_current:
                known.used = time.monotonic()
                return known.layer
        file = files.open(key)
        if file is None:
            return None
        try:
            # By its inode as well: a file of the same name may be another one.
            layer = Layer.over(file.map(), check=(key, file.inode) not in self._checked)
        except PartitionFailed as error:
            _log.warning("%s is removed, and fetched again: %s", file.path, error.message)
            file.close()
            files.remove(key)
            return None
        except BaseException:
            file.close()
            raise
        self._add(key, file, layer)
        self.trust(key, file)
        return layer

    def trust(self, key: str, file: HostFile) -> None:
        """Take the file of this key, as it is now, for whole without a check."""
        with self._lock:
            if len(self._checked) > _MAX_CHECKED:
                self._checked.clear()
            self._checked.add((key, file.inode))

    def close(self) -> None:
        """Close all files. What is in use stays readable."""
        with self._lock:
            for known in self._open.values():
                known.file.close()
            self._open.clear()

    def _add(self, key: str, file: HostFile, layer: Layer) -> None:
        with self._lock:
            before = self._open.pop(key, None)
            self._open[key] = _Open(file, layer, time.monotonic())
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lookups: closes files", daemon=True)
                self._thread.start()
        if before is not None:
            before.file.close()

    def _run(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                idle_since = time.monotonic() - KEEP_SECONDS
                for key, known in list(self._open.items()):
                    if known.used < idle_since or not known.file.is_current:
                        self._open.pop(key).file.close()
                if not self._open:
                    self._thread = None
                    return

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._thread = None


open_layers = OpenLayers()
"""This process's."""
