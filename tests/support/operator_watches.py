"""Checks of an operator whose watches go through a `WatchFaults` proxy."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from operator_cluster import OperatorProcess, Space, eventually

#: Last segments of the watched collections' paths.
RESOURCES = (
    "inferencepools",
    "endpointpickers",
    "inferenceobjectives",
    "services",
    "serviceaccounts",
    "configmaps",
    "rolebindings",
    "deployments",
    "customresourcedefinitions",
)
#: Seconds after a fault's end within which the operator must heal again.
BACK_WITHIN = 10.0
#: Seconds after a fault's start within which readiness must fail.
NOTICED_AFTER = 5.0


def probe(address: str, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of a health endpoint."""
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def metric(address: str, name: str) -> float:
    """Return a series of the operator's metrics page; 0 when it is absent."""
    with urllib.request.urlopen(address + "/metrics", timeout=10) as answer:
        found = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


@dataclass
class Watcher:
    """Polls both health endpoints every 0.1 s and records time, statuses and the body of readiness."""

    address: str
    said: list[tuple[float, int, int, dict[str, Any]]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self._stop.wait(0.1):
            alive, _ = probe(self.address, "/healthz")
            ready, body = probe(self.address, "/readyz")
            self.said.append((time.monotonic(), alive, ready, body))

    def stop(self) -> None:
        self._stop.set()


@contextmanager
def watched_health(process: OperatorProcess) -> Iterator[Watcher]:
    """Record the health of a process while the block runs."""
    watcher = Watcher(process.address())
    thread = threading.Thread(target=watcher.run, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        watcher.stop()
        thread.join(30)


def heals(space: Space, name: str, seconds: float) -> float:
    """Delete a ConfigMap; return after how many seconds the operator has made it again."""
    before = (space.get("config", name) or {})["metadata"]["uid"]
    began = time.monotonic()
    space.delete("config", name)

    def is_back() -> bool:
        body = space.get("config", name)
        return body is not None and body["metadata"]["uid"] != before

    eventually(is_back, f"{name} made again", seconds)
    return time.monotonic() - began


def is_ready(process: OperatorProcess) -> bool:
    """Return whether `/readyz` answers 200: every watch is open."""
    return probe(process.address(), "/readyz")[0] == 200
