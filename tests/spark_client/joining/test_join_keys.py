"""The normal form of join keys: what Spark's join finds equal has the same bits."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from flight_server.protocol import InvalidRequest
from spark_client.joining import KeyForm, present

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0001))[0]
UTC = dt.UTC


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (pa.array([7], pa.int8()), pa.array([7], pa.int64()), True),
        (pa.array([-1], pa.int16()), pa.array([65535], pa.int32()), False),
        (pa.array([0.0]), pa.array([-0.0]), True),
        (pa.array([float("nan")]), pa.array([-NAN]), True),
        (pa.array([0.1], pa.float32()), pa.array([0.1]), False),
        (pa.array([0.5], pa.float32()), pa.array([0.5]), True),
        (pa.array([3], pa.int32()), pa.array([3.0]), True),
        (pa.array([Decimal("1.50")]), pa.array([Decimal("1.5")]), True),
        (pa.array([Decimal("2.00")]), pa.array([2], pa.int32()), True),
        (pa.array([Decimal("0.5")]), pa.array([0.5]), True),
        (pa.array(["a"]), pa.array(["a"], pa.large_string()), True),
        (pa.array([b"a"]), pa.array([b"a"], pa.large_binary()), True),
        (pa.array(["a"]), pa.array(["a "]), False),
        (pa.array([b"\0"]), pa.array([b""]), False),
        (pa.array([True]), pa.array([True]), True),
        (pa.array([dt.date(2020, 1, 1)]), pa.array([dt.date(2020, 1, 1)]), True),
        (
            pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
            pa.array([dt.datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            True,
        ),
        (pa.array([5], pa.time64("ns")), pa.array([5], pa.time64("ns")), True),
        (pa.array([5], pa.duration("us")), pa.array([6], pa.duration("us")), False),
    ],
    ids=str,
)
def test_equal_keys_have_one_normal_form_and_others_do_not(
    left: pa.Array, right: pa.Array, equal: bool
) -> None:
    form = KeyForm.of(left.type, right.type, "key")
    ours, theirs = form.normal(left), form.normal(right)
    assert ours.type == theirs.type == form.stored
    assert (ours == theirs) is equal


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.date32(), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.bool_(), pa.int8()),
        (pa.uint64(), pa.uint64()),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
    ],
    ids=str,
)
def test_types_that_need_a_cast_of_the_users_choice_are_refused(
    left: pa.DataType, right: pa.DataType
) -> None:
    with pytest.raises(InvalidRequest, match=r"key 'k'.*cast"):
        KeyForm.of(left, right, "key 'k'")


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())])], ids=str)
def test_nested_keys_are_refused_and_no_cast_is_advised(kind: pa.DataType) -> None:
    with pytest.raises(
        InvalidRequest, match=r"key 'k'.*are not compared; join by columns of its parts"
    ) as refused:
        KeyForm.of(kind, kind, "key 'k'")
    assert "cast" not in str(refused.value)


def test_a_slice_has_the_normal_form_of_its_rows() -> None:
    form = KeyForm.of(pa.float64(), pa.float64(), "key")
    assert form.normal(pa.array([1.0, 2.0, 3.0]).slice(1, 1)) == form.normal(pa.array([2.0]))
    form = KeyForm.of(pa.string(), pa.string(), "key")
    assert form.normal(pa.array(["a", "bc", "d"]).slice(1, 1)) == pa.array([b"bc"])


def test_a_row_is_present_if_no_key_is_null() -> None:
    found = present([pa.array([1, None, 3]), pa.array(["a", "b", None])])
    assert found is not None
    assert found.tolist() == [True, False, False]
    assert present([pa.array([1, 2]), pa.array(["a", "b"])]) is None
