"""Envoy's bootstrap for the standalone proxy of one pool, as the text of its `--config-yaml` argument.

Pure: equal settings give equal text. The text may hold `$(POD_IP)`, which the kubelet expands, and no other
`$(`. What each part is for stands beside it; the behaviour was tried with Envoy 1.40.
"""

from dataclasses import dataclass
from typing import Any, Final

import yaml

from inference_api import names
from inference_operator.core.desired import proxy_clusters as clusters
from inference_operator.core.desired.envoy_config import Config, extension, pipe, socket, typed

POD_IP: Final = "$(POD_IP)"
#: Fixed, because Envoy would otherwise start a worker for each core of the node.
WORKERS: Final = 2

#: A picker may hold a request in its queue for long; a dead or frozen one is found by its health check.
_PICKER_ANSWER_S: Final = 1000
#: Longest silence on a stream: queueing and a long prefill are silent.
_STREAM_IDLE_S: Final = 900
_MAX_DOWNSTREAM_CONNECTIONS: Final = 20_000
#: Numbers of Linux: socket options go to Envoy by number.
_IPPROTO_TCP: Final = 6
_TCP_USER_TIMEOUT: Final = 18
#: What vLLM takes by default: what a model server would serve is not refused in front of it.
_MAX_HEADERS_KB: Final = 4096
_MAX_HEADERS: Final = 256
_STREAM_WINDOW_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """What of a pool and its picker shapes the proxy."""

    pool_namespace: str
    pool_name: str
    picker_host: str
    """Name that resolves to the ready picker pods, `<picker>.<namespace>.svc`."""
    fail_open: bool
    """The pool's failureMode: True sends requests to any endpoint while the picker is away."""
    upstream_http2: bool
    """True where the pool's appProtocol is kubernetes.io/h2c."""
    picker_port: int = names.EXT_PROC_PORT
    port: int = names.PROXY_PORT
    status_port: int = names.PROXY_STATUS_PORT
    address: str = POD_IP
    """Address of both listeners."""


def proxy_args(settings: ProxySettings) -> list[str]:
    """Return Envoy's command-line arguments for these settings."""
    return [
        "--config-yaml",
        bootstrap_yaml(settings),
        "--concurrency",
        str(WORKERS),
        # Hot restart shares memory between all Envoys of a host, and this one is never restarted hot.
        "--disable-hot-restart",
        "--log-level",
        "warning",
    ]


def bootstrap_yaml(settings: ProxySettings) -> str:
    """Return the bootstrap as YAML, keys in a stable order."""
    return yaml.safe_dump(bootstrap(settings), sort_keys=False, width=120)


def bootstrap(settings: ProxySettings) -> Config:
    """Return Envoy's bootstrap: two listeners (requests, status) and the clusters pool, picker and admin."""
    identity = f"{settings.pool_namespace}/{settings.pool_name}"
    return {
        "node": {"id": f"{identity}/{settings.address}", "cluster": identity},
        # An abstract socket, reachable inside the pod's network namespace only: the status listener passes on
        # the two paths that others need, and /quitquitquit is reachable only inside the pod.
        "admin": {"address": pipe(_admin_path(settings))},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": typed(
                        "envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                        max_active_downstream_connections=_MAX_DOWNSTREAM_CONNECTIONS,
                    ),
                }
            ]
        },
        "static_resources": {
            "listeners": [_request_listener(settings), _status_listener(settings)],
            "clusters": [
                clusters.pool_cluster(http2=settings.upstream_http2),
                clusters.picker_cluster(settings.picker_host, settings.picker_port),
                clusters.admin_cluster(_admin_path(settings)),
            ],
        },
    }


def _request_listener(settings: ProxySettings) -> Config:
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": clusters.POOL, "timeout": "0s", "retry_policy": _retry_policy()},
    }
    return {
        "name": "requests",
        "address": socket(settings.address, settings.port),
        "per_connection_buffer_limit_bytes": clusters.CONNECTION_BUFFER_BYTES,
        "socket_options": [_give_up_on_clients_that_do_not_read()],
        "filter_chains": [
            _connection_manager(
                "requests",
                [route],
                [_strip_steering_headers(), _ask_picker(settings)],
                stream_idle_timeout=f"{_STREAM_IDLE_S}s",
                access_log=[_failure_log()],
            )
        ],
    }


def _give_up_on_clients_that_do_not_read() -> Config:
    """Let the kernel end a connection whose client has taken nothing for the longest silence of a stream.

    Envoy closes without a delay, and would wait for ever to write the rest of a response.
    """
    return {
        "description": "TCP_USER_TIMEOUT",
        "level": _IPPROTO_TCP,
        "name": _TCP_USER_TIMEOUT,
        "int_value": _STREAM_IDLE_S * 1000,
        "state": "STATE_LISTENING",
    }


def _status_listener(settings: ProxySettings) -> Config:
    paths = (names.PROXY_READY_PATH, names.PROXY_METRICS_PATH)
    routes = [{"match": {"path": path}, "route": {"cluster": clusters.ADMIN}} for path in paths]
    return {
        "name": "status",
        "address": socket(settings.address, settings.status_port),
        # A proxy that is full of clients must still answer its probe.
        "ignore_global_conn_limit": True,
        "per_connection_buffer_limit_bytes": clusters.CONNECTION_BUFFER_BYTES,
        "filter_chains": [_connection_manager("status", routes, [], stream_idle_timeout="10s")],
    }


def _connection_manager(name: str, routes: list[Config], filters: list[Config], **more: Any) -> Config:
    router = extension("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router")
    manager = extension(
        "envoy.filters.network.http_connection_manager",
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        use_remote_address=True,
        # A client's own request id is what it will ask about. Every answer, Envoy's own too, repeats the id.
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        server_header_transformation="PASS_THROUGH",
        # All that a client can grow is bounded: size and number of headers, and how long it may take to send
        # a request. Bodies are streamed, any size, through the connection's buffer.
        max_request_headers_kb=_MAX_HEADERS_KB,
        request_headers_timeout="10s",
        request_timeout="300s",
        # Close as soon as all is written. With a delay (1 s by default), a response whose server broke off
        # ends for its client only after the delay, and a reader that pauses for longer loses the rest.
        delayed_close_timeout="0s",
        common_http_protocol_options={"max_headers_count": _MAX_HEADERS, "idle_timeout": "3600s"},
        # HTTP/1.0 is served as well: what Envoy refuses by itself gets no answer, because the picker is asked
        # about the answer while Envoy closes the connection.
        http_protocol_options={
            "accept_http_10": True,
            "default_host_for_http_10": "pool",
            # Apache's HttpClient offers TLS with every request and is content to go on without.
            "ignore_http_11_upgrade": [{"prefix": "TLS/"}],
        },
        http2_protocol_options={
            "max_concurrent_streams": 1000,
            "initial_stream_window_size": _STREAM_WINDOW_BYTES,
            "initial_connection_window_size": clusters.CONNECTION_BUFFER_BYTES,
        },
        route_config={"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]},
        http_filters=[*filters, router],
        **more,
    )
    return {"filters": [manager]}


def _retry_policy() -> Config:
    """Try again, at the next endpoint of the picker's list, only what no model server can have begun.

    A body beyond the connection buffer is not kept, so its request is not retried.
    """
    previous_hosts = extension(
        "envoy.retry_host_predicates.previous_hosts",
        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
    )
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 2,
        "retry_host_predicate": [previous_hosts],
        "host_selection_retry_max_attempts": 3,
        "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
    }


def _strip_steering_headers() -> Config:
    """Remove what would let a client choose its own endpoint, or look as if the picker had chosen."""
    keys = (names.DESTINATION_KEY, names.DESTINATION_SUBSET_KEY, names.DESTINATION_SERVED_KEY)
    return extension(
        "envoy.filters.http.header_mutation",
        "envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        mutations={"request_mutations": [{"remove": key} for key in keys]},
    )


def _ask_picker(settings: ProxySettings) -> Config:
    return extension(
        "envoy.filters.http.ext_proc",
        "envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": clusters.PICKER}},
        failure_mode_allow=settings.fail_open,
        status_on_error={"code": "ServiceUnavailable"},
        message_timeout=f"{_PICKER_ANSWER_S}s",
        route_cache_action="RETAIN",
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
        metadata_options={
            "receiving_namespaces": {"untyped": [names.LB_NAMESPACE]},
            "forwarding_namespaces": {"untyped": [names.LB_NAMESPACE, names.SUBSET_NAMESPACE]},
        },
    )


def _failure_log() -> Config:
    """Log answers of 500 and above, one line of JSON each: which endpoint, and Envoy's own reason."""
    return extension(
        "envoy.access_loggers.stdout",
        "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={
            "json_format": {
                "time": "%START_TIME%",
                "status": "%RESPONSE_CODE%",
                "flags": "%RESPONSE_FLAGS%",
                "details": "%RESPONSE_CODE_DETAILS%",
                "path": "%PATH(NQ:PATH:128)%",
                "endpoint": "%UPSTREAM_HOST%",
                "duration_ms": "%DURATION%",
                "request_id": "%REQ(X-REQUEST-ID):64%",
            }
        },
    ) | {
        "filter": {
            "status_code_filter": {
                "comparison": {
                    "op": "GE",
                    "value": {"default_value": 500, "runtime_key": "headroom.log_status_from"},
                }
            }
        }
    }


def _admin_path(settings: ProxySettings) -> str:
    return f"@headroom-proxy-{settings.address}-{settings.status_port}"
