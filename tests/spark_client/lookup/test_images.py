"""Images: deltas over a snapshot, and merges, against a model that keeps every row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_client.lookup.images import Image, Unsure
from tests.support.examples import examples
from tests.support.layered import above, found, layer, merge

VALUES = pa.struct(
    [
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int16())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("t", pa.struct([("x", pa.float32()), ("y", pa.list_(pa.string()))])),
    ]
)
SCHEMA = pa.schema([("k", pa.int64()), *VALUES])
values = st.tuples(
    st.sampled_from([None, 1, 2]),
    st.sampled_from([None, 0.0, -0.0, float("nan")]),
    st.sampled_from([None, "", "a"]),
    st.sampled_from([None, [], [1, None], [None, 1]]),
    st.sampled_from([None, [], [("a", 1)], [("a", None)]]),
    st.sampled_from([None, {"x": None, "y": ["a"]}, {"x": -0.0, "y": None}]),
)
rows = st.tuples(st.integers(0, 5), values)
steps = st.lists(st.tuples(st.lists(rows, max_size=6), st.integers(0, 20), st.integers(0, 3)), max_size=5)


def table(of: list[Any]) -> pa.Table:
    pylist = [dict(zip(SCHEMA.names, (key, *rest), strict=True)) for key, rest in of]
    return pa.Table.from_pylist(pylist, SCHEMA)


def texts(of: pa.Table) -> list[str]:
    return [repr(row) for row in of.to_pylist()]


def expected(model: Counter[Any]) -> list[Counter[str]]:
    answers: list[Counter[str]] = [Counter() for _ in range(7)]
    for (key, text), count in model.items():
        if count:
            answers[key][text] += count
    return answers


ALL_KEYS = pa.array(range(7), pa.int64())


@settings(max_examples=examples(0.5))
@given(st.lists(rows, max_size=12), steps)
def test_an_image_is_the_snapshot_with_all_deltas(first: list[Any], deltas: list[Any]) -> None:
    def counted(of: list[Any]) -> Counter[Any]:
        return Counter((key, text) for (key, _), text in zip(of, texts(table(of)), strict=True))

    image = Image([layer(table(first))])
    known = {(key, text): (key, rest) for (key, rest), text in zip(first, texts(table(first)), strict=True)}
    model = counted(first)
    assert found(image, ALL_KEYS) == expected(model)
    for asserted, retracted, merging in deltas:
        known |= {
            (key, text): (key, rest)
            for (key, rest), text in zip(asserted, texts(table(asserted)), strict=True)
        }
        diff = counted(asserted)
        alive = sorted(row for row, count in model.items() if count)
        if alive:
            row = alive[retracted % len(alive)]
            diff[row] -= model[row] if retracted % 2 else 1
        diff = Counter({row: count for row, count in diff.items() if count})
        model.update(diff)
        changes = table([known[row] for row in diff])
        if diff:
            try:
                image = above(image, changes, list(diff.values()))
            except Unsure:
                # Zeros have one hash, and are not the same.
                everything = [known[row] for row, count in model.items() for _ in range(count)]
                image = Image([layer(table(everything), version=image.version + 1)])
        if merging and len(image.layers) > 1:
            first_merged = max(0, len(image.layers) - 1 - merging)
            image = Image([*image.layers[:first_merged], merge(image.layers[first_merged:])])
        assert found(image, ALL_KEYS) == expected(model)


def simple(of: list[tuple[int, Any]]) -> pa.Table:
    return pa.table({"k": pa.array([key for key, _ in of], pa.int64()), "v": pa.array([v for _, v in of])})


def test_a_retraction_of_a_row_that_is_not_there_is_not_applied() -> None:
    image = Image([layer(simple([(1, "a")]))])
    with pytest.raises(Unsure, match="not there"):
        above(image, simple([(1, "b")]), [-1])
    with pytest.raises(Unsure, match="not there"):
        above(image, simple([(1, "a")]), [-2])


def test_a_layer_has_only_the_keys_that_changed() -> None:
    image = Image([layer(simple([(key, "a") for key in range(100)]))])
    image = above(image, simple([(7, "a"), (7, "b"), (8, "a"), (200, "c")]), [-1, 1, -1, 1])
    top = image.layers[1]
    assert (top.rows, top.live) == (3, 2)
    assert sum(found(image, pa.array([7, 8, 9, 200], pa.int64())), Counter()) == Counter(
        [repr({"k": 7, "v": "b"}), repr({"k": 9, "v": "a"}), repr({"k": 200, "v": "c"})]
    )


def test_a_key_that_is_gone_stays_gone_in_a_merge_of_deltas_and_leaves_no_row_in_a_whole_layer() -> None:
    image = Image([layer(simple([(1, "a"), (2, "b")]))])
    image = above(image, simple([(1, "a")]), [-1])
    image = above(image, simple([(3, "c")]), [1])
    deltas = merge(image.layers[1:])
    assert (deltas.after, deltas.version, deltas.rows, deltas.live) == (1, 3, 2, 1)
    keys = pa.array([1, 2, 3], pa.int64())
    assert found(Image([image.layers[0], deltas]), keys) == found(image, keys)
    whole = merge(image.layers)
    assert (whole.after, whole.version, whole.rows, whole.live) == (None, 3, 2, 2)
    assert found(Image([whole]), keys) == found(image, keys)


def test_rows_of_a_key_that_a_collision_joins_are_found_by_comparison() -> None:
    # Equal zeros have one hash, and are not the same row.
    rows = pa.table({"k": pa.array([1, 1], pa.int64()), "v": pa.array([[0.0, None], [-0.0, None]])})
    image = Image([layer(rows)])
    with pytest.raises(Unsure, match="one hash"):
        above(image, rows.slice(0, 1), [-1])


@pytest.mark.parametrize("values", [pa.nulls(3), pa.array([[None, None], [None], []], pa.list_(pa.null()))])
def test_a_delta_is_applied_to_rows_with_nulls_that_have_no_type(values: pa.Array) -> None:
    rows = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": values})
    image = above(Image([layer(rows.slice(0, 2))]), rows, [1, -1, 1])
    assert [sum(of.values()) for of in found(image, rows["k"].chunk(0))] == [2, 0, 1]
