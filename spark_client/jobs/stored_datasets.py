"""The objects that servers keep of a driver's datasets in shared storage, as the driver looks for and deletes them.

A server deletes its own object with its dataset. The driver deletes what those leave that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress

import pyarrow as pa

from flight_server.protocol import folder_of, index_of, shown
from spark_client.lanes import store_of
from spark_client.merge import DatasetRef

_log = logging.getLogger(__name__)


def is_stored(source: DatasetRef, starts: Collection[str]) -> bool:
    """Whether each portion of these starts has an object, which is there now; False also if the driver may not look."""
    try:
        for portion in source.portions:
            if portion.start not in starts:
                continue
            if portion.stored is None:
                return False
            files, path = store_of(index_of(portion.stored))
            files.open_input_file(path).close()
    except (OSError, pa.ArrowException) as error:
        _log.info("%s: %s", source.dataset, shown(str(error)))
        return False
    return True


def remove_stored(prefix: str, dataset: str, generation: str) -> None:
    """Delete what is there of this generation. What the storage refuses is logged."""
    folder = folder_of(prefix, dataset, generation)
    try:
        files, path = store_of(folder)
        with suppress(FileNotFoundError):
            files.delete_dir(path)
    except (OSError, pa.ArrowException) as error:
        _log.warning("%s stays below %s: %s", dataset, shown(folder), shown(str(error)))
