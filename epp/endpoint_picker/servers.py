"""The servers of a picker over a pool that is fed from elsewhere: their start and their orderly end.

The ext-proc port opens once the pool's endpoints are known. Until then a proxy is refused the connection and
follows the pool's failure mode, which is better than being told that there is no endpoint.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from endpoint_picker.eds import EndpointFeed, eds_routes
from endpoint_picker.extproc.buffers import BufferBudget
from endpoint_picker.extproc.handler import PROCESS_METHOD, process_route
from endpoint_picker.health import Health, health_routes
from endpoint_picker.observability.decisions import Decisions
from endpoint_picker.observability.http import HttpServer
from endpoint_picker.observability.metrics import PickerMetrics, PoolFigures
from endpoint_picker.request import Router
from endpoint_picker.settings import Settings
from endpoint_picker.tls import CertificateSource, MountedPair, SelfSigned
from endpoint_picker.transport.grpc_aio import GrpcAioServer

#: Shortest time between NOT_SERVING and the end, so that proxies and EndpointSlices have followed.
MIN_DRAIN_S: Final = 5.0
_STOP_GRACE_S: Final = 1.0
_DRAIN_LOOK_S: Final = 0.1

_log = logging.getLogger(__name__)


class PoolView(Router, Protocol):
    """What the servers need of a router beside its decisions."""

    @property
    def decisions(self) -> Decisions:
        """Return the newest decisions, recorded on demand."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener()` after each change of the ready endpoints."""
        ...

    def ready_addresses(self) -> tuple[str, ...]:
        """Return "ip:port" of every ready endpoint."""
        ...

    def state(self) -> dict[str, Any]:
        """Return everything that is known, as JSON values."""
        ...


class PickerServers:
    """All ports of one picker."""

    def __init__(self, settings: Settings, pool: PoolView, figures: Callable[[], PoolFigures]) -> None:
        """Wire everything; `figures` is read for each scrape of our metrics. Raises tls.CertificateError."""
        self._settings = settings
        self._pool = pool
        self.health = Health()
        self.metrics = PickerMetrics()
        self.budget = BufferBudget(settings.max_request_bytes, settings.max_buffered_bytes)
        self.feed = EndpointFeed(epoch=f"{time.time_ns():x}")
        registry = CollectorRegistry()
        self.metrics.read_pool(settings.pool_name, figures)
        self.metrics.read("held_body_bytes", "Request bodies held.", lambda: self.budget.held_bytes)
        self.metrics.register(registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        self._http = HttpServer(self.health, registry, self._state, pool.decisions)
        routes = {
            PROCESS_METHOD: process_route(pool, self.budget, self.metrics, time.monotonic),
            **eds_routes(self.feed),
            **health_routes(self.health),
        }
        self._grpc = GrpcAioServer(routes, _credentials(settings))
        self._health_port = GrpcAioServer(health_routes(self.health))
        self._synced = asyncio.Event()
        self.grpc_port = self.health_port = self.metrics_port = 0
        pool.subscribe(self._pool_changed)

    def pool_synced(self) -> None:
        """Note that the pool's endpoints are known, be it that there are none. May be called again."""
        if not self._synced.is_set():
            self._synced.set()
            self._pool_changed()

    async def start(self) -> None:
        """Open the health and HTTP ports. OSError when one cannot be bound."""
        settings = self._settings
        host = _bracketed(settings.bind_address)
        self.metrics_port = await self._http.start(settings.bind_address, settings.metrics_port)
        self.health_port = await self._health_port.start(f"{host}:{settings.health_port}")

    async def serve(self) -> None:
        """Open the gRPC port once the pool is known. OSError when it cannot be bound."""
        await self._synced.wait()
        host = _bracketed(self._settings.bind_address)
        self.grpc_port = await self._grpc.start(f"{host}:{self._settings.grpc_port}")
        self.health.synced()

    async def drain(self) -> None:
        """Turn unready, then serve on until no exchange is open or the drain time is over."""
        self.health.drain()
        if not self.grpc_port:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (spent := loop.time() - began) < self._settings.drain_timeout_s:
            if spent >= MIN_DRAIN_S and not self.metrics.open_exchanges:
                break
            await asyncio.sleep(_DRAIN_LOOK_S)

    async def stop(self) -> None:
        """Close all ports; exchanges that are still open are reset."""
        await self._grpc.stop(_STOP_GRACE_S)
        await self._health_port.stop(_STOP_GRACE_S)
        await self._http.stop()

    def _pool_changed(self) -> None:
        if self._synced.is_set():
            addresses = self._pool.ready_addresses()
            self.feed.publish(addresses)
            _log.info("pool changed", extra={"ready_endpoints": len(addresses)})

    def _state(self) -> dict[str, Any]:
        return {
            "pool": {"name": self._settings.pool_name, "namespace": self._settings.pool_namespace},
            "synced": self._synced.is_set(),
            "draining": self.health.draining,
            "openExchanges": self.metrics.open_exchanges,
            "heldBodyBytes": self.budget.held_bytes,
            "endpointsVersion": self.feed.version,
            "router": self._pool.state(),
        }


def _credentials(settings: Settings) -> grpc.ServerCredentials | None:
    if not settings.secure_serving:
        return None
    if settings.cert_path is not None:
        return _reloading(MountedPair(settings.cert_path))
    hosts = (settings.bind_address, "localhost", settings.pool_name)
    return _reloading(SelfSigned(hosts, datetime.now(UTC)))


def _reloading(source: CertificateSource) -> grpc.ServerCredentials:
    """Return credentials that ask the source at each handshake."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        pair = source.current()
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
