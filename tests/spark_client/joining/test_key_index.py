"""The index finds for each key the entry with exactly this key, and all of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from spark_client.joining import Keys
from spark_client.joining.hash_join import expanded
from spark_client.joining.key_index import KeyIndex


def found(index: KeyIndex, keys: Keys) -> list[list[int]]:
    """The rows of each key."""
    entries = index.find(keys)
    counts = index.counts(entries)
    rows: list[list[int]] = [[] for _ in entries]
    for positions, within in expanded(counts, 3):
        numbers = index.rows(entries[positions], within)
        for position, row in zip(positions.tolist(), numbers.tolist(), strict=True):
            rows[position].append(row)
    return [sorted(each) for each in rows]


def expected(held: list[Any], wanted: list[Any]) -> list[list[int]]:
    return [[row for row, key in enumerate(held) if key == each] for each in wanted]


def keys_of(values: list[Any], kind: pa.DataType, hashes: NDArray[np.uint64] | None) -> Keys:
    column = pa.array(values, kind)
    return Keys.of([column]) if hashes is None else Keys((column,), hashes)


TEXTS = st.lists(st.sampled_from(["", "a", "b", "ab", "c" * 40]), max_size=30)
NUMBERS = st.lists(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 1 << 32, 5]), max_size=30)


@given(NUMBERS, NUMBERS)
def test_numbers_are_found(held: list[int], wanted: list[int]) -> None:
    index = KeyIndex(keys_of(held, pa.int64(), None))
    assert found(index, keys_of(wanted, pa.int64(), None)) == expected(held, wanted)


@given(TEXTS, TEXTS, st.sampled_from([1, 2, 2**64 - 1]))
def test_texts_are_found_however_many_share_a_hash(held: list[str], wanted: list[str], modulus: int) -> None:
    def hashes(texts: list[str]) -> NDArray[np.uint64]:
        # The highest hash is also what follows the last entry.
        every = [2**64 - 1 - sum(text.encode()) % modulus for text in texts]
        return np.array(every, np.uint64)

    index = KeyIndex(keys_of([text.encode() for text in held], pa.binary(), hashes(held)))
    assert found(index, keys_of([text.encode() for text in wanted], pa.binary(), hashes(wanted))) == expected(
        held, wanted
    )


@pytest.mark.parametrize("crowd", [1, 64, 5000])
def test_crowded_hashes_are_found(crowd: int) -> None:
    """Many hashes side by side, and one far away: all but one are in one place of the directory."""
    hashes = np.append(np.arange(crowd, dtype=np.uint64) * np.uint64(3), np.uint64(2**63))
    column = pa.array(np.arange(crowd + 1), pa.int64())
    index = KeyIndex(Keys((column,), hashes))
    entries = index.find(Keys((column,), hashes))
    assert index.rows(entries).tolist() == list(range(crowd + 1))
    between = hashes[:-1] + np.uint64(1)
    assert (index.find(Keys((column[:-1],), between)) == -1).all()


CLOSE = st.lists(st.integers(-40, 40), max_size=30)


@given(CLOSE, CLOSE | NUMBERS, st.sampled_from([0, 2**63 - 41, 40 - 2**63, 1 << 40]))
def test_numbers_that_lie_close_together_are_found_without_a_hash(
    held: list[int], wanted: list[int], middle: int
) -> None:
    held = [middle + number for number in held]
    asked = keys_of([*wanted, *(middle + number for number in wanted if abs(number) <= 40)], pa.int64(), None)
    index = KeyIndex(keys_of(held, pa.int64(), None))
    assert found(index, asked) == expected(held, asked.columns[0].to_pylist())
    assert not held or "hashes" not in vars(asked)


CHANCE = np.random.default_rng(7)
WIDE = CHANCE.permutation(35_000) * 2**48 - 2**62


@pytest.mark.parametrize(
    ("numbers", "hashes"),
    [
        *((CHANCE.permutation(70_000) * step, False) for step in (1, 4, 5, 1 << 40)),
        (np.unique(CHANCE.integers(-(2**63), 2**63 - 1, 80_000))[-70_000:], False),
        (np.append(WIDE, WIDE[0] + 1 + np.arange(35_000)), True),
    ],
    ids=["close", "rather close", "even", "even and wide", "at random", "crowded"],
)
def test_numbers_are_found_however_they_are_spread(numbers: NDArray[np.int64], hashes: bool) -> None:
    index = KeyIndex(Keys.of([pa.array(numbers)]))
    asked = Keys.of([pa.array(np.concatenate([numbers, numbers + 1, [-1, 2**63 - 1]]))])
    rows = index.find(asked)
    assert index.rows(rows[:70_000]).tolist() == list(range(70_000))
    there = np.isin(asked.columns[0].to_numpy(), numbers)
    assert ((rows >= 0) == there).all()
    assert ("hashes" in vars(asked)) is hashes


def test_rows_may_be_numbered_otherwise() -> None:
    index = KeyIndex(Keys.of([pa.array([5, 6, 5], pa.int64())]), np.array([10, 20, 30]))
    assert found(index, Keys.of([pa.array([5, 6, 7], pa.int64())])) == [[10, 30], [20], []]
    assert not index.is_unique
    assert index.rows_of(np.ones(index.entries, np.bool_)).tolist() == [10, 20, 30]


def test_hashes_of_numbers_are_different_and_spread() -> None:
    numbers = np.concatenate([np.arange(50_000), np.arange(50_000) << 40]).astype(np.uint64)
    hashes = Keys.of([pa.array(np.unique(numbers).view(np.int64))]).hashes
    assert len(np.unique(hashes)) == len(np.unique(numbers))
    assert np.bincount((hashes >> np.uint64(56)).astype(np.int64), minlength=256).max() < 600
