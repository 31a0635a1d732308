"""Writing on the gRPC lane: DoPut, which every Flight server has.

pyarrow's writer reports a refusal as a lost connection at some later write; only its ``close`` raises the reason. So
each failure closes the writer, and raises the error of ``close`` if there is one.

Checksums
    pyarrow does not show the bytes that it sends. So a ``MessageWriter`` encodes each batch a second time, to the
    same bytes, and without a copy if it is not compressed, for the checksum of all messages in the commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from flight_server.protocol import Commit, FlightShuffleError, PutCommand, Unavailable
from spark_client.connection import Compression, RemoteServer

from .lane import BrokenStream, Closed, Tries
from .messages import MessageWriter, codec_for, most_to


class GrpcWriter:
    """A ``LaneWriter``. pyarrow sends each batch at once. With ``auto`` the call begins with the first batch.

    ``before``: what the bulk lane ended with, which the error says, too, if this one cannot be begun.
    """

    def __init__(
        self,
        server: RemoteServer,
        command: PutCommand,
        schema: pa.Schema,
        compression: Compression = None,
        *,
        once: bool = False,
        before: Tries | None = None,
    ) -> None:
        self._server = server
        self._descriptor = flight.FlightDescriptor.for_command(command.encode())
        self._dataset = command.dataset
        self._schema = schema
        self._once = once
        self._before = before
        self._closed = self._opened = False
        if compression != "auto":
            self._open(compression)

    def _open(self, codec: str | None) -> None:
        if self._closed:
            raise Closed("the put has ended")
        self._closed = True  # unless all of it succeeds: a put that could not be opened has ended
        self._messages = MessageWriter(self._schema, codec)
        self._messages.opening(self._descriptor.serialize())
        try:
            self._writer, self._reader, self._call = self._server.open_put(
                self._descriptor, self._schema, codec=codec, dataset=self._dataset, once=self._once
            )
        except Unavailable as error:
            if not self._before:
                raise
            raise type(error)(f"{error.message}; before, {self._before}", **error.detail) from error
        self._opened, self._closed = True, False

    @property
    def place(self) -> str:
        return self._server.location

    def write(self, batch: Any, metadata: bytes, *, hold: bool) -> None:  # noqa: ARG002  # pyarrow sends at once
        if not self._opened:
            self._open(codec_for(batch, most_to(urlsplit(self._server.location).hostname or "")))
        with self._errors():
            self._messages.add(batch, metadata)
            self._messages.take()
            if metadata:
                self._writer.write_with_metadata(batch, pa.py_buffer(metadata))
            else:
                self._writer.write_batch(batch)

    def commit(self, totals: Commit) -> bytes:
        self._send(totals)
        with self._errors():
            answer = self._reader.read()
        if answer is None:
            with self._errors():
                raise BrokenStream("the server ended the put before it answered the commit")
        return bytes(answer.to_pybytes())

    def _send(self, totals: Commit) -> None:
        if not self._opened:
            self._open(None)
        totals = replace(totals, crc32c=self._messages.running_crc32c)
        with self._errors():
            self._writer.write_metadata(pa.py_buffer(totals.encode()))
            self._messages.metadata_only(totals.encode())

    def finish(self, totals: Commit | None) -> list[bytes]:
        answers: list[bytes] = []
        if totals is not None:
            self._send(totals)
        with self._errors():
            self._writer.done_writing()
            while (answer := self._reader.read()) is not None:
                answers.append(answer.to_pybytes())
        self._closed = True
        with self._call.errors():
            self._writer.close()
        return answers

    def cancel(self) -> None:
        """Does nothing: a waiting call ends at its deadline, ``stream_seconds``."""

    def abandon(self) -> None:
        self._end()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._call.errors():
                yield
        except FlightShuffleError as error:
            raise self._end() or error from error

    def _end(self) -> FlightShuffleError | None:
        """End the call if it goes on; the error that it ends with."""
        goes_on, self._closed = self._opened and not self._closed, True
        if goes_on:
            try:
                with self._call.errors():
                    self._writer.close()
            except FlightShuffleError as reason:
                return reason
        return None
