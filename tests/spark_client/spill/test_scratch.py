"""Batches parked on disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol.errors import CorruptFrame, OutOfBudget
from spark_client.spill.scratch import Parking, Place, Scratch


def batch_of(rows: int, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(np.arange(start, start + rows))})


def park(scratch: Scratch, *batches: pa.RecordBatch) -> list[Place]:
    parking = Parking(scratch)
    return [parking.park(batch) for batch in batches]


def read(scratch: Scratch, places: list[Place]) -> list[pa.RecordBatch]:
    return list(scratch.read(places))


def test_batch_comes_back_equal_with_its_dictionaries_nulls_and_nesting(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "word": pa.array(["a", None, "b", "a"]).dictionary_encode(),
            "list": pa.array([[1], None, [], [2, 3]]),
            "nested": pa.array([{"d": "x"}, {"d": None}, None, {"d": "y"}]),
            "nothing": pa.nulls(4),
        }
    )
    scratch = Scratch(str(tmp_path))
    (again,) = read(scratch, park(scratch, batch))
    assert again.equals(batch)
    assert again.schema.equals(batch.schema, check_metadata=True)


def test_empty_batches_and_batches_without_columns_keep_their_rows() -> None:
    scratch = Scratch()
    bare = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    assert [batch.num_rows for batch in read(scratch, park(scratch, bare, bare))] == [3, 3]
    assert read(scratch, park(scratch, batch_of(0))) == [batch_of(0)]


@given(st.lists(st.integers(0, 2000), max_size=20), st.integers(1, 20_000))
def test_every_parked_batch_is_read_back_whatever_the_segments(sizes: list[int], segment_bytes: int) -> None:
    scratch = Scratch(segment_bytes=segment_bytes)
    batches = [batch_of(rows, i) for i, rows in enumerate(sizes)]
    parked = park(scratch, *batches)
    assert read(scratch, parked) == batches
    assert [read(scratch, [place]) for place in reversed(parked)] == [[batch] for batch in reversed(batches)]


def test_the_directory_never_shows_a_file(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    parked = park(scratch, batch_of(1000))
    assert list(tmp_path.iterdir()) == []
    assert read(scratch, parked) == [batch_of(1000)]


def test_disk_space_goes_back_with_the_last_batch_of_a_segment() -> None:
    scratch = Scratch(segment_bytes=1)
    first, second = park(scratch, batch_of(10)), park(scratch, batch_of(20))
    fd = first[0][1].segment.fd
    os.fstat(fd)
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert read(scratch, second) == [batch_of(20)]


def test_a_full_disk_is_an_error_and_what_was_parked_stays_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Scratch()
    parked = park(scratch, batch_of(1000))
    real, calls = os.pwritev, 0

    def half_then_full(fd: int, buffers: list[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            return real(fd, [buffers[0][:7]], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", half_then_full)
        with pytest.raises(OutOfBudget, match="No space left"):
            park(scratch, batch_of(5000))
    assert os.fstat(parked[0][0].segment.fd).st_size == scratch.written_bytes
    assert read(scratch, parked) == [batch_of(1000)]
    assert read(scratch, park(scratch, batch_of(7))) == [batch_of(7)]


def test_a_kernel_that_takes_few_bytes_at_a_time_gets_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def few(fd: int, buffers: list[memoryview], offset: int) -> int:
        return real(fd, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "pwritev", few)
    scratch = Scratch()
    assert read(scratch, park(scratch, batch_of(3000))) == [batch_of(3000)]


def test_a_closed_scratch_refuses_new_batches_and_reads_old_ones() -> None:
    scratch = Scratch()
    parked = park(scratch, batch_of(3))
    scratch.close()
    scratch.close()
    with pytest.raises(ValueError, match="closed"):
        park(scratch, batch_of(1))
    assert read(scratch, parked) == [batch_of(3)]


def test_damage_is_a_loud_error_and_zeros_are_never_taken_for_the_end() -> None:
    def parked() -> tuple[Scratch, list[Place]]:
        scratch = Scratch()
        return scratch, park(scratch, batch_of(10), batch_of(2000))

    scratch, places = parked()
    os.ftruncate(places[0][0].segment.fd, scratch.written_bytes - 1)
    with pytest.raises(CorruptFrame, match="too early"):
        read(scratch, places)
    for extent in range(3):
        scratch, places = parked()
        head, rows = places[max(0, extent - 1)]
        damaged = head if not extent else rows
        os.pwrite(damaged.segment.fd, bytes(damaged.size_bytes), damaged.offset)
        with pytest.raises(CorruptFrame):
            read(scratch, places)
