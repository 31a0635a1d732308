"""Any schema and data, from any number of producers, read from any frame."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyarrow import flight

from tests.integration.round_trip.flights import drop, put, read, same
from tests.support.durable import action

_LEAVES = st.sampled_from(
    [
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.uint64(),
        pa.float64(),
        pa.string(),
        pa.large_binary(),
        pa.string_view(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.binary(4),
        pa.decimal128(12, 3),
        pa.dictionary(pa.int16(), pa.string()),
        pa.dictionary(pa.uint8(), pa.int64()),
    ]
)
TYPES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"f{n}", kind) for n, kind in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)
_TEXT = st.text(max_size=5)


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, or None."""
    some: st.SearchStrategy[Any]
    if pa.types.is_dictionary(kind):
        return values(kind.value_type)
    if pa.types.is_null(kind):
        return st.none()
    if pa.types.is_struct(kind):
        some = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_fixed_size_list(kind):
        some = st.lists(values(kind.value_type), min_size=2, max_size=2)
    elif pa.types.is_nested(kind):
        some = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_boolean(kind):
        some = st.booleans()
    elif pa.types.is_decimal(kind):
        some = st.decimals(-999, 999, places=3)
    elif pa.types.is_fixed_size_binary(kind):
        some = st.binary(min_size=4, max_size=4)
    elif pa.types.is_large_binary(kind):
        some = st.binary(max_size=5)
    elif pa.types.is_floating(kind):
        some = st.floats(allow_nan=False)
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        some = st.integers(0, 100)
    else:
        some = _TEXT
    return st.none() | some


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    kinds = draw(st.lists(TYPES, max_size=4))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])
    batches = []
    for _ in range(draw(st.integers(0, 4))):
        rows = draw(st.integers(0, 5))
        columns = [
            pa.array(draw(st.lists(values(field.type), min_size=rows, max_size=rows)), field.type)
            for field in schema
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        assume(_valid(batch))
        batches.append(batch)
    return schema, batches


def _valid(batch: pa.RecordBatch) -> bool:
    # Under a null struct pyarrow makes index 0 of a dictionary that may be empty, and calls that invalid itself.
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


@settings(suppress_health_check=list(HealthCheck))
@given(
    table=tables(), codec=st.sampled_from([None, "lz4", "zstd"]), producers=st.integers(1, 3), data=st.data()
)
def test_any_table_comes_back_from_any_number_of_producers(
    client: flight.FlightClient,
    table: tuple[pa.Schema, list[pa.RecordBatch]],
    codec: str | None,
    producers: int,
    data: st.DataObject,
) -> None:
    schema, batches = table
    options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=data.draw(st.booleans()))
    action(client, "create", dataset="any", kind="shuffle", producers=producers)
    try:
        for producer in range(producers):
            command = json.dumps({"dataset": "any", "producer": producer, "attempt": "a"})
            descriptor = flight.FlightDescriptor.for_command(command)
            put(client, descriptor, batches, schema=schema, places=[0] * len(batches), options=options)
        wanted = batches * producers
        start = data.draw(st.integers(0, len(wanted)))
        found_schema, found = read(client, "any", start=start)
        assert found_schema == schema
        same(found, wanted[start:])
    finally:
        drop(client, "any")
