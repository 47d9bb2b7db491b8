"""kubectl and small pods for tests of the local cluster."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

from local_cluster.cluster import LocalCluster
from local_cluster.images import ImageCommand
from local_cluster.tools import find_kubectl

T = TypeVar("T")
LIMIT_S = 60.0
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
CONTAINER_FIELDS: tuple[str, ...] = ("env", "envFrom", "volumeMounts", "ports", *PROBES)

#: `sh` is a shell; `py` runs the Python text that is its argument.
IMAGES = {
    "sh": ImageCommand(("/bin/sh", "-c")),
    "py": ImageCommand((sys.executable, "-c"), {"FROM_IMAGE": "yes", "PYTHONUNBUFFERED": "1"}),
}


def eventually(what: str, look: Callable[[], T | None]) -> T:
    """Return the first true answer of `look`; fail after LIMIT_S, naming `what`."""
    deadline = time.monotonic() + LIMIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"in {LIMIT_S:.0f} s there was no {what}"
        time.sleep(0.1)
    return found


class Kube:
    """kubectl on a cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        kubectl = find_kubectl()
        assert kubectl is not None, "kubectl is needed: `make tools` installs it"
        self._argv = [str(kubectl), f"--kubeconfig={cluster.kubeconfig}"]

    def run(self, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            [*self._argv, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.run("apply", "-f", "-", text=yaml.safe_dump_all(objects))

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.run("get", *arguments, "--ignore-not-found", "-o", "json") or "{}"
        )
        return found

    def pod(self, name: str) -> dict[str, Any]:
        return self.get("pod", name)

    def await_pod(self, name: str, what: str, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Return the pod once `holds` of it."""

        def look() -> dict[str, Any] | None:
            pod = self.pod(name)
            return pod if pod and holds(pod) else None

        return eventually(f"pod {name} that {what}", look)

    def await_ready(self, name: str) -> dict[str, Any]:
        return self.await_pod(name, "is ready", lambda pod: condition(pod, "Ready") == "True")

    def await_log(self, pod: str, words: str, container: str = "main") -> str:
        log = self.cluster.container_log("default", pod, container)

        def look() -> str | None:
            text = log.read_text() if log.exists() else ""
            return text if words in text else None

        return eventually(f'"{words}" in the log of {pod}', look)

    def events(self, pod: str) -> list[dict[str, Any]]:
        found = self.get("events", f"--field-selector=involvedObject.name={pod}")
        return list(found.get("items", ()))


def condition(pod: dict[str, Any], kind: str) -> str:
    found = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", ())}
    return str(found.get(kind))


def pod(name: str, image: str, *args: str, **spec: Any) -> dict[str, Any]:
    """Return a pod with one container, `main`; keywords of a container go to it, others to the pod."""
    of_container = {key: spec.pop(key) for key in CONTAINER_FIELDS if key in spec}
    container: dict[str, Any] = {"name": "main", "image": f"{image}:1", "args": list(args), **of_container}
    whole: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 5, **spec}
    meta = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": whole}


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [{"port": 8000}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports, **spec},
    }
