"""The EndpointPicker that the operator makes for a pool without one. Pure."""

from inference_api import names
from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.kinds import PICKER, Object
from inference_operator.core.naming import child_metadata
from inference_operator.core.observation import ChildKey, Observation
from inference_operator.core.ownership import ours, users_own


def desired(seen: Observation) -> tuple[Intent, ...]:
    """Return the EndpointPicker, named like the pool, without a spec; nothing for a user's own.

    Where a user has applied one over the operator's, the intent has no labels, annotations and
    ownerReferences. Applying it removes the operator's, so that the object is the user's and outlives the
    pool.
    """
    if PICKER not in seen.access.served:
        return ()
    live = seen.picker_object
    if live is not None and users_own(live, seen.pool_name, seen.pool_uid):
        if not ours(live, seen.pool_name, seen.pool_uid):
            return ()
        return (intent(PICKER, {"name": seen.pool_name, "namespace": seen.namespace}),)
    metadata = child_metadata(seen, seen.pool_name, seen.picker_name)
    # No app label: the name of a reference that cannot work may be no valid label value.
    metadata["labels"] = {names.MANAGED_BY_LABEL: names.MANAGED_BY_VALUE}
    return (intent(PICKER, metadata, claimed=True),)


def superfluous(seen: Observation) -> dict[ChildKey, Object]:
    """Return the operator's EndpointPicker for removal when the pool is let go; never a user's."""
    live = seen.picker_object
    if live is None or users_own(live, seen.pool_name, seen.pool_uid):
        return {}
    return {(PICKER, seen.pool_name): live}
