"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP and keeps the spans."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True, slots=True)
class Span:
    """One span; ids in hexadecimal."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    failed: bool
    attributes: dict[str, object]
    events: tuple[str, ...]


class Collector:
    """The spans that arrived, in order."""

    def __init__(self) -> None:
        self.address = ""
        self.spans: list[Span] = []

    def of(self, service: str, trace: str = "") -> dict[str, Span]:
        """Return a service's spans by name; the latest of a name."""
        return {
            each.name: each for each in self.spans if each.service == service and trace in ("", each.trace)
        }

    async def take(self, request: web.Request) -> web.Response:
        told = ExportTraceServiceRequest.FromString(await request.read())
        for resource in told.resource_spans:
            service = next(
                each.value.string_value for each in resource.resource.attributes if each.key == "service.name"
            )
            # The messages of xds-protos name field 2, scope_spans, as OTLP did before 0.15.
            for scope in resource.instrumentation_library_spans:
                for each in scope.spans:
                    attributes = {one.key: _value(one.value) for one in each.attributes}
                    self.spans.append(
                        Span(
                            service=service,
                            name=each.name,
                            trace=each.trace_id.hex(),
                            id=each.span_id.hex(),
                            parent=each.parent_span_id.hex(),
                            begin=each.start_time_unix_nano,
                            end=each.end_time_unix_nano,
                            failed=each.status.code == 2,
                            attributes=attributes,
                            events=tuple(one.name for one in each.events),
                        )
                    )
        return web.Response(
            body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf"
        )


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@asynccontextmanager
async def running(host: str = "127.0.0.1") -> AsyncIterator[Collector]:
    collector = Collector()
    app = web.Application(client_max_size=16 << 20)
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    collector.address = f"{host}:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()
