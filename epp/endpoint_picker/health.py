"""What the picker says of itself over grpc.health.v1: which names serve, and when. Opens no socket.

Liveness means that the process answers. Everything else follows the pool: synced, and not draining.
"""

from typing import Final

from inference_api.names import EXT_PROC_SERVICE, HEALTH_SERVICE
from lean_grpc import HealthService

LIVENESS: Final = "liveness"
READINESS: Final = "readiness"
#: Names of the endpoint picker protocol, of the manifests in use ("inference-extension") and "" for all.
SERVICES: Final = ("", LIVENESS, READINESS, HEALTH_SERVICE, EXT_PROC_SERVICE)


class Health:
    """The picker's state, and the gRPC service that tells it; install `service` on each port."""

    __slots__ = ("_draining", "_synced", "service")

    def __init__(self) -> None:
        self._synced = False
        self._draining = False
        self.service = HealthService()
        self._tell()

    @property
    def ready(self) -> bool:
        """The pool is known and the picker is not on its way out."""
        return self._synced and not self._draining

    @property
    def draining(self) -> bool:
        """The picker is on its way out."""
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
