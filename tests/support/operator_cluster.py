"""What tests of the operator share: a cluster seen through short names, and the operator as a process."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from api_server import APPLY, MERGE_PATCH, Answer, ApiServer
from control_plane import running_control_plane
from inference_api.crd import RESOURCES
from local_cluster.control_plane import ControlPlane

ROOT = Path(__file__).parents[2]
POOLS = "/apis/inference.networking.k8s.io/v1"
HEADROOM = "/apis/headroom.dev/v1alpha1"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PATHS = {
    "pool": f"{POOLS}/namespaces/{{}}/inferencepools",
    "picker": f"{HEADROOM}/namespaces/{{}}/endpointpickers",
    "objective": "/apis/llm-d.ai/v1alpha2/namespaces/{}/inferenceobjectives",
    "rewrite": "/apis/llm-d.ai/v1alpha2/namespaces/{}/inferencemodelrewrites",
    "service": "/api/v1/namespaces/{}/services",
    "account": "/api/v1/namespaces/{}/serviceaccounts",
    "config": "/api/v1/namespaces/{}/configmaps",
    "pod": "/api/v1/namespaces/{}/pods",
    "event": "/api/v1/namespaces/{}/events",
    "binding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "deployment": "/apis/apps/v1/namespaces/{}/deployments",
}
Object = dict[str, Any]
T = TypeVar("T")


def eventually(look: Callable[[], T], what: str = "", seconds: float = 60.0) -> T:
    """Return the first true answer of `look`; fail after `seconds`, naming the last answer."""
    deadline = time.monotonic() + seconds
    answer = look()
    while not answer:
        if time.monotonic() > deadline:
            pytest.fail(f"not in {seconds:g} s: {what or look}; last answer {answer!r}")
        time.sleep(0.05)
        answer = look()
    return answer


@dataclass
class Space:
    """One namespace, with verbs on short kind names."""

    api: ApiServer
    name: str

    def path(self, kind: str, name: str = "", sub: str = "") -> str:
        return PATHS[kind].format(self.name) + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")

    def get(self, kind: str, name: str) -> Object | None:
        answer = self.api.get(self.path(kind, name))
        return answer.body if answer.code == 200 else None

    def all(self, kind: str) -> list[Object]:
        # A kind whose CRD has just been established may not be served yet.
        eventually(lambda: self.api.get(self.path(kind)).code == 200, kind)
        return list(self.api.get(self.path(kind)).body["items"])

    def create(self, kind: str, body: Object) -> Object:
        answer = self.api.create(self.path(kind), body)
        assert answer.code == 201, answer.body
        return answer.body

    def delete(self, kind: str, name: str, propagation: str = "Background") -> None:
        answer = self.api.request("DELETE", self.path(kind, name), {"propagationPolicy": propagation})
        assert answer.code in {200, 202}, answer.body

    def merge(self, kind: str, name: str, patch: Object) -> Object:
        return self._ok(self.api.request("PATCH", self.path(kind, name), patch, MERGE_PATCH))

    def edit(self, kind: str, name: str, *steps: Object) -> Object:
        answer = self.api.request("PATCH", self.path(kind, name), list(steps), "application/json-patch+json")
        return self._ok(answer)

    def apply(self, kind: str, body: Object, manager: str) -> Object:
        path = self.path(kind, body["metadata"]["name"]) + f"?fieldManager={manager}&force=true"
        return self._ok(self.api.request("PATCH", path, body, APPLY))

    def write_status(self, kind: str, name: str, status: Object) -> Object:
        path = self.path(kind, name, "status")
        return self._ok(self.api.request("PATCH", path, {"status": status}, MERGE_PATCH))

    def condition(self, name: str, kind: str) -> tuple[str, str, str]:
        """Return status, reason and message of an EndpointPicker's condition."""
        picker = self.get("picker", name) or {}
        for found in picker.get("status", {}).get("conditions", ()):
            if found["type"] == kind:
                return found["status"], found["reason"], found["message"]
        return "", "", ""

    def word(self, pool: str) -> str:
        """Return the value of the pool's annotation PICKER_ANNOTATION; "" when it has none."""
        body = self.get("pool", pool) or {"metadata": {}}
        return str(body["metadata"].get("annotations", {}).get("headroom.dev/picker", ""))

    def children(self) -> set[str]:
        """Return kind/name of all objects with Headroom's managed-by label."""
        return {
            f"{kind}/{body['metadata']['name']}"
            for kind in ("picker", "service", "account", "binding", "config", "deployment")
            for body in self.all(kind)
            if body["metadata"].get("labels", {}).get("app.kubernetes.io/managed-by") == "headroom"
        }

    @staticmethod
    def _ok(answer: Answer) -> Object:
        assert answer.code in {200, 201}, answer.body
        return answer.body


@dataclass
class Cluster:
    """The control plane, its client, and the operator's writes from the audit log."""

    plane: ControlPlane
    api: ApiServer
    directory: Path
    numbers: Iterator[int] = field(default_factory=count)

    def space(self) -> Space:
        name = f"ns-{next(self.numbers)}"
        answer = self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        assert answer.code == 201, answer.body
        return Space(self.api, name)

    def kubeconfig(self, account: str = "headroom-operator", namespace: str = "headroom-system") -> Path:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        answer = self.api.create(path, {"spec": {"expirationSeconds": 7200}})
        assert answer.code == 201, answer.body
        config = json.loads(self.plane.kubeconfig.read_text())
        config["users"] = [{"name": "local", "user": {"token": answer.body["status"]["token"]}}]
        target = self.directory / f"{account}.kubeconfig"
        target.write_text(json.dumps(config))
        return target

    def writes(self, namespace: str, account: str = "headroom-operator") -> list[str]:
        """Return all writes in that namespace so far of users whose name ends so, from the audit log."""
        found = []
        for line in self.plane.audit_log.read_text().splitlines():
            entry = json.loads(line)
            if (
                entry["user"]["username"].endswith(account)
                and entry["verb"] in {"create", "patch", "update", "delete"}
                and entry.get("objectRef", {}).get("namespace") == namespace
            ):
                found.append(f"{entry['verb']} {entry['requestURI']}")
        return found


@contextmanager
def running_cluster(directory: Path) -> Iterator[Cluster]:
    """Run a control plane with the CRDs and the base manifests."""
    with running_control_plane(directory / "plane") as plane:
        api = ApiServer(plane)
        for resource in RESOURCES:
            answer = api.create(CRDS, resource.definition())
            assert answer.code == 201, answer.message
        for resource in RESOURCES:
            name = resource.definition()["metadata"]["name"]
            eventually(partial(established, api, name), f"{name} established")
        kubectl(plane, "apply", "-k", str(ROOT / "manifests" / "base"))
        yield Cluster(plane, api, directory)


class OperatorProcess:
    """headroom-operator as a child process."""

    def __init__(self, kubeconfig: Path, log: Path, *flags: str, uid: int | None = None) -> None:
        """Start it, under another real uid if one is given."""
        self.log = log
        command = [
            sys.executable,
            "-m",
            "inference_operator",
            f"--kubeconfig={kubeconfig}",
            "--health-port=0",
            "--bind-address=127.0.0.1",
            "--resync-interval=4s",
            *flags,
        ]
        with log.open("wb") as out:
            environment = {**os.environ, "HOME": "/"}
            if uid is not None:
                # No variable names the user, as in a container. The effective uid stays: the interpreter may
                # lie where no other user can read.
                for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
                    environment.pop(name, None)
                start = "from inference_operator.main import main; main()"
                command[1:3] = ["-c", f"import os; os.setresuid({uid}, 0, 0); {start}"]
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def address(self) -> str:
        """Return the URL of its health port."""

        def found() -> str:
            assert self.running, self.log.read_text()
            return next((line["health"] for line in self.lines() if "health" in line), "")

        return eventually(found, "the operator's health port").removesuffix("/healthz")

    def metric(self, name: str) -> float:
        """Return a value of /metrics by its name with labels; 0 when it is not there."""
        with urllib.request.urlopen(self.address() + "/metrics", timeout=10) as answer:
            text = answer.read().decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def resyncs(self) -> int:
        """Return how many full lists have succeeded."""
        return int(self.metric('headroom_operator_resyncs_total{result="ok"}'))

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /readyz."""
        try:
            with urllib.request.urlopen(self.address() + "/readyz", timeout=10) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.loads(refusal.read())

    def stop(self, seconds: float = 20.0) -> int:
        """Send SIGTERM and return the exit status; raises subprocess.TimeoutExpired."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=seconds)

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.wait(timeout=20)


def make_ready(space: Space, app: str, address: str = "127.0.94.2") -> None:
    """Give the pods of an app the status that a kubelet would; nothing listens at the usual address."""
    pods = [p for p in space.all("pod") if p["metadata"].get("labels", {}).get("app") == app]
    for body in pods:
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        space.write_status("pod", body["metadata"]["name"], status)


def established(api: ApiServer, name: str) -> bool:
    conditions = api.get(f"{CRDS}/{name}").body.get("status", {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


def kubectl(plane: ControlPlane, *arguments: str, text: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", f"--kubeconfig={plane.kubeconfig}", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pool(name: str, picker: str | None = None, **more: Any) -> Object:
    """Return an InferencePool; `more` overrides its spec."""
    spec: Object = {
        "selector": {"matchLabels": {"app": name}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": picker or f"{name}-epp", "port": {"number": 9002}},
        **more,
    }
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": spec,
    }


def picker(name: str, **spec: Any) -> Object:
    """Return an EndpointPicker as a user writes it."""
    return {
        "apiVersion": "headroom.dev/v1alpha1",
        "kind": "EndpointPicker",
        "metadata": {"name": name},
        "spec": spec,
    }


def service(name: str, **spec: Any) -> Object:
    """Return a Service of a user's own picker."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": "my-picker"}, "ports": [{"port": 9002}], **spec},
    }
