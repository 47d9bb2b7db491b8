"""Command line and environment of the picker, checked once and frozen. Nothing else reads os.environ."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cluster_client.durations import parse_duration
from cluster_client.listen import parse_addresses, pod_addresses
from endpoint_picker.observability.logs import LEVELS
from ext_proc.budget import MAX_BUFFERED_BYTES, MAX_HEADER_BYTES, MAX_HEADER_FIELDS, MAX_REQUEST_BYTES
from inference_api import names
from inference_api.release import release_version
from lean_grpc.aio.address import Target

_MIN_REFRESH_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line and the environment set, for the life of the process."""

    pool_name: str
    """metadata.name of the InferencePool; "epp" when the endpoints come from a file and none is named."""
    pool_namespace: str
    """Namespace of the pool, of its pods and of both ConfigMaps."""
    bind_addresses: tuple[str, ...]
    """IP literals that all listeners bind, without brackets."""
    grpc_port: int
    """Port of ext-proc, EDS and gRPC health; 0 is any free one."""
    health_port: int
    """Port of plaintext gRPC health, which kubelets probe; 0 is any free one."""
    metrics_port: int
    """HTTP port of metrics, probes and debug pages; 0 is any free one."""
    secure_serving: bool
    """TLS on `grpc_port`; gateways dial it with TLS."""
    cert_path: Path | None
    """Folder with tls.crt and tls.key; None makes a self-signed certificate at start."""
    config_map: str
    """ConfigMap with the EndpointPickerConfig, watched through the API; "" watches none."""
    config_file: Path
    """The same text as a file, read once at start, so that a picker starts while the API is down."""
    priorities_map: str
    """ConfigMap with the priority table, watched through the API; "" watches none."""
    priorities_file: Path
    """The same table as a file, read once at start."""
    endpoints_file: Path | None
    """YAML or JSON list of endpoints, re-read when it changes; None takes them from Kubernetes."""
    kubeconfig: Path | None
    """Kubeconfig file for a picker outside of a cluster; None uses the pod's ServiceAccount."""
    drain_timeout_s: float
    """Seconds from SIGTERM to the end of the process at the latest; streams still open then are reset."""
    refresh_metrics_interval_s: float
    """Seconds between two scrapes of an endpoint, at least 0.05."""
    max_request_bytes: int
    """Largest request body, bytes; a larger one is answered 413."""
    max_header_fields: int
    """Most header fields of a request; one with more is answered 431."""
    max_header_bytes: int
    """Most bytes of their names and values; one with more is answered 431."""
    max_buffered_bytes: int
    """Request bodies held at a time over all streams, bytes; beyond it requests are answered 503."""
    log_level: str
    """One of `LEVELS`."""
    deprecated_metrics: bool
    """The metrics that have a deprecated name are shown under it as well."""
    access_log: bool
    """A JSON line on standard output for each request."""
    emit_endpoint_scores: bool
    """The candidates' scores in the dynamic metadata of each pick."""
    predictors: tuple[str, ...]
    """Addresses of prediction servers, HOST:PORT or unix:PATH; () predicts nothing."""
    trainer: str
    """Address of the trainer that gets samples, HOST:PORT or unix:PATH; "" keeps none."""
    tracing_endpoint: str
    """URL of an OpenTelemetry collector (OTLP over HTTP); "" turns tracing off."""
    tracing_sampling_percent: int
    """Share of the requests that begin a trace here, 0 to 100; others follow their parent's decision."""
    tracing_service_name: str
    """service.name of the spans; env OTEL_SERVICE_NAME."""


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the command line. On an error: usage and one sentence on standard error, exit status 2."""
    parser = _parser(environment)
    args = parser.parse_args(arguments)
    if not args.pool_name and args.endpoints_file is None:
        parser.error("give --pool-name, or --endpoints-file to run without Kubernetes")
    if args.refresh_metrics_interval < _MIN_REFRESH_S:
        parser.error("--refresh-metrics-interval: the shortest interval is 50ms")
    picker = args.pool_name or "epp"
    return Settings(
        pool_name=picker,
        pool_namespace=args.pool_namespace,
        bind_addresses=args.bind_address,
        grpc_port=args.grpc_port,
        health_port=args.grpc_health_port,
        metrics_port=args.metrics_port,
        secure_serving=args.secure_serving,
        cert_path=args.cert_path,
        config_map=args.config_map,
        config_file=args.config_file,
        priorities_map=args.priorities_map,
        priorities_file=args.priorities_file,
        endpoints_file=args.endpoints_file,
        kubeconfig=args.kubeconfig,
        drain_timeout_s=args.drain_timeout,
        refresh_metrics_interval_s=args.refresh_metrics_interval,
        max_request_bytes=args.max_request_bytes,
        max_header_fields=args.max_header_fields,
        max_header_bytes=args.max_header_bytes,
        max_buffered_bytes=args.max_buffered_bytes,
        log_level=args.log_level,
        deprecated_metrics=args.deprecated_metrics,
        access_log=args.access_log,
        emit_endpoint_scores=args.emit_endpoint_scores,
        predictors=tuple(args.predictor),
        trainer=args.trainer or "",
        tracing_endpoint=args.tracing_endpoint or "",
        tracing_sampling_percent=args.tracing_sampling_percent,
        tracing_service_name=environment.get("OTEL_SERVICE_NAME") or "headroom-epp",
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headroom-epp",
        usage="headroom-epp (--pool-name NAME | --endpoints-file FILE) [options]\n"
        "       headroom-epp check-config FILE",
        description="Endpoint picker for an InferencePool.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=release_version())
    add("--pool-name", default="", help="InferencePool to pick for")
    add("--pool-namespace", default=environment.get("NAMESPACE") or "default", help="default: env NAMESPACE")
    add(
        "--bind-address",
        type=_addresses,
        default=",".join(pod_addresses(environment.get("POD_IP", ""))),
        metavar="IP,...",
        help="IPs to listen on; default: env POD_IP and 127.0.0.1, which kubectl port-forward dials",
    )
    add("--grpc-port", type=_port, default=names.EXT_PROC_PORT, help="ext-proc, EDS, health (default 9002)")
    add("--grpc-health-port", type=_port, default=names.HEALTH_PORT, help="plaintext health (default 9003)")
    add(
        "--metrics-port", type=_port, default=names.METRICS_PORT, help="metrics, probes, state (default 9090)"
    )
    add("--secure-serving", type=_boolean, nargs="?", const=True, default=True, help="TLS on the gRPC port")
    add("--no-secure-serving", action="store_false", dest="secure_serving", help="plaintext on the gRPC port")
    add("--cert-path", type=Path, help="folder with tls.crt and tls.key; default: self-signed")
    add("--config-map", default="", help="ConfigMap with the EndpointPickerConfig, watched")
    config = Path(names.CONFIG_DIR, names.CONFIG_KEY)
    add("--config-file", type=Path, default=config, help="the same as a file, for when the API is down")
    add("--priorities-map", default="", help="ConfigMap with the priority table, watched")
    table = Path(names.PRIORITIES_DIR, names.PRIORITIES_KEY)
    add("--priorities-file", type=Path, default=table, help="the same as a file, for when the API is down")
    add("--endpoints-file", type=Path, help="YAML or JSON list of endpoints instead of Kubernetes; re-read")
    outside = not environment.get("KUBERNETES_SERVICE_HOST") and environment.get("KUBECONFIG")
    add(
        "--kubeconfig",
        type=Path,
        default=outside or None,
        help="outside of a cluster; default: env KUBECONFIG",
    )
    add(
        "--drain-timeout",
        type=_seconds,
        default=30.0,
        help="longest service after SIGTERM (default 30s)",
    )
    add("--refresh-metrics-interval", type=_seconds, default=_MIN_REFRESH_S, help="at least 50ms (default)")
    add(
        "--max-request-bytes",
        type=_size,
        default=MAX_REQUEST_BYTES,
        help="largest body (default 256Mi)",
    )
    add(
        "--max-header-fields",
        type=_size,
        default=MAX_HEADER_FIELDS,
        help="most header fields of a request, Envoy's own among them (default 256)",
    )
    add("--max-header-bytes", type=_size, default=MAX_HEADER_BYTES, help="most bytes of them (default 4Mi)")
    add(
        "--max-buffered-bytes",
        type=_size,
        default=MAX_BUFFERED_BYTES,
        help="bodies held at once (default 1Gi)",
    )
    add("--log-level", choices=LEVELS, default="info", help="default info")
    add(
        "--deprecated-metrics",
        type=_boolean,
        default=True,
        help="show metrics under their deprecated names as well (default true)",
    )
    add("--access-log", action="store_true", help="a JSON line on standard output for each request")
    add("--emit-endpoint-scores", action="store_true", help="scores in the dynamic metadata of each pick")
    add(
        "--predictor",
        type=_target,
        action="append",
        default=[],
        metavar="ADDRESS",
        help="prediction server, HOST:PORT or unix:PATH; may be repeated",
    )
    add("--trainer", type=_target, metavar="ADDRESS", help="trainer that learns from requests")
    add("--tracing-endpoint", type=_url, help="URL of an OTLP/HTTP collector; default: no traces")
    add(
        "--tracing-sampling-percent",
        type=_percent,
        default=10,
        help="share of the traces begun here that is kept (default 10)",
    )
    return parser


def _target(text: str) -> str:
    try:
        return Target.parse(text).text
    except ValueError:
        message = f"{text!r} is no address; write HOST:PORT or unix:/PATH"
        raise argparse.ArgumentTypeError(message) from None


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        message = f"{text!r} is no URL of a collector; write http://HOST:4318"
        raise argparse.ArgumentTypeError(message)
    return text


def _percent(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:4]) > 100:
        message = f"{text!r} is no percentage; use 0 to 100"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text) < 65536:
        message = f"{text!r} is no port; use 1 to 65535, or 0 for any"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _size(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        message = f"{text!r} is no number above 0"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        message = f"{text!r} is {error}"
        raise argparse.ArgumentTypeError(message) from None


def _boolean(text: str) -> bool:
    found = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if found is None:
        message = f"{text!r} is neither true nor false"
        raise argparse.ArgumentTypeError(message)
    return found


def _addresses(text: str) -> tuple[str, ...]:
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
