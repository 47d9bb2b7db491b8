"""Answers of a picker's pods about their configuration and their connections. Pure values.

`configuration.py` makes the question; `configuration.py` and `connections.py` judge the answer.
`ask_picker.py` sends the question over HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from inference_api.offered import Offered
from inference_api.picker_health import PickerHealth, PortHealth
from inference_api.prediction_report import PredictionReport
from inference_operator.core.endpoints import EndpointTally

#: Seconds between two questions while prediction is to begin, or to come back.
PREDICTION_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The pods to ask, and the text to ask about. A question that differs in any field is asked at once."""

    namespace: str
    app: str
    """Name of the picker: the label by which its pods are found."""
    port: int
    """Their metrics port."""
    mark: str
    """`text_mark` of the configuration in the ConfigMap, which the pods should have read."""
    deployment: str
    """resourceVersion of their Deployment: it changes, among others, when a pod becomes ready."""
    endpoints: EndpointTally = field(default_factory=EndpointTally)
    """Counts of the pool's endpoints: a new endpoint may be unreachable."""
    ports: tuple[int, ...] = ()
    """The pool's target ports; empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PickerAnswer:
    """What the operator knows from the picker's pods."""

    answer: Offered | None = None
    """The latest answer, perhaps about an older text.

    With several pods: that of a pod that refuses, else of a pod that lags.
    """
    problem: str = ""
    """Why it is unknown whether the text is accepted; "" when it is known, or no pod was asked."""
    asking: bool = False
    """Whether a new question was begun, and no answer to it is known yet."""
    health: PickerHealth | None = None
    """The pods' connections to gateways and endpoints; None when no pod has reported them."""

    prediction: PredictionReport | None = None
    """The pods' prediction; None when no pod has reported it."""

    @property
    def settled(self) -> bool:
        """Whether asking again soon would bring nothing new: no problem, and health is settled."""
        return not self.problem and (self.health is None or self.health.settled)

    @property
    def again_within(self) -> float | None:
        """Seconds within which to ask again, where a resync may be too late; None: a resync will do."""
        return PREDICTION_S if self.prediction is not None and not self.prediction.routes else None


def conclude(mark: str, said: Sequence[Offered], silent: Sequence[str]) -> PickerAnswer:
    """Return the joint answer of the pods about the text with that mark.

    One pod that refuses it is enough; it is accepted when all have accepted it. `silent` holds a reason for
    each pod that gave no answer.
    """
    health = _together([each.health for each in said if each.health is not None])
    reports = [each.prediction for each in said if each.prediction is not None]
    # While a rollout goes on, the pod that has predicted most speaks for the pool.
    prediction = max(reports, key=lambda each: (each.routes, each.rate.rows_per_second), default=None)
    known = PickerAnswer(health=health, prediction=prediction)
    for each in said:
        if each.config.mark == mark and each.config.error:
            return replace(known, answer=each)
    late = next((each for each in said if each.config.mark != mark), None)
    if silent:
        return replace(known, problem=silent[0])
    if late is not None:
        problem = "the picker has not seen the newest configuration yet"
        return replace(known, answer=late, problem=problem)
    return replace(known, answer=said[0]) if said else PickerAnswer(problem="no picker pod is ready")


def about_all(question: Question, said: Offered) -> Offered:
    """Return the answer, marked as not settled while it does not cover the pool's ports and endpoints.

    A picker pod that has not read the newest pool yet reports the earlier target ports, or none.
    """
    health = said.health
    if health is None or not health.settled:
        return said
    heard = sum(port.total for port in health.ports)
    strange = bool(question.ports) and any(port.port not in question.ports for port in health.ports)
    if heard >= question.endpoints.ready and not strange:
        return said
    return said.model_copy(update={"health": health.model_copy(update={"settled": False})})


def _together(all_health: Sequence[PickerHealth]) -> PickerHealth | None:
    """Merge the health of several pods: every kind of failed handshake, and the worst view of each port."""
    if not all_health:
        return None
    worst: dict[int, PortHealth] = {}
    for port in (port for health in all_health for port in health.ports):
        held = worst.get(port.port)
        if held is None or _badness(port) > _badness(held):
            worst[port.port] = port
    return PickerHealth(
        failed_handshakes=tuple(sorted({kind for health in all_health for kind in health.failed_handshakes})),
        connected=any(health.connected for health in all_health),
        ports=tuple(port for _, port in sorted(worst.items())),
        missing_signals=tuple(sorted({name for health in all_health for name in health.missing_signals})),
        settled=all(health.settled for health in all_health),
    )


def _badness(port: PortHealth) -> tuple[int, int]:
    return port.unconnected, port.silent + port.without_metrics
