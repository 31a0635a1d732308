"""Joins of batches with an image, against a plain model."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_server.protocol import InvalidRequest
from spark_client.joining import KeyForm
from spark_client.lookup import lookup_join
from spark_client.lookup.images import Image
from spark_client.lookup.lookup_join import How, Join
from spark_client.lookup.lookups import spelled
from tests.support.layered import above, layer

LEFT = pa.schema([("order", pa.int64()), ("a", pa.int32()), ("b", pa.string())])
RIGHT = pa.schema(
    [("key 0", pa.int64()), ("key 1", pa.binary()), ("rate", pa.float64()), ("note", pa.string())]
)
FORMS = (KeyForm.of(pa.int32(), pa.int64(), "a"), KeyForm.of(pa.string(), pa.string(), "b"))
RESULT = pa.schema([LEFT.field("a"), LEFT.field("b"), LEFT.field("order"), *list(RIGHT)[2:]])

keys = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "x", "y"]))
present_keys = st.tuples(st.sampled_from([1, 2]), st.sampled_from(["x", "y"]))
right_rows = st.lists(st.tuples(present_keys, st.integers(0, 9)), max_size=12)


def join(how: How) -> Join:
    return Join(("a", "b"), FORMS, how, ("a", "b"), RESULT)


def right(rows: list[Any]) -> pa.Table:
    pylist = [{"key 0": a, "key 1": b.encode(), "rate": float(n), "note": None} for (a, b), n in rows]
    return pa.Table.from_pylist(pylist, RIGHT)


def expected(left: list[Any], rows: list[Any], how: How) -> list[tuple[Any, ...]]:
    found = []
    for order, key in enumerate(left):
        rates = sorted(float(n) for other, n in rows if other == key)
        if not rates and how == "left":
            rates = [None]  # type: ignore[list-item] # the row without a match
        found += [(*key, order, rate, None) for rate in rates]
    return found


def joined(image: Image, left: list[Any], how: How) -> list[tuple[Any, ...]]:
    pylist = [{"order": order, "a": a, "b": b} for order, (a, b) in enumerate(left)]
    (batch,) = pa.Table.from_pylist(pylist, LEFT).to_batches() or [LEFT.empty_table().to_batches()]
    rows = [tuple(row.values()) for piece in join(how).run(batch, image) for row in piece.to_pylist()]
    # The rows of one left row have no order.
    return sorted(rows, key=lambda row: (row[2], row[3] or 0.0))


@given(
    st.lists(keys, min_size=1, max_size=12),
    right_rows,
    right_rows,
    st.sampled_from(["left", "inner"]),
    st.integers(1, 20),
)
def test_rows_are_those_of_a_join(
    left: list[Any], rows: list[Any], more: list[Any], how: How, piece: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup_join, "PIECE_ROWS", piece)
        image = Image([layer(right(rows), keys=2)])
        assert joined(image, left, how) == expected(left, rows, how)
        if more:
            image = above(image, right(more), [1] * len(more))
            assert joined(image, left, how) == expected(left, rows + more, how)


def test_left_rows_keep_their_order_and_a_piece_is_no_larger_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lookup_join, "PIECE_ROWS", 10)
    image = Image([layer(right([((1, "x"), n) for n in range(25)]), keys=2)])
    batch = pa.record_batch(
        [pa.array([0, 1, 2]), pa.array([1, 2, 1], pa.int32()), pa.array(["x"] * 3)], schema=LEFT
    )
    pieces = list(join("left").run(batch, image))
    assert [piece.num_rows for piece in pieces] == [10, 10, 10, 10, 10, 1]
    orders = [order for piece in pieces for order in piece.column("order").to_pylist()]
    assert orders == [0] * 25 + [1] + [2] * 25
    rates = [rate for piece in pieces for rate in piece.column("rate").to_pylist()]
    assert sorted(rates[:25]) == sorted(rates[26:]) == list(map(float, range(25)))


def test_a_batch_without_rows_has_no_result() -> None:
    image = Image([layer(right([((1, "x"), 1)]), keys=2)])
    batch = pa.record_batch([pa.array([], field.type) for field in LEFT], schema=LEFT)
    assert sum(piece.num_rows for piece in join("left").run(batch, image)) == 0


def test_a_key_is_an_exact_name_or_else_the_only_one_in_another_case() -> None:
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64()), ("Name", pa.string())])
    assert spelled(schema, ["ID", "id", "name"], "lookup", "here", exact=False) == ("ID", "id", "Name")
    for name, exact, error in [
        ("Id", False, "could be any of 'id', 'ID'"),
        ("name", True, "no column 'name' here; it has 'id', 'ID', 'Name'"),
    ]:
        with pytest.raises(InvalidRequest, match=error):
            spelled(schema, [name], "lookup", "here", exact=exact)
    with pytest.raises(InvalidRequest, match="'name', 'NAME' name one column twice here"):
        spelled(schema, ["name", "NAME"], "lookup", "here", exact=False)
