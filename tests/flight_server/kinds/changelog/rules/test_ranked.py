"""``latest`` on rates."""

from __future__ import annotations

import numpy as np

from flight_server.kinds.changelog.rules import Groups, make_rule
from flight_server.protocol import KeepRule
from tests.support.keep_model import SCHEMA, groups_of

LATEST = KeepRule.parse({"rule": "latest", "key": "key", "order_by": "time"})


def test_counts_near_the_largest_number_do_not_overflow() -> None:
    rows = groups_of(LATEST, {("a", n, None, 0): 1 for n in range(4)})
    groups = Groups(rows.rows, rows.starts, np.full(4, 2**62))
    assert make_rule(LATEST, SCHEMA).kept(groups).counts.tolist() == [0, 0, 0, 1]
    assert make_rule(LATEST, SCHEMA).needed(groups, np.zeros(4, np.int64)).counts.tolist() == [0, 0, 0, 2**62]
