"""The product's promises, each as a function that causes the situation, awaits the result and measures it.

The demo runs them with CHECK=1 and compares the figures with their goals; the end-to-end tests run the same
functions with generous limits. A broken promise raises DemoError with what was observed.
"""

import json
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headroom_cli.demo.api import wait_for
from headroom_cli.demo.failure import DemoError
from headroom_cli.demo.load import Load, Once
from headroom_cli.demo.stage import OPERATOR_USER, Measurement, Stage, finalizers, is_ready, uid
from inference_api import names
from inference_api.inference_pool import FAIL_CLOSE
from model_server_sim.client import InferenceClient, Result

LIMIT_S = 90.0
"""How long a scenario waits for anything: far beyond every goal, so that a slow machine is not a failure."""
IN_FLIGHT = 16
ENVOY_WORKERS = 2
"""Worker threads of the proxy: `--concurrency` in its Deployment."""
QUIET_TRIES = 3
"""Attempts to see two passes during which no condition changes."""
LOSS_TRIES = 3
"""Losses of the picker that must all cost too much before the promise counts as broken."""
GRACE_AFTER_LOSS_S = 1.0
"""Requests sent later than this after the picker's loss must be served."""


def heal_service(stage: Stage) -> list[Measurement]:
    """Delete the picker's Service: the operator creates it again."""
    path = stage.path("Service", stage.picker())
    before = uid(stage.api.get(path))
    stage.api.delete(path)
    _, seconds = wait_for(
        "the Service to come back", lambda: uid(stage.api.get(path)) not in ("", before), limit_s=LIMIT_S
    )
    return [Measurement("heal_service", seconds, "s", 5)]


def heal_arguments(stage: Stage) -> list[Measurement]:
    """Edit the picker's arguments: the operator restores them."""
    path = stage.path("Deployment", stage.picker())

    def arguments() -> list[str]:
        found = stage.api.get(path) or {}
        return list(found["spec"]["template"]["spec"]["containers"][0]["args"])

    before = arguments()
    edit = {"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--log-level=debug"}
    stage.api.patch_json(path, [edit])
    _, seconds = wait_for("the arguments to be restored", lambda: arguments() == before, limit_s=LIMIT_S)
    stage.await_condition("Ready", "True", limit_s=LIMIT_S)
    return [Measurement("heal_arguments", seconds, "s", 5)]


def heal_config_map(stage: Stage) -> list[Measurement]:
    """Delete the picker's ConfigMap: the operator creates it again with the same content."""
    path = stage.path("ConfigMap", f"{stage.picker()}-config")
    before = stage.api.get(path)
    stage.api.delete(path)

    def healed() -> bool:
        found = stage.api.get(path)
        return found is not None and uid(found) != uid(before) and found["data"] == (before or {})["data"]

    _, seconds = wait_for("the ConfigMap to come back", healed, limit_s=LIMIT_S)
    return [Measurement("heal_config_map", seconds, "s", 5)]


def silence(stage: Stage) -> list[Measurement]:
    """Once all is healed, two full passes of the operator write nothing."""
    for _ in range(QUIET_TRIES):
        settle(stage)
        # The pass that wrote Ready goes on to the pool's annotation and to events: let it end.
        _await_passes(stage, 1)
        before = _transitions(stage)
        _await_passes(stage, 2)
        writes = stage.audit.writes(OPERATOR_USER)
        if not writes:
            return [Measurement("writes_of_a_no_op_pass", 0, "writes", 0)]
        if _transitions(stage) == before:
            raise DemoError(f"a pass without drift wrote {len(writes)} times, first: {writes[0]}")
        # A condition changed meanwhile, so the writes had a cause: try again.
    raise DemoError(f"the pool's conditions changed during each of {QUIET_TRIES} tries")


def _await_passes(stage: Stage, count: int) -> None:
    """Mark the audit log and wait until the operator has listed the pools that many times."""
    stage.audit.mark()
    wait_for(
        f"{count} full passes of the operator", lambda: _passes(stage) >= count, limit_s=LIMIT_S, every_s=0.5
    )


def _passes(stage: Stage) -> int:
    """Return how often the operator has listed the pools since the audit log was marked."""
    calls = stage.audit.calls(OPERATOR_USER)
    return sum(call.verb == "list" and call.resource == "inferencepools" for call in calls)


def _transitions(stage: Stage) -> dict[str, str]:
    """Return when each condition of the EndpointPicker last changed."""
    picker = stage.api.get(stage.path("EndpointPicker", stage.pool)) or {}
    conditions = (picker.get("status") or {}).get("conditions") or []
    return {str(entry["type"]): str(entry["lastTransitionTime"]) for entry in conditions}


def picker_killed(stage: Stage) -> list[Measurement]:
    """SIGKILL of the picker under load fails at most the requests in flight and one per Envoy worker."""
    return _picker_lost(stage, "picker_killed", signal.SIGKILL)


def picker_frozen(stage: Stage) -> list[Measurement]:
    """SIGSTOP of the picker under load: the same bound; its probe restarts it."""
    return _picker_lost(stage, "picker_frozen", signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class Loss:
    """The cost of one loss of the picker."""

    failed: int
    """Requests that failed."""
    late: int
    """Failed requests that were sent more than GRACE_AFTER_LOSS_S after the loss."""
    down_s: float
    """From the loss to PickerReady False."""
    back_s: float
    """From the loss to PickerReady True again."""

    @property
    def kept(self) -> bool:
        """Return whether the promise was kept."""
        return self.failed <= IN_FLIGHT + ENVOY_WORKERS and not self.late


def _picker_lost(stage: Stage, name: str, how: signal.Signals) -> list[Measurement]:
    """Lose the picker, again if that failed too many requests: a starved Envoy may notice a loss late."""
    losses: list[Loss] = []
    while not losses or (not losses[-1].kept and len(losses) < LOSS_TRIES):
        losses.append(lose_picker(stage, how))
    last = losses[-1]
    if not last.kept:
        raise DemoError(
            f"of each {len(losses)} losses, {[loss.failed for loss in losses]} requests failed (at most "
            f"{IN_FLIGHT + ENVOY_WORKERS} may), {[loss.late for loss in losses]} of them sent "
            f"{GRACE_AFTER_LOSS_S} s after the loss (none may)"
        )
    return [
        Measurement(f"{name}_failed_requests", last.failed, "requests", IN_FLIGHT + ENVOY_WORKERS),
        Measurement(f"{name}_tries", len(losses), "tries"),
        Measurement(f"{name}_condition_false", last.down_s, "s"),
        Measurement(f"{name}_condition_back", last.back_s, "s"),
    ]


def lose_picker(stage: Stage, how: signal.Signals) -> Loss:
    """Send the picker a signal under load, wait until it is ready again, and return the cost."""
    settle(stage)
    pod = stage.picker_pod()["metadata"]["name"]
    with Load(stage.proxy_url(), in_flight=IN_FLIGHT) as load:
        load.await_served(4 * IN_FLIGHT)
        processes = stage.cluster.container_pids(stage.namespace, pod, "epp")
        if not processes:
            raise DemoError(f"container epp of pod {pod} has no process")
        os.kill(processes[0], how)
        lost_at = time.monotonic()
        reason, down = stage.await_condition("PickerReady", "False", limit_s=LIMIT_S)
        if not reason:
            raise DemoError("the condition PickerReady went False without a reason")
        stage.await_condition("PickerReady", "True", limit_s=2 * LIMIT_S)
        back_at = time.monotonic()
        load.await_served(4 * IN_FLIGHT)
        failed = [entry for entry in load.stop() if not entry.ok]
    late = sum(entry.start > lost_at + GRACE_AFTER_LOSS_S for entry in failed)
    return Loss(failed=len(failed), late=late, down_s=down, back_s=back_at - lost_at)


def picker_restarted(stage: Stage) -> list[Measurement]:
    """Restart the picker's Deployment under load, with failureMode FailClose: no request fails."""
    with _failure_mode(stage, FAIL_CLOSE):
        before = stage.picker_pod()["metadata"]["name"]
        with Load(stage.proxy_url(), in_flight=IN_FLIGHT) as load:
            load.await_served(4 * IN_FLIGHT)
            stage.kubectl("rollout", "restart", "-n", stage.namespace, f"deployment/{stage.picker()}")

            def replaced() -> bool:
                pods = stage.pods(f"app={stage.picker()}")
                return [is_ready(pod) for pod in pods] == [True] and pods[0]["metadata"]["name"] != before

            _, seconds = wait_for("the old picker to be gone", replaced, limit_s=2 * LIMIT_S)
            load.await_served(4 * IN_FLIGHT)
            sent = load.stop()
        _none_failed(sent)
    return [
        Measurement("picker_restarted_failed_requests", 0, "requests", 0),
        Measurement("picker_restarted_requests", len(sent), "requests"),
        Measurement("picker_restarted_old_gone", seconds, "s"),
    ]


@contextmanager
def _failure_mode(stage: Stage, mode: str) -> Iterator[None]:
    """Set the pool's failureMode, await its proxy's roll-out, and restore the mode afterwards."""
    before = str(stage.pool_object()["spec"]["endpointPickerRef"]["failureMode"])
    _set_failure_mode(stage, mode)
    try:
        yield
    finally:
        _set_failure_mode(stage, before)


def _set_failure_mode(stage: Stage, mode: str) -> None:
    settle(stage)
    if stage.pool_object()["spec"]["endpointPickerRef"]["failureMode"] == mode:
        return
    proxy = stage.path("Deployment", f"{stage.picker()}-proxy")

    def generation() -> int:
        return int((stage.api.get(proxy) or {})["metadata"]["generation"])

    held = generation()
    stage.api.patch(stage.pool_path(), {"spec": {"endpointPickerRef": {"failureMode": mode}}})
    wait_for("the proxy to follow the failureMode", lambda: generation() > held, limit_s=LIMIT_S)
    settle(stage)


def scale(stage: Stage) -> list[Measurement]:
    """Scale the model servers 3 -> 5 -> 1 under load: requests follow within 2 s and none fails."""
    settle(stage)
    deployment = stage.path("Deployment", _server_deployment(stage))
    with Load(stage.proxy_url(), in_flight=IN_FLIGHT) as load:
        load.await_served(4 * IN_FLIGHT)
        first = {pod["metadata"]["name"] for pod in stage.servers()}
        stage.api.patch(deployment, {"spec": {"replicas": 5}})
        ready_at = _await_ready(stage, 5)
        newcomers = [name for name in ready_at if name not in first]
        wait_for(
            "a request on every new server",
            lambda: load.served_by().keys() >= set(newcomers),
            limit_s=LIMIT_S,
        )
        reached = max(load.served_by()[name] - ready_at[name] for name in newcomers)
        stage.api.patch(deployment, {"spec": {"replicas": 1}})
        leaving_at = time.monotonic()
        _, _ = wait_for("four servers to go", lambda: len(stage.servers()) == 1, limit_s=LIMIT_S)
        left = {pod["metadata"]["name"] for pod in stage.servers()}
        load.await_served(4 * IN_FLIGHT)
        sent = load.stop()
    stage.api.patch(deployment, {"spec": {"replicas": 3}})
    _await_ready(stage, 3)
    _none_failed(sent)
    stray = [
        entry.start - leaving_at for entry in sent if entry.served_by not in left and entry.start > leaving_at
    ]
    return [
        Measurement("scale_up_followed", max(0.0, reached), "s", 2),
        Measurement("scale_down_followed", max(stray, default=0.0), "s", 2),
        Measurement("scale_failed_requests", 0, "requests", 0),
    ]


def bodies_intact(stage: Stage) -> list[Measurement]:
    """200 concurrent streaming requests: every byte intact both ways, the ledger back to zero."""
    settle(stage)
    with Load(stage.proxy_url(), in_flight=200, large=True) as load:
        load.await_served(400)
        sent = load.stop()
    _none_failed(sent)
    url = stage.picker_pod()["status"]["podIP"]
    _, seconds = wait_for("the ledger to return to zero", lambda: in_flight(url) == 0, limit_s=LIMIT_S)
    return [
        Measurement("concurrent_streams_bodies_checked", len(sent), "requests"),
        Measurement("ledger_back_to_zero", seconds, "s"),
    ]


def delete_pool(stage: Stage) -> list[Measurement]:
    """Delete the pool: all its children go, and neither it nor they have a finalizer."""
    children = [found for _, found in stage.children()]
    if not children:
        raise DemoError("the pool has no children to begin with")
    held = finalizers([*children, stage.pool_object()])
    if held:
        raise DemoError(f"finalizers: {', '.join(held)}")
    stage.kubectl("delete", "-n", stage.namespace, "inferencepools", stage.pool, "--wait=true")

    def all_gone() -> bool:
        kept = [(kind, found) for kind, found in stage.children() if not _users_own(kind, found["metadata"])]
        return not kept

    _, seconds = wait_for("all children to go", all_gone, limit_s=LIMIT_S)
    return [Measurement("children_gone", seconds, "s")]


def _users_own(kind: str, metadata: dict[str, object]) -> bool:
    """Return whether it is an EndpointPicker of the user: such a one has no owner and outlives its pool."""
    return kind == "EndpointPicker" and not metadata.get("ownerReferences")


def settle(stage: Stage) -> None:
    """Wait until the pool is Ready, its Deployments are rolled out and all its servers are ready."""
    stage.await_condition("Ready", "True", limit_s=2 * LIMIT_S)
    picker = stage.picker()
    paths = [
        stage.path("Deployment", name) for name in (picker, f"{picker}-proxy", _server_deployment(stage))
    ]

    def rolled_out() -> bool:
        return all(map(_is_rolled_out, map(stage.api.get, paths)))

    wait_for("all roll-outs to be complete", rolled_out, limit_s=2 * LIMIT_S, every_s=0.2)
    stage.await_condition("Ready", "True", limit_s=2 * LIMIT_S)


def _is_rolled_out(deployment: Mapping[str, Any] | None) -> bool:
    if deployment is None:
        return True
    status, wanted = deployment.get("status") or {}, deployment["spec"]["replicas"]
    counts = {int(status.get(name, 0)) for name in ("replicas", "readyReplicas", "updatedReplicas")}
    return bool(
        status.get("observedGeneration") == deployment["metadata"]["generation"] and counts == {wanted}
    )


def _server_deployment(stage: Stage) -> str:
    """Return the name of the Deployment behind the pool's servers."""
    replica_set = stage.servers()[0]["metadata"]["ownerReferences"][0]["name"]
    return str(replica_set).rsplit("-", 1)[0]


def _await_ready(stage: Stage, count: int) -> dict[str, float]:
    """Wait for that many ready servers; return when each was first seen ready."""
    seen: dict[str, float] = {}

    def all_ready() -> bool:
        for pod in stage.servers():
            if is_ready(pod):
                seen.setdefault(pod["metadata"]["name"], time.monotonic())
        return sum(map(is_ready, stage.servers())) == count

    wait_for(f"{count} ready servers", all_ready, limit_s=LIMIT_S)
    return seen


def _none_failed(sent: list[Result]) -> None:
    failed = [entry for entry in sent if not entry.ok]
    if failed:
        raise DemoError(f"{len(failed)} of {len(sent)} requests failed, first: {failed[0]}")


def in_flight(picker_address: str) -> int:
    """Return the requests that the picker's ledger holds, from its debug page."""
    return int(picker_page(picker_address, "/debug/state")["router"]["inFlight"])


def picker_page(picker_address: str, path: str) -> dict[str, Any]:
    """Return a JSON page of the picker's HTTP port. Raises DemoError when it does not answer."""
    url = f"http://{picker_address}:{names.METRICS_PORT}{path}"
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return dict(json.load(response))
    except OSError as error:
        raise DemoError(f"the picker's {path} does not answer: {error}") from error


def one_request(stage: Stage) -> Result | None:
    """Send one request through the proxy; None while it is not served."""

    def ask(client: InferenceClient) -> Coroutine[Any, Any, Result]:
        return client.models()

    result = Once(stage.proxy_url())(ask)
    return result if result.ok else None


Scenario = Callable[[Stage], list[Measurement]]
