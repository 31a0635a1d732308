"""Keys with more rows than a slice: taken in pieces, they are what they are as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.folding import compacted, kept_at
from flight_server.kinds.changelog.large_keys import in_pieces, pieces
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import DELETE, Layout, Updates
from flight_server.kinds.changelog.views import View, ViewPart
from flight_server.protocol import KeepRule
from tests.flight_server.kinds.changelog.test_against_history import RULES
from tests.support import keep_model
from tests.support.examples import examples
from tests.support.run_rows import SCHEMA, fewer_bits, latest, listed, memory_run, updates_of

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


each_kind = st.sampled_from(["send", "recv", "bid", "closed"])
each_model_row = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 4), each_kind, st.integers(0, 1))
each_model_update = st.tuples(each_model_row, st.integers(1, 4), st.sampled_from([-1, 1, 1, 2])) | st.tuples(
    st.sampled_from(["a", "b"]).map(lambda key: (key, None, None, None)), st.integers(1, 4), st.just(DELETE)
)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=examples(0.4))
@given(
    runs=st.lists(
        st.tuples(st.lists(each_model_update, max_size=15), st.integers(1, 7)), min_size=1, max_size=4
    ),
    versions=st.tuples(st.integers(0, 4), st.integers(0, 4)).map(sorted),
    piece_bytes=st.integers(1, 800),
)
def test_a_rule_makes_of_pieces_what_it_makes_of_whole_keys(
    name: str, runs: list[tuple[list[Update], int]], versions: list[int], piece_bytes: int
) -> None:
    spec = None if RULES[name] is None else KeepRule.parse(RULES[name])
    after, upto = versions
    with pytest.MonkeyPatch.context() as patch:
        fewer_bits(patch, 0)
        layout, rule = Layout(keep_model.SCHEMA, spec), make_rule(spec, keep_model.SCHEMA)
        parts = cut(layout, runs)
        whole = joined(layout, parts)

        def of_pieces(since: int, until: int, of_piece: Callable[[Updates, Any], Any]) -> list[Any]:
            made = partial(pieces, layout, parts, since, until, piece_bytes)
            return [found for found in in_pieces(made, rule.rounds, of_piece) if found is not None]

        left = of_pieces(after, 4, lambda piece, totals: compacted(piece, after, rule, totals)[0])
        kept = compacted(whole, after, rule)[0]
        assert Counter(since_then(Updates.in_order(layout, left), after)) == Counter(since_then(kept, after))
        shown = of_pieces(upto, upto, lambda piece, totals: kept_at(piece, upto, rule, totals))
        there = kept_at(whole, upto, rule)
        assert sum((keep_model.collection(each) for each in shown), Counter()) == keep_model.collection(there)


@pytest.mark.parametrize("spare", [0, 2])
def test_pairs_beside_a_late_row_are_needed_in_pieces_as_in_the_whole_key(spare: int) -> None:
    spec = KeepRule.parse(RULES["pair"])
    layout, rule = Layout(keep_model.SCHEMA, spec), make_rule(spec, keep_model.SCHEMA)
    pairs = [(("a", time, kind, 0), 1, 1) for time in range(1, 6) for kind in ("send", "recv")]
    run = updates_of(layout, [(("a", 0, "send", 0), 2, 1), *pairs])
    made = partial(pieces, layout, [[run]], 1, 2, 1)
    of_piece = partial(compacted, since=1, rule=rule, spare=spare)
    left = [
        each
        for each in in_pieces(made, rule.rounds, lambda piece, totals: of_piece(piece, totals=totals)[0])
        if each is not None
    ]
    assert listed(Updates.in_order(layout, left)) == listed(of_piece(run)[0])
    assert len(Updates.in_order(layout, left)) == 1 + 2 * (1 + spare)


def read(view: View, after: int | None) -> list[str]:
    """The rows of the snapshot, or of the deltas."""
    at, found = ViewPart(), []
    while at.left:
        at = view.part(after, view.upper, at)
        assert at.rows is not None
        found += [repr(row) for row in at.rows.to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=examples(0.2))
@given(
    runs=st.lists(st.lists(each_model_update, max_size=15), min_size=1, max_size=4),
    after=st.integers(0, 3) | st.none(),
    slice_bytes=st.integers(1, 400),
)
def test_a_large_key_is_read_in_pieces(
    name: str, runs: list[list[Update]], after: int | None, slice_bytes: int
) -> None:
    spec = None if RULES[name] is None else KeepRule.parse(RULES[name])
    with pytest.MonkeyPatch.context() as patch:
        fewer_bits(patch, 0)
        layout, rule = Layout(keep_model.SCHEMA, spec), make_rule(spec, keep_model.SCHEMA)
        contents = Contents.empty(layout).committed([memory_run(updates_of(layout, run)) for run in runs])
        view = View(layout, rule, contents, 0, 4, slice_bytes)
        assert read(view, after) == read(replace(view, slice_bytes=1 << 30), after)
