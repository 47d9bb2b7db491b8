"""The RoleBinding that lets a picker read its namespace. Pure.

It binds a ClusterRole that the manifests create. So the operator needs the right to bind that one role, and
not the rights in it.
"""

from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.kinds import ROLE_BINDING, SERVICE_ACCOUNT
from inference_operator.core.naming import child_metadata
from inference_operator.core.observation import Observation


def desired(seen: Observation) -> Intent:
    """Return the RoleBinding."""
    name = seen.picker_name
    return intent(
        ROLE_BINDING,
        child_metadata(seen, name, name),
        roleRef={
            "apiGroup": ROLE_BINDING.group,
            "kind": "ClusterRole",
            "name": seen.settings.picker_cluster_role,
        },
        subjects=[{"kind": SERVICE_ACCOUNT.kind, "name": name, "namespace": seen.namespace}],
    )
