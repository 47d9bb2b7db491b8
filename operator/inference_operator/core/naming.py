"""Names of the objects that the operator makes, and the metadata that marks them as Headroom's. Pure."""

from hashlib import sha256
from typing import Any, Final

from inference_api import names
from inference_operator.core.kinds import POOL, Object
from inference_operator.core.observation import Observation

#: Field manager of server-side apply. The annotation on pools is applied by REPORT_MANAGER, so that neither
#: apply removes the other's fields.
FIELD_MANAGER: Final = "headroom-operator"
REPORT_MANAGER: Final = "headroom-operator-report"
#: controllerName of Headroom's entry in a pool's status.parents.
CONTROLLER_NAME: Final = "headroom.dev/standalone-proxy"

APP_LABEL: Final = "app"
PICKER_CONTAINER: Final = "epp"
PROXY_CONTAINER: Final = "envoy"
TRAINER_CONTAINER: Final = "trainer"
#: Followed by a dash and the server's number.
PREDICTOR_CONTAINER: Final = "predictor"

#: The most characters that the name of a Service may have.
SERVICE_NAME_LIMIT: Final = 63
_PROXY_SUFFIX: Final = "-proxy"


def config_name(picker: str) -> str:
    """Return the name of the ConfigMap that holds the EndpointPickerConfig."""
    return f"{picker}-config"


def priorities_name(picker: str) -> str:
    """Return the name of the ConfigMap that holds the priority table."""
    return f"{picker}-priorities"


def proxy_name(picker: str) -> str:
    """Return the name of the proxy's Deployment and Service."""
    return f"{picker}{_PROXY_SUFFIX}"


def pool_hash(pool_name: str) -> str:
    """Return a hash of the pool's name for label values: a name may exceed their 63 characters."""
    return sha256(pool_name.encode()).hexdigest()[:16]


def selector_labels(app: str) -> dict[str, str]:
    """Return the labels by which a Deployment and its Service select pods.

    A Deployment's selector is immutable, so these labels must stay the same in every version.
    """
    return {APP_LABEL: app, names.MANAGED_BY_LABEL: names.MANAGED_BY_VALUE}


def child_labels(seen: Observation, app: str) -> dict[str, str]:
    """Return the labels of a child object, and of a child Deployment's pods."""
    return {**selector_labels(app), names.POOL_HASH_LABEL: pool_hash(seen.pool_name)}


def child_metadata(seen: Observation, name: str, app: str) -> dict[str, Any]:
    """Return the metadata of a child: name, namespace, labels, annotations, and the pool as owner."""
    return {
        "name": name,
        "namespace": seen.namespace,
        "labels": child_labels(seen, app),
        "annotations": {
            names.POOL_NAME_ANNOTATION: seen.pool_name,
            names.POOL_UID_ANNOTATION: seen.pool_uid,
        },
        "ownerReferences": [
            {
                "apiVersion": POOL.api_version,
                "kind": POOL.kind,
                "name": seen.pool_name,
                "uid": seen.pool_uid,
                "controller": True,
            }
        ],
    }


def pool_of(body: Object) -> str:
    """Return the name of the pool that a child was made for; empty when neither mark is there.

    The annotation comes first; a child without it is known by its controller reference.
    """
    annotations = body.get("metadata", {}).get("annotations") or {}
    owner = pool_owner(body)
    return str(annotations.get(names.POOL_NAME_ANNOTATION) or (owner["name"] if owner else ""))


def pool_owner(body: Object) -> Object | None:
    """Return the reference to the pool that controls the object; None when no pool does."""
    for owner in body.get("metadata", {}).get("ownerReferences") or ():
        group = str(owner.get("apiVersion", "")).partition("/")[0]
        if owner.get("controller") and owner.get("kind") == POOL.kind and group == POOL.group:
            found: Object = owner
            return found
    return None
