"""Calls of a trainer: its control port through kubectl port-forward, or at an address that the user names.

A pod's loopback address, which the pods of a local cluster have, is called directly.
"""

import argparse
import asyncio
import ipaddress
import json
import re
import subprocess
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from headroom_cli import picker_pages
from headroom_cli.picker_pages import Kubectl, Object, PickerPageError

T = TypeVar("T")

#: Names of the trainer's ports in its container.
CONTROL_PORT: Final = "grpc-control"
STATUS_PORT: Final = "http-trainer"
_TIMEOUT_S: Final = 120.0
_FORWARD_S: Final = 30.0
_FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
_NO_TRAINER: Final = (
    "no picker of the pool has a trainer: set spec.latencyPredictor.enabled of its EndpointPicker, or name a "
    "trainer by --trainer HOST:PORT"
)


def trainer_pods(pods: Iterable[Object]) -> list[Object]:
    """Return the pods with a trainer, the youngest first. Raises PickerPageError when there is none."""
    found = [pod for pod in pods if picker_pages.port_of(pod, CONTROL_PORT) is not None]
    if not found:
        raise PickerPageError(_NO_TRAINER)
    return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), reverse=True)


@contextmanager
def address_of(given: argparse.Namespace) -> Iterator[str]:
    """Yield HOST:PORT of the trainer that the flags name. Raises PickerPageError."""
    if given.trainer:
        yield given.trainer
        return
    kubectl, pods = picker_pages.pods_of(given, "a trainer by --trainer HOST:PORT")
    pod = trainer_pods(pods)[0]
    port = picker_pages.port_of(pod, CONTROL_PORT)
    address = str(pod["status"].get("podIP", ""))
    if address and ipaddress.ip_address(address).is_loopback:
        yield f"{address}:{port}"
        return
    with _forwarded(kubectl, pod, int(port or 0)) as local:
        yield local


@contextmanager
def _forwarded(kubectl: Kubectl, pod: Object, port: int) -> Iterator[str]:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    arguments = ["port-forward", f"pod/{name}", f":{port}", "-n", namespace, "--address=127.0.0.1"]
    with kubectl.running(*arguments) as process:
        # A kubectl that never says where it forwards is ended, which ends the reading below.
        limit = threading.Timer(_FORWARD_S, process.terminate)
        limit.start()
        try:
            line = process.stdout.readline() if process.stdout is not None else ""
        finally:
            limit.cancel()
        found = _FORWARDING.match(line)
        try:
            if found is None:
                process.terminate()
                complaint = "" if process.stderr is None else process.stderr.read().strip()
                raise PickerPageError(
                    f"pod {namespace}/{name} cannot be reached: {complaint or 'no answer of kubectl'}"
                )
            yield f"127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            try:
                process.wait(_FORWARD_S)
            except subprocess.TimeoutExpired:
                process.kill()


def pull(address: str) -> list[bytes]:
    """Return all that a trainer has learned, as messages. Raises PickerPageError."""
    calls = _calls()

    async def run(channel: Any) -> list[bytes]:
        async with channel.stream(calls.PULL_PATH, timeout=_TIMEOUT_S) as stream:
            stream.end()
            return [each async for each in stream]

    return _call(address, run)


def push(address: str, messages: Iterable[bytes]) -> Object:
    """Give messages of an export to a trainer; return its answer. Raises PickerPageError."""
    calls = _calls()

    async def run(channel: Any) -> Object:
        async with channel.stream(calls.IMPORT_PATH, timeout=_TIMEOUT_S) as stream:
            for message in messages:
                await stream.send(message)
            stream.end()
            answers = [each async for each in stream]
        found: Object = json.loads(answers[0])
        return found

    return _call(address, run)


def status(address: str) -> Object:
    """Return the trainer's status. Raises PickerPageError."""
    calls = _calls()

    async def run(channel: Any) -> Object:
        found: Object = json.loads(await channel.unary(calls.STATUS_PATH, b"", timeout=_TIMEOUT_S))
        return found

    return _call(address, run)


def flush(address: str) -> None:
    """Have a trainer forget its samples. Raises PickerPageError."""
    calls = _calls()

    async def run(channel: Any) -> None:
        await channel.unary(calls.FLUSH_PATH, b"", timeout=_TIMEOUT_S)

    _call(address, run)


def _calls() -> Any:
    """Return the module with the methods' paths. Raises PickerPageError without the extra that it needs."""
    try:
        from latency_predictor.training import service
    except ModuleNotFoundError as missing:
        raise PickerPageError(
            f"this command needs {missing.name}: pip install 'headroom-operator[predictor]'"
        ) from None
    return service


def _call(address: str, run: Callable[[Any], Coroutine[Any, Any, T]]) -> T:
    from latency_contract.errors import ContractError
    from lean_grpc import CallError, Channel

    async def called() -> T:
        async with Channel([address]) as channel:
            return await run(channel)

    try:
        return asyncio.run(called())
    except (CallError, ContractError, OSError, ValueError, IndexError) as error:
        raise PickerPageError(f"the trainer at {address} does not do it: {error}") from None
