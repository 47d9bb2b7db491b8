"""Settings from the command line. Of the environment only $POD_IP is read, for two defaults."""

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Final

from cluster_client.durations import parse_duration
from cluster_client.listen import has_shared_loopback, parse_addresses, pod_addresses
from inference_api.release import release_version
from inference_operator.core.settings import LONGEST_LEASE, SHORTEST_LEASE, Settings

LOG_LEVELS: Final = ("debug", "info", "warning", "error")


def parse_settings(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of these arguments.

    Exits with status 2 and a message on stderr when argparse refuses an argument.
    """
    env = os.environ if environment is None else environment
    given = _parser(env).parse_args(arguments)
    return Settings(
        manage=given.manage,
        namespaces=given.namespaces,
        epp_image=given.epp_image,
        proxy_image=given.proxy_image,
        predictor_image=given.predictor_image,
        picker_cluster_role=given.picker_cluster_role,
        bind_addresses=given.bind_address,
        proxy_localhost=given.proxy_localhost == "true",
        health_port=given.health_port,
        resync_interval=given.resync_interval,
        lease_duration=given.lease_duration,
        workers=given.workers,
        kubeconfig=given.kubeconfig,
        log_level=given.log_level,
    )


def _parser(env: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headroom-operator",
        description="Runs the endpoint pickers of InferencePools.",
        allow_abbrev=False,
    )
    release = release_version()
    add = parser.add_argument
    add("--manage", choices=("all", "annotated"), default="all", help="which pools to manage (default: all)")
    add("--namespaces", type=_names, default=(), metavar="A,B", help="namespaces to work in (default: all)")
    add("--epp-image", default=f"headroom-epp:{release}", help="image of the pickers")
    add("--proxy-image", default="envoyproxy/envoy:v1.40.0", help="image of standalone proxies")
    add("--predictor-image", default=f"headroom-predictor:{release}", help="image of latency predictors")
    add(
        "--picker-cluster-role",
        default="headroom-epp",
        metavar="NAME",
        help="ClusterRole to bind pickers to; needs the right to bind it (default: headroom-epp)",
    )
    pod_ip = env.get("POD_IP", "")
    add(
        "--bind-address",
        type=_addresses,
        default=",".join(pod_addresses(pod_ip)),
        metavar="IP,...",
        help="default: $POD_IP and 127.0.0.1, which kubectl port-forward dials",
    )
    add(
        "--proxy-localhost",
        choices=("true", "false"),
        default="false" if has_shared_loopback(pod_ip) else "true",
        help="proxies listen on 127.0.0.1, too, for port-forward (default: unless $POD_IP is loopback)",
    )
    add("--health-port", type=_port, default=8080, help="port of /healthz, /readyz, /metrics (8080)")
    add("--resync-interval", type=_interval, default=60.0, metavar="60s", help="time between full lists")
    add(
        "--lease-duration",
        type=_lease_duration,
        default=60.0,
        metavar="60s",
        help="time after which an operator of the same namespaces may take over (default: 60s)",
    )
    add("--workers", type=_positive, default=4, help="pools reconciled at once (default: 4)")
    add("--kubeconfig", default="", metavar="FILE", help="kubeconfig (default: the pod's ServiceAccount)")
    add("--log-level", choices=LOG_LEVELS, default="info")
    add("--version", action="version", version=release)
    return parser


def _addresses(text: str) -> tuple[str, ...]:
    try:
        return parse_addresses(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def _interval(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is {error}") from None
    if seconds < 1:
        raise argparse.ArgumentTypeError("must be at least 1s")
    return seconds


def _lease_duration(text: str) -> float:
    seconds = _interval(text)
    if not SHORTEST_LEASE <= seconds <= LONGEST_LEASE:
        raise argparse.ArgumentTypeError(f"must be {SHORTEST_LEASE:g}s to {LONGEST_LEASE:g}s")
    return seconds


def _port(text: str) -> int:
    port = _integer(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("must be 0 to 65535")
    return port


def _positive(text: str) -> int:
    count = _integer(text)
    if not 1 <= count <= 64:
        raise argparse.ArgumentTypeError("must be 1 to 64")
    return count


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
