"""The end of an upstream's stream: its totals are those of what arrived, or the pull has failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pyarrow as pa
import pytest

from flight_server.datasets import Totals
from flight_server.kinds.source import relay
from flight_server.protocol.errors import SourceUnavailable
from tests.support.raw_flight import flight_data, ipc_messages

BATCH = pa.record_batch({"n": [1, 2, 3]})
ARRIVED = Totals(rows=6, frames=2, bytes=0, crc32c=0xAB)
GENERATION = {"x-flight-shuffle-generation": "7"}


def trailers(rows: int = 6, frames: int = 2, crc32c: str = "000000ab") -> dict[str, str]:
    totals = {"rows": str(rows), "frames": str(frames), "crc32c": crc32c}
    return {f"x-flight-shuffle-{name}": value for name, value in totals.items()}


class Upstream:
    """A channel whose only call gives two frames, these headers and trailers, and ends well."""

    def __init__(self, headers: dict[str, str], trailing: dict[str, str]) -> None:
        self._headers, self._trailing = headers, trailing
        self._messages: Iterator[bytes] = iter(
            flight_data(each.header, each.body) for each in ipc_messages(BATCH.schema, [BATCH, BATCH])
        )
        self.cancel = lambda: None

    def unary_stream(self, method: str) -> Any:
        return lambda request, metadata: self

    async def read(self) -> Any:
        return next(self._messages, grpc.aio.EOF)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK

    async def initial_metadata(self) -> Any:
        return self._headers.items()

    async def trailing_metadata(self) -> Any:
        return self._trailing.items()


@pytest.mark.parametrize(
    ("headers", "trailing", "sentence"),
    [
        (GENERATION, trailers(), None),
        ({}, {}, None),
        (GENERATION, {}, "ended without its totals"),
        (GENERATION, trailers(rows=7), "the upstream says rows, frames, checksum"),
        (GENERATION, trailers(frames=3), "the upstream says rows, frames, checksum"),
        (GENERATION, trailers(crc32c="000000ac"), "the upstream says rows, frames, checksum"),
    ],
)
async def test_a_pull_ends_with_the_totals_of_what_arrived_or_fails(
    headers: dict[str, str], trailing: dict[str, str], sentence: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def channel(*_: object) -> AsyncIterator[Upstream]:
        yield Upstream(headers, trailing)

    monkeypatch.setattr(relay, "_channel", channel)
    spec = relay.FlightSpec.of({"flight": "grpc://127.0.0.1:1", "dataset": "d"})
    pulling: Any = SimpleNamespace(max_message_bytes=1 << 20, full_validation=False)
    (schema, *_) = ipc_messages(BATCH.schema, [])
    source = relay.RelaySource(spec, "near", schema.header, [b"ticket"], pulling)
    pulled = source.pull(0, lambda: ARRIVED)
    if sentence is None:
        assert len([each async for each in pulled]) == 2
    else:
        with pytest.raises(SourceUnavailable, match=sentence):
            [each async for each in pulled]
