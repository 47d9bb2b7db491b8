"""Spans of OpenTelemetry's SDK to a collector: OTLP over HTTP, protobuf.

The SDK's own exporter cannot be used. It needs the distribution opentelemetry-proto, whose modules have the
names of older ones in xds-protos; whichever of the two is installed last replaces the other's files.
"""

import logging
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from typing_extensions import override

logger = logging.getLogger(__name__)

#: Answers after which the same spans are sent again, as the specification of OTLP/HTTP names them.
_RETRIED: Final = frozenset({429, 502, 503, 504})
_FIRST_WAIT_S: Final = 0.5


class OtlpExporter(SpanExporter):
    """Sends batches of spans to `url`; each batch takes at most about `timeout_s`, further attempts included.

    A batch that the collector does not take in that time is dropped with a warning. Headers, such as an
    authorization, come from OTEL_EXPORTER_OTLP_HEADERS ("name=value,...", values percent-encoded), and
    OTEL_EXPORTER_OTLP_CERTIFICATE names a file of authorities. A redirect is not followed:
    it would take the headers to another host.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the collector's URL must begin with http:// or https://: {url}")
        self._url = url
        self._timeout_s = timeout_s
        self._headers = {"content-type": "application/x-protobuf", **headers_from(os.environ)}
        context = ssl.create_default_context(cafile=os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE") or None)
        self._open = urllib.request.build_opener(
            _NoRedirect(), urllib.request.HTTPSHandler(context=context)
        ).open
        self._closed = False

    @override
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send the spans; called by the SDK in a thread of its own."""
        body = encode(spans)
        deadline = time.monotonic() + self._timeout_s
        wait = _FIRST_WAIT_S
        while True:
            why, again = self._post(body, max(0.1, deadline - time.monotonic()))
            if not why:
                return SpanExportResult.SUCCESS
            if self._closed or not again or time.monotonic() + wait >= deadline:
                logger.warning("%d spans dropped: the collector at %s: %s", len(spans), self._url, why)
                return SpanExportResult.FAILURE
            time.sleep(wait)
            wait *= 2

    @override
    def shutdown(self) -> None:
        """Send nothing again; a batch that is under way ends by its time limit."""
        self._closed = True

    @override
    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return True: nothing is held here."""
        return True

    def _post(self, body: bytes, timeout_s: float) -> tuple[str, bool]:
        """Return why the collector did not take the body ("" when it did), and whether to try again."""
        request = urllib.request.Request(self._url, body, self._headers, method="POST")  # noqa: S310
        try:
            with self._open(request, timeout=timeout_s):
                return "", False
        except urllib.error.HTTPError as refused:
            with refused:
                return f"HTTP {refused.code}", refused.code in _RETRIED
        except (OSError, ValueError) as fault:
            return str(fault), True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    @override
    def redirect_request(self, *_: object) -> None:
        return None


def headers_from(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that OTEL_EXPORTER_OTLP_HEADERS lists, names in lower case."""
    pairs = (each.partition("=") for each in environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(","))
    return {
        name.strip().lower(): unquote(value.strip()) for name, equal, value in pairs if equal and name.strip()
    }


def encode(spans: Iterable[ReadableSpan]) -> bytes:
    """Return the spans of one process as an ExportTraceServiceRequest."""
    message = ExportTraceServiceRequest()
    group: Any = None
    for each in spans:
        if group is None:
            group = message.resource_spans.add()
            group.resource.attributes.extend(_attributes(each.resource.attributes))
            group = _scope(group, each)
        _add(group, each)
    encoded: bytes = message.SerializeToString()
    return encoded


def _scope(resource_spans: ResourceSpans, span: ReadableSpan) -> Any:
    # Field 2 is scope_spans; the messages of xds-protos have it by its name from before OTLP 0.15.
    named = "scope_spans" if hasattr(resource_spans, "scope_spans") else "instrumentation_library_spans"
    spans = getattr(resource_spans, named).add()
    scope = getattr(spans, "scope" if named == "scope_spans" else "instrumentation_library")
    if span.instrumentation_scope is not None:
        scope.name = span.instrumentation_scope.name
        scope.version = span.instrumentation_scope.version or ""
    return spans


def _add(group: Any, span: ReadableSpan) -> None:
    context, parent = span.get_span_context(), span.parent
    if context is None:
        return
    told = group.spans.add()
    told.trace_id = context.trace_id.to_bytes(16, "big")
    told.span_id = context.span_id.to_bytes(8, "big")
    told.trace_state = context.trace_state.to_header()
    if parent is not None:
        told.parent_span_id = parent.span_id.to_bytes(8, "big")
    told.name = span.name
    # OTLP counts the kinds from 1; its 0 is "unspecified".
    told.kind = span.kind.value + 1
    told.start_time_unix_nano = span.start_time or 0
    told.end_time_unix_nano = span.end_time or 0
    told.attributes.extend(_attributes(span.attributes))
    told.dropped_attributes_count = span.dropped_attributes
    for event in span.events:
        noted = told.events.add()
        noted.name = event.name
        noted.time_unix_nano = event.timestamp
        noted.attributes.extend(_attributes(event.attributes))
    told.status.code = span.status.status_code.value
    told.status.message = span.status.description or ""


def _attributes(attributes: Mapping[str, Any] | None) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in (attributes or {}).items()]


def _value(value: object) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case Sequence():
            told = AnyValue()
            told.array_value.values.extend(map(_value, value))
            return told
        case _:
            return AnyValue(string_value=str(value))
