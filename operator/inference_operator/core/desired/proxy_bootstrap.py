"""Envoy's bootstrap for the standalone proxy of one pool, as the text of its `--config-yaml` argument.

Pure: equal settings give equal text. The text may hold `$(POD_IP)`, which the kubelet expands, and no other
`$(`. The comments say why each part is set; the behaviour is that of Envoy 1.40.
"""

from dataclasses import dataclass
from typing import Any, Final

import yaml

from inference_api import names
from inference_operator.core.desired import proxy_clusters as clusters
from inference_operator.core.desired.envoy_config import Config, extension, pipe, socket, typed
from inference_operator.core.desired.local_replies import local_reply_config

POD_IP: Final = "$(POD_IP)"
#: Worker threads. Without --concurrency Envoy starts one for each core of the node.
WORKERS: Final = 2

#: Seconds that Envoy waits for the picker's answer. Long, because the picker may queue a request; the health
#: check, not this limit, finds a dead or frozen picker.
_PICKER_ANSWER_S: Final = 1000
#: Longest silence on a stream, in seconds: during queueing and a long prefill nothing is sent.
_STREAM_IDLE_S: Final = 900
_MAX_DOWNSTREAM_CONNECTIONS: Final = 20_000
#: Linux's numbers: Envoy takes socket options by number.
_IPPROTO_TCP: Final = 6
_TCP_USER_TIMEOUT: Final = 18
#: Above the picker's own limits, so that the client gets an answer (431) and not the end of its connection.
_MAX_HEADERS_KB: Final = 8192
_MAX_HEADERS: Final = 1024
_STREAM_WINDOW_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The facts about a pool and its picker on which the bootstrap depends."""

    pool_namespace: str
    pool_name: str
    picker_host: str
    """Name of the picker's Service, `<picker>.<namespace>.svc`; it resolves to the Service's address."""
    fail_open: bool
    """The pool's failureMode: True sends requests to any endpoint while the picker is away."""
    upstream_http2: bool
    """True where the pool's appProtocol is kubernetes.io/h2c."""
    picker_port: int = names.EXT_PROC_PORT
    port: int = names.PROXY_PORT
    status_port: int = names.PROXY_STATUS_PORT
    address: str = POD_IP
    """Address of both listeners."""
    localhost: bool = False
    """Requests are taken on 127.0.0.1 as well, which `kubectl port-forward` dials."""


def proxy_args(settings: ProxySettings) -> list[str]:
    """Return Envoy's command-line arguments for these settings."""
    return [
        "--config-yaml",
        bootstrap_yaml(settings),
        "--concurrency",
        str(WORKERS),
        # Hot restart is not used here, and its shared memory would be common to all Envoys of a host.
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
        # An abstract socket, reachable only inside the pod's network namespace, so that no other pod can call
        # /quitquitquit. The status listener forwards the two paths that probes and scrapers need.
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
                clusters.picker_cluster(
                    settings.picker_host, settings.picker_port, fail_open=settings.fail_open
                ),
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
        **({"additional_addresses": [_localhost(settings.port)]} if settings.localhost else {}),
        "per_connection_buffer_limit_bytes": clusters.CONNECTION_BUFFER_BYTES,
        "socket_options": [_give_up_on_clients_that_do_not_read()],
        "filter_chains": [
            _connection_manager(
                "requests",
                [route],
                [_strip_steering_headers(), _ask_picker(settings)],
                stream_idle_timeout=f"{_STREAM_IDLE_S}s",
                access_log=[_failure_log()],
                local_reply_config=local_reply_config(),
            )
        ],
    }


def _localhost(port: int) -> Config:
    return {"address": socket("127.0.0.1", port)}


def _give_up_on_clients_that_do_not_read() -> Config:
    """Set TCP_USER_TIMEOUT: the kernel ends a connection whose client has read nothing for `_STREAM_IDLE_S`.

    Without it, and with delayed_close_timeout 0, Envoy would wait for ever to write the rest of a response.
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
        # At _MAX_DOWNSTREAM_CONNECTIONS the proxy must still answer its probes.
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
        # Keep the client's request id, by which its owner will ask about a request, and repeat it in every
        # response, also in those that Envoy makes itself.
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        server_header_transformation="PASS_THROUGH",
        # Bound everything that a client can grow: size and number of headers, and the time to send a request.
        # Bodies of any size are streamed through the connection's buffer.
        max_request_headers_kb=_MAX_HEADERS_KB,
        request_headers_timeout="10s",
        request_timeout="300s",
        # Close as soon as everything is written. With the default delay of 1 s, a client would see the end of
        # a response that its server broke off only after 1 s, and one that pauses longer would lose the rest.
        delayed_close_timeout="0s",
        common_http_protocol_options={"max_headers_count": _MAX_HEADERS, "idle_timeout": "3600s"},
        # Accept HTTP/1.0. If Envoy refused it, the client would get no answer: Envoy's own response also goes
        # to the picker, and Envoy closes the connection meanwhile.
        http_protocol_options={
            "accept_http_10": True,
            "default_host_for_http_10": "pool",
            # Apache's HttpClient sends `Upgrade: TLS/1.2` with every request; without this Envoy refuses it.
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
    """Retry at the next endpoint of the picker's list, only if no model server can have begun the request.

    A request whose body exceeds the connection buffer is not retried: Envoy has not kept the body.
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
    """Remove the headers by which a client could choose its endpoint, or fake the picker's choice."""
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
