"""Schemas whose text is not UTF-8: refused where readers in other languages could not take them."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest

from tests.integration.bad_input.data import refused
from tests.support.raw_flight import (
    HEADER,
    RawFlight,
    fields_of,
    flight_data,
    ipc_messages,
    path,
    put_messages,
)

MARK, NOT_UTF_8 = "märk", b"m\xff\xffrk"
MARKED_SCHEMAS: dict[str, pa.Schema] = {
    "a column": pa.schema([("n", pa.int8()), (MARK, pa.int8())]),
    "a nested field": pa.schema([("n", pa.list_(pa.struct([(MARK, pa.int8())])))]),
    "a map's field": pa.schema([("n", pa.map_(pa.string(), pa.struct([(MARK, pa.int8())])))]),
    "a time zone": pa.schema([("n", pa.timestamp("us", MARK))]),
    "a time zone of a dictionary": pa.schema([("n", pa.dictionary(pa.int8(), pa.timestamp("us", MARK)))]),
    "a key of the schema": pa.schema([("n", pa.int8())], metadata={MARK: "x"}),
    "a key of a column": pa.schema([pa.field("n", pa.int8(), metadata={MARK: "x"})]),
}


@pytest.mark.parametrize("case", MARKED_SCHEMAS)
def test_schema_text_that_is_not_utf_8_is_refused(raw: RawFlight, case: str) -> None:
    header = ipc_messages(MARKED_SCHEMAS[case], [])[0].header
    assert MARK.encode() in header
    bad = header.replace(MARK.encode(), NOT_UTF_8)
    message = base64.b64encode(b"\xff\xff\xff\xff" + len(bad).to_bytes(4, "little") + bad).decode()
    for error in (
        refused(lambda: raw.put([flight_data(bad, descriptor=path("d"))])),
        refused(lambda: raw.action("create", {"dataset": "d", "schema": message})),
    ):
        assert error.status == "INVALID_ARGUMENT"
        assert "is not UTF-8 text" in error.message


def test_bytes_in_the_values_of_metadata_go_through(raw: RawFlight) -> None:
    schema = pa.schema(
        [pa.field("n", pa.int64(), metadata={"k": b"\xff\0"})], metadata={"pickle": b"\x80\xff"}
    )
    raw.put(put_messages(path("d"), [pa.record_batch([[1]], schema)]))
    header = fields_of(raw.get(b"d")[0])[HEADER]
    assert ipc_messages(schema, [])[0].header.rstrip(b"\0") == header.rstrip(b"\0")
