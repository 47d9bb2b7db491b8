"""Clusters of the standalone proxy: the pool's model servers, its picker, and Envoy's own admin socket.

Pure. The settings here decide how many requests a dead or frozen picker costs.
"""

from typing import Final

from inference_api import names
from inference_operator.core.desired.envoy_config import Config, extension, pipe, socket, typed

POOL: Final = names.EDS_CLUSTER
PICKER: Final = "picker"
ADMIN: Final = "admin"
#: Bytes that Envoy buffers for a connection in each direction; also the largest body that it can retry.
CONNECTION_BUFFER_BYTES: Final = 1 << 20

_HEALTH_PATH: Final = "/health"
#: Shorter than the 5 s after which uvicorn closes an idle connection: a request sent just then would be
#: reset.
_POOL_IDLE_S: Final = 4
_PICKER_IDLE_S: Final = 3600
#: Seconds that the picker of a FailClose pool has for an answer to a health check, a ping or a handshake.
_BUSY_S: Final = 5
#: Limit of each circuit breaker. Envoy's default of 1024 would refuse long streams; the picker limits the
#: load.
_MAX_REQUESTS: Final = 65_536
#: By default Envoy delays a change of health by up to a second when another one preceded it within a second.
#: So long its workers would send requests to a picker that freezes soon after it has come back.
_TELL_WORKERS_AT_ONCE: Final[Config] = {"update_merge_window": "0s"}


def pool_cluster(*, http2: bool) -> Config:
    """Return the cluster of model servers. The picker lists them by EDS; the last list stays in use."""
    health_check: Config = {
        "interval": "2s",
        "interval_jitter_percent": 20,
        "no_traffic_interval": "2s",
        "timeout": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "http_health_check": {"path": _HEALTH_PATH},
    }
    if http2:
        health_check["http_health_check"]["codec_client_type"] = "HTTP2"
    return {
        "name": POOL,
        "type": "EDS",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER_BYTES,
        "eds_cluster_config": {"service_name": names.EDS_CLUSTER, "eds_config": _endpoints_from_picker()},
        "load_balancing_policy": _override_host(),
        "health_checks": [health_check],
        # Without this, Envoy keeps an endpoint that left the pool for as long as it passes the health check.
        "ignore_health_on_host_removal": True,
        # If no endpoint passes the check, Envoy uses all: the model server may not serve the health path.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}, **_TELL_WORKERS_AT_ONCE},
        "circuit_breakers": _wide_open(),
        "typed_extension_protocol_options": _http_options(
            {"http2_protocol_options" if http2 else "http_protocol_options": {}}, idle_timeout_s=_POOL_IDLE_S
        ),
    }


def _endpoints_from_picker() -> Config:
    """Return the EDS source. The proxy becomes ready at its first answer, and reconnects within a second."""
    back_off = {"base_interval": "0.1s", "max_interval": "1s"}
    return {
        "resource_api_version": "V3",
        # 0 means no limit: a proxy that became ready without endpoints would answer 503 to every request.
        "initial_fetch_timeout": "0s",
        "api_config_source": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "set_node_on_first_message_only": True,
            "grpc_services": [
                {
                    "envoy_grpc": {
                        "cluster_name": PICKER,
                        "retry_policy": {"retry_back_off": back_off},
                    }
                }
            ],
        },
    }


def _override_host() -> Config:
    """Return the policy that tries the picker's endpoints in order, and any endpoint if it gave none."""
    round_robin = extension(
        "envoy.load_balancing_policies.round_robin",
        "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin",
    )

    def metadata(key: str) -> Config:
        return {"key": names.LB_NAMESPACE, "path": [{"key": key}]}

    override = extension(
        "envoy.load_balancing_policies.override_host",
        "envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[
            {"metadata": metadata(names.DESTINATION_KEY)},
            {"header": names.DESTINATION_KEY},
        ],
        selected_host_key=metadata(names.DESTINATION_SERVED_KEY),
        fallback_policy={"policies": [{"typed_extension_config": round_robin}]},
    )
    return {"policies": [{"typed_extension_config": override}]}


def picker_cluster(host: str, port: int, *, fail_open: bool) -> Config:
    """Return the picker's cluster. It ejects a dead picker at the first failure.

    Of a FailOpen pool it ejects a frozen picker within 1 s: the health check keeps new requests away from it,
    and HTTP/2 pings, one every 0.5 s, end the streams that wait for it. The picker has to allow that many
    pings. A FailClose pool refuses requests without a picker, so that a picker which only is slow to answer,
    on a machine where all processes wait for a core, must not count as frozen: it has longer.
    """
    answer_s, ping_s = (0.5, 1) if fail_open else (_BUSY_S, _BUSY_S)
    address = {"address": socket(host, port)}
    return {
        "name": PICKER,
        "cluster_type": extension(
            "envoy.clusters.dns",
            "envoy.extensions.clusters.dns.v3.DnsCluster",
            # A new picker pod has a new address, and may be the only pod.
            dns_refresh_rate="1s",
            dns_failure_refresh_rate={"base_interval": "0.5s", "max_interval": "1s"},
            dns_lookup_family="V4_PREFERRED",
            # getaddrinfo reads /etc/hosts and the search domains of the pod.
            typed_dns_resolver_config=extension(
                "envoy.network.dns_resolver.getaddrinfo",
                "envoy.extensions.network.dns_resolver.getaddrinfo.v3.GetAddrInfoDnsResolverConfig",
            ),
        ),
        "connect_timeout": f"{answer_s}s",
        # 0: never send a request to an unhealthy picker.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}, **_TELL_WORKERS_AT_ONCE},
        "health_checks": [
            {
                "interval": "0.3s",
                "no_traffic_interval": "0.3s",
                "no_traffic_healthy_interval": "0.3s",
                "timeout": f"{answer_s}s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                # Behind a Service's address a kept connection would stay with the picker that is leaving, and
                # the one host of the cluster would be unhealthy until that picker has drained.
                "reuse_connection": False,
                "grpc_health_check": {"service_name": names.EXT_PROC_SERVICE},
            }
        ],
        "outlier_detection": {
            "interval": "0.2s",
            # A health check that succeeds unejects the picker at once. The time is long because its end
            # unejects, too, and a picker that is still away would then cost one more request in each worker.
            "base_ejection_time": "60s",
            "max_ejection_time": "60s",
            "successful_active_health_check_uneject_host": True,
            "max_ejection_percent": 100,
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 1,
            "enforcing_consecutive_local_origin_failure": 100,
        },
        "circuit_breakers": _wide_open(),
        "transport_socket": extension(
            "envoy.transport_sockets.tls",
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            # No validation: the picker signs its own certificate. No server name (SNI): gRPC servers log an
            # error for each name that is not in their certificate.
            common_tls_context={"alpn_protocols": ["h2"]},
        ),
        "typed_extension_protocol_options": _http_options(
            {
                "http2_protocol_options": {
                    "connection_keepalive": {"interval": "0.5s", "timeout": f"{ping_s}s"}
                }
            },
            idle_timeout_s=_PICKER_IDLE_S,
        ),
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [{"endpoint": address}]}],
        },
    }


def admin_cluster(path: str) -> Config:
    """Return Envoy's own admin interface, on an abstract socket."""
    endpoint = {"address": pipe(path)}
    return {
        "name": ADMIN,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {
            "cluster_name": ADMIN,
            "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
        },
    }


def _wide_open() -> Config:
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    return {"thresholds": [dict.fromkeys(limits, _MAX_REQUESTS)]}


def _http_options(protocol: Config, *, idle_timeout_s: int) -> Config:
    kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options = typed(
        kind,
        common_http_protocol_options={"idle_timeout": f"{idle_timeout_s}s"},
        explicit_http_config=protocol,
    )
    return {kind: options}
