"""Readers and producers as the benchmarks need them: one way for each subject, by many at once.

A :class:`Crowd` works in processes of its own, as Spark's tasks do, or in threads of this process. Its
processes are started once and wait for their turn, so that starting an interpreter is not measured.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
import uuid
from collections.abc import Callable
from itertools import repeat
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Literal, Self

from pyarrow import flight

from spark_client import ShuffleClient
from tests.benchmarks.measure import MIB, own_cpu_seconds
from tests.benchmarks.peers import batch_of
from tests.support.processes import cpu_seconds

PUT_FRAME_BYTES = MIB

Where = Literal["processes", "threads"]
Work = Callable[[str, str, int], int]
"""Location, dataset, and how many bytes are to be moved; returns how many were."""


def read_with_pyarrow(location: str, ticket: str, wanted_bytes: int) -> int:
    """One reader with pyarrow's client; every batch is decoded and counted."""
    with flight.connect(location) as client:
        got_bytes = sum(int(chunk.data.nbytes) for chunk in client.do_get(flight.Ticket(ticket.encode())))
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


def read_with_client(location: str, dataset: str, wanted_bytes: int) -> int:
    """One reader through the public client."""
    with ShuffleClient(location) as client:
        got_bytes = sum(int(batch.nbytes) for batch in client.get(dataset))
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


def read_tcp(location: str, _: str, wanted_bytes: int) -> int:
    """One reader of plain bytes into one buffer; the location is ``host:port``."""
    buffer = bytearray(MIB)
    got_bytes = 0
    host, _, port = location.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        while count := connection.recv_into(buffer):
            got_bytes += count
    assert got_bytes == wanted_bytes, (got_bytes, wanted_bytes)
    return got_bytes


def put_with_pyarrow(location: str, dataset: str, wanted_bytes: int) -> int:
    """One producer with pyarrow's client, into a dataset of its own."""
    batch = batch_of(PUT_FRAME_BYTES)
    with flight.connect(location) as client:
        path = f"{dataset}/x{uuid.uuid4().hex}"
        writer, _ = client.do_put(flight.FlightDescriptor.for_path(path), batch.schema)
        for _ in range(wanted_bytes // PUT_FRAME_BYTES):
            writer.write_batch(batch)
        writer.close()
    return wanted_bytes


def put_with_client(location: str, dataset: str, wanted_bytes: int) -> int:
    """One producer through the public client, into a dataset of its own."""
    batch = batch_of(PUT_FRAME_BYTES)
    with ShuffleClient(location) as client:
        client.put(f"{dataset}/x{uuid.uuid4().hex}", repeat(batch, wanted_bytes // PUT_FRAME_BYTES))
    return wanted_bytes


def at_once(readers: int, read: Callable[[], int]) -> int:
    """The bytes that ``readers`` threads delivered together; the first error of any of them is raised."""
    delivered: list[int] = []
    errors: list[BaseException] = []

    def one() -> None:
        try:
            delivered.append(read())
        except BaseException as error:  # noqa: BLE001  # raised below, in the thread that measures
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(delivered)


class Crowd:
    """``members`` of the same kind, that begin together."""

    def __init__(self, members: int, where: Where = "processes") -> None:
        self._members = members
        self._processes: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        if where == "processes":
            context = multiprocessing.get_context("spawn")
            for _ in range(members):
                here, there = context.Pipe()
                process = context.Process(target=_work_when_told, args=(there,), daemon=True)
                process.start()
                there.close()
                self._processes.append((process, here))

    def run(self, work: Work, location: str, dataset: str, wanted_bytes: int) -> int:
        """The bytes that all of them moved, ``wanted_bytes`` each."""
        if not self._processes:
            return at_once(self._members, lambda: work(location, dataset, wanted_bytes))
        for _, pipe in self._processes:
            pipe.send((work, location, dataset, wanted_bytes))
        answers = [pipe.recv() for _, pipe in self._processes]
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return sum(answers)

    def cpu_seconds(self) -> float:
        """What its members have used so far."""
        if not self._processes:
            return own_cpu_seconds()
        return sum(cpu_seconds(process.pid or 0) for process, _ in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, pipe in self._processes:
            pipe.close()
            process.join()


def _work_when_told(pipe: Connection) -> None:
    while True:
        try:
            work, location, dataset, wanted_bytes = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(work(location, dataset, wanted_bytes))
        except Exception as error:  # noqa: BLE001  # raised again in the process that measures
            pipe.send(RuntimeError(repr(error)))
