"""A dataset that a driver writes by itself, for tests that need one without a job of Spark's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from flight_server.protocol import PutCommand
from spark_client.jobs import Shuffles
from spark_client.lanes import PutStream
from spark_client.merge import DatasetRef
from spark_client.servers import Holder, HolderKind, PlannedDataset, Report, RunJob, ServerStart


def write_dataset(
    shuffles: Shuffles,
    dataset: str,
    schema: pa.Schema,
    partitions: int,
    batches: Mapping[int, Iterable[pa.RecordBatch]],
) -> DatasetRef:
    """The dataset, of one attempt of one producer with these batches, by partition."""

    def put(call: RunJob) -> list[Report]:
        destination = shuffles.destination(dataset, call)
        server, create = (
            shuffles.servers.at(destination.choose(dataset, 0, 0)),
            destination.create(partitions),
        )
        command = PutCommand(
            dataset, producer=0, attempt="1", generation=destination.generation, create=create
        )
        with PutStream(server, command, schema) as stream:
            for partition, some in batches.items():
                for batch in some:
                    stream.write(batch, partition)
            answer = stream.commit()
        start = ServerStart(server.location, answer["start"])
        return [Report(dataset, 0, "1", start, tuple(answer["locations"]), answer["rows"], answer["bytes"])]

    holder, planned = Holder(HolderKind.RUN), {dataset: PlannedDataset(partitions)}
    shuffles.loop.write(planned, put, holder, candidates=shuffles.servers.locations)
    return shuffles.sealed(dataset, schema).source
