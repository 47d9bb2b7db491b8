"""InferenceObjective v1alpha2: the priority of requests that name it. Served by either of two groups.

The schema is the same in `llm-d.ai` and, before, `inference.networking.x-k8s.io` (names.OBJECTIVE_GROUPS).
"""

from typing import Annotated, Any, Final

from pydantic import Field

from inference_api.markers import SERVER_DEFAULTED, Schema, list_of, server_default
from inference_api.meta import GROUP_PATTERN, ApiType, Condition, Int32, KindName, ObjectMeta, ObjectName
from inference_api.names import POOL_GROUP, POOL_KIND


def pending_condition(kind: str) -> list[dict[str, Any]]:
    """Return upstream's server-side default of a status that no controller has written yet."""
    return [
        {
            "lastTransitionTime": "1970-01-01T00:00:00Z",
            "message": "Waiting for controller",
            "reason": "Pending",
            "status": "Unknown",
            "type": kind,
        }
    ]


ACCEPTED: Final = "Accepted"


class PoolRef(ApiType):
    """A pool of the same namespace."""

    group: Annotated[str, Schema(maxLength=253, pattern=GROUP_PATTERN), SERVER_DEFAULTED] = POOL_GROUP
    """API group of the pool."""
    kind: Annotated[KindName, SERVER_DEFAULTED] = POOL_KIND
    """Kind of the pool."""
    name: ObjectName
    """Name of the pool."""


class InferenceObjectiveSpec(ApiType):
    """Treatment of the requests that carry the objective's name in a header."""

    pool_ref: PoolRef
    """The pool that the objective is for."""
    priority: Int32 | None = None
    """Higher is served first, negative may be shed; unset counts as 0."""


class InferenceObjectiveStatus(ApiType):
    """Whether the objective is in use."""

    conditions: Annotated[
        tuple[Condition, ...],
        list_of("map", "type", maxItems=8),
        # Upstream's default has the type Ready, although its documentation names Accepted.
        server_default(pending_condition("Ready")),
    ] = ()
    """Accepted says whether a picker uses the objective."""


class InferenceObjective(ApiType):
    """The priority of the requests that name this object."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    # Upstream's schema does not require spec; one without it points at no pool.
    spec: InferenceObjectiveSpec | None = None
    """Desired state, set by the user."""
    status: InferenceObjectiveStatus | None = None
    """Observed state, written by controllers."""
