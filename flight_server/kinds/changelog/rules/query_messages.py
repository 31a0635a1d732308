"""The messages between a server and a process that runs queries, over a socket that only they have.

A request is two messages: a header in JSON (``work``, ``keep``, ``schema``), and rows with their counts. An answer is
two, too: an error in JSON, or nothing; and rows with their counts, or nothing. Rows are an Arrow IPC stream with the
columns by number and the counts last; the schema, in the header, is that of both.
"""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from flight_server.protocol import FlightShuffleError, KeepRule, from_json

from .ranked import Kept

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_NONE = np.zeros(0, np.int64)


class Work(StrEnum):
    """A request's work: the methods of ``UserQuery``; ``CHECK`` makes one."""

    CHECK = "check"
    KEPT = "kept"
    CHECK_ROWS = "check_rows"
    CHECK_IDEMPOTENT = "check_idempotent"


def send_request(connection: Connection, work: Work, spec: KeepRule, schema: pa.Schema, rows: Kept) -> None:
    """Blocks until the process has taken it. Raises OSError if it has ended."""
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    header = {"work": work.value, "keep": spec.to_json(), "schema": text}
    connection.send_bytes(json.dumps(header).encode())
    _send_rows(connection, rows)


def receive_request(connection: Connection) -> tuple[Work, dict[str, Any], str, bytes]:
    """The work, the rule, the schema, and the rows for :func:`rows_of`. Raises EOFError when the server has ended."""
    header = json.loads(connection.recv_bytes())
    return Work(header["work"]), header["keep"], header["schema"], connection.recv_bytes()


def schema_of(text: str) -> pa.Schema:
    """A schema of a request."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def send_answer(connection: Connection, answer: Kept | FlightShuffleError | None) -> None:
    """Send the result of the work."""
    error = answer.to_json() if isinstance(answer, FlightShuffleError) else ""
    connection.send_bytes(error.encode())
    if isinstance(answer, Kept):
        _send_rows(connection, answer)
    else:
        connection.send_bytes(b"")


def receive_answer(connection: Connection, schema: pa.Schema) -> Kept:
    """The rows, none if the work gives none. Raises the error that was sent; EOFError or OSError if the process has
    ended.
    """
    error, body = connection.recv_bytes(), connection.recv_bytes()
    if error:
        raise from_json(error)
    return rows_of(body, schema) if body else Kept(pa.RecordBatch.from_pylist([], schema), _NONE)


def rows_of(body: bytes, schema: pa.Schema) -> Kept:
    """Rows that were sent."""
    with pa.ipc.open_stream(body) as reader:
        batch = reader.read_next_batch()
    *columns, counts = batch.columns
    return Kept(pa.RecordBatch.from_arrays(columns, schema=schema), counts.to_numpy())


def _send_rows(connection: Connection, rows: Kept) -> None:
    columns = [*rows.rows.columns, pa.array(rows.counts)]
    batch = pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    connection.send_bytes(memoryview(sink.getvalue()))
