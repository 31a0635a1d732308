"""Every reader decodes every dictionary-encoded batch: late, resumed, from one producer or several."""

from __future__ import annotations

import base64
import json

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.round_trip.flights import put, read, same, words
from tests.support.durable import action


def test_replaced_dictionaries_reach_late_and_resumed_readers(client: flight.FlightClient, name: str) -> None:
    batches = [pa.record_batch({"w": words(*text)}) for text in ("ab", "cd", "cdc", "ab", "z")]
    put(client, name, batches)
    for start in range(len(batches) + 1):
        same(read(client, name, start=start)[1], batches[start:])


def growing(*texts: str) -> list[pa.RecordBatch]:
    """Batches whose dictionary grows, so that deltas can be sent."""
    batches, known = [], []
    for text in texts:
        known += [letter for letter in dict.fromkeys(text) if letter not in known]
        indices = pa.array([known.index(letter) for letter in text], pa.int32())
        batches.append(pa.record_batch({"w": pa.DictionaryArray.from_arrays(indices, pa.array(known))}))
    return batches


def test_dictionary_deltas_reach_late_and_resumed_readers(client: flight.FlightClient, name: str) -> None:
    batches = [*growing("ab", "bc", "cda", "e"), *growing("xy", "yz")]
    put(client, name, batches, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True))
    for start in range(len(batches) + 1):
        same(read(client, name, start=start)[1], batches[start:])


def test_nested_dictionaries_are_replaced_together(client: flight.FlightClient, name: str) -> None:
    def nested(*letters: str) -> pa.RecordBatch:
        inner = pa.StructArray.from_arrays([words(*letters)], ["inner"])
        outer = pa.DictionaryArray.from_arrays(pa.array(range(len(letters)), pa.int8()), inner)
        return pa.record_batch({"outer": outer, "plain": words(*reversed(letters))})

    batches = [nested("a", "b"), nested("a", "b"), nested("c"), nested("a", "d", "e")]
    put(client, name, batches)
    for start in range(len(batches) + 1):
        same(read(client, name, start=start)[1], batches[start:])


@pytest.mark.parametrize("deltas", [False, True])
def test_several_producers_have_dictionaries_of_their_own(
    client: flight.FlightClient, name: str, *, deltas: bool
) -> None:
    action(client, "create", dataset=name, kind="shuffle", partitions=2)
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    texts = [("ab", "abc", "cd"), ("zy", "zyx", "x"), ("ba",), ("b", "bq", "bqr")]
    written = [growing(*each) for each in texts]
    for producer, batches in enumerate(written):
        command = json.dumps({"dataset": name, "producer": producer, "attempt": "a"})
        places = [number % 2 for number in range(len(batches))]
        put(client, flight.FlightDescriptor.for_command(command), batches, places=places, options=options)
    action(client, "seal", dataset=name)
    for partition in range(2):
        wanted = [batch for batches in written for batch in batches[partition::2]]
        for start in range(len(wanted) + 1):
            same(read(client, name, partition, start)[1], wanted[start:])


@pytest.mark.parametrize("flags", range(1, 5))
def test_a_dataset_created_with_a_schema_takes_producers_whose_schema_message_is_not_padded(
    client: flight.FlightClient, name: str, flags: int
) -> None:
    # The flatbuffers of these have no multiple of eight bytes, and Flight sends them as they are.
    columns = {"w": words("a", "b"), **{"x" * (flags + i): pa.array([True, None]) for i in range(flags)}}
    batch = pa.record_batch(columns)
    schema = base64.b64encode(batch.schema.serialize()).decode()
    action(client, "create", dataset=name, kind="shuffle", schema=schema)
    command = json.dumps({"dataset": name, "producer": 0, "attempt": "1"}).encode()
    put(client, flight.FlightDescriptor.for_command(command), [batch], places=[0])
    action(client, "seal", dataset=name)
    same(read(client, name)[1], [batch])
