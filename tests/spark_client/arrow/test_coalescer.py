"""The coalescer against a model (lists of rows by partition), the sizes of its frames, and types that it refuses."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.arrow.coalescer import Coalescer
from spark_client.arrow.sizes import held_buffers
from tests.support.coalescing import KIB, coalesced, encoded_bytes, expected_rows, numbered, rows_by_partition
from tests.support.examples import examples

# --- Every row once, in order -----------------------------------------------------------------------------

VECTOR = st.lists(st.floats(width=32, allow_nan=False), min_size=10, max_size=20)
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.decimal128(20, 2): st.decimals(places=2, min_value=-(10**9), max_value=10**9),
    pa.string(): st.text(max_size=8),
    pa.large_binary(): st.binary(max_size=40),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.null(): st.none(),
    pa.list_(pa.float32()): VECTOR | st.just([]),
    pa.large_list(pa.float64()): VECTOR,
    pa.list_(pa.int8(), 3): st.lists(st.integers(-128, 127), min_size=3, max_size=3),
    pa.list_(pa.list_(pa.string())): st.lists(
        st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3)
    ),
    pa.list_(pa.struct({"a": pa.string()}), 2): st.lists(
        st.fixed_dictionaries({"a": st.none() | st.text(max_size=3)}), min_size=2, max_size=2
    ),
    pa.struct({"a": pa.int16(), "b": pa.list_(pa.string())}): st.fixed_dictionaries(
        {"a": st.none() | st.integers(-9, 9), "b": st.none() | st.lists(st.text(max_size=3), max_size=3)}
    ),
    pa.map_(pa.string(), pa.int32()): st.lists(
        st.tuples(st.text(max_size=3), st.integers(0, 9)), max_size=3, unique_by=lambda item: item[0]
    ),
}


@st.composite
def inputs(draw: st.DrawFn) -> tuple[pa.Schema, int, list[tuple[pa.RecordBatch, Any]]]:
    kinds = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=4))
    schema = pa.schema([(f"c{index}", kind) for index, kind in enumerate(kinds)], metadata={"owner": "test"})
    partitions = draw(st.sampled_from([1, 2, 3, 300]))
    batches = []
    # Each value in its turn would take most of the test's time to draw.
    lot = random.Random(draw(st.integers(0, 2**32)))
    for _ in range(draw(st.integers(0, 5))):
        rows = draw(st.integers(0, 30))
        columns = []
        for kind in kinds:
            some = draw(st.lists(st.none() | COLUMNS[kind], min_size=1, max_size=6))
            columns.append(pa.array(lot.choices(some, k=rows), kind))
        first = draw(st.integers(0, rows))
        batch = pa.record_batch(columns, schema=schema).slice(first, draw(st.integers(0, rows - first)))
        ids = lot.choices(range(partitions), k=batch.num_rows)
        batches.append((batch, np.array(ids, draw(st.sampled_from([np.int32, np.int64, np.uint16])))))
    return schema, partitions, batches


@settings(max_examples=examples(0.5))
@given(
    data=inputs(),
    budget_bytes=st.sampled_from([20 * KIB, 200 * KIB]),
    target=st.sampled_from([64, 1000, 10**6]),
    block_bytes=st.sampled_from([1, 500, 10**6]),
)
def test_each_row_comes_back_once_in_its_partition_and_in_order(
    data: tuple[pa.Schema, int, list[tuple[pa.RecordBatch, Any]]],
    budget_bytes: int,
    target: int,
    block_bytes: int,
) -> None:
    schema, partitions, batches = data
    coalescer = Coalescer(
        schema,
        partitions,
        budget_bytes=budget_bytes,
        target_frame_bytes=target,
        max_frame_bytes=2 * target,
        block_bytes=block_bytes,
        block_rows=1,
    )
    frames = coalesced(coalescer, batches)
    assert rows_by_partition(frames) == expected_rows(batches)
    for _, frame in frames:
        assert frame.num_rows == 1 or frame.nbytes <= 2 * target


@pytest.mark.parametrize(("partitions", "rows"), [(1_000, 2_000), (70_000, 200)])
def test_many_partitions_get_their_rows_in_order(partitions: int, rows: int) -> None:
    batches = [numbered(rows, partitions, first=rows * index) for index in range(20)]
    coalescer = Coalescer(
        batches[0][0].schema, partitions, budget_bytes=8 * KIB * KIB, target_frame_bytes=64 * KIB
    )
    frames = coalesced(coalescer, batches)
    assert rows_by_partition(frames) == expected_rows(batches)


# --- Sizes of frames --------------------------------------------------------------------------------------


def test_frames_are_between_one_and_two_targets_when_the_budget_allows() -> None:
    batches = [numbered(1_000, 16, first=1_000 * index) for index in range(200)]
    coalescer = Coalescer(batches[0][0].schema, 16, budget_bytes=16_000 * KIB, target_frame_bytes=100 * KIB)
    frames = coalesced(coalescer, batches)
    last = {partition: index for index, (partition, _) in enumerate(frames)}
    for index, (partition, frame) in enumerate(frames):
        assert frame.nbytes <= 200 * KIB
        assert frame.nbytes >= 99 * KIB or index == last[partition]


def test_equal_partitions_share_the_budget_when_there_are_too_many_for_whole_frames() -> None:
    batches = [numbered(2_000, 1_000, first=2_000 * index) for index in range(200)]
    coalescer = Coalescer(batches[0][0].schema, 1_000, budget_bytes=4_000 * KIB)
    sizes = [frame.nbytes for _, frame in coalesced(coalescer, batches)]
    # Of the 42 bytes that a row is counted with, 32 are data; the smallest partitions wait for the next round.
    assert np.median(sizes) >= 0.9 * 4 * KIB * 32 / 42


def test_the_largest_partitions_go_first_when_the_budget_is_short() -> None:
    batches = [numbered(1_000, 200, first=1_000 * index) for index in range(80)]
    for _, ids in batches:
        ids[: ids.size // 2] = 7
    coalescer = Coalescer(batches[0][0].schema, 200, budget_bytes=800 * KIB, target_frame_bytes=400 * KIB)
    rounds = []
    for batch, ids in batches:
        frames = {partition: frame.num_rows for partition, frame in coalescer.add(batch, ids)}
        if frames:
            rounds.append(frames)
    assert len(rounds) > 2
    assert all(7 in frames and len(frames) < 200 for frames in rounds)


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_batch_larger_than_everything_is_cut_and_not_kept_alive(partitions: int) -> None:
    large, ids = numbered(40_000, partitions)
    coalescer = Coalescer(
        large.schema,
        partitions,
        budget_bytes=512 * KIB,
        target_frame_bytes=64 * KIB,
        max_frame_bytes=128 * KIB,
    )
    allocations = set(held_buffers(large))
    frames = []
    for partition, frame in coalescer.add(large, ids):
        assert coalescer.buffered_bytes <= 512 * KIB
        assert encoded_bytes(frame) <= 128 * KIB + KIB
        frames.append((partition, frame))
    assert coalescer.buffered_bytes <= 512 * KIB
    if partitions > 1:
        assert not any(allocations & set(held_buffers(frame)) for _, frame in frames)
    frames += coalescer.finish()
    assert rows_by_partition(frames) == expected_rows([(large, ids)])


@pytest.mark.parametrize("partitions", [1, 2])
def test_rows_of_very_different_sizes_are_cut_at_the_limit(partitions: int) -> None:
    texts = ["s" * (50_000 if index % 10 == 3 else 5) for index in range(100)] + ["t" * 300_000] + ["u"] * 50
    batch = pa.record_batch([pa.array(texts)], names=["t"])
    ids = np.arange(len(texts)) % partitions
    coalescer = Coalescer(
        batch.schema, partitions, budget_bytes=10**6, target_frame_bytes=60_000, max_frame_bytes=80_000
    )
    frames = coalesced(coalescer, [(batch, ids)])
    assert rows_by_partition(frames) == expected_rows([(batch, ids)])
    for _, frame in frames:
        assert frame.nbytes <= 80_000 or frame.num_rows == 1
    assert max(frame.nbytes for _, frame in frames) > 300_000


def test_what_buffers_round_up_to_counts_for_the_limit() -> None:
    # 190 rows of 42 bits are just below 1,000 bytes; with the last offset and whole bytes they are above.
    batch = pa.record_batch([pa.array(["x"] * 380), pa.array([True, None] * 190)], names=["t", "b"])
    coalescer = Coalescer(batch.schema, 2, target_frame_bytes=1_000, max_frame_bytes=1_000)
    frames = coalesced(coalescer, [(batch, np.arange(380) // 190)])
    assert sum(frame.num_rows for _, frame in frames) == 380
    assert max(frame.nbytes for _, frame in frames) <= 1_000


@pytest.mark.parametrize("partitions", [1, 5])
def test_a_frame_encodes_its_own_rows_only(partitions: int) -> None:
    rows = 20_000
    numbers = np.arange(rows)
    columns = {
        "n": pa.array(numbers, mask=numbers % 3 == 0),
        "s": pa.array([f"text {number}" for number in numbers]),
        "v": pa.array([[number, None] for number in numbers.tolist()], pa.list_(pa.int32())),
        "f": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 4.0)), 4),
        "m": pa.array([[("k", number)] for number in numbers.tolist()], pa.map_(pa.string(), pa.int64())),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    ids = numbers % partitions
    coalescer = Coalescer(batch.schema, partitions, target_frame_bytes=32 * KIB, max_frame_bytes=64 * KIB)
    frames = coalesced(coalescer, [(batch, ids)])
    assert len(frames) > 20
    whole = encoded_bytes(batch)
    assert sum(encoded_bytes(frame) for _, frame in frames) <= 1.1 * whole


# --- Rows without columns, batches without rows -----------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 4])
def test_rows_without_columns_are_counted(partitions: int) -> None:
    schema = pa.schema([], metadata={"a": "b"})
    rows = pa.RecordBatch.from_struct_array(pa.StructArray.from_buffers(pa.struct([]), 10, [None]))
    coalescer = Coalescer(schema, partitions)
    ids = np.arange(10) % partitions
    assert not list(coalescer.add(rows, ids))
    assert not list(coalescer.add(rows.slice(3), ids[3:]))
    frames = list(coalescer.finish())
    assert {partition: frame.num_rows for partition, frame in frames} == dict(
        enumerate(np.bincount([*ids, *ids[3:]]).tolist())
    )
    assert all(frame.schema.equals(schema, check_metadata=True) for _, frame in frames)


# --- What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pa.string_view(),
        pa.list_(pa.struct({"deep": pa.binary_view()})),
        pa.list_view(pa.int8()),
        pa.run_end_encoded(pa.int32(), pa.int64()),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
)
def test_types_whose_rows_cannot_be_moved_one_by_one_are_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(TypeError, match="'odd"):
        Coalescer(pa.schema([("fine", pa.int8()), ("odd", kind)]), 2)
