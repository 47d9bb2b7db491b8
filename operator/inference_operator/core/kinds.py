"""The Kubernetes kinds that the operator reads or writes, and the verbs that it needs on each.

Pure data: one row a kind. RBAC in manifests/base grants exactly these verbs.
"""

from dataclasses import dataclass
from typing import Any, Final

from inference_api import names

#: An API object as JSON, or some of its fields.
Object = dict[str, Any]
#: Namespace and name of a pool: the unit of reconciliation.
PoolKey = tuple[str, str]

READ: Final = ("get", "list", "watch")
OWN: Final = (*READ, "create", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object, with the verbs that the operator needs."""

    group: str
    version: str
    plural: str
    kind: str
    verbs: tuple[str, ...] = READ
    status_verbs: tuple[str, ...] = ()
    namespaced: bool = True
    optional: bool = False
    """A cluster may lack this kind: while it is not served, children of the kind are left out."""

    @property
    def api_version(self) -> str:
        """Value of the objects' apiVersion field."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The plural with its group, as kubectl and RBAC messages spell it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Return the URL path of the collection, or of one object of it."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        tail = "" if name is None else f"/{name}" + (f"/{subresource}" if subresource else "")
        return f"{root}{scope}/{self.plural}{tail}"


POOL: Final = Kind(
    names.POOL_GROUP,
    names.POOL_VERSION,
    names.POOL_PLURAL,
    names.POOL_KIND,
    (*READ, "patch"),
    ("get", "update"),
)
PICKER: Final = Kind(
    names.PICKER_GROUP, names.PICKER_VERSION, names.PICKER_PLURAL, names.PICKER_KIND, OWN, ("patch",)
)
#: Preferred group first; only the first that is served is used.
OBJECTIVES: Final = tuple(
    Kind(group, names.OBJECTIVE_VERSION, names.OBJECTIVE_PLURAL, names.OBJECTIVE_KIND, READ, ("patch",))
    for group in names.OBJECTIVE_GROUPS
)
#: Likewise. A cluster may lack the kind: then no model is rewritten.
REWRITES: Final = tuple(
    Kind(
        group,
        names.OBJECTIVE_VERSION,
        names.REWRITE_PLURAL,
        names.REWRITE_KIND,
        READ,
        ("patch",),
        optional=True,
    )
    for group in names.OBJECTIVE_GROUPS
)
SERVICE: Final = Kind("", "v1", "services", "Service", OWN)
SERVICE_ACCOUNT: Final = Kind("", "v1", "serviceaccounts", "ServiceAccount", OWN)
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap", OWN)
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", OWN)
DEPLOYMENT: Final = Kind("apps", "v1", "deployments", "Deployment", OWN)
POD: Final = Kind("", "v1", "pods", "Pod", ("list", "watch"))
EVENT: Final = Kind("", "v1", "events", "Event", ("create", "patch"))
#: Leases of all installations are listed; the verbs on the own Lease are LEASE_VERBS, in its namespace only.
LEASE: Final = Kind("coordination.k8s.io", "v1", "leases", "Lease", ("list",))
LEASE_VERBS: Final = ("get", "create", "patch", "delete")
CRD: Final = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)

#: Kinds of a pool's children, in their order of making. The EndpointPicker, which may be a user's, is not in
#: it.
CHILD_KINDS: Final = (SERVICE, SERVICE_ACCOUNT, ROLE_BINDING, CONFIG_MAP, DEPLOYMENT)
