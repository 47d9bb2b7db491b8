"""The life of one pod on this node, from binding to its last DELETE. Everything it starts ends with it."""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local_cluster.images import ImageCommand, repository
from local_cluster.node.addresses import Addresses
from local_cluster.node.api import MERGE_PATCH, Api, ApiError
from local_cluster.node.container import ContainerRunner, utc_now
from local_cluster.node.environment import (
    MissingReferenceError,
    PodFacts,
    command_line,
    container_environment,
)
from local_cluster.node.events import Events
from local_cluster.node.mounts import Mount
from local_cluster.node.objects import Json, Key, is_deleting, key_of
from local_cluster.node.runtime import Launch
from local_cluster.node.status import pod_status
from local_cluster.node.support import refusals
from local_cluster.node.tokens import Tokens
from local_cluster.node.volumes import replace_files, volume_files

_log = logging.getLogger(__name__)
_LONGEST_SLEEP_S: Final = 30.0
_RETRY_S: Final = 1.0
_NOT_FOUND: Final = 404
_DEFAULT_GRACE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The objects that all pods of a node share."""

    api: Api
    events: Events
    addresses: Addresses
    images: Mapping[str, ImageCommand]
    directory: Path
    log_directory: Path
    host_address: str
    server_host: str
    server_port: int
    config_map: Callable[[Key], Json | None]
    #: (namespace, host name, address) -> texts of /etc/resolv.conf and /etc/hosts
    name_files: Callable[[str, str, str], tuple[str, str]]


def pod_folder(key: Key) -> str:
    """Return the name of a pod's folder, for its files and for its logs."""
    return f"{key[0]}_{key[1]}"


class PodWorker:
    """Runs a pod: call `update` with each new version of it, and cancel `run` when the object is gone."""

    def __init__(self, pod: Json, node: Surroundings) -> None:
        self._pod = pod
        self._node = node
        self._key = key_of(pod)
        self._directory = node.directory / pod_folder(self._key)
        self._address = ""
        self._wake = asyncio.Event()
        self._reported: Json | None = None
        self._containers = [
            ContainerRunner(spec, pod, self._wake.set, self._post_event) for spec in pod["spec"]["containers"]
        ]
        self._tokens = Tokens(node.api, pod)

    def update(self, pod: Json | None = None) -> None:
        """Take a new version of the pod; without one, something that its files depend on has changed."""
        self._pod = pod or self._pod
        self._wake.set()

    async def run(self) -> None:
        """Run the pod until it has been deleted; when cancelled, end everything at once."""
        shutil.rmtree(self._directory, ignore_errors=True)
        try:
            problems = refusals(self._pod)
            if problems:
                self._refuse("; ".join(problems))
            else:
                self._address = self._node.addresses.take()
            while not is_deleting(self._pod):
                self._wake.clear()
                delay = _LONGEST_SLEEP_S if problems else await self._sync()
                delay = min(delay, await self._report())
                await self._sleep(delay)
            await self._end()
        finally:
            await asyncio.gather(*(each.close() for each in self._containers))
            shutil.rmtree(self._directory, ignore_errors=True)
            if self._address:
                self._node.addresses.give_back(self._address)

    def _refuse(self, why: str) -> None:
        for each in self._containers:
            each.wait_for("UnsupportedByLocalNode", why)
        self._post_event("Warning", "UnsupportedByLocalNode", why)

    async def _sync(self) -> float:
        """Update files and tokens, start containers that are due; return seconds until the next sync."""
        try:
            refresh_s = await self._tokens.refresh()
            self._write_files()
        except (MissingReferenceError, ApiError, OSError) as error:
            for each in self._containers:
                if not each.is_running and each.wait_for("ContainerCreating", str(error)):
                    self._post_event("Warning", "FailedMount", f"MountVolume.SetUp failed: {error}")
            return _RETRY_S
        delays = [await self._start_if_due(each) for each in self._containers]
        return min(refresh_s, *delays)

    async def _start_if_due(self, container: ContainerRunner) -> float:
        """Start it if it should run now; return seconds until the next check is due."""
        delay = container.start_delay()
        if delay != 0:
            return _LONGEST_SLEEP_S if delay is None else delay
        image = self._node.images.get(repository(container.spec["image"]))
        if image is None:
            known = ", ".join(sorted(self._node.images))
            message = f'the local node has no image "{container.spec["image"]}"; it knows: {known}'
            if container.wait_for("ErrImagePull", message):
                self._post_event("Warning", "Failed", message)
            return _LONGEST_SLEEP_S
        try:
            await container.start(self._launch(container.spec, image), self._address)
        except MissingReferenceError as error:
            if container.wait_for("CreateContainerConfigError", str(error)):
                self._post_event("Warning", "Failed", f"Error: {error}")
            return _RETRY_S
        except OSError as error:
            if container.wait_for("CreateContainerError", str(error)):
                self._post_event("Warning", "Failed", f"Error: {error}")
            return _RETRY_S
        return _LONGEST_SLEEP_S

    async def _end(self) -> None:
        """Stop all containers within the grace period, report how they ended and delete the object."""
        grace = self._pod["metadata"].get("deletionGracePeriodSeconds")
        grace_s = _DEFAULT_GRACE_S if grace is None else float(grace)
        running = [each for each in self._containers if each.is_running]
        for each in running:
            self._post_event("Normal", "Killing", f"Stopping container {each.view.name}")
        stops = [each.stop(grace_s) for each in running]
        while not all(stop.done() for stop in stops):
            self._wake.clear()  # the end of a container sets it
            await self._report()
            await self._sleep(_RETRY_S)
        await self._report()
        meta = self._pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        while True:
            try:
                await self._node.api.call("DELETE", self._path(), options)
            except ApiError as error:
                if error.status not in {_NOT_FOUND, 409}:
                    _log.warning("deleting pod %s: %s", self._key, error)
                    await asyncio.sleep(_RETRY_S)
                    continue
            return

    def _write_files(self) -> None:
        facts = self._facts()
        self._directory.mkdir(parents=True, exist_ok=True)  # a pod may have no volume at all
        for volume in self._pod["spec"].get("volumes") or ():
            folder = self._directory / "volumes" / volume["name"]
            files = volume_files(volume, self._pod, facts, self._config_map, self._tokens.of)
            if files is None:
                folder.mkdir(parents=True, exist_ok=True)
            else:
                replace_files(folder, files)
        texts = self._node.name_files(self._key[0], self._key[1], self._address)
        for name, text in zip(("resolv.conf", "hosts"), texts, strict=True):
            file = self._directory / name
            if not file.exists() or file.read_text() != text:
                file.write_text(text)  # in place: the containers have this inode bind-mounted

    def _launch(self, spec: Json, image: ImageCommand) -> Launch:
        base = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOSTNAME": self._key[1],
            "HOME": "/tmp",  # noqa: S108 - a home inside the container
            "KUBERNETES_SERVICE_HOST": self._node.server_host,
            "KUBERNETES_SERVICE_PORT": str(self._node.server_port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(self._node.server_port),
            **image.environment,
        }
        variables = container_environment(spec, self._pod, self._facts(), self._config_map, base)
        mounts = [
            Mount(str(self._directory / "resolv.conf"), "/etc/resolv.conf", read_only=False),
            Mount(str(self._directory / "hosts"), "/etc/hosts", read_only=False),
        ]
        kinds = {volume["name"]: volume for volume in self._pod["spec"].get("volumes") or ()}
        for each in spec.get("volumeMounts") or ():
            read_only = bool(each.get("readOnly")) or "emptyDir" not in kinds[each["name"]]
            source = self._directory / "volumes" / each["name"]
            mounts.append(Mount(str(source), each["mountPath"], read_only))
        return Launch(
            command_line(spec, image.argv, variables),
            variables,
            mounts,
            self._key[1],
            spec.get("workingDir") or "/",
            self._directory / "containers" / spec["name"],
            self._log_of(spec),
        )

    def _log_of(self, spec: Json) -> Path:
        return self._node.log_directory / pod_folder(self._key) / f"{spec['name']}.log"

    def _facts(self) -> PodFacts:
        return PodFacts(self._address, self._node.host_address)

    def _config_map(self, name: str) -> Json | None:
        return self._node.config_map((self._key[0], name))

    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._key[0]}/pods/{self._key[1]}"

    async def _report(self) -> float:
        """Write the status if it has changed; return seconds until it has to be tried again."""
        before = self._reported or self._pod.get("status") or {}
        views = [each.view for each in self._containers]
        base = {**self._pod, "status": before}
        status = pod_status(base, views, self._address, self._node.host_address, utc_now())
        if status == self._reported:
            return _LONGEST_SLEEP_S
        change = {"metadata": {"uid": self._pod["metadata"]["uid"]}, "status": status}
        try:
            await self._node.api.call("PATCH", f"{self._path()}/status", change, content_type=MERGE_PATCH)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                _log.warning("status of pod %s: %s", self._key, error)
            return _RETRY_S
        self._reported = status
        return _LONGEST_SLEEP_S

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _post_event(self, kind: str, reason: str, message: str) -> None:
        self._node.events.post(self._pod, kind, reason, message)
