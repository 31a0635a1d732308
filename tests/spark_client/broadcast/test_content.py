"""The file of a broadcast: the messages as they came, and never compressed."""

from __future__ import annotations

from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

from flight_server.protocol import END_OF_STREAM, OutOfBudget, bulk_path, ipc_framing
from spark_client import Broadcast, Copies, Reading, ShuffleClient, Writing
from tests.support.server_process import ServerProcess

TABLE = pa.table({"id": pa.array(range(400_000), pa.int64()), "word": ["word"] * 400_000})


def file_of(shared: Broadcast, base: Path) -> memoryview:
    (path,) = base.glob(f"*/{shared._content.key}.arrows")
    return memoryview(path.read_bytes())


def messages(content: memoryview) -> memoryview:
    """Without the end of the stream."""
    assert content[-len(END_OF_STREAM) :] == END_OF_STREAM
    return content[: -len(END_OF_STREAM)]


def test_messages_that_came_uncompressed_are_in_the_file_as_they_came(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    with ShuffleClient(
        empty_server.location, copies=Copies((str(tmp_path),)), writing=Writing(compression=None)
    ) as client:
        shared = client.broadcast(TABLE)
        assert shared.table().equals(TABLE)
        source = shared._content.source
        with urlopen(f"{empty_server.http}{bulk_path(source.dataset, 0, source.generation)}") as sent:
            assert sent.read() == file_of(shared, tmp_path)
        assert shared.size_bytes >= len(file_of(shared, tmp_path)) > shared.size_bytes - 2000


@pytest.mark.parametrize("compression", ["lz4", "zstd", "auto"])
@pytest.mark.parametrize("lane", ["bulk", "grpc"])
def test_a_file_is_not_compressed_though_its_dataset_is(
    empty_server: ServerProcess, tmp_path: Path, compression: str, lane: str
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
        content = file_of(shared, tmp_path)
        assert len(content) >= TABLE.nbytes > shared.size_bytes
        _, *headers = ipc_framing.headers(messages(content))
        assert len(headers) >= 2
        assert not any(map(ipc_framing.is_compressed, headers))


def test_a_file_that_decodes_to_more_than_the_bound_is_a_clear_error(
    empty_server: ServerProcess, tmp_path: Path
) -> None:
    copies = Copies((str(tmp_path),), limit_bytes=TABLE.nbytes // 2)
    with ShuffleClient(empty_server.location, copies=copies, writing=Writing(compression="zstd")) as client:
        shared = client.broadcast(TABLE)
        assert shared.size_bytes < TABLE.nbytes // 2
        with pytest.raises(OutOfBudget, match="larger limit_bytes of Copies"):
            shared.table()
        assert list(tmp_path.glob("*/*.part")) == []
        assert list(tmp_path.glob("*/*.arrows")) == []
