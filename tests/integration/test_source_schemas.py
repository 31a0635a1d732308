"""What a source's schema costs a real server."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.raw_flight import RawFlight
from tests.support.server_process import ServerProcess


def test_a_source_s_schema_is_held_once_and_counted(
    flight_server_process: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    count, schema_bytes = 40, 4 << 20
    pq.write_table(pa.table({"n": [1]}), tmp_path / "a.parquet")
    server = flight_server_process(memory_limit="1GiB", source_roots=tmp_path)
    with RawFlight(server.location) as raw:
        for number in range(count):
            schema = pa.schema({"n": pa.int64()}, metadata={str(number): "y" * schema_bytes})
            body = {
                "dataset": f"s{number}",
                "kind": "source",
                "source": {"format": "parquet", "path": str(tmp_path / "a.parquet")},
                "schema": base64.b64encode(schema.serialize()).decode(),
            }
            if number == count // 2:  # what one request takes has been there
                before_bytes = server.rss_bytes()
            for _ in range(2):  # the second one is recognised
                raw.action("create", body)
        metadata = raw.action("statistics")["memory"]["accounts"]["frames"]["accounts"]["metadata"]
        assert count * schema_bytes <= metadata["used_bytes"] <= 1.2 * count * schema_bytes
        grown_bytes = server.rss_bytes() - before_bytes
        assert grown_bytes < count * schema_bytes
