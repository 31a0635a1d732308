"""A small table goes to the tasks of a join with their plan, and is the rows alone."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.protocol import Conflict
from spark_client import Copies, ShuffleClient
from spark_client.broadcast import CARRIED_BYTES, Broadcast, CarriedTable
from tests.support.server_process import ServerProcess

ROWS = pa.table({"id": pa.array(range(1000), pa.int64()), "name": [None, "a"] * 500})


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(3, 2), ROWS.slice(0, 0), pa.concat_tables([ROWS, ROWS])])
def test_the_pickle_has_the_rows_and_not_the_buffers_that_they_are_a_slice_of(rows: pa.Table) -> None:
    pickled = pickle.dumps(CarriedTable.of(rows))
    assert len(pickled) < rows.nbytes + 1500
    assert pickle.loads(pickled).table().equals(rows)


def test_a_join_carries_a_small_broadcast_until_it_is_destroyed(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    with ShuffleClient(empty_server.location, copies=Copies((str(tmp_path),))) as client:
        shared = client.broadcast(ROWS)
        carried = shared.for_join()
        assert isinstance(carried, CarriedTable)
        assert carried.table().equals(ROWS)
        sent = pickle.loads(pickle.dumps(carried))
        assert list(tmp_path.rglob("*.arrows")) == [], "no copy of the host"
        shared.destroy()
        with pytest.raises(Conflict, match="was destroyed"):
            carried.table()
        with pytest.raises(Conflict, match="was destroyed"):
            pickle.dumps(carried)
        assert sent.table().equals(ROWS), "a task that has it reads it"


def test_a_broadcast_of_a_slice_does_not_hold_what_it_is_a_slice_of(empty_server: ServerProcess) -> None:
    with ShuffleClient(empty_server.location) as client:
        before_bytes = pa.total_allocated_bytes()
        large = pa.table({"id": pa.concat_arrays([pa.array(range(1000))] * 10_000)})
        shared = client.broadcast(large.slice(5, 3))
        assert pa.total_allocated_bytes() > before_bytes + large.nbytes // 2
        del large
        assert pa.total_allocated_bytes() < before_bytes + (1 << 20)
        assert shared.for_join().table().to_pydict() == {"id": [5, 6, 7]}


def test_a_larger_broadcast_and_one_of_another_process_are_mapped(empty_server: ServerProcess) -> None:
    with ShuffleClient(empty_server.location) as client:
        large = client.broadcast(pa.table({"id": pa.array(range(CARRIED_BYTES // 8 + 1), pa.int64())}))
        small = client.broadcast(ROWS)
        for shared in (large, pickle.loads(pickle.dumps(small))):
            assert isinstance(shared.for_join(), Broadcast)
