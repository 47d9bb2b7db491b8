"""Promises about objects beside a pool: other pools, a user's picker Service, a user's EndpointPicker."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from headroom_cli.demo.api import Manifest, wait_for
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.load import Load
from headroom_cli.demo.scenarios import LIMIT_S
from headroom_cli.demo.stage import Measurement, Stage, is_ready
from inference_api import names

TAKE_UP_S = 5.0
"""How long a picker Service must have been absent before a pool is taken up."""
UNMANAGED_WATCH_S = 2 * TAKE_UP_S
"""How long the scenario checks that a pool with a foreign picker Service gets no children."""

_SMALL = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
SMALL_WITH_PROXY = {"resources": _SMALL, "proxy": {"mode": "Deployment", "resources": _SMALL}}
"""An EndpointPicker's spec that fits beside the quickstart's pool on a node with two cores."""


def two_pools(stage: Stage) -> list[Measurement]:
    """Two pools in one namespace: each proxy reaches the servers of its own pool only."""
    other = "second-pool"
    manifests = [
        user_picker(other, SMALL_WITH_PROXY),
        pool(other),
        server_deployment(stage, other),
    ]
    with applied(stage, manifests):
        stage.await_condition("Ready", "True", limit_s=2 * LIMIT_S, pool=other)
        served: dict[str, set[str]] = {}
        for name in (stage.pool, other):
            with Load(stage.proxy_url(name), in_flight=8) as load:
                load.await_served(100)
                sent = load.stop()
            own = {pod["metadata"]["name"] for pod in stage.servers(name)}
            served[name] = {entry.served_by for entry in sent if entry.ok}
            if strays := served[name] - own:
                raise DemoError(f"requests to pool {name} were served by {', '.join(sorted(strays))}")
    return [Measurement("two_pools_crossed", 0, "requests", 0)]


def foreign_service(stage: Stage) -> list[Measurement]:
    """A pool and the user's own picker Service in one file, in both orders: unmanaged, nothing touched."""
    for order in ("pool-first", "service-first"):
        name = f"foreign-{order}"
        manifests = [pool(name), picker_service(f"{name}-epp")]
        with applied(stage, manifests if order == "pool-first" else manifests[::-1]):
            _stays_untouched(stage, name)
    return [Measurement("foreign_service_touched", 0, "objects", 0)]


def _stays_untouched(stage: Stage, name: str) -> None:
    """Fail if a child is made or the Service written in UNMANAGED_WATCH_S; await the pool's annotation."""
    path = stage.path("Service", f"{name}-epp")
    before = (stage.api.get(path) or {})["metadata"]["resourceVersion"]
    until = time.monotonic() + UNMANAGED_WATCH_S

    def watched() -> bool:
        if made := stage.children(name):
            kind, found = made[0]
            raise DemoError(f"{kind} {found['metadata']['name']} was made beside a foreign picker Service")
        service = stage.api.get(path)
        if service is None or service["metadata"]["resourceVersion"] != before:
            raise DemoError(f"the user's Service of pool {name} was written or deleted")
        return time.monotonic() > until

    wait_for("the end of the watch", watched, limit_s=LIMIT_S, every_s=0.5)
    wait_for(f"the picker annotation on pool {name}", lambda: _annotation(stage, name), limit_s=LIMIT_S)


def _annotation(stage: Stage, name: str) -> str:
    annotations = stage.pool_object(name)["metadata"].get("annotations") or {}
    return str(annotations.get(names.PICKER_ANNOTATION, ""))


def user_picker_is_applied(stage: Stage) -> list[Measurement]:
    """A pool and the user's EndpointPicker in one file, in both orders: the user's settings are applied."""
    for order in ("pool-first", "picker-first"):
        name = f"tuned-{order}"
        manifests = [pool(name), user_picker(name, {"resources": {"requests": {"cpu": "77m"}}})]
        with applied(stage, manifests if order == "pool-first" else manifests[::-1]):
            wait_for(
                f"the user's settings on the picker of {name}", _HasUserRequest(stage, name), limit_s=LIMIT_S
            )
            kept = stage.api.get(stage.path("EndpointPicker", name)) or {}
            if kept["metadata"].get("ownerReferences"):
                raise DemoError(f"the user's EndpointPicker {name} was given an owner")
    return [Measurement("user_picker_ignored", 0, "pools", 0)]


@dataclass(frozen=True, slots=True)
class _HasUserRequest:
    """Returns whether the Deployment of a pool's picker has the user's CPU request."""

    stage: Stage
    name: str

    def __call__(self) -> bool:
        found = self.stage.api.get(self.stage.path("Deployment", f"{self.name}-epp"))
        return found is not None and _cpu_request(found) == "77m"


def _cpu_request(deployment: Manifest) -> str:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    return str(container.get("resources", {}).get("requests", {}).get("cpu", ""))


@contextmanager
def applied(stage: Stage, manifests: list[Manifest]) -> Iterator[None]:
    """Apply manifests as one file, in their order, and delete them afterwards."""
    text = yaml.safe_dump_all(manifests, sort_keys=False)
    stage.apply_text(text)
    try:
        yield
    finally:
        stage.kubectl(
            "delete", "-n", stage.namespace, "--ignore-not-found", "--wait=true", "-f", "-", stdin=text
        )
        pools = [each["metadata"]["name"] for each in manifests if each["kind"] == names.POOL_KIND]
        wait_for("the children to go", lambda: not any(map(stage.children, pools)), limit_s=LIMIT_S)


def pool(name: str) -> Manifest:
    """Return a pool whose picker is named `<name>-epp`."""
    return {
        "apiVersion": f"{names.POOL_GROUP}/{names.POOL_VERSION}",
        "kind": names.POOL_KIND,
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {
                "name": f"{name}-epp",
                "port": {"number": names.EXT_PROC_PORT},
                "failureMode": "FailOpen",
            },
        },
    }


def user_picker(name: str, spec: dict[str, Any]) -> Manifest:
    """Return an EndpointPicker as a user writes it."""
    return {
        "apiVersion": f"{names.PICKER_GROUP}/{names.PICKER_VERSION}",
        "kind": names.PICKER_KIND,
        "metadata": {"name": name},
        "spec": spec,
    }


def picker_service(name: str) -> Manifest:
    """Return a picker Service that a user brings."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "a-picker-of-mine"}, "ports": [{"port": names.EXT_PROC_PORT}]},
    }


def server_deployment(stage: Stage, name: str) -> Manifest:
    """Return a Deployment like the one behind the stage's pool, for another pool."""
    pod = next(entry for entry in stage.servers() if is_ready(entry))
    template = {
        key: pod["spec"]["containers"][0][key]
        for key in ("image", "args", "env", "ports", "readinessProbe")
        if key in pod["spec"]["containers"][0]
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "server", **template}]},
            },
        },
    }
