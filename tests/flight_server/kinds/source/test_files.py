"""Files as partitions: every row of every format, in frames of a sensible size."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flight_server.kinds.source.formats import MAX_HEADER_BYTES, MOST_BYTES, Parquet
from flight_server.protocol.errors import InvalidRequest, PartitionFailed
from tests.support.arrow_peak import arrow_peak
from tests.support.file_sources import TABLE, WRITERS, Served
from tests.support.folded import folded_schema
from tests.support.nodes import read_messages, read_table, running_node

every_format = pytest.mark.parametrize("written", list(WRITERS))


@every_format
async def test_each_file_is_a_partition_with_its_rows_in_order(served: Served, written: str) -> None:
    tables = [TABLE, TABLE.slice(1, 2), TABLE.slice(3)]
    for number, table in enumerate(tables):
        served.write(written, table, f"part-{number}")
    dataset = await served.create(written)
    assert dataset.partition_count == 3
    assert dataset.schema is not None
    assert dataset.schema.schema.equals(TABLE.schema)
    assert served.node.counters.pulls == 0
    for table, got in zip(tables, await served.read(dataset), strict=True):
        assert got.equals(table)


@every_format
async def test_a_single_file_can_be_named_and_one_without_rows_is_an_empty_partition(
    served: Served, written: str
) -> None:
    served.write(written, TABLE.slice(0, 0), "a")
    served.write(written, TABLE.slice(0, 3), "sub/b")
    (got,) = await served.read(await served.create(written, "sub/b"))
    assert got.equals(TABLE.slice(0, 3))
    served.node.catalogue.drop("d")
    dataset = await served.create(written)
    assert [table.num_rows for table in await served.read(dataset)] == [0, 3]
    assert dataset.sealed
    assert dataset.rows == 3


async def test_columns_are_chosen_in_the_order_that_was_asked_for(served: Served) -> None:
    for written in WRITERS:
        served.write(written, TABLE, f"{written}/a")
        dataset = await served.create(written, written, columns=["x", "n"])
        (got,) = await served.read(dataset)
        assert got.equals(TABLE.select(["x", "n"])), written
        served.node.catalogue.drop("d")
    with pytest.raises(InvalidRequest, match="no column 'y'"):
        await served.create("ipc", "ipc", columns=["y"])


async def test_directories_named_by_keys_become_columns(served: Served) -> None:
    for key, rows in (("year=2024/city=New%20York", 2), ("year=2025/city=__HIVE_DEFAULT_PARTITION__", 1)):
        served.write("parquet", TABLE.slice(0, rows).select(["n"]), f"{key}/part-0.parquet")
    dataset = await served.create("parquet")
    got = pa.concat_tables(await served.read(dataset))
    assert got.schema.field("year").type == pa.int64()
    assert got.to_pylist() == [
        {"n": 1, "year": 2024, "city": "New York"},
        {"n": None, "year": 2024, "city": "New York"},
        {"n": 1, "year": 2025, "city": None},
    ]


async def test_schemas_are_put_together_and_types_widened(served: Served) -> None:
    served.write("parquet", pa.table({"n": pa.array([1], pa.int32()), "only a": ["x"]}), "a")
    served.write("parquet", pa.table({"n": pa.array([2**40], pa.int64()), "only b": [True]}), "b")
    first, second = await served.read(await served.create("parquet"))
    assert first.schema == second.schema
    assert first.to_pylist() == [{"n": 1, "only a": "x", "only b": None}]
    assert second.to_pylist() == [{"n": 2**40, "only a": None, "only b": True}]


async def test_columns_that_do_not_fit_together_are_named_at_create(served: Served) -> None:
    served.write("parquet", pa.table({"n": [1]}), "a")
    served.write("parquet", pa.table({"n": ["text"]}), "b")
    with pytest.raises(InvalidRequest, match=r"columns of .*/b do not fit those of .*/a"):
        await served.create("parquet")


async def test_a_value_that_its_column_s_type_does_not_have_is_an_error(served: Served) -> None:
    served.write("parquet", pa.table({"n": [1, 2**60 + 1]}), "a")
    served.write("parquet", pa.table({"n": [0.5]}), "b")
    dataset = await served.create("parquet")
    assert dataset.schema is not None
    assert dataset.schema.schema.field("n").type == pa.float64()
    with pytest.raises(PartitionFailed, match=r"a is damaged: .*1152921504606846977 "):
        await served.read(dataset)


@every_format
async def test_dictionaries_reach_every_reader_and_are_encoded_once(served: Served, written: str) -> None:
    tables = [
        pa.table({"d": pa.array([f"{salt}{n % 5}" for n in range(1000)]).dictionary_encode()})
        for salt in "ab"
    ]
    chunked = pa.table({"d": pa.chunked_array([table["d"].chunk(0) for table in tables])})
    if written == "ipc":
        chunked = chunked.unify_dictionaries()  # the file format has one dictionary for all batches
    WRITERS[written](chunked, served.root / "a")
    dataset = await served.create(written)
    (got,) = await served.read(dataset)
    assert got["d"].to_pylist() == chunked["d"].to_pylist()
    frames = dataset.partition(0).totals.frames
    late = await read_table(served.node, dataset, 0, frames - 1)
    assert late["d"].to_pylist() == chunked["d"].to_pylist()[-late.num_rows :]
    assert served.node.counters.encodes == frames


# Sizes


@pytest.mark.parametrize(("written", "chunk"), [("parquet", 1 << 30), ("ipc", 1 << 30), ("ipc", 1000)])
async def test_frames_are_neither_too_large_nor_too_small(served: Served, written: str, chunk: int) -> None:
    rows = 1_500_000
    table = pa.table({"n": np.arange(rows), "m": np.arange(rows)})  # 24 MB
    if written == "parquet":
        pq.write_table(table, served.root / "large", row_group_size=chunk)
    else:
        with pa.ipc.new_file(served.root / "large", table.schema) as writer:
            writer.write_table(table, max_chunksize=chunk)
    (got,) = await served.read(dataset := await served.create(written))
    assert got.equals(table)
    sizes = [frame.size_bytes for frame in dataset.partition(0).frames()]
    assert max(sizes) <= 2.1 * (1 << 20)
    assert min(sizes[:-1]) >= 1 << 19


async def test_rows_of_very_different_size_are_cut_until_each_message_fits(served: Served) -> None:
    limit_bytes = served.node.max_message_bytes
    texts = ["x" * (limit_bytes - 10_000), *["y"] * 1000, "z" * 5_000_000, "w"]
    served.write("parquet", pa.table({"text": texts}), "a")
    dataset = await served.create("parquet")
    assert (await served.read(dataset))[0]["text"].to_pylist() == texts
    assert max(frame.size_bytes for frame in dataset.partition(0).frames()) <= limit_bytes


async def test_a_row_larger_than_a_message_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    async with running_node(tmp_path, source_roots=[tmp_path], max_message=8 << 20) as node:
        served = Served(node, tmp_path)
        served.write("parquet", pa.table({"text": ["x" * (node.max_message_bytes + 1)]}), "a")
        with pytest.raises(PartitionFailed, match=r"/a: a row has .* raise --max-message"):
            await served.read(await served.create("parquet", "a"))


@every_format
async def test_two_pulls_of_a_file_give_the_same_bytes(served: Served, written: str) -> None:
    rows = 50_000
    mask = np.arange(rows) % 3 == 0
    columns = {
        "n": pa.array(np.arange(rows), mask=mask),
        "flag": pa.array(np.arange(rows) % 2 == 0, mask=mask),
        "text": pa.array([None if gone else f"v{n}" for n, gone in enumerate(mask)]),
    }
    served.write(written, pa.table(columns), "a")
    dataset = await served.create(written)
    first = await read_messages(served.node, dataset)
    assert dataset.release_unread(spilled=True)
    junk = [pa.array(np.full(rows, -1)) for _ in range(20)]  # what the allocator hands out next is not zero
    del junk
    assert await read_messages(served.node, dataset) == first
    assert served.node.counters.pulls == 2


@pytest.mark.long
@every_format
async def test_files_of_20000_columns_are_read_and_put_together(served: Served, written: str) -> None:
    """Takes minutes if the work for a column grows with the number of columns."""
    columns = {f"column-{number:05}": pa.array([number], pa.int64()) for number in range(20_000)}
    wide = pa.table(columns)
    served.write(written, wide.drop(["column-00007"]), "key=1/a")
    served.write(written, wide, "key=2/b")
    dataset = await served.create(written)
    first, second = await served.read(dataset)
    assert second.select(wide.column_names).equals(wide)
    assert first["column-00007"].null_count == 1
    assert first["column-19999"].to_pylist() == [19_999]
    assert first["key"].to_pylist() == [1]


@every_format
async def test_a_header_above_the_limit_is_refused_before_it_is_parsed(served: Served, written: str) -> None:
    served.write(written, TABLE.replace_schema_metadata({"note": "x" * MAX_HEADER_BYTES}), "a")
    with pytest.raises(
        InvalidRequest, match=rf"a cannot be read: its header has \d+ bytes, and at most {MAX_HEADER_BYTES}"
    ):
        await served.create(written)


async def test_a_header_that_shares_its_parts_is_refused_before_it_is_parsed(served: Served) -> None:
    """It would become 100,000 names of 10,000 bytes."""
    footer = folded_schema(100_000, 1, b"x" * 10_000, footer=True)
    magic = b"ARROW1"
    file = magic + b"\0\0" + footer + struct.pack("<I", len(footer)) + magic
    (served.root / "a.arrow").write_bytes(file)
    with pytest.raises(
        InvalidRequest, match=r"a\.arrow cannot be read.* write each field, text and metadata"
    ):
        await served.create("ipc")


@pytest.mark.parametrize("column", ["values", "dictionary"])
async def test_a_compressed_batch_that_would_not_fit_is_refused_before_it_is_decoded(
    served: Served, column: str
) -> None:
    zeros = pa.Array.from_buffers(pa.int8(), 48 << 20, [None, pa.py_buffer(bytes(48 << 20))])
    values: pa.Array = zeros
    if column == "dictionary":
        values = pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int32()), zeros)
    batch = pa.record_batch({"n": values})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(served.root / "a.arrow"), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    dataset = await served.create("ipc")
    with pytest.raises(PartitionFailed, match=r"a batch that takes 5[0-9]* bytes when it is read"):
        await served.read(dataset)


def lists(*offsets: int) -> pa.ListArray:
    zeros = pa.Array.from_buffers(pa.int8(), 17 << 20, [None, pa.py_buffer(bytes(17 << 20))])
    return pa.ListArray.from_arrays(pa.array([0, *offsets, len(zeros)], pa.int32()), zeros)


FOLDED: dict[str, Callable[[], pa.Array]] = {
    "one list": lists,
    "lists": lambda: lists(*[10] * 999),
    "nulls of a list": lambda: pa.nulls(3, pa.list_(pa.int8(), 48 << 20)),
    "a text in a list": lambda: pa.array([["a" * (1 << 20)] * 48]),
}


@pytest.mark.parametrize(
    "kind",
    [pytest.param(each, marks=pytest.mark.long if "list" in each[:5] else []) for each in FOLDED],
)
async def test_a_row_of_parquet_that_would_not_fit_is_refused_before_it_is_decoded(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": FOLDED[kind]()}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    async with running_node(tmp_path, source_roots=[tmp_path], max_message=8 << 20) as node:
        served = Served(node, tmp_path)
        dataset = await served.create("parquet", "a.parquet")
        with arrow_peak() as pool:
            with pytest.raises(
                PartitionFailed, match=r"a.parquet: it has a batch that takes [0-9]{8,} bytes"
            ):
                await served.read(dataset)
            assert pool.max_memory() < 8 << 20


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string()), pa.json_()]
)
def test_long_texts_that_a_parquet_file_has_once_are_read_some_rows_at_a_time(
    tmp_path: Path, kind: pa.DataType
) -> None:
    texts = pa.array(["short", "long" * (1 << 18), None] * 64)
    if isinstance(kind, pa.BaseExtensionType):
        column: pa.Array = pa.ExtensionArray.from_storage(kind, texts)
    else:
        column = texts.cast(kind)
    table, held = pa.table({"a.b": column, "n": range(len(column))}), [0]
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pa.OSFile(str(tmp_path / "a.parquet")) as stream:
        batches = list(Parquet().batches(stream, table.schema, held.append))
    assert pa.Table.from_batches(batches).equals(table)
    assert max(batch.nbytes for batch in batches) <= MOST_BYTES
    assert max(held) < 2 * MOST_BYTES
