"""A header's decoded size is known before Arrow reads it; one that decodes to many times its size is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pytest

from flight_server.frames import SchemaMessage
from flight_server.frames.schema_size import measure
from flight_server.protocol.errors import BadFrame
from tests.support.folded import folded_schema, with_folded_metadata
from tests.support.raw_flight import RawFlight, Refused, flight_data, ipc_messages, path
from tests.support.server_process import ServerProcess

MIB = 1 << 20
INNER = pa.field("a", pa.null())
TYPES: dict[str, pa.Field] = {
    "plain": pa.field("", pa.null()),
    "decimal": pa.field("", pa.decimal128(5, 2)),
    "time zone": pa.field("", pa.timestamp("us", "UTC")),
    "nested": pa.field("", pa.struct([pa.field("", pa.list_(pa.struct([INNER])))])),
    "map": pa.field("", pa.map_(pa.int8(), pa.null())),
    "union": pa.field("", pa.dense_union([INNER])),
    "dictionary": pa.field("", pa.dictionary(pa.int8(), pa.null())),
    "run ends": pa.field("", pa.run_end_encoded(pa.int16(), pa.null())),
    "extension": pa.field("", pa.uuid()),
    "metadata": pa.field("", pa.null(), metadata={"": ""}),
    "much text": pa.field("n" * 1000, pa.null(), metadata={"k" * 1000: "v" * 1000}),
}


@pytest.mark.parametrize("kind", TYPES)
def test_what_an_ordinary_schema_becomes_is_never_more_than_it_has_room_for(kind: str) -> None:
    header = SchemaMessage.of(pa.schema([TYPES[kind]] * 3000)).header
    size = measure(header)
    assert size.unfolded_bytes <= len(header), "so writers that share nothing are never refused"
    assert size.object_bytes >= 3000 * 448


def test_each_text_is_counted_where_it_is_referred_to() -> None:
    wide = pa.schema([pa.field("x" * 100, pa.timestamp("us", "Y" * 50), metadata={"k" * 7: "v" * 9})] * 10)
    size = measure(SchemaMessage.of(wide.with_metadata({"m" * 11: "w" * 13})).header)
    texts = 10 * (100 + 50 + 7 + 9) + 11 + 13
    assert size.unfolded_bytes == texts + 10 * 24 + 11 * 16


@pytest.mark.parametrize(
    ("width", "depth", "name"), [(1000, 1, 100_000), (1000, 2, 0), (20_000, 1, 0), (50, 4, 0)]
)
def test_a_header_that_shares_its_parts_is_refused(width: int, depth: int, name: int) -> None:
    with pytest.raises(BadFrame, match="from so many places"):
        measure(folded_schema(width, depth, b"x" * name))


def test_no_message_becomes_many_times_as_large_as_it_is(tmp_path: Path) -> None:
    """Of the bombs below, each of at most 2 MiB, the smallest would take 400 MB."""
    folded = folded_schema(1000, 1, b"x" * (MIB // 2))
    create = base64.b64encode(b"\xff\xff\xff\xff" + len(folded).to_bytes(4, "little") + folded).decode()
    batch = pa.record_batch({"n": [1]})
    schema, first = ipc_messages(batch.schema, [batch])
    with ServerProcess.start(data_dir=tmp_path / "data", memory_limit="64MiB") as server:
        before = server.peak_rss_bytes()
        with RawFlight(server.location) as raw:
            with pytest.raises(Refused, match="from so many places"):
                raw.put([flight_data(folded, descriptor=path("d"))])
            with pytest.raises(Refused, match="from so many places"):
                raw.action("create", {"dataset": "d", "schema": create})
            with pytest.raises(Refused, match="from so many places"):
                raw.put(
                    [
                        flight_data(schema.header, descriptor=path("d")),
                        flight_data(with_folded_metadata(first.header, 1000, MIB // 2), first.body),
                    ]
                )
            raw.put([flight_data(schema.header, descriptor=path("d")), flight_data(first.header, first.body)])
        assert server.peak_rss_bytes() - before < 60 * MIB
