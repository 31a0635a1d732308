"""A partition far over the others, on several real servers, cut into slices that several tasks read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from flight_server.protocol import ServerLost
from spark_client.connection import Reading, RemoteServer
from spark_client.jobs import SealedDataset, Shares, cuts_of, shares
from spark_client.jobs.tasks import ReadTask
from spark_client.merge import DatasetRef
from tests.support.server_process import ServerProcess
from tests.support.spread import PARTITIONS, spread, values

FRAME_ROWS = 100
SCHEMA = pa.schema([("n", pa.int64())])
LARGE = 2


def rows_of(server: int, partition: int) -> list[int]:
    """Of the large partition different numbers of frames at each server, and none at the second one."""
    count = (7 * FRAME_ROWS, 0, 4 * FRAME_ROWS + 10)[server] if partition == LARGE else 5
    return [1_000_000 * partition + 10_000 * server + row for row in range(count)]


@pytest.fixture(scope="module")
def servers(servers: list[ServerProcess]) -> list[ServerProcess]:
    spread("d", servers, rows=rows_of, frame_rows=FRAME_ROWS)
    return servers


def ref_of(servers: Sequence[ServerProcess], lane: Any = "auto") -> DatasetRef:
    return DatasetRef.find(RemoteServer(servers[1].location, reading=Reading(lane=lane)), "d")


LARGE_ROWS = [row for server in range(3) for row in rows_of(server, LARGE)]


@pytest.mark.parametrize(("lane", "target_bytes"), [("grpc", 2500), ("bulk", 1), ("bulk", 1 << 20)])
def test_the_slices_over_all_servers_have_every_frame_once_in_the_order_of_the_portions(
    servers: Sequence[ServerProcess], lane: str, target_bytes: int
) -> None:
    ref = ref_of(servers, lane)
    pieces = ref.plan([LARGE], target_bytes)[LARGE]
    assert len(pieces) == 12 if target_bytes == 1 else len(pieces) < 12
    assert sum(size_bytes for _, _, size_bytes in pieces) > 8 * len(LARGE_ROWS)
    # Any borders between, also over a portion's end.
    for first in range(len(pieces)):
        for last in range(first, len(pieces)):
            middle = values(ref.read_frames(LARGE, pieces[first][0], pieces[last][1]))
            before = values(ref.read_frames(LARGE, pieces[0][0], pieces[first][0])) if first else []
            assert before + middle == LARGE_ROWS[: len(before) + len(middle)]
    assert values(ref.read_frames(LARGE, pieces[0][0], pieces[-1][1])) == LARGE_ROWS
    ref.server.close()


def test_tasks_read_a_partition_that_is_cut_over_servers_each_row_once(
    servers: Sequence[ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "TASK_BYTES", 2000)
    ref = ref_of(servers)
    sizes = tuple(9000 if partition == LARGE else 300 for partition in range(PARTITIONS))
    cuts = cuts_of(SealedDataset(ref, SCHEMA, sizes))
    assert [cut.partition for cut in cuts] == [LARGE]
    assert len(cuts[0].piece_bytes) > 3
    # Fewer tasks than pieces: shares have slices and whole partitions.
    task = ReadTask(ref, Shares.equal(sizes, 4, cuts))
    assert len(task.shares) == 4
    found = [values(task.run(iter([pa.record_batch({"id": [number]})]))) for number in range(4)]
    assert sum(any(row in LARGE_ROWS for row in rows) for rows in found) > 1
    assert sorted(row for rows in found for row in rows) == sorted(
        row for server in range(3) for partition in range(PARTITIONS) for row in rows_of(server, partition)
    )
    ref.server.close()


def test_a_slice_of_a_lost_server_is_an_error_that_names_it() -> None:
    with ServerProcess.start() as one, ServerProcess.start() as two:
        listed = spread("d", [one, two], rows=lambda _, partition: [partition] * 10, frame_rows=5)
        ref = DatasetRef.find(RemoteServer(one.location), "d")
        pieces = ref.plan([0], 1)[0]
        two.kill()
        assert values(ref.read_frames(0, pieces[0][0], pieces[1][1])) == [0] * 10
        with pytest.raises(ServerLost) as gone:
            values(ref.read_frames(0, pieces[1][0], pieces[3][1]))
        assert gone.value.detail["start"] == listed[1]["start"]
        ref.server.close()
