"""The servers of one picker process: their start and their drain. Discovery and scraping run elsewhere.

The ext-proc port opens once the pool's endpoints are known. Until then a proxy's connection is refused and
the proxy follows the pool's failure mode. An open port would answer every request with 503, no endpoints.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from endpoint_picker.decision import Router
from endpoint_picker.eds import EndpointFeed, eds_routes
from endpoint_picker.extproc.route import process_route
from endpoint_picker.health import Health
from endpoint_picker.observability.access_log import AccessLog, LineWriter
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.observability.explain import Pausing
from endpoint_picker.observability.handshakes import HandshakeFailures
from endpoint_picker.observability.http import HttpServer
from endpoint_picker.observability.metrics import PickerMetrics, PoolFigures
from endpoint_picker.observability.tracing import Tracing, TracingSettings, start_tracing
from endpoint_picker.record import Observer
from endpoint_picker.settings import Settings
from endpoint_picker.tls import follow, mounted_pair
from endpoint_picker.transport import LIMITS
from ext_proc.budget import BodyBudget
from ext_proc.handler import PROCESS_METHOD
from inference_api.offered import Offered
from inference_api.picker_health import PickerHealth
from inference_api.prediction_report import PredictionReport
from inference_api.release import release_version
from lean_grpc import Server, self_signed_server

#: Seconds between NOT_SERVING and GOAWAY, in which proxies and EndpointSlices stop using this picker.
NOTICE_S: Final = 5.0
#: Seconds for the last answers to be sent once no exchange is open.
_FAREWELL_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.1

_log = logging.getLogger(__name__)


class PoolView(Router, Protocol):
    """The router as the servers use it: decisions, ready endpoints, state."""

    @property
    def decisions(self) -> Decisions:
        """Return the newest decisions, kept for /debug/explain."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after each change of the ready endpoints."""
        ...

    def ready_addresses(self) -> tuple[str, ...]:
        """Return "ip:port" of every ready endpoint."""
        ...

    @property
    def offered(self) -> Offered:
        """Return the verdicts on the configuration and the priorities offered last."""
        ...

    @property
    def prediction(self) -> PredictionReport | None:
        """Return the state of prediction; None while it is not configured."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the whole state as JSON values."""
        ...

    def queue_page(self) -> Pausing:
        """Begin the page /debug/queue."""
        ...


class PickerServers:
    """All ports of one picker."""

    def __init__(
        self,
        settings: Settings,
        pool: PoolView,
        figures: Callable[[], PoolFigures],
        endpoint_health: Callable[[], PickerHealth] = PickerHealth,
    ) -> None:
        """Wire everything. `figures` is called for each GET /metrics, `endpoint_health` for each GET of
        /debug/config, which the operator reads. Raises tls.CertificateError.
        """
        self._settings = settings
        self._pool = pool
        self.health = Health()
        self.metrics = PickerMetrics()
        self.metrics.deprecated = settings.deprecated_metrics
        self.budget = BodyBudget(
            settings.max_request_bytes,
            settings.max_buffered_bytes,
            settings.max_header_fields,
            settings.max_header_bytes,
        )
        self.feed = EndpointFeed(epoch=f"{time.time_ns():x}")
        registry = CollectorRegistry()
        self.metrics.read_pool(settings.pool_name, figures)
        self.metrics.read("info", lambda: 1.0, ("", release_version()))
        self.metrics.read("held_body_bytes", lambda: self.budget.held_bytes)
        self.metrics.register(registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self._http = HttpServer(
            self.health, registry, self._state, self._offered, pool.decisions, pool.queue_page
        )
        self._endpoint_health = endpoint_health
        self.handshakes = HandshakeFailures(self.metrics, time.monotonic)
        self._grpc = Server(limits=LIMITS, handshake_failed=self.handshakes.note)
        self.tracing = _tracing(settings)
        observer: Observer = self.metrics
        self._lines = LineWriter()
        if settings.access_log:
            observer = AccessLog(observer, self._lines.write, time.time)
        self._grpc.add(
            PROCESS_METHOD,
            process_route(
                pool,
                self.budget,
                observer,
                time.monotonic,
                self.tracing.begin if self.tracing else None,
                lambda function: asyncio.get_running_loop().call_soon(function),
            ),
        )
        for path, factory in eds_routes(self.feed).items():
            self._grpc.add(path, factory)
        self._health_port = Server()
        for server in (self._grpc, self._health_port):
            self.health.service.install(server)
        mounted = settings.cert_path if settings.secure_serving else None
        self._pair = None if mounted is None else mounted_pair(mounted)
        self._following: asyncio.Task[None] | None = None
        self._synced = asyncio.Event()
        self.grpc_port = self.health_port = self.metrics_port = 0
        pool.subscribe(self._pool_changed)

    def pool_synced(self) -> None:
        """Note that the pool's endpoints are known, even if there are none. Further calls do nothing."""
        if not self._synced.is_set():
            self._synced.set()
            self._pool_changed()

    async def start(self) -> None:
        """Open the health and HTTP ports. OSError when one cannot be bound."""
        settings = self._settings
        self.metrics_port = await self._http.start(settings.bind_addresses, settings.metrics_port)
        self.health_port = await self._health_port.listen(settings.bind_addresses, settings.health_port)

    async def serve(self) -> None:
        """Open the gRPC port once the pool is known. OSError when it cannot be bound."""
        await self._synced.wait()
        settings = self._settings
        tls = self._tls() if settings.secure_serving else None
        self.grpc_port = await self._grpc.listen(settings.bind_addresses, settings.grpc_port, tls=tls)
        self.health.synced()

    async def drain(self) -> None:
        """Turn unready and serve on for a while, then send GOAWAY and let the open exchanges end.

        Returns when no exchange is open or the drain time is over. Discovery streams are ended here, because
        they never end by themselves. Health watches stay open and are not waited for.
        """
        self.health.drain()
        if not self.grpc_port:
            return
        left = self._settings.drain_timeout_s
        notice = min(NOTICE_S, left)
        await asyncio.sleep(notice)
        self.feed.close()
        closing = asyncio.ensure_future(self._grpc.drain(left - notice))
        try:
            while self.metrics.open_exchanges and not closing.done():
                await asyncio.wait({closing}, timeout=_DRAIN_LOOK_S)
            await asyncio.wait({closing}, timeout=_FAREWELL_S)
        finally:
            closing.cancel()

    async def stop(self) -> None:
        """Close all ports; exchanges that are still open are reset."""
        if self._following is not None:
            self._following.cancel()
        await self._grpc.close()
        await self._health_port.close()
        await self._http.stop()
        if self.tracing is not None:
            await self.tracing.flush()
        self._lines.close()

    def _tls(self) -> ssl.SSLContext:
        if self._pair is None:
            return self_signed_server((self._settings.pool_name, *self._settings.bind_addresses, "localhost"))
        self._following = asyncio.create_task(follow(self._pair), name="certificate")
        return self._pair.context

    def _pool_changed(self) -> None:
        if self._synced.is_set():
            addresses = self._pool.ready_addresses()
            self.feed.publish(addresses)
            _log.info("pool changed", extra={"ready_endpoints": len(addresses)})

    def _offered(self) -> Offered:
        """Return the answer of /debug/config, which the operator reads."""
        proxies = {
            "failed_handshakes": self.handshakes.recent(),
            "connected": bool(self._grpc.connections),
        }
        health = self._endpoint_health().model_copy(update=proxies)
        parts = {"health": health, "prediction": self._pool.prediction}
        return self._pool.offered.model_copy(update=parts)

    def _state(self) -> dict[str, Any]:
        return {
            "pool": {"name": self._settings.pool_name, "namespace": self._settings.pool_namespace},
            "synced": self._synced.is_set(),
            "draining": self.health.draining,
            "openExchanges": self.metrics.open_exchanges,
            "heldBodyBytes": self.budget.held_bytes,
            "endpointsVersion": self.feed.version,
            "connections": self._grpc.connections,
            "failedHandshakes": self.handshakes.recent(),
            "router": self._pool.state(),
        }


def _tracing(settings: Settings) -> Tracing | None:
    """Return the tracing that the flags ask for; None where they ask for none."""
    if not settings.tracing_endpoint:
        return None
    wanted = TracingSettings(
        endpoint=settings.tracing_endpoint,
        sampling_percent=settings.tracing_sampling_percent,
        service_name=settings.tracing_service_name,
        pool=f"{settings.pool_namespace}/{settings.pool_name}",
    )
    return start_tracing(wanted, time.monotonic, time.time_ns)
