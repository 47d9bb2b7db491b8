"""Settings of the operator process. Pure; `flags.py` reads them from the command line."""

from dataclasses import dataclass
from typing import Final, Literal

TAKE_UP_WAIT: Final = 5.0
"""Seconds that a picker Service must have been absent before Headroom creates it."""

SHORTEST_LEASE: Final = 3.0
LONGEST_LEASE: Final = 600.0
"""Limits of `Settings.lease_duration`, in seconds, also for what another operator's Lease says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The operator's settings, fixed at start."""

    manage: Literal["all", "annotated"] = "all"
    """`all` manages every pool; `annotated` only pools annotated headroom.dev/managed: "true"."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to work in; empty means all."""
    epp_image: str = ""
    """Image of the picker where an EndpointPicker names none."""
    proxy_image: str = ""
    """Image of the standalone proxy where an EndpointPicker names none."""
    predictor_image: str = ""
    """Image of trainers and prediction servers where an EndpointPicker names none."""
    picker_cluster_role: str = "headroom-epp"
    """ClusterRole that a picker is bound to in its pool's namespace. RBAC must let the operator bind it."""
    bind_addresses: tuple[str, ...] = ("127.0.0.1",)
    """Addresses of the health port."""
    proxy_localhost: bool = True
    """Standalone proxies listen on 127.0.0.1 as well as on their pod's address."""
    health_port: int = 8080
    """Port of /healthz, /readyz and /metrics; 0 takes any free port."""
    resync_interval: float = 60.0
    """Seconds between two full lists of everything watched."""
    lease_duration: float = 60.0
    """Seconds without a renewal of the operator's Lease after which a younger installation takes over."""
    workers: int = 4
    """Pools reconciled at the same time."""
    kubeconfig: str = ""
    """Path of a kubeconfig file; empty means the pod's own ServiceAccount."""
    log_level: str = "info"
    """Least severity that is logged."""
