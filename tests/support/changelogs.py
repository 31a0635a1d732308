"""Changelogs from outside, with pyarrow's own client: create, put, read versions."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import flight

from tests.support.durable import OPTIONS, action

Row = tuple[Any, ...]


def signed(data: pa.Table, *diffs: int, kind: pa.DataType | None = None) -> pa.Table:
    return data.append_column("_diff", pa.array(diffs, kind or pa.int64()))


def declaration(dataset: str, schema: pa.Schema, **declared: Any) -> dict[str, Any]:
    """The body of ``create``."""
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    return {"dataset": dataset, "kind": "changelog", "schema": text, **declared}


def create(client: flight.FlightClient, dataset: str, schema: pa.Schema, **declared: Any) -> dict[str, Any]:
    """Create a changelog; the answer."""
    return action(client, "create", **declaration(dataset, schema, **declared))


def put(
    client: flight.FlightClient,
    dataset: str,
    data: pa.Table | pa.RecordBatch,
    *,
    path: bool = False,
    **command: Any,
) -> dict[str, Any]:
    """Commit one version; the answer."""
    as_json = json.dumps({"dataset": dataset, **command})
    descriptor = (
        flight.FlightDescriptor.for_path(dataset) if path else flight.FlightDescriptor.for_command(as_json)
    )
    writer, answers = client.do_put(descriptor, data.schema, OPTIONS)
    with writer:
        batches = data.to_batches() if isinstance(data, pa.Table) else [data]
        for batch in batches:
            writer.write_batch(batch)
        if "attempt" in command:
            commit = {"rows": data.num_rows, "frames": len(batches)}
            writer.write_metadata(json.dumps({"commit": commit}).encode())
        writer.done_writing()
        answer: dict[str, Any] = json.loads(answers.read().to_pybytes())
    return answer


def rows(data: pa.Table | pa.RecordBatch) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in data.columns), strict=True))


@dataclass(frozen=True)
class Step:
    """The rows of one version, in the order of arrival."""

    version: int
    rows: list[Row]


def ticket(dataset: str, **versions: Any) -> flight.Ticket:
    return flight.Ticket(json.dumps({"dataset": dataset, **versions}).encode())


def steps(stream: Iterator[Any]) -> Iterator[Step]:
    """The steps of a reader's messages, each as soon as its last message says so."""
    batches: list[Row] = []
    version = None
    for chunk in stream:
        said = json.loads(chunk.app_metadata.to_pybytes())
        assert version in (None, said["version"]), "a step ended without its last message"
        version = said["version"]
        batches += rows(chunk.data)
        if said.get("last") is True:
            yield Step(version, batches)
            batches, version = [], None
    assert version is None, "the last step is not whole"


def read(client: flight.FlightClient, dataset: str, **versions: Any) -> Step:
    """A snapshot or deltas, which is one step."""
    (step,) = steps(client.do_get(ticket(dataset, **versions), OPTIONS))
    return step


def snapshot(client: flight.FlightClient, dataset: str, **versions: Any) -> list[Row]:
    """The rows, sorted as texts."""
    return sorted(read(client, dataset, **versions).rows, key=repr)


def folded(start: Sequence[Row], changes: Sequence[Row]) -> list[Row]:
    """The rows that deltas, whose last column is ``_diff``, make of others; sorted as texts."""
    counts: Counter[Row] = Counter(start)
    for *row, diff in changes:
        counts[tuple(row)] += diff
    assert all(count >= 0 for count in counts.values())
    return sorted(counts.elements(), key=repr)


def numbers(client: flight.FlightClient, dataset: str) -> Mapping[str, Any]:
    """What ``statistics`` says of it."""
    said: Mapping[str, Any] = action(client, "statistics", dataset=dataset)["datasets"][dataset]["changelog"]
    return said
