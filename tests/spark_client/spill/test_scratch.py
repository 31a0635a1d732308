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
from spark_client.spill.scratch import Scratch


def batch_of(rows: int, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(np.arange(start, start + rows))})


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
    (again,) = scratch.read(scratch.park([batch]))
    assert again.equals(batch)
    assert again.schema.equals(batch.schema, check_metadata=True)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=20))
def test_batches_that_are_parked_together_come_back_together(sizes: list[int]) -> None:
    scratch = Scratch()
    batches = [batch_of(rows, i) for i, rows in enumerate(sizes)]
    assert scratch.read(scratch.park(batches)) == batches


def test_empty_batches_and_batches_without_columns_keep_their_rows() -> None:
    scratch = Scratch()
    bare = pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))
    assert [batch.num_rows for batch in scratch.read(scratch.park([bare, bare]))] == [3, 3]
    assert scratch.read(scratch.park([batch_of(0)])) == [batch_of(0)]


@given(st.lists(st.integers(0, 2000), max_size=20), st.integers(1, 20_000))
def test_every_parked_batch_is_read_back_whatever_the_segments(sizes: list[int], segment_bytes: int) -> None:
    scratch = Scratch(segment_bytes=segment_bytes)
    batches = [batch_of(rows, i) for i, rows in enumerate(sizes)]
    parked = [scratch.park([batch]) for batch in batches]
    assert [scratch.read(place) for place in reversed(parked)] == [[batch] for batch in reversed(batches)]


def test_the_directory_never_shows_a_file(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path))
    parked = scratch.park([batch_of(1000)])
    assert list(tmp_path.iterdir()) == []
    assert scratch.read(parked) == [batch_of(1000)]


def test_disk_space_goes_back_with_the_last_batch_of_a_segment() -> None:
    scratch = Scratch(segment_bytes=1)
    first, second = scratch.park([batch_of(10)]), scratch.park([batch_of(20)])
    fd = first.segment.fd
    os.fstat(fd)
    del first
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert scratch.read(second) == [batch_of(20)]


def test_a_full_disk_is_an_error_and_what_was_parked_stays_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = Scratch()
    parked = scratch.park([batch_of(1000)])
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
            scratch.park([batch_of(5000)])
    assert os.fstat(parked.segment.fd).st_size == parked.size_bytes
    assert scratch.read(parked) == [batch_of(1000)]
    assert scratch.read(scratch.park([batch_of(7)])) == [batch_of(7)]


def test_a_kernel_that_takes_few_bytes_at_a_time_gets_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def few(fd: int, buffers: list[memoryview], offset: int) -> int:
        return real(fd, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "pwritev", few)
    scratch = Scratch()
    assert scratch.read(scratch.park([batch_of(3000)])) == [batch_of(3000)]


def test_a_file_that_lost_its_end_is_a_loud_error() -> None:
    scratch = Scratch()
    parked = scratch.park([batch_of(1000)])
    os.ftruncate(parked.segment.fd, parked.size_bytes - 1)
    with pytest.raises(CorruptFrame, match="too early"):
        scratch.read(parked)


def test_zeros_in_the_file_are_never_taken_for_the_end() -> None:
    scratch = Scratch()
    parked = scratch.park([batch_of(10), batch_of(2000)])
    os.pwrite(parked.segment.fd, bytes(16_000), parked.offset + parked.size_bytes - 16_200)
    with pytest.raises(CorruptFrame):
        scratch.read(parked)


def test_a_closed_scratch_refuses_new_batches_and_reads_old_ones() -> None:
    scratch = Scratch()
    parked = scratch.park([batch_of(3)])
    scratch.close()
    scratch.close()
    with pytest.raises(ValueError, match="closed"):
        scratch.park([batch_of(1)])
    assert scratch.read(parked) == [batch_of(3)]
