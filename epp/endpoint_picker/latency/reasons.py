"""Why a request is picked without a prediction. Labels of metrics and words of /debug/explain."""

from enum import StrEnum


class Reason(StrEnum):
    """The value is the label; `PREDICTED` is the only one with a prediction."""

    PREDICTED = ""
    NOT_ASKED = "not-asked"
    """The request does not opt in."""
    HOLDOUT = "holdout"
    """Picked by the heuristic so that the gain can be measured."""
    NO_GAIN = "no-gain"
    """Prediction is out of routing because it does worse than the heuristic."""
    TRAIN_ONLY = "train-only"
    """The configuration has predictInProduce: false."""
    NO_SERVER = "no-server"
    """The picker knows no prediction server."""
    UNREACHABLE = "unreachable"
    """No prediction server answers."""
    WARMING = "warming"
    """There is no model yet, or none for what the request needs."""
    DEGRADED = "degraded"
    """The model's errors or bounds do not hold at present, in general or for such candidates."""
    LATE = "late"
    """The answer did not come within the budget."""
    FAILED = "failed"
    """The call failed, or its answer could not be read."""
    NO_ROOM = "no-room"
    """No more decisions may wait, or too little time is left for one that has waited before."""
