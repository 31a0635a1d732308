"""What was left out is found again, and hardly anything else."""

from __future__ import annotations

import numpy as np

from flight_server.kinds.changelog.left_out import LeftOut


def test_each_noted_key_is_among_those_left_out_and_few_others() -> None:
    hashes = np.random.default_rng(1).integers(0, 2**64, 40_000, np.uint64)
    left_out = LeftOut()
    assert len(left_out.among(hashes)) == 0
    left_out.note(hashes[:10_000])
    left_out.note(hashes[10_000:20_000])
    assert left_out.among(hashes[:20_000]).tolist() == hashes[:20_000].tolist()
    assert len(left_out.among(hashes[20_000:])) < 800


def test_every_key_counts_as_left_out_if_that_is_not_known() -> None:
    ends = np.array([0, 2**64 - 1], np.uint64)
    assert LeftOut(every=True).among(ends).tolist() == ends.tolist()
