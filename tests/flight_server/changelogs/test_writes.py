"""What a put may say in ``_diff``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.changelogs.writes import MAX_DIFF
from flight_server.protocol import BadFrame
from tests.support.changelog_store import Engine

SCHEMA = pa.schema([("a", pa.int64())])


def batch(diffs: list[int | None], kind: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1] * len(diffs)), pa.array(diffs, kind)], ["a", "_diff"])


@pytest.mark.parametrize(
    ("diffs", "kind"),
    [
        ([1, MAX_DIFF + 1], pa.int64()),
        ([-MAX_DIFF - 1], pa.int64()),
        ([-(2**63)], pa.int64()),
        ([2**64 - 1, 0], pa.uint64()),
        ([1, None], pa.int8()),
    ],
)
def test_a_diff_whose_sums_could_overflow_or_that_is_null_is_refused(
    tmp_path: Path, diffs: list[int | None], kind: pa.DataType
) -> None:
    engine = Engine(tmp_path, SCHEMA, None)
    with pytest.raises(BadFrame, match="_diff"):
        engine.run(engine._commit(batch(diffs, kind), None))
    assert engine.changelog.upper == 0
    engine.close()


def test_diffs_of_any_integer_type_are_added_up(tmp_path: Path) -> None:
    engine = Engine(tmp_path, SCHEMA, None)
    for diffs, kind in (
        ([3], pa.uint64()),
        ([-1, -1], pa.int8()),
        ([], pa.int16()),
        ([MAX_DIFF], pa.uint32()),
    ):
        engine.run(engine._commit(batch(list(diffs), kind), None))
    assert engine.deltas(0, 3) == {(1,): 1}
    assert engine.deltas(0, 4) == {(1,): 1 + MAX_DIFF}
    assert engine.deltas(3, 4) == {(1,): MAX_DIFF}
    engine.close()
