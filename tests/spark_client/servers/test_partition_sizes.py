"""The sizes of partitions over all servers."""

from __future__ import annotations

from spark_client.servers.partition_sizes import EXACT_SIZES, LARGEST_SIZES, SealTotals, largest_sizes

COUNTS = {"rows": 1, "frames": 1}


def test_sizes_are_the_sums_of_the_answers() -> None:
    sizes = SealTotals(4)
    sizes.add(COUNTS | {"partition_bytes": {"0": 5, "3": 7}})
    sizes.add(COUNTS | {"partition_bytes": {"3": 1}})
    assert sizes.sizes().tolist() == [5, 0, 0, 8]


def test_what_is_not_named_is_spread_and_the_total_is_exact() -> None:
    sizes = SealTotals(4)
    sizes.add(COUNTS | {"partition_bytes": {"2": 1000}, "rest_bytes": 11})
    sizes.add(COUNTS | {"partition_bytes": {"2": 500, "0": 100}, "rest_bytes": 3})
    assert sizes.sizes().tolist() == [104, 4, 1503, 3]


def test_servers_name_all_sizes_until_these_are_too_many() -> None:
    assert largest_sizes(EXACT_SIZES // 10, 10) is None
    assert largest_sizes(EXACT_SIZES // 10, 11) == LARGEST_SIZES
