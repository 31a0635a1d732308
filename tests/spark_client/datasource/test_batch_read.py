"""What a task says of what is gone, and which server a read waits for."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from flight_server.protocol import CreateRequest, NotFound, Released, Retention
from spark_client import ShuffleClient
from spark_client.connection import RemoteServer
from spark_client.datasource import FlightDataSource, flight_source
from spark_client.datasource.batch_read import FlightReader, Share, find
from spark_client.datasource.source_options import BATCH_READ, SourceOptions
from tests.support.server_process import ServerProcess


def test_what_other_readers_have_used_up_is_not_said_to_be_dropped() -> None:
    with ServerProcess.start(http_port=0) as process, ShuffleClient(process.location) as client:
        server = RemoteServer(process.location)
        server.action("create", CreateRequest("d", retention=Retention(readers=1)).encode())
        client.put("d", pa.table({"id": [1]}))
        options = SourceOptions({"location": process.location, "path": "d"}, BATCH_READ)
        reader = FlightReader.plan(options, find(server, "d"), StructType([StructField("id", LongType())]))
        assert [batch.num_rows for batch in reader.read(Share(0))] == [1]
        with pytest.raises(Released, match="after as many readers as its retention declares"):
            list(reader.read(Share(0)))
        client.drop("d")
        with pytest.raises(NotFound, match="went away while Spark read it"):
            list(reader.read(Share(0)))
        server.close()


def test_a_read_waits_for_a_server_that_its_load_has_reached_and_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = []

    def finding(server: RemoteServer, *rest: Any) -> Any:
        patient.append(server.patient)
        return find(server, *rest)

    with ServerProcess.start(http_port=0) as process, ShuffleClient(process.location) as client:
        client.put("d", pa.table({"id": [1]}))
        options = {"location": process.location, "path": "d"}
        loaded = FlightDataSource(options)
        schema = loaded.schema()
        monkeypatch.setattr(flight_source, "find", finding)
        for source in (FlightDataSource(options), pickle.loads(pickle.dumps(loaded))):
            source.reader(schema)
    assert patient == [False, True]
