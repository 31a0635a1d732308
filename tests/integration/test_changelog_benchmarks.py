"""What the benchmarks of changelogs compute beside measuring: the others' results, and latencies."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.benchmarks.changelogs.ends import SCHEMA, rows
from tests.benchmarks.changelogs.ingest import AT_ONCE, updates
from tests.benchmarks.changelogs.open_loop import Seconds, add_latencies


@pytest.mark.parametrize("name", AT_ONCE)
def test_each_way_finds_the_latest_row_of_each_key(name: str) -> None:
    given = updates(5000, 300)
    found = AT_ONCE[name](given).sort_by("key")
    latest = {row["key"]: row for row in given.to_pylist()}
    assert found.cast(given.schema).to_pylist() == [latest[key] for key in sorted(latest)]


def test_neighbours_in_time_are_different_keys_and_all_keys_have_their_turn() -> None:
    found = rows(0, 1000, 100, np.zeros(1000, np.int64))
    assert found.schema == SCHEMA
    assert pa.compute.value_counts(found["key"]).field("counts").to_pylist() == [10] * 100


def test_an_update_is_as_late_as_the_change_that_has_its_version_and_the_first_seconds_do_not_count() -> None:
    seconds, begin_ns, ms = Seconds("", 1, 2, "off", warm_up=1), 10**12, 10**6
    # Four updates, due every 500 ms, in three adds; the follower got versions 6 and 7 in one change.
    sent = {
        "firsts": np.array([0, 1, 3]),
        "added_ns": begin_ns + np.array([0, 1000, 1500]) * ms,
        "versions": np.array([5, 6, 7]),
    }
    seen = {"versions": np.array([5, 7]), "received_ns": begin_ns + np.array([900, 1600]) * ms}
    add_latencies(seconds, sent, seen, begin_ns, 2)
    assert seconds.max == [1100, 600], "900 and 1600 - 500; 1600 - 1000 and 1600 - 1500"
    assert seconds.overall["max"] == 600
    assert seconds.overall["median"] == 350
    assert seconds.overall["producer late, max"] == 0
