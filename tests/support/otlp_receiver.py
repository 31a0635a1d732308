"""A receiver of traces on loopback, which speaks OTLP over HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it came; ids in hexadecimal, attributes without the prefix of this package."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    failed: bool
    seconds: float
    attributes: dict[str, Any]


class OtlpReceiver:
    """Also a context manager that ends it. ``spans`` are those that have come."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.text = b""  # all that came, as bytes
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # http.server's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.text += body
                receiver.spans += _spans(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that sends its traces here."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_address[1]}",
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }

    def named(self, name: str) -> list[ReceivedSpan]:
        return [each for each in self.spans if each.name == name]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    found = []
    for resource in request.resource_spans:
        of_resource = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            found += [
                ReceivedSpan(
                    of_resource["service.name"],
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.status.code == 2,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    _attributes(span.attributes),
                )
                for span in scope.spans
            ]
    return found


def _attributes(given: Any) -> dict[str, Any]:
    return {
        each.key.removeprefix("flight_shuffle."): getattr(each.value, each.value.WhichOneof("value"))
        for each in given
    }
