"""The picker's grpc.health.v1 state: which service names are SERVING, and when. Opens no socket.

`liveness` is always SERVING. Every other name is SERVING once the pool has synced, until the drain begins.
"""

from typing import Final

from inference_api.names import EXT_PROC_SERVICE, HEALTH_SERVICE
from lean_grpc import HealthService

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
#: Names that probes ask for: "" for the whole process, the two probes, the name in existing manifests
#: ("inference-extension") and the ext-proc service.
SERVICES: Final = ("", LIVENESS, READINESS, HEALTH_SERVICE, EXT_PROC_SERVICE)


class Health:
    """The picker's state and the gRPC service that reports it; install `service` on each port."""

    __slots__ = ("_draining", "_synced", "service")

    def __init__(self) -> None:
        self._synced = False
        self._draining = False
        self.service = HealthService()
        self._tell()

    @property
    def ready(self) -> bool:
        """The pool is known and the picker is not draining."""
        return self._synced and not self._draining

    @property
    def draining(self) -> bool:
        """The picker is shutting down."""
        return self._draining

    def synced(self) -> None:
        """Note that the pool's endpoints are known, even if there are none."""
        self._synced = True
        self._tell()

    def drain(self) -> None:
        """Note that the picker is shutting down."""
        self._draining = True
        self._tell()

    def _tell(self) -> None:
        for name in SERVICES:
            self.service.set(name, serving=self.ready or name == LIVENESS)
