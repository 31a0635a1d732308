"""An HTTP server whose every byte the test decides, to stand in for good, old, odd and dying servers.

The answer to each request is a list of byte strings, made by the test; each is sent by itself. After the
last one the connection stays open for the next request, or is closed when ``closes`` is set. ``well`` makes
the answer of a server that does everything right.

Limits: HTTP/1.1 GET only; a thread for each connection.
"""

from __future__ import annotations

import itertools
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from flight_server.protocol import FRAMES_TRAILER, FROM_TRAILER, ROWS_TRAILER
from spark_client.connection import Closable

Request = tuple[str, dict[str, str]]
Answer = Callable[[str, dict[str, str]], Iterable[bytes]]
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.apache.arrow.stream\r\n"
    b"X-Flight-Shuffle-Generation: g1\r\nTransfer-Encoding: chunked\r\n\r\n"
)
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class HttpSource(Closable):
    """Serves on a free port of the loopback; also a context manager."""

    def __init__(self, answer: Answer, *, closes: bool = False) -> None:
        self.answer = answer
        self.closes = closes
        self.requests: list[Request] = []
        self.connections = 0
        source = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while source._serve_one(self.rfile, self.connection):
                    pass

        class Listener(socketserver.ThreadingTCPServer):
            def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
                # Here, and not in the connection's thread: `close` must know of it before that has begun.
                source.connections += 1
                source._sockets.append(request)
                super().process_request(request, client_address)

        self._sockets: list[socket.socket] = []
        self._server = Listener(("127.0.0.1", 0), Handler, bind_and_activate=True)
        self._server.daemon_threads = False
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="http source")
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _serve_one(self, file: object, sock: socket.socket) -> bool:
        try:
            line = file.readline()  # type: ignore[attr-defined]
            if not line.endswith(b"\r\n"):  # cut, or the end
                return False
            target = line.decode().split(" ")[1]
            headers = {}
            while line := file.readline().decode().strip():  # type: ignore[attr-defined]
                name, _, value = line.partition(": ")
                headers[name.lower()] = value
            self.requests.append((target, headers))
            for piece in self.answer(target, headers):
                sock.sendall(piece)
        except OSError:
            return False
        return not self.closes

    def close(self) -> None:
        self._server.shutdown()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
        self._server.server_close()
        self._thread.join()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def last_chunk(rows: int, frames: int, start: int = 0) -> bytes:
    totals = f"{ROWS_TRAILER}: {rows}\r\n{FRAMES_TRAILER}: {frames}\r\n{FROM_TRAILER}: {start}\r\n"
    return b"0\r\n" + totals.encode() + b"\r\n"


def messages(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[bytes]:
    """The schema's bytes and then each batch's, dictionaries before it, as one IPC stream."""
    sink = pa.BufferOutputStream()
    ends = []
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            ends.append(sink.tell())
            writer.write_batch(batch)
        ends.append(sink.tell())
    data = sink.getvalue().to_pybytes()
    # The writer sends the schema with the first batch; without one, at its close.
    ends[0] = len(schema.serialize())
    return [data[a:b] for a, b in itertools.pairwise([0, *ends])]


def well(batches: Sequence[pa.RecordBatch], schema: pa.Schema, generation: str = "g1") -> Answer:
    """The answers of a server that does everything right, ``from`` included."""

    def answer(target: str, headers: dict[str, str]) -> Iterable[bytes]:
        start = int(target.partition("from=")[2].partition("&")[0] or 0)
        yield HEAD.replace(b"g1", generation.encode())
        for message in messages(batches[start:], schema):
            yield chunk(message)
        yield chunk(END_OF_STREAM)
        yield last_chunk(sum(batch.num_rows for batch in batches), len(batches), start)

    return answer
