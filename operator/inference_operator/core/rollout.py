"""Judgement of a picker's or proxy's Deployment, from its status and its unready pods. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from inference_api.meta import ConditionStatus
from inference_operator.core import reasons
from inference_operator.core.kinds import Object
from inference_operator.core.naming import APP_LABEL, PROXY_CONTAINER
from inference_operator.core.reasons import Finding, Reason

_PULL_FAILURES: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)
_LOOPS: Final = frozenset(
    {"CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError", "RunContainerError"}
)
_OUT_OF_MEMORY: Final = "OOMKilled"
_DETAIL_LIMIT: Final = 300
#: Least and most seconds until the next pass of a pool with unready picker or proxy pods.
_SOONEST_AGAIN: Final = 3.0
_LATEST_AGAIN: Final = 30.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """Status of a condition, with its reason and message."""

    status: ConditionStatus
    finding: Finding
    generation: int | None = None
    """metadata.generation that it was judged from; None means the newest."""


def why_again(unready_for: float) -> float:
    """Return in how many seconds to run a pass again for a pool with unready picker or proxy pods.

    A held pool's pods may not be watched, and the watch of a managed pool's pods may be down. The interval
    grows with the outage, so that a hundred pools whose image is missing cost next to nothing.
    """
    return min(_LATEST_AGAIN, max(_SOONEST_AGAIN, unready_for / 4))


def judge_deployment(name: str, live: Object | None, pods: Sequence[Object], good: Reason) -> Judgement:
    """Return True when all wanted pods of the newest template are ready, else the likeliest reason."""
    if live is None:
        return Judgement("False", reasons.NOT_CREATED.say(name=name))
    wanted = live.get("spec", {}).get("replicas", 1)
    ready = live.get("status", {}).get("readyReplicas", 0)
    if rolled_out(live):
        return Judgement("True", good.say(ready=ready, wanted=wanted))
    return Judgement("False", _why_not(name, live, pods, ready, wanted))


def rolled_out(live: Object) -> bool:
    """Return whether all wanted pods are of the newest template and ready, and no older pod is left.

    readyReplicas alone is not enough: during a rolling update it also counts pods of the older template.
    """
    status: dict[str, Any] = live.get("status", {})
    wanted = live.get("spec", {}).get("replicas", 1)
    updated = status.get("updatedReplicas", 0)
    return bool(
        status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
        and min(updated, status.get("readyReplicas", 0)) >= wanted
        and status.get("replicas", updated) <= updated
    )


def _why_not(name: str, live: Object, pods: Sequence[Object], ready: int, wanted: int) -> Finding:
    mine = [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(APP_LABEL) == name]
    for pod in mine:
        if finding := _why_pod_not(pod, live):
            return finding
    status: dict[str, Any] = live.get("status", {})
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":
        return reasons.PODS_REFUSED.say(name=name, detail=_short(failure.get("message", "")))
    behind = status.get("observedGeneration", 0) < live["metadata"].get("generation", 0)
    updated = status.get("updatedReplicas", 0)
    if behind or updated < wanted or status.get("replicas", updated) > updated:
        return reasons.PROGRESSING.say(name=name)
    return reasons.PODS_NOT_READY.say(name=name, ready=ready, wanted=wanted)


def _why_pod_not(pod: Object, live: Object) -> Finding | None:
    name = pod["metadata"]["name"]
    status: dict[str, Any] = pod.get("status", {})
    for container in status.get("containerStatuses", ()):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, detail = waiting.get("reason", ""), _short(waiting.get("message", ""))
        if reason in _PULL_FAILURES:
            return reasons.IMAGE_NOT_PULLED.say(
                container=container["name"], pod=name, detail=detail or reason
            )
        if not container.get("ready") and _last_end(container).get("reason") == _OUT_OF_MEMORY:
            return _out_of_memory(name, container["name"], live)
        if reason in _LOOPS:
            return reasons.CRASH_LOOPING.say(
                container=container["name"], pod=name, detail=_last_exit(container) or detail or reason
            )
    for condition in status.get("conditions", ()):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            detail = _short(condition.get("message", "") or condition.get("reason", ""))
            return reasons.UNSCHEDULABLE.say(pod=name, detail=detail)
    return None


def _out_of_memory(pod: str, container: str, live: Object) -> Finding:
    declared = live.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    limits = [each.get("resources", {}).get("limits", {}) for each in declared if each["name"] == container]
    limit = limits[0].get("memory", "") if limits else ""
    return reasons.OUT_OF_MEMORY.say(
        container=container,
        pod=pod,
        limit=f" ({limit})" if limit else "",
        field=".proxy" if container == PROXY_CONTAINER else "",
    )


def _last_end(container: Object) -> Object:
    """Return how the container ended last, now or before its restart; empty if it never has."""
    now = (container.get("state") or {}).get("terminated")
    return now or (container.get("lastState") or {}).get("terminated") or {}


def _last_exit(container: Object) -> str:
    ended = _last_end(container)
    if not ended:
        return ""
    return f"{ended.get('reason', 'ended')}, exit code {ended.get('exitCode', '?')}"


def _short(text: str) -> str:
    return text if len(text) <= _DETAIL_LIMIT else text[: _DETAIL_LIMIT - 1] + "…"
