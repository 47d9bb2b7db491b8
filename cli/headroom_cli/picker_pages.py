"""Finds the pickers of a pool and reads their pages, by kubectl and so with a user's own credentials.

`headroom explain`, `headroom top` and `headroom predictor` read by it.
"""

import argparse
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from inference_api import names

Object = dict[str, Any]

_TIMEOUT_S: Final = 15.0
_KUBECTL_TIMEOUT_S: Final = 60.0
#: Longest page that is read, bytes.
_MAX_PAGE: Final = 64 << 20
_METRICS_PORT_NAME: Final = "http-metrics"
#: klog's prefix, "E1201 06:03:33.177359".
_CLIENT_LOG: Final = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ ")
_POOLS: Final = "inferencepools.inference.networking.k8s.io"


#: Where kubectl looks for a cluster that nothing names, and its complaint about an address that is none.
_NO_CLUSTER: Final = "localhost:8080"
_NO_CLUSTER_SAID: Final = (
    "no cluster is named: set KUBECONFIG, give --kubeconfig or --context, or name an address (see --help)"
)


_OTHERWISE: Final = "a picker by --address HOST:PORT"


class PickerPageError(Exception):
    """A pool's pickers, or a page of them, cannot be had; the text is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Picker:
    """The metrics port of one picker."""

    name: str
    """The pod's name, or the address that the user gave."""
    read: Callable[[str], str]
    """Returns the text at a path with its query. Raises PickerPageError."""

    def page(self, path: str, key: str, query: Mapping[str, str] = MappingProxyType({})) -> Object:
        """Return the JSON page at `path`, which has `key`. Raises PickerPageError."""
        text = self.read(f"{path}?{urllib.parse.urlencode(query)}" if query else path)
        try:
            page = json.loads(text)
        except ValueError:
            page = None
        if not isinstance(page, dict) or key not in page:
            raise PickerPageError(f"{self.name} has no {path} with {key}; is it Headroom's picker?")
        return page


def add_flags(command: argparse.ArgumentParser, *, address: bool = True) -> None:
    """Add the flags by which a user names a picker, or the cluster of a pool."""
    add = command.add_argument
    if address:
        add(
            "--address",
            default="",
            metavar="HOST:PORT",
            help="a picker's metrics port, in place of the cluster",
        )
    add("-n", "--namespace", default="", help="the pool's; default: that of the kubeconfig's context")
    add("--context", default="", help="context of the kubeconfig")
    add("--kubeconfig", default="", help="kubeconfig file; default: as for kubectl")


def pickers(given: argparse.Namespace) -> list[Picker]:
    """Return the pickers that `pool` and these flags name, at least one. Raises PickerPageError."""
    if given.address:
        return [of_address(given.address)]
    kubectl, pods = pods_of(given)
    return [_of_pod(kubectl, pod, _metrics_port(pod)) for pod in pods]


def pickers_beside(given: argparse.Namespace, port: str) -> list[tuple[Picker, Picker | None]]:
    """Return each picker with what serves pages at the named port of its pod; None where there is none.

    Raises PickerPageError.
    """
    if given.address:
        return [(of_address(given.address), None)]
    kubectl, pods = pods_of(given)
    return [
        (
            _of_pod(kubectl, pod, _metrics_port(pod)),
            None if (number := port_of(pod, port)) is None else _of_pod(kubectl, pod, number),
        )
        for pod in pods
    ]


def pods_of(given: argparse.Namespace, otherwise: str = _OTHERWISE) -> tuple["Kubectl", list[Object]]:
    """Return the pods of the pickers of the pool that the flags name. Raises PickerPageError.

    `otherwise` says what the user may name in place of the pool.
    """
    if not given.pool:
        raise PickerPageError(f"name the InferencePool, or {otherwise}")
    flags = [
        f"--{name}={value}"
        for name in ("namespace", "context", "kubeconfig")
        if (value := getattr(given, name))
    ]
    kubectl = Kubectl(flags)
    return kubectl, _pods_of_pool(kubectl, given.pool)


class Kubectl:
    """Runs kubectl with the flags by which a user names a cluster and a namespace."""

    def __init__(self, flags: Sequence[str]) -> None:
        """Raises PickerPageError when there is no kubectl."""
        search = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
        program = shutil.which("kubectl", path=search)
        if program is None:
            raise PickerPageError(
                "kubectl is not installed; install it, or name the picker by --address HOST:PORT"
            )
        # Without --request-timeout: kubectl would add it to the picker's query.
        self._command = [program, *flags]

    def get(self, *arguments: str) -> Object:
        """Return what `kubectl get` prints as JSON. Raises PickerPageError with kubectl's own sentence."""
        status, output, complaint = self._run("get", *arguments, "-o", "json")
        if status:
            raise PickerPageError(complaint)
        found: Object = json.loads(output)
        return found

    def raw(self, path: str) -> tuple[int, str, str]:
        """Return exit status, output and complaint of `kubectl get --raw`."""
        return self._run("get", "--raw", path)

    def running(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start kubectl, whose output the caller reads; the caller ends it."""
        return subprocess.Popen(  # noqa: S603 - the arguments are this program's and the user's own
            [*self._command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

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
            raise PickerPageError("kubectl did not answer in time; does the cluster answer?") from None
        complaint = " ".join(_without_client_log(done.stderr).split())
        if done.returncode and _NO_CLUSTER in complaint:
            raise PickerPageError(_NO_CLUSTER_SAID)
        return done.returncode, done.stdout, complaint.removeprefix("error: ") or "kubectl failed"


def _without_client_log(text: str) -> str:
    """Return kubectl's complaint without the lines of its client library, which repeat it at each attempt."""
    lines = [line for line in text.splitlines() if not _CLIENT_LOG.match(line)]
    return "\n".join(lines) if any(map(str.strip, lines)) else text


def of_address(address: str) -> Picker:
    """Return the picker at "host:port". Raises PickerPageError when that is no address."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise PickerPageError(f"--address {address}: write HOST:PORT, the picker's metrics port")
    return Picker(address, partial(_fetched, f"http://{address}", address))


def _pods_of_pool(kubectl: Kubectl, pool: str) -> list[Object]:
    """Return every running picker's pod. Raises PickerPageError when there is none."""
    found = kubectl.get(_POOLS, pool)
    namespace = found["metadata"]["namespace"]
    picker = found["spec"].get("endpointPickerRef", {}).get("name", "")
    if not picker:
        raise PickerPageError(f"InferencePool {namespace}/{pool} names no endpoint picker")
    service = kubectl.get("service", picker, "-n", namespace)
    selector = service["spec"].get("selector") or {}
    if not selector:
        raise PickerPageError(f"Service {namespace}/{picker} selects no pods; name the picker by --address")
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    pods = [pod for pod in kubectl.get("pods", "-n", namespace, "-l", labels)["items"] if _runs(pod)]
    if not pods:
        raise PickerPageError(f"no pod of Service {namespace}/{picker} runs: kubectl get pods -n {namespace}")
    return pods


def _runs(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _of_pod(kubectl: Kubectl, pod: Object, port: int) -> Picker:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    address = str(pod["status"].get("podIP", ""))
    # The API server refuses to proxy to loopback addresses, which the pods of a local cluster have.
    if address and ipaddress.ip_address(address).is_loopback:
        return Picker(name, partial(_fetched, f"http://{address}:{port}", f"pod {namespace}/{name}"))
    return Picker(name, partial(_proxied, kubectl, namespace, name, port))


def _proxied(kubectl: Kubectl, namespace: str, name: str, port: int, path: str) -> str:
    status, output, complaint = kubectl.raw(f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy{path}")
    if status:
        raise PickerPageError(f"pod {namespace}/{name} cannot be read through the API server: {complaint}")
    return output


def _metrics_port(pod: Object) -> int:
    found = port_of(pod, _METRICS_PORT_NAME)
    return names.METRICS_PORT if found is None else found


def port_of(pod: Object, name: str) -> int | None:
    """Return the port with that name of one of the pod's containers."""
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if port.get("name") == name:
                return int(port["containerPort"])
    return None


def _fetched(url: str, picker: str, path: str) -> str:
    try:
        with urllib.request.urlopen(  # noqa: S310 - http only, by the callers
            f"{url}{path}", timeout=_TIMEOUT_S
        ) as response:
            text: str = response.read(_MAX_PAGE).decode()
            return text
    except urllib.error.HTTPError as error:
        raise PickerPageError(f"{picker} answers {error.code}; is it Headroom's picker?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or reason
        raise PickerPageError(f"{picker} does not answer on its metrics port: {said}") from None
