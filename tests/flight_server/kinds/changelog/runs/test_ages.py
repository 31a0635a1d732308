"""How many rows of a file are old, as its footer says it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flight_server.kinds.changelog.runs import RunWriter
from flight_server.kinds.changelog.runs.blocks import STEPS, Ages
from flight_server.memory import MemoryPool
from tests.support.run_rows import latest, run_folder, updates_of


@given(st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=200), min_size=1, max_size=12))
def test_ages_never_say_that_rows_are_older_than_they_are_and_are_nearly_right(
    blocks: list[list[int]],
) -> None:
    ages = Ages()
    for versions in blocks:
        ages.add(np.array(versions, np.int64))
    ages = Ages(json.loads(json.dumps(ages.to_json())))
    every = sorted(version for versions in blocks for version in versions)
    assert len(ages.to_json()) <= STEPS
    assert ages.upto(max(every)) == len(every)
    for version in (0, *every):
        older = sum(each < version for each in every)
        exact = sum(each <= version for each in every)
        assert ages.upto(version) <= exact
        assert ages.upto(version) >= older - 3 * len(every) / STEPS - 1


def test_a_file_says_how_old_its_rows_are(tmp_path: Path) -> None:
    layout = latest()
    writer = RunWriter(run_folder(tmp_path, MemoryPool(None)), layout, since=5)
    writer.add(updates_of(layout, [(("a", version, [1]), version, 1) for version in (3, 5, 9)]))
    file = writer.finish()
    assert (file.since, [file.rows_upto(version) for version in (2, 3, 5, 8, 9)]) == (5, [0, 1, 2, 2, 3])
