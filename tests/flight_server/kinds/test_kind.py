"""A kind that no other room knows: both lanes, puts, reports, metrics and the server's start and end ask it."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from flight_server import config
from flight_server.datasets import Attachment, Caller, Dataset
from flight_server.frames import SchemaMessage
from flight_server.kinds import Action, BatchSink, DatasetKind, VersionBurst, VersionedMessage, VersionRead
from flight_server.memory import Reservation
from flight_server.protocol import (
    Commit,
    CreateRequest,
    FlightShuffleError,
    Kind,
    PutCommand,
    Versions,
    ipc_framing,
    wire,
)
from flight_server.protocol.checksums import message_crc32c
from flight_server.server import Server
from flight_server.tiering import Reader

SCHEMA = pa.schema([("n", pa.int64())])
ROWS = pa.record_batch([pa.array([3, 4, 5])], schema=SCHEMA)


class Kept(Attachment):
    """The batches of a dataset, in a list."""

    by_name = True

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def facts(self) -> dict[str, Any]:
        return {"batches": len(self.batches)}

    def stored(self) -> tuple[int, int, int]:
        return sum(batch.num_rows for batch in self.batches), 0, 0


class KeptSink(BatchSink):
    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.begin()

    def begin(self) -> None:
        self._coming: list[pa.RecordBatch] = []

    async def add(self, batch: pa.RecordBatch, room: Reservation) -> None:
        self._coming.append(batch)

    async def commit(self, totals: Commit) -> dict[str, Any]:
        kept_by(self.dataset).batches += self._coming
        return {"committed": True}

    async def end(self) -> None:
        await self.commit(Commit(0, 0))

    def abort(self, cause: FlightShuffleError) -> None:
        self.begin()


class KeptRead:
    def __init__(self, kind: KeptKind, dataset: Dataset) -> None:
        self._kind, self._dataset = kind, dataset

    def check(self) -> None:
        pass

    def schema_header(self) -> bytes:
        return ipc_framing.schema_header(SCHEMA.serialize().to_pybytes())

    async def bursts(self, reader: Reader) -> AsyncGenerator[VersionBurst, None]:
        for batch in kept_by(self._dataset).batches:
            message = pa.ipc.read_message(batch.serialize())
            header, body = memoryview(message.metadata), memoryview(message.body)
            made = VersionedMessage(
                wire.FlightData(header=header, body=body), message_crc32c(header, body), batch.num_rows, b""
            )
            yield VersionBurst([made], self._kind.catalogue.budget.frames.reserve(made.size_bytes))


class KeptKind(DatasetKind):
    """Takes the place of another kind, because a request names only those that the protocol has."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.catalogue)
        self.seen: list[str] = []

    @property
    def actions(self) -> Mapping[str, Action]:
        return {"hold": self._hold}

    async def _hold(self, body: bytes, _: Caller) -> dict[str, object]:
        return {"said": body.decode()}

    async def create(self, request: CreateRequest, schema: SchemaMessage | None) -> tuple[Dataset, bool]:
        dataset, made = await super().create(request, schema)
        dataset.attached = Kept()
        return dataset, made

    def sink(self, command: PutCommand, dataset: Dataset | None, schema: SchemaMessage) -> KeptSink:
        assert dataset is not None
        return KeptSink(dataset)

    def read(self, dataset: Dataset, versions: Versions | None, until: int | None) -> VersionRead:
        return KeptRead(self, dataset)

    async def metrics(self) -> list[tuple[str, str, float]]:
        return [
            (
                "kept_batches",
                "batches that are kept",
                sum(len(kept_by(each).batches) for each in self.catalogue),
            )
        ]

    def recover(self) -> None:
        self.seen.append("recover")

    async def start(self, background: object, every_seconds: float) -> None:
        self.seen.append("start")

    def drain(self) -> None:
        self.seen.append("drain")

    def close(self) -> None:
        self.seen.append("close")


def kept_by(dataset: Dataset) -> Kept:
    assert isinstance(dataset.attached, Kept)
    return dataset.attached


def use(location: str, http: str) -> dict[str, Any]:
    """What a client gets of it."""
    descriptor = flight.FlightDescriptor.for_path("d")
    schema = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    created = json.dumps({"dataset": "d", "kind": "changelog", "schema": schema}).encode()

    def got(path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(http + path, body, timeout=60) as answer:
            return bytes(answer.read())

    with flight.connect(location) as client:
        list(client.do_action(("create", created)))
        writer, _ = client.do_put(descriptor, SCHEMA)
        writer.write_batch(ROWS)
        writer.close()
        info = client.get_flight_info(descriptor)
        return {
            "rows": client.do_get(info.endpoints[0].ticket).read_all(),
            "bulk rows": pa.ipc.open_stream(got("/v1/datasets/d")).read_all(),
            "facts": json.loads(info.app_metadata)["batches"],
            "listed": json.loads(got("/v1/datasets"))["datasets"][0]["rows"],
            "action": [result.body.to_pybytes() for result in client.do_action(("hold", b"x"))],
            "posted": got("/v1/hold", b"y"),
            "metric": b"flight_shuffle_kept_batches 1.0" in got("/metrics"),
        }


async def test_a_kind_is_added_without_a_change_of_lanes_puts_reads_or_reports(tmp_path: Path) -> None:
    server = Server(config.load({"port": 0, "http_port": 0, "memory_limit": 64 << 20, "data_dir": tmp_path}))
    kind = server.node.kinds[Kind.CHANGELOG] = KeptKind(server)
    async with server:
        assert server.node.locations.http is not None
        found = await asyncio.to_thread(use, server.location, server.node.locations.http)
    whole = pa.Table.from_batches([ROWS])
    assert found == {
        "rows": whole,
        "bulk rows": whole,
        "facts": 1,
        "listed": 3,
        "action": [b'{"said":"x"}'],
        "posted": b'{"said":"y"}',
        "metric": True,
    }
    assert kind.seen == ["recover", "start", "drain", "close"]
