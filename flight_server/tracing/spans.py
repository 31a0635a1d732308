"""Spans: one for each put and read of a server, and one for each task of a client.

Traces are on where OpenTelemetry's own variables name where they go (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_TRACES_ENDPOINT``, or ``OTEL_TRACES_EXPORTER=otlp``) and the extra ``otel`` is installed. Else
nothing of it is imported, and :func:`configured` is None. All else, such as the sampler, is OpenTelemetry's and its
variables'.

The parent of a span is named by a W3C ``traceparent``: a driver's tasks have the driver's span at the time of the plan,
and a server's puts and reads have the task's. A driver's own spans are found where its program uses OpenTelemetry.

No attribute is a token. Spans wait in memory, at most 2,048, and are sent by a thread of OpenTelemetry's; where they
cannot be sent, they are lost, and nothing waits for longer than ``FLUSH_SECONDS``.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

FLUSH_SECONDS = 1.0
_PREFIX = "flight_shuffle."
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_log = logging.getLogger(__name__)


class Spans:
    """Makes spans. ``provider``: a ``TracerProvider`` of OpenTelemetry's SDK."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace  # noqa: PLC0415  # only where traces are on
        from opentelemetry.trace.propagation.tracecontext import (  # noqa: PLC0415  # the same
            TraceContextTextMapPropagator,
        )

        self._trace = trace
        self._provider = provider
        self._tracer = provider.get_tracer("flight_shuffle")
        self._contexts = TraceContextTextMapPropagator()

    def begin(
        self, name: str, parent: str | None, *, serves: bool = False, since_ns: int | None = None
    ) -> Any:
        """A span that has begun now, or in the past. ``parent``: a traceparent; a wrong one is none."""
        context = self._contexts.extract({} if parent is None else {"traceparent": parent})
        kind = self._trace.SpanKind.SERVER if serves else self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(name, context, kind, start_time=since_ns)

    def end(self, span: Any, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """End the span. Attributes that are None are left out. ``error``: an error's code."""
        span.set_attributes(
            {_PREFIX + name: value for name, value in attributes.items() if value is not None}
        )
        if error is not None:
            span.set_attribute("error.type", error)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()

    def flush(self) -> None:
        """Send what waits, for ``FLUSH_SECONDS`` at most. Blocks."""
        # In a thread, because OpenTelemetry's own limit has no effect. It goes on if the receiver is away.
        sending = threading.Thread(target=self._provider.force_flush, name="traces", daemon=True)
        sending.start()
        sending.join(FLUSH_SECONDS)


@cache
def configured(service: str) -> Spans | None:
    """The process's spans, if traces are on. ``service``: its name, if the variables give it none."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "")
    named = any(os.environ.get(name) for name in _ENDPOINTS)
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or not (exporter == "otlp" or (named and not exporter)):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415  # where traces are on
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  # the same
    except ImportError as error:
        _log.warning("no traces: %s; install flight-shuffle[otel]", error)
        return None
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in attributes
    resource = Resource.create({} if is_named else {"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Spans(provider)


_of_task: str | None = None
"""The traceparent of the task that this process runs: a Python worker of Spark runs one at a time, with threads."""


def traceparent() -> str | None:
    """The parent for calls that begin now: the program's own span, else that of the process's task."""
    api: Any = sys.modules.get("opentelemetry.trace")
    current = None if api is None else _named(api.get_current_span())
    return current or _of_task


def _named(span: Any) -> str | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


@contextmanager
def task_span(name: str, parent: str | None) -> Iterator[dict[str, Any] | None]:
    """A span around the block, whose calls have it as their parent; attributes are what the block puts into the dict.
    Without traces in this process there is no dict, and the calls have ``parent``.
    """
    global _of_task  # noqa: PLW0603  # the process runs one task at a time
    spans, before = configured("flight-shuffle-task"), _of_task
    span = None if spans is None else spans.begin(name, parent)
    _of_task = parent if span is None else _named(span)
    attributes: dict[str, Any] = {}
    error: str | None = None
    try:
        yield None if spans is None else attributes
    except GeneratorExit:
        raise  # Spark wants no more rows
    except BaseException as failed:
        error = str(getattr(failed, "code", type(failed).__name__))
        raise
    finally:
        _of_task = before
        if spans is not None:
            spans.end(span, attributes, error)
            spans.flush()
