"""The ServiceAccount that a picker runs as. Pure."""

from inference_operator.core.desired.intent import Intent, intent
from inference_operator.core.kinds import SERVICE_ACCOUNT
from inference_operator.core.naming import child_metadata
from inference_operator.core.observation import Observation


def desired(seen: Observation) -> Intent:
    """Return the ServiceAccount."""
    return intent(SERVICE_ACCOUNT, child_metadata(seen, seen.picker_name, seen.picker_name))
