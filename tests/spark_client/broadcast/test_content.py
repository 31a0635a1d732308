"""The file of a broadcast: each column in one chunk where that can be, and never compressed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flight_server.protocol import OutOfBudget
from spark_client import Broadcast, Copies, Reading, ShuffleClient, Writing
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array(range(400_000), pa.int64()), "word": ["word"] * 400_000})


def file_of(shared: Broadcast, base: Path) -> Path:
    (path,) = base.glob(f"*/{shared._content.key}.arrows")
    return path


@pytest.mark.parametrize(("compression", "lane"), [(None, "bulk"), ("lz4", "bulk"), ("auto", "grpc")])
def test_a_columns_chunk_is_mapped_from_a_file_of_the_size_that_was_known(
    empty_server: ServerProcess, tmp_path: Path, compression: str | None, lane: str
) -> None:
    with ShuffleClient(
        empty_server.location,
        copies=Copies((str(tmp_path),)),
        writing=Writing(compression=compression),  # type: ignore[arg-type]
        reading=Reading(lane=lane),  # type: ignore[arg-type]
    ) as client:
        shared = client.broadcast(TABLE)
        before = pa.total_allocated_bytes()
        table = shared.table()
        assert pa.total_allocated_bytes() - before < TABLE.nbytes // 4, "it is mapped"
        assert table.equals(TABLE)
        assert [column.num_chunks for column in table.columns] == [1, 1]
        assert file_of(shared, tmp_path).stat().st_size == shared.size_bytes < 1.02 * TABLE.nbytes


def test_a_column_of_vectors_is_a_matrix_without_a_copy(empty_server: ServerProcess, tmp_path: Path) -> None:
    numbers = np.arange(3_000_000, dtype=np.float32)
    vectors = pa.FixedSizeListArray.from_arrays(numbers, 100)
    with ShuffleClient(empty_server.location, copies=Copies((str(tmp_path),))) as client:
        shared = client.broadcast(pa.table({"vector": vectors}))
        column = shared.table()["vector"].chunk(0)
        matrix = column.values.to_numpy(zero_copy_only=True).reshape(len(column), -1)
        assert matrix.shape == (30_000, 100)
        assert np.array_equal(matrix.ravel(), numbers)
        assert not matrix.flags.writeable, "it is the mapping"


def test_a_table_of_other_types_keeps_the_chunks_in_which_it_came(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    table = pa.table({"id": range(3), "word": pa.array(["a", "b", "a"]).dictionary_encode()})
    with ShuffleClient(empty_server.location, copies=Copies((str(tmp_path),))) as client:
        shared = client.broadcast(pa.concat_tables([table, table]))
        assert shared.table().to_pylist() == table.to_pylist() * 2
        with pa.ipc.open_stream(file_of(shared, tmp_path)) as stream:
            assert stream.schema == table.schema


def test_a_file_that_decodes_to_more_than_the_bound_is_a_clear_error(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    copies = Copies((str(tmp_path),), limit_bytes=TABLE.nbytes // 2)
    with ShuffleClient(empty_server.location, copies=copies, writing=Writing(compression="zstd")) as client:
        shared = client.broadcast(TABLE)
        with pytest.raises(OutOfBudget, match="larger limit_bytes of Copies"):
            shared.table()
        assert list(tmp_path.glob("*/*.part")) == []
        assert list(tmp_path.glob("*/*.arrows")) == []
