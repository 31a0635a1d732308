"""Lost frames: frames that come back from disk with another checksum."""

from __future__ import annotations

import structlog

from flight_server.datasets import Dataset, Partition
from flight_server.protocol import CorruptFrame
from flight_server.storage import Disposal, Quarantined

_log = structlog.get_logger("flight_server.tiering.lost_frames")


def frame_lost(
    disposal: Disposal, dataset: Dataset, partition: Partition, epoch: int, corrupt: CorruptFrame
) -> CorruptFrame:
    """Fail the partition, and note the damage if its dataset is committed on disk; the cause for its readers.

    Changes nothing if the partition has failed or was reopened since.

    Args:
        epoch: the partition's when it had the frame.
    """
    cause = CorruptFrame(
        f"dataset {partition.dataset!r} partition {partition.index}: {corrupt.message}",
        dataset=partition.dataset,
        partition=partition.index,
    )
    if partition.epoch == epoch and partition.failure is None:
        _log.error("frame_lost", dataset=partition.dataset, partition=partition.index, reason=corrupt.message)
        partition.corrupt(cause, epoch)
        files = dataset.files
        if files is not None and files.committed:
            reason = f"partition {partition.index}: {corrupt.message}"
            said = Quarantined.now(dataset.name, dataset.generation, files.directory, reason)
            disposal.damaged(files, said)
    return cause
