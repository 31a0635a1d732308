"""Keys with more rows than a slice: taken in pieces, they are what they are as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flight_server.kinds.changelog.contents import Contents
from flight_server.kinds.changelog.folding import compacted, in_pieces, pieces, rule_pieces, shown
from flight_server.kinds.changelog.rules import make_rule
from flight_server.kinds.changelog.runs import DELETE, MAX_HASH, Layout, Updates
from flight_server.kinds.changelog.views import View, ViewPart
from flight_server.protocol import KeepRule
from flight_server.records import BegunFold
from tests.flight_server.kinds.changelog.test_against_history import RULES
from tests.support import keep_model
from tests.support.examples import examples
from tests.support.run_rows import fewer_bits, latest, listed, memory_run, updates_of

each_row = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 6), st.sampled_from([None, (), (1,)]))
each_delete = st.sampled_from(["a", "b"]).map(lambda key: (key, None, None))
each_update = st.tuples(each_row, st.integers(1, 4), st.sampled_from([-1, 1, 1, 2])) | st.tuples(
    each_delete, st.integers(1, 4), st.just(DELETE)
)
each_run = st.tuples(st.lists(each_update, max_size=20), st.integers(1, 7))
each_changelog = st.lists(each_run, min_size=1, max_size=4)

Update = tuple[tuple[object, ...], int, int]


def cut(layout: Layout, runs: list[tuple[list[Update], int]]) -> list[Updates]:
    """Each run in parts of so many rows."""
    parts = []
    for updates, part_rows in runs:
        run = updates_of(layout, updates)
        parts += [run.slice(at, min(at + part_rows, len(run))) for at in range(0, len(run), part_rows)]
    return parts


@settings(max_examples=examples(0.4))
@given(each_changelog, st.integers(1, 800))
def test_pieces_have_whole_rows_in_order_and_together_all_updates(
    runs: list[tuple[list[Update], int]], piece_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fewer_bits(patch, 0)  # both keys have one hash
        layout = latest()
        parts = cut(layout, runs)
        made = list(pieces(layout, parts, piece_bytes))
        assert listed(Updates.in_order(layout, made)) == listed(Updates.joined(layout, parts))
        rows = [{row for row, _, _ in listed(piece)} for piece in made]
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
        whole = Updates.joined(layout, parts)

        def of_pieces(until: int, of_piece: Callable[[Updates, Any], Any]) -> list[Any]:
            made = partial(rule_pieces, layout, parts, piece_bytes, until)
            return [each for each in in_pieces(made, rule.rounds, of_piece) if each is not None]

        left = of_pieces(4, lambda piece, totals: compacted(piece, after, rule, totals))
        rows = [piece.where(piece.diffs != DELETE) for piece in [*left, compacted(whole, after, rule)]]
        assert listed(Updates.in_order(layout, rows[:-1])) == listed(rows[-1])
        kept = of_pieces(upto, lambda piece, totals: shown(piece, None, upto, rule, totals))
        of_whole = shown(whole, None, upto, rule)
        assert sum((keep_model.collection(each) for each in kept), Counter()) == keep_model.collection(
            of_whole
        )


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
    begun=st.integers(0, 3) | st.none(),
    slice_bytes=st.integers(1, 400),
)
def test_a_large_key_is_read_in_pieces(
    name: str, runs: list[list[Update]], after: int | None, begun: int | None, slice_bytes: int
) -> None:
    spec = None if RULES[name] is None else KeepRule.parse(RULES[name])
    with pytest.MonkeyPatch.context() as patch:
        fewer_bits(patch, 0)
        layout, rule = Layout(keep_model.SCHEMA, spec), make_rule(spec, keep_model.SCHEMA)
        contents = Contents.empty(layout).committed([memory_run(updates_of(layout, run)) for run in runs])
        fold = None if begun is None else BegunFold(begun, min(after or 0, begun), 0, MAX_HASH)
        view = View(layout, rule, contents, 4, fold, slice_bytes)
        assert read(view, after) == read(replace(view, slice_bytes=1 << 30), after)
