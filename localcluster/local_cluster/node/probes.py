"""Probes of a container: how a single one is made, and how many results in a row make a verdict."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
import grpc

from local_cluster.node.objects import Json

#: Seconds between probes while a container is not up, so that its start shows before the probe's period ends.
EAGER_S: Final = 0.25
_HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
_SERVING: Final = b"\x08\x01"
_LONGEST_NAME: Final = 127


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe with its numbers filled in; times in seconds."""

    action: Json
    initial_delay_s: float
    period_s: float
    timeout_s: float
    successes: int
    failures: int

    def grace_s(self, of_pod: float) -> float:
        """Return the time that a container has to end in when this probe fails: its own, else the pod's."""
        own = self.action.get("terminationGracePeriodSeconds")
        return of_pod if own is None else float(own)

    @classmethod
    def parse(cls, spec: Json) -> "Probe":
        """Read core/v1 Probe, with Kubernetes' defaults."""
        return cls(
            spec,
            float(spec.get("initialDelaySeconds") or 0),
            float(spec.get("periodSeconds") or 10),
            float(spec.get("timeoutSeconds") or 1),
            int(spec.get("successThreshold") or 1),
            int(spec.get("failureThreshold") or 3),
        )


class Streak:
    """Counts equal results in a row, up to the probe's thresholds. Pure."""

    __slots__ = ("_count", "_last", "_needed")

    def __init__(self, probe: Probe) -> None:
        self._needed = {True: probe.successes, False: probe.failures}
        self._last: bool | None = None
        self._count = 0

    def add(self, passed: bool) -> bool | None:
        """Count one result; return the verdict once enough agree, else None."""
        self._count = self._count + 1 if passed is self._last else 1
        self._last = passed
        return passed if self._count >= self._needed[passed] else None


def port_number(port: object, container: Json) -> int:
    """Return a probe's port, which may be the name of one of the container's.

    Raises:
        ValueError: the container has no port of that name.
    """
    if isinstance(port, int):
        return port
    for each in container.get("ports") or ():
        if each.get("name") == port:
            return int(each["containerPort"])
    message = f'the container has no port named "{port}"'
    raise ValueError(message)


async def ask(probe: Probe, container: Json, address: str) -> str:
    """Make one probe; return "" when it passed, else why it did not. Never raises for a bad peer."""
    action = probe.action
    try:
        async with asyncio.timeout(probe.timeout_s):
            if "httpGet" in action:
                return await http_get(action["httpGet"], container, address)
            if "grpc" in action:
                return await _grpc(action["grpc"], address)
            return await _tcp(action["tcpSocket"], container, address)
    except TimeoutError:
        return f"no answer in {probe.timeout_s:g} s"
    except (OSError, ValueError, aiohttp.ClientError) as error:
        return str(error) or type(error).__name__


async def http_get(action: Json, container: Json, address: str) -> str:
    """Make the request of an httpGet action; a status of 200 to 399 passes."""
    host = action.get("host") or address
    scheme = str(action.get("scheme", "HTTP")).lower()
    path = "/" + str(action.get("path") or "/").lstrip("/")
    url = f"{scheme}://{host}:{port_number(action['port'], container)}{path}"
    headers = {each["name"]: each["value"] for each in action.get("httpHeaders") or ()}
    headers.setdefault("User-Agent", "kube-probe/headroom-local")
    # Like a kubelet, verify no certificate: a probe checks that the server answers, not its identity.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as session:
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            passed = 200 <= response.status < 400
            return "" if passed else f"HTTP probe failed with statuscode: {response.status}"


async def _tcp(action: Json, container: Json, address: str) -> str:
    port = port_number(action["port"], container)
    _, writer = await asyncio.open_connection(action.get("host") or address, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def _grpc(action: Json, address: str) -> str:
    """Ask grpc.health.v1; its two messages have one field each and are written by hand here."""
    service = str(action.get("service") or "").encode()
    if len(service) > _LONGEST_NAME:
        return "the service name is too long"
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    async with grpc.aio.insecure_channel(f"{address}:{action['port']}") as channel:
        check: Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]] = channel.unary_unary(_HEALTH_CHECK)
        try:
            answer = await check(request)
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
    return "" if answer == _SERVING else "the service is not SERVING"
