"""The node: registers itself, binds every pod that names no node, runs a worker for each of its pods."""

import asyncio
import datetime
import logging
import shutil
from collections import deque
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from local_cluster.images import ImageCommand
from local_cluster.node.addresses import Addresses
from local_cluster.node.api import MERGE_PATCH, Access, Api, ApiError, settle
from local_cluster.node.dns import DnsServer, serve
from local_cluster.node.events import Events
from local_cluster.node.logs import LogServer, keep_bounded
from local_cluster.node.mirror import Mirror
from local_cluster.node.names import hosts_file, resolver_file, service_addresses
from local_cluster.node.objects import Json, Key, is_deleting, key_of, timestamp, uid_of
from local_cluster.node.runtime import check_namespaces
from local_cluster.node.volumes import config_map_names
from local_cluster.node.worker import PodWorker, Surroundings, pod_folder

_log = logging.getLogger(__name__)
NODE_NAME: Final = "local"
HOST_ADDRESS: Final = "127.0.0.1"
_NOWHERE: Final = "127.0.0.1"
_HEARTBEAT_S: Final = 60.0
_RETRY_S: Final = 1.0
#: Number of deleted pods whose logs are kept.
_KEPT_LOGS: Final = 100


class Node:
    """Everything that runs on this node; `run` lasts until it is cancelled and ends all of it."""

    def __init__(
        self,
        access: Access,
        directory: Path,
        log_directory: Path,
        images: Mapping[str, ImageCommand],
        *,
        use_dns: bool = True,
    ) -> None:
        self._access = access
        self._directory = directory
        self._log_directory = log_directory
        self._images = images
        self._use_dns = use_dns
        self._api = Api(access)
        self._pods = Mirror(self._api, "/api/v1/pods", self._pod_changed)
        self._services = Mirror(self._api, "/api/v1/services", self._names_changed)
        self._config_maps = Mirror(self._api, "/api/v1/configmaps", self._config_map_changed)
        self._workers: dict[str, tuple[PodWorker, asyncio.Task[None]]] = {}
        self._ending: dict[Key, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._gone: deque[Key] = deque()
        self._dns: DnsServer | None = None
        self._logs = LogServer(access, self._log_of, self._is_running)
        server = urlsplit(access.url)
        self._surroundings = Surroundings(
            api=self._api,
            events=Events(self._api, NODE_NAME),
            addresses=Addresses(),
            images=images,
            directory=directory,
            log_directory=log_directory,
            host_address=HOST_ADDRESS,
            server_host=server.hostname or HOST_ADDRESS,
            server_port=server.port or 443,
            config_map=self._config_maps.items.get,
            name_files=self._name_files,
        )

    async def run(self) -> None:
        """Serve until cancelled.

        Raises:
            NamespacesRefusedError: containers cannot be run on this machine.
        """
        shutil.rmtree(self._directory, ignore_errors=True)
        await check_namespaces(self._directory / "trial")
        async with self._api:
            self._dns = await serve(self._lookup) if self._use_dns else None
            log_port = await self._logs.start(HOST_ADDRESS)
            try:
                self._spawn(self._surroundings.events.run())
                self._spawn(keep_bounded(self._surroundings.log_directory))
                for mirror in (self._services, self._config_maps, self._pods):
                    self._spawn(mirror.run())
                    await mirror.listed.wait()
                await self._keep_registered(log_port)
            finally:
                if self._dns is not None:
                    self._dns.close()
                await self._logs.close()
                await settle({*self._background, *(task for _, task in self._workers.values())})
                await settle(set(self._ending.values()))

    async def _keep_registered(self, log_port: int) -> None:
        """Create the Node object, then write its status every _HEARTBEAT_S."""
        registered = False
        while True:
            try:
                if not registered:
                    await self._register(log_port)
                    registered = True
                await self._api.call(
                    "PATCH",
                    f"/api/v1/nodes/{NODE_NAME}/status",
                    _node_status(log_port),
                    content_type=MERGE_PATCH,
                )
                delay = _HEARTBEAT_S
            except ApiError as error:
                _log.warning("registering: %s", error)
                delay = _RETRY_S
            await asyncio.sleep(delay)

    async def _register(self, log_port: int) -> None:
        labels = {"kubernetes.io/hostname": NODE_NAME, "kubernetes.io/os": "linux"}
        meta = {"name": NODE_NAME, "labels": labels}
        try:
            await self._api.call(
                "POST",
                "/api/v1/nodes",
                {"kind": "Node", "apiVersion": "v1", "metadata": meta, **_node_status(log_port)},
            )
        except ApiError as error:
            if error.status != 409:
                raise

    def _pod_changed(self, before: Json | None, after: Json | None) -> None:
        if after is None:
            if before is not None:
                self._forget(before)
        elif not after["spec"].get("nodeName"):
            if not is_deleting(after):
                self._spawn(self._bind(after))
        elif after["spec"]["nodeName"] == NODE_NAME:
            self._serve(after)
        self._names_changed(before, after)

    def _serve(self, pod: Json) -> None:
        if (known := self._workers.get(uid_of(pod))) is not None:
            known[0].update(pod)
            return
        worker = PodWorker(pod, self._surroundings)
        task = asyncio.create_task(self._run_worker(worker, pod, self._ending.get(key_of(pod))))
        self._workers[uid_of(pod)] = (worker, task)

    async def _run_worker(self, worker: PodWorker, pod: Json, former: asyncio.Task[None] | None) -> None:
        if former is not None:  # an earlier pod of the same name uses the same folder
            await asyncio.gather(former, return_exceptions=True)
        try:
            await worker.run()
        except Exception:
            _log.exception("the worker of pod %s failed", key_of(pod))
            raise

    def _forget(self, pod: Json) -> None:
        """Cancel the worker of a deleted pod, and delete the logs of the oldest such pods."""
        known = self._workers.pop(uid_of(pod), None)
        if known is None:
            return
        task, key = known[1], key_of(pod)
        task.cancel()
        self._ending[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))
        self._gone.append(key)
        while len(self._gone) > _KEPT_LOGS:
            old = self._gone.popleft()
            if old not in self._pods.items and old not in self._gone:
                shutil.rmtree(self._log_directory / pod_folder(old), ignore_errors=True)

    def _ended(self, key: Key, task: asyncio.Task[None]) -> None:
        if self._ending.get(key) is task:
            del self._ending[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("ending pod %s: %s", key, error)

    async def _bind(self, pod: Json) -> None:
        namespace, name = key_of(pod)
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME}
        meta = {"name": name, "namespace": namespace, "uid": uid_of(pod)}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        for _ in range(5):
            try:
                await self._api.call("POST", path, binding)
            except ApiError as error:
                if error.status in {404, 409}:
                    return  # gone, or bound already
                _log.warning("binding pod %s/%s: %s", namespace, name, error)
                await asyncio.sleep(_RETRY_S)
            else:
                return

    def _config_map_changed(self, before: Json | None, after: Json | None) -> None:
        namespace, name = key_of(after or before or {})
        for key, pod in self._pods.items.items():
            if key[0] == namespace and name in config_map_names(pod) and uid_of(pod) in self._workers:
                self._workers[uid_of(pod)][0].update()

    def _names_changed(self, _before: Json | None, _after: Json | None) -> None:
        if self._dns is None:  # hosts files hold the addresses and have to be written again
            for worker, _ in self._workers.values():
                worker.update()

    def _log_of(self, namespace: str, pod: str, container: str) -> Path:
        return self._log_directory / pod_folder((namespace, pod)) / f"{container}.log"

    def _is_running(self, namespace: str, pod: str, container: str) -> bool:
        statuses = self._pods.items.get((namespace, pod), {}).get("status", {}).get("containerStatuses") or ()
        return any(each["name"] == container and "running" in each["state"] for each in statuses)

    def _lookup(self, key: Key) -> list[str] | None:
        service = self._services.items.get(key)
        return None if service is None else service_addresses(service, self._pods.items.values())

    def _name_files(self, namespace: str, host_name: str, address: str) -> tuple[str, str]:
        if self._dns is not None:
            return resolver_file(namespace, self._dns.address), hosts_file(namespace, host_name, address, ())
        services = [(key, self._lookup(key) or []) for key in sorted(self._services.items)]
        return resolver_file(namespace, _NOWHERE), hosts_file(namespace, host_name, address, services)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _node_status(log_port: int) -> Json:
    now = timestamp(datetime.datetime.now(datetime.UTC))
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "LocalNodeReady",
        "message": "pods run as processes of this machine",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    room = {"cpu": "1000", "memory": "1000Gi", "pods": "1000"}
    return {
        "status": {
            "conditions": [ready],
            # Only an InternalIP: the API server would resolve a Hostname, and refuse its loopback address.
            "addresses": [{"type": "InternalIP", "address": HOST_ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": log_port}},
            "capacity": room,
            "allocatable": room,
        }
    }
