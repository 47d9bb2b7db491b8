"""States of the predictor, and how requests that became samples were picked and ended. Pure."""

from enum import IntEnum


class State(IntEnum):
    """How far predictions can be relied on. Only `SEEDED` and `TRAINED` may route."""

    WARMING = 0
    """No model, or one that has not passed its hold-out."""
    SEEDED = 1
    """A model that was imported and is not proven on this pool's traffic yet."""
    TRAINED = 2
    DEGRADED = 3
    """The model's errors or bounds do not hold on the present traffic."""

    @property
    def routes(self) -> bool:
        """Return whether requests may be routed by predictions of this state."""
        return self is State.SEEDED or self is State.TRAINED


class Policy(IntEnum):
    """What chose the endpoint."""

    HEURISTIC = 0
    PREDICTED = 1
    HOLDOUT = 2
    """The heuristic profile, chosen to measure the gain of prediction."""
    PROBE = 3
    """Prediction, chosen while it is out of routing so that it can come back."""


class Ended(IntEnum):
    """How the request ended. Only `SERVED` gives labels; the others are censored."""

    SERVED = 0
    FAILED = 1
    """A status other than 2xx, or the connection broke."""
    ABORTED = 2
    """The client went away, or the gateway ended the stream."""
    TIMED_OUT = 3
    REFUSED = 4
