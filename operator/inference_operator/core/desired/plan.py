"""All intents for a pool, and the objects of the pool that no intent names. Pure."""

from collections.abc import Sequence

from inference_operator.core.desired import (
    config_maps,
    deployment,
    endpoint_picker,
    proxy,
    role_binding,
    service,
    service_account,
)
from inference_operator.core.desired.intent import Intent
from inference_operator.core.kinds import SERVICE, Object
from inference_operator.core.observation import ChildKey, Observation
from inference_operator.core.ownership import Stance, Verdict


def desired(seen: Observation, verdict: Verdict) -> tuple[Intent, ...]:
    """Return the intents in the order in which to apply them.

    The Service comes first: creating it claims the picker's name. A pool that is unworkable or held gets only
    the EndpointPicker, which carries the reason.
    """
    if verdict.stance not in {Stance.MANAGED, Stance.UNWORKABLE, Stance.HELD} or seen.spec.paused:
        return ()
    picker = endpoint_picker.desired(seen)
    if verdict.stance is not Stance.MANAGED:
        return picker
    return (
        service.desired(seen),
        *picker,
        service_account.desired(seen),
        role_binding.desired(seen),
        *config_maps.desired(seen),
        deployment.desired(seen),
        *proxy.desired(seen),
    )


def superfluous(seen: Observation, verdict: Verdict, intents: Sequence[Intent]) -> dict[ChildKey, Object]:
    """Return Headroom's objects that should be removed.

    Nothing for a pool that is unworkable or held: a mistyped name must not take a running picker down.
    """
    if verdict.stance not in {Stance.MANAGED, Stance.LET_GO} or seen.spec.paused:
        return {}
    wanted = {(intent.kind, intent.name) for intent in intents}
    doomed = {key: body for key, body in seen.children.items() if key not in wanted}
    if verdict.stance is Stance.LET_GO:
        doomed.pop((SERVICE, seen.picker_name), None)
        doomed |= endpoint_picker.superfluous(seen)
    return {key: body for key, body in doomed.items() if not body["metadata"].get("deletionTimestamp")}
