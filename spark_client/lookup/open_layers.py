"""The layers that this process has mapped, each once (``hosts.open_files``).

A layer's file is held while an image has it. A file is checked the first time that the process opens it, unless the
process has written it.
"""

from __future__ import annotations

import logging

from flight_server.protocol import PartitionFailed
from spark_client.hosts import HostFile, HostFiles, OpenFiles

from .layers import Layer

_MAX_CHECKED = 1000

_log = logging.getLogger(__name__)


class OpenLayers:
    """The layers of one process. Thread-safe; a forked child keeps its parent's."""

    def __init__(self) -> None:
        self._open: OpenFiles[Layer] = OpenFiles("lookups: closes files")
        self._checked: set[tuple[str, int]] = set()

    def get(self, files: HostFiles, key: str) -> Layer | None:
        """The layer in the host's file of this key; None if there is no file, or if it was damaged and is removed."""
        known = self._open.get(key)
        if known is not None:
            return known
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
        self.trust(key, file)
        return self._open.add(key, file, layer)

    def trust(self, key: str, file: HostFile) -> None:
        """Take the file of this key, as it is now, for whole without a check."""
        if len(self._checked) > _MAX_CHECKED:
            self._checked = set()
        self._checked.add((key, file.inode))

    def close(self) -> None:
        """Close all files. Layers in use stay readable."""
        self._open.close()


open_layers = OpenLayers()
"""This process's."""
