"""Keys with more rows than a slice: taken in pieces, they are what they are as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.folding import compacted
from flight_server.kinds.changelog.large_keys import TooLarge, folded, pieces
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import DELETE, Layout, Updates
from flight_server.protocol import KeepRule
from tests.support.examples import examples
from tests.support.run_rows import LATEST, SCHEMA, fewer_bits, latest, listed, updates_of

RULE = make_rule(KeepRule.parse(LATEST), SCHEMA)
EVERY_ROW = make_rule(None, SCHEMA)

each_row = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 6), st.sampled_from([None, (), (1,)]))
each_delete = st.sampled_from(["a", "b"]).map(lambda key: (key, None, None))
each_update = st.tuples(each_row, st.integers(1, 4), st.sampled_from([-1, 1, 1, 2])) | st.tuples(
    each_delete, st.integers(1, 4), st.just(DELETE)
)
each_run = st.tuples(st.lists(each_update, max_size=20), st.integers(1, 7))
each_changelog = st.lists(each_run, min_size=1, max_size=4)

Update = tuple[tuple[object, ...], int, int]


def cut(layout: Layout, runs: list[tuple[list[Update], int]]) -> list[list[Updates]]:
    """Each run in parts of so many rows."""
    found = []
    for updates, part_rows in runs:
        run = updates_of(layout, updates)
        found.append([run.slice(at, min(at + part_rows, len(run))) for at in range(0, len(run), part_rows)])
    return found


def since_then(updates: Updates, since: int) -> list[Update]:
    """The updates, of which those up to ``since`` count as one version."""
    return [(row, max(version, since), diff) for row, version, diff in listed(updates)]


def joined(layout: Layout, runs: Sequence[Sequence[Updates]]) -> Updates:
    return Updates.joined(layout, [part for run in runs for part in run])


@settings(max_examples=examples(0.4))
@given(each_changelog, st.integers(0, 4), st.integers(1, 800))
def test_pieces_have_whole_rows_in_order_and_together_all_updates(
    runs: list[tuple[list[Update], int]], since: int, piece_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fewer_bits(patch, 0)  # both keys have one hash
        layout = latest()
        parts = cut(layout, runs)
        whole = joined(layout, parts)
        found = list(pieces(layout, parts, since, 4, piece_bytes))
        added_up = compacted(whole, since, EVERY_ROW)[0]
        assert since_then(Updates.in_order(layout, found), since) == since_then(added_up, since)
        rows = [{row for row, _, _ in listed(piece)} for piece in found]
        assert sum(map(len, rows)) == len(set().union(*rows))
        kept = compacted(whole, since, RULE)[0]
        at_once = folded(layout, parts, since, 4, RULE, piece_bytes=piece_bytes, limit_bytes=1 << 30)
        assert Counter(since_then(at_once, since)) == Counter(since_then(kept, since))


def test_what_is_held_of_a_key_is_limited_and_what_is_not_needed_does_not_count() -> None:
    layout = latest()
    runs = [
        [updates_of(layout, [(("k", time, None), version, 1) for time in range(300)])] for version in (1, 2)
    ]
    size_bytes = runs[0][0].size_bytes
    limits = {"piece_bytes": size_bytes // 20, "limit_bytes": size_bytes // 4}
    assert listed(folded(layout, runs, 2, 2, RULE, **limits)) == [(("k", 299, None), 2, 2)]
    with pytest.raises(TooLarge) as more:
        folded(layout, runs, 0, 2, RULE, **limits)  # each version can still be asked for
    assert more.value.size_bytes > size_bytes // 4
