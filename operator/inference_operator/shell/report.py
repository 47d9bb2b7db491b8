"""Writing a report: EndpointPicker status, the pool's annotation, events, objectives; on change only."""

import logging
from asyncio import gather
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from inference_api.endpoint_picker import ACCEPTED
from inference_api.inference_model_rewrite import InferenceModelRewrite
from inference_api.inference_objective import InferenceObjective
from inference_api.meta import Condition, api_time, carry_times
from inference_api.names import PICKER_ANNOTATION
from inference_operator.core import reasons
from inference_operator.core.cache import Cache
from inference_operator.core.desired.config_maps import has_written_priorities
from inference_operator.core.drift import drift, owned_fields
from inference_operator.core.kinds import EVENT, PICKER, POOL, Kind, Object
from inference_operator.core.naming import FIELD_MANAGER, REPORT_MANAGER
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import Stance, Verdict
from inference_operator.core.reasons import Finding
from inference_operator.core.rewrites import hidden_names, is_partly_weighted
from inference_operator.core.status import Report, has_picker_to_tell
from inference_operator.shell.api import Api, ApiError

log = logging.getLogger(__name__)

#: Events remembered so that a repeated one is counted instead of made again.
_EVENT_MEMORY: Final = 1024
_EVENT_MESSAGE_LIMIT: Final = 1000
#: What has a condition of its own.
Told = InferenceObjective | InferenceModelRewrite
#: Models that a message names, at most.
_MOST_NAMED: Final = 5
#: Objectives whose status is written at the same time.
_AT_ONCE: Final = 16


class Reporter:
    """Writes a `status.Report` to the API server."""

    __slots__ = ("_api", "_cache", "_events")

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._events: OrderedDict[str, int] = OrderedDict()

    async def tell(self, seen: Observation, verdict: Verdict, report: Report, healed: list[Finding]) -> None:
        """Write status, annotation and events that changed. Logs a refusal; raises ApiUnavailable."""
        await self._guard(seen, "status", self._tell_picker(seen, report))
        await self._guard(seen, "annotation", self._tell_pool(seen, verdict, report))
        for finding in healed:
            await self._event(seen, finding, good=True)

    async def tell_objectives(self, seen: Observation, verdict: Verdict, woken: Callable[[], bool]) -> None:
        """Write the conditions of objectives and rewrites, _AT_ONCE at a time, until `woken` returns True.

        There may be thousands: a pass for a new priority must not wait for all these writes. Writes nothing
        while the ConfigMap lacks the present priorities, as while paused or after a refusal: Accepted would
        be false.
        """
        if verdict.stance is Stance.MANAGED and not has_written_priorities(seen):
            return
        due = [
            (kind, body)
            for kind, told in (
                (seen.access.objectives, seen.objectives),
                (seen.access.rewrites, seen.rewrites),
            )
            if kind is not None
            for each in told
            if (body := self._due_status(seen, verdict, kind, each))
        ]
        for start in range(0, len(due), _AT_ONCE):
            writes = (self._write_status(kind, body) for kind, body in due[start : start + _AT_ONCE])
            await gather(*(self._guard(seen, "condition", write) for write in writes))
            if woken():
                return

    async def _guard(self, seen: Observation, what: str, work: Any) -> None:
        try:
            await work
        except ApiError as error:
            if (
                error.status not in {404, 409} and not error.namespace_terminating
            ):  # deleted or changed meanwhile: its event starts another pass
                log.warning("%s not written: %s", what, error.message, extra={"pool": "/".join(seen.key)})

    async def _tell_picker(self, seen: Observation, report: Report) -> None:
        if not has_picker_to_tell(seen) or seen.picker_object is None:
            return
        body = {
            "apiVersion": PICKER.api_version,
            "kind": PICKER.kind,
            "metadata": {"name": seen.pool_name, "namespace": seen.namespace},
            "status": report.status.to_json(),
        }
        if drift(body, seen.picker_object, FIELD_MANAGER, "status") is None:
            return
        written = await self._api.apply(PICKER, body, FIELD_MANAGER, force=True, subresource="status")
        self._cache.put(PICKER, written)
        for transition in report.transitions:
            await self._event(seen, transition.finding, good=transition.good)

    async def _tell_pool(self, seen: Observation, verdict: Verdict, report: Report) -> None:
        if verdict.stance is Stance.WAITING or seen.pool_object is None:
            return
        word, held = (
            report.summary.reason,
            (seen.pool_metadata.get("annotations") or {}).get(PICKER_ANNOTATION),
        )
        if word == held:
            return
        # A pool without the annotation was never managed and stays as it is. On one with it, the earlier
        # reason is replaced by NotManaged.
        if verdict.stance is Stance.HANDS_OFF and (held is None or word != reasons.NOT_MANAGED.word):
            return
        body = {
            "apiVersion": POOL.api_version,
            "kind": POOL.kind,
            # With a uid, an apply fails instead of creating a pool that has just been deleted.
            "metadata": {
                "name": seen.pool_name,
                "namespace": seen.namespace,
                "uid": seen.pool_uid,
                "annotations": {PICKER_ANNOTATION: word},
            },
        }
        # Only Headroom writes this annotation, so force overwrites another manager's value.
        written = await self._api.apply(POOL, body, REPORT_MANAGER, force=True)
        self._cache.put(POOL, written)
        if seen.picker_object is None:
            await self._event(seen, report.summary, good=word == reasons.READY.word)

    def _due_status(self, seen: Observation, verdict: Verdict, kind: Kind, objective: Told) -> Object | None:
        """Return the status to apply to the objective or rewrite; None when it has it already."""
        live = self._cache.get(kind, seen.namespace, objective.metadata.name)
        if live is None or not _speaks(seen, verdict, live):
            return None
        held = objective.status.conditions if objective.status else ()
        condition = carry_times((_objective_condition(seen, verdict, objective),), held)[0]
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": objective.metadata.name, "namespace": seen.namespace},
            "status": {"conditions": [condition.to_json()]},
        }
        return None if drift(body, live, FIELD_MANAGER, "status") is None else body

    async def _write_status(self, kind: Kind, body: Object) -> None:
        written = await self._api.apply(kind, body, FIELD_MANAGER, force=False, subresource="status")
        self._cache.put(kind, written)

    async def _event(self, seen: Observation, finding: Finding, *, good: bool) -> None:
        about, kind = (
            (seen.pool_object, POOL) if seen.pool_object is not None else (seen.picker_object, PICKER)
        )
        if about is None:
            return
        metadata = about["metadata"]
        mark = sha256("\0".join((metadata["uid"], finding.reason, finding.message)).encode()).hexdigest()[:16]
        name = f"{metadata['name'][:200]}.{mark}"
        now = api_time(datetime.now(UTC)).isoformat().replace("+00:00", "Z")
        count = self._events.get(name, 0) + 1
        try:
            if count > 1 and not await self._count_event(seen, name, count, now):
                count = 1
            if count == 1:
                body = _event_body(seen, about, name, finding, now, good)
                await self._api.create(EVENT, body, FIELD_MANAGER)
        except ApiError as error:
            if error.namespace_terminating:
                return
            if not (error.status == 409 and error.reason == "AlreadyExists"):
                log.warning("event not written: %s", error.message, extra={"pool": "/".join(seen.key)})
                return
        log.info(
            "%s",
            finding.message,
            extra={"pool": "/".join(seen.key), "reason": finding.reason, "about": kind.kind},
        )
        self._remember(name, count)

    async def _count_event(self, seen: Observation, name: str, count: int, now: str) -> bool:
        """Raise the count of an event; return False when the API server has expired it."""
        try:
            await self._api.merge(EVENT, seen.namespace, name, {"count": count, "lastTimestamp": now})
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _remember(self, name: str, count: int) -> None:
        self._events[name] = count
        self._events.move_to_end(name)
        while len(self._events) > _EVENT_MEMORY:
            self._events.popitem(last=False)


def _speaks(seen: Observation, verdict: Verdict, objective: Object) -> bool:
    """Return whether the operator writes the objective's status: not where another picker may serve its pool.

    For a pool that was let go, only a status that the operator wrote before is kept up to date.
    """
    if verdict.stance in {Stance.MANAGED, Stance.UNWORKABLE, Stance.HELD}:
        return True
    if seen.pool_object is None:  # or the operator cannot read pools: then write nothing
        return verdict.finding.reason == reasons.POOL_NOT_FOUND.word
    return verdict.stance is Stance.LET_GO and bool(owned_fields(objective, FIELD_MANAGER, "status"))


def _accepted(seen: Observation, objective: Told) -> Finding:
    """Return what the picker makes of the object."""
    if isinstance(objective, InferenceObjective):
        priority = (objective.spec.priority or 0) if objective.spec else 0
        return reasons.OBJECTIVE_ACCEPTED.say(pool=seen.pool_name, priority=priority)
    if is_partly_weighted(objective):
        return reasons.REWRITE_PARTLY_WEIGHTED.say(pool=seen.pool_name)
    if hidden := hidden_names(objective, seen.rewrites):
        return reasons.REWRITE_HIDDEN.say(pool=seen.pool_name, models=", ".join(hidden[:_MOST_NAMED]))
    return reasons.REWRITE_ACCEPTED.say(pool=seen.pool_name)


def _objective_condition(seen: Observation, verdict: Verdict, objective: Told) -> Condition:
    if verdict.stance is Stance.MANAGED:
        finding = _accepted(seen, objective)
    elif seen.pool_object is None:
        finding = reasons.OBJECTIVE_POOL_NOT_FOUND.say(pool=seen.pool_name)
    else:
        finding = reasons.OBJECTIVE_POOL_NOT_MANAGED.say(pool=seen.pool_name, reason=verdict.finding.reason)
    return Condition(
        type=ACCEPTED,
        status="True" if verdict.stance is Stance.MANAGED else "False",
        reason=finding.reason,
        message=finding.message,
        last_transition_time=api_time(seen.now),
        observed_generation=objective.metadata.generation,
    )


def _event_body(
    seen: Observation, about: Object, name: str, finding: Finding, now: str, good: bool
) -> Object:
    metadata = about["metadata"]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {"name": name, "namespace": seen.namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": metadata["name"],
            "namespace": seen.namespace,
            "uid": metadata["uid"],
        },
        "reason": finding.reason,
        "message": finding.message[:_EVENT_MESSAGE_LIMIT],
        "type": "Normal" if good else "Warning",
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
