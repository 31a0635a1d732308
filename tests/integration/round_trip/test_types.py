"""Each type, with and without compression, and batches of odd shapes."""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.round_trip.flights import drop, put, read, same, words
from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess


def union(mode: str) -> pa.Array:
    types = pa.array([0, 1, 0, 1], pa.int8())
    if mode == "sparse":
        return pa.UnionArray.from_sparse(types, [pa.array([1, 2, 3, 4]), pa.array(["a", "b", None, "d"])])
    offsets = pa.array([0, 0, 1, 1], pa.int32())
    return pa.UnionArray.from_dense(types, offsets, [pa.array([1, 3]), pa.array(["b", None])])


class Celsius(pa.ExtensionType):
    """A type that the server does not know."""

    def __init__(self) -> None:
        super().__init__(pa.float32(), "tests.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"unit=C"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        assert serialized == b"unit=C"
        return cls()


@pytest.fixture(scope="module", autouse=True)
def celsius() -> Iterator[None]:
    pa.register_extension_type(Celsius())
    yield
    pa.unregister_extension_type("tests.celsius")


COLUMNS: dict[str, list[pa.Array]] = {
    "nulls of no type": [pa.nulls(3)],
    "booleans": [pa.array([True, None, False])],
    "float16 and decimals": [
        pa.array([np.float16(1.5), None], pa.float16()),
        pa.array([decimal.Decimal("1.23"), None], pa.decimal128(10, 2)),
        pa.array([decimal.Decimal(10) ** 70, None], pa.decimal256(76, 0)),
        pa.array([decimal.Decimal("1.5"), None], pa.decimal32(5, 1)),
    ],
    "times": [
        pa.array([0, None], pa.timestamp("ns", "Europe/Paris")),
        pa.array([1, None], pa.time64("us")),
        pa.array([1, None], pa.duration("s")),
        pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
        pa.array([86_400_000, None], pa.date64()),
    ],
    "text and bytes": [
        pa.array(["é", None, ""]),
        pa.array([b"\xff", None, b""], pa.large_binary()),
        pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        pa.array(["more than twelve bytes", None, "few"], pa.string_view()),
        pa.array([b"more than twelve bytes", None, b"few"], pa.binary_view()),
        pa.array(["x", None, "y"], pa.large_string()),
    ],
    "lists": [
        pa.array([[1, None], None, []]),
        pa.array([["a"], None, []], pa.large_list(pa.string())),
        pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
        pa.array([[1, 2], None, [3]], pa.list_view(pa.int16())),
        pa.array([[[1]], [], None], pa.list_(pa.large_list_view(pa.int64()))),
    ],
    "structs and maps": [
        pa.array([{"x": 1, "y": {"z": [None]}}, None]),
        pa.array([[("k", None)], None], pa.map_(pa.string(), pa.struct([("a", pa.int8())]))),
    ],
    "a sparse union": [union("sparse")],
    "a dense union": [union("dense")],
    "run ends": [
        pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int16()), pa.array(["a", None])),
        pa.RunEndEncodedArray.from_arrays(pa.array([5], pa.int64()), pa.array([1.5])),
    ],
    "extension types": [
        pa.ExtensionArray.from_storage(Celsius(), pa.array([1.5, None], pa.float32())),
        pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(int=7).bytes, None], pa.binary(16))),
        pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None])),
        pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8, dtype=np.float32).reshape(2, 2, 2)),
    ],
    "dictionaries": [
        words("a", None, "b"),
        pa.DictionaryArray.from_arrays(
            pa.array([1, 0, None], pa.uint8()), pa.array([1.5, None]), ordered=True
        ),
    ],
    "dictionaries in everything": [
        pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), words("a", "b", "a")),
        pa.StructArray.from_arrays([words("x", "y")], ["w"]),
        pa.DictionaryArray.from_arrays(
            pa.array([0, 1]), pa.StructArray.from_arrays([words("p", "q")], ["inner"])
        ),
        pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), words("k", "l"), words("v", "w")),
    ],
}


@pytest.mark.parametrize("codec", [None, "lz4", "zstd"])
@pytest.mark.parametrize("case", COLUMNS)
def test_every_type_comes_back_as_it_was_put(
    client: flight.FlightClient, name: str, case: str, codec: str | None
) -> None:
    columns = COLUMNS[case]
    batch = pa.RecordBatch.from_arrays(columns, [f"c{number}" for number in range(len(columns))])
    batches = [batch, batch.slice(1), batch.slice(0, 0), batch]
    put(client, name, batches, options=pa.ipc.IpcWriteOptions(compression=codec))
    schema, found = read(client, name)
    assert schema == batch.schema
    same(found, batches)
    for start in range(1, len(batches) + 1):
        same(read(client, name, start=start)[1], batches[start:])


@pytest.mark.parametrize(
    "batches",
    [
        [pa.record_batch({"n": [1]})],
        [pa.record_batch({"n": pa.array([], pa.int64())})],
        [pa.record_batch({"n": pa.array([], pa.int64())}), pa.record_batch({"n": [1]})],
        [pa.RecordBatch.from_struct_array(pa.array([{}] * 5, pa.struct([])))],
        [pa.record_batch({f"c{number}": [number] for number in range(2000)})],
        [pa.record_batch({"n": pa.nulls(5, pa.int64())})],
    ],
    ids=[
        "one row",
        "an empty batch",
        "an empty and a full one",
        "rows without columns",
        "2,000 columns",
        "only nulls",
    ],
)
def test_batches_of_odd_shapes_come_back(
    client: flight.FlightClient, name: str, batches: list[pa.RecordBatch]
) -> None:
    put(client, name, batches)
    same(read(client, name)[1], batches)


@pytest.mark.parametrize(
    "schema", [pa.schema([("n", pa.int64())]), pa.schema([]), pa.schema([("w", words("a").type)])]
)
def test_a_put_without_a_batch_is_a_dataset_without_rows(
    client: flight.FlightClient, name: str, schema: pa.Schema
) -> None:
    put(client, name, [], schema=schema)
    assert read(client, name) == (schema, [])
    info = client.get_flight_info(flight.FlightDescriptor.for_path(name))
    assert (info.schema, info.total_records, info.total_bytes) == (schema, 0, 0)


def test_the_metadata_of_schema_and_columns_comes_back(client: flight.FlightClient, name: str) -> None:
    column = pa.field("n", pa.int64(), nullable=False, metadata={"unit": "m"})
    schema = pa.schema([column], metadata={"origin": "test", "bytes": b"\xff\x00"})
    put(client, name, [pa.RecordBatch.from_arrays([pa.array([1])], schema=schema)])
    assert read(client, name)[0].equals(schema, check_metadata=True)


@pytest.mark.copied_by_grpc
@pytest.mark.long
def test_a_batch_of_a_hundred_megabytes_comes_back(client: flight.FlightClient, name: str) -> None:
    rows = 3_500_000
    text = pa.concat_arrays([pa.array(["a row of some text"] * 1000)] * (rows // 1000))
    batch = pa.record_batch({"n": np.arange(rows), "s": text})
    assert 99_000_000 < batch.nbytes < 110_000_000
    put(client, name, [batch])
    (found,) = read(client, name)[1]
    assert found == batch


def test_the_frames_are_stored_as_they_were_sent(server: ServerProcess, client: flight.FlightClient) -> None:
    with RawFlight(server.location) as raw:
        before = raw.action("statistics")
        batches = [pa.record_batch({"w": words("a", "b"), "n": [1, 2]})] * 3
        put(client, "d", batches)
        after = raw.action("statistics")
        assert after["encodes"] - before["encodes"] == after["frames_in"] - before["frames_in"] == 3
        first = raw.get(b"d")
        assert all(raw.get(b"d") == first for _ in range(3))
        drop(client, "d")
