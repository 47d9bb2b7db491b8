"""Headroom's entry in a pool's status.parents, for its standalone proxy; other entries stay. Pure.

The list is atomic and gateways write it too. So the operator reads it, changes its own entry and writes the
whole list back.
"""

from typing import Any, Final

from pydantic import ValidationError

from inference_api.endpoint_picker import ACCEPTED, RESOLVED_REFS
from inference_api.meta import Condition, api_time, carry_times
from inference_operator.core import reasons
from inference_operator.core.desired import proxy
from inference_operator.core.kinds import SERVICE
from inference_operator.core.naming import CONTROLLER_NAME, proxy_name
from inference_operator.core.observation import Observation
from inference_operator.core.ownership import Stance, Verdict

#: The most entries that the CRD admits.
_LIMIT: Final = 32


def wanted_parents(seen: Observation, verdict: Verdict) -> list[Any] | None:
    """Return the list to write; None when nothing has to change, or no entry fits in."""
    held = list((seen.pool_object or {}).get("status", {}).get("parents") or ())
    others = [entry for entry in held if entry.get("controllerName") != CONTROLLER_NAME]
    mine = [entry for entry in held if entry.get("controllerName") == CONTROLLER_NAME]
    if verdict.stance not in {Stance.MANAGED, Stance.LET_GO}:
        return None
    proxied = verdict.stance is Stance.MANAGED and bool(proxy.desired(seen))
    if not proxied:
        return others if mine else None
    if len(others) >= _LIMIT:
        return None
    entry = _entry(seen, mine[0] if mine else {})
    if mine == [entry]:
        return None
    # Headroom's entry keeps its position, so that the order of the other entries never changes.
    position = held.index(mine[0]) if mine else len(others)
    before = [e for e in held[:position] if e.get("controllerName") != CONTROLLER_NAME]
    return [*before, entry, *others[len(before) :]]


def _entry(seen: Observation, held: dict[str, Any]) -> dict[str, Any]:
    pool = seen.present
    findings = {
        ACCEPTED: reasons.PROXY_ACCEPTS,
        RESOLVED_REFS: reasons.PROXY_RESOLVES,
    }
    fresh = [
        Condition(
            type=kind,
            status="True",
            reason=reason.word,
            message=reason.say(service=seen.picker_name).message,
            last_transition_time=api_time(seen.now),
            observed_generation=pool.metadata.generation,
        )
        for kind, reason in findings.items()
    ]
    before = [found for condition in held.get("conditions", ()) if (found := _condition(condition))]
    return {
        "controllerName": CONTROLLER_NAME,
        "parentRef": {
            "group": SERVICE.group,
            "kind": SERVICE.kind,
            "name": proxy_name(seen.picker_name),
            "namespace": seen.namespace,
        },
        "conditions": [condition.to_json() for condition in carry_times(fresh, before)],
    }


def parents_entry(seen: Observation) -> dict[str, Any] | None:
    """Return Headroom's entry in the pool's status; None when there is none."""
    held = (seen.pool_object or {}).get("status", {}).get("parents") or ()
    return next((entry for entry in held if entry.get("controllerName") == CONTROLLER_NAME), None)


def _condition(held: dict[str, Any]) -> Condition | None:
    """Return the condition; None when its type refuses it, so that it is written anew."""
    try:
        return Condition.model_validate(held)
    except ValidationError:
        return None
