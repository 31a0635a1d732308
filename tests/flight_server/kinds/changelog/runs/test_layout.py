"""How a changelog's columns are kept, and how a producer's batch becomes its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from flight_server.kinds.changelog.runs import Layout
from flight_server.kinds.changelog.runs.layout import no_rows, stored_type
from flight_server.protocol import KeepRule
from tests.support.run_rows import UUIDS, columns

DICTIONARY = pa.dictionary(pa.int8(), pa.string())
SCHEMA = pa.schema([("a", pa.int64()), ("b", DICTIONARY)])


def test_a_key_is_what_the_rule_says_and_without_a_rule_every_column() -> None:
    keep = KeepRule.parse({"rule": "latest", "key": "b", "order_by": ["-a"]})
    assert (Layout(SCHEMA, keep).key, Layout(SCHEMA, keep).order) == ([1], [(0, True)])
    assert (Layout(SCHEMA, None).key, Layout(SCHEMA, None).order) == ([0, 1], [])


def test_rows_that_differ_in_a_nested_column_only_have_different_hashes_without_a_rule() -> None:
    # Else all rows would be one slice, which a merge or a read takes as a whole.
    schema = pa.schema([("op", pa.string()), ("after", pa.struct([("id", pa.int64())]))])
    rows = pa.RecordBatch.from_pylist([{"op": "c", "after": {"id": n}} for n in range(50)], schema)
    assert len(np.unique(Layout(schema, None).hashes(rows))) == 50


@pytest.mark.parametrize(
    "given",
    [
        SCHEMA,
        pa.schema([("b", pa.string_view()), ("_diff", pa.uint8()), ("a", pa.int64())]),
        pa.schema([("a", pa.run_end_encoded(pa.int32(), pa.int64())), ("b", pa.string())]),
    ],
    ids=["dictionary", "view", "run ends"],
)
def test_a_producer_may_encode_a_column_in_any_way(given: pa.Schema) -> None:
    layout = Layout(SCHEMA, None)
    layout.check_producer(given, "d")
    values = {
        "a": pa.array([1, 1, None, 3]),
        "b": pa.array(["x", None, "x", "y"]),
        "_diff": pa.array([1] * 4),
    }
    arrays = []
    for field in given:
        array = values[field.name]
        encoded = (
            pc.run_end_encode(array) if pa.types.is_run_end_encoded(field.type) else array.cast(field.type)
        )
        arrays.append(pa.concat_arrays([encoded, encoded]).slice(4, 4))
    rows = layout.rows(pa.RecordBatch.from_arrays(arrays, schema=given))
    rows.validate(full=True)
    assert rows.schema == layout.schema == pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert rows.to_pydict() == {"a": [1, 1, None, 3], "b": ["x", None, "x", "y"]}


def test_types_are_kept_as_their_values() -> None:
    assert stored_type(pa.dictionary(pa.int8(), pa.binary_view())) == pa.binary()
    assert stored_type(pa.run_end_encoded(pa.int16(), pa.string_view())) == pa.string()
    assert stored_type(UUIDS.type) == UUIDS.type


def test_there_is_a_batch_without_rows_of_every_schema() -> None:
    schema = pa.schema([(name, column.type) for name, column in columns().items()])
    assert no_rows(schema).schema == Layout(schema, None).schema == schema
