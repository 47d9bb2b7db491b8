"""Finds the pickers of a pool and reads their pages, by kubectl and so with a user's own credentials."""

import http.client
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headroom_cli.explain.failure import ExplainError
from inference_api import names

Object = dict[str, Any]

_PATH: Final = "/debug/explain"
_TIMEOUT_S: Final = 15.0
_KUBECTL_TIMEOUT_S: Final = 60.0
#: Longest page that is read, bytes.
_MAX_PAGE: Final = 64 << 20
_METRICS_PORT_NAME: Final = "http-metrics"
#: klog's prefix, "E1201 06:03:33.177359".
_CLIENT_LOG: Final = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
_POOLS: Final = "inferencepools.inference.networking.k8s.io"


@dataclass(frozen=True, slots=True)
class Answer:
    """One picker's answer."""

    picker: str
    """The pod's name, or the address that the user gave."""
    page: Object
    """The page /debug/explain."""


class Kubectl:
    """Runs kubectl with the flags by which a user names a cluster and a namespace."""

    def __init__(self, flags: Sequence[str]) -> None:
        """Raises ExplainError when there is no kubectl."""
        search = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
        program = shutil.which("kubectl", path=search)
        if program is None:
            raise ExplainError(
                "kubectl is not installed; install it, or name the picker by --address HOST:PORT"
            )
        # Without --request-timeout: kubectl would add it to the picker's query.
        self._command = [program, *flags]

    def get(self, *arguments: str) -> Object:
        """Return what `kubectl get` prints as JSON. Raises ExplainError with kubectl's own sentence."""
        status, output, complaint = self._run("get", *arguments, "-o", "json")
        if status:
            raise ExplainError(complaint)
        found: Object = json.loads(output)
        return found

    def raw(self, path: str) -> tuple[int, str, str]:
        """Return exit status, output and complaint of `kubectl get --raw`."""
        return self._run("get", "--raw", path)

    def _run(self, *arguments: str) -> tuple[int, str, str]:
        try:
            done = subprocess.run(  # noqa: S603 - the arguments are this program's and the user's own
                [*self._command, *arguments],
                capture_output=True,
                text=True,
                timeout=_KUBECTL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ExplainError("kubectl did not answer in time; does the cluster answer?") from None
        complaint = " ".join(_without_client_log(done.stderr).split())
        return done.returncode, done.stdout, complaint.removeprefix("error: ") or "kubectl failed"


def _without_client_log(text: str) -> str:
    """Return kubectl's complaint without the lines of its client library, which repeat it at each attempt."""
    lines = [line for line in text.splitlines() if not _CLIENT_LOG.match(line)]
    return "\n".join(lines) if any(map(str.strip, lines)) else text


def of_address(address: str, query: dict[str, str]) -> list[Answer]:
    """Ask the picker at "host:port". Raises ExplainError when it does not answer."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise ExplainError(f"--address {address}: write HOST:PORT, the picker's metrics port")
    return [Answer(address, _fetched(f"http://{address}", query, address))]


def of_pool(kubectl: Kubectl, pool: str, query: dict[str, str]) -> list[Answer]:
    """Ask every running picker of the pool. Raises ExplainError when none can be asked."""
    found = kubectl.get(_POOLS, pool)
    namespace = found["metadata"]["namespace"]
    picker = found["spec"].get("endpointPickerRef", {}).get("name", "")
    if not picker:
        raise ExplainError(f"InferencePool {namespace}/{pool} names no endpoint picker")
    service = kubectl.get("service", picker, "-n", namespace)
    selector = service["spec"].get("selector") or {}
    if not selector:
        raise ExplainError(f"Service {namespace}/{picker} selects no pods; name the picker by --address")
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = [pod for pod in kubectl.get("pods", "-n", namespace, "-l", labels)["items"] if _runs(pod)]
    if not pods:
        raise ExplainError(f"no pod of Service {namespace}/{picker} runs: kubectl get pods -n {namespace}")
    return [_of_pod(kubectl, pod, query) for pod in pods]


def _runs(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _of_pod(kubectl: Kubectl, pod: Object, query: dict[str, str]) -> Answer:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    address, port = str(pod["status"].get("podIP", "")), _metrics_port(pod)
    # The API server refuses to proxy to loopback addresses, which the pods of a local cluster have.
    if address and ipaddress.ip_address(address).is_loopback:
        return Answer(name, _fetched(f"http://{address}:{port}", query, f"pod {namespace}/{name}"))
    path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{_PATH}?{urllib.parse.urlencode(query)}"
    status, output, complaint = kubectl.raw(path)
    if status:
        raise ExplainError(f"pod {namespace}/{name} cannot be read through the API server: {complaint}")
    return Answer(name, _page(output, f"pod {namespace}/{name}"))


def _metrics_port(pod: Object) -> int:
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == _METRICS_PORT_NAME:
                return int(port["containerPort"])
    return names.METRICS_PORT


def _fetched(url: str, query: dict[str, str], picker: str) -> Object:
    try:
        with urllib.request.urlopen(  # noqa: S310 - http only, by the callers
            f"{url}{_PATH}?{urllib.parse.urlencode(query)}", timeout=_TIMEOUT_S
        ) as response:
            return _page(response.read(_MAX_PAGE).decode(), picker)
    except urllib.error.HTTPError as error:
        raise ExplainError(f"{picker} answers {error.code}; is it Headroom's picker?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or reason
        raise ExplainError(f"{picker} does not answer on its metrics port: {said}") from None


def _page(text: str, picker: str) -> Object:
    try:
        page = json.loads(text)
    except ValueError:
        page = None
    if not isinstance(page, dict) or "decisions" not in page:
        raise ExplainError(f"{picker} answers no decisions; is it Headroom's picker?")
    return page
