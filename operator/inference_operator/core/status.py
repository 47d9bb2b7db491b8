"""The report on a pool: its EndpointPicker's status, the pool's annotation, transitions. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from inference_api.endpoint_picker import (
    ACCEPTED,
    CONFIG_ACCEPTED,
    ENDPOINTS_REACHABLE,
    ENDPOINTS_READY,
    PICKER_REACHABLE,
    PICKER_READY,
    PREDICTION_SUPPORTED,
    PREDICTOR_READY,
    READY,
    RESOLVED_REFS,
    EndpointCounts,
    EndpointPickerStatus,
)
from inference_api.meta import Condition, ConditionStatus, api_time, carry_times
from inference_api.names import PROXY_PORT
from inference_operator.core import reasons
from inference_operator.core.configuration import judge_configuration
from inference_operator.core.connections import judge_endpoints, judge_gateways, shuts_out_all
from inference_operator.core.desired import predictor, proxy
from inference_operator.core.desired.config_maps import objectives_not_found, priority_table
from inference_operator.core.desired.intent import Intent
from inference_operator.core.kinds import DEPLOYMENT, EVENT, OBJECTIVES, PICKER, POOL, REWRITES, Kind
from inference_operator.core.naming import SERVICE_NAME_LIMIT, proxy_name
from inference_operator.core.observation import Denied, Failure, Observation
from inference_operator.core.ownership import Stance, Verdict
from inference_operator.core.parents import parents_entry
from inference_operator.core.prediction import judge_predictor, judge_support, status_of
from inference_operator.core.reasons import Finding, Reason
from inference_operator.core.rollout import Judgement, judge_deployment

#: Condition that exists only while the EndpointPicker asks for a proxy.
PROXY_READY: Final = "ProxyReady"

#: Conditions judged from a picker's answer; Unknown does not spoil Ready.
_SAID_BY_PICKER: Final = frozenset({CONFIG_ACCEPTED, ENDPOINTS_REACHABLE, PICKER_REACHABLE})
#: Conditions of what serves without: a picker without predictions picks by the heuristic profile.
_ADVICE: Final = frozenset({PREDICTOR_READY, PREDICTION_SUPPORTED})
#: Reasons that every starting picker has for a while.
_STARTING: Final = frozenset(
    reason.word
    for reason in (reasons.NOT_CREATED, reasons.PROGRESSING, reasons.PODS_NOT_READY, reasons.WARMING_UP)
)
#: Stances in which the pool's picker may be running, so that its conditions are judged.
RUNNING: Final = frozenset({Stance.MANAGED, Stance.HELD})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A condition whose status or reason changed; the reporter writes it as an event."""

    type: str
    finding: Finding
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that is written about a pool."""

    status: EndpointPickerStatus
    summary: Finding
    """Reason and message of the condition Ready; the reason is also the value of the pool's annotation."""
    transitions: tuple[Transition, ...] = ()


def report(
    seen: Observation, verdict: Verdict, failures: Sequence[Failure] = (), intents: Sequence[Intent] = ()
) -> Report:
    """Return the report on a pool after a pass with these intents and failures."""
    judged: dict[str, Judgement] = {
        ACCEPTED: _accepted(seen, verdict),
        RESOLVED_REFS: _resolved(seen, verdict, failures, intents),
    }
    running = verdict.stance in RUNNING
    judged[PICKER_READY] = _rollout(seen, verdict, seen.picker_name, reasons.PICKER_READY)
    if running and proxy.asked(seen):
        judged[PROXY_READY] = _proxy(seen, verdict)
    judged[ENDPOINTS_READY] = _endpoints(seen) if seen.pool is not None else _not_judged()
    judged[ENDPOINTS_REACHABLE] = judge_endpoints(seen) if running else _not_judged()
    judged[PICKER_REACHABLE] = judge_gateways(seen) if running else _not_judged()
    judged[CONFIG_ACCEPTED] = judge_configuration(seen) if running else _not_judged()
    if running and predictor.is_on(seen):
        judged[PREDICTOR_READY] = judge_predictor(seen)
        judged[PREDICTION_SUPPORTED] = judge_support(seen)
    first_bad = next((j for kind, j in judged.items() if _spoils(kind, j, seen)), None)
    judged[READY] = (
        Judgement("True", reasons.READY.say()) if first_bad is None else Judgement("False", first_bad.finding)
    )
    held = _held_status(seen)
    conditions = _conditions(seen, judged)
    kept = carry_times(conditions, held.conditions if held else ())
    return Report(
        status=_status(seen, verdict, kept),
        summary=judged[READY].finding,
        transitions=tuple(_transitions(kept, held.conditions if held else ())),
    )


def _spoils(kind: str, judgement: Judgement, seen: Observation) -> bool:
    """Return whether this judgement keeps Ready from True.

    An Unknown from a picker that gave no answer does not: the picker may serve all the same.
    """
    if kind in _ADVICE:
        return False
    if kind == PICKER_REACHABLE:
        return judgement.status == "False" and shuts_out_all(seen)
    return judgement.status == "False" or (judgement.status == "Unknown" and kind not in _SAID_BY_PICKER)


def _accepted(seen: Observation, verdict: Verdict) -> Judgement:
    if verdict.stance is Stance.MANAGED:
        return Judgement("True", reasons.PAUSED.say() if seen.spec.paused else verdict.finding)
    if verdict.stance is Stance.WAITING:
        return Judgement("Unknown", verdict.finding)
    return Judgement("False", verdict.finding)


def _resolved(
    seen: Observation, verdict: Verdict, failures: Sequence[Failure], intents: Sequence[Intent]
) -> Judgement:
    if verdict.stance not in {Stance.MANAGED, Stance.HELD}:
        return _not_judged()
    if PICKER not in seen.access.served:
        return Judgement("False", reasons.KIND_NOT_INSTALLED.say(kind=PICKER.kind))
    if rights := _rights_missed(seen, intents):
        return Judgement("False", reasons.ACCESS_DENIED.say(rights=", ".join(rights)))
    if failures:
        return Judgement("False", failures[0].finding)
    if missing := objectives_not_found(seen):
        return Judgement("False", reasons.OBJECTIVES_NOT_FOUND.say(names=", ".join(missing[:8])))
    if not any(kind in seen.access.served for kind in OBJECTIVES):
        return Judgement("True", reasons.NO_OBJECTIVES.say())
    if seen.ignored_objectives and seen.access.ignored and seen.access.objectives:
        ignored = reasons.IGNORED_OBJECTIVES.say(
            count=seen.ignored_objectives,
            group=seen.access.ignored.group,
            used=seen.access.objectives.group,
        )
        return Judgement("True", ignored)
    if absent := [intent for intent in intents if seen.access.lacks(intent.kind)]:
        left_out = reasons.OPTIONAL_NOT_INSTALLED.say(
            children=", ".join(f"{intent.kind.kind} {intent.name}" for intent in absent),
            kinds=", ".join(sorted({intent.kind.resource for intent in absent})),
        )
        return Judgement("True", left_out)
    return Judgement("True", reasons.RESOLVED_REFS.say())


def _rights_missed(seen: Observation, intents: Sequence[Intent]) -> list[str]:
    """Return the missing rights that this pool needs, sorted."""
    wanted = frozenset(intent.kind for intent in intents)
    return sorted({each.right for each in seen.access.lacking if _needs(seen, each, wanted)})


def _needs(seen: Observation, right: Denied, wanted: frozenset[Kind]) -> bool:
    if right.kind in REWRITES:
        return bool(seen.rewrites) or not right.subresource
    if right.kind.optional and right.kind not in wanted:
        return False
    if right.kind is EVENT:
        return False  # without this right only events are lost
    if right.verb == "delete":
        return False  # a refused removal is reported as ApplyFailed
    if right.kind is POOL and right.subresource:
        return proxy.asked(seen) or parents_entry(seen) is not None
    if right.kind in OBJECTIVES and right.subresource:
        return bool(seen.objectives)
    return not (seen.spec.paused and right.verb in {"create", "patch"} and not right.subresource)


def _rollout(seen: Observation, verdict: Verdict, name: str, good: Reason) -> Judgement:
    if verdict.stance not in RUNNING:
        return _not_judged()
    return judge_deployment(name, seen.child(DEPLOYMENT, name), seen.picker_pods, good)


def _proxy(seen: Observation, verdict: Verdict) -> Judgement:
    name = proxy_name(seen.picker_name)
    if not proxy.nameable(seen):
        return Judgement("False", reasons.INVALID_PROXY_NAME.say(name=name, limit=SERVICE_NAME_LIMIT))
    return _rollout(seen, verdict, name, reasons.PROXY_READY)


def _endpoints(seen: Observation) -> Judgement:
    count = seen.endpoints
    selector = ",".join(f"{k}={v}" for k, v in sorted(seen.present.spec.selector.match_labels.items()))
    if count.total == 0:
        return Judgement("False", reasons.NO_ENDPOINTS.say(selector=selector))
    if count.ready == 0:
        return Judgement("False", reasons.ENDPOINTS_NOT_READY.say(total=count.total, selector=selector))
    return Judgement("True", reasons.ENDPOINTS_READY.say(ready=count.ready, total=count.total))


def _not_judged() -> Judgement:
    return Judgement("Unknown", reasons.NOT_JUDGED.say())


def _held_status(seen: Observation) -> EndpointPickerStatus | None:
    return seen.held_status


def _generation(seen: Observation) -> int | None:
    return None if seen.picker_object is None else seen.picker_object["metadata"].get("generation", 0)


def _conditions(seen: Observation, judged: dict[str, Judgement]) -> list[Condition]:
    return [
        Condition(
            type=kind,
            status=judgement.status,
            reason=judgement.finding.reason,
            message=judgement.finding.message,
            last_transition_time=api_time(seen.now),
            observed_generation=(_generation(seen) if judgement.generation is None else judgement.generation),
        )
        for kind, judgement in judged.items()
    ]


def _status(seen: Observation, verdict: Verdict, conditions: tuple[Condition, ...]) -> EndpointPickerStatus:
    running = verdict.stance in RUNNING
    deployment = seen.child(DEPLOYMENT, seen.picker_name)
    ready_replicas = None if deployment is None else deployment.get("status", {}).get("readyReplicas", 0)
    proxied = running and proxy.asked(seen) and proxy.nameable(seen)
    return EndpointPickerStatus(
        conditions=conditions,
        observed_generation=_generation(seen),
        observed_pool_generation=(
            None if seen.pool_object is None else seen.pool_metadata.get("generation", 0)
        ),
        ready_replicas=ready_replicas if running else None,
        endpoints=(
            None
            if seen.pool is None
            else EndpointCounts(ready=seen.endpoints.ready, total=seen.endpoints.total)
        ),
        priorities=len(priority_table(seen).objectives) if running else None,
        proxy_address=(
            f"{proxy_name(seen.picker_name)}.{seen.namespace}.svc:{PROXY_PORT}" if proxied else None
        ),
        latency_predictor=status_of(seen) if running else None,
    )


def _transitions(now: Iterable[Condition], before: Iterable[Condition]) -> Iterable[Transition]:
    """Yield the conditions whose status or reason changed.

    Three changes are left out: to Unknown; Ready to False, since another condition has the same reason; and
    to a reason of a picker that starts, unless the condition was True before.
    """
    held: dict[str, tuple[ConditionStatus, str]] = {c.type: (c.status, c.reason) for c in before}
    for condition in now:
        was, why = held.get(condition.type, ("Unknown", ""))
        if condition.status == "Unknown" or (was, why) == (condition.status, condition.reason):
            continue
        if condition.status == "False" and (
            condition.type == READY or (condition.reason in _STARTING and was != "True")
        ):
            continue
        yield Transition(
            type=condition.type,
            finding=Finding(condition.reason, condition.message),
            good=condition.status == "True",
        )


def unready_for(seen: Observation) -> float:
    """Return the seconds since PickerReady or ProxyReady last turned False; 0 when neither is False."""
    held = _held_status(seen)
    since = [
        condition.last_transition_time
        for condition in (held.conditions if held else ())
        if condition.type in {PICKER_READY, PROXY_READY} and condition.status == "False"
    ]
    return max(0.0, (seen.now - max(since)).total_seconds()) if since else 0.0


def has_picker_to_tell(seen: Observation) -> bool:
    """Return whether there is an EndpointPicker whose status can be written."""
    return seen.picker_object is not None and PICKER in seen.access.served
