"""The objects that a scenario acts on: one pool on a running local cluster, its children, the audit log."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster_client.pods import pod_of
from headroom_cli.demo.api import ClusterApi, Manifest, condition, kubectl, wait_for
from headroom_cli.demo.audit import AuditLog
from inference_api import names
from local_cluster.cluster import LocalCluster

OPERATOR_USER = "system:serviceaccount:headroom-system:headroom-operator"

_POOLS = f"/apis/{names.POOL_GROUP}/{names.POOL_VERSION}"
_PICKERS = f"/apis/{names.PICKER_GROUP}/{names.PICKER_VERSION}"
#: Where each kind of child lives in the API.
CHILD_PATHS: Mapping[str, str] = {
    "EndpointPicker": _PICKERS + "/namespaces/{namespace}/endpointpickers",
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "ConfigMap": "/api/v1/namespaces/{namespace}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{namespace}/deployments",
    "Service": "/api/v1/namespaces/{namespace}/services",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One figure that a scenario measured, with its goal, which it must not exceed."""

    name: str
    value: float
    unit: str
    goal: float | None = None

    def within(self, slack: float) -> bool:
        """Return whether the value is at most the goal times the slack; a count gets no slack."""
        if self.goal is None:
            return True
        return self.value <= self.goal * (slack if self.unit == "s" else 1.0)


@dataclass(slots=True)
class Stage:
    """A pool on a cluster, addressed the way a user would."""

    cluster: LocalCluster
    api: ClusterApi
    audit: AuditLog
    pool: str = "vllm-qwen"
    namespace: str = "default"

    @classmethod
    def open(cls, cluster: LocalCluster) -> "Stage":
        """Return the quickstart's pool on a running cluster. The caller closes it."""
        return cls(cluster, ClusterApi(cluster.kubeconfig), AuditLog(cluster.audit_log))

    def close(self) -> None:
        """Close the connection to the API server."""
        self.api.close()

    def beside(self, pool: str) -> "Stage":
        """Return a stage for another pool of the namespace, over the same connection."""
        return replace(self, pool=pool)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl against the cluster."""
        return kubectl(self.cluster.kubeconfig, *arguments, stdin=stdin)

    def apply(self, path: Path) -> str:
        """Run `kubectl apply -f`."""
        return self.kubectl("apply", "-n", self.namespace, "-f", str(path))

    def apply_text(self, text: str) -> str:
        """Run `kubectl apply -f -`."""
        return self.kubectl("apply", "-n", self.namespace, "-f", "-", stdin=text)

    def path(self, kind: str, name: str = "") -> str:
        """Return the API path of a child kind, or of one object of it."""
        return CHILD_PATHS[kind].format(namespace=self.namespace) + (f"/{name}" if name else "")

    def pool_path(self, pool: str = "") -> str:
        """Return the API path of a pool, this stage's by default."""
        return f"{_POOLS}/namespaces/{self.namespace}/inferencepools/{pool or self.pool}"

    def pods(self, selector: str) -> list[Manifest]:
        """Return the pods with a label selector."""
        return self.api.items(f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={selector}")

    def pool_object(self, pool: str = "") -> Manifest:
        """Return the pool. Raises DemoError when there is none."""
        found, _ = wait_for("the pool", lambda: self.api.get(self.pool_path(pool)), limit_s=5)
        return found

    def picker(self, pool: str = "") -> str:
        """Return the name of the picker that the pool points at."""
        return str(self.pool_object(pool)["spec"]["endpointPickerRef"]["name"])

    def servers(self, pool: str = "") -> list[Manifest]:
        """Return the pods that the pool selects."""
        labels = self.pool_object(pool)["spec"]["selector"]["matchLabels"]
        return self.pods(",".join(f"{key}={value}" for key, value in labels.items()))

    def children(self, pool: str = "") -> list[tuple[str, Manifest]]:
        """Return the objects that Headroom made for a pool, as (kind, object)."""
        wanted = pool or self.pool
        return [
            (kind, found)
            for kind in CHILD_PATHS
            for found in self.api.items(
                self.path(kind) + f"?labelSelector={names.MANAGED_BY_LABEL}%3D{names.MANAGED_BY_VALUE}"
            )
            if (found["metadata"].get("annotations") or {}).get(names.POOL_NAME_ANNOTATION) == wanted
        ]

    def proxy_url(self, pool: str = "") -> str:
        """Return the base URL of the pool's standalone proxy, once its pod is ready."""
        app = f"{self.picker(pool)}-proxy"
        ready, _ = wait_for(
            "a ready proxy pod", lambda: [p for p in self.pods(f"app={app}") if is_ready(p)], limit_s=120
        )
        return f"http://{ready[0]['status']['podIP']}:{names.PROXY_PORT}"

    def picker_pod(self, pool: str = "") -> Manifest:
        """Return the picker's pod."""
        app = self.picker(pool)
        found, _ = wait_for(
            "the picker's pod",
            lambda: [p for p in self.pods(f"app={app}") if not p["metadata"].get("deletionTimestamp")],
            limit_s=60,
        )
        return found[0]

    def condition(self, kind: str, pool: str = "") -> Mapping[str, Any] | None:
        """Return a condition of the pool's EndpointPicker."""
        return condition(self.api.get(self.path("EndpointPicker", pool or self.pool)), kind)

    def await_condition(self, kind: str, status: str, *, limit_s: float, pool: str = "") -> tuple[str, float]:
        """Wait until a condition of the EndpointPicker has a status; return its reason and the seconds."""

        def probe() -> Mapping[str, Any] | None:
            found = self.condition(kind, pool)
            return found if found is not None and found["status"] == status else None

        found, seconds = wait_for(f"condition {kind}={status} of {pool or self.pool}", probe, limit_s=limit_s)
        return str(found["reason"]), seconds


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready and not being deleted."""
    return pod_of(pod).ready


def uid(found: Mapping[str, Any] | None) -> str:
    """Return an object's uid; "" for None."""
    return "" if found is None else str(found["metadata"]["uid"])


def finalizers(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the finalizers on any of the objects, as `name: finalizer`."""
    return [
        f"{entry['metadata']['name']}: {finalizer}"
        for entry in found
        for finalizer in entry["metadata"].get("finalizers") or ()
    ]
