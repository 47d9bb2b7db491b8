"""A namespace on a test API server with a pool, pods and ConfigMaps in it, for tests of a picker's watch."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_server import MERGE_PATCH, Answer, ApiServer

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"


async def until(condition: Callable[[], object], within: float = 20.0) -> None:
    """Wait for a condition; a generous limit, not a measurement."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - there is no event for what a column holds
            await asyncio.sleep(0.01)


@dataclass
class Space:
    """A namespace of its own for a test. Every method blocks: call it in a thread."""

    api: ApiServer
    kubeconfig: Path
    namespace: str

    def ask(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> Answer:
        answer = self.api.request(method, path, body, content_type)
        assert answer.code in (200, 201, 202), answer.body
        return answer

    def pool(self, name: str, selector: dict[str, str], *ports: int) -> None:
        spec: dict[str, Any] = {
            "selector": {"matchLabels": selector},
            "targetPorts": [{"number": port} for port in ports or (8000,)],
            "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
        }
        body = {
            "apiVersion": "inference.networking.k8s.io/v1",
            "kind": "InferencePool",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.ask("POST", POOLS.format(self.namespace), body)

    def patch_pool(self, name: str, spec: dict[str, Any]) -> None:
        self.ask("PATCH", f"{POOLS.format(self.namespace)}/{name}", {"spec": spec}, MERGE_PATCH)

    def delete_pool(self, name: str) -> None:
        self.ask("DELETE", f"{POOLS.format(self.namespace)}/{name}")

    def pod(self, name: str, labels: dict[str, str], ip: str, *, ready: bool = True) -> None:
        spec = {"containers": [{"name": "server", "image": "server"}], "nodeName": "nowhere"}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self.ask("POST", f"/api/v1/namespaces/{self.namespace}/pods", body)
        self.set_status(name, ip, ready=ready)

    def set_status(self, name: str, ip: str, *, ready: bool) -> None:
        status = {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        self.ask("PATCH", path, {"status": status}, MERGE_PATCH)

    def delete_pod(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0"
        self.ask("DELETE", path)

    def config_map(self, name: str, data: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        self.ask("POST", path, {"metadata": {"name": name}, "data": data})

    def patch_config_map(self, name: str, data: dict[str, str]) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{name}"
        self.ask("PATCH", path, {"data": data}, MERGE_PATCH)
