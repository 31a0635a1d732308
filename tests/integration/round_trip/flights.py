"""Putting, reading and comparing batches with pyarrow's own client."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import flight

from tests.support.durable import action


def drop(client: flight.FlightClient, name: str) -> None:
    action(client, "drop", dataset=name)


def put(
    client: flight.FlightClient,
    descriptor: flight.FlightDescriptor | str,
    batches: Sequence[pa.RecordBatch],
    *,
    schema: pa.Schema | None = None,
    places: Sequence[int] | None = None,
    options: pa.ipc.IpcWriteOptions | None = None,
) -> None:
    """Put the batches; with ``places`` as a shuffle's attempt, each into its partition, and commit."""
    if isinstance(descriptor, str):
        descriptor = flight.FlightDescriptor.for_path(descriptor)
    call = flight.FlightCallOptions(write_options=options) if options is not None else None
    writer, _ = client.do_put(descriptor, batches[0].schema if schema is None else schema, options=call)
    with writer:
        for place, batch in enumerate(batches):
            if places is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, str(places[place]).encode())
        if places is not None:
            rows = sum(batch.num_rows for batch in batches)
            totals = {"commit": {"rows": rows, "frames": len(batches)}}
            writer.write_metadata(json.dumps(totals).encode())


def read(
    client: flight.FlightClient, name: str, partition: int = 0, start: int = 0
) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    ticket = {"dataset": name, "partition": partition, "from": start}
    reader = client.do_get(flight.Ticket(json.dumps(ticket).encode()))
    batches = [chunk.data for chunk in reader]
    for batch in batches:
        batch.validate(full=True)
    return reader.schema, batches


def same(found: Sequence[pa.RecordBatch], wanted: Sequence[pa.RecordBatch]) -> None:
    """Fail unless the batches are equal one by one; their dictionaries may be ordered otherwise."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.schema == other.schema
        assert one.num_rows == other.num_rows
        for mine, theirs in zip(one.columns, other.columns, strict=True):
            # equals() compares union and run-end-encoded columns too, but a dictionary by its values.
            assert mine.equals(theirs) or mine.to_pylist() == theirs.to_pylist()


def words(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string()).dictionary_encode()
