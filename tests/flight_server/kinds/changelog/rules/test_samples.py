"""Samples of the rows of many puts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from flight_server.kinds.changelog.rules import SAMPLE_BYTES, Sample
from flight_server.kinds.changelog.rules.samples import MAX_ROWS

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def put(sample: Sample, hashes: list[int], text: str = "", count: int = 1) -> Sample:
    rows = pa.record_batch([pa.array(range(len(hashes))), pa.array([text] * len(hashes))], schema=SCHEMA)
    return sample.plus(rows, np.array(hashes, np.uint64), np.full(len(hashes), count))


def test_a_sample_keeps_whole_keys_of_all_puts_however_many_there_are() -> None:
    random = np.random.default_rng(1)
    sample, put_so_far, hottest = Sample.empty(SCHEMA), dict[int, int](), 0
    keys = random.integers(0, 2**63, 20_000)
    for _ in range(60):
        hashes = [int(each) for each in random.choice(keys, 1000)]
        for each in hashes:
            put_so_far[each] = put_so_far.get(each, 0) + 1
        sample = put(sample, hashes)
        assert sample.rows.num_rows == len(sample.hashes) <= MAX_ROWS
    for each, count in zip(*np.unique(sample.hashes, return_counts=True), strict=True):
        hottest = max(hottest, int(count))
        assert put_so_far[int(each)] == count
    assert hottest > 1
    assert sample.sharing > MAX_ROWS // 4


def test_a_sample_of_one_key_keeps_its_first_rows_and_large_rows_are_few() -> None:
    sample = put(put(Sample.empty(SCHEMA), [7] * 3000), [7] * 3000)
    assert sample.rows.column("n").to_pylist() == list(range(MAX_ROWS // 2))
    large = Sample.empty(SCHEMA)
    for number in range(40):
        large = put(large, [number], "x" * (SAMPLE_BYTES // 10))
        assert large.rows.nbytes <= SAMPLE_BYTES


def test_a_row_that_is_asserted_often_is_there_three_times() -> None:
    assert len(put(Sample.empty(SCHEMA), [1, 2], count=1_000_000).hashes) == 6


def test_tests_are_due_when_the_rows_have_doubled_or_those_that_share_their_keys() -> None:
    sample, tested = Sample.empty(SCHEMA), []
    assert not sample.due
    for number in range(1, 101):
        sample = put(sample, [number])
        if sample.due:
            tested.append(number)
            sample = sample.was_tested()
    assert tested == [1, 2, 4, 8, 16, 32, 64]
    sample = put(sample, [5])
    assert sample.due  # the first two rows of one key
    assert not sample.was_tested().due
    whole = put(sample, [int(each) for each in np.repeat(np.arange(1000, 2500), 2)]).was_tested()
    assert whole.complete
    assert put(whole, [1]) is whole


def test_a_key_with_a_retraction_begins_again() -> None:
    sample = put(Sample.empty(SCHEMA), [1, 2, 1, 3]).without(np.array([1, 9], np.uint64))
    assert sample.hashes.tolist() == [2, 3]
    assert sample.rows.column("n").to_pylist() == [1, 3]
