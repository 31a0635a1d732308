"""Spans where OpenTelemetry's variables turn them on; nothing of it is imported where they do not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flight_server.concurrency import Running
from flight_server.datasets import Counters, Dataset
from flight_server.memory import Pace
from flight_server.protocol import CreateRequest, NotFound
from flight_server.reporting import Calls, ServedCall
from flight_server.tracing import Spans, configured, spans, task_span, traceparent
from tests.support.catalogues import new_catalogue

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def made(exporter: InMemorySpanExporter) -> Spans:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Spans(provider)


@pytest.fixture
def on(made: Spans, monkeypatch: pytest.MonkeyPatch) -> Spans:
    """The spans of a process whose variables turn traces on, which this one is now."""
    monkeypatch.setattr(spans, "configured", lambda _: made)
    return made


def test_a_span_has_its_parent_its_attributes_and_its_error(
    made: Spans, exporter: InMemorySpanExporter
) -> None:
    made.end(made.begin("put", PARENT, serves=True), {"dataset": "d", "partition": None}, "conflict")
    made.end(made.begin("get", "no traceparent"), {})
    put, get = exporter.get_finished_spans()
    assert (put.context.trace_id, put.parent and put.parent.span_id) == (
        int(PARENT[3:35], 16),
        int(PARENT[36:52], 16),
    )
    assert dict(put.attributes or {}) == {"flight_shuffle.dataset": "d", "error.type": "conflict"}
    assert (put.kind.name, put.status.is_ok) == ("SERVER", False)
    assert (get.parent, get.status.is_ok) == (None, True)


def test_the_calls_of_a_task_have_its_span_as_their_parent(on: Spans, exporter: InMemorySpanExporter) -> None:
    assert traceparent() is None
    with task_span("map", PARENT) as facts:
        assert facts is not None
        facts["rows"] = 3
        inside = traceparent()
    assert traceparent() is None
    (span,) = exporter.get_finished_spans()
    assert inside == f"00-{PARENT[3:35]}-{span.context.span_id:016x}-01"
    assert dict(span.attributes or {}) == {"flight_shuffle.rows": 3}


def test_the_span_of_a_task_that_fails_has_the_error_s_code(
    on: Spans, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(NotFound), task_span("reduce", None):
        raise NotFound("it is gone")
    (span,) = exporter.get_finished_spans()
    assert (span.attributes or {})["error.type"] == "not_found"


def test_a_process_without_traces_passes_the_parent_on() -> None:
    with task_span("map", PARENT) as facts:
        assert (facts, traceparent()) == (None, PARENT)
    assert traceparent() is None


def test_the_parent_of_a_plan_is_the_span_of_the_driver_s_program(made: Spans) -> None:
    from opentelemetry import trace  # the driver's program has it

    with trace.use_span(made.begin("query", PARENT), end_on_exit=True):
        assert (traceparent() or "")[3:35] == PARENT[3:35]


def open_dataset() -> Dataset:

    return new_catalogue(None, 64 << 20).create(CreateRequest("d"), None)[0]


async def test_a_read_without_an_end_has_a_span_for_each_cut(
    made: Spans, exporter: InMemorySpanExporter
) -> None:
    calls, call, pace = Calls(Running(), Counters(), made), ServedCall("grpc", "DoGet", "peer"), Pace()
    calls.begin(call, {"traceparent": PARENT}.get)
    call.reads(pace, open_dataset())
    for rows in (3, 4):
        pace.count(rows, 10 * rows)
        await calls.cut_spans()
    pace.count(5, 50)
    calls.ended(call)
    await calls.cut_spans()
    found = exporter.get_finished_spans()
    assert [(each.attributes or {})["flight_shuffle.rows"] for each in found] == [3, 4, 5]
    assert [(each.attributes or {})["flight_shuffle.bytes"] for each in found] == [30, 40, 50]
    ends = [(each.start_time or 0, each.end_time or 0) for each in found]
    assert all(before[1] <= after[0] for before, after in pairwise(ends)), "none overlap"


async def test_a_call_that_is_neither_put_nor_read_has_no_span(
    made: Spans, exporter: InMemorySpanExporter
) -> None:
    calls, call = Calls(Running(), Counters(), made), ServedCall("grpc", "DoAction drop", "peer")
    calls.begin(call, lambda _: None)
    calls.failed(call, NotFound("nothing"))
    calls.ended(call)
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_traces_are_off_unless_the_variables_name_where_they_go(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert configured.__wrapped__("flight-server") is None
