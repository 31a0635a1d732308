"""Spans of puts, reads and tasks, for servers and clients, with OpenTelemetry where it is configured."""

from .spans import Spans, configured, task_span, traceparent
